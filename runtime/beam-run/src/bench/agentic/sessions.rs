//! Who asks for what, and when: conversations of coding agents.
//!
//! * `openhands`: one agent a session; a long first prompt, then turn after turn what the tools have said, 13 turns.
//! * `agentx`: an agent that now and then sends others ahead of itself, each with the same beginning and a task of its own,
//!   waits for all of them and goes on with what they report; between turns tools take their time.

use crate::bench::stats::Draw;
use clap::ValueEnum;

/// Shape of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// One agent, 13 turns.
    Openhands,
    /// An agent with agents of its own, and tools that take time.
    Agentx,
}

/// Sizes of a session, in tokens.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub turns: usize,
    /// The first prompt.
    pub first: usize,
    /// How much longer each prompt is than the one before, the answer between them included.
    pub grows: usize,
    pub answer: usize,
    /// Mean time between an answer and the next turn, in seconds.
    pub think_seconds: f64,
}

/// Turns of an agent that another has sent.
const ERRAND_TURNS: usize = 3;

/// What an agent does now.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Its next prompt is due at this time.
    Due(f64),
    /// Its answer is being written.
    Asked,
    /// Others work for it, so many.
    Waits(usize),
    Done,
}

/// One line of work.
#[derive(Clone, Debug)]
struct Agent {
    session: usize,
    /// Prompt and answers so far; the next prompt is all of it.
    history: Vec<u32>,
    turn: usize,
    turns: usize,
    answer: usize,
    parent: Option<usize>,
    state: State,
}

/// A prompt that is due.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Who asks.
    pub agent: usize,
    /// Its number in the agent's conversation, from 0.
    pub number: usize,
    pub prompt: Vec<u32>,
    pub answer: usize,
}

/// All sessions of a run.
pub struct Sessions {
    shape: Shape,
    sizes: Sizes,
    agents: Vec<Agent>,
    draw: Draw,
    vocab: u64,
    left: usize,
    next_session: usize,
    /// What all agents of all sessions begin with, where the shape has such a thing.
    shared: Vec<u32>,
}

impl Sessions {
    /// `sessions` sessions, at most `at_once` of them at a time, with token ids below `vocab`.
    pub fn new(shape: Shape, sizes: Sizes, (sessions, at_once): (usize, usize), vocab: usize, seed: u64) -> Self {
        let mut all = Sessions {
            shape,
            sizes,
            agents: Vec::new(),
            draw: Draw(seed),
            vocab: vocab as u64,
            left: sessions,
            next_session: 0,
            shared: Vec::new(),
        };
        if shape == Shape::Agentx {
            all.shared = all.tokens(sizes.first / 4);
        }
        for _ in 0..at_once.min(sessions) {
            all.begin(0.0);
        }
        all
    }

    fn tokens(&mut self, n: usize) -> Vec<u32> {
        (0..n).map(|_| self.draw.below(self.vocab) as u32).collect()
    }

