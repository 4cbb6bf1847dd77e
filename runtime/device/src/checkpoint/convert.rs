//! From the bytes of a file to resident numbers.

use super::header::FileDType;
use numerics::{bf16_bits, bf16_value, f16_value};
use rayon::prelude::*;

/// Bits of a bf16 that are all set where it is infinite or no number.
const BF16_EXPONENT: u16 = 0x7f80;

/// A resident element: `f32`, or `u16` for the bits of a bf16.
pub(super) trait Element: Copy + Default + Send + Sync {
    /// Converts little-endian elements of `dtype` in `bytes` into `into`. Both have the same number of elements.
    fn convert(dtype: &FileDType, bytes: &[u8], into: &mut [Self]);

    /// Rounds one number to the resident format.
    fn rounded(x: f32) -> Self;

    /// Whether it is a number, and not an infinite one.
    fn is_finite(self) -> bool;
}

/// The first element that is infinite or no number.
pub(super) fn not_finite<T: Element>(elements: &[T]) -> Option<usize> {
    // Without a way out in the middle, so that the loop is one of vectors; nearly always all are finite.
    let all = elements.iter().fold(true, |all, x| all & x.is_finite());
    if all { None } else { elements.iter().position(|x| !x.is_finite()) }
}

impl Element for f32 {
    fn convert(dtype: &FileDType, bytes: &[u8], into: &mut [f32]) {
        match dtype {
            FileDType::F32 => each(bytes, into, f32::from_le_bytes),
            FileDType::Bf16 => each(bytes, into, |b| bf16_value(u16::from_le_bytes(b))),
            FileDType::F16 => each(bytes, into, |b| f16_value(u16::from_le_bytes(b))),
            // Refused when sources were resolved.
            FileDType::Other(_) => {}
        }
    }

    fn rounded(x: f32) -> f32 {
        x
    }

    fn is_finite(self) -> bool {
        self.is_finite()
    }
}

impl Element for u16 {
    fn convert(dtype: &FileDType, bytes: &[u8], into: &mut [u16]) {
        match dtype {
            FileDType::Bf16 => each(bytes, into, u16::from_le_bytes),
            FileDType::F32 => each(bytes, into, |b| bf16_bits(f32::from_le_bytes(b))),
            FileDType::F16 => each(bytes, into, |b| bf16_bits(f16_value(u16::from_le_bytes(b)))),
            // Refused when sources were resolved.
            FileDType::Other(_) => {}
        }
    }

    fn rounded(x: f32) -> u16 {
        bf16_bits(x)
    }

    fn is_finite(self) -> bool {
        self & BF16_EXPONENT != BF16_EXPONENT
    }
}

fn each<T, const N: usize>(bytes: &[u8], into: &mut [T], element: impl Fn([u8; N]) -> T) {
    for (chunk, x) in bytes.as_chunks::<N>().0.iter().zip(into) {
        *x = element(*chunk);
    }
}

/// Widens, exactly.
pub(super) fn widened(bits: &[u16]) -> Vec<f32> {
    bits.par_iter().map(|b| bf16_value(*b)).collect()
}
