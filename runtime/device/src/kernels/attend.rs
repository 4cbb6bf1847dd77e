//! Attention over paged keys and values.
//!
//! Keys are taken in blocks of [`BLOCK`] at *absolute* positions, the softmax is carried from block to block: per block one maximum,
//! one rescaling of what came before, then keys in ascending order. What a query computes depends on its own position,
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

/// Query rows that share the loading of a block.
const TILE: usize = 16;

/// Products of queries and keys below this number are not worth waking a thread (some fifty microseconds' work).
const PARALLEL_PRODUCTS: usize = 1 << 19;

/// Keys, or elements of a head, whose totals are carried together.
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
            return Err(format!("attention of {heads} query heads with other sinks"));
        }
        Ok(Attend { kind, heads, kv_heads, width, all: mask == Mask::All })
    }

    pub fn run(&self, launch: &Launching<'_>, operands: &[View<'_>], out: Target<'_>) -> KernelResult {
        let Target::F32(out) = out else { return Err("attention whose result is not f32".to_owned()) };
        let Some(slot) = launch.slots[self.kind] else { return Err("attention in a layer without cache".to_owned()) };
        let (rows, pool) = (launch.rows, &launch.pools[self.kind]);
        let job = Job {
            kernel: self,
            rows,
            pool,
            slot,
            scale: launch.number,
            q: operands[0],
            last: self.last_positions(rows),
            sinks: self.sinks(operands)?,
        };
        let row = self.heads * self.width;
        let group = row / self.kv_heads;
        let count = out.len() / row;
        let seen: usize = (0..count).map(|r| job.visible(r).len()).sum();
        if rayon::current_num_threads() < 2 || seen * row < PARALLEL_PRODUCTS {
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

    /// The sinks of all query heads, if there are any: the operand behind the positions.
    fn sinks(&self, operands: &[View<'_>]) -> Result<Vec<f32>, String> {
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
    pool: &'a Pool,
    slot: usize,
    scale: f32,
    q: View<'a>,
    last: Vec<usize>,
    /// One more score for each query head, of a row without value; empty if there is none.
    sinks: Vec<f32>,
}

impl Job<'_> {
    /// Positions that a row sees.
    fn visible(&self, row: usize) -> Range<usize> {
        let position = self.rows.position[row];
        let end = if self.kernel.all { self.last[self.rows.sequence[row]] } else { position };
        first_visible(&self.pool.layout, position, self.rows.start)..end + 1
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
                let sequence = self.rows.sequence[first];
                let end = (first..rows.end).find(|r| self.rows.sequence[*r] != sequence).unwrap_or(rows.end);
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
        let mut carried = vec![Carried { max: f32::NEG_INFINITY, sum: 0.0 }; rows.len() * heads];
        for (i, row) in rows.clone().enumerate() {
            out[i * stride + at..i * stride + at + group].fill(0.0);
            let q_at = (row * self.kernel.kv_heads + head) * group;
            scratch.q[i * group..(i + 1) * group].copy_from_slice(self.q.numbers(q_at, group, &mut scratch.wide));
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
                for h in 0..heads {
                    let block = Block {
                        q: &scratch.q[i * group + h * width..][..width],
                        k: &scratch.k[first..],
                        v: &scratch.v[first * width..][..keys.len() * width],
                        keys: keys.len(),
                        scale: self.scale,
                        carried: &mut carried[i * heads + h],
                        out: &mut out[i * stride + at + h * width..][..width],
                        scores: &mut scratch.scores,
                    };
                    arch.dispatch(block);
                }
            }
        }
        for (i, carried) in carried.iter().enumerate() {
            let at = i / heads * stride + at + i % heads * width;
            let out = &mut out[at..at + width];
            match self.sinks.get(head * heads + i % heads) {
                None => out.iter_mut().for_each(|x| *x /= carried.sum),
                Some(sink) => {
                    let max = numerics::max_f32(carried.max, *sink);
                    let kept = numerics::exp(carried.max - max);
                    let sum = carried.sum * kept + numerics::exp(*sink - max);
                    out.iter_mut().for_each(|x| *x = *x * kept / sum);
                }
            }
        }
    }

    /// Keys and values at some positions, widened.
    fn load(&self, row: usize, positions: Range<usize>, head: usize, scratch: &mut Scratch) {
        let page_tokens = self.pool.layout.page_tokens as usize;
        let pages = &self.rows.pages[self.kernel.kind][self.rows.sequence[row]];
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
                key.iter().enumerate().for_each(|(e, x)| scratch.k[e * BLOCK + position - positions.start + j] = *x);
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
    scores: [f32; BLOCK],
}

impl Scratch {
    const EMPTY: Scratch = Scratch {
        k: Vec::new(),
        v: Vec::new(),
        rows: Vec::new(),
        q: Vec::new(),
        wide: Vec::new(),
        scores: [0.0; BLOCK],
    };

    /// Makes room for heads of `width` elements, `group` of them under one KV head.
    fn fit(&mut self, width: usize, group: usize) {
        self.k.resize(BLOCK * width + LANES, 0.0);
        self.v.resize(BLOCK * width, 0.0);
        self.rows.resize(BLOCK * width, 0.0);
        self.q.resize(TILE * group, 0.0);
        self.wide.resize(group, 0.0);
    }
}

thread_local! {
    /// Kept from launch to launch; what it holds from before is never looked at.
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch::EMPTY) };
}

