//! The engine: a scheduler that drives an executor, and the host tier between them.

use crate::transfer::Transfers;
use crate::{
    Clock, DraftLimits, Event, Executor, HostTier, Limits, PageOp, PhysicalPage, Refusal, Request, RequestId,
    Scheduler, Shares, StepError, Ticket,
};
use std::collections::VecDeque;

/// Steps under way at once: while one runs, the next is prepared.
const MOST_IN_FLIGHT: usize = 2;

/// What a call of [`Engine::step`] found to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing to compute: no request is unfinished, and the host tier is at rest.
    Idle,
    /// A step was submitted or its output taken, or pages moved.
    Worked,
    /// The step under way is not done.
    Waiting,
}

/// Requests in, events out. Call [`Engine::step`] until it says [`Progress::Idle`].
pub struct Engine<E: Executor> {
    /// Goes before the executor, which ends with the step that it is in.
    transfers: Option<Transfers>,
    executor: E,
    scheduler: Scheduler,
    in_flight: VecDeque<(Ticket, Shares)>,
    most_in_flight: usize,
    events: Vec<Event>,
    memory: Memory,
}

impl<E: Executor> Engine<E> {
    /// An engine over an executor. The text of an error names what in the executor's facts cannot work.
    pub fn new(executor: E, limits: Limits) -> Result<Self, String> {
        let scheduler = Scheduler::new(executor.facts().clone(), limits)?;
        let (in_flight, events, memory) = (VecDeque::new(), Vec::new(), Memory::default());
        let (transfers, most_in_flight) = (None, MOST_IN_FLIGHT);
        Ok(Engine { executor, scheduler, transfers, in_flight, most_in_flight, events, memory })
    }

    /// Keeps copies of cached pages on the host from now on.
    pub fn with_host_tier(mut self, tier: Box<dyn HostTier>) -> Self {
        self.transfers = Some(Transfers::new(tier, &mut self.scheduler));
        self
    }

    /// Plans a step when the one before it is over, from now on, whatever the executor takes.
    pub fn take_one_step_at_a_time(&mut self) {
        self.most_in_flight = 1;
    }

    /// Measures evictions and loads from now on; to be called after [`Engine::with_host_tier`].
    pub fn set_clock(&mut self, clock: Clock) {
        self.scheduler.kv_mut().evictions_mut().set(clock);
        if let Some(transfers) = &mut self.transfers {
            transfers.loads_mut().set(clock);
        }
    }

    /// Durations since the last call, in nanoseconds: of evictions, and of prefixes on their way back from the host.
    pub fn take_durations(&mut self, evictions: &mut Vec<u64>, loads: &mut Vec<u64>) {
        self.scheduler.kv_mut().evictions_mut().take(evictions);
        if let Some(transfers) = &mut self.transfers {
            transfers.loads_mut().take(loads);
        }
    }

    /// Longest sequence, prompt and answer together.
    pub fn limit_tokens(&self) -> usize {
        self.scheduler.limit_tokens()
    }

    /// Entries of the logits.
    pub fn vocab(&self) -> usize {
        self.executor.facts().vocab
    }

    /// Never chooses ids from `known` on: a vocabulary that is padded beyond the tokenizer has logits that mean nothing.
    pub fn set_known_tokens(&mut self, known: usize) {
        self.scheduler.set_known_tokens(known);
    }

    /// What is done with drafts.
    pub fn drafts(&self) -> &DraftLimits {
        self.scheduler.drafts()
    }

    /// Something else is done with drafts from the next step on.
    pub fn set_drafts(&mut self, drafts: DraftLimits) {
        self.scheduler.set_drafts(drafts);
    }

    /// The state behind it, for reports and invariants.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// What runs the steps.
    pub fn executor(&self) -> &E {
        &self.executor
    }

    /// The same, to be changed.
    pub fn executor_mut(&mut self) -> &mut E {
        &mut self.executor
    }

