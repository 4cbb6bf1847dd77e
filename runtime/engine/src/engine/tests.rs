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
    let usage = Usage { prompt_tokens: 3, cached_tokens: 0, completion_tokens: 4 };
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