    fn begin(&mut self, now: f64) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let session = self.next_session;
        self.next_session += 1;
        let mut history = self.shared.clone();
        let own = self.sizes.first.saturating_sub(history.len()).max(1);
        history.extend(self.tokens(own));
        let (turns, answer) = (self.sizes.turns.max(1), self.sizes.answer);
        self.agents.push(Agent { session, history, turn: 0, turns, answer, parent: None, state: State::Due(now) });
    }

    /// Whether nobody will ask again.
    pub fn is_done(&self) -> bool {
        self.left == 0 && self.agents.iter().all(|a| a.state == State::Done)
    }

    /// When the next prompt is due.
    pub fn next_due(&self) -> Option<f64> {
        let due = self.agents.iter().filter_map(|a| if let State::Due(at) = a.state { Some(at) } else { None });
        due.min_by(f64::total_cmp)
    }

    /// Prompts that are due.
    pub fn due(&mut self, now: f64) -> Vec<Turn> {
        let is_due = |a: &Agent| matches!(a.state, State::Due(at) if at <= now);
        let asks = self.agents.iter_mut().enumerate().filter(|(_, a)| is_due(a));
        asks.map(|(agent, a)| {
            a.state = State::Asked;
            Turn { agent, number: a.turn, prompt: a.history.clone(), answer: a.answer }
        })
        .collect()
    }

    /// An answer is complete.
    pub fn answered(&mut self, agent: usize, answer: &[u32], now: f64) {
        let new = self.sizes.grows.saturating_sub(answer.len()).max(1);
        let said = self.tokens(new);
        let think = if self.sizes.think_seconds > 0.0 { self.draw.wait(self.sizes.think_seconds) } else { 0.0 };
        let Some(a) = self.agents.get_mut(agent) else { return };
        a.history.extend(answer);
        a.turn += 1;
        if a.turn >= a.turns {
            return self.finished(agent, now);
        }
        a.history.extend(said);
        let (turn, is_root) = (a.turn, a.parent.is_none());
        a.state = State::Due(now + think);
        if self.shape == Shape::Agentx && is_root && turn % 3 == 2 {
            self.send_out(agent, now);
        }
    }

    /// Sends others ahead.
    fn send_out(&mut self, agent: usize, now: f64) {
        let fan = 2 + self.draw.below(3) as usize;
        let Some(session) = self.agents.get(agent).map(|a| a.session) else { return };
        for _ in 0..fan {
            let mut history = self.shared.clone();
            history.extend(self.tokens((self.sizes.first / 4).max(1)));
            let at = now + if self.sizes.think_seconds > 0.0 { self.draw.wait(self.sizes.think_seconds) } else { 0.0 };
            let (turns, answer) = (ERRAND_TURNS, self.sizes.answer);
            let parent = Some(agent);
            self.agents.push(Agent { session, history, turn: 0, turns, answer, parent, state: State::Due(at) });
        }
        if let Some(a) = self.agents.get_mut(agent) {
            a.state = State::Waits(fan);
        }
    }

    fn finished(&mut self, agent: usize, now: f64) {
        let Some(a) = self.agents.get_mut(agent) else { return };
        a.state = State::Done;
        let Some(parent) = a.parent else { return self.begin(now) };
        // What came of it stands in the parent's next prompt.
        let report = a.history.split_off(a.history.len().saturating_sub(self.sizes.answer));
        a.history = Vec::new();
        if let Some(p) = self.agents.get_mut(parent) {
            p.history.extend(report);
            p.state = match p.state {
                State::Waits(1) => State::Due(now),
                State::Waits(n) => State::Waits(n - 1),
                other => other,
            };
        }
    }

    /// Most tokens that a prompt and its answer may come to.
    pub fn longest(shape: Shape, sizes: Sizes) -> usize {
        let errands = if shape == Shape::Agentx { sizes.turns / 3 * 4 * sizes.answer } else { 0 };
        sizes.first.max(2) + sizes.turns * sizes.grows.max(sizes.answer + 1) + sizes.answer + errands
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(shape: Shape) -> (Vec<Turn>, usize) {
        // Turns, and sessions that have begun.
        let sizes = Sizes { turns: 7, first: 400, grows: 30, answer: 8, think_seconds: 1.0 };
        let mut sessions = Sessions::new(shape, sizes, (5, 2), 100, 3);
        let (mut all, mut now) = (Vec::new(), 0.0);
        while let Some(due) = sessions.next_due() {
            now = f64::max(now, due);
            for turn in sessions.due(now) {
                assert!(turn.prompt.len() + turn.answer <= Sessions::longest(shape, sizes));
                sessions.answered(turn.agent, &vec![5; turn.answer], now + 0.5);
                all.push(turn);
            }
        }
        assert!(sessions.is_done());
        (all, sessions.next_session)
    }

    #[test]
    fn one_agent_grows_turn_by_turn() {
        let (turns, begun) = run(Shape::Openhands);
        assert_eq!((turns.len(), begun), (5 * 7, 5));
        let first: Vec<usize> = turns.iter().filter(|t| t.agent == 0).map(|t| t.prompt.len()).collect();
        assert_eq!(first, (0..7).map(|i| 400 + 30 * i).collect::<Vec<_>>());
    }

    #[test]
    fn agents_are_sent_and_waited_for() {
        let (turns, begun) = run(Shape::Agentx);
        let errands = turns.iter().filter(|t| t.prompt.len() < 400).count();
        // Seven turns of the root have two places from which two to four agents with three turns each are sent.
        assert!(begun == 5 && (5 * 2 * 2 * 3..=5 * 2 * 4 * 3).contains(&errands), "{errands}");
        assert!(turns.iter().all(|t| t.prompt[..100] == turns[0].prompt[..100]), "all begin alike");
    }
}
