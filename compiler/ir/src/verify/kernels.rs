//! Rules of the kernel level: regions partition graphs.

use super::environment;
use super::{Report, VerifyError};
use crate::{
    Anatomy, Graph, KernelGraph, KernelKind, KernelModule, Layout, Region, Scope, WeightRef, core_kind, effect_order,
};
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
    layouts(module, &mut report);
    super::side_by_side::verify(module, &mut report);
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
        if ascending {
            anatomy(graph, region, &place, report);
        }
    }
    for (before, after) in effect_order(graph) {
        let regions = (region_of[before.0 as usize], region_of[after.0 as usize]);
        report.check(regions.0 <= regions.1, "V0204", place, || {
            format!("{after} changes or reads the cache that {before} does, in a region before it")
        });
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

/// Whether a region's operations make a region, and one of its kind.
fn anatomy(graph: &Graph, region: &Region, place: &str, report: &mut Report) {
    let whole = region.values.iter().all(|v| !graph.node(*v).op.is_leaf());
    let found = match Anatomy::of(graph, &region.values) {
        Ok(found) => found,
        Err(message) if whole => return report.add("V0204", place, message),
        Err(_) => return,
    };
    report.check(found.kind == region.kind, "V0204", place, || {
        format!("its operations are not those of kind {}, they are {}", region.kind.word(), found.kind.word())
    });
    // What a prologue computes is computed once per tile of the core, and stored nowhere.
    let exchange = found.core.is_some_and(|c| core_kind(graph, c) == Some(KernelKind::Collective));
    for id in found.before.iter().filter(|_| !exchange) {
        let outside = graph.users(*id).into_iter().any(|u| !region.values.contains(&u));
        let output = graph.outputs.iter().any(|(_, v)| v == id);
        report.check(!outside && !output, "V0204", place, || format!("{id} stands before the core and leaves"));
    }
}

/// Layouts name weights that the model has, each once; only packed weights interleave, and only equal parts.
fn layouts(module: &KernelModule, report: &mut Report) {
    let facts = module.local_facts();
    for (i, chosen) in module.layouts.iter().enumerate() {
        let place = format!("layout {}", i + 1);
        let again = module.layouts.iter().take(i).any(|other| other.weight == chosen.weight);
        report.check(!again, "V0204", &place, || "the weight has a layout already".to_owned());
        let rows = |part: &WeightRef| {
            let (scope, name) = match part {
                WeightRef::Model(name) => (Scope::Model, name),
                WeightRef::Layer(name) | WeightRef::OfLayer { name, .. } => (Scope::Layer, name),
                _ => return None,
            };
            facts.weight(scope, name).map(|w| w.elements())
        };
        let sizes: Option<Vec<u64>> = chosen.weight.parts().iter().map(rows).collect();
        let Some(sizes) = sizes else {
            report.add("V0204", &place, "it is of no weight that the model or a layer has");
            continue;
        };
        if let Layout::Interleaved { parts, granule } = chosen.layout {
            let equal = match sizes.as_slice() {
                [whole] => parts > 1 && whole.is_multiple_of(parts),
                own => own.len() as u64 == parts && own.windows(2).all(|w| w[0] == w[1]),
            };
            report.check(equal && granule > 0, "V0204", &place, || {
                format!("interleaves {sizes:?} elements as {parts} parts by {granule}")
            });
        }
    }
}
