//! An operand read in the order of the result: broadcasts repeated, other orders of axes followed.

use super::nest::{Along, Loop, Nest, Shape, lengths, strides_along};
use crate::view::{View, copy_run, decode_run, fill_run};

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

/// Elements of an operand in blocks, one after the other, each repeated before the next one follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repeated {
    /// Elements of a block.
    pub block: usize,
    /// How often each stands under the result.
    pub times: usize,
}

impl Runs {
    /// The same as blocks that are repeated, where that is all there is to it for any number of rows.
    pub fn repeated(&self) -> Option<Repeated> {
        let (run, constant) = (self.nest.run, self.nest.along[0] == Along::Constant);
        let block = if constant { 1 } else { run };
        // Loops that repeat stand inside those that go on; rows are the outermost of them.
        let rows = Loop { len: usize::MAX, strides: [self.row_stride] };
        let (mut times, mut elements) = (if constant { run } else { 1 }, block);
        let mut goes_on = false;
        for level in self.nest.loops.iter().rev().chain([&rows]) {
            match level.strides[0] {
                0 if goes_on => return None,
                0 => times = times.saturating_mul(level.len),
                stride if stride != elements => return None,
                _ => {
                    goes_on = true;
                    elements = elements.saturating_mul(level.len);
                }
            }
        }
        Some(Repeated { block, times })
    }

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
    /// The next elements, at most `most`: where they begin, how many of the result they are, and whether one element stands for all.
    /// No closure is called for each: what is not inlined is not compiled for vectors.
    #[inline(always)]
    fn take(&mut self, most: usize) -> (usize, usize, bool) {
        let nest = &self.runs.nest;
        let constant = nest.along[0] == Along::Constant;
        let len = (nest.run - self.taken).min(most);
        let from = self.offset + if constant { 0 } else { self.taken };
        self.taken += len;
        if self.taken == nest.run {
            self.taken = 0;
            // The innermost loop is followed here: its runs are short and many.
            match (nest.loops.last(), self.at.get_mut(nest.loops.len().wrapping_sub(1))) {
                (Some(level), Some(at)) if *at + 1 < level.len => {
                    *at += 1;
                    self.offset += level.strides[0];
                }
                _ => self.next_run(),
            }
        }
        (from, len, constant)
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
        let mut rest = out;
        while !rest.is_empty() {
            let (from, len, constant) = self.take(rest.len());
            let (out, after) = rest.split_at_mut(len);
            match view {
                View::F32(x) if constant => fill_run(x[from], out),
                View::F32(x) => copy_run(&x[from..from + len], out),
                View::Bf16(x) if constant => fill_run(numerics::bf16_value(x[from]), out),
                View::Bf16(x) => decode_run(&x[from..from + len], out),
                other => {
                    for (i, out) in out.iter_mut().enumerate() {
                        *out = other.number(if constant { from } else { from + i });
                    }
                }
            }
            rest = after;
        }
    }

    /// The next elements as integers.
    pub fn integers(&mut self, view: View<'_>, out: &mut [i32]) {
        let mut rest = out;
        while !rest.is_empty() {
            let (from, len, constant) = self.take(rest.len());
            let (out, after) = rest.split_at_mut(len);
            for (i, out) in out.iter_mut().enumerate() {
                *out = view.integer(if constant { from } else { from + i });
            }
            rest = after;
        }
    }
}
