//! Rows of a block as token rows.
//!
//! A drafter's entry has a row for each sequence, and in it all rows of that sequence's block: `[S, block, hidden]`. In memory this is
//! `[T, hidden]`, with a row for each token of the step. An operation in which the rows of a block need nothing of each other runs along
//! token rows, so that the rows of one sequence can be shared out as those of several are.

use super::POSITIONS;
use super::graph::Value;
use crate::kernels::nest::Shape;
use ir::{Graph, KernelEntry, Op, PlanEntry, RowsPerSequence, SEQUENCE_ROWS, TOKEN_ROWS, ValueId};

/// The rows that every sequence of an entry's steps has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    axis: String,
    len: usize,
}

impl Blocks {
    /// Those of an entry whose buckets all hold blocks of one length: a position for each row says which axis counts them.
    pub fn of(entry: &KernelEntry, planned: &PlanEntry) -> Option<Blocks> {
        let graph = &entry.first().graph;
        let positions = graph.inputs.iter().find(|id| graph.input_name(**id) == Some(POSITIONS))?;
        let shape = Shape::of(graph.tensor(*positions)?).ok()?;
        let (Some(SEQUENCE_ROWS), [(axis, len)]) = (shape.rows.as_deref(), shape.axes.as_slice()) else { return None };
        let has_blocks = |bucket: &ir::Bucket| {
            bucket.rows == RowsPerSequence::Block(*len as u64)
                && bucket.sequences.checked_mul(*len as u64) == Some(bucket.tokens)
        };
        let all = planned.buckets.iter().all(|planned| has_blocks(&planned.bucket));
        (all && *len > 1).then(|| Blocks { axis: axis.clone(), len: *len })
    }

    /// The shape of the same memory with a row for each token.
    pub fn by_token(&self, shape: &Shape) -> Option<Shape> {
        let (first, rest) = shape.axes.split_first()?;
        let is_block = shape.rows.as_deref() == Some(SEQUENCE_ROWS) && first.0 == self.axis && first.1 == self.len;
        is_block.then(|| Shape { rows: Some(TOKEN_ROWS.to_owned()), axes: rest.to_vec(), row: shape.row / self.len })
    }

    /// Whether an operation runs along token rows; `out` is its result's shape by token, where it has one.
    pub fn runs_by_token(&self, graph: &Graph, id: ValueId, before: &[Value], out: Option<&Shape>) -> bool {
        let op = &graph.node(id).op;
        let operands = graph.operands(id);
        let mut operands = operands.iter().map(|o| &before[o.0 as usize]).filter(|v| v.shape.is_some());
        let fits = |value: &Value| match &value.shape {
            Some(shape) if shape.rows.is_none() => shape.length(&self.axis).is_none(),
            // A view shows the memory of another value.
            _ => value.by_token.is_some() && before.get(value.root.0 as usize).is_some_and(|r| r.by_token.is_some()),
        };
        let is_store = matches!(op, Op::Store { .. });
        (out.is_some() || is_store) && self.keeps_apart(op) && operands.all(fits)
    }

    /// Whether the rows of a block need nothing of each other, or meet in the cache only.
    fn keeps_apart(&self, op: &Op) -> bool {
        match op {
            Op::Unary(_) | Op::Binary(_) | Op::Fma | Op::Select | Op::Round(_) => true,
            Op::Attend { .. } | Op::Store { .. } => true,
            Op::Reduce { axis, .. } | Op::Dot { axis, .. } | Op::Gather { axis } => *axis != self.axis,
            Op::Top { axis, .. } | Op::InTop { axis, .. } => *axis != self.axis,
            Op::Slice { axis, .. } | Op::Shift { axis, .. } | Op::Concat { into: axis } => *axis != self.axis,
            Op::Linear { contract, .. } => !contract.contains(&self.axis),
            _ => false,
        }
    }
}
