//! Products with a weight: x [m, k] times w [n, k] transposed, one order for every row.
//!
//! Each output is one running total over ascending k, product and sum in one operation ([`ir::Order::Fused`]) or rounded apart
//! ([`ir::Order::Serial`]). Nothing of that depends on
//! the number of rows, on the tile that a row falls into, on vector width or on threads, so a row's bits are the same
//! alone and in any batch, on any machine, and the interpreter can reproduce them.
//!
//! In `serial`, where no product can be rounded, one fused operation has the bits of the two: factors of 8 significant bits each (bf16) whose
//! exponents keep the product among the normal numbers. Exponents are noted when a weight is packed and looked at in x before it is
//! multiplied, so this is decided by the numbers, never hoped for ([`super::spread::Spread`]).
//!
//! A general matmul crate was measured first (gemm 0.19, AVX2): its bits change at m = 1 and again where m · n falls
//! under about 256. Weights are packed once into panels of [`WIDTH`] outputs, so that a vector holds neighbouring
//! outputs and no sum crosses lanes. A weight that bf16 holds exactly is packed as such, two to a word, and widened in
//! registers: with one row, reading the weights is all there is to it.

use super::panels::{Panel, Panels, WIDTH, WORDS};
use crate::team::Gathered;
use crate::threads::{self, Company};
use crate::view::Target;
use ir::Order;
use prefetch_index::prefetch_index;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::cell::Cell;
use std::convert::Infallible;
use std::ops::Range;

/// Rows that share a load of the panel, at most: as many as registers hold totals for.
const TILE: usize = 8;

/// Whether this processor multiplies and adds in one operation. Where it does not, products in the order `fused` have the same bits
/// from a library, many times slower.
pub fn has_fused_multiply_add() -> bool {
    struct Lanes;
    impl WithSimd for Lanes {
        type Output = usize;
        fn with_simd<S: Simd>(self, _: S) -> usize {
            S::F32_LANES
        }
    }
    // Every set of vectors that kernels are compiled for has the operation.
    pulp::Arch::new().dispatch(Lanes) > 1
}

/// How a term is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Terms {
    /// Product and sum are one operation and round once.
    Fused,
    /// Each rounds.
    Apart,
}

impl Terms {
    /// How the terms of a product are added in an order of one running total. What is left open is fused.
    pub fn of(order: &Order) -> Terms {
        match order {
            Order::Any | Order::Fused => Terms::Fused,
            Order::Serial | Order::Fold | Order::Split { .. } => Terms::Apart,
        }
    }

    /// The sum of products, as [`multiply`] has it.
    pub fn sum(self, n: usize, factors: impl Fn(usize) -> (f32, f32)) -> f32 {
        (0..n).map(factors).fold(numerics::ABSENT, |sum, (a, b)| match self {
            Terms::Fused => a.mul_add(b, sum),
            Terms::Apart => sum + a * b,
        })
    }
}

/// Multiplies all rows of `x` (row-major, k wide) with a slice of the weight into `out` (row-major, n wide), by
/// several threads where nobody computes beside it.
pub(crate) fn multiply(x: &[f32], weight: &Panels, slice: usize, terms: Terms, out: Target<'_>, company: Company) {
    let same = terms == Terms::Apart && weight.spread.fuses(x);
    let w = Slice { weight, slice, terms, same, company };
    let (n, k) = (weight.n, weight.k);
    let mut out = out;
    let m = out.len().checked_div(n).unwrap_or(0);
    if m == 0 || k == 0 {
        return zero(&mut out);
    }
    let helpers = rayon::current_num_threads();
    let out = match out {
        Target::F32(out) if company.is_nobody() && threads::shares(m * n * k, m) => out,
        out => return rows_times_panels(x, w, 0..weight.count(), out, n),
    };
    if m == 1 {
        // Outputs of a row lie as the panels do: each thread writes its own.
        let share = weight.count().div_ceil(helpers * 2).max(1);
        return out.par_chunks_mut(share * WIDTH).enumerate().for_each(|(i, out)| {
            let width = out.len();
            rows_times_panels(x, w, i * share..(i * share + width.div_ceil(WIDTH)), Target::F32(out), width);
        });
    }
    if m >= 2 * TILE * helpers {
        let rows = m.div_ceil(helpers * 2).next_multiple_of(TILE);
        out.par_chunks_mut(rows * n)
            .zip(x.par_chunks(rows * k.max(1)))
            .for_each(|(out, x)| rows_times_panels(x, w, 0..weight.count(), Target::F32(out), n));
        return;
    }
    // Few rows: each thread takes some panels, and the parts are put together afterwards.
    let mut parts = parts(weight, m, helpers * 2);
    parts.par_iter_mut().for_each(|part| part.multiply(x, w));
    put_together(&parts, out, n);
}

