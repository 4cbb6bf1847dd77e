//! One request in the scheduler: what is known of its tokens, and what comes next.

use crate::arrivals::{Arrival, Cursor};
use crate::draft::{Draft, Habit};
use crate::kv::{Load, PageTable};
use crate::{
    FinishReason, PromptScores, Request, RequestId, Sampling, TokenMask, Usage, Verdict, admits, forbid, mask_below,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where a sequence stands between a draft and its verification.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Drafting {
    /// Nothing is drafted.
    #[default]
    Idle,
    /// A draft step is under way.
    Asked,
    /// The drafts wait for a step that verifies them.
    Ready(Draft),
    /// That step is under way, and how many tokens it leaves is not known.
    Verifying,
}

/// A request that waits or runs.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub id: RequestId,
    pub request: Request,
    /// Prompt and answer.
    pub tokens: Vec<u32>,
    /// Rows that are in the cache for certain: their steps are over.
    pub done: usize,
    /// Rows that are in the cache once the steps under way are over.
    pub fed: usize,
    /// Whether a step under way chooses its next token, and for which wanted row of that step.
    pub choosing: Option<usize>,
    /// Steps under way that hold its rows.
    pub in_flight: usize,
    pub table: PageTable,
    /// Most tokens, prompt and answer together.
    pub limit: usize,
    /// Occurrences in the prompt and in the answer, kept only while a penalty reads them.
    seen: BTreeMap<u32, (u32, u32)>,
    /// Its last event is out; what it holds goes with its last step.
    pub ended: bool,
    /// It has given its pages back and goes to the queue when its step is planned.
    pub is_out: bool,
    /// Tokens of the prompt that were in the cache when it first started; `None` before.
    pub cached: Option<usize>,
    /// First token of the prompt that has no score yet.
    pub scored_to: usize,
    /// Whole pages that the prefix tree has been given.
    pub kept_pages: usize,
    /// Tokens at which another request's prompt left this one's, worth a boundary of its own.
    pub branch: usize,
    /// The request whose prompt is the same and was submitted together with this one.
    pub twin: Option<RequestId>,
    /// Requests that came later and started earlier.
    pub passed: usize,
    /// Pages that have to come from the host first, in the order of the prefix.
    pub loads: Vec<Load>,
    /// What is there of `loads`, what the host has been told that it will be read, and what is to become of them.
    pub came: Cursor,
    pub announced: Cursor,
    pub arrival: Arrival,
    /// Steps that had been planned when it began to wait for them.
    pub loads_since: u64,
    pub drafting: Drafting,
    /// How its drafts fared, and whether it goes without.
    pub habit: Habit,
    /// Drafts that were verified, and those that stand.
    pub drafted: (usize, usize),
}

impl Sequence {
    pub fn new(id: RequestId, request: Request, limit: usize) -> Self {
        let tokens = request.prompt.clone();
        let mut sequence = Sequence {
            id,
            request,
            tokens,
            done: 0,
            fed: 0,
            choosing: None,
            in_flight: 0,
            table: PageTable::default(),
            limit,
            seen: BTreeMap::new(),
            ended: false,
            is_out: false,
            cached: None,
            scored_to: 0,
            kept_pages: 0,
            branch: 0,
            twin: None,
            passed: 0,
            loads: Vec::new(),
            came: Cursor::default(),
            announced: Cursor::default(),
            arrival: Arrival::default(),
            loads_since: 0,
            drafting: Drafting::Idle,
            habit: Habit::default(),
            drafted: (0, 0),
        };
        sequence.scored_to = sequence.request.prompt_scores.as_ref().map_or(usize::MAX, |s| s.from.max(1));
        if sequence.is_penalised() {
            for token in &sequence.request.prompt {
                sequence.seen.entry(*token).or_default().0 += 1;
            }
        }
        // An answer grows by a token a step; its memory does not.
        let room = limit.min(sequence.tokens.len() + 4096);
        sequence.tokens.reserve_exact(room - sequence.tokens.len().min(room));
        sequence
    }

