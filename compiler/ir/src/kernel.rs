//! The kernel level: every operation of every graph stands in exactly one region.

use crate::{Class, Facts, Graph, Instance, LayerKinds, Module, Sharding, ValueId};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// What executes a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelKind {
    /// Element-wise chains, row reductions, selections, cuts and joins.
    Rows,
    /// Rows of a table picked by index.
    Gather,
    /// Dense product with a weight.
    Matmul,
    /// Product in which each row picks its slice of the weight.
    GroupedMatmul,
    /// Product of two values.
    Dot,
    /// Keys and values written to the cache.
    Store,
    /// Attention over the cache.
    Attend,
    /// Data exchanged between ranks.
    Collective,
    /// Another view of existing memory; launches nothing.
    View,
}

impl KernelKind {
    /// The word in IR text and reports.
    pub fn word(self) -> &'static str {
        match self {
            KernelKind::Rows => "rows",
            KernelKind::Gather => "gather",
            KernelKind::Matmul => "matmul",
            KernelKind::GroupedMatmul => "grouped_matmul",
            KernelKind::Dot => "dot",
            KernelKind::Store => "store",
            KernelKind::Attend => "attend",
            KernelKind::Collective => "collective",
            KernelKind::View => "view",
        }
    }
}

/// A set of operations that run as one kernel. It keeps its operations, so it can be interpreted like any graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Region {
    /// Name, unique in the graph: that of its last named value.
    pub name: String,
    /// What executes it.
    pub kind: KernelKind,
    /// Its operations, ascending. Leaves (inputs, weights, literals, scalars) belong to no region.
    pub values: Vec<ValueId>,
}

/// A graph and its partition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelGraph {
    /// `first`, a class name, or `last`.
    pub name: String,
    /// Kinds per schedule column; empty for `first` and `last`.
    pub kinds: LayerKinds,
    /// The graph.
    pub graph: Graph,
    /// Regions in an order in which producers precede consumers.
    pub regions: Vec<Region>,
}

/// One entry at kernel level: graphs are `first`, the classes in order, `last`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelEntry {
    /// Name, such as `forward`.
    pub name: String,
    /// `first`, one per class, `last`.
    pub graphs: Vec<KernelGraph>,
    /// Layers in the order they run.
    pub instances: Vec<Instance>,
}

impl KernelEntry {
    /// The graph that runs before the layers.
    pub fn first(&self) -> &KernelGraph {
        &self.graphs[0]
    }

    /// The graph that runs after the layers.
    pub fn last(&self) -> &KernelGraph {
        &self.graphs[self.graphs.len() - 1]
    }

    /// Index into `graphs` of a layer class.
    pub fn class_graph(class: usize) -> usize {
        class + 1
    }

    /// The entry at graph level: the same graphs without their partition.
    pub fn to_entry(&self) -> crate::Entry {
        crate::Entry {
            name: self.name.clone(),
            first: self.first().graph.clone(),
            classes: self.graphs[1..self.graphs.len() - 1]
                .iter()
                .map(|g| Class { name: g.name.clone(), kinds: g.kinds.clone(), graph: g.graph.clone() })
                .collect(),
            instances: self.instances.clone(),
            last: self.last().graph.clone(),
        }
    }
}

/// A model at kernel level; with a sharding, the program of every rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelModule {
    /// Facts.
    pub facts: Facts,
    /// The mesh and what lies where on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharding: Option<Sharding>,
    /// Named ways in which passes changed bits, in the order in which they ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relaxations: Vec<String>,
    /// Entries in the order of the spec.
    pub entries: Vec<KernelEntry>,
}

impl KernelModule {
    /// The facts as one rank sees them: its parts of weights and caches.
    pub fn local_facts(&self) -> Cow<'_, Facts> {
        crate::module::local_facts(&self.facts, self.sharding.as_ref())
    }

    /// The same graphs without their partition.
    pub fn to_module(&self) -> Module {
        Module {
            facts: self.facts.clone(),
            sharding: self.sharding.clone(),
            relaxations: self.relaxations.clone(),
            entries: self.entries.iter().map(KernelEntry::to_entry).collect(),
        }
    }
}
