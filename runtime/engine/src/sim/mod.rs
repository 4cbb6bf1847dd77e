//! The `sim` executor: the real scheduler, cache, tree and host tier over a device that only takes time.
//!
//! Time is virtual: a [`Clock`] that moves when somebody moves it. What a step says comes from another executor, which
//! answers at once; [`Sim`] holds the answer back until the step's time is over. With the toy executor of the tests inside every page
//! and token is checked; with [`Blank`] inside nothing is computed, and the sizes may be those of the largest model.
//! How long a step takes is a [`StepTime`]: a closure, or a target's cost model ([`CostModel`]).

mod blank;
mod cost;
mod predict;
mod tier;

use crate::{Arrivals, Executor, ExecutorFacts, PhysicalPage, Step, StepError, StepOutput, Ticket};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use blank::{Blank, STAND_IN};
pub use cost::CostModel;
pub use predict::Predicted;
pub use tier::{Link, TimedTier};

/// Virtual time in nanoseconds since the start. Clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    /// Now.
    pub fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Now, in seconds.
    pub fn seconds(&self) -> f64 {
        self.now_ns() as f64 / 1e9
    }

    /// Moves forward; time never goes back.
    pub fn advance_to(&self, ns: u64) {
        self.0.fetch_max(ns, Ordering::Relaxed);
    }

    /// Moves on by so much.
    pub fn advance_by(&self, ns: u64) {
        self.0.fetch_add(ns, Ordering::Relaxed);
    }
}

/// How long steps take.
pub trait StepTime: Send {
    /// Seconds from a step's start to its end, with the device to itself.
    fn seconds(&mut self, step: &Step) -> f64;
}

impl<F: FnMut(&Step) -> f64 + Send> StepTime for F {
    fn seconds(&mut self, step: &Step) -> f64 {
        self(step)
    }
}

/// An executor whose steps take virtual time.
pub struct Sim<C> {
    content: C,
    time: Box<dyn StepTime>,
    clock: Clock,
    most_in_flight: usize,
    takes_arrivals: bool,
    /// Steps under way with the time at which each is done, ascending.
    under_way: VecDeque<(Ticket, u64)>,
    free_at_ns: u64,
    busy_ns: u64,
}

impl<C: Executor> Sim<C> {
    /// Answers of `content`, which must be there at once, after the time that `time` gives.
    pub fn new(content: C, time: Box<dyn StepTime>, clock: Clock) -> Self {
        let (under_way, free_at_ns, busy_ns) = (VecDeque::new(), 0, 0);
        Sim { content, time, clock, most_in_flight: 2, takes_arrivals: true, under_way, free_at_ns, busy_ns }
    }

    /// How many steps may be under way; two if nothing else is said.
    pub fn set_in_flight(&mut self, most: usize) {
        self.most_in_flight = most.max(1);
    }

    /// Whether layers of a prefix may come while a step runs; they may if nothing else is said.
    pub fn set_arrivals(&mut self, inside: bool) {
        self.takes_arrivals = inside;
    }

    /// What answers.
    pub fn content_mut(&mut self) -> &mut C {
        &mut self.content
    }

    /// Its clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// How long a step takes by itself.
    fn takes_ns(&mut self, step: &Step) -> u64 {
        (self.time.seconds(step).max(0.0) * 1e9).min(1e18) as u64
    }

    fn ends_at(&mut self, ticket: Ticket, took_ns: u64, end_ns: u64) -> Ticket {
        self.free_at_ns = end_ns;
        self.busy_ns += took_ns;
        self.under_way.push_back((ticket, end_ns));
        ticket
    }

    /// When the next step is done, if one is under way.
    pub fn next_done_ns(&self) -> Option<u64> {
        self.under_way.front().map(|(_, at)| *at)
    }

    /// How long steps have run so far, in seconds; those under way count in full.
    pub fn busy_seconds(&self) -> f64 {
        self.busy_ns as f64 / 1e9
    }
}

impl<C: Executor> Executor for Sim<C> {
    fn facts(&self) -> &ExecutorFacts {
        self.content.facts()
    }

    fn submit(&mut self, step: Step) -> Result<Ticket, StepError> {
        let took_ns = self.takes_ns(&step);
        let ticket = self.content.submit(step)?;
        let start = self.free_at_ns.max(self.clock.now_ns());
        Ok(self.ends_at(ticket, took_ns, start + took_ns))
    }

    fn takes_arrivals(&self) -> bool {
        self.takes_arrivals
    }

    /// A step's time is that of its layers, all alike; each of them begins when the one before it is over and its pages
    /// are there.
    fn submit_with(&mut self, step: Step, arrivals: &mut dyn Arrivals) -> Result<Ticket, StepError> {
        let took_ns = self.takes_ns(&step);
        let layers = arrivals.order().len() as u64;
        let mut end = self.free_at_ns.max(self.clock.now_ns());
        for at in 0..layers {
            let Some((kind, layer)) = arrivals.order().get(at as usize).copied() else { break };
            let put = &mut |page: PhysicalPage, bytes: &[u8]| self.content.write_layer(kind, layer, page, bytes);
            let there = arrivals.take(kind, layer, put);
            end = end.max(there) + took_ns * (at + 1) / layers - took_ns * at / layers;
        }
        let ticket = self.content.submit(step)?;
        Ok(self.ends_at(ticket, took_ns, end))
    }

    fn poll(&mut self, ticket: Ticket) -> Result<Option<StepOutput>, StepError> {
        let Some(place) = self.under_way.iter().position(|(t, _)| *t == ticket) else {
            return self.content.poll(ticket);
        };
        if self.under_way.get(place).is_some_and(|(_, at)| *at > self.clock.now_ns()) {
            return Ok(None);
        }
        let answer = self.content.poll(ticket);
        if !matches!(answer, Ok(None)) {
            self.under_way.remove(place);
        }
        answer
    }

    fn in_flight_limit(&self) -> usize {
        self.most_in_flight
    }

    fn copy_pages(&mut self, kind: usize, pages: &[(PhysicalPage, PhysicalPage)]) -> Result<(), StepError> {
        self.content.copy_pages(kind, pages)
    }

    fn zero_pages(&mut self, kind: usize, pages: &[PhysicalPage]) -> Result<(), StepError> {
        self.content.zero_pages(kind, pages)
    }

    fn read_layer(
        &mut self,
        kind: usize,
        layer: usize,
        page: PhysicalPage,
        out: &mut Vec<u8>,
    ) -> Result<(), StepError> {
        self.content.read_layer(kind, layer, page, out)
    }

    fn write_layer(&mut self, kind: usize, layer: usize, page: PhysicalPage, bytes: &[u8]) -> Result<(), StepError> {
        self.content.write_layer(kind, layer, page, bytes)
    }

    fn spare(&mut self) -> Option<Step> {
        self.content.spare()
    }

    fn take_back(&mut self, output: StepOutput) {
        self.content.take_back(output);
    }
}

#[cfg(test)]
mod tests;
