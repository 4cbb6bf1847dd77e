//! The scheduler where memory is taken away under it, and what it says when several things happen at once.

use super::tests::{answer, request, scheduler, show};
use super::*;
use crate::arrivals::{Arrival, Cursor};
use crate::kv::Prefix;
use crate::toy::facts;
use crate::{Constraint, PromptScores, StepOutput, TokenMask, Verdict};

/// Takes all memory that is free or could be; only copies of the host's and what others hold is left.
fn take_all(s: &mut Scheduler) -> PageTable {
    let mut table = s.kv.take(&Prefix::default(), &mut Vec::new()).unwrap();
    // Position by position, so that windows are not what ends it.
    for at in 0.. {
        if s.kv.extend(&mut table, at, at, at + 1) == at {
            break;
        }
    }
    assert_eq!(s.kv.free_pages(), 0);
    table
}

/// Plans a step and answers it.
fn step(s: &mut Scheduler, token: u32) -> Option<String> {
    let (step, shares) = s.plan()?;
    s.absorb(&shares, &mut answer(&step, token), &mut Vec::new());
    Some(show(&step))
}

/// A prompt that begins like no other of these tests.
fn other(first: u32, prompt: usize, max_tokens: usize) -> Request {
    let mut request = Request { stop: Vec::new(), ..request(prompt, max_tokens) };
    request.prompt[0] = first;
    request
}

/// Two prompts are half read when memory ends, and nobody answers: the one with the least to lose gives its pages to the
/// other, and is read again behind it.
#[test]
fn of_prompts_that_fill_the_memory_one_gives_way() {
    let limits = Limits { context_tokens: Some(24), running: 2, ..Limits::default() };
    let mut s = Scheduler::new(facts(100, 4, 10, 6), limits).unwrap();
    // Two pages of what the second begins with are cached.
    s.submit(other(50, 8, 1)).unwrap();
    while step(&mut s, 7).is_some() {}
    s.submit(other(40, 16, 1)).unwrap();
    s.submit(other(50, 17, 1)).unwrap();
    assert_eq!(step(&mut s, 7).as_deref(), Some("[40, 1, 2, 3, 4, 5] at 0 in [3, 4]"));
    assert_eq!(s.running(), 2);
    let mut thief = take_all(&mut s);
    // The last two places of its page are left to the first, and nothing to the second.
    assert_eq!(step(&mut s, 7).as_deref(), Some("[6, 7] at 6 in [3, 4]"));
    // The longer prompt gives way. Its two pages are read on behind the other, whose rows take them.
    let seen = step(&mut s, 7).unwrap();
    assert!(seen.starts_with("[8, 9, 10, 11, 12, 13] at 8 in [3, 4, "), "{seen}");
    assert_eq!((s.counts().preempted, s.running(), s.waiting()), (1, 1, 1));
    assert_eq!(s.check_books_besides(&thief), Ok(()));
    s.kv.release(&mut thief);
    while step(&mut s, 7).is_some() {}
    assert_eq!((s.unfinished(), s.counts().preempted), (0, 1));
}

/// One that holds memory alone gives it to nobody, and three give way one by one.
#[test]
fn who_holds_memory_alone_keeps_it() {
    let mut s = scheduler(1);
    s.submit(other(40, 16, 1)).unwrap();
    step(&mut s, 7).unwrap();
    let mut thief = take_all(&mut s);
    step(&mut s, 7).unwrap();
    assert!(s.plan().is_none());
    assert_eq!((s.counts().preempted, s.running()), (0, 1));
    s.kv.release(&mut thief);
    assert_eq!(step(&mut s, 7).as_deref(), Some("[8, 9, 10, 11, 12, 13] at 8 in [1, 2, 3, 4]"));
}

/// Holds nothing from the first token on.
#[derive(Debug)]
struct Breaks(bool);

impl Constraint for Breaks {
    fn mask(&mut self) -> Result<Option<TokenMask>, String> {
        if std::mem::replace(&mut self.0, true) { Err("the grammar broke".into()) } else { Ok(None) }
    }

    fn advance(&mut self, _: u32) -> Result<Verdict, String> {
        Ok(Verdict::Open)
    }
}

/// Whoever ends while a step is planned is gone; it gives way to nobody any more.
#[test]
fn who_ends_in_planning_does_not_give_way() {
    let mut s = scheduler(2);
    s.submit(Request { constraint: Some(Box::new(Breaks(false))), ..other(40, 2, 9) }).unwrap();
    s.submit(other(50, 4, 9)).unwrap();
    step(&mut s, 7).unwrap();
    let mut thief = take_all(&mut s);
    // The first ends as its mask is asked for, and the second finds no page.
    assert!(s.plan().is_none());
    let mut events = Vec::new();
    assert!(s.take_planned(&mut events));
    assert!(matches!(&events[..], [Event::Finished { reason: FinishReason::Error(_), .. }]), "{events:?}");
    assert_eq!((s.waiting(), s.running(), s.counts().preempted), (0, 1, 0));
    assert_eq!(step(&mut s, 7).as_deref(), Some("[7] at 4 in [2, 1] ?"));
    s.kv.release(&mut thief);
}

