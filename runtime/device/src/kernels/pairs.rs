//! Products in the order `pairs`, by the processor's matrix unit where it has one and gives the same bits, by vectors elsewhere.
//!
//! The unit takes a subnormal number for zero, so it is used where none can come up. Let `q` be the product of the least powers of two
//! of which all numbers of x, and all of the weight, are multiples: a number of bf16 with exponent e is one of 2^(e - 7). Every
//! product is a multiple of `q`; so is every sum of multiples, and rounding one to binary32 leaves a multiple of `q`. What is no zero
//! is then at least `q`, in any order of sums. Where `q` is a normal number nothing is ever subnormal (`Spread::keeps_normal`). Rows of x are
//! looked at while they are laid out for the unit, so the numbers of a launch decide, and both ways have the same bits.

use super::matmul::{Packed, Product, WIDTH};
use super::spread::Spread;
use super::tiles::{BLOCK_LINES, Line, OUTPUTS, Tiles};
use numerics::PAIRS;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::cell::Cell;

/// Rows that are laid out together.
const ROWS: usize = 64;

/// Rows that share a load of the weight where vectors multiply.
const TILE: usize = 4;

/// A weight of bf16 numbers [slices, n, k] in blocks of [`PAIRS`] terms; what is missing from the last block or panel is zero.
pub(super) fn pack(w: &[f32], n: usize, k: usize) -> Vec<Line> {
    let panel = k.div_ceil(PAIRS) * BLOCK_LINES;
    let slice = n.div_ceil(OUTPUTS) * panel;
    let mut lines = vec![Line::default(); w.len().checked_div(n * k).unwrap_or(0) * slice];
    if lines.is_empty() {
        return lines;
    }
    for (lines, w) in lines.chunks_exact_mut(slice).zip(w.chunks_exact(n * k)) {
        lines.par_chunks_exact_mut(panel).zip(w.par_chunks(k * OUTPUTS)).for_each(|(panel, rows)| {
            for (output, row) in rows.chunks_exact(k).enumerate() {
                for (i, x) in row.iter().enumerate() {
                    let line = i / PAIRS * BLOCK_LINES + output / 16 * 16 + i % PAIRS / 2;
                    panel[line].0[output % 16 * 2 + i % 2] = (x.to_bits() >> 16) as u16;
                }
            }
        });
    }
    lines
}

thread_local! {
    /// Rows as the unit reads them, and what it leaves; kept from launch to launch.
    static ROOM: Cell<(Vec<Line>, Vec<[f32; OUTPUTS]>)> = const { Cell::new((Vec::new(), Vec::new())) };
}

/// A product whose order is `pairs`.
pub(super) struct Pairs<'a, 'b>(pub Product<'a, 'b>);

impl WithSimd for Pairs<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let mut job = self.0;
        let rows = job.rows();
        let k = job.w.weight.k;
        let blocks = k.div_ceil(PAIRS);
        let panel = blocks * BLOCK_LINES;
        let weights = match &job.w.weight.data {
            Packed::Pairs(lines) => {
                let first = job.w.slice * job.w.weight.count();
                Some(&lines[(first + job.panels.start) * panel..(first + job.panels.end) * panel])
            }
            _ => None,
        };
        let unit = Tiles::here().zip(weights);
        let (mut x, mut sums) = ROOM.take();
        for first in (0..rows).step_by(ROWS) {
            let last = (first + ROWS).min(rows);
            let Some((tiles, w)) = unit.filter(|_| lay_out(&job, first..last, &mut x)) else {
                by_vectors(simd, &mut job, weights, first..last);
                continue;
            };
            let count = last - first;
            let room = job.panels.len() * count;
            if sums.len() < room {
                sums.resize(room, [0.0; OUTPUTS]);
            }
            tiles.multiply(&x, blocks, w, &mut sums[..room]);
            for i in 0..count {
                let (_, to) = job.lines.place(first + i, k);
                for p in 0..job.panels.len() {
                    let column = p * WIDTH;
                    match job.width - column {
                        WIDTH.. => job.out.put(to * job.width + column, &sums[p * count + i]),
                        rest => job.out.put(to * job.width + column, &sums[p * count + i][..rest]),
                    }
                }
            }
        }
        ROOM.set((x, sums));
    }
}

/// Writes rows of x in blocks, and says whether the unit has the bits of the order for them.
#[inline(always)]
fn lay_out(job: &Product<'_, '_>, rows: std::ops::Range<usize>, lines: &mut Vec<Line>) -> bool {
    let k = job.w.weight.k;
    let blocks = k.div_ceil(PAIRS);
    if lines.len() != rows.len() * blocks {
        lines.resize(rows.len() * blocks, Line::default());
    }
    let mut seen = Spread::NOTHING;
    for (i, lines) in rows.zip(lines.chunks_exact_mut(blocks)) {
        let (from, _) = job.lines.place(i, k);
        let (whole, rest) = job.x[from..from + k].as_chunks::<PAIRS>();
        for (x, line) in whole.iter().zip(&mut *lines) {
            seen = seen.with(x);
            x.iter().zip(&mut line.0).for_each(|(x, to)| *to = (x.to_bits() >> 16) as u16);
        }
        if let Some(line) = lines.get_mut(whole.len()) {
            seen = seen.with(rest);
            *line = Line::default();
            rest.iter().zip(&mut line.0).for_each(|(x, to)| *to = (x.to_bits() >> 16) as u16);
        }
    }
    seen.keeps_normal(job.w.weight.spread)
}

