//! The engine over an executor on a thread of its own, against the same one without.

use super::*;
use engine::toy::{Model, Toy, facts, hashed};
use engine::{Engine, Event, FinishReason, Limits, MemoryTier, Progress, Request, SampledToken, Sampling};
use engine::{SequenceRows, WantedRow};

const VOCAB: usize = 50;
/// Longer than any step here takes.
const LONG: Duration = Duration::from_secs(60);

fn toy(pages: usize) -> Toy {
    let model: Model = Box::new(|history| Ok(hashed(VOCAB, history)));
    Toy::new(facts(VOCAB, 4, pages, 16), model)
}

/// Drives an engine to its end: tokens and end of each request by its number.
fn answers<E: Executor>(engine: &mut Engine<E>) -> Vec<(Vec<u32>, Option<FinishReason>)> {
    let mut answers: Vec<(Vec<u32>, Option<FinishReason>)> = Vec::new();
    loop {
        match engine.step() {
            Progress::Idle => break,
            Progress::Waiting => engine.executor_mut().wait_for_step(LONG),
            Progress::Worked => {}
        }
    }
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

/// Requests of several lengths; some are penalised, and their next choice depends on the last one.
fn requests() -> Vec<Request> {
    let request = |i: u32| Request {
        prompt: (0..2 + 5 * (i % 3)).map(|at| (at * 7 + i) % VOCAB as u32).collect(),
        max_tokens: Some(3 + 4 * (i as usize % 4)),
        stop: vec![i % 7],
        sampling: Sampling {
            temperature: if i.is_multiple_of(2) { 0.0 } else { 0.9 },
            seed: u64::from(i),
            frequency_penalty: if i % 12 == 3 { 0.7 } else { 0.0 },
            ..Sampling::default()
        },
        ..Request::default()
    };
    (0..24).map(request).collect()
}

fn limits() -> Limits {
    Limits { running: 4, ..Limits::default() }
}

#[test]
fn answers_are_those_of_one_step_at_a_time() {
    // Few pages, so that requests give their places up, and many.
    for pages in [10, 60] {
        let mut plain = Engine::new(toy(pages), limits()).unwrap();
        let mut ahead = Engine::new(Ahead::new(toy(pages)).unwrap(), limits()).unwrap();
        for (one, same) in requests().into_iter().zip(requests()) {
            plain.submit(one).unwrap();
            ahead.submit(same).unwrap();
        }
        assert_eq!(answers(&mut ahead), answers(&mut plain));
        assert_eq!(ahead.check_books(), Ok(()));
        // An answer that a stop token ends has had a row too many; with few pages, who gives way when differs too.
        let rows = [ahead.scheduler().counts().rows, plain.scheduler().counts().rows];
        assert!(pages == 10 || rows[0] > rows[1], "no step was planned ahead: {rows:?}");
    }
}

#[test]
fn pages_go_to_the_host_and_back() {
    let long = |i: u32| Request {
        prompt: (0..14).map(|at| (at * 3 + i) % VOCAB as u32).collect(),
        max_tokens: Some(6),
        ..Request::default()
    };
    let order = [0, 1, 2, 3, 0, 1, 2, 3, 0];
    let mut plain = Engine::new(toy(10), limits()).unwrap();
    let tier = Box::new(MemoryTier::new(1 << 20));
    let mut ahead = Engine::new(Ahead::new(toy(10)).unwrap(), limits()).unwrap().with_host_tier(tier);
    for i in order {
        let id = plain.submit(long(i)).unwrap().0 as usize;
        let wanted = answers(&mut plain).swap_remove(id);
        let id = ahead.submit(long(i)).unwrap().0 as usize;
        assert_eq!(answers(&mut ahead).swap_remove(id), wanted);
    }
    assert!(ahead.scheduler().kv().host_use().loaded_pages > 0, "nothing came back");
}

/// A step of one row that stands for `token`.
fn step(token: i32) -> Step {
    let pages = Arc::new(vec![1]);
    Step {
        entry: "forward".into(),
        tokens: vec![token],
        positions: vec![0],
        sequences: vec![SequenceRows { start: 0, len: 1, pages }],
        translation: vec![vec![-1, 1].into(), vec![-1, 1].into()],
        wanted: vec![WantedRow {
            row: 0,
            sampling: Some(Sampling { position: 1, ..Sampling::default() }),
            mask: None,
            logits: false,
        }],
        ..Step::default()
    }
}

fn ended(ahead: &mut Ahead<Toy>, ticket: Ticket) -> Result<Vec<Option<SampledToken>>, StepError> {
    loop {
        match ahead.poll(ticket)? {
            Some(output) => return Ok(output.tokens),
            None => ahead.wait_for_step(LONG),
        }
    }
}

#[test]
fn a_row_stands_for_the_choice_of_the_step_before() {
    let mut ahead = Ahead::new(toy(4)).unwrap();
    let first = ahead.submit(step(5)).unwrap();
    let second = ahead.submit(step(-1)).unwrap();
    let chosen = ended(&mut ahead, first).unwrap()[0].as_ref().unwrap().id;
    let behind = ended(&mut ahead, second).unwrap();
    let known = ahead.submit(step(chosen as i32)).unwrap();
    assert_eq!(ended(&mut ahead, known).unwrap(), behind);
    let wrong = ahead.submit(step(-3)).unwrap();
    let error = ended(&mut ahead, wrong).unwrap_err().to_string();
    assert!(error.contains("a row has token -3, and the step before chose 1 tokens"), "{error}");
    assert!(ahead.poll(wrong).unwrap_err().to_string().contains("is not under way"));
}

#[test]
fn a_fault_is_that_of_the_step_in_which_it_shows() {
    let mut ahead = Ahead::new(toy(4)).unwrap();
    ahead.zero_pages(0, &[99]).unwrap();
    let broken = ahead.submit(step(5)).unwrap();
    let behind = ahead.submit(step(-1)).unwrap();
    let after = ahead.submit(step(5)).unwrap();
    let error = ended(&mut ahead, broken).unwrap_err().to_string();
    assert!(error.contains("cache memory could not be changed") && error.contains("page 99 of kind 0"), "{error}");
    assert!(ended(&mut ahead, behind).is_ok() && ended(&mut ahead, after).is_ok());

    let model: Model = Box::new(|history| match history {
        [7, ..] => panic!("a defect"),
        _ => Ok(hashed(VOCAB, history)),
    });
    let mut ahead = Ahead::new(Toy::new(facts(VOCAB, 4, 4, 16), model)).unwrap();
    let (broken, after) = (ahead.submit(step(7)).unwrap(), ahead.submit(step(5)).unwrap());
    let error = ended(&mut ahead, broken).unwrap_err().to_string();
    assert!(error.contains("the executor broke off: a defect"), "{error}");
    assert!(ended(&mut ahead, after).is_ok());
}

#[test]
fn whoever_asks_for_a_later_step_wants_no_earlier_one() {
    let mut ahead = Ahead::new(toy(4)).unwrap();
    let lost = ahead.submit(step(5)).unwrap();
    let asked = ahead.submit(step(6)).unwrap();
    assert!(ended(&mut ahead, asked).is_ok());
    assert!(locked(&ahead.shared.queue).over.is_empty(), "an output that nobody takes is kept");
    assert!(ahead.poll(lost).is_err());
}

/// A copy that goes wrong ends all that use the memory.
#[test]
fn broken_memory_is_nobodys() {
    let mut engine = Engine::new(Ahead::new(toy(60)).unwrap(), limits()).unwrap();
    for request in requests().into_iter().take(4) {
        engine.submit(request).unwrap();
    }
    engine.executor_mut().copy_pages(0, &[(1, 99)]).unwrap();
    assert!(
        engine.executor_mut().read_layer(0, 0, 1, &mut Vec::new()).unwrap_err().to_string().contains("cache memory")
    );
    for (_, reason) in answers(&mut engine) {
        assert!(matches!(&reason, Some(FinishReason::Error(text)) if text.contains("cache memory")), "{reason:?}");
    }
    engine.submit(requests().swap_remove(0)).unwrap();
    assert_eq!(
        answers(&mut engine).last().unwrap().1.as_ref().map(|r| matches!(r, FinishReason::Error(_))),
        Some(false)
    );
}

#[test]
fn a_drafter_takes_one_step_at_a_time() {
    let toy = toy(4);
    let mut facts = toy.facts().clone();
    facts.draft = Some(engine::DraftFacts { entry: "draft".into(), blocks: vec![4], sequences: 1, candidates: 1 });
    let error = Ahead::new(Toy::new(facts, Box::new(|_| Ok(Vec::new())))).err().unwrap().to_string();
    assert!(error.contains("drafter"), "{error}");
}