/// A row that is in the step already stays there; the one that gives way is one that is not.
#[test]
fn who_has_rows_in_the_step_does_not_give_way() {
    let limits = Limits { context_tokens: Some(24), running: 3, ..Limits::default() };
    let mut s = Scheduler::new(facts(100, 4, 18, 12), limits).unwrap();
    for (first, prompt) in [(40, 2), (50, 4), (60, 4)] {
        s.submit(other(first, prompt, 5)).unwrap();
    }
    assert_eq!(step(&mut s, 7).map(|seen| seen.matches('?').count()), Some(3));
    let mut thief = take_all(&mut s);
    assert_eq!(step(&mut s, 7).as_deref(), Some("[7] at 2 in [1] ?; [7] at 4 in [2, 3] ?"));
    assert_eq!((s.waiting(), s.counts().preempted), (1, 1));
    s.kv.release(&mut thief);
}

/// News of a start that nobody has heard yet comes before whatever else is told.
#[test]
fn starts_are_told_before_ends() {
    type Ends = fn(&mut Scheduler, RequestId, &Step, &Shares, &mut Vec<Event>);
    let ends: [Ends; 4] = [
        |s, id, _, _, events| s.abort(id, events),
        |s, _, _, _, events| s.fail_all("memory is gone", events),
        |s, _, _, shares, events| s.fail(shares, "it failed", events),
        |s, _, step, shares, events| s.absorb(shares, &mut answer(step, 7), events),
    ];
    for end in ends {
        let mut s = scheduler(1);
        let id = s.submit(request(2, 1)).unwrap();
        let (step, shares) = s.plan().unwrap();
        assert!(matches!(s.planned[..], [Event::Started { .. }]));
        let mut events = Vec::new();
        end(&mut s, id, &step, &shares, &mut events);
        let (first, last) = (events.first(), events.last());
        assert!(
            matches!(first, Some(Event::Started { .. })) && matches!(last, Some(Event::Finished { .. })),
            "{events:?}"
        );
    }
}

/// The one that all wait for is given up: whoever stood behind it starts in the next step.
#[test]
fn who_waits_behind_one_that_is_given_up_starts() {
    let limits = Limits { context_tokens: Some(24), running: 3, most_passed: 0, ..Limits::default() };
    let mut s = Scheduler::new(facts(100, 4, 8, 6), limits).unwrap();
    s.submit(other(40, 4, 12)).unwrap();
    let large = s.submit(other(50, 20, 4)).unwrap();
    s.submit(other(60, 2, 1)).unwrap();
    step(&mut s, 7).unwrap();
    // Everybody was tried when the prompt was read, too.
    step(&mut s, 7).unwrap();
    assert_eq!((s.running(), s.waiting(), s.may_start), (1, 2, false));
    let mut events = Vec::new();
    s.abort(large, &mut events);
    assert!(matches!(events.last(), Some(Event::Finished { reason: FinishReason::Aborted, .. })));
    assert_eq!(step(&mut s, 7).map(|seen| seen.matches('?').count()), Some(2));
}

/// A step is under way although nobody is left: nothing is forgotten before it is over.
#[test]
fn nothing_is_forgotten_under_a_step() {
    let mut s = scheduler(1);
    let id = s.submit(request(2, 2)).unwrap();
    let (step, shares) = s.plan().unwrap();
    s.abort(id, &mut Vec::new());
    assert_eq!(s.unfinished(), 0);
    assert!(!s.flush() && !s.next_weights());
    s.absorb(&shares, &mut answer(&step, 7), &mut Vec::new());
    assert!(s.flush() && s.next_weights());
}

/// What stood in the middle of a page on its way begins it again.
#[test]
fn a_load_that_is_given_up_begins_again() {
    let mut s = scheduler(1);
    let mut sequence = Sequence::new(RequestId(0), request(2, 1), 8);
    let half = Cursor { place: 3, at: 1 };
    (sequence.came, sequence.announced, sequence.arrival) = (half, half, Arrival::Joins);
    release(&mut s.kv, &mut sequence);
    assert_eq!((sequence.came, sequence.announced), (Cursor::default(), Cursor::default()));
    assert_eq!(sequence.arrival, Arrival::Waits);
}

