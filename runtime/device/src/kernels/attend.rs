//! Attention over paged keys and values.
//!
//! Keys are taken in blocks of [`BLOCK`] at *absolute* positions, the softmax is carried from block to block: per block one maximum,
//! one rescaling of what came before, then keys in ascending order, product and sum in one operation. What a query computes depends on its own position,
//! the window and the cached rows, so chunks, batches and threads cannot change its bits. A windowed kind looks at
//! the pages of its window only.

use super::nest::Shape;
use super::{KernelResult, Launching};
use crate::cache::{Pool, Side};
use crate::contract::{Rows, first_visible};
use crate::view::{Target, View};
use ir::{KvLayout, Mask};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;

/// Keys in a block.
const BLOCK: usize = 256;

/// Places from an element of the keys to the next: a little more than a block, so that elements do not fall on the same few
/// lines of a cache.
const STRIDE: usize = BLOCK + 16;

/// Running totals of the weights of a block; it divides [`BLOCK`].
const SUMS: usize = 16;

/// Query rows that share the loading of a block.
const TILE: usize = 32;

/// Products of queries and keys below this number are not worth waking a thread (some fifty microseconds' work).
const PARALLEL_PRODUCTS: usize = 1 << 19;

/// Numbers behind the last key that a vector may reach.
const LANES: usize = 32;

/// An attention kernel.
#[derive(Debug)]
pub(crate) struct Attend {
    /// Index of the KV kind.
    pub kind: usize,
    heads: usize,
    kv_heads: usize,
    width: usize,
    /// Whether a query also sees rows of its sequence behind its own position.
    all: bool,
}

/// What a group of query heads of one row carries from block to block.
#[derive(Clone, Copy)]
struct Carried {
    max: f32,
    sum: f32,
}

impl Attend {
    /// Prepares the kernel for queries of shape `q`.
    pub fn new(
        kind: usize,
        layout: &KvLayout,
        mask: Mask,
        q: &Shape,
        out: &Shape,
        sink: Option<&Shape>,
    ) -> Result<Attend, String> {
        let (kv_heads, width) = (layout.heads as usize, layout.head_elements as usize);
        let heads = q.row.checked_div(width).unwrap_or(0);
        if q.rows.is_none() || q.row != out.row || kv_heads == 0 || heads * width != q.row || heads % kv_heads != 0 {
            return Err(format!("attention of {} query elements over {kv_heads} heads of {width}", q.row));
        }
        if sink.is_some_and(|s| s.rows.is_some() || s.row != heads) {
            return Err(format!("attention of {heads} query heads with another number of sink scores"));
        }
        Ok(Attend { kind, heads, kv_heads, width, all: mask == Mask::All })
    }

    pub fn run(&self, launch: &Launching<'_>, operands: &[View<'_>], out: Target<'_>) -> KernelResult {
        let Target::F32(out) = out else { return Err("attention whose result is not f32".to_owned()) };
        let Some(slot) = launch.slots[self.kind] else { return Err("attention in a layer without cache".to_owned()) };
        let pool = launch.pools.and_then(|p| p.pool(self.kind)).ok_or("attention while the cache is written")?;
        let rows = launch.rows;
        let job = Job {
            kernel: self,
            rows,
            first: launch.first,
            pool,
            slot,
            scale: launch.number,
            q: operands[0],
            last: self.last_positions(rows),
            sink_scores: self.sink_scores(operands)?,
        };
        let row = self.heads * self.width;
        let group = row / self.kv_heads;
        let count = out.len() / row;
        let seen: usize = (0..count).map(|r| job.visible(r).len()).sum();
        if !launch.alone || rayon::current_num_threads() < 2 || seen * row < PARALLEL_PRODUCTS {
            out.chunks_mut(TILE * row).enumerate().for_each(|(i, out)| {
                job.tile(i * TILE..(i * TILE + TILE).min(count), 0..self.kv_heads, out);
            });
        } else if count < TILE {
            out.par_chunks_mut(group).enumerate().for_each(|(i, out)| {
                let (row, head) = (i / self.kv_heads, i % self.kv_heads);
                job.tile(row..row + 1, head..head + 1, out);
            });
        } else {
            out.par_chunks_mut(TILE * row).enumerate().for_each(|(i, out)| {
                job.tile(i * TILE..(i * TILE + TILE).min(count), 0..self.kv_heads, out);
            });
        }
        Ok(())
    }

    /// The sink scores of all query heads, if there are any: the operand behind the positions.
    fn sink_scores(&self, operands: &[View<'_>]) -> Result<Vec<f32>, String> {
        let Some(sink) = operands.get(2) else { return Ok(Vec::new()) };
        let mut wide = vec![0.0; self.heads];
        Ok(sink.numbers(0, self.heads, &mut wide).to_vec())
    }

    /// Last position of each row's sequence in this step, for masks that look ahead.
    fn last_positions(&self, rows: &Rows) -> Vec<usize> {
        let mut last = vec![0; rows.sequence.last().map_or(0, |s| s + 1)];
        rows.sequence.iter().zip(&rows.position).for_each(|(s, p)| last[*s] = *p);
        last
    }
}

