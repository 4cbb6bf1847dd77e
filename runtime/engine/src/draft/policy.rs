//! How many rows a block has: what drafts gain, from what was accepted, against what they cost.
//!
//! Acceptance is kept per slot as the share of drafts that stood among those that were reached, an average in which the
//! past fades. A new request starts with what requests lately had. A request whose drafts do not pay goes on without them
//! and tries one block again after some tokens; each try in vain doubles the pause.

use super::{AcceptRule, DraftCosts};

/// Largest block that anything here keeps statistics of.
pub const MOST_ROWS: usize = 64;
/// Tokens without drafts before the first try, and most before any.
const FIRST_PAUSE: usize = 16;
const LONGEST_PAUSE: usize = 256;
/// Rows of a try.
const TRY_ROWS: usize = 4;
/// Weight of the newest block in a request's average, and in that of all.
const NEW: f64 = 0.25;
const NEW_OF_ALL: f64 = 0.02;
/// Share that is hoped for before anything was drafted.
const HOPED: f64 = 0.8;
/// By how much drafts must win.
const MARGIN: f64 = 1.02;

/// What is wanted of drafts.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftLimits {
    /// Most rows of a block, the anchor among them; 0 and 1 switch drafts off, `None` takes as many as the executor does.
    pub rows: Option<usize>,
    /// How drafts are accepted.
    pub rule: AcceptRule,
    /// What steps take. Without it every block has as many rows as it may.
    pub costs: Option<DraftCosts>,
    /// Whether every block has as many rows as it may, whatever steps take.
    pub is_fixed: bool,
    /// Commits so many tokens a block on average, whatever the model says: for benchmarks, the text is meaningless.
    pub forced: Option<f64>,
    /// Whether the path through the candidates that the drafter chose is taken; if not, each slot's first candidate is.
    pub selects: bool,
}

impl Default for DraftLimits {
    /// Blocks as long as they may be, on the drafter's path.
    fn default() -> Self {
        DraftLimits {
            rows: None,
            rule: AcceptRule::default(),
            costs: None,
            is_fixed: false,
            forced: None,
            selects: true,
        }
    }
}

/// How often the drafts of a slot stood when they were reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Acceptance(Vec<f64>);

impl Default for Acceptance {
    fn default() -> Self {
        Acceptance(vec![HOPED])
    }
}

impl Acceptance {
    /// A block with `slots` drafts, of which the first `accepted` stood.
    pub fn learn(&mut self, slots: usize, accepted: usize) {
        self.update(slots, accepted, NEW);
    }

    fn update(&mut self, slots: usize, accepted: usize, weight: f64) {
        let reached = slots.min(accepted + 1).min(MOST_ROWS);
        for slot in 0..reached {
            self.one(slot, if slot < accepted { 1.0 } else { 0.0 }, weight);
        }
        // Nobody asked the next slot. Where all before it stood it may have stood too.
        if accepted >= slots && slots > 0 && slots < MOST_ROWS {
            self.one(slots, 1.0, weight / 2.0);
        }
    }

    fn one(&mut self, slot: usize, stood: f64, weight: f64) {
        while self.0.len() <= slot {
            self.0.push(self.of(self.0.len()));
        }
        if let Some(share) = self.0.get_mut(slot) {
            *share += weight * (stood - *share);
        }
    }

    /// A slot's share; of one that was never reached, the last known one's.
    pub fn of(&self, slot: usize) -> f64 {
        self.0.get(slot).or(self.0.last()).copied().unwrap_or(HOPED)
    }

    /// Tokens that a block of so many rows commits on average.
    pub fn expected(&self, rows: usize) -> f64 {
        let mut reached = 1.0;
        let mut sum = 1.0;
        for slot in 0..rows.saturating_sub(1) {
            reached *= self.of(slot);
            sum += reached;
        }
        sum
    }
}

/// Where one request stands.
#[derive(Clone, Debug, Default)]
pub struct Habit {
    pub acceptance: Acceptance,
    /// Number of tokens before which it brings no block.
    pub plain_until: usize,
    pause: usize,
    /// Its next block is a try.
    tries: bool,
}

