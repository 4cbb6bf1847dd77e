//! Cuts, joins and shifts: elements copied, none computed.

use super::nest::{Along, Nest, Shape, lengths, strides_along};
use crate::view::{Target, View};
use pulp::{Simd, WithSimd};

/// A part of the result that is copied from one operand.
#[derive(Debug)]
struct Part {
    /// `None` for zeros.
    operand: Option<usize>,
    /// First element of the part in a row of the operand, and in a row of the result.
    from: usize,
    to: usize,
    row_stride: usize,
    /// Loops over the part: offsets in the operand and in the result.
    nest: Nest<2>,
}

/// A copying kernel.
#[derive(Debug)]
pub(crate) struct Moves {
    row: usize,
    parts: Vec<Part>,
}

impl Moves {
    /// A contiguous part of an axis; `into` names it in the result.
    pub fn slice(
        axis: &str,
        start: u64,
        len: u64,
        into: Option<&str>,
        x: &Shape,
        out: &Shape,
    ) -> Result<Moves, String> {
        let whole = x.length(axis).ok_or_else(|| format!("a cut of `{axis}`, not a fixed axis of its operand"))?;
        let end = start.checked_add(len).filter(|end| *end <= whole as u64);
        if end.is_none()
            || into.is_none() && len != 1
            || into.is_some_and(|name| out.length(name) != Some(len as usize))
        {
            return Err(format!("a cut of {len} elements from {start} of `{axis}`, which has {whole}"));
        }
        let strides = out.axes.iter().map(|(name, _)| x.stride(if Some(name.as_str()) == into { axis } else { name }));
        let nest = Nest::new(&lengths(&out.axes), [strides.collect(), strides_along(&out.axes, out)]);
        let from = start as usize * x.stride(axis);
        let part = Part { operand: Some(0), from, to: 0, row_stride: x.row_stride(out.rows.as_deref()), nest };
        Ok(Moves { row: out.row, parts: vec![part] })
    }

    /// Operands joined along their innermost axes into `into`, the innermost axis of the result.
    pub fn concat(into: &str, operands: &[Shape], out: &Shape) -> Result<Moves, String> {
        let mut parts = Vec::new();
        let mut to = 0;
        for (operand, x) in operands.iter().enumerate() {
            // A single number of each row is joined as a list of one.
            let single = (String::new(), 1);
            let (joined, len) = x.axes.last().unwrap_or(&single);
            let axes: Vec<(String, usize)> =
                out.axes.iter().map(|(name, n)| (name.clone(), if name == into { *len } else { *n })).collect();
            let from = axes.iter().map(|(name, _)| x.stride(if name == into { joined } else { name })).collect();
            let nest = Nest::new(&lengths(&axes), [from, strides_along(&out.axes, out)]);
            parts.push(Part {
                operand: Some(operand),
                from: 0,
                to,
                row_stride: x.row_stride(out.rows.as_deref()),
                nest,
            });
            to += len;
        }
        if out.axes.last().is_none_or(|(name, n)| name != into || *n != to) {
            return Err(format!("a join of {to} elements into `{into}`, whose length is {:?}", out.length(into)));
        }
        Ok(Moves { row: out.row, parts })
    }

    /// Elements moved `by` places along an axis; the first places take what fills, or 0.
    pub fn shift(axis: &str, by: u64, operands: &[Shape], out: &Shape) -> Result<Moves, String> {
        let x = operands.first().ok_or("a shift of nothing")?;
        let whole = x.length(axis).filter(|n| by <= *n as u64 && by > 0);
        let whole = whole.ok_or_else(|| format!("a shift by {by} along `{axis}`, no such axis of its operand"))?;
        if x.axes != out.axes || operands.get(1).is_some_and(|fill| fill.length(axis).is_some()) {
            return Err(format!("a shift of axes {:?} to {:?}, or filled along `{axis}`", x.axes, out.axes));
        }
        let by = by as usize;
        let nothing = Shape { rows: None, axes: Vec::new(), row: 1 };
        let part = |operand: Option<usize>, len: usize, to: usize| {
            let from = operand.and_then(|i| operands.get(i)).unwrap_or(&nothing);
            let lengths: Vec<usize> = out.axes.iter().map(|(name, n)| if name == axis { len } else { *n }).collect();
            Part {
                operand,
                from: 0,
                to: to * out.stride(axis),
                row_stride: from.row_stride(out.rows.as_deref()),
                nest: Nest::new(&lengths, [strides_along(&out.axes, from), strides_along(&out.axes, out)]),
            }
        };
        let fill = operands.get(1).map(|_| 1);
        let mut parts = vec![part(fill, by, 0)];
        // Moved by its whole length, an axis keeps nothing of what was there.
        parts.extend((by < whole).then(|| part(Some(0), whole - by, by)));
        Ok(Moves { row: out.row, parts })
    }

