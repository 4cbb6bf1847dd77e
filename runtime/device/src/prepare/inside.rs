//! Rows inside those of sequences.
//!
//! A drafter's entry has a row for each sequence, and in it all rows of that sequence's block: `[S, block, hidden]`. In memory this is
//! `[T, hidden]`, with a row for each token of the step. An operation in which the rows of a block need nothing of each other runs along
//! token rows, so that the rows of one sequence can be shared out as those of several are. The same holds of slots, which are the rows of
//! a block behind its first.

use super::POSITIONS;
use super::bucket::RowsOf;
use super::graph::Value;
use crate::kernels::nest::Shape;
use ir::{Graph, KernelEntry, Op, PlanEntry, RowsPerSequence, SEQUENCE_ROWS, ValueId};

/// The rows that every sequence of an entry's steps has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    axis: String,
    len: usize,
}

/// A value's memory with shorter rows, several for each sequence.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Inside {
    /// What it has a row for then.
    pub rows: RowsOf,
    /// Such rows of a sequence.
    pub per_sequence: usize,
    /// Its shape then; the row axis has the name of the axis that it was.
    pub shape: Shape,
}

impl Inside {
    /// Whether another value has the same rows.
    fn is_like(&self, other: &Inside) -> bool {
        self.rows == other.rows && self.shape.rows == other.shape.rows
    }

    /// Name of the axis that became rows.
    fn axis(&self) -> &str {
        self.shape.rows.as_deref().unwrap_or_default()
    }
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

    /// The rows inside those of a value, if there are any.
    pub fn inside(&self, shape: &Shape) -> Option<Inside> {
        let ((axis, len), rest) = shape.axes.split_first().filter(|_| shape.rows.as_deref() == Some(SEQUENCE_ROWS))?;
        let rows = match *len {
            len if len == self.len && *axis == self.axis => RowsOf::Tokens,
            len if len + 1 == self.len => RowsOf::Slots,
            _ => return None,
        };
        let shape = Shape { rows: Some(axis.clone()), axes: rest.to_vec(), row: shape.row / len };
        Some(Inside { rows, per_sequence: *len, shape })
    }

    /// Along which rows inside those of sequences an operation runs, if it does; `out` are those of its result, where it has any.
    pub fn along(&self, graph: &Graph, id: ValueId, before: &[Value], out: Option<&Inside>) -> Option<Inside> {
        let op = &graph.node(id).op;
        let operands: Vec<&Value> = graph.operands(id).iter().map(|o| &before[o.0 as usize]).collect();
        let stored = || operands.first().filter(|_| matches!(op, Op::Store { .. }))?.inside.as_ref();
        let along = out.or_else(stored)?;
        let has_rows = |value: &Value| value.inside.as_ref().is_some_and(|inside| inside.is_like(along));
        // A view shows the memory of another value, whose axis may have another name.
        let memory_has = |value: &Value| {
            let root = before.get(value.root.0 as usize).and_then(|root| root.inside.as_ref());
            root.is_some_and(|inside| inside.rows == along.rows)
        };
        let fits = |value: &Value| match &value.shape {
            Some(shape) if shape.rows.is_none() => shape.length(along.axis()).is_none(),
            Some(_) => has_rows(value) && memory_has(value),
            None => true,
        };
        (keeps_apart(op, along, operands.len()) && operands.into_iter().all(fits)).then(|| along.clone())
    }
}

/// Whether such rows need nothing of each other, meet in the cache only, or are read whole where they are.
fn keeps_apart(op: &Op, along: &Inside, operands: usize) -> bool {
    let (name, is_token) = (along.axis(), along.rows == RowsOf::Tokens);
    match op {
        Op::Unary(_) | Op::Binary(_) | Op::Fma | Op::Select | Op::Round(_) => true,
        Op::Attend { .. } | Op::Store { .. } => is_token,
        Op::Shift { axis, .. } => axis != name || operands == 1,
        Op::Reduce { axis, .. } | Op::Dot { axis, .. } | Op::Gather { axis } => axis != name,
        Op::Top { axis, .. } | Op::InTop { axis, .. } => axis != name,
        Op::Slice { axis, .. } | Op::Concat { into: axis } => axis != name,
        Op::Linear { contract, .. } => contract.iter().all(|axis| axis != name),
        _ => false,
    }
}
