//! An operand read in the order of the result: broadcasts repeated, other orders of axes followed.

use super::nest::{Along, Nest, Shape, lengths, strides_along};
use crate::view::View;

/// How an operand lies under a result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Lying {
    /// Element by element as the result.
    Dense,
    /// One element for all.
    One,
    /// In runs.
    Runs(Runs),
}

/// An operand as runs: loops outside, and what repeats or follows inside.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Runs {
    nest: Nest<1>,
    row_stride: usize,
}

impl Lying {
    /// How `operand` lies under `out`.
    pub fn of(operand: &Shape, out: &Shape) -> Lying {
        let row_stride = operand.row_stride(out.rows.as_deref());
        let mut nest = Nest::new(&lengths(&out.axes), [strides_along(&out.axes, operand)]);
        if out.row == 1 {
            nest.along = [if row_stride == 1 { Along::Contiguous } else { Along::Constant }];
        }
        let whole = nest.loops.is_empty();
        if whole && nest.along[0] == Along::Contiguous && (row_stride == out.row || out.rows.is_none()) {
            return Lying::Dense;
        }
        if whole && nest.along[0] == Along::Constant && row_stride == 0 {
            return Lying::One;
        }
        Lying::Runs(Runs { nest, row_stride })
    }
}

/// Loops around a run; more axes than any operation of a model has.
const DEPTH: usize = 8;

/// A place in an operand.
pub(crate) struct Cursor<'r> {
    runs: &'r Runs,
    row: usize,
    at: [usize; DEPTH],
    offset: usize,
    /// Elements of the run that are taken.
    taken: usize,
}

impl Runs {
    /// Whether there are more loops than a cursor follows.
    pub fn too_deep(&self) -> bool {
        self.nest.loops.len() > DEPTH
    }

    /// The place of the first element.
    pub fn start(&self) -> Cursor<'_> {
        Cursor { runs: self, row: 0, at: [0; DEPTH], offset: 0, taken: 0 }
    }
}

impl Cursor<'_> {
    /// The next elements: calls `run(offset, elements of the result, whether one element stands for all)` until `n` are told.
    #[inline(always)]
    fn take(&mut self, n: usize, mut run: impl FnMut(usize, std::ops::Range<usize>, bool)) {
        let nest = &self.runs.nest;
        let constant = nest.along[0] == Along::Constant;
        let mut done = 0;
        while done < n {
            let len = (nest.run - self.taken).min(n - done);
            run(self.offset + if constant { 0 } else { self.taken }, done..done + len, constant);
            done += len;
            self.taken += len;
            if self.taken == nest.run {
                self.taken = 0;
                self.next_run();
            }
        }
    }

    #[inline(always)]
    fn next_run(&mut self) {
        for (level, at) in self.runs.nest.loops.iter().zip(&mut self.at).rev() {
            *at += 1;
            self.offset += level.strides[0];
            if *at < level.len {
                return;
            }
            *at = 0;
            self.offset -= level.strides[0] * level.len;
        }
        self.row += 1;
        self.offset = self.row * self.runs.row_stride;
    }

    /// The next elements as binary32.
    #[inline(always)]
    pub fn numbers(&mut self, view: View<'_>, out: &mut [f32]) {
        let n = out.len();
        match view {
            View::F32(x) => self.take(n, |from, to, constant| match constant {
                true => out[to].fill(x[from]),
                false => {
                    let len = to.len();
                    crate::view::copy_run(&x[from..from + len], &mut out[to]);
                }
            }),
            View::Bf16(x) => self.take(n, |from, to, constant| match constant {
                true => out[to].fill(numerics::bf16_value(x[from])),
                false => {
                    let len = to.len();
                    crate::view::decode(&x[from..from + len], &mut out[to]);
                }
            }),
            other => self.take(n, |from, to, constant| {
                for (i, out) in out[to].iter_mut().enumerate() {
                    *out = other.number(if constant { from } else { from + i });
                }
            }),
        }
    }

    /// The next elements as integers.
    pub fn integers(&mut self, view: View<'_>, out: &mut [i32]) {
        let n = out.len();
        self.take(n, |from, to, constant| {
            for (i, out) in out[to].iter_mut().enumerate() {
                *out = view.integer(if constant { from } else { from + i });
            }
        });
    }
}
