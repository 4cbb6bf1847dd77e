//! The graph level: for each entry a first graph, one graph per layer class and a last graph.
//!
//! The graphs of an entry exchange values *by name* in one environment. It starts with the entry's
//! inputs; the first graph's outputs are added; each layer instance reads its inputs from it and
//! overwrites what it outputs; the last graph reads from it and its outputs are the entry's results.

use crate::{Facts, Graph, LayerKinds};
use serde::{Deserialize, Serialize};

/// A model as flat graphs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Module {
    /// Facts.
    pub facts: Facts,
    /// Entries in the order of the spec.
    pub entries: Vec<Entry>,
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
