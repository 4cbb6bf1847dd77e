//! What a step costs on the host: the engine over an executor that computes nothing, with so many answers under way.
//! `host_cost [REQUESTS] [CONTEXT]` prints microseconds a step and a request.

use engine::sim::Blank;
use engine::toy::answering;
use engine::{Engine, Event, Progress};
use std::time::Instant;

fn main() -> Result<(), String> {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<usize>());
    let requests = args.next().and_then(Result::ok).unwrap_or(256);
    let context = args.next().and_then(Result::ok).unwrap_or(4096);
    let mut engine: Engine<Blank> = answering(requests, context)?;
    let mut events: Vec<Event> = Vec::new();
    let mut best_us = f64::INFINITY;
    let (rounds, steps) = (10, 150);
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..steps {
            if engine.step() != Progress::Worked {
                return Err("the engine has nothing to do".to_owned());
            }
            events.clear();
            engine.drain_events(&mut events);
        }
        best_us = best_us.min(start.elapsed().as_secs_f64() * 1e6 / f64::from(steps));
    }
    println!(
        "{requests} requests of {context} tokens: {best_us:.1} us a step, {:.3} us a request, the best of {rounds} rounds",
        best_us / requests as f64
    );
    Ok(())
}