/// A scheduler whose prompts' pages are all on the host and nowhere else: `tokens` of the prompt that begins with 40.
fn with_host(facts: ExecutorFacts, context: usize, tokens: usize) -> Scheduler {
    let limits = Limits { context_tokens: Some(context), running: 2, ..Limits::default() };
    let mut s = Scheduler::new(facts, limits).unwrap();
    s.kv.host_mut().set_bytes(1 << 20);
    s.submit(other(40, tokens, 1)).unwrap();
    while step(&mut s, 7).is_some() {}
    while let Some(backup) = s.kv.next_backup() {
        s.kv.backed_up(&backup, true);
    }
    let mut thief = take_all(&mut s);
    s.kv.release(&mut thief);
    assert_eq!(s.kv.cached_pages(), 0);
    s
}

/// A prefix for which there is no memory now, although nobody runs: what is in the way goes away by itself.
#[test]
fn a_prefix_without_memory_is_tried_again() {
    let mut s = with_host(facts(100, 4, 8, 6), 24, 8);
    let mut thief = take_all(&mut s);
    // Between those steps at which everybody is tried again anyhow.
    assert!(!s.counts().steps.is_multiple_of(16));
    s.submit(other(40, 9, 1)).unwrap();
    assert!(s.plan().is_none());
    assert_eq!((s.running(), s.waiting()), (0, 1));
    s.kv.release(&mut thief);
    assert!(s.plan().is_none());
    assert_eq!(s.loading().count(), 1);
}

/// Where windows are all that is kept, ids are what ends: of those that run and of those on their way from the host.
#[test]
fn ids_are_set_aside_for_answers_and_for_what_comes() {
    let mut facts = facts(100, 1, 24, 2);
    facts.kv.remove(0);
    facts.pool_pages.remove(0);
    facts.kv[0].window = Some(8);
    let ids = 40 + 24;
    let limits = Limits { context_tokens: Some(40), running: 2, ..Limits::default() };
    let mut s = Scheduler::new(facts.clone(), limits).unwrap();
    assert_eq!((s.kv.total_pages(), s.most_running()), (ids, 2));
    s.submit(other(50, 2, 36)).unwrap();
    s.submit(other(60, 2, 36)).unwrap();
    step(&mut s, 7).unwrap();
    assert_eq!((s.running(), s.waiting()), (1, 1));
    // 37 for the first, 23 for the second besides the 7 that come.
    let mut s = with_host(facts, 40, 7);
    s.submit(other(50, 2, 36)).unwrap();
    s.submit(other(40, 9, 22)).unwrap();
    step(&mut s, 7).unwrap();
    assert_eq!((s.running(), s.waiting()), (1, 1));
    let waits = s.waiting.front().unwrap();
    let prefix = s.kv.find(&waits.request.namespace, &waits.tokens, waits.most_cached());
    assert_eq!(prefix.from_host, 7);
    // Less is room enough.
    s.submit(other(60, 2, 4)).unwrap();
    s.limits.most_passed = 9;
    step(&mut s, 7).unwrap();
    assert_eq!((s.running(), s.waiting()), (2, 1));
}

/// A request whose logits are missing ends with that error, not as if its scores were complete and not with a token.
#[test]
fn scores_that_do_not_come_are_an_error() {
    for max_tokens in [0, 2] {
        let mut s = scheduler(1);
        let prompt_scores = Some(PromptScores { from: 1, top: 0, listed: Vec::new() });
        s.submit(Request { prompt_scores, ..request(3, max_tokens) }).unwrap();
        let (step, shares) = s.plan().unwrap();
        let mut events = Vec::new();
        s.absorb(&shares, &mut answer(&step, 7), &mut events);
        let [Event::Started { .. }, Event::Finished { reason: FinishReason::Error(text), .. }] = &events[..] else {
            panic!("{events:?}")
        };
        assert!(text.starts_with("E0308"), "{text}");
    }
}

/// A prompt that is read again after its pages were given away is not scored again.
#[test]
fn what_is_scored_is_scored_once() {
    let mut s = scheduler(1);
    let prompt_scores = Some(PromptScores { from: 1, top: 0, listed: Vec::new() });
    s.submit(Request { prompt_scores, max_tokens: Some(1), stop: Vec::new(), ..request(10, 1) }).unwrap();
    let mut places = Vec::new();
    for round in 0.. {
        let Some((step, shares)) = s.plan() else { break };
        let logits = step.wanted.iter().map(|w| w.logits.then(|| vec![0.0; 100])).collect();
        let mut output = StepOutput { logits, ..answer(&step, 7) };
        let mut events = Vec::new();
        s.absorb(&shares, &mut output, &mut events);
        for event in events {
            if let Event::Scored { tokens, first, .. } = event {
                places.extend(first..first + tokens.len());
            }
        }
        if round == 0 {
            s.preempt(0);
            s.sweep_preempted();
            s.may_start = true;
        }
    }
    assert_eq!(places, (1..10).collect::<Vec<_>>());
}
