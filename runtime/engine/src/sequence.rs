//! One request in the scheduler: what is known of its tokens, and what comes next.

use crate::{
    FinishReason, PromptScores, Request, RequestId, Sampling, TokenMask, Usage, Verdict, VirtualPage, admits, forbid,
    mask_below,
};
use std::collections::BTreeMap;

/// A request that waits or runs. Rows `0 .. fed` are in the cache; the others are still to be computed.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub id: RequestId,
    pub request: Request,
    /// Prompt and answer.
    pub tokens: Vec<u32>,
    pub fed: usize,
    pub pages: Vec<VirtualPage>,
    /// Most tokens, prompt and answer together.
    pub limit: usize,
    /// Occurrences in the prompt and in the answer, kept only while a penalty reads them.
    seen: BTreeMap<u32, (u32, u32)>,
    /// Set when the client has given up while a step with its rows was under way.
    pub aborted: bool,
}

impl Sequence {
    pub fn new(id: RequestId, request: Request, limit: usize) -> Self {
        let tokens = request.prompt.clone();
        let mut sequence =
            Sequence { id, request, tokens, fed: 0, pages: Vec::new(), limit, seen: BTreeMap::new(), aborted: false };
        if sequence.is_penalised() {
            for token in &sequence.request.prompt {
                sequence.seen.entry(*token).or_default().0 += 1;
            }
        }
        sequence
    }

    fn is_penalised(&self) -> bool {
        let s = &self.request.sampling;
        s.repetition_penalty != 1.0 || s.frequency_penalty != 0.0 || s.presence_penalty != 0.0
    }

    /// Tokens that are not in the cache yet: the rest of the prompt, or the token chosen last.
    pub fn unfed(&self) -> &[u32] {
        self.tokens.get(self.fed..).unwrap_or_default()
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
        Usage { prompt_tokens, cached_tokens: 0, completion_tokens: self.tokens.len() - prompt_tokens }
    }

    /// What to score, if the row at `position` predicts a token of the prompt that is to be scored.
    pub fn scores_at(&self, position: usize) -> Option<&PromptScores> {
        let scores = self.request.prompt_scores.as_ref()?;
        let next = position + 1;
        (next >= scores.from && next < self.request.prompt.len()).then_some(scores)
    }

    /// Parameters for the next token.
    pub fn sampling(&self) -> Sampling {
        let seen = self.seen.iter().map(|(token, (prompt, answer))| (*token, *prompt, *answer)).collect();
        Sampling { seen, position: self.tokens.len() as u64, ..self.request.sampling.clone() }
    }

    /// Tokens that may be chosen next, of a model with `vocab` logits whose tokenizer knows the first `known`; `None` for
    /// all. An error ends this request alone.
    pub fn mask(&mut self, vocab: usize, known: usize) -> Result<Option<TokenMask>, String> {
        // A constraint that gives none admits nothing.
        Ok(self.masks(&[], vocab, known)?.into_iter().next().unwrap_or_else(|| Some(mask_below(0, vocab))))
    }

    /// The same for a run of proposed tokens: before each of them and behind the last, as far as they are admitted. Row i
    /// of a block to verify carries mask i.
    pub fn masks(&mut self, run: &[u32], vocab: usize, known: usize) -> Result<Vec<Option<TokenMask>>, String> {
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
    fn whole_mask(&self, mask: Option<TokenMask>, ahead: usize, vocab: usize, known: usize) -> Option<TokenMask> {
        let mut mask = mask;
        if let Some(mask) = mask.as_mut() {
            mask.resize(vocab.div_ceil(32), 0);
        }
        if known < vocab {
            let below = mask_below(known, vocab);
            mask = Some(match mask {
                Some(mask) => mask.iter().zip(&below).map(|(a, b)| a & b).collect(),
                None => below,
            });
        }
        if self.tokens.len() + ahead - self.request.prompt.len() < self.request.min_tokens {
            let mut without = mask.clone().unwrap_or_else(|| mask_below(vocab, vocab));
            forbid(&mut without, &self.request.stop);
            // A grammar that is done admits nothing but an ending; no minimum forces text past it.
            if without.iter().any(|word| *word != 0) {
                mask = Some(without);
            }
        }
        mask
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
            |masks: Vec<Option<TokenMask>>| -> Vec<u32> { masks.iter().map(|m| m.as_ref().unwrap()[0]).collect() };
        assert_eq!(bits(held.masks(&[3, 4], 10, 10).unwrap()), [1 << 3, 1 << 4, 1 << 5]);
        assert_eq!(bits(held.masks(&[3, 7, 4], 10, 10).unwrap()), [1 << 3, 1 << 4]);
        // Nothing has moved, and what is chosen moves it.
        assert_eq!(held.mask(10, 10), Ok(Some(vec![1 << 3])));
        held.push(3);
        assert_eq!(bits(held.masks(&[4], 10, 10).unwrap()), [1 << 4, 1 << 5]);
    }

    #[test]
    fn masks_of_a_run_count_its_tokens() {
        // Two tokens before an ending one, of a vocabulary whose last id is unknown.
        let masks = sequence(None, 2).masks(&[3, 4, 9, 4], 10, 9).unwrap();
        let (open, known) = (0x1ff & !(1 << 5), 0x1ff);
        assert_eq!(masks, [Some(vec![open]), Some(vec![open]), Some(vec![known])]);
        assert_eq!(sequence(None, 0).masks(&[3], 10, 10).unwrap(), [None, None]);
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
        assert_eq!(sequence(Some(Box::new(Short)), 0).masks(&[3, 3], 10, 10).unwrap(), [Some(vec![1 << 3])]);
    }

    /// A block of two drafts: each row draws under its own mask in one step.
    #[test]
    fn rows_of_a_block_carry_their_own_masks() {
        let mut held = sequence(Some(Box::new(Counting(3))), 0);
        let drafts = [3, 4];
        let mut step = Step { entry: "forward".into(), translation: vec![[1].into(), [1].into()], ..Step::default() };
        step.tokens = [1, 2, 3, 4].to_vec();
        step.positions = (0..4).collect();
        step.sequences.push(SequenceRows { start: 0, len: 4, pages: vec![0] });
        for (ahead, mask) in held.masks(&drafts, 10, 10).unwrap().into_iter().enumerate() {
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
