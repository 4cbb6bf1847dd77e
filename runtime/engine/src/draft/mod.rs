//! Drafts: tokens that a small model proposes and that the model itself verifies, several of them in one step.
//!
//! ```text
//! draft step                     forward step                        output
//! anchor, P, coins ──► Draft ──► anchor and drafts, a row each ──► tokens of the accepted run, and one more
//! ```
//!
//! A block is the token chosen last (the anchor) and the drafts behind it. Its rows are verified together, and what is
//! chosen has exactly the distribution that choosing one token a step has, whatever the drafts are.

mod accept;
mod costs;
mod measure;
mod policy;

pub use accept::accept;
pub use costs::{DraftCosts, Line};
pub use measure::measure;
pub use policy::DraftLimits;
pub(crate) use policy::{DraftPolicy, Habit, MOST_ROWS};

use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What an engine must know of an executor's drafter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftFacts {
    /// Entry that proposes tokens.
    pub entry: String,
    /// Rows that a block may have, the anchor among them, ascending; each at least 2.
    pub blocks: Vec<usize>,
    /// Most sequences in a draft step.
    pub sequences: usize,
    /// Candidates of a slot.
    pub candidates: usize,
}

/// What a draft step needs of one sequence besides its rows. The rows are those of the block: the anchor at its position,
/// and one for each slot behind it, whose token nobody reads (it repeats the anchor). Pages hold all of them: the
/// drafter may write there what the next rows will overwrite.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftRow {
    /// Divides the scores of candidates; 0 takes the best one.
    pub temperature: f32,
    /// A draw in `[0, 1)` for each slot.
    pub coins: Vec<f32>,
}

/// What a drafter proposes for one sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    /// A token for each slot: the first is meant for the position behind the anchor.
    pub tokens: Vec<u32>,
    /// Ids of each slot's candidates, slot after slot, equally many for each, the best by itself first; the slot's token is
    /// among them. A slot lists no id twice.
    pub candidates: Vec<u32>,
    /// Probability with which each candidate was drawn; every other id's is 0.
    pub probabilities: Vec<f32>,
}

impl Draft {
    /// Takes each slot's first candidate for certain, whatever path was chosen.
    pub fn take_first_candidates(&mut self) {
        let each = self.candidates.len().checked_div(self.tokens.len()).unwrap_or(0);
        if each == 0 {
            return;
        }
        self.probabilities.fill(0.0);
        let firsts = self.candidates.chunks_exact(each).zip(self.probabilities.chunks_exact_mut(each));
        for (token, (ids, q)) in self.tokens.iter_mut().zip(firsts) {
            if let (Some(id), Some(q)) = (ids.first(), q.first_mut()) {
                (*token, *q) = (*id, 1.0);
            }
        }
    }

    /// A slot's candidates and their probabilities.
    pub fn slot(&self, slot: usize) -> (&[u32], &[f32]) {
        let each = self.candidates.len().checked_div(self.tokens.len()).unwrap_or(0);
        let range = slot * each..(slot + 1) * each;
        let ids = self.candidates.get(range.clone()).unwrap_or_default();
        (ids, self.probabilities.get(range).unwrap_or_default())
    }
}

/// A sequence of a step whose rows are a block to verify. All its rows are wanted, each under its own mask and with its own
/// counts: as they are if the drafts before it stand.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Its place among the step's sequences.
    pub sequence: usize,
    /// Its first row's place among the wanted rows.
    pub wanted: usize,
    /// What was proposed. Row `i + 1` holds the token of slot `i`. There may be more slots than rows behind the anchor: what
    /// the last row would have to verify then is known to be inadmissible, and its probability counts all the same.
    pub draft: Arc<Draft>,
    /// How drafts are accepted.
    pub rule: AcceptRule,
    /// A draw in `[0, 1)` for each slot, and one more for the token behind the run.
    pub coins: Vec<f32>,
    /// Commits so many tokens whatever the model says: drafts, and behind them the most probable token. Only benchmarks do.
    pub forced: Option<usize>,
}

/// How drafts are accepted where tokens are drawn. Both keep the distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AcceptRule {
    /// One after the other, until one is rejected.
    #[default]
    Token,
    /// The longest beginning of the block, which on average is longer.
    Block,
}
