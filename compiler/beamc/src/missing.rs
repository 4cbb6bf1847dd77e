//! Kernels that a compilation plans and that nothing of this build provides.

use ir::{KernelGraph, KernelKind, KernelModule, Op, Region, ValueId, WeightRef};

/// The architecture whose kernels are part of the runtime.
const CPU: &str = "cpu";

/// Every missing kernel, by entry, graph and name; empty for an artifact that runs.
pub fn kernels(kernels: &KernelModule, arch: &str) -> Vec<String> {
    let mut missing = Vec::new();
    for entry in &kernels.entries {
        for graph in &entry.graphs {
            let launched = graph.regions.iter().filter(|region| region.kind != KernelKind::View);
            for region in launched.filter(|region| is_missing(graph, region, arch)) {
                missing.push(format!(
                    "{} {}: {} ({}, {arch})",
                    entry.name,
                    graph.name,
                    region.name,
                    region.kind.word()
                ));
            }
        }
    }
    missing
}

/// The runtime has kernels for one processor of the kind it is built for, none that talk to other ranks, and none that
/// read a packed weight: its kernels read weights as the checkpoint has them.
fn is_missing(graph: &KernelGraph, region: &Region, arch: &str) -> bool {
    let op = |v: &ValueId| &graph.graph.node(*v).op;
    let packed = |v: &ValueId| matches!(op(v), Op::Weight(WeightRef::Packed { .. }));
    let foreign = |v: &ValueId| op(v).is_sharded() || graph.graph.operands(*v).iter().any(packed);
    arch != CPU || region.values.iter().any(foreign)
}
