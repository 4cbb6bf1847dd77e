//! Drafts: who is asked for them, how a step verifies them, and what a block leaves.

use super::{Part, Scheduler, Shares};
use crate::draft::{Block, Draft, DraftFacts, DraftRow, MOST_ROWS};
use crate::sequence::{Drafting, Sequence};
use crate::{Event, SequenceRows, Step, StepOutput, WantedRow, admits};
use std::sync::Arc;

/// Keys of the draws of a block: the drafter's, and those that accept and choose the token behind the run.
const DRAWS: u64 = 0x6a09_e667_f3bc_c908;
const ACCEPTS: u64 = 0xbb67_ae85_84ca_a73b;
/// The key of the length of forced runs.
const LENGTHS: u64 = 0x3c6e_f372_fe94_f82b;

/// So many draws for a block whose anchor stands at `anchor`. What is not reached of one block says nothing about the
/// next, so each block has draws of its own.
fn coins(seed: u64, key: u64, anchor: usize, n: usize) -> Vec<f32> {
    let key = seed ^ key ^ (anchor as u64 + 1).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (0..n as u64).map(|i| numerics::uniform(key, i)).collect()
}

impl Scheduler {
    /// The drafter, if it is to be used, and most rows of a block.
    fn drafter(&self) -> Option<(&DraftFacts, usize)> {
        let facts = self.facts.draft.as_ref()?;
        let most = self.limits.draft.rows.unwrap_or(MOST_ROWS).min(MOST_ROWS).min(self.block_share());
        (most >= 2).then_some((facts, most))
    }

    /// Rows that each of those that run may bring, so that all find room in one step.
    fn block_share(&self) -> usize {
        let room = self.step_tokens().min(self.facts.max_wanted);
        room / self.running.len().max(1)
    }

    /// Whether a sequence's next rows are to be a block, if a draft can be had: its token chosen last is then waited for.
    pub(super) fn wants_draft(&self, s: &Sequence) -> bool {
        let tokens = s.tokens.len() + usize::from(s.choosing.is_some());
        self.drafter().is_some() && tokens >= s.habit.plain_until && tokens + 2 <= s.limit
    }

    /// A draft step for those that want one, if any do.
    pub(super) fn plan_drafts(&mut self) -> Option<(Step, Shares)> {
        let (facts, most) = self.drafter()?;
        let (sizes, entry, sequences) = (facts.blocks.clone(), facts.entry.clone(), facts.sequences);
        let asks = |s: &Sequence| {
            // What has ended is swept and what is out has nothing fed when this is asked.
            let is_free = s.loads.is_empty() && s.in_flight == 0;
            is_free && s.drafting == Drafting::Idle && s.is_answering() && s.unfed().len() == 1 && self.wants_draft(s)
        };
        let asking: Vec<usize> =
            (0..self.running.len()).filter(|at| self.running.get(*at).is_some_and(asks)).take(sequences).collect();
        if asking.is_empty() {
            return None;
        }
        let habits: Vec<_> = asking.iter().filter_map(|at| Some(&self.running.get(*at)?.habit)).collect();
        let choice = self.drafts.choose(&self.limits.draft, &habits, &sizes, most);
        let (mut step, mut shares) = self.blank_step();
        for (at, takes_part) in asking.into_iter().zip(choice.takes_part) {
            let Some(sequence) = self.running.get_mut(at) else { continue };
            if takes_part {
                sequence.habit.drafts();
                self.ask(at, choice.rows, &mut step, &mut shares.parts);
            } else {
                sequence.habit.rests(sequence.tokens.len());
            }
        }
        if shares.parts.is_empty() {
            self.spare_step = Some(step);
            self.spare_shares.push(shares);
            return None;
        }
        step.entry = entry;
        shares.drafts = true;
        self.counts.draft.steps += 1;
        self.finish_step(&mut step);
        Some((step, shares))
    }

