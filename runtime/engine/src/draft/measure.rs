//! What steps take on an executor, found by running some: before it serves, while its cache holds nothing.

use super::{DraftCosts, DraftFacts, DraftRow, Line};
use crate::{Executor, Sampling, SequenceRows, Step, StepError, WantedRow};
use std::sync::Arc;

/// Times each size is run, after one that does not count; the middle one counts. Sizes take turns, so that what else happens on a machine
/// strikes all of them.
const RUNS: usize = 9;
/// Sequences of a step, as far as the executor takes them.
const SEQUENCES: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// Runs rounds of several sizes, and tells what their steps take. `now` is a clock in seconds; once `budget` of them
/// are over, larger sizes are left out. Without a drafter there is nothing to tell.
///
/// Steps stand as they will: a step of the model behind the draft step of its block, with other tokens each time. One step again and
/// again has its weights near, and equal tokens take the same few experts; both take much less time than a real round does.
pub fn measure<E: Executor>(
    executor: &mut E,
    entry: &str,
    budget: f64,
    now: &mut dyn FnMut() -> f64,
) -> Result<Option<DraftCosts>, StepError> {
    let Some(draft) = executor.facts().draft.clone() else { return Ok(None) };
    let Some(most) = draft.blocks.last().copied() else { return Ok(None) };
    let start = now();
    let (mut forward, mut drafts) = (Vec::new(), Vec::new());
    let small = draft.blocks.iter().copied().find(|rows| *rows * 2 >= most).unwrap_or(most);
    let sizes = [1, small, most];
    for sequences in SEQUENCES {
        if now() - start > budget {
            break;
        }
        let mut times: [[Vec<f64>; 2]; 3] = Default::default();
        for run in 0..=RUNS {
            // Of the first sizes something is known, however long they take.
            if run > 1 && now() - start > budget {
                break;
            }
            for (rows, times) in sizes.iter().zip(&mut times) {
                let of_run = |step: Step| with_tokens(step, executor.facts().vocab, run);
                let drafting = draft_step(executor, &draft, sequences, *rows).map(of_run);
                let verifying = step(executor, entry, sequences, *rows).map(of_run);
                for (step, times) in [drafting, verifying].into_iter().zip(times) {
                    let Some(step) = step else { continue };
                    let seconds = timed(executor, step, now)?;
                    times.extend((run > 0).then_some(seconds));
                }
            }
        }
        for (rows, [of_draft, of_step]) in sizes.iter().zip(&mut times) {
            drafts.extend(middle(of_draft).map(|seconds| (sequences * rows, seconds)));
            forward.extend(middle(of_step).map(|seconds| (sequences * rows, seconds)));
        }
    }
    Ok(Some(DraftCosts { forward: Line::new(forward), draft: Line::new(drafts) }))
}

/// The middle one of some times.
fn middle(times: &mut [f64]) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

