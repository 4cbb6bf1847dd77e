//! The scheduler and its drafts, step by step: who is asked, what a block holds, and what its output leaves.

use super::*;
use crate::draft::DraftLimits;
use crate::kv::Load;
use crate::scheduler::tests::{answer, request};
use crate::toy::facts;
use crate::{Constraint, ExecutorFacts, FinishReason, Limits, Request, SampledToken, TokenMask, Verdict};

/// A scheduler of an executor with a drafter for blocks of up to four rows.
fn drafted(running: usize, step_tokens: usize) -> Scheduler {
    let draft = DraftFacts { entry: "draft".into(), blocks: vec![2, 3, 4], sequences: 4, candidates: 2 };
    let facts = ExecutorFacts { max_wanted: 16, draft: Some(draft), ..facts(100, 4, 20, step_tokens) };
    Scheduler::new(facts, Limits { context_tokens: Some(40), running, ..Limits::default() }).unwrap()
}

/// One that runs a request of three tokens, whose answer has begun with 7.
fn begun(request: Request) -> Scheduler {
    let mut s = drafted(1, 16);
    s.submit(request).unwrap();
    let (step, shares) = s.plan().unwrap();
    s.absorb(&shares, &mut answer(&step, 7), &mut Vec::new());
    s
}

/// Drafts of these tokens, none of them the best by itself.
fn draft(tokens: &[u32]) -> Draft {
    let candidates = tokens.iter().flat_map(|token| [token + 50, *token]).collect();
    Draft { tokens: tokens.to_vec(), candidates, probabilities: [0.25, 0.75].repeat(tokens.len()) }
}

/// Plans a draft step and answers it with the same for all.
fn propose(s: &mut Scheduler, draft: &Draft) -> Vec<Event> {
    let (step, shares) = s.plan().unwrap();
    assert!(!step.drafts.is_empty(), "{step:?}");
    let mut output = StepOutput { drafts: vec![draft.clone(); step.drafts.len()], ..StepOutput::default() };
    let mut events = Vec::new();
    s.absorb(&shares, &mut output, &mut events);
    assert_eq!(s.check_books(&[]), Ok(()));
    events
}

/// Plans a step and answers its rows so.
fn verify(s: &mut Scheduler, tokens: &[Option<u32>], faults: &[(usize, String)]) -> Vec<Event> {
    let (step, shares) = s.plan().unwrap();
    assert_eq!(step.wanted.len(), tokens.len());
    let chosen = |id: u32| SampledToken { id, ..SampledToken::default() };
    let mut output = StepOutput {
        tokens: tokens.iter().map(|token| token.map(chosen)).collect(),
        logits: vec![None; tokens.len()],
        faults: faults.to_vec(),
        ..StepOutput::default()
    };
    let mut events = Vec::new();
    s.absorb(&shares, &mut output, &mut events);
    events
}

/// The error of the last event.
fn error(events: &[Event]) -> &str {
    match events.last() {
        Some(Event::Finished { reason: FinishReason::Error(text), .. }) => text,
        other => panic!("{other:?}"),
    }
}

/// Tokens that count up; the answer is complete with `last`.
#[derive(Debug)]
struct Counts {
    next: u32,
    last: u32,
    looks_ahead: bool,
}

impl Constraint for Counts {
    fn mask(&mut self) -> Result<Option<TokenMask>, String> {
        Ok(Some(vec![1 << self.next]))
    }

    fn masks(&mut self, run: &[u32]) -> Result<Vec<Option<TokenMask>>, String> {
        let run = if self.looks_ahead { run } else { &[] };
        let admitted = run.iter().zip(self.next..).take_while(|(token, next)| *token == next).count() as u32;
        Ok((self.next..=self.next + admitted).map(|next| Some(vec![1 << next])).collect())
    }

    fn advance(&mut self, token: u32) -> Result<Verdict, String> {
        self.next = token + 1;
        Ok(if token == self.last { Verdict::Complete } else { Verdict::Open })
    }
}

fn counting(last: u32, looks_ahead: bool) -> Request {
    let constraint: Box<dyn Constraint> = Box::new(Counts { next: 7, last, looks_ahead });
    Request { constraint: Some(constraint), stop: Vec::new(), ..request(3, 20) }
}

/// Two tokens may follow the anchor: of three slots two are verified, with their candidates and no others.
#[test]
fn a_block_holds_the_slots_that_the_answer_has_room_for() {
    let mut s = begun(request(3, 4));
    propose(&mut s, &draft(&[11, 12, 13]));
    let (step, _) = s.plan().unwrap();
    assert_eq!((step.tokens.as_slice(), step.positions.as_slice()), (&[7, 11, 12][..], &[3, 4, 5][..]));
    assert_eq!(*step.blocks[0].draft, draft(&[11, 12]));
    assert_eq!(s.check_books(&[]), Ok(()));
}

#[test]
fn the_drafters_path_is_taken_or_each_slots_first_candidate() {
    for selects in [true, false] {
        let mut s = begun(request(3, 20));
        s.set_drafts(DraftLimits { selects, ..DraftLimits::default() });
        propose(&mut s, &draft(&[11, 12, 13]));
        let (step, _) = s.plan().unwrap();
        let path = if selects { [7, 11, 12, 13] } else { [7, 61, 62, 63] };
        assert_eq!((step.tokens.as_slice(), step.blocks[0].draft.tokens.len()), (&path[..], 3));
        assert_eq!(step.blocks[0].draft.probabilities[..2], if selects { [0.25, 0.75] } else { [1.0, 0.0] });
    }
}