/// The same by threads that are awake, for products that are not worth waking others.
pub(crate) fn multiply_by(team: &Gathered, x: &[f32], weight: &Panels, terms: Terms, out: &mut [f32]) {
    let same = terms == Terms::Apart && weight.spread.fuses(x);
    let w = Slice { weight, slice: 0, terms, same, company: Company::Nobody };
    let mut parts = parts(weight, out.len() / weight.n, team.parts());
    let Ok(()) = team.run(parts.iter_mut().collect(), |part| {
        part.multiply(x, w);
        Ok::<(), Infallible>(())
    });
    put_together(&parts, out, weight.n);
}

/// Some panels of all rows.
struct Part {
    panels: Range<usize>,
    /// Outputs of a row, and all of them.
    width: usize,
    numbers: Vec<f32>,
}

impl Part {
    fn multiply(&mut self, x: &[f32], w: Slice<'_>) {
        rows_times_panels(x, w, self.panels.clone(), Target::F32(&mut self.numbers), self.width);
    }
}

/// The panels of a slice in at most so many parts.
fn parts(weight: &Panels, rows: usize, most: usize) -> Vec<Part> {
    let share = weight.count().div_ceil(most).max(1);
    let part = |first: usize| {
        let panels = first..(first + share).min(weight.count());
        let width = (panels.end * WIDTH).min(weight.n) - panels.start * WIDTH;
        Part { panels, width, numbers: vec![0.0; rows * width] }
    };
    (0..weight.count()).step_by(share).map(part).collect()
}

fn put_together(parts: &[Part], out: &mut [f32], n: usize) {
    let mut at = 0;
    for Part { width, numbers, .. } in parts {
        for (row, numbers) in numbers.chunks_exact(*width).enumerate() {
            out[row * n + at..row * n + at + width].copy_from_slice(numbers);
        }
        at += width;
    }
}

/// The same without threads for rows of `x` that are picked: every product begins in `x` at its place in `offsets`, and
/// is a row of `out`. `runs` are products of one slice each.
pub(crate) fn multiply_picked<'r>(
    x: &[f32],
    weight: &Panels,
    terms: Terms,
    mut out: Target<'_>,
    offsets: &[usize],
    runs: impl Iterator<Item = (usize, &'r [usize])>,
) {
    if weight.k == 0 {
        return zero(&mut out);
    }
    let same = terms == Terms::Apart && weight.spread.fuses(x);
    let arch = pulp::Arch::new();
    let mut runs = runs.peekable();
    while let Some((slice, products)) = runs.next() {
        let lines = Lines::Picked { offsets, products };
        let w = Slice { weight, slice, terms, same, company: Company::ANY };
        let then = runs.peek().map(|(slice, _)| *slice);
        arch.dispatch(Product { x, w, panels: 0..weight.count(), then, lines, out: &mut out, width: weight.n });
    }
}

/// Sums of no terms.
fn zero(out: &mut Target<'_>) {
    (0..out.len()).for_each(|i| out.put(i, &[0.0]));
}

#[derive(Clone, Copy)]
struct Slice<'a> {
    weight: &'a Panels,
    slice: usize,
    terms: Terms,
    /// Whether one operation has the bits of two here.
    same: bool,
    company: Company,
}

/// Rows times some panels; `out` has `width` columns, the first of them the first panel's first.
fn rows_times_panels(x: &[f32], w: Slice<'_>, panels: Range<usize>, mut out: Target<'_>, width: usize) {
    pulp::Arch::new().dispatch(Product { x, w, panels, then: None, lines: Lines::All, out: &mut out, width });
}

