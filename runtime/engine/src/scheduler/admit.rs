//! Who starts, and when: exact room for prompts, some for answers, and patience with an end.

use super::{Scheduler, release};
use crate::kv::Prefix;
use crate::policy::{Candidate, order};
use crate::sequence::{Drafting, Sequence};
use crate::{Event, Policy};

/// Share of a possible answer for which room is set aside, in thousandths: at first, at least, and what a preemption adds.
pub(super) const HEADROOM_AT_FIRST: u32 = 500;
const HEADROOM_AT_LEAST: u32 = 100;
const HEADROOM_STEP: u32 = 250;
/// Answers longer than this set no more room aside.
const HEADROOM_TOKENS: usize = 4096;
/// Requests of the queue that are looked at.
const LOOKED_AT: usize = 128;
/// Steps after which requests that found no room are tried again although nothing happened.
const STEPS_BETWEEN: u64 = 16;

/// Pages of every kind, and virtual ones.
#[derive(Clone, Debug)]
pub(super) struct Need {
    pages: Vec<usize>,
    ids: usize,
}

impl Scheduler {
    /// Starts what can start.
    pub(super) fn admit(&mut self) {
        if self.counts.steps.is_multiple_of(STEPS_BETWEEN) {
            self.headroom = self.headroom.saturating_sub(1).max(HEADROOM_AT_LEAST);
            self.may_start = true;
        }
        if !std::mem::take(&mut self.may_start) || self.waiting.is_empty() {
            return;
        }
        self.still = None;
        loop {
            if self.running.len() >= self.most_running() && !self.may_replace() {
                return;
            }
            let mut candidates = self.candidates();
            let mut is_patient = candidates.iter().any(|c| c.passed >= self.limits.most_passed);
            order(self.limits.policy, self.limits.most_passed, &mut candidates);
            // Others have given way to this one already; nobody takes what they left.
            let first =
                self.awaited.and_then(|id| self.waiting.iter().position(|s| s.id == id && !self.waits_for_twin(s)));
            if let Some(place) = first {
                is_patient = true;
                candidates = vec![Candidate { place, priority: 0, cached_pages: 0, passed: 0 }];
            }
            let mut started = None;
            for candidate in &candidates {
                started = self.try_start(candidate.place);
                // Places have moved where somebody gave way in vain.
                if started.is_some() || is_patient || self.awaited.is_some() {
                    break;
                }
            }
            if started.is_some() {
                self.awaited = None;
            }
            let Some(place) = started else {
                // With nobody to wait for, only copies under way can be in the way: try again.
                self.may_start |= self.running.is_empty();
                return;
            };
            // Whoever stood before it was passed.
            self.waiting.iter_mut().take(place).for_each(|s| s.passed += 1);
        }
    }

    /// Most requests that may run: each of them may bring a row and want a token in the same step.
    pub fn most_running(&self) -> usize {
        let facts = &self.facts;
        self.limits.running.max(1).min(facts.max_sequences).min(facts.max_tokens).min(facts.max_wanted)
    }

    fn may_replace(&self) -> bool {
        let least = self.running.iter().filter(|s| !s.ended && s.in_flight == 0).map(|s| s.request.priority).min();
        let most = self.waiting.iter().take(LOOKED_AT).map(|s| s.request.priority).max();
        self.limits.policy == Policy::Priority && least < most && least.is_some()
    }

    fn candidates(&self) -> Vec<Candidate> {
        let candidate = |(place, s): (usize, &Sequence)| {
            let looks = self.limits.policy == Policy::LongestPrefix;
            let cached_pages = if looks { self.find(s).pages() } else { 0 };
            Candidate { place, priority: s.request.priority, cached_pages, passed: s.passed }
        };
        let able = self.waiting.iter().enumerate().take(LOOKED_AT).filter(|(_, s)| !self.waits_for_twin(s));
        able.map(candidate).collect()
    }

    /// Whether the request that it is forked from waits itself, or is still reading.
    fn waits_for_twin(&self, s: &Sequence) -> bool {
        let Some(twin) = s.twin else { return false };
        let reads = |l: &Sequence| l.id == twin && !l.ended && (l.done < l.request.prompt.len() || !l.loads.is_empty());
        self.waiting.iter().any(|l| l.id == twin) || self.running.iter().any(reads)
    }

    /// What of a sequence is cached.
    fn find(&self, s: &Sequence) -> Prefix {
        self.kv.find(&s.request.namespace, &s.tokens, s.most_cached())
    }