struct Job<'a> {
    kernel: &'a Attend,
    rows: &'a Rows,
    /// The step's row that is row 0 here.
    first: usize,
    pool: Pool<'a>,
    slot: usize,
    scale: f32,
    q: View<'a>,
    last: Vec<usize>,
    /// One more score for each query head, of a row without value; empty if there is none.
    sink_scores: Vec<f32>,
}

impl Job<'_> {
    /// Positions that a row sees.
    fn visible(&self, row: usize) -> Range<usize> {
        let position = self.rows.position[self.first + row];
        let end = if self.kernel.all { self.last[self.of_sequence(row)] } else { position };
        first_visible(&self.pool.layout, position, self.rows.start)..end + 1
    }

    /// Sequence of a row.
    fn of_sequence(&self, row: usize) -> usize {
        self.rows.sequence[self.first + row]
    }

    /// Computes `rows` × KV heads; a row of `out` holds the query heads of these KV heads.
    fn tile(&self, rows: Range<usize>, kv_heads: Range<usize>, out: &mut [f32]) {
        let group = self.kernel.heads / self.kernel.kv_heads * self.kernel.width;
        let stride = group * kv_heads.len();
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.fit(self.kernel.width, group);
            self.tile_with(rows, kv_heads, out, stride, scratch);
        });
    }

    fn tile_with(
        &self,
        rows: Range<usize>,
        kv_heads: Range<usize>,
        out: &mut [f32],
        stride: usize,
        scratch: &mut Scratch,
    ) {
        let group = stride / kv_heads.len();
        for (h, head) in kv_heads.enumerate() {
            let mut first = rows.start;
            while first < rows.end {
                // Rows of one sequence see overlapping positions and share the loading of blocks.
                let sequence = self.of_sequence(first);
                let end = (first..rows.end).find(|r| self.of_sequence(*r) != sequence).unwrap_or(rows.end);
                self.sequence(first..end, head, &mut out[(first - rows.start) * stride..], stride, h * group, scratch);
                first = end;
            }
        }
    }

    /// Rows of one sequence under one KV head; row r of them has its heads at `out[r * stride + at..]`.
    fn sequence(
        &self,
        rows: Range<usize>,
        head: usize,
        out: &mut [f32],
        stride: usize,
        at: usize,
        scratch: &mut Scratch,
    ) {
        let width = self.kernel.width;
        let heads = self.kernel.heads / self.kernel.kv_heads;
        let group = heads * width;
        let from = rows.clone().map(|r| self.visible(r).start).min().unwrap_or(0);
        let to = rows.clone().map(|r| self.visible(r).end).max().unwrap_or(0);
        let arch = pulp::Arch::new();
        let mut carried = std::mem::take(&mut scratch.carried);
        carried.clear();
        carried.resize(rows.len() * heads, Carried { max: f32::NEG_INFINITY, sum: 0.0 });
        for (i, row) in rows.clone().enumerate() {
            out[i * stride + at..i * stride + at + group].fill(0.0);
            let q_at = (row * self.kernel.kv_heads + head) * group;
            let q = self.q.numbers(q_at, group, &mut scratch.wide);
            let queries = &mut scratch.q[i * group..(i + 1) * group];
            for (h, q) in q.chunks_exact(width).enumerate() {
                queries.chunks_exact_mut(heads).zip(q).for_each(|(element, q)| element[h] = *q);
            }
        }
        for block in (from / BLOCK * BLOCK..to).step_by(BLOCK) {
            let loaded = block.max(from)..(block + BLOCK).min(to);
            self.load(rows.start, loaded.clone(), head, scratch);
            for (i, row) in rows.clone().enumerate() {
                let seen = self.visible(row);
                let keys = seen.start.max(loaded.start)..seen.end.min(loaded.end);
                if keys.is_empty() {
                    continue;
                }
                let first = keys.start - loaded.start;
                arch.dispatch(Block {
                    q: &scratch.q[i * group..(i + 1) * group],
                    k: &scratch.k[first..],
                    v: &scratch.v[first * width..][..keys.len() * width],
                    width,
                    keys: keys.len(),
                    scale: self.scale,
                    carried: &mut carried[i * heads..(i + 1) * heads],
                    out: &mut out[i * stride + at..][..group],
                    scores: &mut scratch.scores,
                });
            }
        }
        for (i, carried) in carried.iter().enumerate() {
            let at = i / heads * stride + at + i % heads * width;
            let out = &mut out[at..at + width];
            match self.sink_scores.get(head * heads + i % heads) {
                None => out.iter_mut().for_each(|x| *x /= carried.sum),
                Some(sink) => {
                    let max = numerics::max_f32(carried.max, *sink);
                    let kept = numerics::exp(carried.max - max);
                    let sum = carried.sum * kept + numerics::exp(*sink - max);
                    out.iter_mut().for_each(|x| *x = *x * kept / sum);
                }
            }
        }
        scratch.carried = carried;
    }

    /// Keys and values at some positions, widened.
    fn load(&self, row: usize, positions: Range<usize>, head: usize, scratch: &mut Scratch) {
        let page_tokens = self.pool.layout.page_tokens as usize;
        let pages = &self.rows.pages[self.kernel.kind][self.of_sequence(row)];
        let mut position = positions.start;
        while position < positions.end {
            let token = position % page_tokens;
            let count = (page_tokens - token).min(positions.end - position);
            let page = pages.get(position / page_tokens);
            let at = (position - positions.start) * self.kernel.width;
            let width = self.kernel.width;
            let rows = &mut scratch.rows[..count.min(BLOCK) * width];
            self.pool.load(page, self.slot, token, count, head, Side::Key, rows);
            for (j, key) in rows.chunks_exact(width).enumerate() {
                key.iter().enumerate().for_each(|(e, x)| scratch.k[e * STRIDE + position - positions.start + j] = *x);
            }
            self.pool.load(page, self.slot, token, count, head, Side::Value, &mut scratch.v[at..]);
            position += count;
        }
    }
}