    /// Whether only whole, aligned groups of `len` elements are copied.
    pub fn aligned(&self, len: usize) -> bool {
        let part = |p: &Part| {
            [p.from, p.to, p.row_stride, self.row].iter().all(|n| n.is_multiple_of(len))
                && (0..2).all(|i| p.nest.aligned(i, len))
        };
        self.parts.iter().all(part)
    }

    pub fn run(&self, operands: &[View<'_>], out: Target<'_>) {
        pulp::Arch::new().dispatch(Copies { kernel: self, operands, out });
    }
}

/// Rows moved by some places inside of their block; the first of each block are zeros.
#[derive(Debug)]
pub(crate) struct ShiftRows {
    /// Elements of a row.
    pub row: usize,
    pub by: usize,
    /// Rows of a block.
    pub block: usize,
}

impl ShiftRows {
    /// The rows from `first` on; the operand is seen whole.
    pub fn run(&self, first: usize, operands: &[View<'_>], mut out: Target<'_>) {
        const ZEROS: [f32; 64] = [0.0; 64];
        let ShiftRows { row, by, block } = *self;
        for to in 0..out.len().checked_div(row).unwrap_or(0) {
            let from = first + to;
            match from % block < by {
                true => {
                    let some = (0..row).step_by(ZEROS.len());
                    some.for_each(|i| out.put(to * row + i, &ZEROS[..ZEROS.len().min(row - i)]));
                }
                false => out.copy(to * row, operands[0], (from - by) * row, row),
            }
        }
    }
}

/// The whole of a launch.
struct Copies<'a> {
    kernel: &'a Moves,
    operands: &'a [View<'a>],
    out: Target<'a>,
}

impl WithSimd for Copies<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Copies { kernel, operands, mut out } = self;
        for r in 0..out.len().checked_div(kernel.row).unwrap_or(0) {
            for part in &kernel.parts {
                let view = part.operand.map_or(View::F32(&[0.0]), |i| operands[i]);
                let [mut from, mut to] = [part.from + r * part.row_stride, part.to + r * kernel.row];
                match part.nest.loops.as_slice() {
                    [] => part.run(view, from, &mut out, to),
                    // No closure: what is not inlined is not compiled for vectors.
                    [level] => {
                        for _ in 0..level.len {
                            part.run(view, from, &mut out, to);
                            from += level.strides[0];
                            to += level.strides[1];
                        }
                    }
                    _ => part.nest.each([from, to], |[from, to]| part.run(view, from, &mut out, to)),
                }
            }
        }
    }
}

impl Part {
    /// The innermost run.
    #[inline(always)]
    fn run(&self, view: View<'_>, from: usize, out: &mut Target<'_>, to: usize) {
        match self.nest.along[0] {
            Along::Contiguous => out.copy(to, view, from, self.nest.run),
            Along::Constant => (0..self.nest.run).for_each(|i| out.copy(to + i, view, from, 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any rows of a step, shifted inside of their blocks, are those of the blocks shifted one by one.
    #[test]
    fn rows_are_shifted_as_blocks_are() {
        let (block, row, sequences) = (5, 70, 3);
        let axes = |names: &[(&str, usize)]| names.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        let shape =
            Shape { rows: Some("S".to_owned()), axes: axes(&[("block", block), ("hidden", row)]), row: block * row };
        let x: Vec<f32> = (1..=sequences * block * row).map(|i| i as f32).collect();
        for by in 1..=block {
            let mut whole = vec![f32::NAN; x.len()];
            let shift = Moves::shift("block", by as u64, std::slice::from_ref(&shape), &shape).unwrap();
            shift.run(&[View::F32(&x)], Target::F32(&mut whole));
            for (first, count) in [(0, 15), (0, 4), (4, 7), (11, 4), (14, 1)] {
                let mut part = vec![f32::NAN; count * row];
                ShiftRows { row, by, block }.run(first, &[View::F32(&x)], Target::F32(&mut part));
                assert_eq!(part, whole[first * row..][..count * row], "by {by}, {count} rows from {first}");
            }
        }
    }
}
