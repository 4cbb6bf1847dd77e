//! Which kernel of its kind a region is in a bucket, and which launches may start early.

use ir::{Bucket, KernelGraph, KernelKind, Launch, Program, Region, RowsPerSequence, Variant};
use targets::Fuse;

/// What decides in one bucket.
pub(super) struct Variants<'a> {
    pub(super) bucket: &'a Bucket,
    pub(super) fuse: &'a Fuse,
}

impl Variants<'_> {
    /// Products by the rows of the step, attention by the rows of a sequence.
    pub(super) fn of(&self, kernel_graph: &KernelGraph, region: &Region) -> Variant {
        match region.kind {
            KernelKind::Matmul | KernelKind::Route | KernelKind::GroupedMatmul if self.fuse.few_rows > 0 => {
                if self.rows(kernel_graph, region) <= self.fuse.few_rows { Variant::FewRows } else { Variant::ManyRows }
            }
            KernelKind::Attend if self.fuse.few_rows > 0 => match self.bucket.rows {
                RowsPerSequence::One | RowsPerSequence::Block(_) => Variant::Decode,
                RowsPerSequence::Ragged => Variant::Prefill,
            },
            _ => Variant::Only,
        }
    }

    /// Most rows that the region's core has in this bucket. Rows that pick a slice of the weight each still are one row.
    fn rows(&self, kernel_graph: &KernelGraph, region: &Region) -> u64 {
        let graph = &kernel_graph.graph;
        let core = region.values.iter().find(|v| ir::core_kind(graph, **v).is_some());
        let Some(ty) = core.and_then(|v| graph.tensor(*v)) else { return 0 };
        let rows = ty.row_axes().filter_map(|axis| self.bucket.most_rows(axis));
        rows.fold(1, u64::saturating_mul)
    }
}

/// Marks the launches that may start while the one before them ends: those behind a kernel, in every order in which a step
/// runs the programs. The first of a step has nothing before it, and behind a move stands a copy, which no kernel may overlap.
pub(super) fn mark_dependent(programs: &mut [Program]) {
    let ends: Vec<bool> = programs.iter().map(|p| matches!(p.launches.last(), Some(Launch::Region { .. }))).collect();
    let (Some(first), classes) = (ends.first().copied(), ends.get(1..ends.len().saturating_sub(1)).unwrap_or_default())
    else {
        return;
    };
    let all_classes = classes.iter().all(|end| *end);
    for (index, program) in programs.iter_mut().enumerate() {
        let mut behind_kernel = index > 0 && first && all_classes;
        for launch in &mut program.launches {
            match launch {
                Launch::Region { dependent, .. } => {
                    *dependent = behind_kernel;
                    behind_kernel = true;
                }
                Launch::Move { .. } => behind_kernel = false,
            }
        }
    }
}
