//! Conversations turn by turn: what is cached of each prompt, and with whom it is shared.

use super::*;
use crate::sim::Blank;
use crate::toy::{Toy, facts, hashed};
use crate::{ExecutorFacts, HostPage, HostTier, Limits, MemoryTier, Namespace, Request, TierError, Transfer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const VOCAB: usize = 50;

fn engine(facts: ExecutorFacts, running: usize) -> Engine<Toy> {
    let toy = Toy::new(facts, Box::new(|history| Ok(hashed(VOCAB, history))));
    Engine::new(toy, Limits { running, step_tokens: Some(512), ..Limits::default() }).unwrap()
}

/// Facts with a window of `window` positions.
fn windowed(page_tokens: usize, pages: usize, window: u64) -> ExecutorFacts {
    let mut facts = facts(VOCAB, page_tokens, pages, 512);
    facts.kv[1].window = Some(window);
    facts
}

/// Runs one request to its end: what was cached, and what it said.
fn turn<E: Executor>(engine: &mut Engine<E>, request: Request) -> (usize, Vec<u32>) {
    engine.submit(request).unwrap();
    let (mut cached, mut said) = (0, Vec::new());
    loop {
        let progress = engine.step();
        for event in engine.take_events() {
            match event {
                Event::Started { cached_tokens, .. } => cached = cached_tokens,
                Event::Token { token, .. } => said.push(token.id),
                _ => {}
            }
        }
        if progress == Progress::Idle {
            return (cached, said);
        }
    }
}

fn tokens(seed: usize, n: usize) -> Vec<u32> {
    (0..n).map(|i| ((seed * 31 + i * i * 7 + i) % VOCAB) as u32).collect()
}

/// Tokens of the first prompt, by which each is longer than the one before, and of an answer.
#[derive(Clone, Copy)]
struct Shape {
    first: usize,
    grows: usize,
    answer: usize,
}

/// Conversations of coding agents as they were measured, and a fiftieth of them.
const MEASURED: Shape = Shape { first: 74_160, grows: 753, answer: 220 };
const SMALL: Shape = Shape { first: 1483, grows: 15, answer: 4 };
const TURNS: usize = 13;

impl Shape {
    fn longest(self) -> usize {
        self.first + (TURNS - 1) * self.grows + self.answer
    }
}

/// Some conversations, one turn of each after the other. Returns cached and ideal tokens, and all tokens of prompts. Each
/// turn's cached tokens are at most what there can be: the longest beginning that was computed, in whole pages.
fn replay<E: Executor>(engine: &mut Engine<E>, talks: usize, shape: Shape) -> (usize, usize, usize) {
    let page_tokens = engine.scheduler().kv().pages().page_tokens();
    let mut said: Vec<Vec<u32>> = (0..talks).map(|t| tokens(t, 1 + t)).collect();
    let (mut found, mut ideal, mut all) = (0, 0, 0);
    for turn_number in 0..TURNS {
        for (t, history) in said.iter_mut().enumerate() {
            let known = history.len();
            let new = if turn_number == 0 { shape.first - known } else { shape.grows - shape.answer };
            history.extend(tokens(t + 100 * turn_number, new));
            let request = Request { prompt: history.clone(), max_tokens: Some(shape.answer), ..Request::default() };
            let (cached, answer) = turn(engine, request);
            // The last token of an answer is never fed.
            let most = if turn_number == 0 { 0 } else { (known - 1) / page_tokens * page_tokens };
            assert!(cached <= most, "turn {turn_number} of {t}: {cached} of {most}");
            (found, ideal, all) = (found + cached, ideal + most, all + history.len());
            history.extend(answer);
        }
    }
    (found, ideal, all)
}

#[test]
fn every_turn_finds_what_the_turns_before_have_computed() {
    let mut engine = engine(windowed(16, 800, 40), 1);
    let (found, ideal, _) = replay(&mut engine, 4, SMALL);
    assert_eq!(found, ideal);
    assert_eq!(engine.check_books(), Ok(()));
}

/// All but its last token may come from the cache, also where it ends with a page.
#[test]
fn a_prompt_is_found_again_whatever_its_length() {
    for (chunk, length) in [(512, 399), (512, 400), (512, 401), (7, 400), (16, 400), (1, 64), (512, 16), (512, 17)] {
        let toy = Toy::new(windowed(16, 800, 64), Box::new(|history| Ok(hashed(VOCAB, history))));
        let mut engine = Engine::new(toy, Limits { step_tokens: Some(chunk), ..Limits::default() }).unwrap();
        let request = || Request { prompt: tokens(3, length), max_tokens: Some(5), ..Request::default() };
        let (none, first) = turn(&mut engine, request());
        let (all, second) = turn(&mut engine, request());
        assert_eq!((none, all), (0, (length - 1) / 16 * 16), "{length} in steps of {chunk}");
        assert_eq!(first, second);
    }
}

/// A tier that gives nothing back for a while.
#[derive(Debug)]
struct Silent(MemoryTier, Arc<AtomicBool>);

impl HostTier for Silent {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn write(&mut self, page: HostPage, layer: usize, bytes: &[u8]) -> Result<Transfer, TierError> {
        self.0.write(page, layer, bytes)
    }

    fn read(&mut self, page: HostPage, layer: usize, out: &mut Vec<u8>) -> Result<Transfer, TierError> {
        match self.1.load(Ordering::Relaxed) {
            true => Err(TierError("it is silent".into())),
            false => self.0.read(page, layer, out),
        }
    }

    fn forget(&mut self, page: HostPage) {
        self.0.forget(page);
    }
}

/// What a copy was lost of is computed once, and copied again.
#[test]
fn copies_that_are_lost_are_made_again() {
    let is_silent = Arc::new(AtomicBool::new(false));
    let tier = Box::new(Silent(MemoryTier::new(1 << 30), is_silent.clone()));
    let mut engine = engine(windowed(16, 30, 40), 1).with_host_tier(tier);
    let request = |seed| Request { prompt: tokens(seed, 400), max_tokens: Some(2), ..Request::default() };
    // The second takes the memory of the first.
    let (_, first) = turn(&mut engine, request(1));
    let again = |engine: &mut Engine<Toy>| {
        turn(engine, request(2));
        let (cached, said) = turn(engine, request(1));
        assert_eq!(said, first);
        assert_eq!(engine.check_books(), Ok(()));
        cached
    };
    assert_eq!(again(&mut engine), 384);
    is_silent.store(true, Ordering::Relaxed);
    assert_eq!(again(&mut engine), 0);
    is_silent.store(false, Ordering::Relaxed);
    assert_eq!(again(&mut engine), 384);
    assert_eq!(again(&mut engine), 384);
}

/// Whoever loses a long prefix goes on from the shorter one that the device has.
#[test]
fn a_prefix_that_is_lost_leaves_what_the_device_has() {
    let is_silent = Arc::new(AtomicBool::new(false));
    let tier = Box::new(Silent(MemoryTier::new(1 << 30), is_silent.clone()));
    let mut engine = engine(windowed(16, 30, 40), 1).with_host_tier(tier);
    let request = |seed, n| Request { prompt: tokens(seed, n), max_tokens: Some(2), ..Request::default() };
    let (_, said) = turn(&mut engine, request(1, 400));
    turn(&mut engine, request(1, 170));
    // Takes the memory of what was used longest ago, the end of the long prompt.
    turn(&mut engine, request(2, 170));
    assert_eq!(turn(&mut engine, request(1, 170)).0, 160);
    is_silent.store(true, Ordering::Relaxed);
    assert_eq!(turn(&mut engine, request(1, 400)), (160, said));
    assert_eq!(engine.check_books(), Ok(()));
}

/// A clock that counts how often it is looked at, in each thread.
fn calls() -> u64 {
    thread_local!(static CALLS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });
    CALLS.with(|calls| calls.replace(calls.get() + 1))
}