struct Scratch {
    /// See [`Block::k`].
    k: Vec<f32>,
    v: Vec<f32>,
    /// Keys of a page before they are laid out.
    rows: Vec<f32>,
    q: Vec<f32>,
    wide: Vec<f32>,
    /// See [`Block::scores`].
    scores: Vec<f32>,
    carried: Vec<Carried>,
}

impl Scratch {
    const EMPTY: Scratch = Scratch {
        k: Vec::new(),
        v: Vec::new(),
        rows: Vec::new(),
        q: Vec::new(),
        wide: Vec::new(),
        scores: Vec::new(),
        carried: Vec::new(),
    };

    /// Makes room for heads of `width` elements, `group` of them under one KV head.
    fn fit(&mut self, width: usize, group: usize) {
        self.k.resize(STRIDE * width + LANES, 0.0);
        self.v.resize(BLOCK * width, 0.0);
        self.rows.resize(BLOCK * width, 0.0);
        self.q.resize(TILE * group, 0.0);
        self.wide.resize(group, 0.0);
        self.scores.resize(group / width.max(1) * BLOCK, 0.0);
    }
}

thread_local! {
    /// Kept from launch to launch; what it holds from before is never looked at.
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch::EMPTY) };
}

/// One block of keys for the query heads of one row under one KV head.
struct Block<'a> {
    /// Element by element: element e of head h at `e * heads + h`.
    q: &'a [f32],
    /// Keys, element by element: element e of key j at `e * STRIDE + j`. At least [`LANES`] numbers follow the last key.
    k: &'a [f32],
    /// Values, key by key.
    v: &'a [f32],
    /// Elements of a head.
    width: usize,
    keys: usize,
    scale: f32,
    /// One for each head.
    carried: &'a mut [Carried],
    out: &'a mut [f32],
    /// [`BLOCK`] for each head.
    scores: &'a mut [f32],
}

