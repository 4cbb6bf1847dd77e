//! What a step's output does: tokens, scores and ends.

use super::{Part, Scheduler, Shares};
use crate::sequence::{Drafting, Sequence};
use crate::{Event, FinishReason, SampledToken, StepOutput, score};

impl Scheduler {
    /// Takes the output of a step. Steps are absorbed in the order in which they were planned.
    pub fn absorb(&mut self, shares: &Shares, output: &mut StepOutput, events: &mut Vec<Event>) {
        self.take_planned(events);
        if shares.drafts {
            return self.absorb_drafts(shares, output, events);
        }
        let wanted: usize = shares.parts.iter().map(|p| p.scored + p.choosing).sum();
        if output.tokens.len() != wanted {
            let text = format!(
                "E0305: the step asked for {wanted} rows and got {}; the executor breaks its contract",
                output.tokens.len()
            );
            return self.fail(shares, &text, events);
        }
        self.in_flight = self.in_flight.saturating_sub(1);
        let mut next = 0;
        for part in &shares.parts {
            let (scored, chosen) = (next, next + part.scored);
            next = chosen + part.choosing;
            let Some(at) = self.place(part) else { continue };
            let Some(sequence) = self.running.get_mut(at) else { continue };
            let from = sequence.done;
            sequence.done += part.rows;
            sequence.in_flight -= 1;
            // A later step may be choosing already; then the choice that is out is that one's.
            if part.choosing > 0 && sequence.in_flight == 0 {
                sequence.choosing = None;
                sequence.drafting = Drafting::Idle;
            }
            if sequence.ended || self.is_lost(at) {
                continue;
            }
            let Some(sequence) = self.running.get_mut(at) else { continue };
            let logits = output.logits.get(scored..chosen).unwrap_or_default();
            let mut reason = scores(sequence, from, part, logits, events).err().map(FinishReason::Error);
            if reason.is_none() && part.choosing > 0 {
                let run = take_run(sequence, chosen..next, output, self.facts.vocab, events);
                reason = run.reason;
                if part.slots > 0 {
                    // The anchor and each token but the last have brought a row that stays.
                    sequence.done = from + run.taken;
                    sequence.fed = sequence.done;
                    self.book_block(at, part.slots, run.taken, run.accepted, shares.is_forced);
                }
            }
            let Some(sequence) = self.running.get_mut(at) else { continue };
            if reason.is_none() && !sequence.wants_answer() && sequence.done >= sequence.tokens.len() {
                reason = Some(FinishReason::Length);
            }
            let (prompt, branch) = (sequence.request.prompt.len(), sequence.branch);
            if from < branch && part.rows + from >= branch {
                self.keep(at, branch);
            }
            if from < prompt && part.rows + from >= prompt {
                self.keep(at, usize::MAX);
                self.may_start = true;
            }
            if let Some(reason) = reason {
                self.end(at, reason, events);
            }
        }
        self.sweep();
    }

    /// Takes the failure of a step: whoever had rows in it ends, the others go on.
    pub fn fail(&mut self, shares: &Shares, text: &str, events: &mut Vec<Event>) {
        self.take_planned(events);
        self.in_flight = self.in_flight.saturating_sub(1);
        for part in &shares.parts {
            let Some(at) = self.place(part) else { continue };
            let Some(sequence) = self.running.get_mut(at) else { continue };
            sequence.in_flight -= 1;
            sequence.choosing = None;
            sequence.drafting = Drafting::Idle;
            if !sequence.ended {
                // Nobody knows what the step has written; only rows of steps before it are kept.
                self.end(at, FinishReason::Error(text.to_owned()), events);
            }
        }
        self.sweep();
    }

    /// The memory of a step's shares serves another.
    pub fn recycle_shares(&mut self, shares: Shares) {
        if self.spare_shares.len() < 8 {
            self.spare_shares.push(shares);
        }
    }

    /// Where a part's sequence stands now.
    pub(super) fn place(&self, part: &Part) -> Option<usize> {
        match self.running.get(part.at) {
            Some(s) if s.id == part.request => Some(part.at),
            _ => self.running.iter().position(|s| s.id == part.request),
        }
    }
}

/// Scores the prompt's tokens that the rows of a step predicted, the first of them at position `from`.
fn scores(
    sequence: &mut Sequence,
    from: usize,
    part: &Part,
    logits: &[Option<Vec<f32>>],
    events: &mut Vec<Event>,
) -> Result<(), String> {
    if part.scored == 0 {
        return Ok(());
    }
    let places = (from..from + part.rows).filter_map(|p| sequence.scores_at(p).map(|scores| (p + 1, scores)));
    let mut tokens: Vec<SampledToken> = Vec::new();
    let mut first = None;
    for ((place, wanted), row) in places.zip(logits) {
        let row = row.as_deref().ok_or("E0308: the executor returned no logits for a row that asked for them")?;
        let token = sequence.request.prompt.get(place).copied().unwrap_or_default();
        tokens.push(score(row, token, wanted.top, &wanted.listed).map_err(|e| e.to_string())?);
        first = first.or(Some(place));
    }
    if let Some(first) = first {
        sequence.scored_to = first + tokens.len();
        events.push(Event::Scored { request: sequence.id, tokens, first });
    }
    Ok(())
}

/// What a sequence took of a step's tokens.
struct Run {
    /// Tokens that stand in the answer now.
    taken: usize,
    /// Drafts among them.
    accepted: usize,
    /// Why the answer ends, if it does.
    reason: Option<FinishReason>,
}

/// Takes what wanted rows chose, as far as the answer goes: of a block the run, of any other sequence one token.
fn take_run(
    sequence: &mut Sequence,
    rows: std::ops::Range<usize>,
    output: &mut StepOutput,
    vocab: usize,
    events: &mut Vec<Event>,
) -> Run {
    let run = output.tokens.get(rows.clone()).unwrap_or_default().iter().take_while(|t| t.is_some()).count();
    let mut taken = 0;
    for row in rows.clone() {
        let token = output.tokens.get_mut(row).and_then(Option::take);
        if taken > 0 && token.is_none() && !output.faults.iter().any(|(at, _)| *at == row) {
            break;
        }
        let reason = match token {
            Some(token) if (token.id as usize) < vocab => {
                let reason = sequence.push(token.id);
                taken += 1;
                let stops = matches!(reason, Some(FinishReason::Stop(_)));
                events.push(Event::Token { request: sequence.id, token, stops });
                reason
            }
            _ => {
                let fault = output.faults.iter().find(|(at, _)| *at == row).map(|(_, text)| text.clone());
                Some(FinishReason::Error(fault.unwrap_or_else(|| {
                    "E0306: the executor chose no token of the vocabulary for a row that asked for one".into()
                })))
            }
        };
        if reason.is_some() {
            return Run { taken, accepted: taken.min(run.saturating_sub(1)), reason };
        }
    }
    Run { taken, accepted: taken.min(run.saturating_sub(1)), reason: None }
}