/// Which rows are multiplied.
#[derive(Clone, Copy)]
enum Lines<'a> {
    /// All, one after the other in x and in the result.
    All,
    /// Products by their rows of the result; each begins in x at its offset.
    Picked { offsets: &'a [usize], products: &'a [usize] },
}

impl Lines<'_> {
    /// Where row `i` begins in x, whose rows have `k` terms, and its row of the result.
    #[inline(always)]
    fn place(self, i: usize, k: usize) -> (usize, usize) {
        match self {
            Lines::All => (i * k, i),
            Lines::Picked { offsets, products } => (offsets[products[i]], products[i]),
        }
    }
}

struct Product<'a, 'b> {
    x: &'a [f32],
    w: Slice<'a>,
    panels: Range<usize>,
    /// The slice that is multiplied behind this one, if there is one.
    then: Option<usize>,
    lines: Lines<'a>,
    /// Floats of either format.
    out: &'a mut Target<'b>,
    width: usize,
}

impl WithSimd for Product<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Without vectors the fused operation may be a library's: then it runs only where the order says so.
        let fused = self.w.terms == Terms::Fused || (self.w.same && S::F32_LANES > 1);
        if fused { self.tiles::<S, true>(simd) } else { self.tiles::<S, false>(simd) }
    }
}

impl Product<'_, '_> {
    #[inline(always)]
    fn tiles<S: Simd, const FUSED: bool>(self, simd: S) {
        let Product { x, w, panels, then, lines, out, width } = self;
        let k = w.weight.k;
        let m = match lines {
            Lines::All => out.len() / width,
            Lines::Picked { products, .. } => products.len(),
        };
        // Sixteen vectors of totals leave room for weights in 32 registers, eight in 16.
        let most = if S::F32_LANES >= 16 { TILE } else { TILE / 2 };
        // Few rows go through several panels at a time: more of the weight is on its way, and no total waits for itself.
        let together = match m {
            0 => 1,
            1 => most.min(TOGETHER),
            2..=4 => (most * 3 / 2 / m).clamp(1, TOGETHER - 1),
            _ => 1,
        };
        let begin = panels.start;
        // Rows whose terms stay in the second-level cache go through a panel tile by tile.
        let near = (NEAR / k.max(1) / TILE * TILE).clamp(TILE, 32 * TILE);
        let mut wide = WIDE.take();
        let turn = panels.start + w.company.begins(panels.len()) / together * together;
        for first in (0..m).step_by(near) {
            let end = (first + near).min(m);
            let mut p = turn;
            let mut ahead = panels.len();
            while ahead > 0 {
                let count = together.min(panels.end - p).min(ahead);
                let mut some = [w.weight.panel(w.slice, p); TOGETHER];
                for (i, panel) in some.iter_mut().enumerate().take(count).skip(1) {
                    *panel = w.weight.panel(w.slice, p + i);
                }
                ahead -= count;
                let after = if p + count < panels.end { p + count } else { panels.start };
                // Behind the last panel comes the first of the slice that follows; where none does, what is near already is asked for once more.
                let next = match then {
                    _ if ahead > 0 => w.weight.panel(w.slice, after),
                    Some(slice) => w.weight.panel(slice, turn),
                    None => some[0],
                };
                if let Panel::Bf16(words) = some[0]
                    && end - first >= WORTH_WIDENING
                {
                    wide.resize(k, [0.0; WIDTH]);
                    widened(simd, words, &mut wide);
                    some[0] = Panel::F32(&wide);
                }
                let column = (p - begin) * WIDTH;
                let mut row = first;
                while row < end {
                    // Tiles of nearly one height: one or two rows alone would wait for their own sums.
                    let left = end - row;
                    let rows = left.div_ceil(left.div_ceil(most));
                    let tile = Tile { x, k, lines, first: row, next, out: &mut *out, width };
                    some_rows::<S, FUSED>(simd, tile, rows, &some[..count], column);
                    row += rows;
                }
                p = after;
            }
        }
        WIDE.set(wide);
    }
}

/// Numbers of x that go through a panel before the next one.
const NEAR: usize = 64 << 10;

/// Panels that few rows go through at a time, at most.
const TOGETHER: usize = 4;