    /// Adds a sequence to a draft step, if its block finds pages; the next row goes without drafts otherwise.
    fn ask(&mut self, at: usize, rows: usize, step: &mut Step, parts: &mut Vec<Part>) {
        let Some(sequence) = self.running.get_mut(at) else { return };
        let (from, to) = (sequence.fed, sequence.fed + rows);
        let Some(anchor) = sequence.unfed().first().copied() else { return };
        // Rows behind the context are scratch alone: none of them is ever verified.
        if to > i32::MAX as usize || self.kv.extend(&mut sequence.table, sequence.done, from, to) < to {
            sequence.habit.plain_until = sequence.tokens.len() + 1;
            return;
        }
        let (start, seed) = (step.tokens.len(), sequence.request.sampling.seed);
        step.tokens.extend(std::iter::repeat_n(anchor as i32, rows));
        step.positions.extend((from..to).map(|position| position as i32));
        step.sequences.push(SequenceRows { start, len: rows, pages: sequence.table.pages.clone() });
        let temperature = sequence.request.sampling.temperature;
        step.drafts.push(DraftRow { temperature, coins: coins(seed, DRAWS, from, rows - 1) });
        sequence.drafting = Drafting::Asked;
        sequence.in_flight += 1;
        parts.push(Part { request: sequence.id, at, rows: 0, scored: 0, choosing: 0, slots: rows - 1 });
    }

    /// Takes the output of a draft step.
    pub(super) fn absorb_drafts(&mut self, shares: &Shares, output: &mut StepOutput, events: &mut Vec<Event>) {
        let (asked, got) = (shares.parts.len(), output.drafts.len());
        let vocab = self.facts.vocab;
        let is_good = |(part, draft): (&Part, &Draft)| {
            let ids = draft.tokens.iter().chain(&draft.candidates);
            draft.tokens.len() == part.slots
                && draft.candidates.len() == draft.probabilities.len()
                && ids.copied().all(|id| (id as usize) < vocab)
        };
        if asked != got || !shares.parts.iter().zip(&output.drafts).all(is_good) {
            let text = format!(
                "E0315: the step asked drafts for {asked} sequences and got {got}, or not as many as slots, or ids outside the vocabulary of {vocab}; the executor breaks its contract"
            );
            return self.fail(shares, &text, events);
        }
        self.in_flight = self.in_flight.saturating_sub(1);
        for (part, mut draft) in shares.parts.iter().zip(output.drafts.drain(..)) {
            if !self.limits.draft.selects {
                draft.take_first_candidates();
            }
            let Some(at) = self.place(part) else { continue };
            let Some(sequence) = self.running.get_mut(at) else { continue };
            sequence.in_flight -= 1;
            sequence.drafting = if sequence.ended { Drafting::Idle } else { Drafting::Ready(draft) };
        }
        self.sweep();
    }

    /// Adds a sequence's block to a step, as many of its rows as there is room, memory and use for. False if that is no more
    /// than the anchor: then its row goes alone.
    pub(super) fn add_block(&mut self, at: usize, step: &mut Step, parts: &mut Vec<Part>) -> bool {
        let (share, forced) = (self.block_share(), self.forced());
        let room = share.min(self.step_tokens().saturating_sub(step.tokens.len()));
        let room = room.min(self.facts.max_wanted.saturating_sub(step.wanted.len()));
        let Some(sequence) = self.running.get_mut(at) else { return false };
        let Drafting::Ready(draft) = std::mem::take(&mut sequence.drafting) else { return false };
        let from = sequence.fed;
        let left = sequence.limit - sequence.tokens.len();
        let most = room.min(left).min(draft.tokens.len() + 1);
        // For one sequence more there is always room: no more of them run than a step has.
        if most < 2 {
            return false;
        }
        let rows = self.kv.extend(&mut sequence.table, sequence.done, from, from + most) - from;
        if rows < 2 {
            return false;
        }
        let mut tokens = draft.tokens.get(..rows - 1).unwrap_or_default().to_vec();
        // What stands behind a stop token is read by nobody.
        if let Some(stop) = tokens.iter().position(|token| sequence.request.stop.contains(token)) {
            tokens.truncate(stop + 1);
        }
        let masks = sequence.masks(&tokens, self.facts.vocab, self.known.as_ref()).unwrap_or_default();
        // The last row may have to do with a draft that it rules out: what is drawn there has to know.
        let slots = if ends_inadmissible(&masks, &tokens) { masks.len() } else { masks.len().saturating_sub(1) };
        if slots == 0 {
            // A grammar that cannot look ahead, or fails there, is asked one token after the other.
            sequence.habit.plain_until = usize::MAX;
            return false;
        }
        let forced = forced.filter(|_| sequence.request.constraint.is_none());
        add_rows(step, sequence, cut(draft, slots), masks, self.limits.draft.rule, forced);
        let rows = step.sequences.last().map_or(0, |s| s.len);
        // How many rows stay is known when the step is over; the anchor's does.
        sequence.fed += 1;
        sequence.in_flight += 1;
        sequence.choosing = Some(step.wanted.len() - rows);
        sequence.drafting = Drafting::Verifying;
        parts.push(Part { request: sequence.id, at, rows: 1, scored: 0, choosing: rows, slots });
        true
    }

