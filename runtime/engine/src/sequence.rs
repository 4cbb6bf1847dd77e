//! One request in the scheduler: what is known of its tokens, and what comes next.

use crate::{FinishReason, Request, RequestId, Sampling, Usage, VirtualPage};
use std::collections::BTreeMap;

/// A request that waits or runs. Rows `0 .. fed` are in the cache; the others are still to be computed.
#[derive(Clone, Debug)]
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

    /// Positions that the cache must hold: the last token is never fed.
    pub fn cache_tokens(&self) -> usize {
        self.limit.saturating_sub(1)
    }

    pub fn usage(&self) -> Usage {
        let prompt_tokens = self.request.prompt.len();
        Usage { prompt_tokens, completion_tokens: self.tokens.len() - prompt_tokens }
    }

    /// Parameters for the next token.
    pub fn sampling(&self) -> Sampling {
        let seen = self.seen.iter().map(|(token, (prompt, answer))| (*token, *prompt, *answer)).collect();
        Sampling { seen, position: self.tokens.len() as u64, ..self.request.sampling.clone() }
    }

    /// Takes a chosen token; says whether it was the last.
    pub fn push(&mut self, token: u32) -> Option<FinishReason> {
        self.tokens.push(token);
        if self.is_penalised() {
            self.seen.entry(token).or_default().1 += 1;
        }
        if self.request.stop.contains(&token) {
            Some(FinishReason::Stop(token))
        } else if self.tokens.len() >= self.limit {
            Some(FinishReason::Length)
        } else {
            None
        }
    }
}
