//! **select kernels** (graph level → kernel level)
//!
//! ```text
//! %q: f32[T, heads, head_dim] = linear … (%n, %w)      region q matmul { %q }
//! %r: bf16[T, heads, head_dim] = round bf16 (%q)       region r rows { %r }
//! %s: bf16[T, heads, 2, half] = split head_dim (%r)    region s view { %s }
//! ```
//!
//! Why: a plan launches regions. Here every operation is a region of its own; fusing passes join them.
//! When: always. The kind of a region is that which [`ir::Anatomy`] finds; leaves are in no region.
//! Kind: `Exact`.
//! Tests: below.

use crate::{Compile, Kind, Level, PassError, PassInfo};
use ir::{Entry, Graph, KernelEntry, KernelGraph, KernelModule, LayerKinds, Module, Region};
use std::collections::HashSet;

/// What the pass says about itself.
pub const INFO: PassInfo =
    PassInfo { name: "select kernels", level: Level::Kernel, kind: Kind::Exact, why: "a plan launches regions" };

/// Runs the pass.
pub fn run(module: &Module, _: &Compile<'_>) -> Result<KernelModule, PassError> {
    Ok(KernelModule {
        facts: module.facts.clone(),
        sharding: module.sharding.clone(),
        relaxations: module.relaxations.clone(),
        layouts: Vec::new(),
        entries: module.entries.iter().map(entry).collect::<Result<_, _>>()?,
    })
}

fn entry(entry: &Entry) -> Result<KernelEntry, PassError> {
    let none = LayerKinds::new();
    let first = std::iter::once(("first", &none, &entry.first));
    let classes = entry.classes.iter().map(|c| (c.name.as_str(), &c.kinds, &c.graph));
    let last = std::iter::once(("last", &none, &entry.last));
    let mut graphs = Vec::new();
    for (name, kinds, graph) in first.chain(classes).chain(last) {
        let regions = regions(graph)?;
        graphs.push(KernelGraph { name: name.to_owned(), kinds: kinds.clone(), graph: graph.clone(), regions });
    }
    Ok(KernelEntry { name: entry.name.clone(), graphs, instances: entry.instances.clone() })
}

fn regions(graph: &Graph) -> Result<Vec<Region>, PassError> {
    let mut names: HashSet<String> = HashSet::new();
    let inner = graph.ids().filter(|v| !graph.node(*v).op.is_leaf());
    inner.map(|id| crate::regions::region(graph, vec![id], &mut names)).collect()
}

#[cfg(test)]
mod tests {
    use crate::testing::{compile_graph_level, two_kind_model};
    use ir::KernelKind;

    #[test]
    fn every_operation_is_a_region_of_its_kind() {
        let module = compile_graph_level(&two_kind_model());
        let kernels = super::run(&module, &crate::Compile::one_device(&targets::Target::load("cpu").unwrap())).unwrap();
        for graph in &kernels.entries[0].graphs {
            let inner = graph.graph.ids().filter(|v| !graph.graph.node(*v).op.is_leaf()).count();
            assert_eq!(graph.regions.len(), inner);
        }
        let near = &kernels.entries[0].graphs[1];
        let kinds = |kind| near.regions.iter().filter(|r| r.kind == kind).count();
        assert_eq!(kinds(KernelKind::Attend), 1);
        assert_eq!(kinds(KernelKind::Store), 1);
        assert_eq!(kinds(KernelKind::Matmul), 6);
        assert!(near.regions.iter().any(|r| r.name == "attention.q"));
        assert_eq!(kernels.entries[0].to_entry(), module.entries[0]);
    }
}
