//! Layers in their order, who joins, and what a step that waits for layers takes and says.

use super::*;
use crate::sim::{Clock, Link, Sim, TimedTier};
use crate::toy::{Toy, facts, hashed};
use crate::{Engine, Event, HostPage, Limits, MemoryTier, Progress, Request, RequestId, Step, TierError, Transfer};

const VOCAB: usize = 50;
const LAYERS: usize = 4;

#[test]
fn layers_come_in_the_order_of_the_model() {
    let mut facts = facts(10, 4, 8, 8);
    (facts.kv[0].layers, facts.kv[1].layers) = (vec![2, 5], vec![0, 1, 3]);
    let order = order_of(&facts.kv);
    assert_eq!(order, [(1, 0), (1, 1), (0, 0), (1, 2), (0, 1)]);
    let load = |kind, page| Load { kind, page, host: page };
    let loads = [load(0, 7), load(1, 7), load(0, 8)];
    let (mut cursor, mut seen) = (Cursor::default(), Vec::new());
    while let Some((load, layer)) = cursor.next(&loads, &order) {
        // Asked twice it says the same.
        assert_eq!(cursor.next(&loads, &order), Some((load, layer)));
        seen.push((load.kind, layer, load.page));
        cursor.pass();
    }
    assert_eq!(seen, [(1, 0, 7), (1, 1, 7), (0, 0, 7), (0, 0, 8), (1, 2, 7), (0, 1, 7), (0, 1, 8)]);
    assert_eq!(cursor, Cursor { place: 5, at: 0 });
}

#[test]
fn who_joins_has_the_rest_within_a_step() {
    // Half of the layers within a step, three quarters within two more, and never without any.
    let joins = |here, steps| comes_in_time(here, 8, steps);
    assert!(!joins(3, 0) && joins(4, 0) && joins(8, 9) && !joins(0, 0));
    assert!(!joins(5, 1) && joins(6, 1) && !joins(6, 3) && joins(7, 3));
    assert!(!comes_in_time(0, 0, 0));
}

/// Loses what it is asked for from a number of reads on that a step waits for.
#[derive(Debug)]
struct Losing(TimedTier<MemoryTier>, Option<usize>);

impl HostTier for Losing {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn write(&mut self, page: HostPage, layer: usize, bytes: &[u8]) -> Result<Transfer, TierError> {
        self.0.write(page, layer, bytes)
    }

    fn prefetch(&mut self, page: HostPage, layer: usize) -> bool {
        self.0.prefetch(page, layer)
    }

    fn read(&mut self, page: HostPage, layer: usize, out: &mut Vec<u8>) -> Result<Transfer, TierError> {
        self.0.read(page, layer, out)
    }

    fn read_now(&mut self, page: HostPage, layer: usize, out: &mut Vec<u8>) -> Result<u64, TierError> {
        match self.1.as_mut().map(|left| left.checked_sub(1).map(|less| *left = less)) {
            Some(None) => Err(TierError("it was damaged".into())),
            _ => self.0.read_now(page, layer, out),
        }
    }

    fn forget(&mut self, page: HostPage) {
        self.0.forget(page);
    }
}

/// Steps of 8 ms, and a millisecond for each page of a layer that comes. Memory for one of two prompts.
fn engine(inside: bool, loses_after: Option<usize>) -> Engine<Sim<Toy>> {
    let mut facts = facts(VOCAB, 4, 11, 64);
    facts.kv.truncate(1);
    facts.pool_pages.truncate(1);
    facts.kv[0].layers = (0..LAYERS).collect();
    let toy = Toy::new(facts, Box::new(|history| Ok(hashed(VOCAB, history))));
    let clock = Clock::default();
    let mut sim = Sim::new(toy, Box::new(|_: &Step| 8e-3), clock.clone());
    sim.set_in_flight(1);
    sim.set_arrivals(inside);
    let link = Link { bytes_per_second: 16e3, seconds: 0.0, ahead_seconds: 1.0 };
    let tier = Losing(TimedTier::new(MemoryTier::new(1 << 20), clock, link), loses_after);
    let limits = Limits { running: 2, ..Limits::default() };
    Engine::new(sim, limits).unwrap().with_host_tier(Box::new(tier))
}

