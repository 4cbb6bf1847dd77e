//! Rows of the last layer that nobody reads.
//!
//! Behind the last store into a cache a token row is read for its logits alone, and of a prompt few rows have any that are
//! wanted. What remains of the last layer then runs for these rows only. Layers before it store what other rows read.

use super::bucket::{Launch, Program, RowsOf};
use super::graph::Prepared;
use super::segment::{Sink, Source};
use super::{KernelEntry, WANTED};
use ir::{Captured, Instance, Op, ValueId};
use std::collections::HashSet;
use std::ops::Range;

/// Rows that a row alone is taken to cost as much as, since its weights come from memory for it. A guess: where it is wrong, some
/// rows are computed that nobody reads.
const ROWS_ALONE: usize = 16;

/// Marks the segments of the last instance's program that may run for the wanted rows alone. The other instances of its class
/// run them for all.
pub(super) fn mark(graphs: &[Prepared], instances: &[Instance], captures: &[Captured], programs: &mut [Program]) {
    let (Some(instance), Some(last)) = (instances.last(), graphs.last()) else { return };
    let class = KernelEntry::class_graph(instance.class);
    let (Some(graph), Some(program)) = (graphs.get(class), programs.get_mut(class)) else { return };
    let mut read = read_whole(last);
    read.extend(captures.iter().filter(|c| c.layers.contains(&instance.layer)).map(|c| c.value.as_str()));
    let outputs = graph.graph.outputs.iter().filter(|(name, _)| read.contains(name.as_str()));
    let mut needed: HashSet<ValueId> = outputs.map(|(_, id)| graph.value(*id).root).collect();
    for launch in program.launches.iter_mut().rev() {
        let Launch::Segment(segment) = launch else { continue };
        let own: HashSet<ValueId> = segment.operations.iter().map(|o| o.id).collect();
        let is_needed = |id: ValueId, into: Sink| matches!(into, Sink::Written(_)) && needed.contains(&id);
        segment.may_skip = segment.rows == RowsOf::Tokens
            && !segment.stores
            && !segment.operations.iter().any(|o| is_needed(o.id, o.into));
        for operation in &segment.operations {
            for (operand, from) in graph.value(operation.id).operands.iter().zip(&operation.from) {
                let is_whole = matches!(from, Source::Read { whole: true, .. });
                if !own.contains(operand) && (is_whole || !segment.may_skip) {
                    needed.insert(*operand);
                }
            }
        }
    }
}

/// Names of inputs of which a graph reads other rows than the wanted ones.
fn read_whole(last: &Prepared) -> HashSet<&str> {
    let name = |id: ValueId| last.graph.input_name(last.value(id).root);
    let outputs = last.graph.outputs.iter().filter_map(|(_, id)| name(*id));
    let mut read: HashSet<&str> = outputs.collect();
    for id in last.graph.ids() {
        let operands = &last.value(id).operands;
        let picks = matches!(last.graph.node(id).op, Op::Gather { .. })
            && operands.get(1).and_then(|ids| name(*ids)) == Some(WANTED);
        read.extend(operands.iter().skip(usize::from(picks)).filter_map(|operand| name(*operand)));
    }
    read
}

/// Runs of the wanted rows (ascending) among so many; `None` where all may as well run.
pub(crate) fn runs(wanted: impl Iterator<Item = usize>, rows: usize) -> Option<Vec<Range<usize>>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for row in wanted {
        match runs.last_mut() {
            Some(run) if run.end == row => run.end += 1,
            Some(run) if run.end > row => {}
            _ => runs.push(row..row + 1),
        }
    }
    let cost: usize = runs.iter().map(|run| run.len() + ROWS_ALONE).sum();
    (cost < rows).then_some(runs)
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn neighbours_run_together_and_many_alone_are_not_worth_it() {
        assert_eq!(runs([100, 511].into_iter(), 512), Some(vec![100..101, 511..512]));
        assert_eq!(runs([].into_iter(), 512), Some(vec![]));
        assert_eq!(runs([0, 1, 2, 100, 200].into_iter(), 201), Some(vec![0..3, 100..101, 200..201]));
        assert_eq!(runs(0..8, 8), None);
        assert_eq!(runs((0..20).map(|i| i * 10), 200), None);
    }
}
