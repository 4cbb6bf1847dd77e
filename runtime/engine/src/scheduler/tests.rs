//! The scheduler alone: what each step holds, what is refused, what outputs do.

use super::*;
use crate::toy::facts;
use crate::{SampledToken, Sampling, StepOutput};

fn request(prompt: usize, max_tokens: usize) -> Request {
    let prompt = (0..prompt as u32).collect();
    Request { prompt, max_tokens: Some(max_tokens), stop: vec![9], ..Request::default() }
}

fn scheduler(running: usize) -> Scheduler {
    let limits = Limits { context_tokens: Some(24), running, ..Limits::default() };
    Scheduler::new(facts(100, 4, 8, 6), limits).unwrap()
}

/// One line per sequence of a step: its tokens, the first position, the pages, `?` where a token is wanted.
fn show(step: &Step) -> String {
    let mut lines = Vec::new();
    for s in &step.sequences {
        let rows = s.start..s.start + s.len;
        let wanted = if step.wanted.iter().any(|w| rows.contains(&w.row)) { " ?" } else { "" };
        let (tokens, at) = (&step.tokens[rows.clone()], step.positions[s.start]);
        lines.push(format!("{tokens:?} at {at} in {:?}{wanted}", s.pages));
    }
    lines.join("; ")
}

fn answer(step: &Step, token: u32) -> StepOutput {
    let token = Some(SampledToken { id: token, logprob: None, top: Vec::new(), listed: Vec::new() });
    StepOutput {
        tokens: vec![token; step.wanted.len()],
        logits: vec![None; step.wanted.len()],
        ..StepOutput::default()
    }
}

fn steps(scheduler: &mut Scheduler, token: u32) -> Vec<String> {
    let mut seen = Vec::new();
    while let Some((step, shares)) = scheduler.plan() {
        seen.push(show(&step));
        scheduler.absorb(&shares, &mut answer(&step, token), &mut Vec::new());
    }
    seen
}

#[test]
fn steps_share_tables_until_pages_move() {
    let mut s = scheduler(2);
    s.submit(request(2, 3)).unwrap();
    let (first, shares) = s.plan().unwrap();
    s.absorb(&shares, &mut answer(&first, 7), &mut Vec::new());
    let (second, shares) = s.plan().unwrap();
    let shared =
        |a: &Step, b: &Step| a.translation.iter().zip(&b.translation).all(|(a, b)| std::sync::Arc::ptr_eq(a, b));
    assert!(!second.translation.is_empty() && shared(&first, &second));
    s.absorb(&shares, &mut answer(&second, 7), &mut Vec::new());
    s.submit(request(2, 3)).unwrap();
    let (third, _) = s.plan().unwrap();
    // The newcomer's page is in the new table, and the steps that were planned before do not see it.
    let page = third.sequences.iter().flat_map(|s| s.pages.iter()).max().copied().unwrap() as usize;
    assert_eq!((second.translation[0][page], third.translation[0][page]), (-1, page as i32));
}

#[test]
fn a_prompt_is_read_in_chunks_and_then_one_row_a_step() {
    let mut s = scheduler(1);
    s.submit(request(8, 3)).unwrap();
    s.submit(request(1, 1)).unwrap();
    assert_eq!(
        steps(&mut s, 7),
        [
            "[0, 1, 2, 3, 4, 5] at 0 in [1, 2]",
            "[6, 7] at 6 in [1, 2] ?",
            "[7] at 8 in [1, 2, 3] ?",
            "[7] at 9 in [1, 2, 3] ?",
            "[0] at 0 in [3] ?"
        ]
    );
    assert_eq!(s.kv().free_pages(), 8);
}

#[test]
fn answers_go_before_prompts_and_share_their_step() {
    let mut s = scheduler(2);
    s.submit(request(1, 4)).unwrap();
    s.submit(request(9, 1)).unwrap();
    assert_eq!(
        steps(&mut s, 7),
        [
            "[0] at 0 in [1] ?; [0, 1, 2, 3, 4] at 0 in [2, 3]",
            "[7] at 1 in [1] ?; [5, 6, 7, 8] at 5 in [2, 3, 4] ?",
            "[7] at 2 in [1] ?",
            "[7] at 3 in [1] ?"
        ]
    );
}

