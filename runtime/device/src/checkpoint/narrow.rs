//! Matrices made narrow, by the rules of the public quantisers.
//!
//! | | scale | code |
//! |---|---|---|
//! | e4m3, a scale for each row | `largest magnitude of the row / 448`, in the format it is stored in | nearest to `w / scale`, at most 448 |
//! | nvfp4, a scale for each 16 columns under one number g of the matrix | e4m3 nearest to `largest of the block / (6 g)`, 2^-9 to 448; 1 where that is 0 | e2m1 nearest to `w / (scale g)` |
//!
//! with `g = largest magnitude of the matrix / (6 * 448)`. Each operation rounds to binary32, but compressed-tensors divides in the
//! format that weights and scales have in common: `w / scale` of bf16 weights under bf16 scales rounds to bf16 first. Ties go to the
//! even code. A row of zeros has the scale that compressed-tensors gives it, the epsilon of the scales' format.

use super::convert::Element;
use super::header::FileDType;
use numerics::{BLOCK, Block, E4M3_LARGEST, NVFP4_LARGEST, bf16_bits, bf16_value, e4m3_code};
use rayon::prelude::*;

/// Least scale of a block: the smallest number of e4m3.
const LEAST_BLOCK_SCALE: f32 = 1.0 / 512.0;
/// Bytes of a file that a thread looks at in one go.
const AT_ONCE_BYTES: usize = 1 << 20;

/// How scales of rows are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleFormat {
    /// bf16, as the usual quantiser writes them for a model in bf16.
    Bf16,
    /// binary32.
    F32,
}

/// Rows of a tensor, or some of them, as a file keeps them.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    dtype: &'a FileDType,
    bytes: &'a [u8],
    columns: usize,
}

/// The number of cached rows of that largest magnitude: over it, that magnitude is the largest of e4m3.
pub fn e4m3_number(largest: f32) -> f32 {
    largest / E4M3_LARGEST
}

/// The number of a matrix whose largest magnitude is given: what its values are worth in units that codes and scales reach.
pub fn nvfp4_number(largest: f32) -> f32 {
    if largest == 0.0 { 1.0 } else { largest / NVFP4_LARGEST }
}

impl ScaleFormat {
    /// The scale of a row with that largest magnitude, as it is after it was stored.
    pub fn scale(self, largest: f32) -> f32 {
        let (scale, epsilon) = match self {
            ScaleFormat::Bf16 => (bf16_value(bf16_bits(largest / E4M3_LARGEST)), 1.0 / 128.0),
            ScaleFormat::F32 => (largest / E4M3_LARGEST, f32::EPSILON),
        };
        if scale == 0.0 { epsilon } else { scale }
    }

    /// A scale as it stands in a file, little-endian.
    pub fn stored(self, scale: f32) -> Vec<u8> {
        match self {
            ScaleFormat::Bf16 => bf16_bits(scale).to_le_bytes().to_vec(),
            ScaleFormat::F32 => scale.to_le_bytes().to_vec(),
        }
    }

    /// Bytes of a scale.
    pub fn bytes(self) -> usize {
        match self {
            ScaleFormat::Bf16 => 2,
            ScaleFormat::F32 => 4,
        }
    }
}

impl<'a> Rows<'a> {
    /// Rows of floats; `None` unless the format is one and the bytes are whole rows.
    pub fn new(dtype: &'a FileDType, bytes: &'a [u8], columns: usize) -> Option<Rows<'a>> {
        let rows = Rows { dtype, bytes, columns };
        let float = !matches!(dtype, FileDType::Other(_));
        (float && columns > 0 && bytes.len().is_multiple_of(rows.row_bytes())).then_some(rows)
    }

    fn row_bytes(&self) -> usize {
        self.columns * (self.dtype.bits().unwrap_or(8) as usize / 8)
    }

    /// Number of rows.
    pub fn count(&self) -> usize {
        self.bytes.len() / self.row_bytes()
    }

    /// The largest magnitude; NaN where some element is no number or infinite.
    pub fn largest(&self) -> f32 {
        let rows_at_once = (AT_ONCE_BYTES / self.row_bytes()).max(1);
        let of_rows = |bytes: &[u8]| {
            let mut row = vec![0.0; self.columns];
            bytes.chunks_exact(self.row_bytes()).fold(0.0, |m, bytes| {
                f32::convert(self.dtype, bytes, &mut row);
                larger(m, largest(&row))
            })
        };
        self.bytes.par_chunks(rows_at_once * self.row_bytes()).map(of_rows).reduce(|| 0.0, larger)
    }

    /// The first element that is infinite or no number, with its place in row-major order.
    pub fn odd(&self) -> Option<(usize, f32)> {
        let mut row = vec![0.0; self.columns];
        self.bytes.chunks_exact(self.row_bytes()).enumerate().find_map(|(i, bytes)| {
            f32::convert(self.dtype, bytes, &mut row);
            let (at, odd) = row.iter().enumerate().find(|(_, x)| !x.is_finite())?;
            Some((i * self.columns + at, *odd))
        })
    }

    /// `per_row` bytes of each row.
    fn map(&self, per_row: usize, of_row: impl Fn(&[f32], &mut [u8]) + Sync) -> Vec<u8> {
        let rows_at_once = (AT_ONCE_BYTES / self.row_bytes()).max(1);
        let mut out = vec![0; self.count() * per_row];
        out.par_chunks_mut(rows_at_once * per_row.max(1))
            .zip(self.bytes.par_chunks(rows_at_once * self.row_bytes()))
            .for_each(|(out, bytes)| {
                let mut row = vec![0.0; self.columns];
                for (out, bytes) in out.chunks_exact_mut(per_row).zip(bytes.chunks_exact(self.row_bytes())) {
                    f32::convert(self.dtype, bytes, &mut row);
                    of_row(&row, out);
                }
            });
        out
    }

    /// e4m3 codes, row after row.
    pub fn e4m3_codes(&self, scales: ScaleFormat) -> Vec<u8> {
        let in_bf16 = *self.dtype == FileDType::Bf16 && scales == ScaleFormat::Bf16;
        self.map(self.columns, |row, out| {
            let scale = scales.scale(largest(row));
            out.iter_mut().zip(row).for_each(|(out, x)| {
                let quotient = x / scale;
                *out = e4m3_code(if in_bf16 { bf16_value(bf16_bits(quotient)) } else { quotient });
            });
        })
    }

    /// The scales of these codes, little-endian.
    pub fn e4m3_scales(&self, scales: ScaleFormat) -> Vec<u8> {
        self.map(scales.bytes(), |row, out| {
            out.copy_from_slice(&scales.stored(scales.scale(largest(row))));
        })
    }

    /// e2m1 codes under the matrix' number, two a byte, the even column in the low bits. Columns are whole blocks.
    pub fn nvfp4_codes(&self, number: f32) -> Vec<u8> {
        self.map(self.columns / 2, |row, out| {
            for (out, block) in out.as_chunks_mut::<{ BLOCK / 2 }>().0.iter_mut().zip(row.as_chunks().0) {
                *out = Block::under(block, block_scale(block, number), number).codes;
            }
        })
    }

    /// The e4m3 codes of the scales of blocks.
    pub fn nvfp4_scales(&self, number: f32) -> Vec<u8> {
        self.map(self.columns / BLOCK, |row, out| {
            out.iter_mut().zip(row.as_chunks().0).for_each(|(out, block)| *out = block_scale(block, number));
        })
    }
}

