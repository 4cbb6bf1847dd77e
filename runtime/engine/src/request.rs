//! What a client of the engine asks for and what it hears back.

use crate::{Constraint, Namespace, SampleError, SampledToken, Sampling};

/// Names a request for as long as the engine lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// One continuation to be made.
#[derive(Debug, Default)]
pub struct Request {
    /// Token ids that are given; at least one.
    pub prompt: Vec<u32>,
    /// Most tokens to add; `None` lets the answer fill the context. 0 only where the prompt's scores are wanted.
    pub max_tokens: Option<usize>,
    /// Tokens that the answer has before one of `stop` may be chosen.
    pub min_tokens: usize,
    /// How tokens are chosen. `position` and `seen` are filled in by the engine, step by step.
    pub sampling: Sampling,
    /// Token ids that end the answer. Whoever wants an end token ignored leaves it out.
    pub stop: Vec<u32>,
    /// What the answer may say; `None` for anything.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Log-probabilities of the prompt's own tokens; `None` for none.
    pub prompt_scores: Option<PromptScores>,
    /// Whom cached work is shared with.
    pub namespace: Namespace,
    /// More goes first, where the policy looks at it.
    pub priority: i32,
}

/// Which log-probabilities of a prompt are wanted. They are those of the model's own logits, untouched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptScores {
    /// The first token of the prompt that is scored. The token at 0 follows nothing and never has a score.
    pub from: usize,
    /// How many alternatives to report at each place.
    pub top: u32,
    /// Token ids that are reported at each place, whatever their rank.
    pub listed: Vec<u32>,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// This stop token was chosen; it is the answer's last token.
    Stop(u32),
    /// The request's limit or the context is reached.
    Length,
    /// The client gave up.
    Aborted,
    /// The executor could not go on; the text says why.
    Error(String),
}

/// What a request has cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens given.
    pub prompt_tokens: usize,
    /// Those among them whose keys and values were in the cache already.
    pub cached_tokens: usize,
    /// Tokens chosen, the stop token included.
    pub completion_tokens: usize,
    /// Drafts that were verified, and those among them that stand in the answer.
    pub drafted_tokens: usize,
    /// See [`Usage::drafted_tokens`].
    pub accepted_tokens: usize,
}

/// What the engine reports, in the order in which it happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A request has left the queue and has its pages.
    Started {
        /// Whose.
        request: RequestId,
        /// Tokens of its prompt that need not be computed again.
        cached_tokens: usize,
    },
    /// Tokens of the prompt were scored; their places follow those of the event before.
    Scored {
        /// Whose they are.
        request: RequestId,
        /// The prompt's own tokens, from `first` on.
        tokens: Vec<SampledToken>,
        /// Place of the first in the prompt.
        first: usize,
    },
    /// A token was chosen.
    Token {
        /// Whose it is.
        request: RequestId,
        /// The token.
        token: SampledToken,
        /// Whether it is a stop token: it ends the answer and is usually not shown.
        stops: bool,
    },
    /// The last event of a request.
    Finished {
        /// Whose it is.
        request: RequestId,
        /// Why.
        reason: FinishReason,
        /// The final count.
        usage: Usage,
    },
}

impl Event {
    /// The request it belongs to.
    pub fn request(&self) -> RequestId {
        match self {
            Event::Started { request, .. }
            | Event::Scored { request, .. }
            | Event::Token { request, .. }
            | Event::Finished { request, .. } => *request,
        }
    }
}

/// Why a request is not taken. It has then left no trace in the engine.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// Nothing to continue.
    #[error("E0101: the prompt has no tokens, at least 1 is needed; send some text or token ids")]
    EmptyPrompt,
    /// A token id that the model does not have.
    #[error(
        "E0102: token id {id} at place {place} of the prompt is not below the vocabulary's {vocab}; encode the prompt with the model's own tokenizer"
    )]
    UnknownToken {
        /// The id.
        id: u32,
        /// Its index in the prompt.
        place: usize,
        /// Entries of the vocabulary.
        vocab: usize,
    },
    /// The prompt leaves no room for an answer.
    #[error(
        "E0103: the prompt has {prompt} tokens, but at most {limit} tokens of prompt and answer together fit; shorten the prompt"
    )]
    PromptTooLong {
        /// Tokens in the prompt.
        prompt: usize,
        /// Longest sequence.
        limit: usize,
    },
    /// The prompt fits, the answer that was asked for does not.
    #[error("E0104: {prompt} prompt tokens and {max_tokens} answer tokens make {}, but at most {limit} fit; ask for at most {}", .prompt.saturating_add(*.max_tokens), .limit.saturating_sub(*.prompt))]
    AnswerTooLong {
        /// Tokens in the prompt.
        prompt: usize,
        /// Tokens asked for.
        max_tokens: usize,
        /// Longest sequence.
        limit: usize,
    },
    /// The answer is to have more tokens than it may have.
    #[error("E0106: at least {min_tokens} answer tokens are asked for, and at most {max_tokens}; lower the first")]
    MinTokens {
        /// Least.
        min_tokens: usize,
        /// Most.
        max_tokens: usize,
    },
    /// No token was asked for.
    #[error("E0105: an answer of 0 tokens was asked for; ask for at least 1")]
    NoAnswer,
    /// A sampling parameter is out of its range.
    #[error(transparent)]
    Sampling(#[from] SampleError),
}
