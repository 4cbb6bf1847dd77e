//! The graph level: for each entry a first graph, one graph per layer class and a last graph.
//!
//! The graphs of an entry exchange values *by name* in one environment. It starts with the entry's
//! inputs; the first graph's outputs are added; each layer instance reads its inputs from it and
//! overwrites what it outputs; the last graph reads from it and its outputs are the entry's results.

use crate::{Facts, Graph, LayerKinds, Sharding};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A model as flat graphs. With a sharding it is the sharded level: one program for all ranks, whose types are those of
/// one rank; the facts stay those of the whole model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Module {
    /// Facts.
    pub facts: Facts,
    /// The mesh and what lies where on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharding: Option<Sharding>,
    /// Named ways in which passes changed bits, in the order in which they ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relaxations: Vec<String>,
    /// Entries in the order of the spec.
    pub entries: Vec<Entry>,
}

impl Module {
    /// A module on one device that nothing has relaxed.
    pub fn new(facts: Facts, entries: Vec<Entry>) -> Module {
        Module { facts, sharding: None, relaxations: Vec::new(), entries }
    }

    /// The same facts, sharding and relaxations with other entries.
    pub fn with_entries(&self, entries: Vec<Entry>) -> Module {
        Module {
            facts: self.facts.clone(),
            sharding: self.sharding.clone(),
            relaxations: self.relaxations.clone(),
            entries,
        }
    }

    /// The facts as one rank sees them: its parts of weights and caches.
    pub fn local_facts(&self) -> Cow<'_, Facts> {
        local_facts(&self.facts, self.sharding.as_ref())
    }
}

/// Facts as one rank sees them; dims stay those of the whole model.
pub(crate) fn local_facts<'f>(facts: &'f Facts, sharding: Option<&Sharding>) -> Cow<'f, Facts> {
    match sharding {
        Some(sharding) => Cow::Owned(sharding.local_facts(facts)),
        None => Cow::Borrowed(facts),
    }
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Name, such as `forward`.
    pub name: String,
    /// Runs once, before the layers.
    pub first: Graph,
    /// Distinct layer graphs.
    pub classes: Vec<Class>,
    /// Layers in the order they run.
    pub instances: Vec<Instance>,
    /// Runs once, after the layers.
    pub last: Graph,
}

/// Layers that share one graph: same schedule kinds, same format of every weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Class {
    /// Kinds joined with dots, such as `sliding.dense`.
    pub name: String,
    /// Kinds per schedule column.
    pub kinds: LayerKinds,
    /// The layer's graph.
    pub graph: Graph,
}

/// One layer: a class and the index that its scalars and weights depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Zero-based layer index.
    pub layer: usize,
    /// Index into [`Entry::classes`].
    pub class: usize,
}

impl Entry {
    /// Every graph with its name: `first`, the classes, `last`.
    pub fn graphs(&self) -> impl Iterator<Item = (&str, &Graph)> {
        std::iter::once(("first", &self.first))
            .chain(self.classes.iter().map(|c| (c.name.as_str(), &c.graph)))
            .chain(std::iter::once(("last", &self.last)))
    }
}
