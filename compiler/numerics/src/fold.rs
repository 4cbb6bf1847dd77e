//! The order `fold`: the one tree in which every row sum is added.
//!
//! Inside each aligned group of [`GROUP`] elements: `((0+1)+(2+3))+((4+5)+(6+7))`. Over the group sums: element `i` with
//! element `i + P/2`, `P` the next power of two, then the same on the lower half, down to one. An absent operand is
//! skipped, not added as zero. The tree does not mention threads or vector width, yet any power of two of either
//! realises it: a worker that owns the groups congruent to its number halves its own first, then the workers halve.
//!
//! A realisation that cannot skip may pad with [`ABSENT`], which is `-0`: `x + -0` is `x` for every `x`, while `x + +0` turns `-0` into `+0`.

/// Elements in an aligned group.
pub const GROUP: usize = 8;

/// The number that changes nothing when added, bit for bit: negative zero.
pub const ABSENT: f32 = -0.0;

/// Groups of a short row, such as one attention head: clearing more room than it needs would cost more than its sum.
const FEW_GROUPS: usize = 32;
/// Groups whose sums fit on the stack: rows of up to 16,384 elements allocate nothing.
const STACK_GROUPS: usize = 2048;

/// The pairwise sum of at most [`GROUP`] elements; more are ignored, none give [`ABSENT`].
#[inline]
pub fn fold_group(x: &[f32]) -> f32 {
    let mut g = [ABSENT; GROUP];
    for (slot, v) in g.iter_mut().zip(x) {
        *slot = *v;
    }
    pairwise(g)
}

#[inline(always)]
fn pairwise(g: [f32; GROUP]) -> f32 {
    ((g[0] + g[1]) + (g[2] + g[3])) + ((g[4] + g[5]) + (g[6] + g[7]))
}

/// Adds group sums by halving from the top, in place; leaves partial sums behind. No group gives `+0`.
#[inline]
pub fn fold_halving(groups: &mut [f32]) -> f32 {
    let mut len = groups.len();
    let mut half = len.next_power_of_two() / 2;
    while half > 0 {
        let (low, high) = groups.split_at_mut(half);
        for (a, b) in low.iter_mut().zip(&high[..len - half]) {
            *a += *b;
        }
        len = half;
        half /= 2;
    }
    groups.first().copied().unwrap_or(0.0)
}

/// The sum of a row; `+0` for an empty one.
pub fn fold_sum(x: &[f32]) -> f32 {
    fold_map(x, |v| v)
}

/// The sum of `f` over a row.
#[inline]
pub fn fold_map(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let groups = x.len().div_ceil(GROUP);
    if groups <= FEW_GROUPS {
        let mut sums = [0.0; FEW_GROUPS];
        fold_into(x, f, &mut sums[..groups])
    } else if groups <= STACK_GROUPS {
        let mut sums = [0.0; STACK_GROUPS];
        fold_into(x, f, &mut sums[..groups])
    } else {
        fold_into(x, f, &mut vec![0.0; groups])
    }
}

#[inline]
fn fold_into(x: &[f32], f: impl Fn(f32) -> f32, sums: &mut [f32]) -> f32 {
    let (whole, rest) = x.as_chunks::<GROUP>();
    for (sum, g) in sums.iter_mut().zip(whole) {
        *sum = pairwise(g.map(&f));
    }
    if let Some(last) = sums.get_mut(whole.len()) {
        let mut g = [ABSENT; GROUP];
        for (slot, v) in g.iter_mut().zip(rest) {
            *slot = f(*v);
        }
        *last = pairwise(g);
    }
    fold_halving(sums)
}

/// The sum of `get(0)`, …, `get(n - 1)`, whatever they are read from.
pub fn fold_by(n: usize, mut get: impl FnMut(usize) -> f32) -> f32 {
    let mut sums: Vec<f32> = Vec::with_capacity(n.div_ceil(GROUP));
    for start in (0..n).step_by(GROUP) {
        let mut g = [ABSENT; GROUP];
        for (offset, slot) in g.iter_mut().take(n - start).enumerate() {
            *slot = get(start + offset);
        }
        sums.push(pairwise(g));
    }
    fold_halving(&mut sums)
}

/// Sums the columns of `x`, a row-major `[n, out.len()]`, each in this order; `out` gets one sum a column.
///
/// Elements of `x` beyond its last whole row are ignored.
pub fn fold_columns(x: &[f32], out: &mut [f32]) {
    let width = out.len();
    if width == 0 {
        return;
    }
    let mut sums: Vec<f32> = Vec::with_capacity(x.len().div_ceil(GROUP) + width);
    for group in x[..x.len() / width * width].chunks(GROUP * width) {
        let row = |i: usize| group.get(i * width..(i + 1) * width);
        for c in 0..width {
            let mut g = [ABSENT; GROUP];
            for (i, slot) in g.iter_mut().enumerate() {
                if let Some(r) = row(i) {
                    *slot = r[c];
                }
            }
            sums.push(pairwise(g));
        }
    }
    let mut len = sums.len() / width;
    let mut half = len.next_power_of_two() / 2;
    while half > 0 {
        // A column's partner lies `half` rows below, so whole rows are added at once.
        let (low, high) = sums.split_at_mut(half * width);
        for (a, b) in low.iter_mut().zip(&high[..(len - half) * width]) {
            *a += *b;
        }
        len = half;
        half /= 2;
    }
    match sums.get(..width) {
        Some(row) => out.copy_from_slice(row),
        None => out.fill(0.0),
    }
}