/// One block of keys for one query head.
struct Block<'a> {
    q: &'a [f32],
    /// Keys, element by element: element e of key j at `e * BLOCK + j`. At least [`LANES`] numbers follow the last key.
    k: &'a [f32],
    /// Values, key by key.
    v: &'a [f32],
    keys: usize,
    scale: f32,
    carried: &'a mut Carried,
    out: &'a mut [f32],
    scores: &'a mut [f32],
}

impl WithSimd for Block<'_> {
    type Output = ();

    /// Plain loops; being here lets the compiler use this machine's vectors, which changes no bit of them.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Block { q, k, v, keys, scale, carried, out, scores } = self;
        let scores = &mut scores[..keys.next_multiple_of(LANES)];
        for (g, scores) in scores.chunks_exact_mut(LANES).enumerate() {
            let mut totals = [0f32; LANES];
            for (e, q) in q.iter().enumerate() {
                let k = &k[e * BLOCK + g * LANES..][..LANES];
                (0..LANES).for_each(|i| totals[i] += *q * k[i]);
            }
            (0..LANES).for_each(|i| scores[i] = totals[i] * scale);
        }
        let scores = &mut scores[..keys];
        let max = scores.iter().fold(carried.max, |max, score| numerics::max_f32(max, *score));
        scores.iter_mut().for_each(|score| *score = numerics::exp(*score - max));
        let kept = numerics::exp(carried.max - max);
        let sum = scores.iter().fold(carried.sum * kept, |sum, p| sum + p);
        *carried = Carried { max, sum };
        weigh::<LANES>(scores, v, kept, out);
    }
}

/// `out = out * kept + Σ p v`, keys in ascending order; as many elements of the head at once as stay in registers.
#[inline(always)]
fn weigh<const N: usize>(weights: &[f32], v: &[f32], kept: f32, out: &mut [f32]) {
    let width = out.len();
    let (whole, rest) = out.as_chunks_mut::<N>();
    let rest_at = whole.len() * N;
    for (g, out) in whole.iter_mut().enumerate() {
        let mut totals: [f32; N] = std::array::from_fn(|i| out[i] * kept);
        for (p, v) in weights.iter().zip(v.chunks_exact(width)) {
            let v = &v[g * N..(g + 1) * N];
            (0..N).for_each(|i| totals[i] += *p * v[i]);
        }
        *out = totals;
    }
    for (e, out) in rest.iter_mut().enumerate() {
        *out = weights.iter().zip(v.chunks_exact(width)).fold(*out * kept, |sum, (p, v)| sum + *p * v[rest_at + e]);
    }
}
