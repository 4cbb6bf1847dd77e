//! Narrow tensors of a checkpoint: which format a tensor is in, by its own dtype and its siblings.

use super::header::FileDType;
use super::open::{Checkpoint, Found};

/// End of a matrix' name, in place of which its siblings have others.
const WEIGHT: &str = "weight";
/// Scales of rows or blocks.
const SCALE: &str = "weight_scale";
/// The number of a matrix.
const NUMBER: &str = "weight_scale_2";
/// The number of a module's inputs.
const INPUT: &str = "input_scale";
/// Numbers of cached rows.
const CACHED: [&str; 3] = ["k_scale", "v_scale", "kv_scale"];

/// A matrix in a public narrow format, with what its elements are made of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stored<'a> {
    /// e4m3 codes, a scale for each row.
    Rows { codes: Found<'a>, scales: Found<'a> },
    /// e2m1 codes, an e4m3 scale for each block of 16, a number.
    Blocks { codes: Found<'a>, scales: Found<'a>, number: Found<'a> },
}

impl<'a> Stored<'a> {
    /// What a matrix of that shape is stored as, if its tensor and siblings are in one of the formats.
    pub fn of(checkpoint: &'a Checkpoint, codes: Found<'a>, shape: &[u64]) -> Option<Stored<'a>> {
        let module = codes.entry.name.strip_suffix(WEIGHT)?;
        let sibling = |end: &str| checkpoint.find(&format!("{module}{end}")).filter(|found| found.entry.intact);
        let scales = sibling(SCALE)?;
        let (columns, outer) = shape.split_last()?;
        let with_columns = |n: u64| outer.iter().copied().chain([n]).collect::<Vec<u64>>();
        if codes.entry.dtype.is("F8_E4M3") && codes.entry.shape == shape {
            let fits = same_shape(&scales.entry.shape, &with_columns(1));
            return (fits && is_float(&scales.entry.dtype)).then_some(Stored::Rows { codes, scales });
        }
        let number = sibling(NUMBER)?;
        let fits = codes.entry.dtype.is("U8")
            && codes.entry.shape == with_columns(columns / 2)
            && columns.is_multiple_of(16)
            && scales.entry.dtype.is("F8_E4M3")
            && scales.entry.shape == with_columns(columns / 16)
            && is_float(&number.entry.dtype)
            && number.entry.shape.iter().all(|n| *n == 1);
        fits.then_some(Stored::Blocks { codes, scales, number })
    }

    /// The sibling that is missing beside what otherwise would be codes of a matrix of that shape.
    pub fn lacks(checkpoint: &Checkpoint, codes: Found<'_>, shape: &[u64]) -> Option<String> {
        let module = codes.entry.name.strip_suffix(WEIGHT)?;
        let name = |end: &str| format!("{module}{end}");
        let is_there = |end: &str| checkpoint.find(&name(end)).is_some();
        let (columns, outer) = shape.split_last()?;
        let rows = codes.entry.dtype.is("F8_E4M3") && codes.entry.shape == shape;
        let halves: Vec<u64> = outer.iter().copied().chain([columns / 2]).collect();
        // Bytes alone may be anything; one of the siblings says that they are pairs of codes.
        let pairs = codes.entry.dtype.is("U8") && codes.entry.shape == halves && (is_there(SCALE) || is_there(NUMBER));
        let needed: &[&str] = if pairs { &[SCALE, NUMBER] } else { &[SCALE] };
        needed.iter().find(|end| (rows || pairs) && !is_there(end)).map(|end| name(end))
    }

    /// The tensors that it consists of.
    pub fn tensors(&self) -> Vec<Found<'a>> {
        match self {
            Stored::Rows { codes, scales } => vec![*codes, *scales],
            Stored::Blocks { codes, scales, number } => vec![*codes, *scales, *number],
        }
    }
}

/// Whether numbers of that format can be read as they are.
pub(super) fn is_float(dtype: &FileDType) -> bool {
    !matches!(dtype, FileDType::Other(_))
}

/// Whether two shapes are one but for dimensions of length 1 at the end: scales of rows are `[out]` or `[out, 1]`, a number is
/// `[]` or `[1]`.
pub(super) fn same_shape(a: &[u64], b: &[u64]) -> bool {
    let trimmed = |shape: &[u64]| shape.iter().rposition(|n| *n != 1).map_or(0, |at| at + 1);
    a[..trimmed(a)] == b[..trimmed(b)]
}

/// A number that is there unread where an artifact keeps wider what it divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    OfInputs,
    OfCachedRows,
}

impl Unread {
    /// By a tensor's name and shape: its module, with the dot behind it, and what it is a number of.
    pub fn of<'n>(name: &'n str, shape: &[u64]) -> Option<(&'n str, Unread)> {
        let (module, end) = name.split_at(name.rfind('.')? + 1);
        let unread = if end == INPUT {
            Unread::OfInputs
        } else if CACHED.contains(&end) {
            Unread::OfCachedRows
        } else {
            return None;
        };
        shape.iter().all(|n| *n == 1).then_some((module, unread))
    }
}

/// Whether a module, given with the dot behind it, has a matrix in codes: one with scales.
pub(super) fn is_in_codes(checkpoint: &Checkpoint, module: &str) -> bool {
    [WEIGHT, SCALE].iter().all(|end| checkpoint.find(&format!("{module}{end}")).is_some())
}