#[test]
fn a_quarter_of_the_memory_and_a_host_find_almost_as_much() {
    let working_set = 4 * 1700 / 16;
    let tier = Box::new(MemoryTier::new(1 << 30));
    let mut engine = engine(windowed(16, working_set / 4 + 4, 40), 1).with_host_tier(tier);
    engine.set_clock(calls);
    let (found, ideal, all) = replay(&mut engine, 4, SMALL);
    let (mut evictions, mut loads) = (Vec::new(), Vec::new());
    engine.take_durations(&mut evictions, &mut loads);
    // An eviction looks at the clock when it begins and when it is over, and a load lasts longer.
    assert!(!evictions.is_empty() && evictions.iter().all(|took| *took == 1), "{evictions:?}");
    assert!(!loads.is_empty() && loads.iter().all(|took| *took >= 1), "{loads:?}");
    engine.take_durations(&mut evictions, &mut loads);
    assert!(evictions.len() as u64 <= engine.scheduler().kv().evicted_pages());
    assert!((ideal - found) as f64 / all as f64 <= 0.04, "{found} of {ideal}, {all} in all");
    assert!(engine.scheduler().kv().host_use().loaded_pages > 0);
    assert_eq!(engine.check_books(), Ok(()));
}

/// The sizes that were measured, on an executor that computes nothing: all memory, and a quarter of it with a host.
#[test]
fn conversations_as_long_as_measured_find_what_there_is() {
    let talks = 4;
    let working_set = talks * MEASURED.longest().div_ceil(64);
    for share in [1, 4] {
        let mut facts = facts(VOCAB, 64, working_set / share + 40, 8192);
        facts.kv[1].window = Some(512);
        let engine = Engine::new(Blank::new(facts), Limits::default()).unwrap();
        let mut engine = if share > 1 { engine.with_host_tier(Box::new(MemoryTier::new(1 << 30))) } else { engine };
        let (found, ideal, all) = replay(&mut engine, talks, MEASURED);
        let points = 100.0 * (ideal - found) as f64 / all as f64;
        assert!(points <= if share > 1 { 4.0 } else { 0.2 }, "{points} points below {ideal} of {all}, share {share}");
        // Turns are 92 % cached at best, by the shape alone.
        assert_eq!((1000.0 * ideal as f64 / all as f64).round(), 921.0);
        assert_eq!(engine.check_books(), Ok(()));
    }
}