/// The same step with tokens that differ from row to row and from run to run.
fn with_tokens(mut step: Step, vocab: usize, run: usize) -> Step {
    // The golden ratio spreads counters evenly over the vocabulary.
    let spread = |n: usize| (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    let rows = step.tokens.len();
    for (row, token) in step.tokens.iter_mut().enumerate() {
        *token = (spread(run * rows + row + 1) % vocab.max(1) as u64) as i32;
    }
    step
}

/// Seconds of a step.
fn timed<E: Executor>(executor: &mut E, step: Step, now: &mut dyn FnMut() -> f64) -> Result<f64, StepError> {
    let begun = now();
    let ticket = executor.submit(step)?;
    while executor.poll(ticket)?.is_none() {
        std::hint::spin_loop();
    }
    Ok(now() - begun)
}

/// A step of so many sequences of so many rows, from their first position on; `None` where the executor takes no such.
fn step<E: Executor>(executor: &E, entry: &str, sequences: usize, rows: usize) -> Option<Step> {
    let facts = executor.facts();
    let all = sequences * rows;
    if all > facts.max_tokens || all > facts.max_wanted || sequences > facts.max_sequences {
        return None;
    }
    let mut step = blocks(executor, entry, sequences, rows)?;
    let sampling = |row: usize| Sampling { position: (row % rows) as u64 + 1, ..Sampling::default() };
    let wanted = |row| WantedRow { row, sampling: Some(sampling(row)), mask: None, logits: false };
    step.wanted.extend((0..all).map(wanted));
    Some(step)
}

fn draft_step<E: Executor>(executor: &E, draft: &DraftFacts, sequences: usize, rows: usize) -> Option<Step> {
    if !draft.blocks.contains(&rows) || sequences > draft.sequences {
        return None;
    }
    let mut step = blocks(executor, &draft.entry, sequences, rows)?;
    step.drafts.extend((0..sequences).map(|_| DraftRow { temperature: 0.0, coins: vec![0.0; rows - 1] }));
    Some(step)
}

/// Rows of sequences in pages of their own, as far as the pools have so many.
fn blocks<E: Executor>(executor: &E, entry: &str, sequences: usize, rows: usize) -> Option<Step> {
    let facts = executor.facts();
    let page_tokens = usize::try_from(facts.kv.first().map_or(1, |kind| kind.page_tokens)).ok()?.max(1);
    let each = rows.div_ceil(page_tokens);
    let pages = facts.pool_pages.iter().copied().min().unwrap_or(usize::MAX);
    if sequences * each >= pages {
        return None;
    }
    let mut step = Step { entry: entry.to_owned(), ..Step::default() };
    let table: Arc<[i32]> = (0..=(sequences * each) as i32).collect();
    step.translation = facts.kv.iter().map(|_| table.clone()).collect();
    for s in 0..sequences {
        let pages = (s * each..(s + 1) * each).map(|page| page as u32 + 1).collect();
        step.sequences.push(SequenceRows { start: step.tokens.len(), len: rows, pages: Arc::new(pages) });
        step.tokens.extend(std::iter::repeat_n(0, rows));
        step.positions.extend(0..rows as i32);
    }
    Some(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Clock, Sim};
    use crate::toy::{Toy, facts, hashed};
    use crate::{ExecutorFacts, PhysicalPage, StepOutput, Ticket};

    /// A clock that moves whenever somebody asks for a step's output.
    struct Waits(Sim<Toy>);

    impl Executor for Waits {
        fn facts(&self) -> &ExecutorFacts {
            self.0.facts()
        }

        fn submit(&mut self, step: Step) -> Result<Ticket, StepError> {
            self.0.submit(step)
        }

        fn poll(&mut self, ticket: Ticket) -> Result<Option<StepOutput>, StepError> {
            self.0.clock().advance_by(1000);
            self.0.poll(ticket)
        }

        fn copy_pages(&mut self, _: usize, _: &[(PhysicalPage, PhysicalPage)]) -> Result<(), StepError> {
            Ok(())
        }
    }

    /// Where a step takes what its rows say, just that is found, for all sizes that find room.
    #[test]
    fn times_of_steps_are_found() {
        let model = || -> crate::toy::Model { Box::new(|history| Ok(hashed(20, history))) };
        let facts = ExecutorFacts { max_sequences: 8, max_wanted: 40, ..facts(20, 4, 60, 64) };
        let toy = Toy::new(facts, model()).with_drafter(model(), 8, 100, 4);
        let micros = |step: &Step| (if step.drafts.is_empty() { 2.0 } else { 1.0 }) + step.tokens.len() as f64;
        let clock = Clock::default();
        let sim = Sim::new(toy, Box::new(move |step: &Step| micros(step) / 1e6), clock.clone());
        let costs = measure(&mut Waits(sim), "forward", 1.0, &mut || clock.seconds()).unwrap().unwrap();
        let near = |line: &Line, rows: usize, micros: f64| (line.at(rows) * 1e6 - micros).abs() < 0.01;
        // Between 32 and 40 rows nothing fits, beyond them the line goes on.
        for (rows, micros) in [(1, 3.0), (8, 10.0), (32, 34.0), (50, 52.0)] {
            assert!(near(&costs.forward, rows, micros), "{rows}: {costs:?}");
        }
        assert!(near(&costs.draft, 16, 17.0) && near(&costs.draft, 64, 65.0), "{costs:?}");
        let mut none = Toy::new(crate::toy::facts(20, 4, 60, 64), model());
        assert_eq!(measure(&mut none, "forward", 1.0, &mut || 0.0).unwrap(), None);
    }
}