/// Runs one request to its end, time in steps of a tenth of a millisecond: what was cached, what it said, and how many
/// milliseconds its first token took.
fn ask(engine: &mut Engine<Sim<Toy>>, prompt: &[u32]) -> (usize, Vec<u32>, f64) {
    let id: RequestId =
        engine.submit(Request { prompt: prompt.to_vec(), max_tokens: Some(3), ..Request::default() }).unwrap();
    let begun = engine.executor().clock().now_ns();
    let (mut cached, mut said, mut first) = (0, Vec::new(), 0.0);
    while engine.step() != Progress::Idle {
        assert_eq!(engine.check_books(), Ok(()));
        for event in engine.take_events() {
            assert_eq!(event.request(), id);
            match event {
                Event::Started { cached_tokens, .. } => cached = cached_tokens,
                Event::Token { token, .. } => {
                    if said.is_empty() {
                        first = (engine.executor().clock().now_ns() - begun) as f64 / 1e6;
                    }
                    said.push(token.id);
                }
                Event::Finished { reason, .. } => assert_eq!(reason, crate::FinishReason::Length),
                Event::Scored { .. } => {}
            }
        }
        engine.executor().clock().advance_by(100_000);
    }
    assert_eq!(engine.take_events(), []);
    (cached, said, first)
}

/// Two prompts that each take the memory of the other, and the first again. What its second run found, said and took.
fn again(inside: bool, loses_after: Option<usize>) -> (usize, Vec<u32>, f64, u64) {
    let mut engine = engine(inside, loses_after);
    let prompts = [1, 2].map(|first| (0..35).map(|i| (first * 7 + i * 3) % VOCAB as u32).collect::<Vec<u32>>());
    let (_, alone, _) = ask(&mut engine, &prompts[0]);
    ask(&mut engine, &prompts[1]);
    let (cached, said, first) = ask(&mut engine, &prompts[0]);
    assert_eq!(said, alone);
    let found = engine.scheduler().kv().host_use();
    let other = ask(&mut engine, &prompts[1]);
    assert_eq!(other.1.len(), 3, "it goes on afterwards");
    (cached, said, first, found.dropped_pages)
}

/// Six of its pages, of four layers each, come back at a millisecond a piece: 24 ms, and the step takes 8. The same tokens
/// come after a step that waits inside, whose last layer begins when its pages are there.
#[test]
fn a_step_waits_for_a_layer_at_a_time() {
    let (whole_cached, whole_said, whole, lost) = again(false, None);
    let (cached, said, inside, lost_inside) = again(true, None);
    assert_eq!((cached, said, lost, lost_inside), (whole_cached, whole_said, 0, 0));
    assert!(whole_cached >= 24, "{whole_cached}");
    // All but the last layer's share of the step runs beside the link.
    let saved = whole - inside;
    assert!((5.5..=6.5).contains(&saved), "{whole} ms without, {inside} ms with");
}

/// What is lost in the middle of a step is computed again, and nobody notices.
#[test]
fn a_prefix_that_is_lost_inside_a_step_is_computed_again() {
    let (_, whole, ..) = again(true, None);
    for left in 0..6 {
        let (_, said, _, lost) = again(true, Some(left));
        assert_eq!((said, lost), (whole.clone(), 1), "{left}");
    }
}

/// Notes what will be read, and has everything.
#[derive(Debug, Default)]
struct Notes(Vec<(HostPage, usize)>);

impl HostTier for Notes {
    fn bytes(&self) -> u64 {
        1 << 20
    }

    fn write(&mut self, _: HostPage, _: usize, _: &[u8]) -> Result<Transfer, TierError> {
        Ok(Transfer::Done)
    }

    fn prefetch(&mut self, page: HostPage, layer: usize) -> bool {
        self.0.push((page, layer));
        self.0.len() < 6
    }

    fn read(&mut self, _: HostPage, _: usize, _: &mut Vec<u8>) -> Result<Transfer, TierError> {
        Ok(Transfer::Done)
    }

    fn forget(&mut self, _: HostPage) {}
}

/// What a step waits for is announced one request after the other, as long as the tier takes it; and whoever's layers were
/// not all taken has lost its prefix.
#[test]
fn a_step_announces_for_all_and_loses_what_was_not_taken() {
    let order = [(0, 0), (0, 1)];
    let expected = |at: usize, came: usize| Expected {
        at,
        loads: vec![Load { kind: 0, page: at as u32, host: at as u32 }],
        pages: vec![at as i32],
        came: Cursor { place: came, at: 0 },
        announced: Cursor::default(),
        is_lost: false,
    };
    for (layers, lost) in [(1..2, [true, true, false, true]), (0..2, [false; 4])] {
        let (mut tier, mut bytes, mut put) = (Notes::default(), Vec::new(), Vec::new());
        let all = vec![expected(1, 0), expected(2, 0), expected(3, 1), expected(4, 0)];
        let mut coming = Coming::new(&mut tier, &order, &mut bytes, all);
        for layer in layers {
            coming.take(0, layer, &mut |page, _: &[u8]| {
                put.push((layer, page));
                Ok(())
            });
        }
        assert_eq!(coming.over().iter().map(|one| one.is_lost).collect::<Vec<_>>(), lost);
        assert!(put.ends_with(&[(1, 1), (1, 2), (1, 3), (1, 4)]), "{put:?}");
        assert_eq!(tier.0[..6], [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]);
    }
}
