//! The engine over a toy executor: endings, failures, aborts, and answers that do not depend on company.

use super::*;
use crate::toy::{self, Toy, certain, facts, hashed};
use crate::{FinishReason, Sampling, StepError, Usage};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn hashing(vocab: usize) -> toy::Model {
    Box::new(move |history| Ok(hashed(vocab, history)))
}

fn request(prompt: &[u32], max_tokens: usize) -> Request {
    Request { prompt: prompt.to_vec(), max_tokens: Some(max_tokens), ..Request::default() }
}

/// The tokens and the end of every request, in the order of their ids.
fn answers<E: Executor>(engine: &mut Engine<E>) -> Vec<(Vec<u32>, Option<FinishReason>)> {
    let mut answers: Vec<(Vec<u32>, Option<FinishReason>)> = Vec::new();
    while engine.step() != Progress::Idle {}
    for event in engine.take_events() {
        let at = event.request().0 as usize;
        answers.resize(answers.len().max(at + 1), (Vec::new(), None));
        match event {
            Event::Token { token, .. } => answers[at].0.push(token.id),
            Event::Finished { reason, .. } => answers[at].1 = Some(reason),
            Event::Started { .. } | Event::Scored { .. } => {}
        }
    }
    answers
}

/// What the model says without any engine.
fn expected(vocab: usize, prompt: &[u32], n: usize) -> Vec<u32> {
    let mut history = prompt.to_vec();
    for position in 0..n {
        let sampling = Sampling { position: position as u64, ..Sampling::default() };
        history.push(crate::sample(&hashed(vocab, &history), &sampling, None).unwrap().id);
    }
    history.split_off(prompt.len())
}

#[test]
fn a_stop_token_ends_the_answer_and_is_reported() {
    let model: toy::Model = Box::new(|history| Ok(certain(10, history.len() as u32)));
    let mut engine = Engine::new(Toy::new(facts(10, 4, 8, 4), model), Limits::default()).unwrap();
    let id = engine.submit(Request { stop: vec![6, 7], ..request(&[1, 2, 3], 20) }).unwrap();
    while engine.step() != Progress::Idle {}
    let events = engine.take_events();
    let shown: Vec<(u32, bool)> = events
        .iter()
        .filter_map(|e| if let Event::Token { token, stops, .. } = e { Some((token.id, *stops)) } else { None })
        .collect();
    assert_eq!(shown, [(3, false), (4, false), (5, false), (6, true)]);
    let usage = Usage { prompt_tokens: 3, completion_tokens: 4, ..Usage::default() };
    assert_eq!(events.last(), Some(&Event::Finished { request: id, reason: FinishReason::Stop(6), usage }));
}

#[test]
fn a_failed_step_ends_its_request_and_the_next_one_runs() {
    let model: toy::Model = Box::new(|history| match history {
        [5, ..] => Err(StepError::Device("region 3".into())),
        [6, ..] => Ok(vec![f32::NAN; 10]),
        _ => Ok(certain(10, 1)),
    });
    let mut engine = Engine::new(Toy::new(facts(10, 4, 8, 4), model), Limits::default()).unwrap();
    for first in [5, 6, 7] {
        engine.submit(request(&[first], 2)).unwrap();
    }
    let answers = answers(&mut engine);
    assert!(matches!(&answers[0].1, Some(FinishReason::Error(text)) if text.contains("region 3")));
    assert!(matches!(&answers[1].1, Some(FinishReason::Error(text)) if text.contains("E0202")));
    assert_eq!(answers[2], (vec![1, 1], Some(FinishReason::Length)));
}

#[test]
fn a_request_is_aborted_while_it_waits_runs_or_is_in_flight() {
    let mut toy = Toy::new(facts(50, 4, 8, 4), hashing(50));
    toy.delay_polls = 1;
    let mut engine = Engine::new(toy, Limits::default()).unwrap();
    let ids: Vec<RequestId> = (0..4).map(|i| engine.submit(request(&[i, 3], 5)).unwrap()).collect();
    engine.abort(ids[1]);
    assert_eq!(engine.step(), Progress::Waiting);
    engine.abort(ids[0]);
    engine.abort(ids[0]);
    assert!(engine.scheduler().kv().free_pages() < 8, "pages stay while the step is under way");
    assert_eq!(engine.step(), Progress::Worked);
    assert_eq!(engine.scheduler().kv().free_pages(), 8);
    engine.step();
    engine.step();
    engine.abort(ids[2]);
    let ends = answers(&mut engine);
    assert_eq!(ends[0], (vec![], Some(FinishReason::Aborted)));
    assert_eq!(ends[1], (vec![], Some(FinishReason::Aborted)));
    assert_eq!((ends[2].0.len(), &ends[2].1), (1, &Some(FinishReason::Aborted)));
    assert_eq!(ends[3], (expected(50, &[3, 3], 5), Some(FinishReason::Length)));
    engine.abort(ids[3]);
    assert_eq!(engine.take_events(), []);
}

