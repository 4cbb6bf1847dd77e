//! One request in the scheduler: what is known of its tokens, and what comes next.

use crate::{
    FinishReason, PromptScores, Request, RequestId, Sampling, TokenMask, Usage, Verdict, VirtualPage, forbid,
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
        let mut mask = match &mut self.request.constraint {
            Some(constraint) => constraint.mask()?,
            None => None,
        };
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
        if self.tokens.len() - self.request.prompt.len() < self.request.min_tokens {
            let mut without = mask.clone().unwrap_or_else(|| mask_below(vocab, vocab));
            forbid(&mut without, &self.request.stop);
            // A grammar that is done admits nothing but an ending; no minimum forces text past it.
            if without.iter().any(|word| *word != 0) {
                mask = Some(without);
            }
        }
        Ok(mask)
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
