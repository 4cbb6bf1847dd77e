//! Rules of the kernel level: regions partition graphs.

use super::environment;
use super::{Report, VerifyError};
use crate::{Graph, KernelGraph, KernelKind, KernelModule, Op, Region};
use std::collections::HashSet;

pub(super) fn verify(module: &KernelModule) -> Result<(), Vec<VerifyError>> {
    let mut report = Report::default();
    environment::facts(&module.facts, &mut report);
    let view = environment::View::new(&module.facts, module.sharding.as_ref(), &mut report);
    for entry in &module.entries {
        let ends = (entry.graphs.first().map(|g| g.name.as_str()), entry.graphs.last().map(|g| g.name.as_str()));
        if entry.graphs.len() < 2 || ends != (Some("first"), Some("last")) {
            report.add("V0204", &entry.name, "its graphs do not begin with `first` and end with `last`");
            continue;
        }
        if environment::verify_entry(&entry.to_entry(), &view, &mut report) {
            for graph in &entry.graphs {
                regions(graph, &format!("{} {}", entry.name, graph.name), &mut report);
            }
        }
    }
    report.finish()
}

fn regions(kernel_graph: &KernelGraph, place: &str, report: &mut Report) {
    let graph = &kernel_graph.graph;
    let mut region_of: Vec<Option<usize>> = vec![None; graph.len()];
    let mut names = HashSet::new();
    for (index, region) in kernel_graph.regions.iter().enumerate() {
        let place = format!("{place} region {}", region.name);
        report.check(names.insert(&region.name), "V0204", &place, || "two regions have this name".to_owned());
        let ascending = region.values.windows(2).all(|w| w[0] < w[1]) && !region.values.is_empty();
        report.check(ascending, "V0204", &place, || "its operations do not ascend, or there are none".to_owned());
        for id in &region.values {
            let Some(slot) = region_of.get_mut(id.0 as usize) else {
                report.add("V0204", &place, format!("{id} is not in the graph"));
                return;
            };
            if slot.replace(index).is_some() {
                report.add("V0204", &place, format!("{id} is in two regions"));
            }
            report.check(!graph.node(*id).op.is_leaf(), "V0204", &place, || format!("{id} is a leaf"));
        }
        if !fits_kind(graph, region) {
            report.add("V0204", &place, format!("its operations are not those of kind {}", region.kind.word()));
        }
    }
    for id in graph.ids().filter(|v| !graph.node(*v).op.is_leaf()) {
        let Some(user) = region_of[id.0 as usize] else {
            report.add("V0204", place, format!("{id} is in no region"));
            continue;
        };
        for operand in graph.operands(id) {
            if region_of[operand.0 as usize].is_some_and(|maker| maker > user) {
                report.add("V0204", place, format!("{id} reads {operand}, which a later region makes"));
            }
        }
    }
}

/// Whether a region's operations are those of its kind. A core may carry row operations around it; then there is one core.
fn fits_kind(graph: &Graph, region: &Region) -> bool {
    let ops: Vec<(&Op, usize)> = region.values.iter().map(|v| (&graph.node(*v).op, graph.operands(*v).len())).collect();
    let core = |op: &Op, operands: usize| match op {
        Op::Gather { .. } => Some(KernelKind::Gather),
        Op::Linear { .. } if operands > 2 => Some(KernelKind::GroupedMatmul),
        Op::Linear { .. } => Some(KernelKind::Matmul),
        Op::Dot { .. } => Some(KernelKind::Dot),
        Op::Store { .. } => Some(KernelKind::Store),
        Op::Attend { .. } => Some(KernelKind::Attend),
        op if op.exchanges().is_some() => Some(KernelKind::Collective),
        _ => None,
    };
    let cores: Vec<KernelKind> = ops.iter().filter_map(|(op, n)| core(op, *n)).collect();
    match region.kind {
        KernelKind::View => ops.iter().all(|(op, _)| op.is_view()),
        KernelKind::Rows => cores.iter().all(|k| *k == KernelKind::Gather) && !ops.iter().all(|(op, _)| op.is_view()),
        kind => cores == [kind],
    }
}
