//! Virtual time: steps end when their time is over, one after the other, and copies wait for their link.

use super::*;
use crate::toy::facts;
use crate::{Engine, Event, HostTier, Limits, MemoryTier, Progress, Request, TierError, Transfer};

fn engine(in_flight: usize) -> Engine<Sim<Blank>> {
    let time = |step: &Step| step.tokens.len() as f64 * 1e-3;
    let mut sim = Sim::new(Blank::new(facts(100, 4, 40, 16)), Box::new(time), Clock::default());
    sim.set_in_flight(in_flight);
    Engine::new(sim, Limits { running: 2, ..Limits::default() }).unwrap()
}

/// Runs to the end, time jumping from step to step; when each token came, in milliseconds.
fn run(engine: &mut Engine<Sim<Blank>>) -> Vec<u64> {
    let mut times = Vec::new();
    loop {
        let progress = engine.step();
        let now = engine.executor().clock().now_ns() / 1_000_000;
        times.extend(engine.take_events().iter().filter(|e| matches!(e, Event::Token { .. })).map(|_| now));
        match progress {
            Progress::Idle => return times,
            Progress::Worked => {}
            Progress::Waiting => {
                let next = engine.executor().next_done_ns().unwrap();
                engine.executor().clock().advance_to(next);
            }
        }
    }
}

#[test]
fn tokens_come_when_their_steps_are_over() {
    for in_flight in [1, 2] {
        let mut engine = engine(in_flight);
        engine.submit(Request { prompt: vec![1; 20], max_tokens: Some(3), ..Request::default() }).unwrap();
        // Sixteen rows, four rows and the first token, then a row each.
        assert_eq!(run(&mut engine), [20, 21, 22]);
        assert_eq!(engine.executor().busy_seconds(), 0.022);
    }
}

#[test]
fn an_answer_that_is_due_later_is_not_there_yet() {
    let mut sim = Sim::new(Blank::new(facts(100, 4, 40, 16)), Box::new(|_: &Step| 1.0), Clock::default());
    let first = sim.submit(Step::default()).unwrap();
    let second = sim.submit(Step::default()).unwrap();
    assert_eq!((sim.poll(first).unwrap(), sim.next_done_ns()), (None, Some(1_000_000_000)));
    sim.clock().advance_to(1_000_000_000);
    assert!(sim.poll(first).unwrap().is_some() && sim.poll(second).unwrap().is_none());
    sim.clock().advance_by(1_000_000_000);
    assert!(sim.poll(second).unwrap().is_some() && sim.poll(second).is_err());
}

#[test]
fn copies_wait_for_their_link() {
    let clock = Clock::default();
    let link = Link { bytes_per_second: 1e3, seconds: 0.5, ahead_seconds: 0.0 };
    let mut tier = TimedTier::new(MemoryTier::new(100), clock.clone(), link);
    let bytes = [7; 500];
    assert_eq!(tier.write(1, 0, &bytes), Ok(Transfer::Later));
    clock.advance_by(999_999_999);
    assert_eq!(tier.write(1, 0, &bytes), Ok(Transfer::Later));
    clock.advance_by(1);
    assert_eq!(tier.write(1, 0, &bytes), Ok(Transfer::Done));
    // Two reads share the way back.
    let mut out = Vec::new();
    assert!(tier.prefetch(1, 0));
    assert_eq!(tier.read(1, 0, &mut out), Ok(Transfer::Later));
    clock.advance_by(1_000_000_000);
    assert_eq!((tier.read(1, 0, &mut out), out.as_slice()), (Ok(Transfer::Done), &bytes[..]));
    tier.forget(1);
    assert!(matches!(tier.read(1, 0, &mut out), Err(TierError(_))));
}

#[test]
fn copies_are_ahead_of_their_link_and_not_far() {
    let clock = Clock::default();
    let link = Link { bytes_per_second: 1e3, seconds: 0.5, ahead_seconds: 1.0 };
    let mut tier = TimedTier::new(MemoryTier::new(2000), clock.clone(), link);
    let bytes = [7; 500];
    assert_eq!(tier.write(1, 0, &bytes), Ok(Transfer::Done));
    assert_eq!(tier.write(1, 1, &bytes), Ok(Transfer::Later));
    clock.advance_by(1_000_000_000);
    assert_eq!(tier.write(1, 1, &bytes), Ok(Transfer::Done));
    // What is on its way out is not read before it is there, however free the way back is.
    let mut out = Vec::new();
    assert_eq!(tier.read(1, 1, &mut out), Ok(Transfer::Later));
    clock.advance_by(999_999_999);
    assert_eq!(tier.read(1, 1, &mut out), Ok(Transfer::Later));
    clock.advance_by(1);
    assert_eq!((tier.read(1, 1, &mut out), out.as_slice()), (Ok(Transfer::Done), &bytes[..]));
}
