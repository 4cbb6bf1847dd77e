//! **select kernels** (graph level → kernel level)
//!
//! ```text
//! %q: f32[T, heads, head_dim] = linear … (%n, %w)      region q matmul { %q }
//! %r: bf16[T, heads, head_dim] = round bf16 (%q)       region r rows { %r }
//! %s: bf16[T, heads, 2, half] = split head_dim (%r)    region s view { %s }
//! ```
//!
//! Why: a plan launches regions. Here every operation is a region of its own; fusing passes join them.
//! When: always. (1) A view of existing memory is `view`. (2) A gather is `gather`. (3) A product with a weight is `matmul`, or
//! `grouped_matmul` where each row picks its slice. (4) `dot`, `store` and `attend` are kinds of their own. (5) Everything
//! else is `rows`. (6) Leaves are in no region.
//! Kind: `Exact`.
//! Tests: below.

use crate::{Compile, Kind, Level, PassError, PassInfo};
use ir::{Entry, Graph, KernelEntry, KernelGraph, KernelKind, KernelModule, LayerKinds, Module, Op, Region, ValueId};
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
        entries: module.entries.iter().map(entry).collect(),
    })
}

fn entry(entry: &Entry) -> KernelEntry {
    let none = LayerKinds::new();
    let first = std::iter::once(("first", &none, &entry.first));
    let classes = entry.classes.iter().map(|c| (c.name.as_str(), &c.kinds, &c.graph));
    let last = std::iter::once(("last", &none, &entry.last));
    let graphs = first.chain(classes).chain(last).map(|(name, kinds, graph)| KernelGraph {
        name: name.to_owned(),
        kinds: kinds.clone(),
        graph: graph.clone(),
        regions: regions(graph),
    });
    KernelEntry { name: entry.name.clone(), graphs: graphs.collect(), instances: entry.instances.clone() }
}

fn regions(graph: &Graph) -> Vec<Region> {
    let mut names: HashSet<String> = HashSet::new();
    let inner = graph.ids().filter(|v| !graph.node(*v).op.is_leaf());
    inner
        .map(|id| {
            let kind = kind(&graph.node(id).op, graph.operands(id).len());
            Region { name: region_name(graph, id, kind, &mut names), kind, values: vec![id] }
        })
        .collect()
}

/// The kernel kind of an operation by itself.
fn kind(op: &Op, operands: usize) -> KernelKind {
    match op {
        op if op.is_view() => KernelKind::View,
        Op::Gather { .. } => KernelKind::Gather,
        Op::Linear { .. } if operands > 2 => KernelKind::GroupedMatmul,
        Op::Linear { .. } => KernelKind::Matmul,
        Op::Dot { .. } => KernelKind::Dot,
        Op::Store { .. } => KernelKind::Store,
        Op::Attend { .. } => KernelKind::Attend,
        op if op.exchanges().is_some() => KernelKind::Collective,
        _ => KernelKind::Rows,
    }
}

/// The value's name, or kind and id; a name in use gets a suffix.
fn region_name(graph: &Graph, id: ValueId, kind: KernelKind, names: &mut HashSet<String>) -> String {
    let wanted = graph.node(id).name.clone().unwrap_or_else(|| format!("{}.{}", kind.word(), id.0));
    let name = ir::free_name(&wanted, |name| names.contains(name));
    names.insert(name.clone());
    name
}

#[cfg(test)]
mod tests {
    use crate::testing::{compile_graph_level, two_kind_model};
    use ir::KernelKind;

    #[test]
    fn every_operation_is_a_region_of_its_kind() {
        let module = compile_graph_level(&two_kind_model());
        let kernels = super::run(&module).unwrap();
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
