//! Choices of the operations that draft and verify a block of tokens. `docs/ops.md` has their meaning.

use serde::{Deserialize, Serialize};

/// Which of the results of a walk a node takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WalkWhat {
    /// The token of every slot.
    Tokens,
    /// The distribution over its candidates that every slot's token was drawn from.
    Probs,
}

impl WalkWhat {
    /// Every result.
    pub const ALL: [WalkWhat; 2] = [WalkWhat::Tokens, WalkWhat::Probs];

    /// The word in IR text.
    pub fn word(self) -> &'static str {
        match self {
            WalkWhat::Tokens => "tokens",
            WalkWhat::Probs => "probs",
        }
    }
}

/// How it is decided which drafted tokens stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AcceptRule {
    /// As long as each is the target's best.
    Greedy,
    /// Token after token by the quotient of the two distributions.
    Token,
    /// The longest run that stands as a whole.
    Block,
}

impl AcceptRule {
    /// Every rule.
    pub const ALL: [AcceptRule; 3] = [AcceptRule::Greedy, AcceptRule::Token, AcceptRule::Block];

    /// The word in specs and IR text.
    pub fn word(self) -> &'static str {
        match self {
            AcceptRule::Greedy => "greedy",
            AcceptRule::Token => "token",
            AcceptRule::Block => "block",
        }
    }

    /// Whether the rule compares distributions, and draws.
    pub fn draws(self) -> bool {
        self != AcceptRule::Greedy
    }
}

/// Which of the results of an acceptance a node takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AcceptWhat {
    /// How many drafted tokens stand.
    Count,
    /// The token that follows them.
    Bonus,
    /// What the bonus was drawn from, not normalised; of a rule that draws.
    Rest,
}

impl AcceptWhat {
    /// Every result.
    pub const ALL: [AcceptWhat; 3] = [AcceptWhat::Count, AcceptWhat::Bonus, AcceptWhat::Rest];

    /// The word in IR text.
    pub fn word(self) -> &'static str {
        match self {
            AcceptWhat::Count => "count",
            AcceptWhat::Bonus => "bonus",
            AcceptWhat::Rest => "rest",
        }
    }
}
