//! The scheduler: a pure state machine from requests to steps and from step outputs to events.
//!
//! ```text
//!            admit.rs                 plan.rs                 absorb.rs
//! waiting ──────────────► running ──────────────► Step … ──────────────► tokens, ends
//!    ▲    prefix taken,      │     one row of every answer,     prefix kept
//!    │    room reserved      │     chunks of prompts in the rest
//!    └───── preempted ◄──────┘
//! ```
//!
//! A running request holds the pages of what it has computed and no more; room for what its prompt still needs and for a
//! part of its answer is set aside when it starts. Where that was too little, the request with the least to lose gives
//! its pages back and is computed again later.

mod absorb;
mod admit;
mod arrive;
mod draft;
mod plan;

use crate::draft::{DraftLimits, DraftPolicy};
use crate::kv::PageTable;
use crate::sequence::{Drafting, Sequence};
use crate::{
    Event, ExecutorFacts, FinishReason, Kv, Policy, Refusal, Request, RequestId, Step, check_sampling, mask_below,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// What bounds the scheduler besides the executor's facts.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Longest sequence that the model is made for, prompt and answer together; `None` for no bound of its own.
    pub context_tokens: Option<usize>,
    /// Most requests that run at once; more wait.
    pub running: usize,
    /// Ids that the tokenizer knows; a vocabulary that is padded beyond them has logits that mean nothing. `None`: all.
    pub known_tokens: Option<usize>,
    /// Entry that computes a step.
    pub entry: String,
    /// Most rows of a step, answers and chunks of prompts together; `None`: as many as the executor takes.
    pub step_tokens: Option<usize>,
    /// Who starts first.
    pub policy: Policy,
    /// How many may start before a request that came earlier; then it is its turn.
    pub most_passed: usize,
    /// Whether finished work is kept for later requests.
    pub keeps_prefixes: bool,
    /// What is done with a drafter, where the executor has one.
    pub draft: DraftLimits,
}

impl Default for Limits {
    /// One request at a time through `forward`.
    fn default() -> Self {
        Limits {
            context_tokens: None,
            running: 1,
            known_tokens: None,
            entry: "forward".into(),
            step_tokens: None,
            policy: Policy::FirstCome,
            most_passed: 16,
            keeps_prefixes: true,
            draft: DraftLimits::default(),
        }
    }
}

/// Whose rows a planned step holds; [`Scheduler::absorb`] wants it back with the output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shares {
    parts: Vec<Part>,
    /// Whether it is a draft step, which leaves drafts and no tokens.
    drafts: bool,
    /// Whether its blocks commit what they are told to, not what the model says.
    is_forced: bool,
}

/// One sequence's share of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    request: RequestId,
    /// Where it stood among those that run; it may have moved since.
    at: usize,
    rows: usize,
    /// Rows whose logits score the next token of the prompt. They come before those that choose a token.
    scored: usize,
    /// Rows that choose a token: none, the last, or all of a block.
    choosing: usize,
    /// Drafts of a block.
    slots: usize,
}

/// What has happened since birth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that gave their pages back to others.
    pub preempted: u64,
    /// Steps planned.
    pub steps: u64,
    /// Rows in them.
    pub rows: u64,
    /// Requests that started as a fork of another.
    pub forked: u64,
    /// Prefixes from the host of which layers came while a step ran.
    pub joined: u64,
    /// What became of drafts.
    pub draft: DraftCounts,
}

/// What became of drafts since birth. Runs whose length was forced count as steps, blocks and what
/// they left; of acceptance they say nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftCounts {
    /// Draft steps.
    pub steps: u64,
    /// Blocks verified, each of one request.
    pub verified: u64,
    /// Drafts in them.
    pub drafted: u64,
    /// Drafts that stand in an answer.
    pub accepted: u64,
    /// Tokens that the blocks left: accepted drafts, and the model's own behind them.
    pub committed: u64,
    /// By slot: drafts that were reached, and those that stood.
    pub slots: [(u64, u64); MOST_SLOTS],
}

/// Slots of a block that are counted each by itself.
pub const MOST_SLOTS: usize = 16;

impl Default for DraftCounts {
    fn default() -> Self {
        DraftCounts { steps: 0, verified: 0, drafted: 0, accepted: 0, committed: 0, slots: [(0, 0); MOST_SLOTS] }
    }
}

