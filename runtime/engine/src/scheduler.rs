//! The scheduler: a pure state machine from requests to steps and from step outputs to events.
//!
//! Requests start in the order of their arrival, as soon as the pages for their longest possible course are free: a
//! running request never waits for memory. A step carries one row of every running sequence that has read its
//! prompt, and fills the rest of its rows with chunks of prompts.

use crate::sequence::Sequence;
use crate::{
    Event, ExecutorFacts, FinishReason, PagePool, Refusal, Request, RequestId, SampledToken, SequenceRows, Step,
    StepOutput, WantedRow, check_sampling, score,
};
use std::collections::VecDeque;

/// What bounds the scheduler besides the executor's facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest sequence that the model is made for, prompt and answer together; `None` for no bound of its own.
    pub context_tokens: Option<usize>,
    /// Most requests that run at once; more wait.
    pub running: usize,
    /// Ids that the tokenizer knows; a vocabulary that is padded beyond them has logits that mean nothing. `None`: all.
    pub known_tokens: Option<usize>,
    /// Entry that computes a step.
    pub entry: String,
}

impl Default for Limits {
    /// One request at a time through `forward`.
    fn default() -> Self {
        Limits { context_tokens: None, running: 1, known_tokens: None, entry: "forward".into() }
    }
}

/// Whose rows a planned step holds; [`Scheduler::absorb`] wants it back with the output.
#[derive(Clone, Debug, PartialEq)]
pub struct Shares(Vec<Part>);

/// One sequence's share of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    request: RequestId,
    rows: usize,
    /// Rows whose logits score the next token of the prompt. They come before the one that chooses a token.
    scored: usize,
    wants_token: bool,
}

/// Requests, their pages and their order.
#[derive(Debug)]
pub struct Scheduler {
    facts: ExecutorFacts,
    limits: Limits,
    limit_tokens: usize,
    pool: PagePool,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    next_id: u64,
    /// What planning found out; it goes out with the next events.
    planned: Vec<Event>,
}

impl Scheduler {
    /// A scheduler for an executor with these facts.
    pub fn new(facts: ExecutorFacts, limits: Limits) -> Result<Self, String> {
        let rooms =
            [("tokens", facts.max_tokens), ("sequences", facts.max_sequences), ("wanted rows", facts.max_wanted)];
        if let Some((what, _)) = rooms.iter().find(|(_, most)| *most == 0) {
            return Err(format!(
                "E0303: the executor takes 0 {what} in a step, at least 1 is needed; compile the artifact with a larger bucket"
            ));
        }
        let context = limits.context_tokens.unwrap_or(i32::MAX as usize).min(i32::MAX as usize);
        let pool = PagePool::new(&facts, context.min(1 << 20))?;
        // The token at the last position is never fed, so it needs no place in the cache.
        let limit_tokens = context.min(pool.capacity_tokens().saturating_add(1));
        if limit_tokens < 2 {
            return Err(format!(
                "E0304: a pool of {} pages and a context of {context} tokens hold no prompt and answer; give the executor more pages",
                pool.total_pages()
            ));
        }
        let (waiting, running) = (VecDeque::new(), Vec::new());
        Ok(Scheduler { facts, limits, limit_tokens, pool, waiting, running, next_id: 0, planned: Vec::new() })
    }

    /// Longest sequence, prompt and answer together.
    pub fn limit_tokens(&self) -> usize {
        self.limit_tokens
    }

    /// The pool, for reports and invariants.
    pub fn pool(&self) -> &PagePool {
        &self.pool
    }

    /// Requests that have not finished.
    pub fn unfinished(&self) -> usize {
        self.waiting.len() + self.running.iter().filter(|s| !s.aborted).count()
    }

    /// Never chooses ids from `known` on.
    pub(crate) fn set_known_tokens(&mut self, known: usize) {
        self.limits.known_tokens = Some(known);
    }

