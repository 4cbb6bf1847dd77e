//! What the next step holds: a row of every answer, then chunks of prompts until the step is full.

use super::{Part, Scheduler, Shares};
use crate::sequence::{Drafting, Sequence};
use crate::{Event, FinishReason, SequenceRows, Step, WantedRow};
use std::sync::Arc;

impl Scheduler {
    /// The next step, or `None` when there is nothing to compute now. A step that is planned while another is under way leaves
    /// nobody behind: where the next row of an answer needs to know what is being chosen, all wait for it together.
    pub fn plan(&mut self) -> Option<(Step, Shares)> {
        self.sweep();
        self.admit();
        // Whoever has to be drafted for is, so that all verify in one step.
        if let Some(drafts) = self.plan_drafts() {
            return Some(drafts);
        }
        if self.running.iter().any(Sequence::needs_what_is_chosen) {
            return None;
        }
        let (mut step, mut shares) = self.blank_step();
        loop {
            // Answers go first: a long prompt must not hold up one that is being written.
            let mut some_read = false;
            for at in 0..self.running.len() {
                match self.running.get(at).is_some_and(Sequence::is_answering) {
                    true => self.add(at, &mut step, &mut shares.parts),
                    false => some_read = true,
                }
            }
            for at in 0..if some_read { self.running.len() } else { 0 } {
                // One that gave its pages back in this step answers no more; one that has rows in it may.
                if self.running.get(at).is_some_and(|s| !s.is_answering()) {
                    self.add(at, &mut step, &mut shares.parts);
                }
            }
            if !shares.parts.is_empty() || self.in_flight > 0 || !self.make_room() {
                break;
            }
        }
        if std::mem::take(&mut self.has_preempted) {
            self.sweep_preempted();
        }
        self.sweep();
        self.passed_over = self.waiting.len();
        if shares.parts.is_empty() {
            self.spare_step = Some(step);
            self.spare_shares.push(shares);
            return None;
        }
        step.entry.clone_from(&self.limits.entry);
        shares.is_forced = self.limits.draft.forced.is_some();
        self.counts.steps += 1;
        self.counts.rows += step.tokens.len() as u64;
        self.finish_step(&mut step);
        Some((step, shares))
    }

    /// An empty step with empty shares, in memory that served others.
    pub(super) fn blank_step(&mut self) -> (Step, Shares) {
        let mut step = self.spare_step.take().unwrap_or_default();
        step.clear();
        let mut shares = self.spare_shares.pop().unwrap_or_default();
        shares.parts.clear();
        (shares.drafts, shares.is_forced) = (false, false);
        (step, shares)
    }

    /// What every step has that is about to be submitted.
    pub(super) fn finish_step(&mut self, step: &mut Step) {
        for kind in 0..self.kv.pages().kinds() {
            step.translation.extend(self.kv.pages_mut().translation(kind));
        }
        self.in_flight += 1;
    }

    /// A step that is over gives its memory to the next.
    pub fn recycle(&mut self, step: Step) {
        self.spare_step = Some(step);
    }

    /// Adds a sequence's rows to a step, as many as there is room and memory for.
    fn add(&mut self, at: usize, step: &mut Step, parts: &mut Vec<Part>) {
        let room = self.step_tokens().saturating_sub(step.tokens.len());
        let most_wanted = self.facts.max_wanted - step.wanted.len();
        let most_sequences = self.facts.max_sequences;
        let can = |s: &&Sequence| {
            let may_follow = || self.facts.takes_choices && !self.wants_draft(s);
            !s.ended && !s.is_out && s.may_have_rows() && (s.choosing.is_none() || may_follow())
        };
        let Some(sequence) = self.running.get(at).filter(can) else { return };
        if matches!(sequence.drafting, Drafting::Ready(_)) && self.add_block(at, step, parts) {
            return;
        }
        let Some(sequence) = self.running.get(at) else { return };
        let (mut rows, mut scored, mut wants_token) = split(sequence, room, most_wanted);
        if rows == 0 || parts.len() == most_sequences {
            return;
        }
        let from = sequence.fed;
        let end = self.extend(at, from + rows, parts);
        let Some(sequence) = self.running.get_mut(at) else { return };
        if end < from + rows {
            (rows, scored, wants_token) = split(sequence, end - from, most_wanted);
        }
        if rows == 0 {
            return;
        }
        let mask = if wants_token { sequence.mask(self.facts.vocab, self.known.as_ref()) } else { Ok(None) };
        match mask {
            Ok(mask) => {
                add_rows(step, sequence, rows, wants_token, mask);
                sequence.fed += rows;
                sequence.in_flight += 1;
                if wants_token {
                    sequence.choosing = Some(step.wanted.len() - 1);
                }
                let choosing = usize::from(wants_token);
                parts.push(Part { request: sequence.id, at, rows, scored, choosing, slots: 0 });
            }
            Err(text) => {
                let reason = FinishReason::Error(text);
                let (id, usage) = (sequence.id, sequence.usage());
                self.planned.push(Event::Finished { request: id, reason, usage });
                sequence.ended = true;
                self.has_ended = true;
            }
        }
    }

