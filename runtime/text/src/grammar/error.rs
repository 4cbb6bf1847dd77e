//! What can be wrong with a grammar, and with the tokens that a matcher is given.

/// A grammar that cannot be used. All but [`GrammarError::Busy`], [`GrammarError::Tokenizer`] and the matcher's own are the
/// request's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The schema, expression or grammar says something that cannot be held.
    #[error("X0301: `{place}`: {problem}; {next}")]
    Bad {
        /// Path in the request's own terms, with dots, such as `tools.0.parameters.properties.n`.
        place: String,
        /// Both facts.
        problem: String,
        /// What to do.
        next: String,
    },
    /// Two wishes that exclude each other.
    #[error("X0302: {first} and {second} exclude each other: {why}; leave one out")]
    Conflict {
        /// One wish.
        first: String,
        /// The other.
        second: String,
        /// Why.
        why: String,
    },
    /// A limit on size or work was hit.
    #[error("X0303: `{place}`: {what} {found}, the limit is {limit}; simplify it")]
    TooLarge {
        /// Path in the request's own terms.
        place: String,
        /// What is counted.
        what: String,
        /// How much there is.
        found: String,
        /// The most that is allowed.
        limit: String,
    },
    /// Compiling did not end in time: the machine may have been busy at first, not again and again.
    #[error("X0304: `{place}`: compiling took more than {limit_ms} ms; simplify it, or try again later")]
    Slow {
        /// Path in the request's own terms.
        place: String,
        /// The limit.
        limit_ms: u64,
        /// How many times so far.
        times: u32,
    },
    /// All places where grammars are compiled are taken.
    #[error("X0305: {running} grammars are being compiled, the limit is {limit}; try again later")]
    Busy {
        /// How many.
        running: usize,
        /// The most.
        limit: usize,
    },
    /// The tokenizer cannot be used for grammars.
    #[error("X0306: the tokenizer cannot hold an answer to a grammar: {problem}; serve requests without grammars")]
    Tokenizer {
        /// Why.
        problem: String,
    },
    /// A token that the grammar does not admit here.
    #[error("X0307: the grammar does not admit token {token} here; choose one that the mask admits")]
    Refused {
        /// Its id.
        token: u32,
    },
    /// The matcher cannot go on. Only its own sequence ends.
    #[error("X0308: the grammar cannot be followed any further: {problem}; this answer ends here")]
    Failed {
        /// Why.
        problem: String,
    },
    /// What follows grammars broke off. Only this sequence ends, and the request is not at fault.
    #[error("X0311: following the grammar hit a defect of the server: {problem}; report it with the request")]
    Broken {
        /// What was said.
        problem: String,
    },
    /// The mask has the wrong length.
    #[error(
        "X0309: the mask has {words} words of 32 tokens, the tokenizer has {vocab} tokens; give it at least {needed}"
    )]
    MaskSize {
        /// Words given.
        words: usize,
        /// Words needed.
        needed: usize,
        /// Tokens.
        vocab: usize,
    },
}

impl GrammarError {
    pub(crate) fn bad(place: &str, problem: impl Into<String>, next: impl Into<String>) -> Self {
        GrammarError::Bad { place: place.to_owned(), problem: problem.into(), next: next.into() }
    }

    /// The code, such as `X0301`.
    pub fn code(&self) -> String {
        self.to_string().chars().take_while(|c| *c != ':').collect()
    }

    /// Whether the request is at fault, so that it is refused as a bad one.
    pub fn is_request(&self) -> bool {
        matches!(
            self,
            GrammarError::Bad { .. }
                | GrammarError::Conflict { .. }
                | GrammarError::TooLarge { .. }
                | GrammarError::Slow { .. }
        )
    }

    /// The same error of another place, where it has one.
    pub(crate) fn at(mut self, other: &str) -> Self {
        if let GrammarError::Bad { place, .. }
        | GrammarError::TooLarge { place, .. }
        | GrammarError::Slow { place, .. } = &mut self
        {
            *place = other.to_owned();
        }
        self
    }

    /// Path of what is at fault, where there is one.
    pub fn place(&self) -> Option<&str> {
        match self {
            GrammarError::Bad { place, .. }
            | GrammarError::TooLarge { place, .. }
            | GrammarError::Slow { place, .. } => Some(place),
            _ => None,
        }
    }
}
