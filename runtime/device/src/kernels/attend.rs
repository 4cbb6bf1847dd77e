//! Attention over paged keys and values.
//!
//! Keys are taken in blocks of [`BLOCK`] at *absolute* positions, the softmax is carried from block to block: per block one maximum,
//! one rescaling of what came before, then keys in ascending order, product and sum in one operation. What a query computes depends on its own position,
//! the window and the cached rows, so chunks, batches and threads cannot change its bits. A windowed kind looks at
//! the pages of its window only.

use super::block::{BLOCK, Carried, Finish, LANES, STRIDE, Scores, Softmax, Turn, Values};
use super::nest::Shape;
use super::{KernelResult, Launching};
use crate::cache::{Pool, Side};
use crate::contract::{Rows, first_visible};
use crate::threads;
use crate::view::{Target, View};
use ir::{KvLayout, Mask};
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;

/// Query rows that share the loading of a block.
const TILE: usize = 64;

/// Rows of which a thread takes so many at once.
const PARALLEL_ROWS: usize = 32;

/// What a query's element and a key take, in multiplications: score, value, and a part of the softmax.
const SCORE_PRODUCTS: usize = 4;

/// An attention kernel.
#[derive(Debug)]
pub(crate) struct Attend {
    /// Index of the KV kind.
    pub kind: usize,
    heads: usize,
    kv_heads: usize,
    width: usize,
    /// Positions that one row of the queries brings: those of a block.
    each: usize,
    /// Whether a query also sees rows of its sequence behind its own position.
    all: bool,
}

impl Attend {
    /// Prepares the kernel for queries of shape `q`.
    pub fn new(
        kind: usize,
        layout: &KvLayout,
        mask: Mask,
        [q, at, out]: [&Shape; 3],
        sink: Option<&Shape>,
    ) -> Result<Attend, String> {
        let (kv_heads, width, each) = (layout.heads as usize, layout.head_elements as usize, at.row);
        let heads = q.row.checked_div(width * each).unwrap_or(0);
        let whole = heads * width * each == q.row && q.row == out.row;
        if q.rows.is_none() || kv_heads == 0 || !whole || !heads.is_multiple_of(kv_heads) {
            return Err(format!("attention of {} query elements over {kv_heads} heads of {width}", q.row));
        }
        if sink.is_some_and(|s| s.rows.is_some() || s.row != heads) {
            return Err(format!("attention of {heads} query heads with another number of sink scores"));
        }
        Ok(Attend { kind, heads, kv_heads, width, each, all: mask == Mask::All })
    }

    pub fn run(&self, launch: &Launching<'_>, operands: &[View<'_>], out: Target<'_>) -> KernelResult {
        let Target::F32(out) = out else { return Err("attention whose result is not f32".to_owned()) };
        let Some(slot) = launch.slots[self.kind] else { return Err("attention in a layer without cache".to_owned()) };
        let pool = launch.pools.and_then(|p| p.pool(self.kind)).ok_or("attention while the cache is written")?;
        let rows = launch.rows;
        let job = Job {
            kernel: self,
            rows,
            first: launch.first * self.each,
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
        let products = seen * row * SCORE_PRODUCTS;
        if let Some(team) = launch.team.filter(|team| count > 1 && threads::shares_awake(products, team)) {
            let share = count.div_ceil(team.parts());
            return team.run(out.chunks_mut(share * row).enumerate().collect(), |(i, out)| {
                job.tile(i * share..(i * share + share).min(count), 0..self.kv_heads, out);
                Ok(())
            });
        }
        if !launch.company.is_nobody() || !threads::shares(products, count) {
            out.chunks_mut(TILE * row).enumerate().for_each(|(i, out)| {
                job.tile(i * TILE..(i * TILE + TILE).min(count), 0..self.kv_heads, out);
            });
        } else if count < PARALLEL_ROWS {
            out.par_chunks_mut(group).enumerate().for_each(|(i, out)| {
                let (row, head) = (i / self.kv_heads, i % self.kv_heads);
                job.tile(row..row + 1, head..head + 1, out);
            });
        } else {
            out.par_chunks_mut(PARALLEL_ROWS * row).enumerate().for_each(|(i, out)| {
                let first = i * PARALLEL_ROWS;
                job.tile(first..(first + PARALLEL_ROWS).min(count), 0..self.kv_heads, out);
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
        first_visible(self.pool.layout, position, self.rows.start)..end + 1
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
        carried.resize(rows.len() * heads, Carried::NOTHING);
        for (i, row) in rows.clone().enumerate() {
            out[i * stride + at..i * stride + at + group].fill(0.0);
            let q_at = (row * self.kernel.kv_heads + head) * group;
            let q = self.q.numbers(q_at, group, &mut scratch.wide);
            scratch.q[i * group..(i + 1) * group].copy_from_slice(q);
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
                let carried = &mut carried[i * heads..(i + 1) * heads];
                arch.dispatch(Scores {
                    q: &scratch.q[i * group..(i + 1) * group],
                    width,
                    k: &scratch.k[first..],
                    keys: keys.len(),
                    scale: self.scale,
                    heads,
                    scores: &mut scratch.scores,
                });
                arch.dispatch(Softmax { keys: keys.len(), carried, scores: &mut scratch.scores });
                arch.dispatch(Values {
                    v: &scratch.v[first * width..][..keys.len() * width],
                    width,
                    carried,
                    weights: &scratch.scores,
                    out: &mut out[i * stride + at..][..group],
                });
            }
        }
        let sinks = self.sink_scores.get(head * heads..(head + 1) * heads).unwrap_or_default();
        for (i, carried) in carried.chunks_exact(heads).enumerate() {
            arch.dispatch(Finish { width, carried, sinks, out: &mut out[i * stride + at..][..group] });
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
            let at_key = position - positions.start;
            pulp::Arch::new().dispatch(Turn { keys: rows, width, at: at_key, k: &mut scratch.k });
            self.pool.load(page, self.slot, token, count, head, Side::Value, &mut scratch.v[at..]);
            position += count;
        }
    }
}

struct Scratch {
    /// See [`Scores::k`].
    k: Vec<f32>,
    v: Vec<f32>,
    /// Keys of a page before they are laid out.
    rows: Vec<f32>,
    q: Vec<f32>,
    wide: Vec<f32>,
    /// See [`Scores::scores`].
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