    fn is_penalised(&self) -> bool {
        let s = &self.request.sampling;
        s.repetition_penalty != 1.0 || s.frequency_penalty != 0.0 || s.presence_penalty != 0.0
    }

    /// Whether its prefix is there, or will be when a step needs it.
    pub fn may_have_rows(&self) -> bool {
        self.loads.is_empty() || self.arrival == Arrival::Joins
    }

    /// Tokens whose rows are in no step yet: the rest of the prompt, or the token chosen last.
    pub fn unfed(&self) -> &[u32] {
        self.tokens.get(self.fed..).unwrap_or_default()
    }

    /// Whether the choice of a token depends on the tokens before it other than through the model.
    fn chooses_by_what_came(&self) -> bool {
        self.request.constraint.is_some() || self.is_penalised()
    }

    /// Whether a token may come behind the one that is being chosen.
    fn has_one_more(&self) -> bool {
        self.tokens.len() + 1 < self.limit
    }

    /// Whether it has no row until the token that is being chosen is known, and has one then unless it ends.
    pub fn needs_what_is_chosen(&self) -> bool {
        self.choosing.is_some() && !self.ended && !self.is_out && self.chooses_by_what_came() && self.has_one_more()
    }

    /// Rows that the next step could have. A token that is still being chosen counts where nothing about it has to be
    /// known before the next choice.
    pub fn rows_left(&self) -> usize {
        if matches!(self.drafting, Drafting::Asked | Drafting::Verifying) {
            return 0;
        }
        let known = self.unfed().len();
        let may_follow = !self.chooses_by_what_came() && self.has_one_more() && self.fed == self.tokens.len();
        known + usize::from(self.choosing.is_some() && may_follow)
    }

    /// Whether all its prompt is in steps, so that one row a step follows.
    pub fn is_answering(&self) -> bool {
        self.fed >= self.request.prompt.len()
    }

    /// Tokens chosen so far.
    pub fn answer_tokens(&self) -> usize {
        self.tokens.len() - self.request.prompt.len()
    }

    /// Most tokens of the sequence that may come from the cache: the last one's logits are needed, and those of tokens
    /// that are to be scored.
    pub fn most_cached(&self) -> usize {
        (self.tokens.len() - 1).min(self.scored_to.saturating_sub(1))
    }

    /// Positions that the cache must hold: the last token of an answer is never fed.
    pub fn cache_tokens(&self) -> usize {
        self.limit.saturating_sub(1).max(self.request.prompt.len())
    }

    /// Whether a token is to be chosen after the prompt at all.
    pub fn wants_answer(&self) -> bool {
        self.limit > self.request.prompt.len()
    }

    pub fn usage(&self) -> Usage {
        let prompt_tokens = self.request.prompt.len();
        let cached_tokens = self.cached.unwrap_or(0);
        let (drafted_tokens, accepted_tokens) = self.drafted;
        let completion_tokens = self.tokens.len() - prompt_tokens;
        Usage { prompt_tokens, cached_tokens, completion_tokens, drafted_tokens, accepted_tokens }
    }

    /// What to score, if the row at `position` predicts a token of the prompt that is to be scored.
    pub fn scores_at(&self, position: usize) -> Option<&PromptScores> {
        let scores = self.request.prompt_scores.as_ref()?;
        let next = position + 1;
        (next >= self.scored_to && next < self.request.prompt.len()).then_some(scores)
    }

    /// Parameters for the next token.
    pub fn sampling(&self) -> Sampling {
        self.sampling_after(&[])
    }

    /// The same for the token behind a run of drafts, as if they stood.
    pub fn sampling_after(&self, run: &[u32]) -> Sampling {
        let position = (self.tokens.len() + usize::from(self.choosing.is_some()) + run.len()) as u64;
        let mut sampling = Sampling { position, ..self.request.sampling.clone() };
        if self.is_penalised() {
            let mut seen = self.seen.clone();
            run.iter().for_each(|token| seen.entry(*token).or_default().1 += 1);
            sampling.seen = seen.into_iter().map(|(token, (prompt, answer))| (token, prompt, answer)).collect();
        }
        sampling
    }