fn block_scale(block: &[f32; BLOCK], number: f32) -> u8 {
    let scale = largest(block) / (6.0 * number);
    e4m3_code(if scale == 0.0 { 1.0 } else { scale.max(LEAST_BLOCK_SCALE) })
}

fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |m, x| larger(m, if x.is_finite() { x.abs() } else { f32::NAN }))
}

/// The larger of two magnitudes; NaN if either is.
fn larger(a: f32, b: f32) -> f32 {
    numerics::max_f32(a, b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use numerics::{e2m1_value, e4m3_value};

    fn bytes(x: &[f32]) -> Vec<u8> {
        x.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    #[test]
    fn rows_have_the_scale_of_their_largest_number() {
        let x = bytes(&[1.0, -896.0, 3.0, 0.0, 0.0, 0.0]);
        let rows = Rows::new(&FileDType::F32, &x, 3).unwrap();
        assert_eq!((rows.count(), rows.largest()), (2, 896.0));
        assert_eq!(rows.e4m3_scales(ScaleFormat::F32), bytes(&[2.0, f32::EPSILON]));
        assert_eq!(rows.e4m3_scales(ScaleFormat::Bf16), [0x00, 0x40, 0x00, 0x3c]);
        let values: Vec<f32> = rows.e4m3_codes(ScaleFormat::F32).into_iter().map(e4m3_value).collect();
        assert_eq!(values, [0.5, -448.0, 1.5, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn weights_and_scales_in_bf16_are_divided_in_bf16() {
        // 400.8 is nearer to 416 than to 384; in bf16 it is 400, the middle of the two.
        let row: Vec<u8> = [3.015_625, 2.703_125].into_iter().flat_map(|x| bf16_bits(x).to_le_bytes()).collect();
        let rows = Rows::new(&FileDType::Bf16, &row, 2).unwrap();
        assert_eq!(e4m3_value(rows.e4m3_codes(ScaleFormat::Bf16)[1]), 384.0);
        assert_eq!(e4m3_value(e4m3_code(2.703_125 / ScaleFormat::Bf16.scale(3.015_625))), 416.0);
    }

    #[test]
    fn blocks_are_worth_code_times_scale_times_number() {
        let mut x = [0.0f32; 32];
        (x[0], x[1], x[17]) = (2688.0, -224.0, 1e-6);
        let x = bytes(&x);
        let rows = Rows::new(&FileDType::F32, &x, 32).unwrap();
        let number = nvfp4_number(rows.largest());
        assert_eq!(number, 1.0);
        assert_eq!(
            rows.nvfp4_scales(number).into_iter().map(e4m3_value).collect::<Vec<_>>(),
            [448.0, LEAST_BLOCK_SCALE]
        );
        let codes = rows.nvfp4_codes(number);
        assert_eq!((e2m1_value(codes[0]), e2m1_value(codes[0] >> 4)), (6.0, -0.5));
        assert_eq!(nvfp4_number(0.0), 1.0);
    }

    #[test]
    fn what_is_no_number_is_seen() {
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let x = bytes(&[1.0, odd, 2.0, 3.0]);
            assert!(Rows::new(&FileDType::F32, &x, 2).unwrap().largest().is_nan());
        }
        assert!(Rows::new(&FileDType::Other("F8_E4M3".to_owned()), &[0; 4], 2).is_none());
        assert!(Rows::new(&FileDType::F32, &[0; 12], 2).is_none(), "a row and a half");
    }
}