/// The order by its definition, [`TILE`] rows and a vector of outputs at a time.
#[inline(always)]
fn by_vectors<S: Simd>(simd: S, job: &mut Product<'_, '_>, weights: Option<&[Line]>, rows: std::ops::Range<usize>) {
    let k = job.w.weight.k;
    let panel = k.div_ceil(PAIRS) * BLOCK_LINES;
    for p in job.panels.clone() {
        let from = p - job.panels.start;
        let floats = job.w.weight.floats(job.w.slice, p);
        let column = from * WIDTH;
        let columns = WIDTH.min(job.width - column);
        let mut row = rows.start;
        while row < rows.end {
            let tile = TILE.min(rows.end - row);
            let mut x: [&[f32]; TILE] = [&[]; TILE];
            for (i, x) in x.iter_mut().enumerate() {
                // A row that is missing is the last one again.
                let (at, _) = job.lines.place(row + i.min(tile - 1), k);
                *x = &job.x[at..at + k];
            }
            let mut sums = [[0.0; WIDTH]; TILE];
            for v in 0..WIDTH / S::F32_LANES {
                match weights {
                    Some(w) => totals(simd, x, Halves { lines: &w[from * panel..][..panel], v }, v, &mut sums),
                    None => totals(simd, x, Floats { panel: floats, v }, v, &mut sums),
                }
            }
            for (i, sums) in sums.iter().enumerate().take(tile) {
                let (_, to) = job.lines.place(row + i, k);
                job.out.put(to * job.width + column, &sums[..columns]);
            }
            row += tile;
        }
    }
}

/// A vector of outputs of a panel.
trait Column<S: Simd>: Copy {
    /// The weights of terms `2 pair` and `2 pair + 1`.
    fn load(self, simd: S, pair: usize) -> [S::f32s; 2];
}

/// Of a panel in binary32; a term behind the last is zero.
#[derive(Clone, Copy)]
struct Floats<'a> {
    panel: &'a [[f32; WIDTH]],
    v: usize,
}

impl<S: Simd> Column<S> for Floats<'_> {
    #[inline(always)]
    fn load(self, simd: S, pair: usize) -> [S::f32s; 2] {
        let row = |i: usize| S::as_simd_f32s(&self.panel[i]).0[self.v];
        let odd = if 2 * pair + 1 < self.panel.len() { row(2 * pair + 1) } else { simd.splat_f32s(0.0) };
        [row(2 * pair), odd]
    }
}

/// Of a panel in pairs of bf16.
#[derive(Clone, Copy)]
struct Halves<'a> {
    lines: &'a [Line],
    v: usize,
}

impl<S: Simd> Column<S> for Halves<'_> {
    #[inline(always)]
    fn load(self, simd: S, pair: usize) -> [S::f32s; 2] {
        let vectors = WIDTH / 2 / S::F32_LANES;
        let line = pair / 16 * BLOCK_LINES + self.v / vectors * 16 + pair % 16;
        let words: [u32; 16] = bytemuck::cast(self.lines[line].0);
        let words = S::as_simd_u32s(&words).0[self.v % vectors];
        let low = simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(words, simd.splat_u32s(16)));
        let high = simd.transmute_f32s_u32s(simd.and_u32s(words, simd.splat_u32s(0xffff_0000)));
        if cfg!(target_endian = "little") { [low, high] } else { [high, low] }
    }
}

#[inline(always)]
fn totals<S: Simd, C: Column<S>>(simd: S, x: [&[f32]; TILE], w: C, v: usize, sums: &mut [[f32; WIDTH]; TILE]) {
    let k = x[0].len();
    let zero = simd.splat_f32s(0.0);
    let mut totals = [zero; TILE];
    for start in (0..k).step_by(PAIRS) {
        let end = (start + PAIRS).min(k);
        let mut running = [[zero; 2]; TILE];
        for pair in start / 2..end.div_ceil(2) {
            let [even, odd] = w.load(simd, pair);
            for (running, x) in running.iter_mut().zip(x) {
                running[0] = simd.mul_add_f32s(simd.splat_f32s(x[2 * pair]), even, running[0]);
                // Zero times zero behind the last term: a total that is no zero stays as it is, and no sum shows the sign of one.
                let next = if 2 * pair + 1 < k { x[2 * pair + 1] } else { 0.0 };
                running[1] = simd.mul_add_f32s(simd.splat_f32s(next), odd, running[1]);
            }
        }
        for (total, [even, odd]) in totals.iter_mut().zip(running) {
            *total = simd.add_f32s(*total, simd.add_f32s(even, odd));
        }
    }
    for (sums, total) in sums.iter_mut().zip(totals) {
        S::as_mut_simd_f32s(sums).0[v] = total;
    }
}