/// How many steps were under way whenever one was waited for, and how many there were in all.
fn under_way(engine: &mut Engine<Toy>, aborted: Option<RequestId>) -> (Vec<usize>, u64) {
    let mut at_once = Vec::new();
    loop {
        match engine.step() {
            Progress::Idle => return (at_once, engine.scheduler().counts().steps),
            Progress::Waiting => {
                at_once.push(engine.in_flight.len());
                aborted.into_iter().for_each(|id| engine.abort(id));
            }
            Progress::Worked => {}
        }
    }
}

#[test]
fn a_step_that_is_planned_ahead_leaves_nobody_behind() {
    let engine = || {
        let mut toy = Toy::new(facts(50, 4, 40, 8), hashing(50));
        (toy.most_in_flight, toy.delay_polls) = (2, 1);
        Engine::new(toy, Limits { running: 2, ..Limits::default() }).unwrap()
    };
    let penalised =
        || Request { sampling: Sampling { frequency_penalty: 0.5, ..Sampling::default() }, ..request(&[3, 4], 4) };
    let mut plain = engine();
    plain.submit(request(&[1, 2], 8)).unwrap();
    let (at_once, steps) = under_way(&mut plain, None);
    assert_eq!((at_once[0], steps), (2, 8));
    let mut single = engine();
    single.take_one_step_at_a_time();
    single.submit(request(&[1, 2], 8)).unwrap();
    assert_eq!(under_way(&mut single, None), (vec![1; 8], 8));
    // Its choices need the ones before, so nothing is planned until its last one is under way; both have a row in each step.
    let mut both = engine();
    both.submit(request(&[1, 2], 8)).unwrap();
    both.submit(penalised()).unwrap();
    let (at_once, steps) = under_way(&mut both, None);
    assert_eq!((&at_once[..4], steps), (&[1, 1, 1, 2][..], 8));
    // One that was given up needs nothing.
    let mut both = engine();
    both.submit(request(&[1, 2], 8)).unwrap();
    let id = both.submit(penalised()).unwrap();
    let (at_once, steps) = under_way(&mut both, Some(id));
    assert_eq!((&at_once[..2], steps), (&[1, 2][..], 8));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, rng_seed: RngSeed::Fixed(7), ..Default::default() })]
    /// Chunking, batching, page order and aborted neighbours never change an answer; all pages come back.
    #[test]
    fn answers_do_not_depend_on_company(
        prompts in proptest::collection::vec((proptest::collection::vec(0u32..50, 1..20), 1usize..10, any::<bool>()), 1..8),
        max_tokens in 1usize..12, page_tokens in 1usize..6, running in 1usize..5, delay_polls in 0usize..2, early in 0usize..6,
    ) {
        let mut toy = Toy::new(facts(50, page_tokens, 40usize.div_ceil(page_tokens), max_tokens), hashing(50));
        toy.delay_polls = delay_polls;
        let mut engine = Engine::new(toy, Limits { running, ..Limits::default() }).unwrap();
        let ids: Vec<RequestId> =
            prompts.iter().map(|(prompt, n, _)| engine.submit(request(prompt, *n)).unwrap()).collect();
        for _ in 0..early {
            engine.step();
        }
        for (id, (.., abort)) in ids.iter().zip(&prompts) {
            if *abort {
                engine.abort(*id);
            }
        }
        for ((tokens, reason), (prompt, n, abort)) in answers(&mut engine).into_iter().zip(&prompts) {
            let whole = expected(50, prompt, *n);
            prop_assert!(whole.starts_with(&tokens));
            prop_assert!(reason == Some(FinishReason::Length) && tokens == whole || *abort && reason == Some(FinishReason::Aborted));
        }
        prop_assert!(engine.flush());
        prop_assert_eq!(engine.check_books(), Ok(()));
        let pages = engine.scheduler().kv().pages();
        prop_assert_eq!((pages.held_ids(), pages.used(0), pages.used(1)), (0, 0, 0));
    }
}

/// Admits one token only, and breaks after so many.
#[derive(Debug)]
struct Only(u32, usize);

impl crate::Constraint for Only {
    fn mask(&mut self) -> Result<Option<Vec<u32>>, String> {
        if self.1 == 0 { Err("the grammar broke".into()) } else { Ok(Some(vec![1 << self.0])) }
    }

    fn advance(&mut self, _: u32) -> Result<crate::Verdict, String> {
        self.1 -= 1;
        Ok(crate::Verdict::Open)
    }
}

