//! Products with a weight: x [m, k] times w [n, k] transposed, one order for every row.
//!
//! Each output is one running total over ascending k, product and sum rounded apart: [`ir::Order::Serial`]. Nothing of that depends on
//! the number of rows, on the tile that a row falls into, on vector width or on threads, so a row's bits are the same
//! alone and in any batch, on any machine, and the interpreter can reproduce them.
//!
//! A general matmul crate was measured first (gemm 0.19, AVX2): its bits change at m = 1 and again where m · n falls
//! under about 256, and with few rows it reads weights at 7 GB/s, this kernel at 30; with many rows both do some 55 Gflop/s
//! on a core. Weights are packed once into panels of [`WIDTH`] outputs, so that a vector holds neighbouring
//! outputs and no sum crosses lanes. A weight that bf16 holds exactly is packed as such, two to a word, and widened in
//! registers: with one row, reading the weights is all there is to it.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

/// Outputs in a panel.
pub(crate) const WIDTH: usize = 32;

/// Rows that share a load of the panel.
const TILE: usize = 4;

/// Multiplications below this number are not worth waking a thread.
const PARALLEL_PRODUCTS: usize = 1 << 20;

/// Words of a row of a panel in bf16: outputs `i` and `i + WORDS` share word `i`, the former in its lower half.
const WORDS: usize = WIDTH / 2;

/// A weight [slices, n, k], packed slice by slice.
#[derive(Debug)]
pub(crate) struct Panels {
    n: usize,
    k: usize,
    data: Packed,
}

/// Panel after panel; in each, k after k, [`WIDTH`] outputs. Outputs missing from a slice's last panel are zero.
#[derive(Debug)]
enum Packed {
    F32(Vec<f32>),
    Bf16(Vec<u32>),
}

/// One panel.
#[derive(Clone, Copy)]
enum Panel<'a> {
    F32(&'a [f32]),
    Bf16(&'a [u32]),
}

impl Panels {
    /// Packs row-major slices of [n, k].
    pub fn pack(w: &[f32], slices: usize, n: usize, k: usize) -> Panels {
        let data = if w.par_iter().all(|x| x.to_bits() & 0xffff == 0) {
            Packed::Bf16(pack(w, [slices, n, k], WORDS, |word, output, x| {
                *word |= if output < WORDS { x.to_bits() >> 16 } else { x.to_bits() };
            }))
        } else {
            Packed::F32(pack(w, [slices, n, k], WIDTH, |place, _, x| *place = x))
        };
        Panels { n, k, data }
    }

    /// Panels of one slice.
    fn count(&self) -> usize {
        self.n.div_ceil(WIDTH)
    }

    fn panel(&self, slice: usize, p: usize) -> Panel<'_> {
        let index = slice * self.count() + p;
        let range = |width: usize| index * self.k * width..(index + 1) * self.k * width;
        match &self.data {
            Packed::F32(x) => Panel::F32(&x[range(WIDTH)]),
            Packed::Bf16(x) => Panel::Bf16(&x[range(WORDS)]),
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

/// Multiplies all rows of `x` (row-major, k wide) with a slice of the weight into `out` (row-major, n wide).
pub(crate) fn multiply(x: &[f32], weight: &Panels, slice: usize, out: &mut [f32]) {
    let w = Slice { weight, slice };
    let (n, k) = (weight.n, weight.k);
    let m = out.len().checked_div(n).unwrap_or(0);
    if m == 0 {
        return;
    }
    let threads = rayon::current_num_threads();
    if threads < 2 || m * n * k < PARALLEL_PRODUCTS {
        return rows_times_panels(x, w, 0..weight.count(), out, n);
    }
    if m >= 2 * TILE * threads {
        let rows = m.div_ceil(threads * 2).next_multiple_of(TILE);
        out.par_chunks_mut(rows * n)
            .zip(x.par_chunks(rows * k.max(1)))
            .for_each(|(out, x)| rows_times_panels(x, w, 0..weight.count(), out, n));
        return;
    }
    // Few rows: each thread takes some panels, and the parts are put together afterwards.
    let share = weight.count().div_ceil(threads * 2).max(1);
    let parts: Vec<(usize, Vec<f32>)> = (0..weight.count())
        .step_by(share)
        .collect::<Vec<_>>()
        .into_par_iter()
        .map(|first| {
            let panels = first..(first + share).min(weight.count());
            let width = (panels.end * WIDTH).min(n) - panels.start * WIDTH;
            let mut part = vec![0.0; m * width];
            rows_times_panels(x, w, panels, &mut part, width);
            (width, part)
        })
        .collect();
    let mut at = 0;
    for (width, part) in parts {
        for (row, values) in part.chunks_exact(width).enumerate() {
            out[row * n + at..row * n + at + width].copy_from_slice(values);
        }
        at += width;
    }
}

#[derive(Clone, Copy)]
struct Slice<'a> {
    weight: &'a Panels,
    slice: usize,
}

/// Rows times some panels; `out` has `width` columns, the first of them the first panel's first.
fn rows_times_panels(x: &[f32], w: Slice<'_>, panels: std::ops::Range<usize>, out: &mut [f32], width: usize) {
    pulp::Arch::new().dispatch(Product { x, w, panels, out, width });
}

struct Product<'a> {
    x: &'a [f32],
    w: Slice<'a>,
    panels: std::ops::Range<usize>,
    out: &'a mut [f32],
    width: usize,
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Product { x, w, panels, out, width } = self;
        let (k, m) = (w.weight.k, out.len() / width);
        for (column, p) in panels.enumerate() {
            let panel = w.weight.panel(w.slice, p);
            let column = column * WIDTH;
            let columns = WIDTH.min(width - column);
            let mut sums = [[0.0; WIDTH]; TILE];
            for first in (0..m).step_by(TILE) {
                let rows = TILE.min(m - first);
                let x = &x[first * k..(first + rows) * k];
                match rows {
                    1 => tile::<S, 1>(simd, x, k, panel, &mut sums),
                    2 => tile::<S, 2>(simd, x, k, panel, &mut sums),
                    3 => tile::<S, 3>(simd, x, k, panel, &mut sums),
                    _ => tile::<S, TILE>(simd, x, k, panel, &mut sums),
                }
                for (row, sums) in sums.iter().take(rows).enumerate() {
                    let at = (first + row) * width + column;
                    out[at..at + columns].copy_from_slice(&sums[..columns]);
                }
            }
        }
    }
}

