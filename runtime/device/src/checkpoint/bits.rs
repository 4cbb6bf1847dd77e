//! What the bytes of one tensor are, and the elements that they make.

use super::convert::Element;
use super::header::FileDType;
use super::narrow::ScaleFormat;
use super::open::Found;
use super::stored::Stored;
use numerics::{e2m1_value, e4m3_value, e5m2_value};

/// Elements under one scale of nvfp4.
const BLOCK: usize = numerics::BLOCK;

/// One tensor with what its elements are made of. Sizes were compared with the recipe.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bits<'a> {
    /// Elements as they are: floats, or codes of 8 bits.
    Plain(Found<'a>),
    /// e4m3 codes times scales of rows.
    Scaled { codes: Found<'a>, scales: Found<'a>, columns: usize },
    /// e2m1 codes, two a byte, times e4m3 scales of blocks, times a number, if it is not a weight of its own.
    Blocks { codes: Found<'a>, scales: Found<'a>, number: Option<Found<'a>> },
    /// Floats, of which codes are made: the elements are the codes' numbers.
    Rows { floats: Found<'a>, columns: usize },
}

/// One float of a tensor.
pub(super) fn float(found: Found<'_>, at: usize) -> f32 {
    let mut number = [f32::NAN];
    let width = found.entry.dtype.bits().unwrap_or(8) as usize / 8;
    if let Some(bytes) = found.bytes.get(at * width..(at + 1) * width) {
        f32::convert(&found.entry.dtype, bytes, &mut number);
    }
    number[0]
}

/// Elements of a tensor from `at` on; what the bytes do not hold stays as it is.
fn floats<T: Element>(found: Found<'_>, at: usize, into: &mut [T]) {
    let width = found.entry.dtype.bits().unwrap_or(8) as usize / 8;
    if let Some(bytes) = found.bytes.get(at * width..(at + into.len()) * width) {
        T::convert(&found.entry.dtype, bytes, into);
    }
}

/// The scale of a row of floats.
pub(super) fn row_scale(floats_of: Found<'_>, row: usize, columns: usize) -> f32 {
    let mut numbers = vec![0f32; columns];
    floats(floats_of, row * columns, &mut numbers);
    ScaleFormat::F32.scale(numbers.iter().fold(0.0, |m, x| numerics::max_f32(m, x.abs())))
}

impl<'a> Bits<'a> {
    /// A stored matrix of so many columns, made whole again.
    pub fn widened(stored: Stored<'a>, columns: usize) -> Bits<'a> {
        match stored {
            Stored::Rows { codes, scales } => Bits::Scaled { codes, scales, columns },
            Stored::Blocks { codes, scales, number } => Bits::Blocks { codes, scales, number: Some(number) },
        }
    }

    /// Why element `at` came out infinite or as no number: the tensor, the place in it and what stands there.
    pub fn odd(&self, at: usize) -> (Found<'a>, usize, f32) {
        let mut number = [f32::NAN];
        match self {
            // One such float spoils the codes of its whole row.
            Bits::Rows { floats, columns } => {
                let (at, number) = odd_of_row(*floats, at / columns.max(&1), *columns).unwrap_or((at, f32::NAN));
                (*floats, at, number)
            }
            Bits::Plain(found) | Bits::Scaled { codes: found, .. } | Bits::Blocks { codes: found, .. } => {
                self.read(at, &mut number);
                (*found, at, number[0])
            }
        }
    }

    /// Fills elements from `at` on.
    pub fn read<T: Element>(&self, at: usize, into: &mut [T]) {
        match self {
            Bits::Plain(found) => match code_value(&found.entry.dtype) {
                None => floats(*found, at, into),
                Some(value) => {
                    let codes = found.bytes.get(at..at + into.len()).unwrap_or_default();
                    codes.iter().zip(into).for_each(|(code, x)| *x = T::rounded(value(*code)));
                }
            },
            Bits::Scaled { codes, scales, columns } => by_rows(*columns, at, into, |row, at, into| {
                let scale = float(*scales, row);
                let codes = codes.bytes.get(at..at + into.len()).unwrap_or_default();
                codes.iter().zip(into).for_each(|(code, x)| *x = T::rounded(e4m3_value(*code) * scale));
            }),
            Bits::Blocks { codes, scales, number } => {
                let number = number.map_or(1.0, |number| float(number, 0));
                by_rows(BLOCK, at, into, |block, at, into| {
                    let scale = scales.bytes.get(block).map_or(f32::NAN, |code| e4m3_value(*code));
                    for (i, x) in (at..).zip(into) {
                        let byte = codes.bytes.get(i / 2).copied().unwrap_or(0);
                        let code = if i.is_multiple_of(2) { byte } else { byte >> 4 };
                        // Code times scale is exact, so that there is one rounding.
                        *x = T::rounded(e2m1_value(code) * scale * number);
                    }
                })
            }
            Bits::Rows { floats: found, columns } => by_rows(*columns, at, into, |row, at, into| {
                let scale = row_scale(*found, row, *columns);
                let mut numbers = vec![0f32; into.len()];
                floats(*found, at, &mut numbers);
                numbers.iter().zip(into).for_each(|(w, x)| *x = T::rounded(numerics::round_e4m3(w / scale)));
            }),
        }
    }
}

/// The first float of a row that is infinite or no number, with its place in the tensor.
pub(super) fn odd_of_row(found: Found<'_>, row: usize, columns: usize) -> Option<(usize, f32)> {
    (row * columns..(row + 1) * columns).map(|at| (at, float(found, at))).find(|(_, x)| !x.is_finite())
}

/// What codes of one byte are worth, if the format has such.
pub(super) fn code_value(dtype: &FileDType) -> Option<fn(u8) -> f32> {
    if dtype.is("F8_E4M3") {
        Some(e4m3_value)
    } else if dtype.is("F8_E5M2") {
        Some(e5m2_value)
    } else {
        None
    }
}

/// Calls `part` for each row of so many elements that the range touches: row, first element, what to fill.
fn by_rows<T>(columns: usize, at: usize, into: &mut [T], mut part: impl FnMut(usize, usize, &mut [T])) {
    let columns = columns.max(1);
    let (mut at, mut rest) = (at, into);
    while !rest.is_empty() {
        let length = (columns - at % columns).min(rest.len());
        let (now, after) = rest.split_at_mut(length);
        part(at / columns, at, now);
        at += length;
        rest = after;
    }
}