#[test]
fn a_row_without_a_choice_and_a_broken_constraint_end_their_requests_alone() {
    let model: toy::Model = Box::new(|history| match history {
        [5, .., 3] => Ok(vec![f32::NAN; 10]),
        history => Ok(hashed(10, history)),
    });
    let limits = Limits { running: 4, ..Limits::default() };
    let mut engine = Engine::new(Toy::new(facts(10, 4, 30, 8), model), limits).unwrap();
    engine.submit(request(&[1, 2], 6)).unwrap();
    engine.submit(request(&[5, 3], 6)).unwrap();
    engine.submit(Request { constraint: Some(Box::new(Only(4, 2))), ..request(&[1, 2], 6) }).unwrap();
    let answers = answers(&mut engine);
    assert_eq!(answers[0], (expected(10, &[1, 2], 6), Some(FinishReason::Length)));
    assert!(matches!(&answers[1], (tokens, Some(FinishReason::Error(e))) if tokens.is_empty() && e.contains("E0202")));
    let broke = FinishReason::Error("the grammar broke".into());
    assert_eq!(answers[2], (vec![4, 4], Some(broke)));
    assert_eq!(engine.scheduler().kv().free_pages(), engine.scheduler().kv().total_pages());
}

/// Breaks off when told to: the next page that has to be zeroed is not.
struct Breaking(Toy, bool);

impl Executor for Breaking {
    fn facts(&self) -> &crate::ExecutorFacts {
        self.0.facts()
    }

    fn submit(&mut self, step: crate::Step) -> Result<Ticket, StepError> {
        self.0.submit(step)
    }

    fn poll(&mut self, ticket: Ticket) -> Result<Option<crate::StepOutput>, StepError> {
        self.0.poll(ticket)
    }

    fn in_flight_limit(&self) -> usize {
        self.0.in_flight_limit()
    }

    fn copy_pages(&mut self, kind: usize, pages: &[(PhysicalPage, PhysicalPage)]) -> Result<(), StepError> {
        self.0.copy_pages(kind, pages)
    }

    fn zero_pages(&mut self, kind: usize, pages: &[PhysicalPage]) -> Result<(), StepError> {
        if std::mem::take(&mut self.1) {
            return Err(StepError::Device("memory is gone".into()));
        }
        self.0.zero_pages(kind, pages)
    }
}

/// After so many calls either the executor breaks off in a step that it never answers, or its memory does.
#[test]
fn what_runs_when_an_executor_breaks_off_ends_and_the_rest_goes_on() {
    for (calls, memory) in (0..14).flat_map(|calls| [(calls, false), (calls, true)]) {
        let limits = Limits { running: 2, ..Limits::default() };
        let mut toy = Toy::new(facts(10, 4, 30, 8), hashing(10));
        (toy.most_in_flight, toy.delay_polls) = (1 + calls % 2, calls % 3);
        let mut engine = Engine::new(Breaking(toy, false), limits).unwrap();
        for prompt in [&[1, 2][..], &[3, 4, 5, 6, 7, 8, 9, 1, 2, 3], &[5, 3], &[1, 2, 3]] {
            engine.submit(request(prompt, 12)).unwrap();
        }
        (0..calls).for_each(|_| {
            engine.step();
        });
        let (left, waiting) = (engine.scheduler().unfinished(), engine.scheduler().waiting());
        let running = left - waiting;
        if memory {
            engine.executor_mut().1 = true;
        } else {
            engine.recover("it broke off");
            assert_eq!(engine.check_books(), Ok(()), "{calls}");
            assert_eq!((engine.scheduler().running(), engine.scheduler().kv().cached_pages()), (0, 0), "{calls}");
            assert_eq!((engine.scheduler().unfinished(), left), (waiting, waiting + running), "{calls}");
        }
        let answers = answers(&mut engine);
        let broke = answers.iter().filter(|(_, end)| matches!(end, Some(FinishReason::Error(_)))).count();
        assert_eq!(answers.iter().filter(|(_, end)| end.is_some()).count(), 4, "{calls}");
        assert!(if memory { broke <= 2 } else { broke == running }, "{calls}: {answers:?}");
        let whole: Vec<_> = answers.iter().filter(|(_, end)| *end == Some(FinishReason::Length)).collect();
        assert!(whole.len() + broke == 4 && whole.iter().all(|(tokens, _)| tokens.len() == 12), "{calls}");
        assert_eq!(engine.check_books(), Ok(()));
        assert_eq!(engine.scheduler().kv().free_pages(), engine.scheduler().kv().total_pages());
        assert!(engine.flush() && engine.next_weights());
    }
}