#[test]
fn drafts_can_be_switched_off_while_an_answer_is_written() {
    let mut s = begun(request(3, 20));
    s.set_drafts(DraftLimits { rows: Some(0), ..DraftLimits::default() });
    assert_eq!(s.drafts().rows, Some(0));
    assert_eq!(s.plan().map(|(step, _)| (step.drafts.len(), step.tokens)), Some((0, vec![7])));
}

#[test]
fn drafts_that_are_not_whole_are_refused() {
    let short = draft(&[11, 12]);
    let uneven = Draft { probabilities: vec![0.25; 5], ..draft(&[11, 12, 13]) };
    for bad in [short, uneven] {
        let events = propose(&mut begun(request(3, 20)), &bad);
        assert!(error(&events).starts_with("E0315"), "{events:?}");
    }
}

#[test]
fn who_is_given_up_while_its_drafts_are_made_goes_with_them() {
    let mut s = begun(request(3, 20));
    let (_, shares) = s.plan().unwrap();
    let id = s.running[0].id;
    s.abort(id, &mut Vec::new());
    assert_eq!(s.running(), 1);
    let mut output = StepOutput { drafts: vec![draft(&[11, 12, 13])], ..StepOutput::default() };
    s.absorb(&shares, &mut output, &mut Vec::new());
    assert_eq!((s.running(), s.kv().free_pages()), (0, s.kv().total_pages()));
}

/// An answer that is read again beside one with drafts may take nearly the whole step.
#[test]
fn a_block_takes_what_others_leave_of_a_step() {
    let mut s = drafted(2, 6);
    s.submit(request(1, 12)).unwrap();
    s.submit(request(1, 12)).unwrap();
    let (step, shares) = s.plan().unwrap();
    s.absorb(&shares, &mut answer(&step, 7), &mut Vec::new());
    propose(&mut s, &draft(&[11, 12]));
    // As one is that has given way and found the beginning of its answer again.
    s.running[0].drafting = Drafting::Idle;
    s.running[0].tokens.extend([8; 4]);
    let (step, _) = s.plan().unwrap();
    let lens: Vec<usize> = step.sequences.iter().map(|s| s.len).collect();
    assert_eq!((lens.as_slice(), step.tokens.len(), step.blocks.len()), (&[5, 1][..], 6, 0));
}

/// While its prefix comes from the host nothing can be drafted, though its answer is all that is unread.
#[test]
fn whose_prefix_is_on_its_way_is_not_drafted_for() {
    let mut s = begun(request(3, 20));
    s.running[0].loads.push(Load { kind: 0, page: 1, host: 1 });
    assert!(s.plan().is_none());
    s.running[0].loads.clear();
    assert!(s.plan().is_some_and(|(step, _)| !step.drafts.is_empty()));
}

#[test]
fn a_grammar_that_cannot_look_ahead_is_not_drafted_for_again() {
    let mut s = begun(counting(30, false));
    propose(&mut s, &draft(&[8, 9, 10]));
    for token in 8..11 {
        let (step, shares) = s.plan().unwrap();
        assert_eq!((step.tokens.as_slice(), step.blocks.len(), step.wanted.len()), (&[token as i32 - 1][..], 0, 1));
        s.absorb(&shares, &mut answer(&step, token), &mut Vec::new());
    }
    assert_eq!(s.counts().draft.steps, 1);
}

/// The draft that a mask rules out has no row behind it, but who draws there must know how probable it was.
#[test]
fn the_last_row_knows_the_draft_that_its_mask_rules_out() {
    let mut s = begun(counting(30, true));
    propose(&mut s, &draft(&[8, 40, 10]));
    let (step, _) = s.plan().unwrap();
    assert_eq!((step.tokens.as_slice(), step.wanted.len()), (&[7, 8][..], 2));
    assert_eq!(*step.blocks[0].draft, draft(&[8, 40]));
}

/// What is behind a rejected draft was never reached, nor what is behind the end of an answer.
#[test]
fn slots_are_counted_as_far_as_they_were_reached() {
    let mut s = begun(request(3, 20));
    propose(&mut s, &draft(&[11, 12, 13]));
    verify(&mut s, &[Some(11), Some(20), None, None], &[]);
    let counts = s.counts().draft;
    assert_eq!((counts.drafted, counts.accepted, counts.committed), (3, 1, 2));
    assert_eq!(counts.slots[..3], [(1, 1), (1, 0), (0, 0)]);
    assert!((counts.rate() - 1.0 / 3.0).abs() < 1e-9);
    let mut s = begun(counting(8, true));
    propose(&mut s, &draft(&[8, 9, 10]));
    let events = verify(&mut s, &[8, 9, 10, 11].map(Some), &[]);
    assert!(matches!(events.last(), Some(Event::Finished { reason: FinishReason::Stop(8), .. })), "{events:?}");
    assert_eq!(s.counts().draft.slots[..3], [(1, 1), (0, 0), (0, 0)]);
}

#[test]
fn a_row_without_a_token_ends_its_answer() {
    let mut s = begun(request(3, 20));
    s.set_drafts(DraftLimits { rows: Some(0), ..DraftLimits::default() });
    let events = verify(&mut s, &[None], &[]);
    assert!(error(&events).starts_with("E0306"), "{events:?}");
    // In a block, behind a token that stands.
    let mut s = begun(request(3, 20));
    propose(&mut s, &draft(&[11, 12, 13]));
    let events = verify(&mut s, &[Some(11), None, None, None], &[(1, "it was torn".into())]);
    assert_eq!((events.len(), error(&events)), (2, "it was torn"));
}