/// Rows from which on it pays to widen a panel once, not in registers for each tile.
const WORTH_WIDENING: usize = 24;

thread_local! {
    /// A panel in binary32: kept from launch to launch.
    static WIDE: Cell<Vec<[f32; WIDTH]>> = const { Cell::new(Vec::new()) };
}

/// A panel of bf16 numbers in binary32.
#[inline(always)]
fn widened<S: Simd>(simd: S, words: &[[u32; WORDS]], wide: &mut [[f32; WIDTH]]) {
    for (words, wide) in words.iter().zip(wide) {
        let (low, high) = wide.split_at_mut(WORDS);
        let (low, high) = (S::as_mut_simd_f32s(low).0, S::as_mut_simd_f32s(high).0);
        for ((words, low), high) in S::as_simd_u32s(words).0.iter().zip(low).zip(high) {
            *low = simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(*words, simd.splat_u32s(16)));
            *high = simd.transmute_f32s_u32s(simd.and_u32s(*words, simd.splat_u32s(0xffff_0000)));
        }
    }
}

/// Rows that share the loads of a panel.
struct Tile<'a, 'b> {
    x: &'a [f32],
    k: usize,
    lines: Lines<'a>,
    first: usize,
    /// The panel that comes next.
    next: Panel<'a>,
    out: &'a mut Target<'b>,
    width: usize,
}

