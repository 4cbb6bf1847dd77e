//! Sums and maxima over one axis, and sums of products.

use super::matmul::Terms;
use super::nest::{Along, Nest, Shape, lengths, strides_along};
use crate::view::{Target, View};
use ir::{Order, ReduceOp};
use numerics::{ABSENT, GROUP, fold_by, fold_columns, fold_group, fold_halving, fold_sum, max_f32};
use pulp::{Simd, WithSimd};

/// What is left of the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Total {
    Fold,
    Serial,
    /// Products that are added unrounded.
    Fused,
    /// In binary64, rounded once.
    Exact,
    Max,
}

impl Total {
    fn of(order: &Order) -> Result<Total, String> {
        Ok(match order {
            Order::Any => Total::Exact,
            Order::Fold => Total::Fold,
            Order::Serial => Total::Serial,
            Order::Fused => Total::Fused,
            Order::Split { .. } => {
                return Err(format!("a sum in the order `{order}`, which this executor does not have"));
            }
        })
    }

    /// The total of `n` terms.
    fn by(self, n: usize, get: impl Fn(usize) -> f32) -> f32 {
        match self {
            Total::Fold => fold_by(n, get),
            // Numbers that are no products have nothing that could stay unrounded.
            Total::Serial | Total::Fused => (1..n).fold(get(0), |sum, i| sum + get(i)),
            Total::Exact => exact(n, |i| f64::from(get(i))),
            Total::Max => (1..n).fold(get(0), |max, i| max_f32(max, get(i))),
        }
    }

    /// The total of a row that lies element after element.
    fn row(self, x: &[f32]) -> f32 {
        match self {
            Total::Fold => fold_row(x),
            other => other.by(x.len(), |i| x[i]),
        }
    }
}