    fn try_start(&mut self, mut place: usize) -> Option<usize> {
        let sequence = self.waiting.get(place)?;
        let id = sequence.id;
        let leader = self.running.iter().position(|s| Some(s.id) == sequence.twin && !s.ended);
        if let Some(at) = leader.filter(|_| sequence.cached.is_none() && self.running.len() < self.most_running())
            && self.fork(place, at)
        {
            return Some(place);
        }
        let sequence = self.waiting.get(place)?;
        let mut prefix = self.find(sequence);
        while !self.may_run(place, &prefix) {
            // A lower priority gives way to a higher one.
            let priority = self.waiting.get(place).map_or(i32::MIN, |s| s.request.priority);
            let gives_way = self.least(|s| s.request.priority < priority);
            let at = gives_way.filter(|_| self.limits.policy == Policy::Priority)?;
            self.preempt(at);
            self.sweep_preempted();
            self.still = None;
            self.awaited = Some(id);
            // Whoever gave way may wait before it now.
            place = self.waiting.iter().position(|s| s.id == id).unwrap_or(place);
            let sequence = self.waiting.get(place)?;
            prefix = self.find(sequence);
        }
        let mut loads = Vec::new();
        let table = self.kv.take(&prefix, &mut loads)?;
        let mut sequence = self.waiting.remove(place)?;
        let page_tokens = self.kv.pages().page_tokens();
        let cached = prefix.pages() * page_tokens;
        (sequence.done, sequence.fed, sequence.kept_pages) = (cached, cached, prefix.pages());
        sequence.branch = prefix.whole_pages() * page_tokens;
        let room = sequence.cache_tokens().div_ceil(page_tokens);
        sequence.table = table;
        std::sync::Arc::make_mut(&mut sequence.table.pages).reserve(room.min(1 << 16).saturating_sub(prefix.pages()));
        // What is not on the device yet is not there for others either.
        if !loads.is_empty() {
            sequence.kept_pages = 0;
        }
        (sequence.loads, sequence.loads_since) = (loads, self.counts.steps);
        self.running.push(sequence);
        self.still = None;
        let at = self.running.len() - 1;
        if self.running.last().is_some_and(|s| s.loads.is_empty()) {
            self.started(at);
        }
        Some(place)
    }

    /// Starts a request from the pages of its twin, which has read the prompt.
    fn fork(&mut self, place: usize, at: usize) -> bool {
        let Some(sequence) = self.waiting.get(place) else { return false };
        let tokens = sequence.request.prompt.len() - 1;
        let page_tokens = self.kv.pages().page_tokens();
        let need = self.need(sequence, tokens / page_tokens, tokens / page_tokens, true);
        if tokens == 0 || !self.fits_beside(&need, &Prefix::default()) {
            return false;
        }
        let Some(leader) = self.running.get(at).filter(|leader| leader.done >= tokens) else { return false };
        let Some(table) = self.kv.fork(&leader.table, tokens) else { return false };
        let Some(mut sequence) = self.waiting.remove(place) else { return false };
        (sequence.done, sequence.fed, sequence.kept_pages) = (tokens, tokens, tokens / page_tokens);
        sequence.table = table;
        self.counts.forked += 1;
        self.running.push(sequence);
        self.still = None;
        self.started(self.running.len() - 1);
        true
    }

    /// A sequence has everything that it starts with.
    pub(super) fn started(&mut self, at: usize) {
        self.keep(at, usize::MAX);
        let page_tokens = self.kv.pages().page_tokens();
        let Some(sequence) = self.running.get_mut(at) else { return };
        if sequence.cached.is_none() {
            let cached_tokens = sequence.done / page_tokens * page_tokens;
            sequence.cached = Some(cached_tokens);
            self.planned.push(Event::Started { request: sequence.id, cached_tokens });
        }
    }

    /// Whether a request with this prefix may run beside the others.
    fn may_run(&mut self, place: usize, prefix: &Prefix) -> bool {
        let Some(sequence) = self.waiting.get(place) else { return false };
        if self.running.is_empty() {
            // Alone it always fits: that was made sure when it came.
            return true;
        }
        if self.running.len() >= self.most_running() {
            return false;
        }
        let mut need = self.need(sequence, prefix.pages(), prefix.pages(), true);
        need.pages.iter_mut().zip(&prefix.takes).for_each(|(pages, takes)| *pages += takes);
        need.ids += prefix.from_host;
        self.fits_beside(&need, prefix)
    }

    /// Whether so much fits beside what those that run will still need.
    fn fits_beside(&mut self, need: &Need, prefix: &Prefix) -> bool {
        let still = self.still.take().unwrap_or_else(|| self.still_needed());
        let pages: Vec<usize> = need.pages.iter().zip(&still.pages).map(|(a, b)| a + b).collect();
        let fits = self.kv.has_room(&pages, need.ids + still.ids, prefix);
        self.still = Some(still);
        fits
    }

