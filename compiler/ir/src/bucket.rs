//! Buckets: the step shapes a plan is made for.

use crate::{DType, Extent, Graph, TensorType};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Name of the axis of token rows.
pub const TOKEN_ROWS: &str = "T";
/// Name of the axis of wanted rows.
pub const WANTED_ROWS: &str = "R";
/// Name of the axis of sequences, in entries that run blocks of rows.
pub const SEQUENCE_ROWS: &str = "S";
/// What a row axis is called, after its own name, that joins the rows of several ranks.
pub const ALL_ROWS: &str = ".all";

/// Rows of a block, of a graph that is handed a list of them for each sequence: its longest list of integers.
pub fn block_rows(graph: &Graph) -> Option<u64> {
    let inputs = graph.inputs.iter().filter_map(|id| graph.tensor(*id));
    let lists = inputs.filter(|ty| ty.dtype == DType::I32 && ty.axis(SEQUENCE_ROWS).is_some());
    lists.map(TensorType::fixed_elements).max()
}

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

impl Bucket {
    /// The most rows that a step in this bucket brings along a row axis; `None` for an axis that steps do not have.
    pub fn most_rows(&self, axis: &str) -> Option<u64> {
        // A step's rows are no more when ranks join theirs: the bucket counts all of them.
        match axis.strip_suffix(ALL_ROWS).unwrap_or(axis) {
            TOKEN_ROWS => Some(self.tokens),
            WANTED_ROWS => Some(self.wanted),
            SEQUENCE_ROWS => Some(self.sequences),
            _ => None,
        }
    }

    /// Bytes of a value at the bucket's largest step; `None` if it has a row axis that steps do not have.
    pub fn bytes(&self, ty: &TensorType) -> Option<u64> {
        let elements = ty.axes.iter().try_fold(1u64, |elements, axis| {
            let length = match axis.extent {
                Extent::Fixed(n) => n,
                Extent::Rows => self.most_rows(&axis.name)?,
            };
            elements.checked_mul(length)
        })?;
        Some(ty.dtype.bytes_for(elements)).filter(|bytes| *bytes < u64::MAX)
    }
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