impl WithSimd for Block<'_> {
    type Output = ();

    /// A few heads share the loading of keys and values; no head's numbers depend on another's.
    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let heads = self.carried.len();
        let mut first = 0;
        while first < heads {
            match heads - first {
                1 => self.heads::<S, 1>(simd, first),
                2 | 3 => self.heads::<S, 2>(simd, first),
                4 | 5 => self.heads::<S, 4>(simd, first),
                _ => self.heads::<S, 6>(simd, first),
            }
            first += match heads - first {
                1 => 1,
                2 | 3 => 2,
                4 | 5 => 4,
                _ => 6,
            };
        }
    }
}

impl Block<'_> {
    /// `H` heads from `first` on.
    #[inline(always)]
    fn heads<S: Simd, const H: usize>(&mut self, simd: S, first: usize) {
        let (width, keys) = (self.width, self.keys);
        let heads = self.carried.len();
        let scores = &mut self.scores[first * BLOCK..(first + H) * BLOCK];
        let queries = Queries { q: self.q, heads, first, k: self.k, scale: simd.splat_f32s(self.scale) };
        let mut at = 0;
        while at + S::F32_LANES < keys {
            queries.score::<S, H, 2>(simd, at, scores);
            at += 2 * S::F32_LANES;
        }
        if at < keys {
            queries.score::<S, H, 1>(simd, at, scores);
        }
        let mut kept = [0.0; H];
        for h in 0..H {
            let carried = &mut self.carried[first + h];
            // What the last vector reached of keys that are not seen has no weight.
            let scores = &mut scores[h * BLOCK..h * BLOCK + keys.next_multiple_of(SUMS)];
            scores[keys..].fill(f32::NEG_INFINITY);
            let max = largest(simd, carried.max, scores);
            let sum = weights(scores, max);
            // Before the first block there is nothing to keep.
            kept[h] = if carried.max == f32::NEG_INFINITY { 0.0 } else { numerics::exp(carried.max - max) };
            *carried = Carried { max, sum: carried.sum * kept[h] + sum };
        }
        let scores: [&[f32]; H] = std::array::from_fn(|h| &scores[h * BLOCK..h * BLOCK + keys]);
        let out = &mut self.out[first * width..(first + H) * width];
        let mut at = 0;
        while at + 2 * S::F32_LANES <= width {
            weigh::<S, H, 2>(simd, scores, kept, self.v, [at, width], out);
            at += 2 * S::F32_LANES;
        }
        while at + S::F32_LANES <= width {
            weigh::<S, H, 1>(simd, scores, kept, self.v, [at, width], out);
            at += S::F32_LANES;
        }
        for h in 0..H {
            for e in at..width {
                let out = &mut out[h * width + e];
                let terms = scores[h].iter().zip(self.v.chunks_exact(width));
                *out = terms.fold(*out * kept[h], |sum, (p, v)| p.mul_add(v[e], sum));
            }
        }
    }
}

/// Query heads against keys.
struct Queries<'a, V> {
    /// See [`Block::q`].
    q: &'a [f32],
    heads: usize,
    /// The first head that is looked at.
    first: usize,
    /// See [`Block::k`].
    k: &'a [f32],
    scale: V,
}