/// `M` rows times a whole panel.
#[inline(always)]
fn tile<S: Simd, const M: usize>(simd: S, x: &[f32], k: usize, panel: Panel<'_>, sums: &mut [[f32; WIDTH]; TILE]) {
    // One row alone needs four independent totals to hide the latency of the sum; more rows bring their own.
    match panel {
        Panel::F32(panel) => {
            let vectors = WIDTH / S::F32_LANES;
            if M == 1 && vectors.is_multiple_of(4) {
                (0..vectors / 4).for_each(|g| group::<S, _, M, 4>(simd, x, k, Floats { panel, g }, sums));
            } else {
                (0..vectors / 2).for_each(|g| group::<S, _, M, 2>(simd, x, k, Floats { panel, g }, sums));
            }
        }
        Panel::Bf16(panel) => {
            let vectors = WORDS / S::F32_LANES;
            if M == 1 && vectors.is_multiple_of(2) {
                (0..vectors / 2).for_each(|g| group::<S, _, M, 4>(simd, x, k, Halves { panel, g }, sums));
            } else {
                (0..vectors).for_each(|g| group::<S, _, M, 2>(simd, x, k, Halves { panel, g }, sums));
            }
        }
    }
}

/// `V` vectors of outputs of a panel.
trait Columns<S: Simd, const V: usize>: Copy {
    /// The weights of all outputs at term `i`.
    fn load(self, simd: S, i: usize) -> [S::f32s; V];
    /// First output of vector `v`.
    fn output(self, v: usize) -> usize;
}

/// Group `g` of a panel of binary32 numbers.
#[derive(Clone, Copy)]
struct Floats<'a> {
    panel: &'a [f32],
    g: usize,
}

impl<S: Simd, const V: usize> Columns<S, V> for Floats<'_> {
    #[inline(always)]
    fn load(self, _: S, i: usize) -> [S::f32s; V] {
        let row = S::as_simd_f32s(&self.panel[i * WIDTH..(i + 1) * WIDTH]).0;
        let row = &row[self.g * V..(self.g + 1) * V];
        std::array::from_fn(|v| row[v])
    }

    #[inline(always)]
    fn output(self, v: usize) -> usize {
        (self.g * V + v) * S::F32_LANES
    }
}

/// Group `g` of a panel of bf16 numbers: the lower halves of `V / 2` vectors of words, then the upper ones.
#[derive(Clone, Copy)]
struct Halves<'a> {
    panel: &'a [u32],
    g: usize,
}

