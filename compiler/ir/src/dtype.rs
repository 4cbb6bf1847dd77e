//! Storage formats of values and weights.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How a value is stored between operations. Arithmetic is always binary32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// The upper half of a binary32: 8 exponent bits, 7 stored mantissa bits.
    Bf16,
    /// Signed 32-bit integer: token ids, positions, indices.
    I32,
    /// One truth value.
    Bool,
}

impl DType {
    /// Every format, in the order of the documentation.
    pub const ALL: [DType; 4] = [DType::F32, DType::Bf16, DType::I32, DType::Bool];

    /// The word used in specs, IR text and errors.
    pub fn word(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::I32 => "i32",
            DType::Bool => "bool",
        }
    }

    /// Bytes that one element occupies in memory.
    pub fn bytes(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::Bf16 => 2,
            DType::Bool => 1,
        }
    }

    /// Whether values of this format take part in floating arithmetic and may be rounded.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::Bf16)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for DType {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        DType::ALL
            .into_iter()
            .find(|d| d.word() == word)
            .ok_or_else(|| format!("`{word}` is not a dtype; known are f32, bf16, i32, bool"))
    }
}
