//! How a checkpoint keeps quantised weights: what the spec states, and how tensors become elements.

use crate::Span;
use serde::{Deserialize, Serialize};

/// A format that public quantisers write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredFormat {
    /// e4m3 codes `[out, in]` and one scale for each row `out`: `w = code * scale`.
    Fp8,
    /// e2m1 codes, two a byte, the even column in the low bits; one e4m3 scale for each 16 columns; one number for the matrix:
    /// `w = code * scale * number`.
    Nvfp4,
}

impl StoredFormat {
    /// Every format.
    pub const ALL: [StoredFormat; 2] = [StoredFormat::Fp8, StoredFormat::Nvfp4];

    /// The word in specs, targets and messages.
    pub fn word(self) -> &'static str {
        match self {
            StoredFormat::Fp8 => "fp8",
            StoredFormat::Nvfp4 => "nvfp4",
        }
    }
}

/// What the products of quantised weights take in, as the checkpoint was made for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredInputs {
    /// Values as they are.
    Plain,
    /// e4m3 with one scale a token, found from the values.
    Token,
    /// nvfp4 under one number of the checkpoint for each matrix.
    Block,
}

impl StoredInputs {
    /// Every kind.
    pub const ALL: [StoredInputs; 3] = [StoredInputs::Plain, StoredInputs::Token, StoredInputs::Block];

    /// The word in specs and messages.
    pub fn word(self) -> &'static str {
        match self {
            StoredInputs::Plain => "plain",
            StoredInputs::Token => "token",
            StoredInputs::Block => "block",
        }
    }
}

/// The quantised weights of a checkpoint: every matrix that may be, except those listed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    /// Format of the matrices.
    pub format: StoredFormat,
    /// What their products take in.
    pub inputs: StoredInputs,
    /// Matrices that are stored as they are declared.
    pub plain: Vec<StoredPlain>,
    /// Format and scales of cached rows, if the checkpoint states them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv: Option<StoredKv>,
    /// Ends of tensor names; each stands in place of `weight`.
    pub names: StoredNames,
    /// Whether the checkpoint may lack numbers of inputs and of cached rows, which then are 1.
    #[serde(default, skip_serializing_if = "is_false")]
    pub some_numbers: bool,
    /// Where the spec says so.
    pub span: Option<Span>,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// A weight that is plain in some layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPlain {
    /// Name of the weight; of a layer or of the model.
    pub weight: String,
    /// Layers where it is plain, ascending; `None` for all, and for a weight of the model.
    pub layers: Option<Vec<usize>>,
}

/// Last parts of tensor names: `a.b.weight` has its scales in `a.b.` and `scale`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredNames {
    /// Codes.
    pub codes: String,
    /// Scales of rows or blocks.
    pub scale: String,
    /// The number of a matrix (nvfp4).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global: Option<String>,
    /// The number of a matrix' inputs (nvfp4 inputs).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
}

/// Cached rows in e4m3: `stored = e4m3(x / scale)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredKv {
    /// Alternative names of the key scale's tensor, with `{l}`.
    pub k_scale: Vec<String>,
    /// The same of values.
    pub v_scale: Vec<String>,
}

/// What the bytes of a tensor are, and how they become the elements of a weight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskLayout {
    /// Elements, row-major.
    #[default]
    Plain,
    /// e2m1 codes, two a byte along the last dimension, the even column in the low bits; `shape` counts codes. The tensor
    /// `scales` of the same name pattern holds the e4m3 scale of each 16.
    Nibbles {
        /// Name of the scales' tensor, with the same placeholders.
        scales: String,
    },
    /// One number per tensor (shape `[]` or `[1]`), the value of all elements that the tensor stands for.
    Number,
    /// One number per tensor and per tensor of `also`; the element is the largest of all of them.
    Largest {
        /// Further names, with the same placeholders.
        also: Vec<String>,
    },
    /// One number per tensor and per tensor of `also`; they must all be the same, and are the element.
    Same {
        /// Further names, with the same placeholders.
        also: Vec<String>,
    },
    /// Plain elements, of which the loader makes e4m3 codes under `largest magnitude of the row / 448`.
    RowCodes,
    /// Plain elements, of which the loader makes those scales of rows.
    RowScales,
}

impl DiskLayout {
    /// Whether tensors hold the elements themselves.
    pub fn is_plain(&self) -> bool {
        *self == DiskLayout::Plain
    }
}