/// At most [`TILE`] rows times some panels, of which more than one only stand where few rows do. No closure stands around the
/// loops: what is not inlined is not compiled for vectors.
#[inline(always)]
fn some_rows<S: Simd, const FUSED: bool>(
    simd: S,
    tile: Tile<'_, '_>,
    rows: usize,
    panels: &[Panel<'_>],
    column: usize,
) {
    match (rows, panels) {
        (8, [p, ..]) => tile.multiply::<S, 8, 1, FUSED>(simd, [*p], column),
        (7, [p, ..]) => tile.multiply::<S, 7, 1, FUSED>(simd, [*p], column),
        (6, [p, ..]) => tile.multiply::<S, 6, 1, FUSED>(simd, [*p], column),
        (5, [p, ..]) => tile.multiply::<S, 5, 1, FUSED>(simd, [*p], column),
        (4, [p, q, r, ..]) => tile.multiply::<S, 4, 3, FUSED>(simd, [*p, *q, *r], column),
        (4, [p, q]) => tile.multiply::<S, 4, 2, FUSED>(simd, [*p, *q], column),
        (4, [p]) => tile.multiply::<S, 4, 1, FUSED>(simd, [*p], column),
        (3, [p, q, r, ..]) => tile.multiply::<S, 3, 3, FUSED>(simd, [*p, *q, *r], column),
        (3, [p, q]) => tile.multiply::<S, 3, 2, FUSED>(simd, [*p, *q], column),
        (3, [p]) => tile.multiply::<S, 3, 1, FUSED>(simd, [*p], column),
        (2, [p, q, r, ..]) => tile.multiply::<S, 2, 3, FUSED>(simd, [*p, *q, *r], column),
        (2, [p, q]) => tile.multiply::<S, 2, 2, FUSED>(simd, [*p, *q], column),
        (2, [p]) => tile.multiply::<S, 2, 1, FUSED>(simd, [*p], column),
        (_, [p, q, r, s]) => tile.multiply::<S, 1, 4, FUSED>(simd, [*p, *q, *r, *s], column),
        (_, [p, q, r]) => tile.multiply::<S, 1, 3, FUSED>(simd, [*p, *q, *r], column),
        (_, [p, q]) => tile.multiply::<S, 1, 2, FUSED>(simd, [*p, *q], column),
        (_, [p, ..]) => tile.multiply::<S, 1, 1, FUSED>(simd, [*p], column),
        (_, []) => {}
    }
}

impl Tile<'_, '_> {
    /// `M` rows times `P` whole panels, neighbours from output `column` on.
    #[inline(always)]
    fn multiply<S: Simd, const M: usize, const P: usize, const FUSED: bool>(
        self,
        simd: S,
        panels: [Panel<'_>; P],
        column: usize,
    ) {
        let Tile { x, k, lines, first, next, out, width } = self;
        let mut rows: [&[f32]; M] = [&[]; M];
        let mut places = [0; M];
        for (i, (row, place)) in rows.iter_mut().zip(&mut places).enumerate() {
            let (from, to) = lines.place(first + i, k);
            *row = &x[from..from + k];
            *place = to * width;
        }
        // All panels of a weight have one format.
        let floats = panels.map(|p| if let Panel::F32(p) = p { p } else { &[] });
        let halves = panels.map(|p| if let Panel::Bf16(p) = p { p } else { &[] });
        let next = if let Panel::Bf16(p) = next { p } else { &[] };
        let mut written = Written { out, places, column, width };
        match panels[0] {
            Panel::F32(_) => {
                for g in 0..WIDTH / S::F32_LANES / 2 {
                    let columns = floats.map(|panel| Floats { panel, g });
                    let sums = group::<S, _, M, 2, P, FUSED>(simd, rows, columns, &[]);
                    written.put::<S, _, 2, P>(sums, columns);
                }
            }
            Panel::Bf16(_) => {
                for g in 0..WORDS / S::F32_LANES {
                    let columns = halves.map(|panel| Halves { panel, g });
                    let sums = group::<S, _, M, 2, P, FUSED>(simd, rows, columns, next);
                    written.put::<S, _, 2, P>(sums, columns);
                }
            }
        }
    }
}

/// Where the sums of a tile belong.
struct Written<'a, 'b, const M: usize> {
    out: &'a mut Target<'b>,
    /// First element of each row.
    places: [usize; M],
    /// First output.
    column: usize,
    /// Outputs of a row.
    width: usize,
}

impl<const M: usize> Written<'_, '_, M> {
    /// Plain loops over what is known while compiling: totals stay in registers until they are written, which iterators over arrays
    /// of vectors do not promise.
    #[allow(clippy::needless_range_loop)]
    #[inline(always)]
    fn put<S: Simd, C: Columns<S, V>, const V: usize, const P: usize>(
        &mut self,
        sums: [[[S::f32s; V]; M]; P],
        columns: [C; P],
    ) {
        let lanes = S::F32_LANES;
        match &mut *self.out {
            Target::F32(out) if self.column + P * WIDTH <= self.width => {
                for p in 0..P {
                    for i in 0..M {
                        for v in 0..V {
                            let at = self.places[i] + self.column + p * WIDTH + columns[p].output(v);
                            S::as_mut_simd_f32s(&mut out[at..at + lanes]).0[0] = sums[p][i][v];
                        }
                    }
                }
            }
            out => {
                let mut numbers = [0.0; WIDTH];
                for (p, (sums, columns)) in sums.iter().zip(&columns).enumerate() {
                    for (place, sums) in self.places.iter().zip(sums) {
                        for (v, sum) in sums.iter().enumerate() {
                            let output = self.column + p * WIDTH + columns.output(v);
                            if output < self.width {
                                S::as_mut_simd_f32s(&mut numbers[..lanes]).0[0] = *sum;
                                out.put(place + output, &numbers[..lanes.min(self.width - output)]);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// `V` vectors of outputs of a panel.
trait Columns<S: Simd, const V: usize>: Copy {
    /// The weights of all outputs at term `i`.
    fn load(self, simd: S, i: usize) -> [S::f32s; V];
    /// The first `k` terms, so that no index below `k` needs to be checked.
    fn terms(self, k: usize) -> Self;
    /// First output of vector `v`.
    fn output(self, v: usize) -> usize;
    /// Whether what comes next is likely to be far, and asked for.
    const ASKS: bool;
}

/// Group `g` of a panel of binary32 numbers.
#[derive(Clone, Copy)]
struct Floats<'a> {
    panel: &'a [[f32; WIDTH]],
    g: usize,
}

impl<S: Simd, const V: usize> Columns<S, V> for Floats<'_> {
    #[inline(always)]
    fn load(self, _: S, i: usize) -> [S::f32s; V] {
        let row = S::as_simd_f32s(&self.panel[i]).0;
        let row = &row[self.g * V..(self.g + 1) * V];
        std::array::from_fn(|v| row[v])
    }

    #[inline(always)]
    fn terms(self, k: usize) -> Self {
        Floats { panel: &self.panel[..k], ..self }
    }

    #[inline(always)]
    fn output(self, v: usize) -> usize {
        (self.g * V + v) * S::F32_LANES
    }

    const ASKS: bool = false;
}

/// Group `g` of a panel of bf16 numbers: the lower halves of `V / 2` vectors of words, then the upper ones.
#[derive(Clone, Copy)]
struct Halves<'a> {
    panel: &'a [[u32; WORDS]],
    g: usize,
}

impl<S: Simd, const V: usize> Columns<S, V> for Halves<'_> {
    #[inline(always)]
    fn load(self, simd: S, i: usize) -> [S::f32s; V] {
        let row = S::as_simd_u32s(&self.panel[i]).0;
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
    fn terms(self, k: usize) -> Self {
        Halves { panel: &self.panel[..k], ..self }
    }

    #[inline(always)]
    fn output(self, v: usize) -> usize {
        let (half, word) = (v / (V / 2), v % (V / 2));
        half * WORDS + (self.g * (V / 2) + word) * S::F32_LANES
    }

    const ASKS: bool = true;
}

/// `M` rows times `V` vectors of each of `P` panels: all totals stay in registers. `next` is what comes next when these are done.
#[inline(always)]
fn group<S: Simd, C: Columns<S, V>, const M: usize, const V: usize, const P: usize, const FUSED: bool>(
    simd: S,
    mut x: [&[f32]; M],
    mut columns: [C; P],
    next: &[[u32; WORDS]],
) -> [[[S::f32s; V]; M]; P] {
    let k = x[0].len();
    // With one length for all no index is checked inside the loop. Loops, no closures: what is not inlined is not compiled for vectors.
    for columns in &mut columns {
        *columns = columns.terms(k);
    }
    for x in &mut x {
        *x = &x[..k];
    }
    // Negative zero changes nothing that is added to it, not even the sign of a zero.
    let mut totals = [[[simd.splat_f32s(numerics::ABSENT); V]; M]; P];
    for i in 0..k {
        if C::ASKS {
            // A term of a panel is a line of the processor's caches. Behind a slice nothing is read, only asked for.
            for p in 0..P {
                prefetch_index(next, i * P + p);
            }
        }
        for (totals, columns) in totals.iter_mut().zip(columns) {
            let w = columns.load(simd, i);
            for (totals, x) in totals.iter_mut().zip(x) {
                let x = simd.splat_f32s(x[i]);
                for (total, w) in totals.iter_mut().zip(w) {
                    *total = match FUSED {
                        true => simd.mul_add_f32s(x, w, *total),
                        false => simd.add_f32s(*total, simd.mul_f32s(x, w)),
                    };
                }
            }
        }
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(n: usize, seed: u64) -> Vec<f32> {
        (0..n as u64).map(|i| numerics::uniform(seed, i) as f32 - 0.5).collect()
    }

    fn truth(terms: Terms, x: &[f32], w: &[f32]) -> f32 {
        terms.sum(x.len(), |i| (x[i], w[i]))
    }

    /// Odd sizes on purpose: panels, tiles and vectors all end in the middle.
    #[test]
    fn every_row_is_the_running_total_in_every_batch_and_on_any_number_of_threads() {
        for (n, k) in [(1, 1), (1, 192), (7, 33), (31, 5), (32, 64), (33, 129), (100, 777), (257, 192), (96, 2049)] {
            let (mut w, x) = (random(n * k, 1), random(70 * k, 2));
            if n % 2 == 0 || k % 3 == 0 {
                numerics::round_bf16_in_place(&mut w);
            }
            let panels = Panels::pack(&w, 1, n, k);
            for (terms, threads) in
                [(Terms::Apart, 1), (Terms::Apart, 3), (Terms::Fused, 1), (Terms::Fused, 2), (Terms::Fused, 3)]
            {
                let of = |i: usize| truth(terms, &x[i / n * k..][..k], &w[i % n * k..][..k]);
                let truth: Vec<f32> = (0..70 * n).map(of).collect();
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let company = if threads > 1 { Company::Nobody } else { Company::Others { part: 2, parts: 3 } };
                for m in [1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 64, 70] {
                    let mut out = vec![f32::NAN; m * n];
                    pool.install(|| multiply(&x[..m * k], &panels, 0, terms, Target::F32(&mut out), company));
                    let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&out), bits(&truth[..m * n]), "{terms:?}, m {m}, n {n}, k {k}, {threads} threads");
                }
            }
        }
    }

    /// Rows of x picked in any order, some twice, go to their own rows of the result; a result in bf16 is the other one rounded.
    #[test]
    fn picked_rows_and_rounded_results_have_the_bits_of_rows_alone() {
        for (products, n, k) in [(1, 200, 40), (2, 31, 5), (9, 100, 77), (61, 96, 192), (64, 33, 64)] {
            for halves in [false, true] {
                let (mut w, x) = (random(3 * n * k, 5), random(23 * k, 6));
                if halves {
                    numerics::round_bf16_in_place(&mut w);
                }
                let panels = Panels::pack(&w, 3, n, k);
                let offsets: Vec<usize> = (0..products).map(|i| i * 17 % 23 * k).collect();
                let mut lots = [Vec::new(), Vec::new(), Vec::new()];
                (0..products).for_each(|i| lots[i * 5 / 2 % 3].push(i));
                let runs = || lots.iter().enumerate().map(|(slice, lot)| (slice, &lot[..]));
                let mut truth = vec![0.0; products * n];
                for (slice, lot) in runs() {
                    for i in lot {
                        let out = Target::F32(&mut truth[i * n..(i + 1) * n]);
                        multiply(&x[offsets[*i]..][..k], &panels, slice, Terms::Fused, out, Company::ANY);
                    }
                }
                let (mut found, mut rounded) = (vec![f32::NAN; products * n], vec![0; products * n]);
                multiply_picked(&x, &panels, Terms::Fused, Target::F32(&mut found), &offsets, runs());
                multiply_picked(&x, &panels, Terms::Fused, Target::Bf16(&mut rounded), &offsets, runs());
                assert_eq!(found, truth, "{products} products, n {n}, k {k}");
                assert!(truth.iter().zip(&rounded).all(|(x, bits)| numerics::bf16_bits(*x) == *bits));
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
        multiply(&x, &Panels::pack(&w, 1, n, k), 0, Terms::Fused, Target::F32(&mut out), Company::Nobody);
        for (i, found) in out.iter().enumerate() {
            let exact: i64 = (0..k).map(|j| x[i / n * k + j] as i64 * w[i % n * k + j] as i64).sum();
            assert_eq!(*found, exact as f32);
        }
    }

    /// Numbers of bf16, so that products are fused where that is the same, with exponents on both sides of where it is.
    #[test]
    fn fused_products_have_the_bits_of_two_operations() {
        let (m, n, k) = (11, 40, 96);
        for (scale_x, scale_w, edge) in [
            (1.0, 1.0, 0.5),
            (2f32.powi(-60), 2f32.powi(-60), 0.25),
            (2f32.powi(-70), 2f32.powi(-56), 0.75),
            (2f32.powi(-100), 2f32.powi(-40), 1e-3),
            (2f32.powi(63), 2f32.powi(63), 0.0),
            (2f32.powi(64), 2f32.powi(64), 0.0),
            (f32::from_bits(0x0040_0000), 1.0, 0.0),
        ] {
            let mut x: Vec<f32> = random(m * k, 3).iter().map(|x| x * scale_x).collect();
            let mut w: Vec<f32> = random(n * k, 4).iter().map(|w| w * scale_w).collect();
            x[5] = edge;
            w[7] = -0.0;
            x[3 * k] = f32::INFINITY;
            x[4 * k + 1] = f32::NAN;
            numerics::round_bf16_in_place(&mut x);
            numerics::round_bf16_in_place(&mut w);
            let mut out = vec![0.0; m * n];
            multiply(&x, &Panels::pack(&w, 1, n, k), 0, Terms::Apart, Target::F32(&mut out), Company::ANY);
            for (i, found) in out.iter().enumerate() {
                let exact = truth(Terms::Apart, &x[i / n * k..][..k], &w[i % n * k..][..k]);
                assert!(numerics::same_bits(*found, exact), "{scale_x:e} {scale_w:e}: {found:e} is not {exact:e}");
            }
        }
    }
}
