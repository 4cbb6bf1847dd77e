//! A block of keys and values under the query heads of one row: scores, their weights, and the values weighed.
//!
//! Three steps, each compiled for vectors on its own, so that the registers of one are not short of what another wants.
//! Loops, no closures, stand around vectors: what is not inlined is not compiled for them.

use pulp::{Simd, WithSimd};

/// Keys in a block.
pub(crate) const BLOCK: usize = 256;

/// Places from an element of the keys to the next: a little more than a block, so that elements do not fall on the same few
/// lines of a cache.
pub(crate) const STRIDE: usize = BLOCK + 16;

/// Numbers behind the last key that a vector may reach.
pub(crate) const LANES: usize = 32;

/// Running totals of the weights of a block; it divides [`BLOCK`].
const SUMS: usize = 16;

/// What a query head carries from block to block.
#[derive(Clone, Copy)]
pub(crate) struct Carried {
    pub max: f32,
    pub sum: f32,
    /// By what the last block scaled what came before it.
    pub kept: f32,
}

impl Carried {
    /// Before the first block.
    pub const NOTHING: Carried = Carried { max: f32::NEG_INFINITY, sum: 0.0, kept: 0.0 };
}

/// A step that takes a few heads together.
trait OfHeads {
    /// `H` heads from `first` on.
    fn of_heads<S: Simd, const H: usize>(&mut self, simd: S, first: usize);
}

/// All heads, in groups of six, four, two and one.
#[inline(always)]
fn in_groups<S: Simd>(step: &mut impl OfHeads, simd: S, heads: usize) {
    let mut first = 0;
    while first < heads {
        first += match heads - first {
            1 => {
                step.of_heads::<S, 1>(simd, first);
                1
            }
            2 | 3 => {
                step.of_heads::<S, 2>(simd, first);
                2
            }
            4 | 5 => {
                step.of_heads::<S, 4>(simd, first);
                4
            }
            _ => {
                step.of_heads::<S, 6>(simd, first);
                6
            }
        };
    }
}

/// Queries against keys. A few heads share the loading of keys; no head's numbers depend on another's.
pub(crate) struct Scores<'a> {
    /// Head after head.
    pub q: &'a [f32],
    /// Elements of a head.
    pub width: usize,
    /// Keys, element by element: element e of key j at `e * STRIDE + j`. At least [`LANES`] numbers follow the last key.
    pub k: &'a [f32],
    pub keys: usize,
    pub scale: f32,
    pub heads: usize,
    /// [`BLOCK`] for each head. The last vector may reach into scores of keys that are not seen.
    pub scores: &'a mut [f32],
}

impl WithSimd for Scores<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let heads = self.heads;
        in_groups(&mut self, simd, heads);
    }
}

impl OfHeads for Scores<'_> {
    #[inline(always)]
    fn of_heads<S: Simd, const H: usize>(&mut self, simd: S, first: usize) {
        let mut at = 0;
        while at + S::F32_LANES < self.keys {
            self.of_keys::<S, H, 2>(simd, first, at);
            at += 2 * S::F32_LANES;
        }
        if at < self.keys {
            self.of_keys::<S, H, 1>(simd, first, at);
        }
    }
}

impl Scores<'_> {
    /// `H` heads and `N` vectors of keys from key `at` on: all totals stay in registers.
    #[inline(always)]
    fn of_keys<S: Simd, const H: usize, const N: usize>(&mut self, simd: S, first: usize, at: usize) {
        let width = self.width;
        let mut totals = [[simd.splat_f32s(0.0); N]; H];
        let mut queries: [&[f32]; H] = [&[]; H];
        for (h, q) in queries.iter_mut().enumerate() {
            *q = &self.q[(first + h) * width..][..width];
        }
        for (e, k) in self.k.chunks(STRIDE).take(width).enumerate() {
            let k = S::as_simd_f32s(&k[at..at + N * S::F32_LANES]).0;
            for (totals, q) in totals.iter_mut().zip(&queries) {
                let q = simd.splat_f32s(q[e]);
                for (total, k) in totals.iter_mut().zip(k) {
                    *total = simd.mul_add_f32s(q, *k, *total);
                }
            }
        }
        let scale = simd.splat_f32s(self.scale);
        let scores = &mut self.scores[first * BLOCK..(first + H) * BLOCK];
        for (scores, totals) in scores.chunks_exact_mut(BLOCK).zip(totals) {
            let scores = S::as_mut_simd_f32s(&mut scores[at..at + N * S::F32_LANES]).0;
            for (score, total) in scores.iter_mut().zip(totals) {
                *score = simd.mul_f32s(total, scale);
            }
        }
    }
}

/// Scores made weights.
pub(crate) struct Softmax<'a> {
    pub keys: usize,
    /// One for each head.
    pub carried: &'a mut [Carried],
    /// See [`Scores::scores`].
    pub scores: &'a mut [f32],
}