/// Binary64 accumulation as the interpreter does it: eight running totals by index modulo 8, then pairwise; rounded once.
fn exact(n: usize, get: impl Fn(usize) -> f64) -> f32 {
    let mut l = [0f64; 8];
    for i in 0..n {
        l[i % 8] += get(i);
    }
    (((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + (l[6] + l[7]))) as f32
}

/// `fold_sum` without its large scratch: rows here are often short.
fn fold_row(x: &[f32]) -> f32 {
    const GROUPS: usize = 64;
    if x.len() > GROUPS * numerics::GROUP {
        return fold_sum(x);
    }
    let mut sums = [0.0; GROUPS];
    let mut n = 0;
    for (slot, group) in sums.iter_mut().zip(x.chunks(numerics::GROUP)) {
        *slot = fold_group(group);
        n += 1;
    }
    fold_halving(&mut sums[..n])
}

/// A reduction kernel.
#[derive(Debug)]
pub(crate) struct Reduce {
    total: Total,
    /// Elements along the axis, and from one to the next.
    len: usize,
    stride: usize,
    row: usize,
    x_row_stride: usize,
    nest: Nest<1>,
    /// See [`Reduce::dense`].
    dense: bool,
}

impl Reduce {
    /// Prepares the kernel.
    pub fn new(op: ReduceOp, order: &Order, axis: &str, x: &Shape, out: &Shape) -> Result<Reduce, String> {
        let len = x
            .length(axis)
            .filter(|n| *n > 0)
            .ok_or_else(|| format!("reduced over `{axis}`, not a fixed axis of it"))?;
        let total = match op {
            ReduceOp::Sum => Total::of(order)?,
            ReduceOp::Max => Total::Max,
        };
        let inner = x.axes.split_last().is_some_and(|((name, _), outer)| name == axis && outer == out.axes);
        let dense = total == Total::Fold && inner && x.rows == out.rows && len.is_multiple_of(GROUP) && len <= 2048;
        Ok(Reduce {
            dense,
            total,
            len,
            stride: x.stride(axis),
            row: out.row,
            x_row_stride: x.row_stride(out.rows.as_deref()),
            nest: Nest::new(&lengths(&out.axes), [strides_along(&out.axes, x)]),
        })
    }

    /// Terms of one sum.
    pub fn terms(&self) -> usize {
        self.len
    }

    pub fn run(&self, operands: &[View<'_>], out: Target<'_>) {
        pulp::Arch::new().dispatch(Sums { kernel: self, x: operands[0], out });
    }

    /// Sums whose terms stand one after the other, in whole groups, sum after sum: every level of the groups' trees is
    /// one long run over all of them.
    #[inline(always)]
    fn dense(&self, x: View<'_>, out: &mut Target<'_>) {
        const ROOM: usize = 2048;
        let (mut wide, mut half, mut quarter, mut sums) =
            ([0.0; ROOM], [0.0; ROOM / 2], [0.0; ROOM / 4], [0.0; ROOM / 8]);
        let groups = self.len / GROUP;
        let at_once = ROOM / self.len;
        let n = out.len();
        for first in (0..n).step_by(at_once) {
            let count = at_once.min(n - first);
            let terms = count * self.len;
            let x = x.numbers(first * self.len, terms, &mut wide);
            pairs(x, &mut half[..terms / 2]);
            pairs(&half[..terms / 2], &mut quarter[..terms / 4]);
            pairs(&quarter[..terms / 4], &mut sums[..terms / 8]);
            for i in 0..count {
                sums[i] = fold_halving(&mut sums[i * groups..(i + 1) * groups]);
            }
            out.put(first, &sums[..count]);
        }
    }

    #[inline(always)]
    fn by_runs(&self, x: View<'_>, out: &mut Target<'_>) {
        let contiguous = self.stride == 1;
        let columns = self.total == Total::Fold && self.nest.run == self.stride && self.nest.run > 1;
        let widened = if contiguous { self.len } else { self.len * self.nest.run };
        let mut wide = vec![0.0; if matches!(x, View::F32(_)) { 0 } else { widened }];
        let mut sums = vec![0.0; self.nest.run];
        for r in 0..out.len() / self.row {
            let mut at = r * self.row;
            self.nest.each([r * self.x_row_stride], |[offset]| {
                if columns {
                    // The axis stands just before the run: a dense block whose columns are summed.
                    let x = x.numbers(offset, self.len * self.stride, &mut wide);
                    if self.len <= GROUP { few_columns(x, &mut sums) } else { fold_columns(x, &mut sums) }
                } else {
                    let step = usize::from(self.nest.along[0] == Along::Contiguous);
                    for (i, sum) in sums.iter_mut().enumerate() {
                        let offset = offset + i * step;
                        *sum = if contiguous {
                            self.total.row(x.numbers(offset, self.len, &mut wide))
                        } else {
                            self.total.by(self.len, |i| x.number(offset + i * self.stride))
                        };
                    }
                }
                out.put(at, &sums);
                at += self.nest.run;
            });
        }
    }
}

/// Neighbours added.
#[inline(always)]
fn pairs(x: &[f32], out: &mut [f32]) {
    out.iter_mut().zip(x.as_chunks::<2>().0).for_each(|(o, [a, b])| *o = a + b);
}

/// Columns of at most one group of rows, summed as a group is.
#[inline(always)]
fn few_columns(x: &[f32], out: &mut [f32]) {
    const ROOM: usize = 256;
    let width = out.len();
    let absent = [ABSENT; ROOM];
    for first in (0..width).step_by(ROOM) {
        let n = ROOM.min(width - first);
        let rows: [&[f32]; GROUP] =
            std::array::from_fn(|i| x.get(i * width + first..i * width + first + n).unwrap_or(&absent[..n]));
        let [a, b, c, d, e, f, g, h] = rows.map(|row| &row[..n]);
        for (i, out) in out[first..first + n].iter_mut().enumerate() {
            *out = ((a[i] + b[i]) + (c[i] + d[i])) + ((e[i] + f[i]) + (g[i] + h[i]));
        }
    }
}

/// The whole of a launch.
struct Sums<'a> {
    kernel: &'a Reduce,
    x: View<'a>,
    out: Target<'a>,
}

impl WithSimd for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Sums { kernel, x, mut out } = self;
        if kernel.dense { kernel.dense(x, &mut out) } else { kernel.by_runs(x, &mut out) }
    }
}

