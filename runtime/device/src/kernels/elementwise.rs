//! Element-wise operations with broadcasting by axis name, rounding included.

use super::nest::{Along, Nest, Shape, lengths, strides_along};
use super::over_rows;
use crate::view::{Target, View};
use ir::{Binary, Unary};
use pulp::{Simd, WithSimd};
use std::cell::RefCell;
use std::ops::Range;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Function {
    Unary(Unary),
    Binary(Binary),
    Fma,
    Select,
    /// Nothing: the result's format rounds or widens.
    Round,
}

impl Function {
    /// Rough element operations per element, to judge whether threads pay.
    fn work(self) -> usize {
        match self {
            Function::Unary(Unary::Neg | Unary::Abs | Unary::Not) | Function::Binary(_) => 1,
            Function::Unary(_) => 16,
            Function::Fma => 16,
            Function::Select | Function::Round => 1,
        }
    }
}

/// An element-wise kernel of at most three operands.
#[derive(Debug)]
pub(crate) struct Elementwise {
    function: Function,
    operands: usize,
    row: usize,
    row_strides: [usize; 3],
    nest: Nest<3>,
    /// Whether all rows together are one run.
    whole: bool,
}

/// Elements computed at once; the scratch of three operands and a result stays in the first-level cache.
const BLOCK: usize = 512;

struct Scratch {
    operands: [[f32; BLOCK]; 3],
    result: [f32; BLOCK],
}

thread_local! {
    /// Kept, because clearing it would take longer than most kernels with one row.
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { operands: [[0.0; BLOCK]; 3], result: [0.0; BLOCK] }) };
}

/// An operand along a block.
#[derive(Clone, Copy)]
enum Lane<'a> {
    Each(&'a [f32]),
    One(f32),
}

impl Elementwise {
    /// Prepares the kernel; `operands` are one to three.
    pub fn new(function: Function, operands: &[Shape], out: &Shape) -> Elementwise {
        let empty = Shape { rows: None, axes: Vec::new(), row: 1 };
        let shapes: [&Shape; 3] = std::array::from_fn(|i| operands.get(i).unwrap_or(&empty));
        let row_strides = shapes.map(|s| s.row_stride(out.rows.as_deref()));
        let mut nest = Nest::new(&lengths(&out.axes), shapes.map(|s| strides_along(&out.axes, s)));
        let mut whole = nest.loops.is_empty();
        if out.row == 1 {
            // Nothing but the row axis: operands that have it are runs over it.
            nest.along = row_strides.map(|s| if s == 1 { Along::Contiguous } else { Along::Constant });
            whole &= row_strides.iter().all(|s| *s <= 1);
        } else {
            whole &= (0..3).all(|i| row_strides[i] == if nest.along[i] == Along::Contiguous { nest.run } else { 0 });
        }
        Elementwise { function, operands: operands.len(), row: out.row, row_strides, nest, whole }
    }