impl<V> Queries<'_, V> {
    /// Scores of `H` heads and `N` vectors of keys from key `at` on: all totals stay in registers.
    #[inline(always)]
    fn score<S: Simd<f32s = V>, const H: usize, const N: usize>(&self, simd: S, at: usize, scores: &mut [f32])
    where
        V: Copy,
    {
        let mut totals = [[simd.splat_f32s(0.0); N]; H];
        for (q, k) in self.q.chunks_exact(self.heads).zip(self.k.chunks(STRIDE)) {
            let k = S::as_simd_f32s(&k[at..at + N * S::F32_LANES]).0;
            for (totals, q) in totals.iter_mut().zip(&q[self.first..self.first + H]) {
                let q = simd.splat_f32s(*q);
                for (total, k) in totals.iter_mut().zip(k) {
                    *total = simd.mul_add_f32s(q, *k, *total);
                }
            }
        }
        for (scores, totals) in scores.chunks_exact_mut(BLOCK).zip(totals) {
            let scores = S::as_mut_simd_f32s(&mut scores[at..at + N * S::F32_LANES]).0;
            for (score, total) in scores.iter_mut().zip(totals) {
                *score = simd.mul_f32s(total, self.scale);
            }
        }
    }
}

/// The largest of all. Neither the sign of a zero nor a NaN among them matters: weights are powers of differences, and a NaN makes
/// their sum one.
#[inline(always)]
fn largest<S: Simd>(simd: S, before: f32, x: &[f32]) -> f32 {
    let (whole, rest) = S::as_simd_f32s(x);
    let mut most = simd.splat_f32s(before);
    for x in whole {
        most = simd.max_f32s(most, *x);
    }
    rest.iter().fold(simd.reduce_max_f32s(most), |max, x| max.max(*x))
}

/// Turns scores into weights, and adds these up: key `i` to total `i` modulo [`SUMS`], then the totals in halves.
#[inline(always)]
fn weights(scores: &mut [f32], max: f32) -> f32 {
    let mut sums = [0.0; SUMS];
    for scores in scores.as_chunks_mut::<SUMS>().0 {
        for (score, sum) in scores.iter_mut().zip(&mut sums) {
            *score = numerics::exp(*score - max);
            *sum += *score;
        }
    }
    numerics::fold_halving(&mut sums)
}

/// `out = out * kept + Σ p v` for every head, keys in ascending order, for `N` vectors of elements from `at` on; `width` is that
/// of a head.
#[inline(always)]
fn weigh<S: Simd, const H: usize, const N: usize>(
    simd: S,
    weights: [&[f32]; H],
    kept: [f32; H],
    v: &[f32],
    [at, width]: [usize; 2],
    out: &mut [f32],
) {
    let vectors = at..at + N * S::F32_LANES;
    // Loops, no closures: what is not inlined is not compiled for vectors.
    let mut totals = [[simd.splat_f32s(0.0); N]; H];
    for (h, totals) in totals.iter_mut().enumerate() {
        let out = S::as_simd_f32s(&out[h * width..(h + 1) * width][vectors.clone()]).0;
        let kept = simd.splat_f32s(kept[h]);
        for (total, out) in totals.iter_mut().zip(out) {
            *total = simd.mul_f32s(*out, kept);
        }
    }
    let keys = weights.first().map_or(0, |w| w.len());
    let weights = weights.map(|w| &w[..keys]);
    for (i, v) in v.chunks_exact(width).take(keys).enumerate() {
        let v = S::as_simd_f32s(&v[vectors.clone()]).0;
        for (totals, weights) in totals.iter_mut().zip(weights) {
            let p = simd.splat_f32s(weights[i]);
            for (total, v) in totals.iter_mut().zip(v) {
                *total = simd.mul_add_f32s(p, *v, *total);
            }
        }
    }
    for (h, totals) in totals.into_iter().enumerate() {
        let out = S::as_mut_simd_f32s(&mut out[h * width..(h + 1) * width][vectors.clone()]).0;
        for (out, total) in out.iter_mut().zip(totals) {
            *out = total;
        }
    }
}