    /// Requests that wait for room.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Requests that have their pages.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Checks a request without taking it.
    pub fn check(&self, request: &Request) -> Result<(), Refusal> {
        let (prompt, limit, vocab) = (request.prompt.len(), self.limit_tokens, self.facts.vocab);
        if prompt == 0 {
            return Err(Refusal::EmptyPrompt);
        }
        if request.max_tokens == Some(0) && request.prompt_scores.is_none() {
            return Err(Refusal::NoAnswer);
        }
        if prompt >= limit {
            return Err(Refusal::PromptTooLong { prompt, limit });
        }
        if let Some(max_tokens) = request.max_tokens.filter(|max| *max > limit - prompt) {
            return Err(Refusal::AnswerTooLong { prompt, max_tokens, limit });
        }
        let most = request.max_tokens.unwrap_or(limit - prompt);
        if request.min_tokens > most {
            return Err(Refusal::MinTokens { min_tokens: request.min_tokens, max_tokens: most });
        }
        // Ids travel as i32 in a step, so the vocabulary's own size is not the only bound.
        let known = vocab.min(i32::MAX as usize);
        if let Some((place, id)) = request.prompt.iter().enumerate().find(|(_, id)| **id as usize >= known) {
            return Err(Refusal::UnknownToken { id: *id, place, vocab });
        }
        Ok(check_sampling(&request.sampling, vocab)?)
    }

    /// Queues a request.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, Refusal> {
        self.check(&request)?;
        let limit = request.max_tokens.map_or(self.limit_tokens, |max| request.prompt.len() + max);
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.waiting.push_back(Sequence::new(id, request, limit));
        Ok(id)
    }

    /// Gives a request up, wherever it is; `in_flight` says whether a step is under way that may hold its rows. Unknown
    /// and finished requests are left alone.
    pub fn abort(&mut self, id: RequestId, in_flight: bool, events: &mut Vec<Event>) {
        let reason = FinishReason::Aborted;
        if let Some(place) = self.waiting.iter().position(|s| s.id == id) {
            if let Some(sequence) = self.waiting.remove(place) {
                events.push(Event::Finished { request: id, reason, usage: sequence.usage() });
            }
        } else if let Some(sequence) = self.running.iter_mut().find(|s| s.id == id && !s.aborted) {
            events.push(Event::Finished { request: id, reason, usage: sequence.usage() });
            sequence.aborted = true;
            if !in_flight {
                self.free_aborted();
            }
        }
    }

    /// The next step, or `None` when there is nothing to compute.
    pub fn plan(&mut self) -> Option<(Step, Shares)> {
        self.start_waiting();
        let mut step =
            Step { entry: self.limits.entry.clone(), translation: self.pool.translation().to_vec(), ..Step::default() };
        let mut parts = Vec::new();
        let (vocab, known) = (self.facts.vocab, self.limits.known_tokens.unwrap_or(self.facts.vocab));
        // Sequences with one row to go first: a long prompt must not hold up an answer that is being written.
        let (short, long): (Vec<_>, Vec<_>) = self.running.iter_mut().partition(|s| s.unfed().len() == 1);
        for sequence in short.into_iter().chain(long) {
            let room = self.facts.max_tokens - step.tokens.len();
            let most_wanted = self.facts.max_wanted - step.wanted.len();
            let (rows, scored, wants_token) = shares(sequence, room, most_wanted);
            if rows == 0 || parts.len() == self.facts.max_sequences {
                continue;
            }
            let mask = if wants_token { sequence.mask(vocab, known) } else { Ok(None) };
            match mask {
                Ok(mask) => {
                    add_rows(&mut step, sequence, rows, wants_token, mask);
                    parts.push(Part { request: sequence.id, rows, scored, wants_token });
                }
                Err(text) => {
                    let reason = FinishReason::Error(text);
                    self.planned.push(Event::Finished { request: sequence.id, reason, usage: sequence.usage() });
                    sequence.aborted = true;
                }
            }
        }
        self.free_aborted();
        if parts.is_empty() { None } else { Some((step, Shares(parts))) }
    }

    /// Moves out the events that planning made, such as the end of a request whose constraint cannot go on; says whether
    /// there were any.
    pub fn take_planned(&mut self, events: &mut Vec<Event>) -> bool {
        let any = !self.planned.is_empty();
        events.append(&mut self.planned);
        any
    }

    /// Takes the output of a step.
    pub fn absorb(&mut self, shares: &Shares, output: StepOutput, events: &mut Vec<Event>) {
        self.take_planned(events);
        let wanted: usize = shares.0.iter().map(|p| p.scored + usize::from(p.wants_token)).sum();
        if output.tokens.len() != wanted {
            let text = format!(
                "E0305: the step asked for {wanted} rows and got {}; the executor breaks its contract",
                output.tokens.len()
            );
            return self.fail(shares, &text, events);
        }
        let mut next = 0;
        for part in &shares.0 {
            let (scored, chosen) = (next, next + part.scored);
            next = chosen + usize::from(part.wants_token);
            let Some(sequence) = self.running.iter_mut().find(|s| s.id == part.request) else { continue };
            let from = sequence.fed;
            sequence.fed += part.rows;
            if sequence.aborted {
                continue;
            }
            let logits = output.logits.get(scored..chosen).unwrap_or_default();
            let mut reason = scores(sequence, from, part, logits, events).err().map(FinishReason::Error);
            if reason.is_none() && part.wants_token {
                let fault = output.faults.iter().find(|(row, _)| *row == chosen).map(|(_, text)| text.clone());
                let token = output.tokens.get(chosen).cloned().flatten();
                reason = take_token(sequence, token, fault, self.facts.vocab, events);
            }
            if reason.is_none() && !sequence.wants_answer() && sequence.unfed().is_empty() {
                reason = Some(FinishReason::Length);
            }
            if let Some(reason) = reason {
                events.push(Event::Finished { request: part.request, reason, usage: sequence.usage() });
                sequence.aborted = true;
            }
        }
        self.free_aborted();
    }

    /// Takes the failure of a step: whoever had rows in it ends, the others go on.
    pub fn fail(&mut self, shares: &Shares, text: &str, events: &mut Vec<Event>) {
        for sequence in &mut self.running {
            if !sequence.aborted && shares.0.iter().any(|p| p.request == sequence.id) {
                let reason = FinishReason::Error(text.to_owned());
                events.push(Event::Finished { request: sequence.id, reason, usage: sequence.usage() });
                sequence.aborted = true;
            }
        }
        self.free_aborted();
    }

    fn start_waiting(&mut self) {
        // Each of them may bring a row and want a token in the same step.
        let facts = &self.facts;
        let most = self.limits.running.max(1).min(facts.max_sequences).min(facts.max_tokens).min(facts.max_wanted);
        while self.running.len() < most {
            let Some(next) = self.waiting.front() else { return };
            let Some(pages) = self.pool.take(next.cache_tokens()) else { return };
            if let Some(mut sequence) = self.waiting.pop_front() {
                sequence.pages = pages;
                self.planned.push(Event::Started { request: sequence.id, cached_tokens: 0 });
                self.running.push(sequence);
            }
        }
    }

    fn free_aborted(&mut self) {
        let pool = &mut self.pool;
        self.running.retain_mut(|sequence| {
            if sequence.aborted {
                pool.give_back(std::mem::take(&mut sequence.pages));
            }
            !sequence.aborted
        });
    }
}

