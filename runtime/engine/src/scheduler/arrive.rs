//! Requests whose prefix comes from the host: who waits, who joins a step, and what becomes of what did not come.

use super::{Scheduler, Shares};
use crate::arrivals::{Arrival, Expected, comes_in_time};
use crate::sequence::Sequence;

impl Scheduler {
    /// Sequences whose prefix is on its way.
    pub(crate) fn loading(&mut self) -> impl Iterator<Item = (usize, &mut Sequence)> {
        self.running.iter_mut().enumerate().filter(|(_, s)| is_loading(s))
    }

    /// The same by its place.
    pub(crate) fn loading_at(&mut self, at: usize) -> Option<&mut Sequence> {
        self.running.get_mut(at).filter(|s| is_loading(s))
    }

    /// A prefix is whole, or is lost before any step had rows behind it.
    pub(crate) fn loaded(&mut self, at: usize, is_good: bool) {
        if is_good {
            return self.arrived(at, true);
        }
        let Some(sequence) = self.running.get(at) else { return };
        self.kv.lose_copies(&sequence.loads);
        self.back_to_queue(at);
    }

    /// Lets a request join the next step if the rest of its prefix will come while it runs. `layers` are those of all kinds.
    pub(crate) fn may_join(&mut self, at: usize, layers: usize) {
        let planned = self.counts.steps;
        let Some(sequence) = self.loading_at(at) else { return };
        if comes_in_time(sequence.came.place, layers, planned - sequence.loads_since) {
            sequence.arrival = Arrival::Joins;
        }
    }

    /// Whether a planned step has rows behind a prefix that is not there yet.
    pub(crate) fn waits_inside(&self, shares: &Shares) -> bool {
        self.joined(shares).next().is_some()
    }

    /// What a planned step waits for while it runs.
    pub(crate) fn expected(&self, shares: &Shares) -> Vec<Expected> {
        let pages = self.kv.pages();
        let of = |(at, s): (usize, &Sequence)| Expected {
            at,
            loads: s.loads.clone(),
            pages: s.loads.iter().map(|load| pages.physical(load.kind, load.page)).collect(),
            came: s.came,
            announced: s.announced,
            is_lost: false,
        };
        self.joined(shares).map(of).collect()
    }

    fn joined(&self, shares: &Shares) -> impl Iterator<Item = (usize, &Sequence)> {
        let of = |part| self.place(part).and_then(|at| Some((at, self.running.get(at)?)));
        shares.parts.iter().filter_map(of).filter(|(_, s)| is_loading(s))
    }

    /// A prefix came whole while a step runs that has rows behind it, or it did not.
    pub(crate) fn arrived(&mut self, at: usize, is_good: bool) {
        let Some(sequence) = self.running.get_mut(at) else { return };
        if !is_good {
            // What the step says of it is nobody's; when it is over the request is read again.
            sequence.arrival = Arrival::Lost;
            self.kv.lose_copies(&sequence.loads);
            return;
        }
        self.counts.joined += u64::from(sequence.in_flight > 0);
        for load in sequence.loads.drain(..) {
            self.kv.load_over(&load);
        }
        self.started(at);
    }

    /// A step is over that had rows behind a prefix that was lost: whether this is one of those, which then waits again.
    pub(super) fn is_lost(&mut self, at: usize) -> bool {
        let Some(sequence) = self.running.get(at).filter(|s| s.arrival == Arrival::Lost) else { return false };
        if sequence.in_flight == 0 {
            self.back_to_queue(at);
        }
        true
    }
}

/// Whether layers of its prefix are still to come.
fn is_loading(s: &Sequence) -> bool {
    !s.ended && !s.loads.is_empty() && s.arrival != Arrival::Lost
}