    /// Tokens that may be chosen next, of a model with `vocab` logits; `known` admits those that its tokenizer knows.
    /// `None` for all. An error ends this request alone.
    pub fn mask(&mut self, vocab: usize, known: Option<&Arc<[u32]>>) -> Result<Option<Arc<[u32]>>, String> {
        if self.request.constraint.is_none() {
            return Ok(self.whole_mask(None, 0, vocab, known));
        }
        // A constraint that gives none admits nothing.
        Ok(self.masks(&[], vocab, known)?.into_iter().next().unwrap_or_else(|| Some(mask_below(0, vocab).into())))
    }

    /// The same for a run of proposed tokens: before each of them and behind the last, as far as they are admitted. Row i
    /// of a block to verify carries mask i.
    pub fn masks(
        &mut self,
        run: &[u32],
        vocab: usize,
        known: Option<&Arc<[u32]>>,
    ) -> Result<Vec<Option<Arc<[u32]>>>, String> {
        let own = match &mut self.request.constraint {
            Some(constraint) => constraint.masks(run)?,
            None => vec![None; run.len() + 1],
        };
        let mut masks = Vec::with_capacity(own.len());
        for (ahead, mask) in own.into_iter().enumerate() {
            let mask = self.whole_mask(mask, ahead, vocab, known);
            let goes_on = run.get(ahead).is_some_and(|token| admits(mask.as_deref(), *token));
            masks.push(mask);
            if !goes_on {
                break;
            }
        }
        Ok(masks)
    }

    /// A constraint's mask for the token `ahead` of the next, without what the model or the request rule out.
    fn whole_mask(
        &self,
        mask: Option<TokenMask>,
        ahead: usize,
        vocab: usize,
        known: Option<&Arc<[u32]>>,
    ) -> Option<Arc<[u32]>> {
        let chosen = self.answer_tokens() + usize::from(self.choosing.is_some()) + ahead;
        let is_early = chosen < self.request.min_tokens;
        // Most requests have no mask of their own, and share the one of all known tokens.
        if mask.is_none() && !is_early {
            return known.cloned();
        }
        let mut mask = mask.unwrap_or_else(|| mask_below(vocab, vocab));
        mask.resize(vocab.div_ceil(32), 0);
        if let Some(known) = known {
            mask.iter_mut().zip(known.iter()).for_each(|(a, b)| *a &= b);
        }
        if is_early {
            let mut without = mask.clone();
            forbid(&mut without, &self.request.stop);
            // A grammar that is done admits nothing but an ending; no minimum forces text past it.
            if without.iter().any(|word| *word != 0) {
                mask = without;
            }
        }
        Some(mask.into())
    }

