//! Rule of layouts: what a strand combines of one product lies side by side in the product's weight.
//!
//! ```text
//! linear (%x, packed [gate, up])            gate rows 0-7 │ up rows 0-7 │ gate rows 8-15 │ …
//! gate, up = cuts of it
//! strand: silu(gate) * up                   a tile that holds rows of one cut holds the same rows of the other
//! ```

use super::Report;
use crate::anatomy::first_slice;
use crate::{Anatomy, Extent, Graph, KernelModule, Layout, Op, Region};

/// Once layouts are chosen, each weight whose product's cuts a strand combines interleaves as many parts as the product
/// has cuts of that length, by at least as many rows as a row of the strand takes of each.
pub(super) fn verify(module: &KernelModule, report: &mut Report) {
    if module.layouts.is_empty() {
        return;
    }
    for entry in &module.entries {
        for graph in &entry.graphs {
            for region in &graph.regions {
                let place = format!("{} {} region {}", entry.name, graph.name, region.name);
                strands(&graph.graph, region, module, &place, report);
            }
        }
    }
}

fn strands(graph: &Graph, region: &Region, module: &KernelModule, place: &str, report: &mut Report) {
    let in_graph = region.values.iter().all(|v| (v.0 as usize) < graph.len());
    let Some(anatomy) = in_graph.then(|| Anatomy::of(graph, &region.values).ok()).flatten() else { return };
    let Some(core) = anatomy.core else { return };
    let operands = graph.operands(core);
    let Some(Op::Weight(weight)) = operands.get(1).map(|w| &graph.node(*w).op) else { return };
    for strand in &anatomy.strands {
        let mut cuts: Vec<_> = strand.reads.iter().filter_map(|v| first_slice(graph, *v)).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let [(axis, _, len), _, ..] = cuts.as_slice() else { continue };
        let whole = graph.tensor(core).and_then(|ty| ty.axes.iter().find(|a| a.name == *axis)).map(|a| a.extent);
        let parts = match whole {
            Some(Extent::Fixed(n)) if *len > 0 && n.is_multiple_of(*len) => n / len,
            _ => {
                report.add(
                    "V0204",
                    place,
                    format!("it combines cuts of {len} of `{axis}`, which has no equal parts of them"),
                );
                continue;
            }
        };
        if let Some((_, start, _)) = cuts.iter().find(|(_, start, _)| !start.is_multiple_of(*len)) {
            report.add(
                "V0204",
                place,
                format!("it combines a cut of `{axis}` from {start}, where no part of {len} begins"),
            );
        }
        for owner in weight.owners() {
            let chosen = module.layouts.iter().find(|l| l.weight == owner).map(|l| l.layout);
            let fits = matches!(chosen, Some(Layout::Interleaved { parts: p, granule })
                if p == parts && granule >= strand.row_elements);
            report.check(fits, "V0204", place, || {
                format!(
                    "it combines {} of {parts} parts of a product, {} rows of each at a time, and the layout of {owner:?} is {chosen:?}",
                    cuts.len(),
                    strand.row_elements
                )
            });
        }
    }
}