    /// Makes sure that a sequence's rows up to `to` can be written; returns how far they can. For a row of an answer,
    /// others give way.
    fn extend(&mut self, at: usize, to: usize, parts: &[Part]) -> usize {
        loop {
            let Some(sequence) = self.running.get_mut(at) else { return 0 };
            let (from, is_answering) = (sequence.fed, sequence.is_answering());
            let end = self.kv.extend(&mut sequence.table, sequence.done, from, to);
            if end > from || !is_answering {
                return end.max(from);
            }
            let id = sequence.id;
            let in_step = |s: &Sequence| parts.iter().any(|p| p.request == s.id);
            let holds = |s: &Sequence| !s.table.pages.is_empty();
            let Some(victim) = self.least(|s| s.id != id && holds(s) && !in_step(s)) else { return from };
            self.preempt(victim);
        }
    }

    /// No sequence could have a row: the one with the least to lose gives way to the others. False if there is nobody.
    fn make_room(&mut self) -> bool {
        let holds = |s: &Sequence| !s.table.pages.is_empty() && s.loads.is_empty();
        if self.running.iter().filter(|s| !s.ended && !s.is_out && holds(s)).count() < 2 {
            return false;
        }
        let Some(victim) = self.least(holds) else { return false };
        self.preempt(victim);
        true
    }
}

/// How many rows a sequence brings into a step with room for so many, how many of them score the prompt, and whether the
/// last chooses a token. A row that wants logits where there is no room for them waits, with all after it.
fn split(sequence: &Sequence, room: usize, most_wanted: usize) -> (usize, usize, bool) {
    let unfed = sequence.rows_left();
    if sequence.request.prompt_scores.is_none() {
        let rows = unfed.min(room);
        let chooses = rows == unfed && rows > 0 && sequence.wants_answer();
        return match chooses && most_wanted == 0 {
            true => (rows - 1, 0, false),
            false => (rows, 0, chooses),
        };
    }
    let mut scored = 0;
    for row in 0..unfed.min(room) {
        let is_last = row + 1 == unfed;
        let scores = usize::from(sequence.scores_at(sequence.fed + row).is_some());
        let chooses = is_last && sequence.wants_answer();
        if scored + scores + usize::from(chooses) > most_wanted {
            return (row, scored, false);
        }
        scored += scores;
        if is_last {
            return (unfed, scored, chooses);
        }
    }
    (unfed.min(room), scored, false)
}

fn add_rows(step: &mut Step, sequence: &Sequence, rows: usize, wants_token: bool, mask: Option<Arc<[u32]>>) {
    let start = step.tokens.len();
    step.tokens.extend(sequence.unfed().iter().take(rows).map(|token| *token as i32));
    // The last row may stand for a token that the step before is choosing.
    if let (true, Some(wanted)) = (step.tokens.len() < start + rows, sequence.choosing) {
        step.tokens.push(-1 - wanted as i32);
    }
    step.positions.extend((sequence.fed..sequence.fed + rows).map(|position| position as i32));
    step.sequences.push(SequenceRows { start, len: rows, pages: sequence.table.pages.clone() });
    if sequence.request.prompt_scores.is_some() {
        let scored = (0..rows).filter(|row| sequence.scores_at(sequence.fed + row).is_some());
        step.wanted.extend(scored.map(|row| WantedRow { row: start + row, sampling: None, mask: None, logits: true }));
    }
    if wants_token {
        let sampling = Some(sequence.sampling());
        step.wanted.push(WantedRow { row: start + rows - 1, sampling, mask, logits: false });
    }
}