    /// Queues a request, or refuses one that could never run.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, Refusal> {
        self.scheduler.submit(request)
    }

    /// Queues several, all or none. Those with the prompt of the first are read once and forked.
    pub fn submit_all(&mut self, requests: Vec<Request>) -> Result<Vec<RequestId>, Refusal> {
        self.scheduler.submit_all(requests)
    }

    /// Forgets what is kept of finished requests for later ones; false if requests are unfinished, and nothing is forgotten.
    pub fn flush(&mut self) -> bool {
        let is_resting = self.transfers.as_ref().is_none_or(|t| t.backups().is_empty());
        is_resting && self.in_flight.is_empty() && self.scheduler.flush()
    }

    /// What is kept so far was computed with other weights and is not used again. False while requests are unfinished.
    pub fn next_weights(&mut self) -> bool {
        self.in_flight.is_empty() && self.scheduler.next_weights()
    }

    /// Gives a request up; its last event follows. Unknown and finished requests are left alone.
    pub fn abort(&mut self, request: RequestId) {
        self.scheduler.abort(request, &mut self.events);
    }

    /// Advances by one action: moves pages from and to the host, submits what can be submitted, and asks for the output of
    /// the oldest step. An executor that runs a step inside `submit` is asked at once.
    pub fn step(&mut self) -> Progress {
        let mut moved = false;
        if let Some(transfers) = &mut self.transfers {
            // What the books say about memory has to be so before bytes are read or written.
            if let Err(error) = self.memory.apply(&mut self.scheduler, &mut self.executor) {
                return self.break_off(&error);
            }
            moved = transfers.advance(&mut self.scheduler, &mut self.executor);
        }
        let most = self.executor.in_flight_limit().clamp(1, self.most_in_flight);
        let mut has_news = false;
        while self.in_flight.len() < most {
            if let Some(step) = self.executor.spare() {
                self.scheduler.recycle(step);
            }
            let planned = self.scheduler.plan();
            has_news |= self.scheduler.take_planned(&mut self.events);
            let Some((step, shares)) = planned else { break };
            let is_ready = self.memory.apply(&mut self.scheduler, &mut self.executor);
            if let Err(error) = is_ready {
                self.scheduler.fail(&shares, &error.to_string(), &mut self.events);
                return self.break_off(&error);
            }
            let submitted = match &mut self.transfers {
                Some(transfers) if self.scheduler.waits_inside(&shares) => {
                    transfers.submit(&mut self.scheduler, &mut self.executor, step, &shares)
                }
                _ => self.executor.submit(step),
            };
            match submitted {
                Ok(ticket) => self.in_flight.push_back((ticket, shares)),
                Err(error) => {
                    self.scheduler.fail(&shares, &error.to_string(), &mut self.events);
                    return Progress::Worked;
                }
            }
        }
        let Some((ticket, shares)) = self.in_flight.pop_front() else {
            return self.without_step(moved || has_news);
        };
        match self.executor.poll(ticket) {
            Ok(None) => {
                self.in_flight.push_front((ticket, shares));
                return Progress::Waiting;
            }
            Ok(Some(mut output)) => {
                self.scheduler.absorb(&shares, &mut output, &mut self.events);
                self.executor.take_back(output);
            }
            Err(error) => {
                self.scheduler.fail(&shares, &error.to_string(), &mut self.events);
                if matches!(error, StepError::Cache(_)) {
                    return self.break_off(&error);
                }
            }
        }
        self.scheduler.recycle_shares(shares);
        Progress::Worked
    }

    /// Nothing is under way and nothing could be planned.
    fn without_step(&mut self, has_news: bool) -> Progress {
        let is_loading = self.scheduler.loading().next().is_some();
        if has_news || is_loading || self.scheduler.give_up(&mut self.events) {
            return Progress::Worked;
        }
        Progress::Idle
    }

    /// Whether pages are on their way to or from the host. While they are, calls bring them on although a step runs.
    pub fn is_moving(&mut self) -> bool {
        self.transfers.as_ref().is_some_and(|t| !t.backups().is_empty()) || self.scheduler.loading().next().is_some()
    }

    /// Picks up after an executor that broke off in the middle of a step: whatever runs ends with this text, nothing that was
    /// computed is kept, and requests that wait can start.
    pub fn recover(&mut self, text: &str) {
        self.in_flight.clear();
        self.scheduler.abandon_steps();
        self.scheduler.fail_all(text, &mut self.events);
    }

    /// Cache memory is not what the books say: nobody that uses it can go on.
    fn break_off(&mut self, error: &StepError) -> Progress {
        self.scheduler.fail_all(&error.to_string(), &mut self.events);
        Progress::Worked
    }

    /// Takes the events that have happened since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// The same into memory that the caller keeps.
    pub fn drain_events(&mut self, into: &mut Vec<Event>) {
        into.append(&mut self.events);
    }

    /// Checks every book; for tests and simulation, it looks at everything.
    pub fn check_books(&self) -> Result<(), String> {
        let backups = self.transfers.as_ref().map(Transfers::backups).unwrap_or_default();
        self.scheduler.check_books(&backups)
    }
}

/// What has to happen to cache memory, on its way to the executor.
#[derive(Debug, Default)]
struct Memory {
    ops: Vec<PageOp>,
    zeroed: Vec<PhysicalPage>,
    copied: Vec<(PhysicalPage, PhysicalPage)>,
}

impl Memory {
    /// Does what the books have written down, in order, runs of one sort together.
    fn apply<E: Executor>(&mut self, scheduler: &mut Scheduler, executor: &mut E) -> Result<(), StepError> {
        self.ops.clear();
        scheduler.kv_mut().pages_mut().take_ops(&mut self.ops);
        let sort = |op: &PageOp| match op {
            PageOp::Zero { kind, .. } => (*kind, true),
            PageOp::Copy { kind, .. } => (*kind, false),
        };
        let mut at = 0;
        while let Some((kind, zeroes)) = self.ops.get(at).map(sort) {
            self.zeroed.clear();
            self.copied.clear();
            while let Some(op) = self.ops.get(at).filter(|op| sort(op) == (kind, zeroes)) {
                match op {
                    PageOp::Zero { page, .. } => self.zeroed.push(*page),
                    PageOp::Copy { from, to, .. } => self.copied.push((*from, *to)),
                }
                at += 1;
            }
            if zeroes {
                executor.zero_pages(kind, &self.zeroed)?;
            } else {
                executor.copy_pages(kind, &self.copied)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod drafts_tests;
#[cfg(test)]
mod replay_tests;
#[cfg(test)]
mod tests;