/// A kernel of products summed over one axis.
#[derive(Debug)]
pub(crate) struct Dot {
    total: Total,
    len: usize,
    axis_strides: [usize; 2],
    row: usize,
    row_strides: [usize; 2],
    nest: Nest<2>,
}

impl Dot {
    /// Prepares the kernel.
    pub fn new(order: &Order, axis: &str, operands: [&Shape; 2], out: &Shape) -> Result<Dot, String> {
        let len = operands[0].length(axis).filter(|n| *n > 0 && operands[1].length(axis) == Some(*n));
        let nest = Nest::of_elements(&lengths(&out.axes), operands.map(|s| strides_along(&out.axes, s)));
        let rows = out.rows.as_deref();
        Ok(Dot {
            total: Total::of(order)?,
            len: len.ok_or_else(|| format!("summed over `{axis}`, not a fixed axis of both operands"))?,
            axis_strides: operands.map(|s| s.stride(axis)),
            row: out.row,
            row_strides: operands.map(|s| s.row_stride(rows)),
            nest,
        })
    }

    /// Terms of one sum.
    pub fn terms(&self) -> usize {
        self.len
    }

    pub fn run(&self, operands: &[View<'_>], out: Target<'_>) {
        let [a, b] = [operands[0], operands[1]];
        let out = match (self.total, a, b, self.axis_strides, out) {
            (Total::Fused, View::F32(a), View::F32(b), [1, 1], Target::F32(out)) => {
                return pulp::Arch::new().dispatch(FusedSums { kernel: self, a, b, out });
            }
            (.., out) => out,
        };
        if let (View::F32(a), View::F32(b), [1, 1]) = (a, b, self.axis_strides) {
            let mut products = vec![0.0; self.len];
            return self.each(out, |i, j| self.neighbours(&a[i..i + self.len], &b[j..j + self.len], &mut products));
        }
        self.each(out, |i, j| {
            let term = |t: usize| [a.number(i + t * self.axis_strides[0]), b.number(j + t * self.axis_strides[1])];
            match self.total {
                // The products of an open order are kept whole, as the interpreter keeps them.
                Total::Exact => exact(self.len, |t| term(t).map(f64::from).iter().product()),
                Total::Fused => Terms::Fused.sum(self.len, |t| (term(t)[0], term(t)[1])),
                total => total.by(self.len, |t| term(t)[0] * term(t)[1]),
            }
        });
    }

    /// Every sum, by where its terms begin in both operands.
    fn each(&self, mut out: Target<'_>, mut sum: impl FnMut(usize, usize) -> f32) {
        for r in 0..out.len().checked_div(self.row).unwrap_or(0) {
            let mut at = r * self.row;
            self.nest.each(self.row_strides.map(|s| s * r), |[i, j]| {
                out.put(at, &[sum(i, j)]);
                at += 1;
            });
        }
    }

    /// The sum of terms that stand side by side.
    fn neighbours(&self, a: &[f32], b: &[f32], products: &mut [f32]) -> f32 {
        match self.total {
            Total::Exact => exact(self.len, |t| f64::from(a[t]) * f64::from(b[t])),
            Total::Fused => Terms::Fused.sum(self.len, |t| (a[t], b[t])),
            total => {
                products.iter_mut().zip(a).zip(b).for_each(|((p, a), b)| *p = a * b);
                total.row(products)
            }
        }
    }
}

/// Sums that are computed at once.
const TOGETHER: usize = 8;

/// Term by term what stands at several places, row after row of terms.
#[inline(always)]
fn turn(x: &[f32], places: [usize; TOGETHER], columns: &mut [[f32; TOGETHER]]) {
    let rows = places.map(|at| &x[at..at + columns.len()]);
    for (t, column) in columns.iter_mut().enumerate() {
        for (x, row) in column.iter_mut().zip(rows) {
            *x = row[t];
        }
    }
}

/// Products of one row's terms with the columns, summed.
#[inline(always)]
fn one_by_columns(a: &[f32], columns: &[[f32; TOGETHER]]) -> [f32; TOGETHER] {
    let mut sums = [ABSENT; TOGETHER];
    for (a, column) in a.iter().zip(columns) {
        for (sum, b) in sums.iter_mut().zip(column) {
            *sum = a.mul_add(*b, *sum);
        }
    }
    sums
}

/// Products of each row's terms with its column, summed.
#[inline(always)]
fn each_by_columns(rows: [&[f32]; TOGETHER], columns: &[[f32; TOGETHER]]) -> [f32; TOGETHER] {
    let mut sums = [ABSENT; TOGETHER];
    for (t, column) in columns.iter().enumerate() {
        for ((sum, row), b) in sums.iter_mut().zip(rows).zip(column) {
            *sum = row[t].mul_add(*b, *sum);
        }
    }
    sums
}

/// Sums of products of neighbours, a few at a time: none waits for itself alone. Those whose second rows are the same ones, as all
/// pairs of a few are, take them as columns, so that a vector holds a term of each.
struct FusedSums<'a> {
    kernel: &'a Dot,
    a: &'a [f32],
    b: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for FusedSums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let FusedSums { kernel, a, b, out } = self;
        let len = kernel.len;
        let mut places = Vec::with_capacity(kernel.row);
        let mut columns = vec![[0.0; TOGETHER]; len];
        for (r, out) in out.chunks_exact_mut(kernel.row.max(1)).enumerate() {
            places.clear();
            kernel.nest.each(kernel.row_strides.map(|s| s * r), |place| places.push(place));
            let (sums, rest) = out.as_chunks_mut::<TOGETHER>();
            let (some, few) = places.as_chunks::<TOGETHER>();
            let mut turned = None;
            for (sums, some) in sums.iter_mut().zip(some) {
                let seconds = some.map(|[_, j]| j);
                if turned != Some(seconds) {
                    turn(b, seconds, &mut columns);
                    turned = Some(seconds);
                }
                *sums = if some.iter().all(|[i, _]| *i == some[0][0]) {
                    one_by_columns(&a[some[0][0]..some[0][0] + len], &columns)
                } else {
                    each_by_columns(some.map(|[i, _]| &a[i..i + len]), &columns)
                };
            }
            for (sum, [i, j]) in rest.iter_mut().zip(few) {
                *sum = Terms::Fused.sum(len, |t| (a[i + t], b[j + t]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of a row's tables, eight at a time and what is left over, have the bits of each alone.
    #[test]
    fn fused_sums_of_neighbours_have_the_bits_of_each_alone() {
        const ROWS: usize = 2;
        let shape = |axes: &[(&str, usize)]| Shape {
            rows: Some("S".to_owned()),
            axes: axes.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
            row: axes.iter().map(|(_, n)| n).product(),
        };
        let [slots, before, after, rank] = [("slots", 3), ("before", 5), ("after", 7), ("rank", 33)];
        let (a, b) = (shape(&[slots, before, rank]), shape(&[slots, after, rank]));
        let out = shape(&[slots, before, after]);
        let kernel = Dot::new(&Order::Fused, "rank", [&a, &b], &out).unwrap();
        let numbers =
            |n: usize, seed| -> Vec<f32> { (0..n as u64).map(|i| numerics::uniform(seed, i) - 0.5).collect() };
        let (x, y) = (numbers(ROWS * a.row, 3), numbers(ROWS * b.row, 4));
        let mut found = vec![f32::NAN; ROWS * out.row];
        kernel.run(&[View::F32(&x), View::F32(&y)], Target::F32(&mut found));
        for (i, found) in found.iter().enumerate() {
            let (slot, p, q) = (i / 35, i / 7 % 5, i % 7);
            let (x, y) = (&x[(slot * 5 + p) * 33..][..33], &y[(slot * 7 + q) * 33..][..33]);
            let truth = Terms::Fused.sum(33, |t| (x[t], y[t]));
            assert_eq!(found.to_bits(), truth.to_bits(), "sum {i}");
        }
    }
}