impl WithSimd for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Softmax { keys, carried, scores } = self;
        for (carried, scores) in carried.iter_mut().zip(scores.chunks_exact_mut(BLOCK)) {
            // What the last vector reached of keys that are not seen has no weight.
            let scores = &mut scores[..keys.next_multiple_of(SUMS)];
            scores[keys..].fill(f32::NEG_INFINITY);
            let max = largest(simd, carried.max, scores);
            let sum = weights(scores, max);
            // Before the first block there is nothing to keep.
            let first = carried.max == f32::NEG_INFINITY;
            let kept = if first { 0.0 } else { numerics::exp(carried.max - max) };
            *carried = Carried { max, sum: carried.sum * kept + sum, kept };
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

/// `out = out * kept + Σ weight value` for every head, keys in ascending order.
pub(crate) struct Values<'a> {
    /// Values, key by key.
    pub v: &'a [f32],
    /// Elements of a head.
    pub width: usize,
    /// One for each head.
    pub carried: &'a [Carried],
    /// [`BLOCK`] for each head.
    pub weights: &'a [f32],
    /// Head after head.
    pub out: &'a mut [f32],
}

impl WithSimd for Values<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let heads = self.carried.len();
        in_groups(&mut self, simd, heads);
    }
}

impl OfHeads for Values<'_> {
    #[inline(always)]
    fn of_heads<S: Simd, const H: usize>(&mut self, simd: S, first: usize) {
        let mut at = 0;
        while at + 2 * S::F32_LANES <= self.width {
            self.of_elements::<S, H, 2>(simd, first, at);
            at += 2 * S::F32_LANES;
        }
        while at + S::F32_LANES <= self.width {
            self.of_elements::<S, H, 1>(simd, first, at);
            at += S::F32_LANES;
        }
        for h in first..first + H {
            for e in at..self.width {
                let out = &mut self.out[h * self.width + e];
                let mut total = *out * self.carried[h].kept;
                for (weight, v) in self.weights[h * BLOCK..].iter().zip(self.v.chunks_exact(self.width)) {
                    total = weight.mul_add(v[e], total);
                }
                *out = total;
            }
        }
    }
}

impl Values<'_> {
    /// `H` heads and `N` vectors of elements from `at` on: all totals stay in registers.
    #[inline(always)]
    fn of_elements<S: Simd, const H: usize, const N: usize>(&mut self, simd: S, first: usize, at: usize) {
        let width = self.width;
        let keys = self.v.len() / width;
        let mut totals = [[simd.splat_f32s(0.0); N]; H];
        let mut weights: [&[f32]; H] = [&[]; H];
        for h in 0..H {
            let out = &self.out[(first + h) * width + at..][..N * S::F32_LANES];
            let kept = simd.splat_f32s(self.carried[first + h].kept);
            for (total, out) in totals[h].iter_mut().zip(S::as_simd_f32s(out).0) {
                *total = simd.mul_f32s(*out, kept);
            }
            weights[h] = &self.weights[(first + h) * BLOCK..][..keys];
        }
        for i in 0..keys {
            let v = S::as_simd_f32s(&self.v[i * width + at..][..N * S::F32_LANES]).0;
            for (totals, weights) in totals.iter_mut().zip(&weights) {
                let weight = simd.splat_f32s(weights[i]);
                for (total, v) in totals.iter_mut().zip(v) {
                    *total = simd.mul_add_f32s(weight, *v, *total);
                }
            }
        }
        for (h, totals) in totals.into_iter().enumerate() {
            let out = &mut self.out[(first + h) * width + at..][..N * S::F32_LANES];
            for (out, total) in S::as_mut_simd_f32s(out).0.iter_mut().zip(totals) {
                *out = total;
            }
        }
    }
}

/// Weighed values divided by the sums of their weights.
pub(crate) struct Finish<'a> {
    /// Elements of a head.
    pub width: usize,
    /// One for each head.
    pub carried: &'a [Carried],
    /// One more score for each head, of a row without value; empty if there is none.
    pub sinks: &'a [f32],
    /// Head after head.
    pub out: &'a mut [f32],
}

impl WithSimd for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Finish { width, carried, sinks, out } = self;
        for (h, (out, carried)) in out.chunks_exact_mut(width).zip(carried).enumerate() {
            match sinks.get(h) {
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
}

/// Numbers of a page's keys that are laid out together.
const TOGETHER: usize = 16;

/// Keys, one after the other, laid out as [`Scores::k`] has them, from its key `at` on.
pub(crate) struct Turn<'a> {
    pub keys: &'a [f32],
    /// Elements of a head.
    pub width: usize,
    pub at: usize,
    pub k: &'a mut [f32],
}

impl WithSimd for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Turn { keys, width, at, k } = self;
        let mut done = 0;
        for keys in keys.chunks_exact(TOGETHER * width) {
            for (e, k) in k.chunks_mut(STRIDE).take(width).enumerate() {
                if let Some(k) = k[at + done..].first_chunk_mut::<TOGETHER>() {
                    *k = std::array::from_fn(|j| keys[j * width + e]);
                }
            }
            done += TOGETHER;
        }
        for (j, key) in keys.chunks_exact(width).enumerate().skip(done) {
            key.iter().enumerate().for_each(|(e, x)| k[e * STRIDE + at + j] = *x);
        }
    }
}
