//! The scheduler: a pure state machine from requests to steps and from step outputs to events.
//!
//! Requests start in the order of their arrival, as soon as the pages for their longest possible course are free: a
//! running request never waits for memory. A step carries one row of every running sequence that has read its
//! prompt, and fills the rest of its rows with chunks of prompts.

use crate::sequence::Sequence;
use crate::{
    Event, ExecutorFacts, FinishReason, PagePool, Refusal, Request, RequestId, SequenceRows, Step, StepOutput,
    WantedRow, check_sampling,
};
use std::collections::VecDeque;

/// What bounds the scheduler besides the executor's facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest sequence that the model is made for, prompt and answer together; `None` for no bound of its own.
    pub context_tokens: Option<usize>,
    /// Most requests that run at once; more wait.
    pub running: usize,
    /// Entry that computes a step.
    pub entry: String,
}

impl Default for Limits {
    /// One request at a time through `forward`.
    fn default() -> Self {
        Limits { context_tokens: None, running: 1, entry: "forward".into() }
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
    wants_token: bool,
}

/// Requests, their pages and their order.
#[derive(Clone, Debug)]
pub struct Scheduler {
    facts: ExecutorFacts,
    limits: Limits,
    limit_tokens: usize,
    pool: PagePool,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    next_id: u64,
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
        Ok(Scheduler { facts, limits, limit_tokens, pool, waiting, running, next_id: 0 })
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

    /// Checks a request without taking it.
    pub fn check(&self, request: &Request) -> Result<(), Refusal> {
        let (prompt, limit, vocab) = (request.prompt.len(), self.limit_tokens, self.facts.vocab);
        if prompt == 0 {
            return Err(Refusal::EmptyPrompt);
        }
        if request.max_tokens == Some(0) {
            return Err(Refusal::NoAnswer);
        }
        if prompt >= limit {
            return Err(Refusal::PromptTooLong { prompt, limit });
        }
        if let Some(max_tokens) = request.max_tokens.filter(|max| *max > limit - prompt) {
            return Err(Refusal::AnswerTooLong { prompt, max_tokens, limit });
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
        // Sequences with one row to go first: a long prompt must not hold up an answer that is being written.
        let (short, long): (Vec<_>, Vec<_>) = self.running.iter().partition(|s| s.unfed().len() == 1);
        for sequence in short.into_iter().chain(long) {
            let room = self.facts.max_tokens - step.tokens.len();
            let rows = sequence.unfed().len().min(room);
            let wants_token = rows == sequence.unfed().len();
            if rows == 0 || (wants_token && step.wanted.len() == self.facts.max_wanted) {
                continue;
            }
            add_rows(&mut step, sequence, rows, wants_token);
            parts.push(Part { request: sequence.id, rows, wants_token });
            if parts.len() == self.facts.max_sequences {
                break;
            }
        }
        if parts.is_empty() { None } else { Some((step, Shares(parts))) }
    }

    /// Takes the output of a step.
    pub fn absorb(&mut self, shares: &Shares, output: StepOutput, events: &mut Vec<Event>) {
        let wanted = shares.0.iter().filter(|p| p.wants_token).count();
        if output.tokens.len() != wanted {
            let text = format!(
                "E0305: the step asked for {wanted} tokens and got {}; the executor breaks its contract",
                output.tokens.len()
            );
            return self.fail(shares, &text, events);
        }
        let mut tokens = output.tokens.into_iter();
        for part in &shares.0 {
            let token = if part.wants_token { tokens.next() } else { None };
            let Some(sequence) = self.running.iter_mut().find(|s| s.id == part.request) else { continue };
            sequence.fed += part.rows;
            let (Some(token), false) = (token, sequence.aborted) else { continue };
            let request = part.request;
            let reason = match token {
                Some(token) if (token.id as usize) < self.facts.vocab => {
                    let reason = sequence.push(token.id);
                    let stops = matches!(reason, Some(FinishReason::Stop(_)));
                    events.push(Event::Token { request, token, stops });
                    reason
                }
                _ => Some(FinishReason::Error(
                    "E0306: the executor chose no token of the vocabulary for a row that asked for one".into(),
                )),
            };
            if let Some(reason) = reason {
                events.push(Event::Finished { request, reason, usage: sequence.usage() });
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

fn add_rows(step: &mut Step, sequence: &Sequence, rows: usize, wants_token: bool) {
    let start = step.tokens.len();
    step.tokens.extend(sequence.unfed().iter().take(rows).map(|token| *token as i32));
    step.positions.extend((sequence.fed..sequence.fed + rows).map(|position| position as i32));
    step.sequences.push(SequenceRows { start, len: rows, pages: sequence.pages.clone() });
    if wants_token {
        let sampling = Some(sequence.sampling());
        step.wanted.push(WantedRow { row: start + rows - 1, sampling, mask: None, logits: false });
    }
}

#[cfg(test)]
mod tests;
