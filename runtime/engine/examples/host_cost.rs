//! What a step costs on the host: the engine over an executor that computes nothing, with so many answers under way.
//! `host_cost [REQUESTS] [CONTEXT]` prints microseconds a step and a request.

use engine::toy::facts;
use engine::{
    Engine, Executor, ExecutorFacts, Limits, PhysicalPage, Progress, Request, SampledToken, Step, StepError,
    StepOutput, Ticket,
};
use std::time::Instant;

/// Chooses token 1 for every row that wants one.
struct Null {
    facts: ExecutorFacts,
    done: Option<Step>,
    output: StepOutput,
    wanted: usize,
}

impl Executor for Null {
    fn facts(&self) -> &ExecutorFacts {
        &self.facts
    }

    fn submit(&mut self, mut step: Step) -> Result<Ticket, StepError> {
        self.wanted = step.wanted.len();
        step.clear();
        self.done = Some(step);
        Ok(Ticket(0))
    }

    fn poll(&mut self, _: Ticket) -> Result<Option<StepOutput>, StepError> {
        let token = Some(SampledToken { id: 1, ..SampledToken::default() });
        let mut output = std::mem::take(&mut self.output);
        output.tokens.resize(self.wanted, token);
        output.logits.resize(self.wanted, None);
        Ok(Some(output))
    }

    fn copy_pages(&mut self, _: usize, _: &[(PhysicalPage, PhysicalPage)]) -> Result<(), StepError> {
        Ok(())
    }

    fn spare(&mut self) -> Option<Step> {
        self.done.take()
    }
}

fn main() -> Result<(), String> {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<usize>());
    let requests = args.next().and_then(Result::ok).unwrap_or(256);
    let context = args.next().and_then(Result::ok).unwrap_or(4096);
    let pages = requests * (context + 2048).div_ceil(64);
    let facts = ExecutorFacts {
        max_tokens: 8192,
        max_sequences: requests,
        max_wanted: requests,
        ..facts(151_936, 64, pages, 8192)
    };
    let executor = Null { facts, done: None, output: StepOutput::default(), wanted: 0 };
    let limits = Limits { running: requests, known_tokens: Some(151_000), ..Limits::default() };
    let mut engine = Engine::new(executor, limits)?;
    for i in 0..requests as u32 {
        let prompt = (0..context as u32).map(|at| (at * 7 + i) % 1000).collect();
        engine.submit(Request { prompt, max_tokens: Some(2000), ..Request::default() }).map_err(|e| e.to_string())?;
    }
    let mut events = Vec::new();
    while engine.scheduler().running() < requests || events.len() < requests {
        engine.step();
        events.clear();
        engine.drain_events(&mut events);
    }
    let steps = 1000;
    let start = Instant::now();
    for _ in 0..steps {
        if engine.step() != Progress::Worked {
            return Err("the engine has nothing to do".to_owned());
        }
        events.clear();
        engine.drain_events(&mut events);
    }
    let step_us = start.elapsed().as_secs_f64() * 1e6 / f64::from(steps);
    println!(
        "{requests} requests of {context} tokens: {step_us:.1} us a step, {:.3} us a request",
        step_us / requests as f64
    );
    Ok(())
}
