//! A step in which everybody answers takes no memory from the system and gives none back.

use engine::toy::answering;
use engine::{Engine, Event, Progress};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn steps_of_answers_allocate_nothing() {
    // Pages of 64 tokens: in so many steps every request takes new pages, and every window moves on.
    let (requests, steps) = (64, 400);
    let mut engine: Engine<_> = answering(requests, 300).unwrap();
    let mut events: Vec<Event> = Vec::with_capacity(4 * requests);
    let used = |engine: &Engine<_>| engine.scheduler().kv().pages().held_ids();
    let before = used(&engine);
    let region = Region::new(COUNTED);
    let mut tokens = 0;
    for _ in 0..steps {
        assert_eq!(engine.step(), Progress::Worked);
        engine.drain_events(&mut events);
        tokens += events.iter().filter(|e| matches!(e, Event::Token { .. })).count();
        events.clear();
    }
    let change = region.change();
    assert_eq!(tokens, requests * steps);
    assert!(used(&engine) >= before + requests * steps / 64, "pages were taken on the way");
    assert_eq!((change.allocations, change.reallocations, change.deallocations), (0, 0, 0), "{change:?}");
}