/// The same conversations all at once, each going on when it has its answer. Returns cached and ideal tokens, and all of prompts.
fn relay<E: Executor>(engine: &mut Engine<E>, talks: usize, shape: Shape) -> (usize, usize, usize) {
    let page_tokens = engine.scheduler().kv().pages().page_tokens();
    let mut said: Vec<Vec<u32>> = (0..talks).map(|t| tokens(t, shape.first)).collect();
    let (mut found, mut all, mut turns) = (0, 0, vec![0; talks]);
    let mut open = std::collections::HashMap::new();
    let mut ask = |engine: &mut Engine<E>, talk: usize, prompt: &[u32]| {
        all += prompt.len();
        let request =
            Request { prompt: prompt.to_vec(), max_tokens: Some(shape.answer), stop: Vec::new(), ..Request::default() };
        (engine.submit(request).unwrap(), talk)
    };
    open.extend((0..talks).map(|t| ask(engine, t, &said[t])));
    while !open.is_empty() {
        engine.step();
        for event in engine.take_events() {
            match event {
                Event::Started { cached_tokens, .. } => found += cached_tokens,
                Event::Token { request, token, .. } => said[open[&request]].push(token.id),
                Event::Finished { request, reason, .. } => {
                    assert_eq!(reason, crate::FinishReason::Length);
                    let talk = open.remove(&request).unwrap();
                    turns[talk] += 1;
                    if turns[talk] < TURNS {
                        said[talk].extend(tokens(talk + 100 * turns[talk], shape.grows - shape.answer));
                        open.extend([ask(engine, talk, &said[talk])]);
                    }
                }
                Event::Scored { .. } => {}
            }
        }
    }
    let known = |turn: usize| (shape.first + (turn - 1) * shape.grows + shape.answer - 1) / page_tokens * page_tokens;
    (found, talks * (1..TURNS).map(known).sum::<usize>(), all)
}