#[test]
fn a_request_waits_for_pages_and_gets_them() {
    let mut s = scheduler(4);
    // Without a token that could end them early, both need room for all of their answers.
    for _ in 0..2 {
        s.submit(Request { stop: Vec::new(), ..request(4, 20) }).unwrap();
    }
    let seen = steps(&mut s, 9);
    assert_eq!(seen.len(), 40);
    assert!(seen.iter().all(|step| !step.contains(';')));
}

#[test]
fn what_can_never_fit_is_refused_before_it_is_queued() {
    let mut s = scheduler(1);
    let code = |r: Result<RequestId, Refusal>| r.unwrap_err().to_string().chars().take(5).collect::<String>();
    assert_eq!(s.limit_tokens(), 24);
    assert_eq!(code(s.submit(request(0, 1))), "E0101");
    assert_eq!(code(s.submit(Request { prompt: vec![100], ..request(1, 1) })), "E0102");
    assert_eq!(code(s.submit(request(24, 1))), "E0103");
    assert_eq!(code(s.submit(Request { max_tokens: None, ..request(24, 1) })), "E0103");
    assert_eq!(code(s.submit(request(20, 5))), "E0104");
    assert_eq!(code(s.submit(request(20, usize::MAX))), "E0104");
    assert_eq!(code(s.submit(request(1, 0))), "E0105");
    let sampling = Sampling { top_p: 2.0, ..Sampling::default() };
    assert_eq!(code(s.submit(Request { sampling, ..request(1, 1) })), "E0203");
    assert_eq!(s.unfinished(), 0);
    assert!(s.submit(request(20, 4)).is_ok());
}

#[test]
fn without_a_limit_the_answer_fills_the_context() {
    let mut s = scheduler(1);
    s.submit(Request { max_tokens: None, ..request(20, 1) }).unwrap();
    assert_eq!(steps(&mut s, 7).len(), 4 + 3);
}

#[test]
fn the_pool_bounds_the_sequence_when_the_context_does_not() {
    let s = Scheduler::new(facts(100, 4, 2, 6), Limits::default()).unwrap();
    assert_eq!(s.limit_tokens(), 9);
    assert!(Scheduler::new(facts(100, 4, 0, 6), Limits::default()).unwrap_err().starts_with("E0304"));
    assert!(Scheduler::new(facts(100, 4, 2, 0), Limits::default()).unwrap_err().starts_with("E0303"));
    let mut odd = facts(100, 4, 2, 6);
    odd.kv[1].page_tokens = 8;
    assert!(Scheduler::new(odd, Limits::default()).unwrap_err().starts_with("E0301"));
}

#[test]
fn counts_for_penalties_follow_the_answer() {
    let mut s = scheduler(1);
    let sampling = Sampling { presence_penalty: 1.0, ..Sampling::default() };
    s.submit(Request { prompt: vec![5, 5, 7], sampling, ..request(1, 3) }).unwrap();
    let mut seen = Vec::new();
    while let Some((step, shares)) = s.plan() {
        seen.push(step.wanted[0].sampling.clone().unwrap().seen);
        s.absorb(&shares, &mut answer(&step, 7), &mut Vec::new());
    }
    assert_eq!(seen, [vec![(5, 2, 0), (7, 1, 0)], vec![(5, 2, 0), (7, 1, 1)], vec![(5, 2, 0), (7, 1, 2)]]);
}

#[test]
fn an_output_that_breaks_the_contract_ends_its_requests_only() {
    let mut s = scheduler(1);
    for _ in 0..3 {
        s.submit(request(2, 1)).unwrap();
    }
    let mut events = Vec::new();
    let (_, shares) = s.plan().unwrap();
    s.absorb(&shares, &mut StepOutput::default(), &mut events);
    let (step, shares) = s.plan().unwrap();
    s.absorb(&shares, &mut answer(&step, 100), &mut events);
    let (step, shares) = s.plan().unwrap();
    s.absorb(&shares, &mut answer(&step, 9), &mut events);
    let reasons: Vec<String> = events
        .iter()
        .filter_map(|e| match e {
            Event::Finished { reason: FinishReason::Error(text), .. } => Some(text[..5].to_owned()),
            Event::Finished { reason, .. } => Some(format!("{reason:?}")),
            Event::Started { .. } | Event::Token { .. } | Event::Scored { .. } => None,
        })
        .collect();
    assert_eq!(reasons, ["E0305", "E0306", "Stop(9)"]);
    assert_eq!(s.kv().free_pages(), s.kv().total_pages());
}