/// What the requests of a step do.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Rows of each block; below 2 there is none.
    pub rows: usize,
    /// For each request whether it brings a block.
    pub takes_part: Vec<bool>,
}

/// The policy and what it has learnt from all requests.
#[derive(Clone, Debug, Default)]
pub struct DraftPolicy {
    all: Acceptance,
}

impl DraftPolicy {
    /// What a new request starts with.
    pub fn newcomer(&self) -> Habit {
        Habit { acceptance: self.all.clone(), ..Habit::default() }
    }

    /// Learns from a block of anybody.
    pub fn learn(&mut self, habit: &mut Habit, slots: usize, accepted: usize) {
        habit.acceptance.learn(slots, accepted);
        self.all.update(slots, accepted, NEW_OF_ALL);
    }

    /// Rows of the next blocks of these requests, of `sizes` (ascending) at most `most`.
    pub fn choose(&self, limits: &DraftLimits, habits: &[&Habit], sizes: &[usize], most: usize) -> Choice {
        let sizes: Vec<usize> = sizes.iter().copied().filter(|rows| *rows >= 2 && *rows <= most).collect();
        let none = Choice { rows: 1, takes_part: vec![false; habits.len()] };
        let Some(largest) = sizes.last().copied() else { return none };
        let Some(costs) = limits.costs.as_ref().filter(|_| limits.forced.is_none() && !limits.is_fixed) else {
            return Choice { rows: largest, takes_part: vec![true; habits.len()] };
        };
        let n = habits.len();
        let mut best = (1, n as f64 / costs.round(n, 0, 1).max(1e-12) * MARGIN);
        for rows in &sizes {
            let tokens: f64 = habits.iter().map(|h| h.acceptance.expected(*rows)).sum();
            let rate = tokens / costs.round(n, n, *rows).max(1e-12);
            if rate > best.1 {
                best = (*rows, rate);
            }
        }
        let (rows, rate) = best;
        let gains = |habit: &Habit| {
            let more = costs.round(n, n, rows) - costs.round(n, n - 1, rows);
            rows >= 2 && habit.acceptance.expected(rows) - 1.0 >= rate * more
        };
        let mut takes_part: Vec<bool> = habits.iter().map(|h| gains(h)).collect();
        if rows >= 2 && !takes_part.contains(&true) {
            // Together they pay, and none is worse than the others.
            takes_part.fill(true);
        }
        let tries: Vec<bool> = habits.iter().map(|h| h.tries).collect();
        if rows < 2 && tries.contains(&true) {
            let small = sizes.iter().copied().find(|rows| *rows >= TRY_ROWS).unwrap_or(largest);
            return Choice { rows: small, takes_part: tries };
        }
        takes_part.iter_mut().zip(tries).for_each(|(takes, tries)| *takes |= tries && rows >= 2);
        Choice { rows, takes_part }
    }
}

impl Habit {
    /// It brings a block. If that is no try, drafts pay again.
    pub fn drafts(&mut self) {
        if !std::mem::take(&mut self.tries) {
            self.pause = 0;
        }
    }

    /// It goes on without drafts for some tokens, then tries a block again.
    pub fn rests(&mut self, tokens: usize) {
        self.pause = (2 * self.pause).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.plain_until = tokens + self.pause;
        self.tries = true;
    }
}

#[cfg(test)]
mod tests {
    use super::super::Line;
    use super::*;

    fn habit(share: f64) -> Habit {
        Habit { acceptance: Acceptance(vec![share]), ..Habit::default() }
    }

    /// A row more costs `each` of a step of one row; drafting costs as much as half such a step.
    fn limits(each: f64) -> DraftLimits {
        let forward = Line::new(vec![(1, 1.0), (101, 1.0 + 100.0 * each)]);
        DraftLimits { costs: Some(DraftCosts { forward, draft: Line::new(vec![(1, 0.5)]) }), ..DraftLimits::default() }
    }