/// Pages of many layers go out as fast as steps fill them, although copies are made between two steps alone.
#[test]
fn copies_keep_up_with_long_prompts_of_many_layers() {
    const LAYERS: usize = 48;
    const QUARTER: Shape = Shape { first: 18_540, grows: 188, answer: 55 };
    let talks = 8;
    let mut facts = facts(VOCAB, 16, talks * QUARTER.longest().div_ceil(16) / 4 + 40, 2048);
    for kind in &mut facts.kv {
        kind.layers = (0..LAYERS).collect();
        kind.page_stride *= LAYERS as u64;
    }
    (facts.kv[1].window, facts.max_sequences, facts.max_wanted) = (Some(128), talks, talks);
    let limits = Limits { running: talks, ..Limits::default() };
    let engine = Engine::new(Blank::new(facts), limits).unwrap();
    let mut engine = engine.with_host_tier(Box::new(MemoryTier::new(1 << 40)));
    let (found, ideal, all) = relay(&mut engine, talks, QUARTER);
    let points = 100.0 * (ideal as f64 - found as f64) / all as f64;
    assert!((-0.1..=4.0).contains(&points), "{points} points below {ideal} of {all}");
    assert_eq!(engine.check_books(), Ok(()));
}

#[test]
fn prompts_that_part_share_what_they_have_in_common() {
    let mut engine = engine(windowed(4, 100, 6), 1);
    let shared = tokens(1, 40);
    let ask = |tail: usize| {
        let prompt = shared.iter().copied().chain(tokens(tail, 9)).collect();
        Request { prompt, max_tokens: Some(2), ..Request::default() }
    };
    // The second has to read it all, as the window at the parting is gone; it leaves one there for the third.
    let found: Vec<usize> = [2, 3, 4].map(|tail| turn(&mut engine, ask(tail)).0).to_vec();
    assert_eq!(found, [0, 0, 40]);
    assert_eq!(engine.check_books(), Ok(()));
}

#[test]
fn namespaces_and_weights_share_nothing() {
    let mut engine = engine(windowed(4, 100, 6), 1);
    let ask = |salt: Option<&str>, adapter: Option<&str>| Request {
        prompt: tokens(1, 21),
        max_tokens: Some(1),
        namespace: Namespace { adapter: adapter.map(Into::into), salt: salt.map(Into::into) },
        ..Request::default()
    };
    let spaces = [(None, None), (Some("a"), None), (None, Some("a")), (Some("a"), Some("a"))];
    for (salt, adapter) in spaces {
        assert_eq!(turn(&mut engine, ask(salt, adapter)).0, 0);
    }
    for (salt, adapter) in spaces {
        assert_eq!(turn(&mut engine, ask(salt, adapter)).0, 20);
    }
    assert!(engine.next_weights());
    assert_eq!(turn(&mut engine, ask(None, None)).0, 0);
    assert!(engine.flush());
    assert_eq!(turn(&mut engine, ask(None, None)).0, 0);
}

#[test]
fn continuations_of_one_prompt_read_it_once() {
    let mut engine = engine(windowed(4, 100, 6), 3);
    let request = || Request { prompt: tokens(1, 30), max_tokens: Some(5), ..Request::default() };
    engine.submit_all(vec![request(), request(), request()]).unwrap();
    let mut said = vec![Vec::new(); 3];
    while engine.step() != Progress::Idle {
        assert_eq!(engine.check_books(), Ok(()));
        for event in engine.take_events() {
            if let Event::Token { request, token, .. } = event {
                said[request.0 as usize].push(token.id);
            }
        }
    }
    let counts = engine.scheduler().counts();
    // Thirty rows of the prompt, its last one again for each of the others, and four more tokens each.
    assert_eq!((counts.forked, counts.rows), (2, 30 + 2 + 3 * 4));
    assert!(said[0].len() == 5 && said[1] == said[0] && said[2] == said[0]);
}
