//! The engine: a scheduler that drives an executor.

use crate::{Event, Executor, Limits, Refusal, Request, RequestId, Scheduler, Shares, Ticket};

/// What a call of [`Engine::step`] found to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing to compute: no request is unfinished.
    Idle,
    /// A step was submitted or its output taken.
    Worked,
    /// The step under way is not done.
    Waiting,
}

/// Requests in, events out. Call [`Engine::step`] until it says [`Progress::Idle`].
pub struct Engine<E: Executor> {
    executor: E,
    scheduler: Scheduler,
    in_flight: Option<(Ticket, Shares)>,
    events: Vec<Event>,
}

impl<E: Executor> Engine<E> {
    /// An engine over an executor. The text of an error names what in the executor's facts cannot work.
    pub fn new(executor: E, limits: Limits) -> Result<Self, String> {
        let scheduler = Scheduler::new(executor.facts().clone(), limits)?;
        Ok(Engine { executor, scheduler, in_flight: None, events: Vec::new() })
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

    /// The state behind it, for reports and invariants.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Queues a request, or refuses one that could never run.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, Refusal> {
        self.scheduler.submit(request)
    }

    /// Forgets what is kept of finished requests for later ones; false if requests are unfinished, and nothing is forgotten.
    /// Nothing is kept yet.
    pub fn flush(&mut self) -> bool {
        self.in_flight.is_none() && self.scheduler.unfinished() == 0
    }

    /// Gives a request up; its last event follows. Unknown and finished requests are left alone.
    pub fn abort(&mut self, request: RequestId) {
        self.scheduler.abort(request, self.in_flight.is_some(), &mut self.events);
    }

    /// Advances by one action: submits the next step, or asks for the output of the one under way. An executor that
    /// runs a step inside `submit` is asked at once.
    pub fn step(&mut self) -> Progress {
        if self.in_flight.is_none() {
            let planned = self.scheduler.plan();
            let has_news = self.scheduler.take_planned(&mut self.events);
            let Some((step, shares)) = planned else {
                return if has_news { Progress::Worked } else { Progress::Idle };
            };
            match self.executor.submit(step) {
                Ok(ticket) => self.in_flight = Some((ticket, shares)),
                Err(error) => {
                    self.scheduler.fail(&shares, &error.to_string(), &mut self.events);
                    return Progress::Worked;
                }
            }
        }
        let Some((ticket, shares)) = self.in_flight.take() else { return Progress::Idle };
        match self.executor.poll(ticket) {
            Ok(None) => {
                self.in_flight = Some((ticket, shares));
                return Progress::Waiting;
            }
            Ok(Some(output)) => self.scheduler.absorb(&shares, output, &mut self.events),
            Err(error) => self.scheduler.fail(&shares, &error.to_string(), &mut self.events),
        }
        Progress::Worked
    }

    /// Takes the events that have happened since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}

#[cfg(test)]
mod tests;
