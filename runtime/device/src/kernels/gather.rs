//! Elements of a value picked by index: table rows, rows of a step, scores of chosen experts.

use super::KernelResult;
use super::nest::{Nest, Shape, lengths, strides_along};
use crate::view::{Target, View};
use prefetch_index::prefetch_index;

/// Rows at most that are asked for before they are copied: more would push each other out of the nearest cache.
const ROWS: usize = 256;

/// Elements of a line of the processor's caches, and lines asked for of each row; the processor itself asks for what follows them.
const LINE: usize = 16;
const LINES: usize = 4;

/// A picking kernel.
#[derive(Debug)]
pub(crate) struct Gather {
    /// Length of the axis picked along; `None` if it is x's row axis, whose length a step brings.
    length: Option<usize>,
    /// From an index of that axis to the next, in x.
    stride: usize,
    row: usize,
    row_strides: [usize; 2],
    x_row: usize,
    axis: String,
    /// Loops over the result: offsets in x, in the indices, in the result.
    nest: Nest<3>,
}

impl Gather {
    /// Prepares the kernel.
    pub fn new(axis: &str, x: &Shape, ids: &Shape, out: &Shape) -> Result<Gather, String> {
        let over_rows = x.rows.as_deref() == Some(axis);
        let length = x.length(axis);
        if length.is_none() && !over_rows {
            return Err(format!("a gather along `{axis}`, no axis of its operand"));
        }
        // Where an index is constant along the run, x is copied run by run; else element by element.
        // An axis of the indices may have the name of the axis that is picked along; x has no part in it then.
        let mut x_strides = strides_along(&out.axes, x);
        x_strides.iter_mut().zip(&out.axes).filter(|(_, (name, _))| name == axis).for_each(|(s, _)| *s = 0);
        let nest =
            Nest::new(&lengths(&out.axes), [x_strides, strides_along(&out.axes, ids), strides_along(&out.axes, out)]);
        let rows = out.rows.as_deref();
        Ok(Gather {
            length,
            stride: if over_rows { x.row } else { x.stride(axis) },
            row: out.row,
            row_strides: [if over_rows { 0 } else { x.row_stride(rows) }, ids.row_stride(rows)],
            x_row: x.row,
            axis: axis.to_owned(),
            nest,
        })
    }

    /// Whether only whole, aligned groups of `len` elements are copied.
    pub fn aligned(&self, len: usize) -> bool {
        [self.stride, self.row, self.row_strides[0]].iter().all(|n| n.is_multiple_of(len))
            && self.nest.along[1] == super::nest::Along::Constant
            && [0, 2].iter().all(|i| self.nest.aligned(*i, len))
    }

    pub fn run(&self, operands: &[View<'_>], mut out: Target<'_>) -> KernelResult {
        use super::nest::Along::{Constant, Contiguous};
        let [x, ids] = [operands[0], operands[1]];
        let length = self.length.unwrap_or(x.len() / self.x_row.max(1));
        self.ask(x, ids, out.len());
        let mut fault = Ok(());
        for r in 0..out.len().checked_div(self.row).unwrap_or(0) {
            let offsets = [r * self.row_strides[0], r * self.row_strides[1], r * self.row];
            self.nest.each(offsets, |[from, id, to]| {
                let mut copy = |from: usize, id: usize, to: usize, len: usize| {
                    let index = ids.integer(id);
                    match usize::try_from(index) {
                        Ok(index) if index < length => out.copy(to, x, from + index * self.stride, len),
                        _ => fault = Err(format!("index {index} along `{}`, which has {length} elements", self.axis)),
                    }
                };
                match (self.nest.along[0], self.nest.along[1]) {
                    (Contiguous, Constant) => copy(from, id, to, self.nest.run),
                    (x_along, id_along) => {
                        let step = |along| usize::from(along == Contiguous);
                        for i in 0..self.nest.run {
                            copy(from + i * step(x_along), id + i * step(id_along), to + i, 1);
                        }
                    }
                }
            });
        }
        fault
    }

    /// Asks for what will be copied: rows of a table lie anywhere in memory, and one would be waited for after the other.
    fn ask(&self, x: View<'_>, ids: View<'_>, len: usize) {
        use super::nest::Along::{Constant, Contiguous};
        let View::F32(x) = x else { return };
        // Rows without elements are none.
        let is_few = len.checked_div(self.nest.run).is_some_and(|rows| rows <= ROWS);
        if [self.nest.along[0], self.nest.along[1]] != [Contiguous, Constant] || !is_few {
            return;
        }
        for r in 0..len.checked_div(self.row).unwrap_or(0) {
            self.nest.each([r * self.row_strides[0], r * self.row_strides[1], 0], |[from, id, _]| {
                // An index that is none is told when it is copied; nothing is read here.
                let at = usize::try_from(ids.integer(id))
                    .map_or(from, |i| from.saturating_add(i.saturating_mul(self.stride)));
                for line in (0..self.nest.run.min(LINES * LINE)).step_by(LINE) {
                    prefetch_index(x, at.saturating_add(line));
                }
            });
        }
    }
}