    /// How long runs are that the next step forces, if it does: the same for all of them.
    fn forced(&self) -> Option<usize> {
        let mean = self.limits.draft.forced?.max(1.0);
        let more = f64::from(numerics::uniform(LENGTHS, self.counts.steps)) < mean.fract();
        Some(mean as usize + usize::from(more))
    }

    /// Books what a block has left: `committed` tokens, of `slots` drafts.
    pub(super) fn book_block(&mut self, at: usize, slots: usize, committed: usize, accepted: usize, is_forced: bool) {
        let Some(sequence) = self.running.get_mut(at) else { return };
        let counts = &mut self.counts.draft;
        counts.verified += 1;
        counts.committed += committed as u64;
        if is_forced {
            return;
        }
        counts.drafted += slots as u64;
        counts.accepted += accepted as u64;
        sequence.drafted.0 += slots;
        sequence.drafted.1 += accepted;
        // Where the answer ended inside the run nobody knows what the slots behind would have been.
        let reached = if committed > accepted { slots } else { accepted };
        for (slot, (reached, stood)) in counts.slots.iter_mut().enumerate().take(reached.min(accepted + 1)) {
            *reached += 1;
            *stood += u64::from(slot < accepted);
        }
        self.drafts.learn(&mut sequence.habit, reached, accepted);
    }
}

/// Whether the last of the masks rules out the draft that it stands before.
fn ends_inadmissible(masks: &[Option<Arc<[u32]>>], drafts: &[u32]) -> bool {
    let last = masks.len().checked_sub(1).and_then(|last| Some((masks.get(last)?, drafts.get(last)?)));
    last.is_some_and(|(mask, token)| !admits(mask.as_deref(), *token))
}

/// The first slots of a draft.
fn cut(mut draft: Draft, slots: usize) -> Draft {
    let each = draft.candidates.len() / draft.tokens.len().max(1);
    draft.tokens.truncate(slots);
    draft.candidates.truncate(slots * each);
    draft.probabilities.truncate(slots * each);
    draft
}

/// A row for the anchor and for every draft that may stand, each with a mask.
fn add_rows(
    step: &mut Step,
    sequence: &Sequence,
    draft: Draft,
    masks: Vec<Option<Arc<[u32]>>>,
    rule: crate::AcceptRule,
    forced: Option<usize>,
) {
    let (start, wanted, len, from) = (step.tokens.len(), step.wanted.len(), masks.len(), sequence.fed);
    step.tokens.extend(sequence.unfed().iter().take(1).chain(&draft.tokens).take(len).map(|token| *token as i32));
    step.positions.extend((from..from + len).map(|position| position as i32));
    for (row, mask) in masks.into_iter().enumerate() {
        let sampling = Some(sequence.sampling_after(draft.tokens.get(..row).unwrap_or_default()));
        step.wanted.push(WantedRow { row: start + row, sampling, mask, logits: false });
    }
    let coins = coins(sequence.request.sampling.seed, ACCEPTS, from, draft.tokens.len() + 1);
    step.blocks.push(Block { sequence: step.sequences.len(), wanted, draft: Arc::new(draft), rule, coins, forced });
    step.sequences.push(SequenceRows { start, len, pages: sequence.table.pages.clone() });
}

#[cfg(test)]
mod tests;
