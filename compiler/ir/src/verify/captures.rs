//! Rules of rows that a drafter takes: who makes them, and where a plan leaves them.

use super::Report;
use super::plan::CODE;
use crate::{BucketPlan, Buffer, Capture, Captured, Entry, Facts, Graph, KernelEntry, Place, PlanEntry, TensorType};

/// Every export of an entry names layers that run, and a value that each of them hands on, row by row.
pub(super) fn exports(entry: &Entry, facts: &Facts, report: &mut Report) {
    for export in facts.exports.iter().filter(|e| e.entry == entry.name) {
        let place = format!("{} export {}", entry.name, export.name);
        for layer in &export.layers {
            let instance = entry.instances.iter().find(|i| i.layer == *layer);
            let graph = instance.and_then(|i| entry.classes.get(i.class)).map(|class| &class.graph);
            let found = graph.and_then(|g| handed_on(g, &export.value));
            report.check(found.is_some_and(|ty| ty.axes.first().is_some_and(|a| a.is_rows())), "V0203", &place, || {
                format!("layer {layer} hands on no rows `{}`", export.value)
            });
        }
        let ascend = !export.layers.is_empty() && export.layers.windows(2).all(|w| w[0] < w[1]);
        report.check(ascend, "V0203", &place, || "its layers do not ascend, or are none".to_owned());
    }
}

fn handed_on<'g>(graph: &'g Graph, value: &str) -> Option<&'g TensorType> {
    let (_, id) = graph.outputs.iter().find(|(name, _)| name == value)?;
    graph.tensor(*id)
}

/// A plan leaves what the model exports, all buckets in one place, and writes nothing else there.
pub(super) fn planned(entry: &PlanEntry, kernels: &KernelEntry, facts: &Facts, report: &mut Report) {
    let wanted =
        |e: &Capture| Captured { place: Captured::place_of(&e.name), value: e.value.clone(), layers: e.layers.clone() };
    let exports = facts.exports.iter().filter(|e| e.entry == entry.name).map(wanted);
    report.check(entry.captures.iter().cloned().eq(exports), CODE, &entry.name, || {
        "it leaves other rows for a drafter than the model exports".to_owned()
    });
    let first: Vec<Option<&Buffer>> =
        entry.captures.iter().map(|c| entry.buckets.first()?.shared.get(&c.place)).collect();
    for plan in &entry.buckets {
        let place = plan.bucket.to_string();
        for (captured, first) in entry.captures.iter().zip(&first) {
            let Some(buffer) = plan.shared.get(&captured.place) else {
                report.add(CODE, &place, format!("`{}` has no place", captured.place));
                continue;
            };
            report.check(Some(buffer) == *first, CODE, &place, || {
                format!("`{}` has another place than in other buckets", captured.place)
            });
            let needed = kernels.graphs.iter().find_map(|g| handed_on(&g.graph, &captured.value));
            let needed = needed.and_then(|ty| Some((plan.bucket.bytes(ty)?, ty.dtype)));
            let fits = needed.is_some_and(|(bytes, dtype)| {
                buffer.dtype == dtype && bytes.saturating_mul(captured.layers.len() as u64) <= buffer.bytes
            });
            report.check(fits, CODE, &place, || format!("`{}` does not hold its rows", captured.place));
            only_captured(plan, &captured.place, buffer, report);
        }
    }
}

/// No value of a bucket lies in a captured place.
fn only_captured(plan: &BucketPlan, name: &str, captured: &Buffer, report: &mut Report) {
    let end = captured.offset_bytes.saturating_add(captured.bytes);
    let hits = |b: &Buffer| b.offset_bytes < end && captured.offset_bytes < b.offset_bytes.saturating_add(b.bytes);
    let places = plan.programs.iter().flat_map(|p| &p.places);
    let written = places.filter_map(|p| if let Place::Arena(b) = p { Some(b) } else { None });
    report.check(!written.into_iter().any(hits), CODE, &plan.bucket.to_string(), || {
        format!("a value is written to the place of `{name}`")
    });
}
