//! Finds the next match of competing patterns in text that comes in pieces.
//!
//! The earliest start wins, then the longest match; inside one pattern its own preferences decide, as in any
//! regular expression. Every byte is read once by each automaton, and all places where a match may have begun run
//! side by side, so the work is linear in the text.

use super::pattern::{Pattern, PatternSet};
use regex_automata::util::primitives::StateID;

/// A match; places are offsets in the whole text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Which pattern of the set.
    pub pattern: usize,
    /// First byte.
    pub start: usize,
    /// Behind the last byte.
    pub end: usize,
}

/// Where a search stands.
#[derive(Debug)]
pub(crate) struct Scan {
    lists: Vec<Threads>,
    /// Offset of the next byte to read.
    pub pos: usize,
    best: Option<Found>,
    live: usize,
    /// Whether a match may begin at later places too.
    moving: bool,
    stack: Vec<StateID>,
}

#[derive(Debug)]
struct Threads {
    /// Automaton states and where their match began, the preferred first.
    live: Vec<(StateID, usize)>,
    next: Vec<(StateID, usize)>,
    seen: Vec<u32>,
    round: u32,
    best: Option<(usize, usize)>,
}

impl Threads {
    fn new(pattern: &Pattern) -> Self {
        let seen = vec![0; pattern.states()];
        Threads { live: Vec::new(), next: Vec::new(), seen, round: 0, best: None }
    }

    fn step(&mut self, pattern: &Pattern, byte: u8, at: usize, begin: bool, stack: &mut Vec<StateID>) {
        if self.live.is_empty() && !(begin && pattern.first[usize::from(byte)]) {
            return;
        }
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            self.seen.fill(0);
            self.round = 1;
        }
        self.next.clear();
        for (state, start) in &self.live {
            if let Some(state) = pattern.step(*state, byte) {
                pattern.close(state, *start, self.round, &mut self.seen, &mut self.next, stack);
            }
        }
        if begin {
            for state in pattern.start() {
                if let Some(state) = pattern.step(*state, byte) {
                    pattern.close(state, at, self.round, &mut self.seen, &mut self.next, stack);
                }
            }
        }
        // A match ends everything that is less preferred.
        if let Some(i) = self.next.iter().position(|(state, _)| pattern.is_match(*state)) {
            self.best = self.next.get(i).map(|(_, start)| (*start, at + 1));
            self.next.truncate(i);
        }
        std::mem::swap(&mut self.live, &mut self.next);
    }
}

impl Scan {
    /// A search from `pos` on.
    pub fn new(set: &PatternSet, pos: usize) -> Self {
        let lists = set.patterns.iter().map(Threads::new).collect();
        Scan { lists, pos, best: None, live: 0, moving: true, stack: Vec::new() }
    }

    /// A search for a match that begins at `pos` and nowhere else.
    pub fn at(set: &PatternSet, pos: usize) -> Self {
        Scan { moving: false, ..Scan::new(set, pos) }
    }

    /// Reads on; `bytes` begins at offset `base` and reaches at least to the place read last.
    pub fn feed(&mut self, set: &PatternSet, bytes: &[u8], base: usize) -> Option<Found> {
        let from = self.pos;
        while let Some(rest) = bytes.get(self.pos.saturating_sub(base)..).filter(|rest| !rest.is_empty()) {
            let mut skipped = 0;
            if self.live == 0 {
                if let Some(best) = self.best {
                    return Some(best);
                }
                if self.moving {
                    skipped = rest.iter().position(|b| set.first[usize::from(*b)]).unwrap_or(rest.len());
                } else if self.pos != from {
                    return None;
                }
            }
            let at = self.pos + skipped;
            let Some(byte) = rest.get(skipped) else {
                self.pos = at;
                break;
            };
            self.step(set, *byte, at);
            self.pos = at + 1;
        }
        self.best.filter(|_| self.live == 0)
    }

    fn step(&mut self, set: &PatternSet, byte: u8, at: usize) {
        let begin = self.best.is_none() && (self.moving || self.live == 0);
        self.live = 0;
        for (threads, pattern) in self.lists.iter_mut().zip(&set.patterns) {
            threads.step(pattern, byte, at, begin, &mut self.stack);
            self.live += threads.live.len();
        }
        let found = self
            .lists
            .iter()
            .enumerate()
            .filter_map(|(pattern, threads)| threads.best.map(|(start, end)| Found { pattern, start, end }));
        self.best = found.min_by_key(|f| (f.start, std::cmp::Reverse(f.end)));
        // What began behind the best match has lost.
        if let Some(best) = self.best {
            self.live = 0;
            for threads in &mut self.lists {
                threads.live.retain(|(_, start)| *start <= best.start);
                self.live += threads.live.len();
            }
        }
    }

    /// The match, if no more text comes.
    pub fn at_end(&self) -> Option<Found> {
        self.best
    }

    /// Whether a match may be under way.
    pub fn undecided(&self) -> bool {
        self.live > 0 || self.best.is_some()
    }

    /// Offset before which no match can begin.
    pub fn certain(&self) -> usize {
        let starts = self.lists.iter().flat_map(|t| t.live.iter().map(|(_, start)| *start));
        starts.chain(self.best.map(|best| best.start)).min().unwrap_or(self.pos)
    }
}