    /// Takes a chosen token; says whether it was the last.
    pub fn push(&mut self, token: u32) -> Option<FinishReason> {
        self.tokens.push(token);
        if self.is_penalised() {
            self.seen.entry(token).or_default().1 += 1;
        }
        let verdict = match &mut self.request.constraint {
            Some(constraint) => constraint.advance(token),
            None => Ok(Verdict::Open),
        };
        match verdict {
            Err(text) => Some(FinishReason::Error(text)),
            Ok(Verdict::Complete) => Some(FinishReason::Stop(token)),
            Ok(Verdict::Open) if self.request.stop.contains(&token) => Some(FinishReason::Stop(token)),
            Ok(Verdict::Open) if self.tokens.len() >= self.limit => Some(FinishReason::Length),
            Ok(Verdict::Open) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toy::{Toy, facts, hashed};
    use crate::{Constraint, Executor, SequenceRows, Step, WantedRow};

    /// Tokens that count up from the first.
    #[derive(Debug)]
    struct Counting(u32);

    impl Constraint for Counting {
        fn mask(&mut self) -> Result<Option<TokenMask>, String> {
            Ok(Some(vec![1 << self.0]))
        }

        fn masks(&mut self, run: &[u32]) -> Result<Vec<Option<TokenMask>>, String> {
            let admitted = run.iter().zip(self.0..).take_while(|(token, next)| *token == next).count() as u32;
            Ok((self.0..=self.0 + admitted).map(|next| Some(vec![1 << next])).collect())
        }

        fn advance(&mut self, token: u32) -> Result<Verdict, String> {
            self.0 = token + 1;
            Ok(Verdict::Open)
        }
    }

    fn sequence(constraint: Option<Box<dyn Constraint>>, min_tokens: usize) -> Sequence {
        let stop = vec![5];
        let request = Request { prompt: vec![1, 2], stop, min_tokens, constraint, ..Request::default() };
        Sequence::new(RequestId(0), request, 20)
    }

    #[test]
    fn masks_of_a_run_end_where_it_leaves_the_grammar() {
        let mut held = sequence(Some(Box::new(Counting(3))), 0);
        let bits =
            |masks: Vec<Option<Arc<[u32]>>>| -> Vec<u32> { masks.iter().map(|m| m.as_ref().unwrap()[0]).collect() };
        assert_eq!(bits(held.masks(&[3, 4], 10, None).unwrap()), [1 << 3, 1 << 4, 1 << 5]);
        assert_eq!(bits(held.masks(&[3, 7, 4], 10, None).unwrap()), [1 << 3, 1 << 4]);
        // Nothing has moved, and what is chosen moves it.
        assert_eq!(held.mask(10, None), Ok(Some([1 << 3].into())));
        held.push(3);
        assert_eq!(bits(held.masks(&[4], 10, None).unwrap()), [1 << 4, 1 << 5]);
    }

    #[test]
    fn masks_of_a_run_count_its_tokens() {
        // Two tokens before an ending one, of a vocabulary whose last id is unknown.
        let masks = sequence(None, 2).masks(&[3, 4, 9, 4], 10, Some(&vec![0x1ff].into())).unwrap();
        let (open, known) = (0x1ff & !(1 << 5), 0x1ff);
        assert_eq!(masks, [open, open, known].map(|bits| Some(vec![bits].into())));
        assert_eq!(sequence(None, 0).masks(&[3], 10, None).unwrap(), [None, None]);
    }

    #[test]
    fn a_constraint_that_cannot_look_ahead_gives_one_mask() {
        #[derive(Debug)]
        struct Short;
        impl Constraint for Short {
            fn mask(&mut self) -> Result<Option<TokenMask>, String> {
                Ok(Some(vec![1 << 3]))
            }
            fn advance(&mut self, _: u32) -> Result<Verdict, String> {
                Ok(Verdict::Open)
            }
        }
        assert_eq!(sequence(Some(Box::new(Short)), 0).masks(&[3, 3], 10, None).unwrap(), [Some(vec![1 << 3].into())]);
    }

    /// A block of two drafts: each row draws under its own mask in one step.
    #[test]
    fn rows_of_a_block_carry_their_own_masks() {
        let mut held = sequence(Some(Box::new(Counting(3))), 0);
        let drafts = [3, 4];
        let mut step = Step { entry: "forward".into(), translation: vec![[1].into(), [1].into()], ..Step::default() };
        step.tokens = [1, 2, 3, 4].to_vec();
        step.positions = (0..4).collect();
        step.sequences.push(SequenceRows { start: 0, len: 4, pages: Arc::new(vec![0]) });
        for (ahead, mask) in held.masks(&drafts, 10, None).unwrap().into_iter().enumerate() {
            let sampling = Sampling { position: 2 + ahead as u64, ..Sampling::default() };
            step.wanted.push(WantedRow { row: 1 + ahead, sampling: Some(sampling), mask, logits: false });
        }
        let mut toy = Toy::new(facts(10, 4, 1, 4), Box::new(|history| Ok(hashed(10, history))));
        let ticket = toy.submit(step).unwrap();
        let output = toy.poll(ticket).unwrap().unwrap();
        let chosen: Vec<u32> = output.tokens.iter().map(|token| token.as_ref().unwrap().id).collect();
        assert_eq!(chosen, [3, 4, 5]);
        assert!(chosen.iter().all(|token| held.push(*token).is_none() || *token == 5));
    }
}