/// How many rows a sequence brings into a step with room for so many, how many of them score the prompt, and whether the
/// last chooses a token. A row that wants logits where there is no room for them waits, with all after it.
fn shares(sequence: &Sequence, room: usize, most_wanted: usize) -> (usize, usize, bool) {
    let unfed = sequence.unfed().len();
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

fn add_rows(step: &mut Step, sequence: &Sequence, rows: usize, wants_token: bool, mask: Option<Vec<u32>>) {
    let start = step.tokens.len();
    step.tokens.extend(sequence.unfed().iter().take(rows).map(|token| *token as i32));
    step.positions.extend((sequence.fed..sequence.fed + rows).map(|position| position as i32));
    step.sequences.push(SequenceRows { start, len: rows, pages: sequence.pages.clone() });
    let scored = (0..rows).filter(|row| sequence.scores_at(sequence.fed + row).is_some());
    step.wanted.extend(scored.map(|row| WantedRow { row: start + row, sampling: None, mask: None, logits: true }));
    if wants_token {
        let sampling = Some(sequence.sampling());
        step.wanted.push(WantedRow { row: start + rows - 1, sampling, mask, logits: false });
    }
}

/// Scores the prompt's tokens that the rows of a step predicted, the first of them at position `from`.
fn scores(
    sequence: &Sequence,
    from: usize,
    part: &Part,
    logits: &[Option<Vec<f32>>],
    events: &mut Vec<Event>,
) -> Result<(), String> {
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
        events.push(Event::Scored { request: sequence.id, tokens, first });
    }
    Ok(())
}

/// Takes what a row chose; returns why the answer ends, if it does.
fn take_token(
    sequence: &mut Sequence,
    token: Option<SampledToken>,
    fault: Option<String>,
    vocab: usize,
    events: &mut Vec<Event>,
) -> Option<FinishReason> {
    match token {
        Some(token) if (token.id as usize) < vocab => {
            let reason = sequence.push(token.id);
            let stops = matches!(reason, Some(FinishReason::Stop(_)));
            events.push(Event::Token { request: sequence.id, token, stops });
            reason
        }
        _ => Some(FinishReason::Error(fault.unwrap_or_else(|| {
            "E0306: the executor chose no token of the vocabulary for a row that asked for one".into()
        }))),
    }
}

#[cfg(test)]
mod tests;
