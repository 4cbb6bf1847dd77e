//! Costs of every kernel of a step, and of the step.

use super::region::Context;
use super::{Load, Work};
use crate::{Hardware, Target};
use ir::{KernelEntry, KernelGraph, KernelKind, KernelModule, Mesh, Op, Region};
use std::collections::HashMap;

/// One kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelCost {
    /// Name of the region.
    pub name: String,
    /// Kind of the region.
    pub kind: KernelKind,
    /// What it does.
    pub work: Work,
}

/// The kernels of one graph.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphCost {
    /// `first`, a class name, or `last`.
    pub name: String,
    /// How often a step runs it.
    pub times: u64,
    /// Kernels in order; views, which launch nothing, are left out.
    pub kernels: Vec<KernelCost>,
}

/// A whole step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepCost {
    /// What it brings to the rank.
    pub load: Load,
    /// Graphs in the order of the entry.
    pub graphs: Vec<GraphCost>,
}

/// Costs on one rank of a step of an entry; `load` is that of all ranks together.
pub fn step(kernels: &KernelModule, entry: &KernelEntry, target: &Target, load: Load) -> StepCost {
    let facts = kernels.local_facts();
    let single = Mesh::single();
    let load = load.of_rank(kernels.sharding.as_ref());
    let mesh = kernels.sharding.as_ref().map_or(&single, |s| &s.mesh);
    let mut context =
        Context { facts: &facts, mesh, load, kv_dtype: target.kv.dtype.resolve(facts.act), gathered: HashMap::new() };
    context.gathered = gathered(entry, &context);
    let classes = entry.graphs.len().saturating_sub(2);
    let times = |i: usize| match i {
        0 => 1,
        i if i > classes => 1,
        i => entry.instances.iter().filter(|instance| KernelEntry::class_graph(instance.class) == i).count() as u64,
    };
    let graph = |(i, graph): (usize, &KernelGraph)| {
        let leaving = graph.leaving();
        let launched = graph.regions.iter().filter(|region| region.kind != KernelKind::View);
        let kernel = |region: &Region| {
            let work = context.region(graph, &leaving, region);
            KernelCost { name: region.name.clone(), kind: region.kind, work }
        };
        GraphCost { name: graph.name.clone(), times: times(i), kernels: launched.map(kernel).collect() }
    };
    let graphs = entry.graphs.iter().enumerate().map(graph);
    StepCost { load, graphs: graphs.collect() }
}

/// Row axes that gathering over ranks makes, with their rows.
fn gathered(entry: &KernelEntry, context: &Context) -> HashMap<String, u64> {
    let mut rows = HashMap::new();
    for graph in entry.graphs.iter().map(|g| &g.graph) {
        for id in graph.ids() {
            if let Op::AllGather { axis, over, into } = &graph.node(id).op
                && let Some(own) = context.load.rows(axis)
            {
                rows.insert(into.clone(), own * context.mesh.parts(over));
            }
        }
    }
    rows
}

impl GraphCost {
    /// All kernels of the graph, once.
    pub fn work(&self) -> Work {
        let mut sum = Work::default();
        self.kernels.iter().for_each(|k| sum += k.work);
        sum
    }

    /// Sum of the kernels' floors in seconds.
    pub fn floor(&self, hardware: &Hardware) -> Option<f64> {
        self.kernels.iter().map(|k| k.work.floor(hardware).map(|(seconds, _)| seconds)).sum()
    }
}

impl StepCost {
    /// All kernels of the step.
    pub fn work(&self) -> Work {
        let mut sum = Work::default();
        for graph in &self.graphs {
            (0..graph.times).for_each(|_| sum += graph.work());
        }
        sum
    }

    /// Sum of the kernels' floors in seconds: the least time of a step that runs them one after the other.
    pub fn floor(&self, hardware: &Hardware) -> Option<f64> {
        self.graphs.iter().map(|g| Some(g.floor(hardware)? * g.times as f64)).sum()
    }

    /// The floor with launches and exchanges.
    pub fn estimate(&self, hardware: &Hardware) -> Option<f64> {
        Some(self.floor(hardware)? + self.work().latency(hardware))
    }
}
