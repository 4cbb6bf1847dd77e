//! Weights packed for products: panels of [`WIDTH`] outputs, k after k, so that a vector holds neighbouring outputs.

use super::spread::Spread;
use rayon::prelude::*;

/// Outputs in a panel.
pub(crate) const WIDTH: usize = 32;

/// Words of a row of a panel in bf16: outputs `i` and `i + WORDS` share word `i`, the former in its lower half.
pub(super) const WORDS: usize = WIDTH / 2;

/// A weight [slices, n, k], packed slice by slice.
#[derive(Debug)]
pub(crate) struct Panels {
    /// Outputs and terms of a slice.
    pub(super) n: usize,
    pub(super) k: usize,
    data: Packed,
    /// What its numbers allow.
    pub(super) spread: Spread,
}

/// Panel after panel; in each, k after k, [`WIDTH`] outputs. Outputs missing from a slice's last panel are zero.
#[derive(Debug)]
enum Packed {
    F32(Vec<f32>),
    Bf16(Vec<u32>),
}

/// One panel.
#[derive(Clone, Copy)]
pub(super) enum Panel<'a> {
    F32(&'a [[f32; WIDTH]]),
    Bf16(&'a [[u32; WORDS]]),
}

impl Panels {
    /// Packs row-major slices of [n, k].
    pub fn pack(w: &[f32], slices: usize, n: usize, k: usize) -> Panels {
        let spread = Spread::of(w);
        let data = if spread.bf16 {
            Packed::Bf16(pack(w, [slices, n, k], WORDS, |word, output, x| {
                *word |= if output < WORDS { x.to_bits() >> 16 } else { x.to_bits() };
            }))
        } else {
            Packed::F32(pack(w, [slices, n, k], WIDTH, |place, _, x| *place = x))
        };
        Panels { n, k, data, spread }
    }

    /// Panels of one slice.
    pub(super) fn count(&self) -> usize {
        self.n.div_ceil(WIDTH)
    }

    pub(super) fn panel(&self, slice: usize, p: usize) -> Panel<'_> {
        let index = slice * self.count() + p;
        let range = |width: usize| index * self.k * width..(index + 1) * self.k * width;
        match &self.data {
            Packed::F32(x) => Panel::F32(x[range(WIDTH)].as_chunks().0),
            Packed::Bf16(x) => Panel::Bf16(x[range(WORDS)].as_chunks().0),
        }
    }
}

/// Lays slices of [n, k] out in panels whose rows have `width` places; `put` gets the place of an output of the panel.
fn pack<P: Copy + Default + Send>(
    w: &[f32],
    [slices, n, k]: [usize; 3],
    width: usize,
    put: impl Fn(&mut P, usize, f32) + Sync,
) -> Vec<P> {
    let per_slice = n.div_ceil(WIDTH) * k * width;
    let mut data = vec![P::default(); slices * per_slice];
    if data.is_empty() {
        return data;
    }
    for (data, w) in data.chunks_mut(per_slice).zip(w.chunks(n * k)) {
        data.par_chunks_mut(k * width).zip(w.par_chunks(k * WIDTH)).for_each(|(panel, rows)| {
            for (output, row) in rows.chunks_exact(k).enumerate() {
                for (i, x) in row.iter().enumerate() {
                    put(&mut panel[i * width + output % width], output, *x);
                }
            }
        });
    }
    data
}
