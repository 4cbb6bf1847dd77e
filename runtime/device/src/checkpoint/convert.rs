//! From the bytes of a file to resident numbers.

use super::header::FileDType;
use numerics::{bf16_bits, bf16_value, f16_value};
use rayon::prelude::*;

/// A resident element: `f32`, or `u16` for the bits of a bf16.
pub(super) trait Element: Copy + Default + Send + Sync {
    /// Converts little-endian elements of `dtype` in `bytes` into `into`. Both have the same number of elements.
    fn convert(dtype: &FileDType, bytes: &[u8], into: &mut [Self]);

    /// Rounds one number to the resident format.
    fn rounded(x: f32) -> Self;
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
