//! The step contract: what an engine hands to an executor, and what comes back.
//!
//! A step is a ragged batch. Each sequence brings one or more consecutive token rows (a decode row, a
//! prefill chunk, or a block to verify); some rows ask for logits, and each of those is answered by a
//! sampled token, by its logits, or both. Everything an executor needs is in the step: it keeps no
//! request state, only the cache memory that page tables point into.

use crate::{Block, Draft, DraftRow};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A page id that stays valid while its owner holds it, whatever happens to the memory behind it.
pub type VirtualPage = u32;

/// Index of a page in a kind's pool memory. `-1`: no page; page `0` is a sink that may be written, never read for meaning.
pub type PhysicalPage = i32;

/// One step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Entry that runs, such as `forward`.
    pub entry: String,
    /// Token id of every row. `-1 - w` stands for the token that wanted row `w` of the step submitted before this one
    /// chooses; only executors with [`crate::ExecutorFacts::takes_choices`] are given such rows.
    pub tokens: Vec<i32>,
    /// Zero-based position of every row in its sequence.
    pub positions: Vec<i32>,
    /// Sequences, in row order; their rows tile `0 .. tokens.len()`.
    pub sequences: Vec<SequenceRows>,
    /// Virtual → physical page, one table per KV kind in the order of the plan, indexed by virtual id. Shared with whoever
    /// planned the step: a table is as long as its pool, and most steps change nothing in it.
    pub translation: Vec<Arc<[PhysicalPage]>>,
    /// Rows whose logits are wanted, ascending.
    pub wanted: Vec<WantedRow>,
    /// Sequences whose rows are a block to verify, ascending; none where nothing was drafted.
    pub blocks: Vec<Block>,
    /// In a draft step, one for each sequence; empty in any other. All sequences of a draft step have equally many rows.
    pub drafts: Vec<DraftRow>,
}

/// The rows of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceRows {
    /// First row of the sequence in the step.
    pub start: usize,
    /// Number of rows; their positions are consecutive.
    pub len: usize,
    /// Virtual page of every page-sized run of positions, from position 0 on. One table serves every KV kind: what a
    /// kind has dropped (a window that moved on) its translation answers with `-1`. Shared with whoever planned the step.
    pub pages: Arc<Vec<VirtualPage>>,
}

/// A row whose logits are wanted, and what is to be done with them.
#[derive(Clone, Debug, PartialEq)]
pub struct WantedRow {
    /// Row of the step.
    pub row: usize,
    /// How to choose a token; `None` leaves the choice to the caller.
    pub sampling: Option<Sampling>,
    /// Admissible tokens, one bit per id in words of 32, lowest first; `None` admits all. In a block to verify each row has
    /// its own: the tokens that may follow the rows before it.
    pub mask: Option<Arc<[u32]>>,
    /// Whether the row's logits are returned (f32, after the model's own cap, before any processing).
    pub logits: bool,
}

/// How a token is chosen from a row of logits. The processing order is that of the fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Added to single logits: token id, bias.
    pub bias: Vec<(u32, f32)>,
    /// Counts of tokens seen so far, for the penalties: token id, times in the prompt, times in the answer.
    pub seen: Vec<(u32, u32, u32)>,
    /// Divides (positive) or multiplies (negative) logits of seen tokens; 1 is neutral.
    pub repetition_penalty: f32,
    /// Subtracted once per occurrence in the answer; 0 is neutral.
    pub frequency_penalty: f32,
    /// Subtracted once if the token occurs in the answer; 0 is neutral.
    pub presence_penalty: f32,
    /// Divides the logits; 0 means greedy: the largest logit, ties to the lower id.
    pub temperature: f32,
    /// Keeps the k most probable tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the smallest set of most probable tokens whose probability reaches p; 1 keeps all.
    pub top_p: f32,
    /// Drops tokens less probable than this share of the most probable one; 0 keeps all.
    pub min_p: f32,
    /// Seed of the request. The draw depends on the seed and the position only, never on the batch.
    pub seed: u64,
    /// Position that the chosen token will have in its sequence.
    pub position: u64,
    /// How many alternatives to report with their log-probabilities besides the chosen one; `None` reports nothing.
    pub logprobs: Option<u32>,
    /// Token ids whose log-probabilities are reported whatever their rank, where `logprobs` is set.
    pub listed: Vec<u32>,
    /// Whether reported log-probabilities are those of the logits as they came: before bias, penalties, mask and
    /// temperature.
    pub untouched_logprobs: bool,
}

impl Default for Sampling {
    /// Greedy, nothing modified, nothing reported.
    fn default() -> Self {
        Sampling {
            bias: Vec::new(),
            seen: Vec::new(),
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
            position: 0,
            logprobs: None,
            listed: Vec::new(),
            untouched_logprobs: false,
        }
    }
}

/// What a step leaves, one entry per wanted row in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// Chosen tokens; `None` where no sampling was asked for, or where none could be chosen. Of a block, the rows of the
    /// accepted run and of the token behind it have one, those behind it have none.
    pub tokens: Vec<Option<SampledToken>>,
    /// Wanted rows (by their index among them) for which no token could be chosen, and why. The others are good.
    pub faults: Vec<(usize, String)>,
    /// Logits; `None` where they were not asked for. Each has one f32 per vocabulary entry.
    pub logits: Vec<Option<Vec<f32>>>,
    /// Of a draft step, what is proposed for each sequence.
    pub drafts: Vec<Draft>,
}

impl StepOutput {
    /// Empties the output and keeps its memory for another.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.faults.clear();
        self.logits.clear();
        self.drafts.clear();
    }
}

/// A chosen token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SampledToken {
    /// Its id.
    pub id: u32,
    /// Natural logarithm of its probability, if asked for: after bias, penalties, mask and temperature (which a greedy
    /// choice does not have) and before top-k, top-p and min-p; or under the untouched logits.
    pub logprob: Option<f32>,
    /// The most probable alternatives, descending, if asked for.
    pub top: Vec<(u32, f32)>,
    /// The tokens of [`Sampling::listed`] in its order.
    pub listed: Vec<(u32, f32)>,
}

impl Step {
    /// Empties the step and keeps its memory for another.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.sequences.clear();
        self.translation.clear();
        self.wanted.clear();
        self.blocks.clear();
        self.drafts.clear();
    }
}
