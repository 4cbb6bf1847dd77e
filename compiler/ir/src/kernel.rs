//! The kernel level: every operation of every graph stands in exactly one region.

use crate::{Class, Facts, Graph, Instance, LayerKinds, Module, Sharding, ValueId, WeightRef};
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
    /// Dense product with a weight whose rows are then selected from.
    Route,
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
    /// Every kind.
    pub const ALL: [KernelKind; 10] = [
        KernelKind::Rows,
        KernelKind::Gather,
        KernelKind::Matmul,
        KernelKind::Route,
        KernelKind::GroupedMatmul,
        KernelKind::Dot,
        KernelKind::Store,
        KernelKind::Attend,
        KernelKind::Collective,
        KernelKind::View,
    ];

    /// The word in IR text and reports.
    pub fn word(self) -> &'static str {
        match self {
            KernelKind::Rows => "rows",
            KernelKind::Gather => "gather",
            KernelKind::Matmul => "matmul",
            KernelKind::Route => "route",
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
/// [`crate::Anatomy`] has the rules that make a set of operations a region.
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

impl KernelGraph {
    /// For each value, the value whose memory it is: itself unless it is a view.
    pub fn roots(&self) -> Vec<ValueId> {
        let mut roots: Vec<ValueId> = Vec::with_capacity(self.graph.len());
        for id in self.graph.ids() {
            let viewed = self.graph.operands(id).first().copied().filter(|_| self.graph.node(id).op.is_view());
            roots.push(viewed.and_then(|v| roots.get(v.0 as usize).copied()).unwrap_or(id));
        }
        roots
    }

    /// For each value, the region that holds it; leaves are in none.
    pub fn region_of(&self) -> Vec<Option<usize>> {
        let mut region_of = vec![None; self.graph.len()];
        for (index, region) in self.regions.iter().enumerate() {
            for id in &region.values {
                if let Some(slot) = region_of.get_mut(id.0 as usize) {
                    *slot = Some(index);
                }
            }
        }
        region_of
    }

    /// For each value, whether it leaves the region that makes it and so needs memory: another region's operation reads
    /// it or a view of it, it is an output or an output is a view of it, or nothing reads it at all. Leaves, views and
    /// caches never do.
    pub fn leaving(&self) -> Vec<bool> {
        let (roots, region_of) = (self.roots(), self.region_of());
        let mut leaves = vec![false; self.graph.len()];
        // What nobody reads, or only through views that nobody reads, is written somewhere all the same.
        let mut read = vec![false; self.graph.len()];
        for (_, value) in &self.graph.outputs {
            leaves[roots[value.0 as usize].0 as usize] = true;
        }
        for id in self.graph.ids().filter(|v| !self.graph.node(*v).op.is_view()) {
            for operand in self.graph.operands(id) {
                let root = roots[operand.0 as usize].0 as usize;
                leaves[root] |= region_of[root] != region_of[id.0 as usize];
                read[root] = true;
            }
        }
        for id in self.graph.ids() {
            let op = &self.graph.node(id).op;
            leaves[id.0 as usize] |= !read[id.0 as usize];
            leaves[id.0 as usize] &= !op.is_leaf() && !op.is_view() && self.graph.tensor(id).is_some();
        }
        leaves
    }
}

/// How the numbers of a weight lie in memory: one layout for every kernel that reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightLayout {
    /// The weight: of the model, of a layer, or packed of several.
    pub weight: WeightRef,
    /// Its layout.
    pub layout: Layout,
}

/// A layout of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// Row after row, the contracted axes innermost; of a packed weight, part after part.
    RowMajor,
    /// The rows are cut into equal parts, of a packed weight its own: `granule` rows of the first part, as many of the
    /// second, …, then the next of the first. A last granule may be short.
    Interleaved {
        /// How many parts.
        parts: u64,
        /// Rows of one part that stand together.
        granule: u64,
    },
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
    /// Layouts of weights, once they are chosen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layouts: Vec<WeightLayout>,
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