/// Scores of a prompt are those of the model, whatever else is in the steps and however few rows they have.
#[test]
fn prompts_are_scored_in_steps_of_any_size() {
    for (rows, wanted, from, answer) in
        [(1, 1, 1, 3), (3, 1, 2, 0), (3, 2, 1, 2), (8, 3, 4, 1), (8, 8, 1, 2), (2, 8, 9, 2), (8, 2, 30, 1)]
    {
        let facts = crate::ExecutorFacts { max_wanted: wanted, max_sequences: 4, ..facts(10, 4, 30, rows) };
        let limits = Limits { running: 4, ..Limits::default() };
        let mut engine = Engine::new(Toy::new(facts, hashing(10)), limits).unwrap();
        let prompts: [&[u32]; 3] = [&[1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2], &[4, 4], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 2]];
        for (i, prompt) in prompts.iter().enumerate() {
            let scores = crate::PromptScores { from, top: 2, listed: vec![i as u32] };
            let prompt_scores = (i != 1).then_some(scores);
            let most = if i == 1 { 4 } else { answer };
            engine.submit(Request { prompt_scores, ..request(prompt, most) }).unwrap();
        }
        while engine.step() != Progress::Idle {
            assert_eq!(engine.check_books(), Ok(()));
        }
        let (mut said, mut scored, mut ends) = (vec![Vec::new(); 3], vec![Vec::new(); 3], 0);
        for event in engine.take_events() {
            let at = event.request().0 as usize;
            match event {
                Event::Token { token, .. } => said[at].push(token.id),
                Event::Scored { tokens, first, .. } => {
                    assert_eq!(first, from.max(1) + scored[at].len());
                    scored[at].extend(tokens);
                }
                Event::Finished { reason, .. } => {
                    assert_eq!(reason, FinishReason::Length);
                    ends += 1;
                }
                Event::Started { cached_tokens, .. } => assert!(cached_tokens < from || at == 1),
            }
        }
        assert_eq!(ends, 3);
        for (i, prompt) in prompts.iter().enumerate() {
            assert_eq!(said[i], expected(10, prompt, if i == 1 { 4 } else { answer }), "{rows} {wanted} {from}");
            let score =
                |place: usize| crate::score(&hashed(10, &prompt[..place]), prompt[place], 2, &[i as u32]).unwrap();
            let all: Vec<_> = if i == 1 { Vec::new() } else { (from..prompt.len()).map(score).collect() };
            assert_eq!(scored[i], all, "{rows} {wanted} {from}");
        }
    }
}

/// A model without a cache computes everything anew, and a vocabulary that is padded is not chosen from its padding.
#[test]
fn without_memory_nothing_is_kept_and_padding_is_never_chosen() {
    let bare = crate::ExecutorFacts { kv: Vec::new(), pool_pages: Vec::new(), ..facts(10, 4, 8, 8) };
    let mut engine = Engine::new(crate::sim::Blank::new(bare), Limits::default()).unwrap();
    for _ in 0..2 {
        engine.submit(request(&[1, 2, 3, 4, 5], 3)).unwrap();
        while engine.step() != Progress::Idle {}
        let events = engine.take_events();
        assert!(matches!(events.first(), Some(Event::Started { cached_tokens: 0, .. })), "{events:?}");
        assert_eq!(events.len(), 5);
    }
    let model = || -> toy::Model { Box::new(|_| Ok((0..40).map(|id| id as f32).collect())) };
    let limits = Limits { known_tokens: Some(35), ..Limits::default() };
    let mut engine = Engine::new(Toy::new(facts(40, 4, 8, 8), model()), limits).unwrap();
    engine.submit(request(&[1], 2)).unwrap();
    assert_eq!(answers(&mut engine)[0].0, [34, 34]);
    engine.set_known_tokens(7);
    engine.submit(request(&[1], 2)).unwrap();
    assert_eq!(answers(&mut engine).last().unwrap().0, [6, 6]);
}

/// Whatever ends a request, it holds nothing a call later, although nothing else is to be done.
#[test]
fn who_ends_alone_holds_nothing() {
    let mut engine = Engine::new(Toy::new(facts(10, 4, 30, 8), hashing(10)), Limits::default()).unwrap();
    engine.submit(Request { constraint: Some(Box::new(Only(4, 1))), ..request(&[1, 2, 3, 4, 5], 6) }).unwrap();
    assert!(matches!(answers(&mut engine)[0], (_, Some(FinishReason::Error(_)))));
    assert_eq!((engine.scheduler().running(), engine.scheduler().unfinished()), (0, 0));
    let id = engine.submit(request(&[6, 2, 3, 4, 5], 6)).unwrap();
    (0..3).for_each(|_| {
        engine.step();
    });
    assert_eq!((engine.scheduler().running(), engine.scheduler().unfinished()), (1, 1));
    assert!(!engine.flush() && !engine.next_weights());
    engine.abort(id);
    assert_eq!(engine.scheduler().running(), 0);
    assert!(engine.flush());
    assert_eq!((engine.scheduler().kv().cached_pages(), engine.scheduler().kv().pages().held_ids()), (0, 0));
}
