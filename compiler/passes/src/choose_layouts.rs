//! **choose layouts** (kernel level)
//!
//! ```text
//! packed [gate, up], and an epilogue combines gate[i] with up[i]:
//!   gate 0-7 │ up 0-7 │ gate 8-15 │ up 8-15 │ …        interleaved 8
//! every other weight: row after row                    row_major
//! ```
//!
//! Why: a weight lies in memory once, whatever the bucket, so its layout is chosen before kernels are.
//! When: always. (1) Where an epilogue's strand reads several cuts of one product, the rows of the product's weight
//! interleave by `fuse.interleave_granule`, or by as many as a row of the strand takes of each cut if that is more. (2) Every
//! other weight is row-major; of a packed one, part after part.
//! Kind: `Exact`: where a number lies does not change it.
//! Tests: below.

use crate::error::defect;
use crate::{Compile, Kind, Level, PassError, PassInfo};
use indexmap::IndexMap;
use ir::{Anatomy, Graph, KernelGraph, KernelModule, Layout, Op, WeightLayout, WeightRef};

/// What the pass says about itself.
pub const INFO: PassInfo = PassInfo {
    name: "choose layouts",
    level: Level::Kernel,
    kind: Kind::Exact,
    why: "a weight lies in memory once, for every bucket",
};

/// Runs the pass.
pub fn run(kernels: &KernelModule, compile: &Compile<'_>) -> Result<KernelModule, PassError> {
    let mut layouts: IndexMap<WeightRef, Layout> = IndexMap::new();
    for graph in kernels.entries.iter().flat_map(|e| &e.graphs) {
        for id in graph.graph.ids() {
            if let Op::Weight(reference) = &graph.graph.node(id).op {
                for weight in reference.owners() {
                    layouts.entry(weight).or_insert(Layout::RowMajor);
                }
            }
        }
    }
    for graph in kernels.entries.iter().flat_map(|e| &e.graphs) {
        interleaved(graph, compile.target.fuse.interleave_granule, &mut layouts)?;
    }
    let layouts = layouts.into_iter().map(|(weight, layout)| WeightLayout { weight, layout }).collect();
    Ok(KernelModule { layouts, ..kernels.clone() })
}

fn interleaved(
    kernel_graph: &KernelGraph,
    granule: u64,
    layouts: &mut IndexMap<WeightRef, Layout>,
) -> Result<(), PassError> {
    let graph = &kernel_graph.graph;
    for region in &kernel_graph.regions {
        let anatomy = Anatomy::of(graph, &region.values).map_err(defect)?;
        let Some(core) = anatomy.core else { continue };
        let Some(weight) = graph.operands(core).get(1).copied() else { continue };
        let Op::Weight(reference) = &graph.node(weight).op else { continue };
        for strand in anatomy.strands.iter().filter(|s| s.reads.len() > 1) {
            let parts = equal_cuts(graph, &anatomy)
                .ok_or_else(|| defect(format!("{} combines cuts that no layout puts together", region.name)))?;
            let chosen = Layout::Interleaved { parts, granule: granule.max(strand.row_elements) };
            for owner in reference.owners() {
                let known = layouts.insert(owner, chosen);
                if known.is_some_and(|k| k != Layout::RowMajor && k != chosen) {
                    return Err(defect(format!("{} wants another layout than kernels before it", region.name)));
                }
            }
        }
    }
    Ok(())
}

/// Into how many equal parts the cuts of a core's result divide it, if they do.
pub(crate) fn equal_cuts(graph: &Graph, anatomy: &Anatomy) -> Option<u64> {
    let core = anatomy.core?;
    let mut found: Option<(String, u64)> = None;
    for id in anatomy.parts.iter().filter(|v| graph.operands(**v).first() == Some(&core)) {
        let Op::Slice { axis, start, len, .. } = &graph.node(*id).op else { return None };
        let (same_axis, same_len) = found.get_or_insert_with(|| (axis.clone(), *len));
        if same_axis != axis || same_len != len || !start.is_multiple_of(*len) {
            return None;
        }
    }
    let (axis, len) = found?;
    let ty = graph.tensor(core)?;
    let whole = ty.axes.iter().find(|a| a.name == axis)?;
    let last = ty.axes.last()?.name == axis;
    match whole.extent {
        ir::Extent::Fixed(n) if last && len > 0 && n.is_multiple_of(len) => Some(n / len),
        _ => None,
    }
}