impl DraftCounts {
    /// Tokens that a block leaves on average.
    pub fn length(&self) -> f64 {
        self.committed as f64 / self.verified.max(1) as f64
    }

    /// Share of drafts that stand.
    pub fn rate(&self) -> f64 {
        self.accepted as f64 / self.drafted.max(1) as f64
    }
}

/// Requests, their pages and their order.
#[derive(Debug)]
pub struct Scheduler {
    facts: ExecutorFacts,
    limits: Limits,
    limit_tokens: usize,
    kv: Kv,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    next_id: u64,
    /// What planning found out; it goes out with the next events.
    planned: Vec<Event>,
    /// Admits what the tokenizer knows, if that is not everything.
    known: Option<Arc<[u32]>>,
    /// Share of its possible answer for which a request needs room when it starts, in thousandths.
    headroom: u32,
    /// Whether something has changed that may let a request start.
    may_start: bool,
    /// Whether some sequence that runs has given its place up.
    has_ended: bool,
    has_preempted: bool,
    /// The request that others have given way to and that has not started yet.
    awaited: Option<RequestId>,
    /// What those that run will still need, while nobody has started or given way since it was summed up.
    still: Option<admit::Need>,
    in_flight: usize,
    /// How many the last plan left waiting.
    passed_over: usize,
    spare_shares: Vec<Shares>,
    spare_step: Option<Step>,
    counts: Counts,
    drafts: DraftPolicy,
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
        let kv = Kv::new(&facts, context.min(1 << 20), limits.keeps_prefixes)?;
        // The token at the last position is never fed, so it needs no place in the cache.
        let limit_tokens = context.min(kv.longest(context).saturating_add(1));
        if limit_tokens < 2 {
            return Err(format!(
                "E0304: a pool of {} pages and a context of {context} tokens hold no prompt and answer; give the executor more pages",
                kv.total_pages()
            ));
        }
        let mut scheduler = Scheduler {
            facts,
            limits,
            limit_tokens,
            kv,
            waiting: VecDeque::new(),
            running: Vec::new(),
            next_id: 0,
            planned: Vec::new(),
            known: None,
            headroom: admit::HEADROOM_AT_FIRST,
            may_start: false,
            has_ended: false,
            has_preempted: false,
            awaited: None,
            still: None,
            in_flight: 0,
            passed_over: 0,
            spare_shares: Vec::new(),
            spare_step: None,
            counts: Counts::default(),
            drafts: DraftPolicy::default(),
        };
        if let Some(known) = scheduler.limits.known_tokens {
            scheduler.set_known_tokens(known);
        }
        Ok(scheduler)
    }

    /// Longest sequence, prompt and answer together.
    pub fn limit_tokens(&self) -> usize {
        self.limit_tokens
    }

    /// Cache memory and what is kept in it, for reports and invariants.
    pub fn kv(&self) -> &Kv {
        &self.kv
    }

    pub(crate) fn kv_mut(&mut self) -> &mut Kv {
        &mut self.kv
    }

    /// The executor's facts.
    pub fn facts(&self) -> &ExecutorFacts {
        &self.facts
    }

    /// What has happened since birth.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Share of possible answers for which room is set aside, in thousandths.
    pub fn headroom(&self) -> u32 {
        self.headroom
    }

    /// Requests that have not finished.
    pub fn unfinished(&self) -> usize {
        self.waiting.len() + self.running.iter().filter(|s| !s.ended).count()
    }

    /// Never chooses ids from `known` on.
    pub(crate) fn set_known_tokens(&mut self, known: usize) {
        self.limits.known_tokens = Some(known);
        let vocab = self.facts.vocab;
        self.known = (known < vocab).then(|| mask_below(known, vocab).into());
    }

    /// What is done with drafts.
    pub(crate) fn drafts(&self) -> &DraftLimits {
        &self.limits.draft
    }

    pub(crate) fn set_drafts(&mut self, drafts: DraftLimits) {
        self.limits.draft = drafts;
    }

    /// Requests that wait for room.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Requests that the last plan looked at and that wait on; those that have come since may yet find room.
    pub fn passed_over(&self) -> usize {
        self.passed_over.min(self.waiting.len())
    }

    /// Requests that have their pages.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Tokens of the sequences that run, for reports.
    pub fn running_tokens(&self) -> usize {
        self.running.iter().map(|s| s.done).sum()
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
        let mut sequence = Sequence::new(id, request, limit);
        sequence.habit = self.drafts.newcomer();
        self.waiting.push_back(sequence);
        self.may_start = true;
        Ok(id)
    }

    /// Queues several requests, all or none. Those with the prompt of the first are read once and forked.
    pub fn submit_all(&mut self, requests: Vec<Request>) -> Result<Vec<RequestId>, Refusal> {
        requests.iter().try_for_each(|request| self.check(request))?;
        let mut ids = Vec::with_capacity(requests.len());
        for request in requests {
            let first = ids.first().copied();
            ids.push(self.submit(request)?);
            let leader = self.waiting.iter().find(|s| Some(s.id) == first);
            let twin = match (leader, self.waiting.back()) {
                (Some(a), Some(b)) => {
                    let (a, b) = (&a.request, &b.request);
                    a.prompt == b.prompt && a.namespace == b.namespace && b.prompt_scores.is_none()
                }
                _ => false,
            };
            if let Some(last) = self.waiting.back_mut() {
                last.twin = first.filter(|_| twin);
            }
        }
        Ok(ids)
    }

    /// Gives a request up, wherever it is. Unknown and finished requests are left alone. What it holds is free once no
    /// step under way has its rows.
    pub fn abort(&mut self, id: RequestId, events: &mut Vec<Event>) {
        // Its prefix may have come from the host while a step runs: the news of its start goes before that of its end.
        self.take_planned(events);
        let reason = FinishReason::Aborted;
        if let Some(place) = self.waiting.iter().position(|s| s.id == id) {
            if let Some(sequence) = self.waiting.remove(place) {
                events.push(Event::Finished { request: id, reason, usage: sequence.usage() });
                self.may_start = true;
            }
        } else if let Some(at) = self.running.iter().position(|s| s.id == id && !s.ended) {
            self.end(at, reason, events);
            self.sweep();
        }
    }

    /// Moves out the events that planning made, such as the end of a request whose constraint cannot go on; says whether
    /// there were any.
    pub fn take_planned(&mut self, events: &mut Vec<Event>) -> bool {
        let any = !self.planned.is_empty();
        events.append(&mut self.planned);
        any
    }

    /// Ends a sequence that runs: what it computed is kept for others.
    fn end(&mut self, at: usize, reason: FinishReason, events: &mut Vec<Event>) {
        self.keep(at, usize::MAX);
        let Some(sequence) = self.running.get_mut(at) else { return };
        events.push(Event::Finished { request: sequence.id, reason, usage: sequence.usage() });
        sequence.ended = true;
        self.has_ended = true;
    }

    /// Gives the prefix tree what is computed of a sequence's first `tokens` tokens.
    fn keep(&mut self, at: usize, tokens: usize) {
        let Some(sequence) = self.running.get_mut(at) else { return };
        let n = sequence.done.min(tokens).min(sequence.tokens.len());
        let pages = n / self.kv.pages().page_tokens();
        // While its prefix is on the way from the host there is nothing of it that others may read.
        if pages > sequence.kept_pages && sequence.loads.is_empty() {
            let tokens = sequence.tokens.get(..n).unwrap_or_default();
            self.kv.insert(&sequence.request.namespace, tokens, &mut sequence.table);
            sequence.kept_pages = pages;
        }
    }

    /// Lets go of what ended sequences hold, as soon as no step has their rows.
    fn sweep(&mut self) {
        if !self.has_ended {
            return;
        }
        self.has_ended = false;
        let kv = &mut self.kv;
        let (mut is_free, mut is_left) = (false, false);
        self.running.retain_mut(|sequence| {
            let goes = sequence.ended && sequence.in_flight == 0;
            is_left |= sequence.ended && !goes;
            if goes {
                release(kv, sequence);
                is_free = true;
            }
            !goes
        });
        self.has_ended = is_left;
        self.may_start |= is_free;
    }

    /// Forgets what is kept of finished requests; false while requests are unfinished, and nothing is forgotten.
    pub fn flush(&mut self) -> bool {
        let idle = self.in_flight == 0 && self.unfinished() == 0;
        if idle {
            self.kv.clear();
        }
        idle
    }

    /// What is kept so far was computed with other weights and is not used again. False while requests are unfinished.
    pub fn next_weights(&mut self) -> bool {
        let idle = self.in_flight == 0 && self.unfinished() == 0;
        if idle {
            self.kv.next_weights();
        }
        idle
    }

    /// The steps under way will never be answered.
    pub(crate) fn abandon_steps(&mut self) {
        self.in_flight = 0;
        for sequence in &mut self.running {
            sequence.in_flight = 0;
            sequence.choosing = None;
            sequence.drafting = Drafting::Idle;
        }
    }

    /// Cache memory is not what the books say: every request that runs ends, and nothing is kept.
    pub(crate) fn fail_all(&mut self, text: &str, events: &mut Vec<Event>) {
        self.take_planned(events);
        for sequence in self.running.iter_mut().filter(|s| !s.ended) {
            let reason = FinishReason::Error(text.to_owned());
            events.push(Event::Finished { request: sequence.id, reason, usage: sequence.usage() });
            sequence.ended = true;
            self.has_ended = true;
        }
        self.sweep();
        self.kv.clear();
    }

    /// Nothing can be computed although requests run and nothing is under way: one of them ends with an error, so that the
    /// others are not held up for ever. False if none runs.
    pub(crate) fn give_up(&mut self, events: &mut Vec<Event>) -> bool {
        let Some(at) = self.least(|_| true) else { return false };
        let text = "E0309: the cache has no page left for this request and nobody to take one from; this is a defect, report it with the server's log";
        self.end(at, FinishReason::Error(text.to_owned()), events);
        self.sweep();
        true
    }

    /// The same with a table that nobody knows of.
    #[cfg(test)]
    fn check_books_besides(&self, other: &PageTable) -> Result<(), String> {
        self.kv.check(self.running.iter().map(|s| &s.table).chain([other]), &[])
    }

    /// Checks the whole state; `backups` are copies to the host under way. For tests and simulation: it looks at everything.
    pub(crate) fn check_books(&self, backups: &[crate::kv::Backup]) -> Result<(), String> {
        let tables = self.running.iter().map(|s| &s.table);
        self.kv.check(tables, backups)?;
        if let Some(s) = self.waiting.iter().find(|s| !s.table.pages.is_empty() || s.in_flight > 0 || s.ended) {
            return Err(format!("request {} waits and holds something", s.id.0));
        }
        let locks: usize = self.running.iter().map(|s| s.loads.len()).sum();
        if locks != self.kv.host_locks() as usize {
            return Err(format!("{locks} copies are to be read, {} are locked", self.kv.host_locks()));
        }
        for s in &self.running {
            let pages = self.kv.pages();
            for k in 0..pages.kinds() {
                let first = pages.first_page(k, s.done);
                let missing = |i: &usize| {
                    *i >= first
                        && *i * pages.page_tokens() < s.done
                        && !s.ended
                        && pages.physical(k, s.table.pages[*i]) <= 0
                };
                if let Some(i) = (0..s.table.pages.len()).find(missing) {
                    return Err(format!("request {} has no page {i} of kind {k} at {}", s.id.0, s.done));
                }
            }
            if matches!(s.drafting, Drafting::Asked | Drafting::Verifying) && s.in_flight != 1 && !s.ended
                || matches!(s.drafting, Drafting::Ready(_)) && (s.in_flight > 0 || s.unfed().len() != 1)
            {
                return Err(format!("request {} has {} steps under way and is {:?}", s.id.0, s.in_flight, s.drafting));
            }
            if s.is_out || s.done > s.fed || !s.ended && s.fed > s.tokens.len() + usize::from(s.choosing.is_some()) {
                return Err(format!("request {}: {} done, {} fed of {} tokens", s.id.0, s.done, s.fed, s.tokens.len()));
            }
        }
        Ok(())
    }
}

/// Gives back everything that a sequence holds.
fn release(kv: &mut Kv, sequence: &mut Sequence) {
    for load in sequence.loads.drain(..) {
        kv.load_over(&load);
    }
    (sequence.came, sequence.announced, sequence.arrival) = Default::default();
    kv.release(&mut sequence.table);
    sequence.table = PageTable::default();
}

#[cfg(test)]
mod short_tests;
#[cfg(test)]
mod tests;
