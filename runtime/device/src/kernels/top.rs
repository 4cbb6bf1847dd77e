//! The k largest along an axis: their values, their indices, or who they are.

use super::nest::{Nest, Shape, lengths, strides_along};
use crate::view::{Target, View};
use ir::TopWhat;
use pulp::{Simd, WithSimd};

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Values,
    Ids,
    /// A bool per element of the axis.
    Members,
}

/// Numbers that are looked at together.
const GROUP: usize = 32;

/// As [`numerics::top_ids`] has them, which see; few of few, as routers pick them, are put in their places one by one.
#[inline(always)]
fn largest(numbers: &[f32], k: usize, ids: &mut Vec<usize>) {
    const FEW: usize = 16;
    if k > FEW {
        *ids = numerics::top_ids(numbers, k);
        return;
    }
    ids.clear();
    if let Some(least) = least_of_largest(numbers, k) {
        // The rows of many numbers hold few that may come in: the others are passed by in groups.
        for (group, some) in numbers.chunks(GROUP).enumerate() {
            let mut any = false;
            some.iter().for_each(|x| any |= *x >= least);
            if any {
                let reaches = some.iter().enumerate().filter(|(_, x)| **x >= least);
                reaches.for_each(|(i, _)| place(numbers, group * GROUP + i, k, ids));
            }
        }
    } else {
        (0..numbers.len()).for_each(|id| place(numbers, id, k, ids));
    }
}

/// A number that the `k` largest reach, where it is worth looking for one: of the largest of as many columns as a group is wide, the `k`th.
#[inline(always)]
fn least_of_largest(numbers: &[f32], k: usize) -> Option<f32> {
    let (rows, _) = numbers.as_chunks::<GROUP>();
    if rows.len() < 4 {
        return None;
    }
    let mut columns = [f32::NEG_INFINITY; GROUP];
    for row in rows {
        for (most, x) in columns.iter_mut().zip(row) {
            // What is no number is passed by.
            *most = if *x > *most { *x } else { *most };
        }
    }
    columns.sort_unstable_by(|a, b| b.total_cmp(a));
    columns.get(k - 1).copied().filter(|least| *least > f32::NEG_INFINITY)
}

/// Puts a number in its place if it is among the first `k`.
fn place(numbers: &[f32], id: usize, k: usize, ids: &mut Vec<usize>) {
    let number = numbers[id];
    // Equal ones stay behind those that came before them.
    let place = ids.iter().rposition(|before| !numerics::outranks(number, numbers[*before])).map_or(0, |at| at + 1);
    if place < k {
        ids.truncate(k - 1);
        ids.insert(place, id);
    }
}

/// A selection kernel.
#[derive(Debug)]
pub(crate) struct Top {
    k: usize,
    written: Written,
    /// Elements along the axis, from one to the next, and from one of the result to the next.
    len: usize,
    stride: usize,
    out_stride: usize,
    row: usize,
    x_row_stride: usize,
    /// Loops over the result without its selection axis: offsets in x and in the result.
    nest: Nest<2>,
}

impl Top {
    /// Values or indices.
    pub fn select(k: u64, axis: &str, into: &str, what: TopWhat, x: &Shape, out: &Shape) -> Result<Top, String> {
        let written = if what == TopWhat::Values { Written::Values } else { Written::Ids };
        Top::new(k, axis, into, written, x, out)
    }

    /// Membership.
    pub fn members(k: u64, axis: &str, x: &Shape, out: &Shape) -> Result<Top, String> {
        Top::new(k, axis, axis, Written::Members, x, out)
    }

    fn new(k: u64, axis: &str, into: &str, written: Written, x: &Shape, out: &Shape) -> Result<Top, String> {
        let len =
            x.length(axis).ok_or_else(|| format!("a selection along `{axis}`, not a fixed axis of its operand"))?;
        let k = usize::try_from(k).ok().filter(|k| *k <= len && *k > 0);
        let k = k.ok_or_else(|| format!("a selection of more than the {len} elements of `{axis}`, or of none"))?;
        if out.length(into) != Some(if written == Written::Members { len } else { k }) {
            return Err(format!("a selection of {k} along `{into}`, whose length is {:?}", out.length(into)));
        }
        let others: Vec<(String, usize)> = out.axes.iter().filter(|(name, _)| name != into).cloned().collect();
        let strides = [strides_along(&others, x), strides_along(&others, out)];
        let nest = Nest::of_elements(&lengths(&others), strides);
        Ok(Top {
            k,
            written,
            len,
            stride: x.stride(axis),
            out_stride: out.stride(into),
            row: out.row,
            x_row_stride: x.row_stride(out.rows.as_deref()),
            nest,
        })
    }

    /// Elements that are compared.
    pub fn terms(&self) -> usize {
        self.len
    }

    pub fn run(&self, operands: &[View<'_>], out: Target<'_>) {
        pulp::Arch::new().dispatch(Selections { kernel: self, x: operands[0], out });
    }

    #[inline(always)]
    fn each(&self, x: View<'_>, mut out: Target<'_>) {
        let (mut wide, mut ids) = (Vec::new(), Vec::with_capacity(self.k));
        let mut places = Vec::new();
        for r in 0..out.len().checked_div(self.row).unwrap_or(0) {
            places.clear();
            self.nest.each([r * self.x_row_stride, r * self.row], |place| places.push(place));
            // No closure stands around the selection: what is not inlined is not compiled for vectors.
            for &[from, to] in &places {
                let numbers = match x {
                    View::F32(x) if self.stride == 1 => &x[from..from + self.len],
                    _ => {
                        wide.clear();
                        wide.extend((0..self.len).map(|i| x.number(from + i * self.stride)));
                        &wide
                    }
                };
                largest(numbers, self.k, &mut ids);
                self.write(numbers, &ids, &mut out, to);
            }
        }
    }

    fn write(&self, numbers: &[f32], ids: &[usize], out: &mut Target<'_>, to: usize) {
        if self.written == Written::Members {
            (0..self.len).for_each(|i| out.put(to + i * self.out_stride, &[0.0]));
        }
        for (place, id) in ids.iter().copied().enumerate() {
            match self.written {
                Written::Values => out.put(to + place * self.out_stride, &[numbers[id]]),
                Written::Ids => out.put(to + place * self.out_stride, &[id as f32]),
                Written::Members => out.put(to + id * self.out_stride, &[1.0]),
            }
        }
    }
}

/// The whole of a launch.
struct Selections<'a> {
    kernel: &'a Top,
    x: View<'a>,
    out: Target<'a>,
}

impl WithSimd for Selections<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.kernel.each(self.x, self.out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_picked_as_many_are() {
        let odd = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0];
        for n in (1..40u64).chain([127, 128, 129, 300]) {
            let number = |i| match numerics::uniform(n, i) {
                u if u < 0.4 => odd[(u * 15.0) as usize],
                u => (u * 8.0).floor(),
            };
            let numbers: Vec<f32> = (0..n).map(number).collect();
            for k in 1..=numbers.len().min(40) {
                let mut ids = vec![7; 3];
                largest(&numbers, k, &mut ids);
                assert_eq!(ids, numerics::top_ids(&numbers, k), "{k} of {numbers:?}");
            }
        }
    }
}