    /// What those that run will still need. It is asked for once for all requests that are tried in a row.
    fn still_needed(&self) -> Need {
        let mut sum = Need { pages: vec![0; self.kv.pages().kinds()], ids: 0 };
        for other in self.running.iter().filter(|s| !s.ended) {
            let held = other.table.pages.len();
            let still = self.need(other, held, held, false);
            sum.pages.iter_mut().zip(&still.pages).for_each(|(a, b)| *a += b);
            sum.ids += still.ids;
        }
        sum
    }

    /// Pages that a sequence will need besides the first `whole` that it has: its prompt, a part of its answer, and of
    /// windows as much as they span. `reaches` says how far the windows that it has reach.
    fn need(&self, s: &Sequence, whole: usize, reaches: usize, is_new: bool) -> Need {
        let pages = self.kv.pages();
        let page_tokens = pages.page_tokens();
        let left = s.limit.saturating_sub(s.tokens.len()).min(HEADROOM_TOKENS);
        let share = if s.request.stop.is_empty() && s.request.constraint.is_none() { 1000 } else { self.headroom };
        let answer = (left * share as usize).div_ceil(1000);
        let target = (s.tokens.len() + answer).min(s.cache_tokens());
        let all = target.div_ceil(page_tokens).max(whole);
        let unread = s.request.prompt.len().saturating_sub(if is_new { whole * page_tokens } else { s.fed });
        let chunk = unread.min(self.step_tokens()).div_ceil(page_tokens);
        let of_kind = |k: usize| match pages.window(k) {
            None => all - whole,
            Some(_) => {
                let from = if is_new {
                    self.kv.first_kept(k, reaches * page_tokens)
                } else {
                    s.table.window_from.get(k).copied().unwrap_or(0)
                };
                let held = reaches.saturating_sub(from);
                (pages.least_pages(k, target) + 1 + chunk).min(all.saturating_sub(from)).saturating_sub(held)
            }
        };
        Need { pages: (0..pages.kinds()).map(of_kind).collect(), ids: all - whole }
    }

    /// The sequence with the least to lose among those that may give way: the lowest priority, then the shortest answer,
    /// then the longest prompt, then the latest.
    pub(super) fn least(&self, may: impl Fn(&Sequence) -> bool) -> Option<usize> {
        let candidates =
            self.running.iter().enumerate().filter(|(_, s)| !s.ended && !s.is_out && s.in_flight == 0 && may(s));
        let key =
            |s: &Sequence| (s.request.priority, s.answer_tokens(), std::cmp::Reverse((s.request.prompt.len(), s.id)));
        candidates.min_by_key(|(_, s)| key(s)).map(|(at, _)| at)
    }

    /// Takes a sequence's pages; it waits at the head of the queue and is computed again. It keeps its place among those
    /// that run until [`Scheduler::sweep_preempted`], so that places stay what they are.
    pub(super) fn preempt(&mut self, at: usize) {
        self.keep(at, usize::MAX);
        self.counts.preempted += 1;
        self.headroom = (self.headroom + HEADROOM_STEP).min(1000);
        if let Some(sequence) = self.running.get_mut(at) {
            release(&mut self.kv, sequence);
            (sequence.done, sequence.fed, sequence.kept_pages) = (0, 0, 0);
            sequence.drafting = Drafting::Idle;
            sequence.is_out = true;
            self.has_preempted = true;
        }
    }

    /// Moves those that were preempted to the queue, in the order of their arrival.
    pub(super) fn sweep_preempted(&mut self) {
        while let Some(at) = self.running.iter().position(|s| s.is_out) {
            let mut sequence = self.running.remove(at);
            sequence.is_out = false;
            let place = self.waiting.iter().position(|s| s.id > sequence.id).unwrap_or(self.waiting.len());
            self.waiting.insert(place, sequence);
        }
    }

    /// The same for one whose prefix did not come.
    pub(super) fn back_to_queue(&mut self, at: usize) {
        if let Some(sequence) = self.running.get_mut(at) {
            release(&mut self.kv, sequence);
            (sequence.done, sequence.fed, sequence.kept_pages) = (0, 0, 0);
            sequence.is_out = true;
            self.has_preempted = true;
        }
        self.sweep_preempted();
        self.may_start = true;
    }

    /// Most rows of a step.
    pub(super) fn step_tokens(&self) -> usize {
        self.limits.step_tokens.unwrap_or(usize::MAX).clamp(1, self.facts.max_tokens)
    }
}