#[test]
fn the_shortest_context_is_two_tokens_and_steps_are_counted() {
    let limits = |context| Limits { context_tokens: Some(context), ..Limits::default() };
    assert!(Scheduler::new(facts(100, 4, 8, 6), limits(1)).is_err_and(|e| e.starts_with("E0304")));
    let mut scheduler = Scheduler::new(facts(100, 4, 8, 6), limits(2)).unwrap();
    scheduler.submit(request(1, 1)).unwrap();
    assert_eq!(steps(&mut scheduler, 5).len(), 1);
    assert_eq!(scheduler.counts(), Counts { steps: 1, rows: 1, ..Counts::default() });
    // Without a cache there are as many ids as positions.
    let bare = ExecutorFacts { kv: Vec::new(), pool_pages: Vec::new(), ..facts(100, 4, 8, 6) };
    assert_eq!(Scheduler::new(bare, limits(24)).unwrap().kv().total_pages(), 24);
}

/// What an executor hands back may say anything; nothing of it is in the next step.
#[test]
fn a_used_step_leaves_nothing_to_the_next() {
    let mut scheduler = scheduler(1);
    scheduler.submit(request(3, 2)).unwrap();
    let (step, shares) = scheduler.plan().unwrap();
    let shown = show(&step);
    scheduler.absorb(&shares, &mut answer(&step, 5), &mut Vec::new());
    scheduler.recycle(step.clone());
    let (next, _) = scheduler.plan().unwrap();
    assert_eq!((shown.as_str(), show(&next).as_str()), ("[0, 1, 2] at 0 in [1] ?", "[5] at 3 in [1] ?"));
    assert_eq!((next.tokens.len(), next.sequences.len(), next.wanted.len(), next.translation.len()), (1, 1, 1, 2));
}

/// Only what has the same prompt, the same namespace and no scores of its own is forked.
#[test]
fn twins_are_forked_and_others_are_not() {
    let mut scheduler = Scheduler::new(facts(100, 4, 40, 60), Limits { running: 4, ..Limits::default() }).unwrap();
    let other = Request { prompt: vec![8; 9], ..request(9, 2) };
    let salt = Some("s".into());
    let salted = Request { namespace: crate::Namespace { adapter: None, salt }, ..request(9, 2) };
    let scored = Request { prompt_scores: Some(crate::PromptScores::default()), ..request(9, 2) };
    scheduler.submit_all(vec![request(9, 2), other, salted, scored]).unwrap();
    assert_eq!(scheduler.unfinished(), 4);
    let (step, shares) = scheduler.plan().unwrap();
    assert_eq!((step.sequences.len(), step.wanted.len()), (4, 4));
    assert_eq!(scheduler.unfinished(), 4);
    scheduler.abandon_steps();
    drop(shares);
    let mut scheduler = Scheduler::new(facts(100, 4, 40, 60), Limits { running: 4, ..Limits::default() }).unwrap();
    scheduler.submit_all(vec![request(9, 2), request(9, 2), request(9, 2)]).unwrap();
    steps(&mut scheduler, 5);
    assert_eq!(scheduler.counts().forked, 2);
}

/// A token that no vocabulary has ends its request.
#[test]
fn the_first_id_behind_the_vocabulary_is_no_token() {
    for (token, is_one) in [(99, true), (100, false)] {
        let mut scheduler = scheduler(1);
        scheduler.submit(request(3, 2)).unwrap();
        let (step, shares) = scheduler.plan().unwrap();
        let mut events = Vec::new();
        scheduler.absorb(&shares, &mut answer(&step, token), &mut events);
        let ended = events.iter().any(
            |e| matches!(e, Event::Finished { reason: FinishReason::Error(text), .. } if text.starts_with("E0306")),
        );
        assert_eq!(ended, !is_one, "{events:?}");
    }
}
