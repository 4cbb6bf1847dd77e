//! Scripts: a setting and what happens in it, made from a seed, written and read as text.

use crate::Policy;
use std::fmt;

/// What does not change during a script.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Positions in a page.
    pub page_tokens: usize,
    /// Windows of the kinds after the first, in positions.
    pub windows: Vec<usize>,
    /// Pages that the first kind could have alone.
    pub pages: usize,
    /// Whether all kinds draw from one memory.
    pub shared: bool,
    /// Most rows of a step.
    pub step_tokens: usize,
    /// Most requests that run.
    pub running: usize,
    /// Steps under way at once.
    pub in_flight: usize,
    /// Who starts first.
    pub policy: Policy,
    /// Pages of the first kind that the host may keep; 0 for no host tier.
    pub host_pages: usize,
    /// What a copy between device and host takes besides its bytes, in microseconds.
    pub link_us: usize,
    /// Whether finished work is kept.
    pub keeps: bool,
    /// Most rows of a block with drafts; below 2 for no drafter. Answers are greedy then.
    pub draft_rows: usize,
    /// Slots of a hundred in which the drafter is right.
    pub skill: usize,
    /// What a row costs besides a step of one, in hundredths of it; 0 for a policy that knows no costs.
    pub row_cost: usize,
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Requests with one prompt: the first `keep` tokens of what conversation `talk` has said so far and `more` new ones.
    Submit {
        /// Conversation.
        talk: usize,
        /// Thousandths of the conversation that the prompt repeats.
        keep: usize,
        /// Tokens that it adds.
        more: usize,
        /// Most tokens of the answer.
        answer: usize,
        /// Continuations.
        n: usize,
        /// Namespace.
        space: usize,
        /// Priority.
        priority: i32,
    },
    /// The so-manieth unfinished request is given up.
    Abort(usize),
    /// The engine is asked so often.
    Steps(usize),
    /// The device is so slow from now on; 0 is at once.
    Delay(usize),
    /// The next step fails.
    Fail,
    /// The host tier is late in so many of ten cases, and fails in so many of a hundred.
    Host(usize, usize),
    /// The cache is emptied, if nothing runs.
    Flush,
    /// The weights change, if nothing runs.
    Weights,
}

/// A setting and what happens in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// Seed of everything that the host tier draws.
    pub seed: u64,
    /// The setting.
    pub setting: Setting,
    /// What happens, in order. In the end the engine runs until it rests.
    pub actions: Vec<Action>,
}

/// Numbers from a seed.
#[derive(Clone, Debug)]
pub(super) struct Draw(pub u64);

impl Draw {
    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 11) as usize % end.max(1)
    }

    fn between(&mut self, from: usize, to: usize) -> usize {
        from + self.below(to - from + 1)
    }

    fn chance(&mut self, of_hundred: usize) -> bool {
        self.below(100) < of_hundred
    }
}

