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
    /// 8 bits, 3 stored mantissa bits, largest 448, no infinity (the "fn" kind).
    E4m3,
    /// 8 bits, 2 stored mantissa bits, largest 57344.
    E5m2,
    /// Aligned blocks of [`DType::BLOCK`] along the innermost elements: e2m1 codes and one e4m3 scale that multiplies them. An
    /// element is code times scale, which binary32 and bf16 hold exactly.
    Nvfp4,
}

impl DType {
    /// Every format, in the order of the documentation.
    pub const ALL: [DType; 7] =
        [DType::F32, DType::Bf16, DType::I32, DType::Bool, DType::E4m3, DType::E5m2, DType::Nvfp4];

    /// Elements that share one scale where a format has scales inside.
    pub const BLOCK: u64 = 16;

    /// The word used in specs, IR text and errors.
    pub fn word(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::I32 => "i32",
            DType::Bool => "bool",
            DType::E4m3 => "e4m3",
            DType::E5m2 => "e5m2",
            DType::Nvfp4 => "nvfp4",
        }
    }

    /// Bytes of one element, for formats whose elements can be addressed one by one.
    pub fn element_bytes(self) -> Option<u64> {
        match self {
            DType::F32 | DType::I32 => Some(4),
            DType::Bf16 => Some(2),
            DType::Bool | DType::E4m3 | DType::E5m2 => Some(1),
            DType::Nvfp4 => None,
        }
    }

    /// Bytes that so many elements occupy in memory; a block that is begun counts whole. The largest number where 64 bits
    /// do not suffice.
    pub fn bytes_for(self, elements: u64) -> u64 {
        match self.element_bytes() {
            Some(bytes) => elements.saturating_mul(bytes),
            None => elements.div_ceil(Self::BLOCK).saturating_mul(Self::BLOCK / 2 + 1),
        }
    }

    /// Whether values of this format take part in floating arithmetic.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::Bf16) || self.is_narrow()
    }

    /// Whether the format is one that quantised weights, activations and caches are kept in.
    pub fn is_narrow(self) -> bool {
        matches!(self, DType::E4m3 | DType::E5m2 | DType::Nvfp4)
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
            .ok_or_else(|| format!("`{word}` is not a dtype; known are f32, bf16, i32, bool, e4m3, e5m2, nvfp4"))
    }
}
