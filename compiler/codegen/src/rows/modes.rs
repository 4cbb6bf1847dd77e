//! Where every value of a row kernel lives.
//!
//! A value whose users all read it at their own element stays in registers. One that is read at other elements (a cut, a
//! rotation, a selection) is either computed where it is read, if a single user reads each element once, or put in shared
//! memory. Cuts and views are never computed: they only say which element is meant.

use super::{Job, Sink};
use ir::{Op, ValueId};
use std::collections::{HashMap, HashSet};

/// Where a value lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One number of the row, in every thread.
    Number,
    /// Each thread has its own elements.
    Registers,
    /// Every thread of the row sees all elements.
    Shared,
    /// Computed where it is read.
    Inline,
}

/// Modes of the values that a job computes.
pub type Modes = HashMap<ValueId, Mode>;

/// How an operand is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    /// At the element that is computed.
    Own,
    /// At another element, each about once.
    Other,
    /// At many elements for each that is computed.
    Many,
}

/// Whether an operation only says which element of an operand is meant.
pub fn only_indexes(op: &Op) -> bool {
    op.is_view() || matches!(op, Op::Slice { .. } | Op::Gather { .. } | Op::Concat { .. })
}

fn reads(job: &Job<'_>, user: ValueId, operand: ValueId) -> Read {
    let same = job.space(user) == job.space(operand);
    match &job.graph.node(user).op {
        Op::Top { .. } | Op::InTop { .. } | Op::Dot { .. } => Read::Many,
        Op::Reduce { .. } if is_group_reduce(job, user) => Read::Own,
        Op::Reduce { .. } => Read::Other,
        op if only_indexes(op) => Read::Other,
        _ if same => Read::Own,
        // A number of the row is the same for each of its elements.
        _ if job.space(operand).is_empty() => Read::Own,
        _ => Read::Many,
    }
}

/// Whether a reduction leaves one number of the row and every thread reduces its own elements.
pub fn is_group_reduce(job: &Job<'_>, id: ValueId) -> bool {
    let Op::Reduce { op, order, .. } = &job.graph.node(id).op else { return false };
    let operand = job.graph.operands(id).first().map(|v| job.space(*v)).unwrap_or_default();
    let tree = *op == ir::ReduceOp::Max || matches!(order, ir::Order::Any | ir::Order::Fold);
    job.space(id).is_empty() && operand.len() == 1 && tree
}

/// Decides for every value, users before operands.
pub fn of(job: &Job<'_>) -> Result<Modes, String> {
    let mut modes = Modes::new();
    // Views and cuts that are read at many elements: so is what they show.
    let mut shown_often: HashSet<ValueId> = HashSet::new();
    for id in job.values.iter().rev().copied() {
        let node = job.graph.node(id);
        let written = job.outputs.iter().any(|(v, _)| *v == id);
        let positions = job.outputs.iter().any(|(_, s)| matches!(s, Sink::Cache { at, .. } if *at == id));
        if job.space(id).is_empty() {
            modes.insert(id, if only_indexes(&node.op) && !written { Mode::Inline } else { Mode::Number });
            continue;
        }
        let (mut users, mut own, mut many) = (usize::from(written || positions), true, false);
        for user in job.graph.users(id).into_iter().filter(|u| job.computes(*u)) {
            users += 1;
            let read = reads(job, user, id);
            own &= read == Read::Own && modes.get(&user) != Some(&Mode::Inline);
            many |= read == Read::Many || shown_often.contains(&user);
        }
        if many && only_indexes(&node.op) {
            shown_often.insert(id);
        }
        let mode = match &node.op {
            Op::Top { .. } | Op::InTop { .. } => Mode::Shared,
            op if only_indexes(op) && !written => Mode::Inline,
            _ if own => Mode::Registers,
            _ if users == 1 && !many => Mode::Inline,
            _ => Mode::Shared,
        };
        modes.insert(id, mode);
    }
    Ok(modes)
}
