//! In which order a row kernel computes: loops over one space each, and numbers of the whole row between them.

use super::modes::{Mode, Modes, is_group_reduce};
use super::{Job, Space};
use ir::{Op, ValueId};
use std::collections::HashSet;

/// A piece of a row kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum Stage {
    /// Numbers of the row, in order.
    Numbers(Vec<ValueId>),
    /// A loop over the elements of a space.
    Loop {
        /// The space.
        space: Space,
        /// What is computed for each element, in order.
        items: Vec<ValueId>,
        /// Numbers of the row that reduce what the loop computed.
        reduced: Vec<ValueId>,
    },
    /// A selection along an axis.
    Select(ValueId),
}

impl Stage {
    /// Whether other threads may read what it leaves in shared memory.
    pub fn shares(&self, modes: &Modes) -> bool {
        match self {
            Stage::Numbers(_) => false,
            Stage::Loop { items, .. } => items.iter().any(|v| modes.get(v) == Some(&Mode::Shared)),
            Stage::Select(_) => true,
        }
    }
}

struct Planner<'a> {
    job: &'a Job<'a>,
    modes: &'a Modes,
    done: HashSet<ValueId>,
}

/// What a value needs to be there before it is computed.
#[derive(Default)]
struct Needs {
    /// At the same element.
    own: Vec<ValueId>,
    /// Whole.
    whole: Vec<ValueId>,
}

impl Planner<'_> {
    fn needs(&self, id: ValueId) -> Needs {
        let mut needs = Needs::default();
        let own_space = self.job.space(id);
        let mut open: Vec<(ValueId, bool)> = Vec::new();
        let whole_here = matches!(self.job.graph.node(id).op, Op::Top { .. } | Op::InTop { .. } | Op::Dot { .. });
        let group = is_group_reduce(self.job, id);
        for operand in self.job.graph.operands(id) {
            let same = group || (!whole_here && self.job.space(operand) == own_space);
            let reduces = matches!(self.job.graph.node(id).op, Op::Reduce { .. }) && !group;
            open.push((operand, same && !reduces));
        }
        while let Some((value, own)) = open.pop() {
            let Some(mode) = self.modes.get(&value) else { continue };
            match mode {
                Mode::Inline => {
                    for operand in self.job.graph.operands(value) {
                        let op = &self.job.graph.node(value).op;
                        let moves = super::modes::only_indexes(op) || matches!(op, Op::Reduce { .. } | Op::Dot { .. });
                        let same = own && !moves && self.job.space(operand) == own_space;
                        open.push((operand, same));
                    }
                }
                Mode::Number => needs.whole.push(value),
                Mode::Registers | Mode::Shared if own => needs.own.push(value),
                Mode::Registers | Mode::Shared => needs.whole.push(value),
            }
        }
        needs
    }

    fn is_ready(&self, id: ValueId, open: &[ValueId]) -> bool {
        let needs = self.needs(id);
        needs.whole.iter().all(|v| self.done.contains(v))
            && needs.own.iter().all(|v| self.done.contains(v) || open.contains(v))
    }

    /// The space that an item's loop runs over.
    fn loop_space(&self, id: ValueId) -> Space {
        match self.job.graph.operands(id).first() {
            Some(operand) if is_group_reduce(self.job, id) => self.job.space(*operand),
            _ => self.job.space(id),
        }
    }
}

/// The stages of a job.
pub fn stages(job: &Job<'_>, modes: &Modes) -> Result<Vec<Stage>, String> {
    let mut planner = Planner { job, modes, done: HashSet::new() };
    let mut left: Vec<ValueId> =
        job.values.iter().copied().filter(|v| modes.get(v).is_some_and(|m| *m != Mode::Inline)).collect();
    let mut stages = Vec::new();
    while !left.is_empty() {
        let before = left.len();
        let mut numbers = Vec::new();
        left.retain(|id| {
            let number = modes[id] == Mode::Number && !is_group_reduce(job, *id) && planner.is_ready(*id, &[]);
            if number {
                numbers.push(*id);
                planner.done.insert(*id);
            }
            !number
        });
        if !numbers.is_empty() {
            stages.push(Stage::Numbers(numbers));
        }
        let is_select = |id: &ValueId| matches!(job.graph.node(*id).op, Op::Top { .. } | Op::InTop { .. });
        if let Some(at) = left.iter().position(|id| is_select(id) && planner.is_ready(*id, &[])) {
            let id = left.remove(at);
            planner.done.insert(id);
            stages.push(Stage::Select(id));
            continue;
        }
        let first = left.iter().copied().find(|id| {
            !is_select(id) && (modes[id] != Mode::Number || is_group_reduce(job, *id)) && planner.is_ready(*id, &[])
        });
        if let Some(first) = first {
            let space = planner.loop_space(first);
            let (mut items, mut reduced): (Vec<ValueId>, Vec<ValueId>) = (Vec::new(), Vec::new());
            for id in left.iter().copied().filter(|id| !is_select(id)) {
                let group = is_group_reduce(job, id);
                let fits = (group || modes[&id] != Mode::Number) && planner.loop_space(id) == space;
                if fits && planner.is_ready(id, &items) {
                    if group { reduced.push(id) } else { items.push(id) }
                }
            }
            left.retain(|id| !items.contains(id) && !reduced.contains(id));
            planner.done.extend(items.iter().chain(&reduced));
            stages.push(Stage::Loop { space, items, reduced });
        }
        if left.len() == before {
            let stuck: Vec<String> = left.iter().map(ValueId::to_string).collect();
            return Err(format!("no order computes {}", stuck.join(", ")));
        }
    }
    Ok(stages)
}

/// Values that an item reads at its own element, through what is computed where it is read.
pub fn own_needs(job: &Job<'_>, modes: &Modes, id: ValueId) -> Vec<ValueId> {
    Planner { job, modes, done: HashSet::new() }.needs(id).own
}
