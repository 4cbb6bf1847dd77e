//! An engine under sessions, in real or in virtual time.

use super::ideal::Ideal;
use super::sessions::{Sessions, Turn};
use crate::failure::Failure;
use engine::sim::{Clock, Sim};
use engine::{Engine, Event, Executor, FinishReason, Progress, Request, RequestId, Sampling};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Host time that a call of the engine takes where time is virtual, in nanoseconds: what it may take at about 64 requests.
const CALL_NS: u64 = 45_000;

/// How often an engine is called while a step runs and pages move, in nanoseconds: a server looks at least as often.
const LOOK_NS: u64 = 1_000_000;

/// How time passes for an engine.
pub trait Pace<E: Executor> {
    /// Seconds since the start.
    fn now(&self) -> f64;

    /// A call of the engine has found this to do, and the next prompt is due then.
    fn called(&mut self, engine: &mut Engine<E>, progress: Progress, due: Option<f64>);
}

/// Time as it is.
pub struct Wall(pub Instant);

impl<E: Executor> Pace<E> for Wall {
    fn now(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }

    fn called(&mut self, engine: &mut Engine<E>, progress: Progress, due: Option<f64>) {
        match (progress, due) {
            (Progress::Idle, Some(due)) => {
                let left = due - self.0.elapsed().as_secs_f64();
                std::thread::sleep(Duration::from_secs_f64(left.max(0.0)));
            }
            (Progress::Waiting, _) => engine.executor_mut().wait_for_step(crate::model::LONGEST_WAIT),
            _ => {}
        }
    }
}

/// Time that jumps to where something happens.
pub struct Virtual(pub Clock);

impl<C: Executor> Pace<Sim<C>> for Virtual {
    fn now(&self) -> f64 {
        self.0.seconds()
    }

    fn called(&mut self, engine: &mut Engine<Sim<C>>, progress: Progress, due: Option<f64>) {
        self.0.advance_by(CALL_NS);
        let due_ns = due.map(|due| (due * 1e9).ceil() as u64);
        let step_ns = engine.executor().next_done_ns();
        let look_ns = engine.is_moving().then(|| self.0.now_ns() + LOOK_NS);
        let next = match progress {
            Progress::Worked => None,
            Progress::Waiting => due_ns.into_iter().chain(step_ns).chain(look_ns).min(),
            Progress::Idle => due_ns,
        };
        if let Some(next) = next {
            self.0.advance_to(next);
        }
    }
}

/// What is known of one turn in the end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// Its number in its conversation, from 0.
    pub turn: usize,
    pub prompt_tokens: usize,
    pub cached_tokens: usize,
    /// What a cache that loses nothing would have found.
    pub ideal_tokens: usize,
    pub answer_tokens: usize,
    /// Seconds: when it was asked, when its first token came, and its last.
    pub asked: f64,
    pub first: f64,
    pub last: f64,
}

struct Open {
    turn: Turn,
    answer: Vec<u32>,
    measured: Measured,
}

/// Runs all sessions to their end. What comes out stands in the order in which turns ended.
pub fn drive<E: Executor>(
    engine: &mut Engine<E>,
    sessions: &mut Sessions,
    pace: &mut impl Pace<E>,
    mut progress: impl FnMut(usize),
) -> Result<Vec<Measured>, Failure> {
    let mut ideal = Ideal::new(engine.scheduler().kv().pages().page_tokens());
    let (mut open, mut done): (HashMap<RequestId, Open>, Vec<Measured>) = (HashMap::new(), Vec::new());
    let mut events = Vec::new();
    while !(sessions.is_done() && open.is_empty()) {
        for turn in sessions.due(pace.now()) {
            let request = Request {
                prompt: turn.prompt.clone(),
                max_tokens: Some(turn.answer),
                sampling: Sampling { seed: turn.agent as u64 ^ 0x5eed, ..Sampling::default() },
                ..Request::default()
            };
            let id = engine.submit(request).map_err(Failure::input)?;
            let (number, prompt_tokens) = (turn.number, turn.prompt.len());
            let measured = Measured { turn: number, prompt_tokens, asked: pace.now(), ..Measured::default() };
            open.insert(id, Open { turn, answer: Vec::new(), measured });
        }
        let found = engine.step();
        engine.drain_events(&mut events);
        let now = pace.now();
        for event in events.drain(..) {
            let id = event.request();
            let Some(one) = open.get_mut(&id) else { continue };
            match event {
                Event::Started { cached_tokens, .. } => {
                    one.measured.cached_tokens = cached_tokens;
                    one.measured.ideal_tokens = ideal.find(&one.turn.prompt);
                }
                Event::Token { token, .. } => {
                    if one.answer.is_empty() {
                        one.measured.first = now;
                        ideal.learn(&one.turn.prompt);
                    }
                    one.answer.push(token.id);
                }
                Event::Finished { reason: FinishReason::Error(text), .. } => return Err(Failure::device(text)),
                Event::Finished { .. } => {
                    let Some(mut one) = open.remove(&id) else { continue };
                    (one.measured.last, one.measured.answer_tokens) = (now, one.answer.len());
                    // The last token of an answer is never fed.
                    let mut whole = one.turn.prompt;
                    whole.extend(one.answer.iter().take(one.answer.len().saturating_sub(1)));
                    ideal.learn(&whole);
                    sessions.answered(one.turn.agent, &one.answer, now);
                    done.push(one.measured);
                    progress(done.len());
                }
                Event::Scored { .. } => {}
            }
        }
        pace.called(engine, found, sessions.next_due());
    }
    Ok(done)
}