    pub fn run(&self, operands: &[View<'_>], out: Target<'_>) {
        debug_assert_eq!(operands.len(), self.operands);
        let none = View::F32(&[0.0]);
        let views: [View<'_>; 3] = std::array::from_fn(|i| operands.get(i).copied().unwrap_or(none));
        over_rows(out, self.row, self.row * self.function.work(), |first, mut out| {
            SCRATCH.with_borrow_mut(|scratch| self.rows(&views, first, &mut out, scratch));
        });
    }

    fn rows(&self, views: &[View<'_>; 3], first: usize, out: &mut Target<'_>, scratch: &mut Scratch) {
        let rows = out.len() / self.row;
        let offsets = |row: usize| self.row_strides.map(|s| s * row);
        if self.whole {
            return self.run_of(views, offsets(first), out, 0..rows * self.row, scratch);
        }
        for r in 0..rows {
            let mut at = r * self.row;
            self.nest.each(offsets(first + r), |offsets| {
                self.run_of(views, offsets, out, at..at + self.nest.run, scratch);
                at += self.nest.run;
            });
        }
    }

    fn run_of(
        &self,
        views: &[View<'_>; 3],
        offsets: [usize; 3],
        out: &mut Target<'_>,
        range: Range<usize>,
        scratch: &mut Scratch,
    ) {
        let along = self.nest.along;
        if self.integers(views) {
            return self.run_of_integers(views, offsets, out, range);
        }
        let arch = pulp::Arch::new();
        let [a, b, c] = &mut scratch.operands;
        for start in (0..range.len()).step_by(BLOCK) {
            let n = BLOCK.min(range.len() - start);
            let lanes = [
                lane(along[0], views[0], offsets[0], start, n, a),
                lane(along[1], views[1], offsets[1], start, n, b),
                lane(along[2], views[2], offsets[2], start, n, c),
            ];
            let at = range.start + start;
            if let Target::F32(x) = out {
                arch.dispatch(Apply { function: self.function, lanes, out: &mut x[at..at + n] });
            } else {
                arch.dispatch(Apply { function: self.function, lanes, out: &mut scratch.result[..n] });
                out.put(at, &scratch.result[..n]);
            }
        }
    }
}

impl Elementwise {
    /// Whether operands are integers that binary32 could not tell apart.
    fn integers(&self, views: &[View<'_>; 3]) -> bool {
        let both = |a: View<'_>, b: View<'_>| matches!((a, b), (View::I32(_), View::I32(_)));
        match self.function {
            Function::Select => both(views[1], views[2]),
            Function::Binary(Binary::Eq | Binary::Lt | Binary::Le) => both(views[0], views[1]),
            _ => false,
        }
    }

    fn run_of_integers(&self, views: &[View<'_>; 3], offsets: [usize; 3], out: &mut Target<'_>, range: Range<usize>) {
        for (i, at) in range.enumerate() {
            let place = |n: usize| offsets[n] + if self.nest.along[n] == Along::Contiguous { i } else { 0 };
            let get = |n: usize| views[n].integer(place(n));
            match self.function {
                Function::Select => {
                    let chosen = if get(0) != 0 { 1 } else { 2 };
                    out.copy(at, views[chosen], place(chosen), 1);
                }
                Function::Binary(Binary::Eq) => out.put(at, &[truth(get(0) == get(1))]),
                Function::Binary(Binary::Lt) => out.put(at, &[truth(get(0) < get(1))]),
                _ => out.put(at, &[truth(get(0) <= get(1))]),
            }
        }
    }
}

fn lane<'s>(along: Along, view: View<'s>, at: usize, start: usize, n: usize, scratch: &'s mut [f32]) -> Lane<'s> {
    match along {
        Along::Constant => Lane::One(view.number(at)),
        Along::Contiguous => Lane::Each(view.numbers(at + start, n, scratch)),
    }
}

#[inline(always)]
fn unary(x: Lane<'_>, out: &mut [f32], f: impl Fn(f32) -> f32) {
    match x {
        Lane::Each(x) => out.iter_mut().zip(x).for_each(|(o, x)| *o = f(*x)),
        Lane::One(x) => out.fill(f(x)),
    }
}

#[inline(always)]
fn binary(a: Lane<'_>, b: Lane<'_>, out: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    match (a, b) {
        (Lane::Each(a), Lane::Each(b)) => out.iter_mut().zip(a).zip(b).for_each(|((o, a), b)| *o = f(*a, *b)),
        (Lane::Each(a), Lane::One(b)) => out.iter_mut().zip(a).for_each(|(o, a)| *o = f(*a, b)),
        (Lane::One(a), Lane::Each(b)) => out.iter_mut().zip(b).for_each(|(o, b)| *o = f(a, *b)),
        (Lane::One(a), Lane::One(b)) => out.fill(f(a, b)),
    }
}

#[inline(always)]
fn ternary(a: Lane<'_>, b: Lane<'_>, c: Lane<'_>, out: &mut [f32], f: impl Fn(f32, f32, f32) -> f32) {
    let get = |lane: Lane<'_>, i: usize| match lane {
        Lane::Each(x) => x[i],
        Lane::One(x) => x,
    };
    for (i, o) in out.iter_mut().enumerate() {
        *o = f(get(a, i), get(b, i), get(c, i));
    }
}

#[inline(always)]
fn truth(b: bool) -> f32 {
    f32::from(u8::from(b))
}

/// A function along a block.
struct Apply<'a> {
    function: Function,
    lanes: [Lane<'a>; 3],
    out: &'a mut [f32],
}

impl WithSimd for Apply<'_> {
    type Output = ();

    /// Plain loops; being here lets the compiler use this machine's vectors, which changes no bit of them.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        apply(self.function, self.lanes, self.out);
    }
}

#[inline(always)]
fn apply(function: Function, [a, b, c]: [Lane<'_>; 3], out: &mut [f32]) {
    match function {
        Function::Round => unary(a, out, |x| x),
        Function::Fma => ternary(a, b, c, out, f32::mul_add),
        Function::Select => ternary(a, b, c, out, |condition, a, b| if condition != 0.0 { a } else { b }),
        Function::Unary(op) => match op {
            Unary::Neg => unary(a, out, |x| -x),
            Unary::Abs => unary(a, out, f32::abs),
            Unary::Sqrt => unary(a, out, f32::sqrt),
            Unary::Exp => unary(a, out, numerics::exp),
            Unary::Log1p => unary(a, out, numerics::log1p),
            Unary::Tanh => unary(a, out, numerics::tanh),
            Unary::Sigmoid => unary(a, out, numerics::sigmoid),
            Unary::Sin => unary(a, out, numerics::sin),
            Unary::Cos => unary(a, out, numerics::cos),
            Unary::Not => unary(a, out, |x| truth(x == 0.0)),
        },
        Function::Binary(op) => match op {
            Binary::Add => binary(a, b, out, |a, b| a + b),
            Binary::Sub => binary(a, b, out, |a, b| a - b),
            Binary::Mul => binary(a, b, out, |a, b| a * b),
            Binary::Div => binary(a, b, out, |a, b| a / b),
            Binary::Max => binary(a, b, out, numerics::max_f32),
            Binary::Min => binary(a, b, out, numerics::min_f32),
            Binary::Eq => binary(a, b, out, |a, b| truth(a == b)),
            Binary::Lt => binary(a, b, out, |a, b| truth(a < b)),
            Binary::Le => binary(a, b, out, |a, b| truth(a <= b)),
            Binary::And => binary(a, b, out, |a, b| truth(a != 0.0 && b != 0.0)),
            Binary::Or => binary(a, b, out, |a, b| truth(a != 0.0 || b != 0.0)),
        },
    }
}