impl<S: Simd, const V: usize> Columns<S, V> for Halves<'_> {
    #[inline(always)]
    fn load(self, simd: S, i: usize) -> [S::f32s; V] {
        let row = S::as_simd_u32s(&self.panel[i * WORDS..(i + 1) * WORDS]).0;
        let row = &row[self.g * (V / 2)..(self.g + 1) * (V / 2)];
        std::array::from_fn(|v| {
            simd.transmute_f32s_u32s(if v < V / 2 {
                simd.wrapping_dyn_shl_u32s(row[v], simd.splat_u32s(16))
            } else {
                simd.and_u32s(row[v - V / 2], simd.splat_u32s(0xffff_0000))
            })
        })
    }

    #[inline(always)]
    fn output(self, v: usize) -> usize {
        let (half, word) = (v / (V / 2), v % (V / 2));
        half * WORDS + (self.g * (V / 2) + word) * S::F32_LANES
    }
}

/// `M` rows times `V` vectors of the panel: all totals stay in registers.
#[inline(always)]
fn group<S: Simd, C: Columns<S, V>, const M: usize, const V: usize>(
    simd: S,
    x: &[f32],
    k: usize,
    columns: C,
    sums: &mut [[f32; WIDTH]; TILE],
) {
    let xs: [&[f32]; M] = std::array::from_fn(|row| &x[row * k..(row + 1) * k]);
    // Negative zero changes nothing that is added to it, not even the sign of a zero.
    let mut totals = [[simd.splat_f32s(numerics::ABSENT); V]; M];
    for i in 0..k {
        let w = columns.load(simd, i);
        for (totals, x) in totals.iter_mut().zip(xs) {
            let x = simd.splat_f32s(x[i]);
            for (total, w) in totals.iter_mut().zip(w) {
                *total = simd.add_f32s(*total, simd.mul_f32s(x, w));
            }
        }
    }
    for (sums, totals) in sums.iter_mut().zip(totals) {
        for (v, total) in totals.into_iter().enumerate() {
            let at = columns.output(v);
            S::as_mut_simd_f32s(&mut sums[at..at + S::F32_LANES]).0[0] = total;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(n: usize, seed: u64) -> Vec<f32> {
        (0..n as u64).map(|i| numerics::uniform(seed, i) as f32 - 0.5).collect()
    }

    fn serial(x: &[f32], w: &[f32]) -> f32 {
        x.iter().zip(w).fold(-0.0, |sum, (x, w)| sum + x * w)
    }

    /// Odd sizes on purpose: panels, tiles and vectors all end in the middle.
    #[test]
    fn every_row_is_the_serial_sum_in_every_batch_and_on_any_number_of_threads() {
        for (n, k) in [(1, 1), (1, 192), (7, 33), (31, 5), (32, 64), (33, 129), (100, 777), (257, 192), (96, 2049)] {
            let (mut w, x) = (random(n * k, 1), random(70 * k, 2));
            if n % 2 == 0 || k % 3 == 0 {
                numerics::round_bf16_in_place(&mut w);
            }
            let panels = Panels::pack(&w, 1, n, k);
            let truth: Vec<f32> = (0..70 * n).map(|i| serial(&x[i / n * k..][..k], &w[i % n * k..][..k])).collect();
            for threads in [1, 2, 3] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                for m in [1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 64, 70] {
                    let mut out = vec![f32::NAN; m * n];
                    pool.install(|| multiply(&x[..m * k], &panels, 0, &mut out));
                    let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&out), bits(&truth[..m * n]), "m {m}, n {n}, k {k}, {threads} threads");
                }
            }
        }
    }

    /// Integers up to 15 keep every partial sum exact, so any order gives these bits: a lost or doubled term shows.
    #[test]
    fn small_integers_multiply_exactly() {
        let (m, n, k) = (5, 65, 20_480);
        let int = |i: usize, step: usize| ((i * step + i / 7) % 31) as f32 - 15.0;
        let x: Vec<f32> = (0..m * k).map(|i| int(i, 3)).collect();
        let w: Vec<f32> = (0..n * k).map(|i| int(i, 5)).collect();
        let mut out = vec![0.0; m * n];
        multiply(&x, &Panels::pack(&w, 1, n, k), 0, &mut out);
        for (i, found) in out.iter().enumerate() {
            let exact: i64 = (0..k).map(|j| x[i / n * k + j] as i64 * w[i % n * k + j] as i64).sum();
            assert_eq!(*found, exact as f32);
        }
    }
}