    fn rows(each: f64, shares: &[f64], most: usize) -> (usize, Vec<bool>) {
        let habits: Vec<Habit> = shares.iter().map(|s| habit(*s)).collect();
        let habits: Vec<&Habit> = habits.iter().collect();
        let choice = DraftPolicy::default().choose(&limits(each), &habits, &[2, 4, 8, 16], most);
        (choice.rows, choice.takes_part)
    }

    #[test]
    fn blocks_are_as_long_as_they_pay() {
        assert_eq!(rows(0.01, &[0.99], 16).0, 16);
        assert_eq!(rows(0.01, &[0.99], 8).0, 8);
        assert_eq!(rows(0.3, &[0.8], 16).0, 4);
        assert_eq!(rows(1.0, &[0.8], 16).0, 1);
        assert_eq!(rows(0.01, &[0.3], 16), (1, vec![false]));
        // Where the device is full of rows, no share pays.
        assert_eq!(rows(1.0, &[0.95; 20], 16).0, 1);
        assert_eq!(rows(0.0, &[0.5; 20], 16), (16, vec![true; 20]));
        assert_eq!(rows(0.01, &[0.99], 1).0, 1);
    }

    #[test]
    fn who_has_nothing_to_gain_stays_out() {
        assert_eq!(rows(0.1, &[0.99, 0.02, 0.99], 8), (8, vec![true, false, true]));
    }

    #[test]
    fn without_costs_or_with_forced_runs_blocks_are_whole() {
        let (bad, policy) = (habit(0.0), DraftPolicy::default());
        let fixed = DraftLimits { is_fixed: true, ..limits(1.0) };
        for limits in [DraftLimits::default(), fixed, DraftLimits { forced: Some(4.0), ..limits(1.0) }] {
            let choice = policy.choose(&limits, &[&bad], &[2, 4, 8], 7);
            assert_eq!(choice, Choice { rows: 4, takes_part: vec![true] });
        }
    }

    #[test]
    fn pauses_grow_while_tries_are_in_vain_and_begin_anew() {
        let (policy, limits) = (DraftPolicy::default(), limits(1.0));
        let mut bad = habit(0.1);
        let pauses: Vec<usize> = (0..6)
            .map(|_| {
                bad.rests(100);
                let choice = policy.choose(&limits, &[&bad], &[2, 4, 8], 8);
                assert_eq!(choice, Choice { rows: TRY_ROWS, takes_part: vec![true] });
                bad.drafts();
                assert_eq!(policy.choose(&limits, &[&bad], &[2, 4, 8], 8).rows, 1);
                bad.plain_until - 100
            })
            .collect();
        assert_eq!(pauses, [16, 32, 64, 128, 256, 256]);
        bad.drafts();
        bad.rests(0);
        assert_eq!(bad.plain_until, FIRST_PAUSE);
    }

    #[test]
    fn shares_follow_what_happens() {
        let mut policy = DraftPolicy::default();
        let mut habit = policy.newcomer();
        // A seventh slot is at most as good as it was hoped until it is reached.
        assert!((habit.acceptance.expected(8) - (1.0 - HOPED.powi(8)) / (1.0 - HOPED)).abs() < 1e-9);
        for _ in 0..60 {
            policy.learn(&mut habit, 3, 3);
        }
        // Four slots are certain by now; those behind them are as good as the last one.
        assert!(habit.acceptance.expected(8) > 7.5, "{habit:?}");
        for _ in 0..20 {
            policy.learn(&mut habit, 7, 1);
        }
        assert!(habit.acceptance.of(0) > 0.99 && habit.acceptance.of(1) < 0.01);
        assert!((habit.acceptance.expected(8) - 2.0).abs() < 0.1);
        // All together have forgotten less.
        assert!(policy.newcomer().acceptance.of(1) > 0.5);
        policy.learn(&mut habit, 0, 0);
        assert!(habit.acceptance.of(0) > 0.99);
    }
}