impl Script {
    /// The script of a seed.
    pub fn from_seed(seed: u64, actions: usize) -> Script {
        let mut draw = Draw(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 77);
        let page_tokens = draw.between(1, 5);
        let kinds = [1, 1, 1, 2, 0][draw.below(5)];
        // Drawn apart, so that what has no drafter is what it was before there were any.
        let mut drafts = Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 99);
        let setting = Setting {
            page_tokens,
            windows: (0..kinds).map(|_| draw.between(1, 4 * page_tokens)).collect(),
            pages: draw.between(6, 40),
            shared: draw.chance(60),
            step_tokens: draw.between(1, 24),
            running: draw.between(1, 6),
            in_flight: draw.between(1, 2),
            policy: [Policy::FirstCome, Policy::LongestPrefix, Policy::Priority][draw.below(3)],
            host_pages: if draw.chance(60) { draw.between(2, 60) } else { 0 },
            link_us: [0, 0, 5, 25][draw.below(4)],
            keeps: draw.chance(92),
            draft_rows: if drafts.chance(50) { drafts.between(2, 9) } else { 0 },
            skill: [0, 30, 60, 90, 100][drafts.below(5)],
            row_cost: [0, 0, 2, 20, 100][drafts.below(5)],
        };
        let actions = (0..actions).map(|_| Script::action(&mut draw, &setting)).collect();
        Script { seed, setting, actions }
    }

    fn action(draw: &mut Draw, setting: &Setting) -> Action {
        let room = setting.pages * setting.page_tokens;
        match draw.below(100) {
            0..30 => Action::Submit {
                talk: draw.below(4),
                keep: [1000, 1000, 1000, 500, 800, 0][draw.below(6)],
                more: draw.between(1, (room / 4).max(1)),
                answer: draw.between(1, (room / 4).clamp(1, 24)),
                n: [1, 1, 1, 1, 2, 3][draw.below(6)],
                space: [0, 0, 0, 1][draw.below(4)],
                priority: draw.below(3) as i32,
            },
            30..36 => Action::Abort(draw.below(8)),
            36..90 => Action::Steps([1, 1, 2, 3, 5, 8, 13, 40][draw.below(8)]),
            90..93 => Action::Delay(draw.below(4)),
            93..95 => Action::Fail,
            95..98 => Action::Host(draw.below(10), [0, 0, 5, 30][draw.below(4)]),
            98 => Action::Flush,
            _ => Action::Weights,
        }
    }

    /// Reads what [`Script`] prints.
    pub fn parse(text: &str) -> Result<Script, String> {
        let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
        let head = lines.next().ok_or("the script is empty")?;
        let numbers = |line: &str| -> Result<Vec<i64>, String> {
            let words = line.split_whitespace().filter(|w| w.starts_with(|c: char| c.is_ascii_digit() || c == '-'));
            words.map(|w| w.parse().map_err(|e| format!("`{w}` of `{line}`: {e}"))).collect()
        };
        let all = numbers(head)?;
        let at = |all: &[i64], i: usize| {
            all.get(i).copied().map(|n| n as usize).ok_or(format!("a number is missing in `{head}`"))
        };
        let policies = [Policy::FirstCome, Policy::LongestPrefix, Policy::Priority];
        let setting = Setting {
            page_tokens: at(&all, 1)?,
            pages: at(&all, 2)?,
            shared: at(&all, 3)? == 1,
            step_tokens: at(&all, 4)?,
            running: at(&all, 5)?,
            in_flight: at(&all, 6)?,
            policy: *policies.get(at(&all, 7)?).ok_or("no such policy")?,
            host_pages: at(&all, 8)?,
            keeps: at(&all, 9)? == 1,
            link_us: at(&all, 10)?,
            draft_rows: at(&all, 11)?,
            skill: at(&all, 12)?,
            row_cost: at(&all, 13)?,
            windows: all.iter().skip(14).map(|n| *n as usize).collect(),
        };
        let action = |line: &str| -> Result<Action, String> {
            let all = numbers(line)?;
            let at =
                |i: usize| all.get(i).copied().map(|n| n as usize).ok_or(format!("a number is missing in `{line}`"));
            Ok(match line.split_whitespace().next().unwrap_or_default() {
                "submit" => Action::Submit {
                    talk: at(0)?,
                    keep: at(1)?,
                    more: at(2)?,
                    answer: at(3)?,
                    n: at(4)?,
                    space: at(5)?,
                    priority: at(6)? as i32,
                },
                "abort" => Action::Abort(at(0)?),
                "steps" => Action::Steps(at(0)?),
                "delay" => Action::Delay(at(0)?),
                "fail" => Action::Fail,
                "host" => Action::Host(at(0)?, at(1)?),
                "flush" => Action::Flush,
                "weights" => Action::Weights,
                other => return Err(format!("there is no action `{other}`")),
            })
        };
        let actions = lines.map(action).collect::<Result<_, _>>()?;
        Ok(Script { seed: at(&all, 0)? as u64, setting, actions })
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.setting;
        let (seed, policy) = (self.seed, s.policy as usize);
        write!(
            f,
            "seed {seed} page_tokens {} pages {} shared {} step_tokens {} running {} in_flight {} policy {policy} host {} keeps {} link {} drafts {} skill {} cost {} windows",
            s.page_tokens,
            s.pages,
            usize::from(s.shared),
            s.step_tokens,
            s.running,
            s.in_flight,
            s.host_pages,
            usize::from(s.keeps),
            s.link_us,
            s.draft_rows,
            s.skill,
            s.row_cost,
        )?;
        s.windows.iter().try_for_each(|w| write!(f, " {w}"))?;
        writeln!(f)?;
        for action in &self.actions {
            match action {
                Action::Submit { talk, keep, more, answer, n, space, priority } => writeln!(
                    f,
                    "submit talk {talk} keep {keep} more {more} answer {answer} n {n} space {space} priority {priority}"
                )?,
                Action::Abort(which) => writeln!(f, "abort {which}")?,
                Action::Steps(n) => writeln!(f, "steps {n}")?,
                Action::Delay(polls) => writeln!(f, "delay {polls}")?,
                Action::Fail => writeln!(f, "fail")?,
                Action::Host(late, fails) => writeln!(f, "host {late} {fails}")?,
                Action::Flush => writeln!(f, "flush")?,
                Action::Weights => writeln!(f, "weights")?,
            }
        }
        Ok(())
    }
}
