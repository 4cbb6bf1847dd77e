//! The k largest along an axis: their values, their indices, or who they are.

use super::nest::{Nest, Shape, lengths, strides_along};
use crate::view::{Target, View};
use ir::TopWhat;

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Values,
    Ids,
    /// A bool per element of the axis.
    Members,
}

/// As [`numerics::top_ids`] has them, which see; few of few, as routers pick them, are put in their places one by one.
fn largest(numbers: &[f32], k: usize, ids: &mut Vec<usize>) {
    const FEW: usize = 16;
    if k > FEW {
        *ids = numerics::top_ids(numbers, k);
        return;
    }
    ids.clear();
    // The rows of many numbers hold few that come in: the others are passed by in groups.
    const GROUP: usize = 32;
    for (group, some) in numbers.chunks(GROUP).enumerate() {
        let last = ids.get(k - 1).map(|id| numbers[*id]);
        let comes_in = |last: f32| some.iter().fold(false, |any, x| any | numerics::outranks(*x, last));
        if last.is_none_or(comes_in) {
            place_each(numbers, group * GROUP..group * GROUP + some.len(), k, ids);
        }
    }
}

/// Puts those of some numbers in their places that are among the first `k`.
fn place_each(numbers: &[f32], range: std::ops::Range<usize>, k: usize, ids: &mut Vec<usize>) {
    for id in range {
        let number = numbers[id];
        // Equal ones stay behind those that came before them.
        let place = ids.iter().rposition(|before| !numerics::outranks(number, numbers[*before])).map_or(0, |at| at + 1);
        if place < k {
            ids.truncate(k - 1);
            ids.insert(place, id);
        }
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

    pub fn run(&self, operands: &[View<'_>], mut out: Target<'_>) {
        let x = operands[0];
        let (mut numbers, mut ids) = (vec![0.0; self.len], Vec::with_capacity(self.k));
        for r in 0..out.len().checked_div(self.row).unwrap_or(0) {
            self.nest.each([r * self.x_row_stride, r * self.row], |[from, to]| {
                let numbers = match x {
                    View::F32(x) if self.stride == 1 => &x[from..from + self.len],
                    _ => {
                        for (i, number) in numbers.iter_mut().enumerate() {
                            *number = x.number(from + i * self.stride);
                        }
                        &numbers
                    }
                };
                largest(numbers, self.k, &mut ids);
                self.write(numbers, &ids, &mut out, to);
            });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_picked_as_many_are() {
        let odd = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0];
        for n in 1..40u64 {
            let number = |i| match numerics::uniform(n, i) {
                u if u < 0.4 => odd[(u * 15.0) as usize],
                u => (u * 8.0).floor(),
            };
            let numbers: Vec<f32> = (0..n).map(number).collect();
            for k in 1..=numbers.len() {
                let mut ids = vec![7; 3];
                largest(&numbers, k, &mut ids);
                assert_eq!(ids, numerics::top_ids(&numbers, k), "{k} of {numbers:?}");
            }
        }
    }
}
