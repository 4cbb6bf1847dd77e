//! Buckets: the step shapes a plan is made for.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How many rows each sequence brings to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowsPerSequence {
    /// One: plain decoding.
    One,
    /// A fixed number: verification of a drafted block.
    Block(u64),
    /// Any mixture: prefill chunks, alone or with decoding rows.
    Ragged,
}

/// A step shape: any step with at most this many tokens and sequences may run in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bucket {
    /// Entry that runs.
    pub entry: String,
    /// Rows per sequence.
    pub rows: RowsPerSequence,
    /// Most token rows (axis `T`).
    pub tokens: u64,
    /// Most sequences.
    pub sequences: u64,
    /// Most wanted rows (axis `R`).
    pub wanted: u64,
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-", self.entry)?;
        match self.rows {
            RowsPerSequence::One => write!(f, "one-t{}", self.tokens),
            RowsPerSequence::Block(n) => write!(f, "block{n}-t{}", self.tokens),
            RowsPerSequence::Ragged => write!(f, "ragged-t{}", self.tokens),
        }
    }
}
