//! Element-wise operations with broadcasting by axis name, rounding included.

use super::cursor::{Cursor, Lying};
use super::nest::Shape;
use crate::view::{Target, View};
use ir::{Binary, Unary};
use pulp::{Simd, WithSimd};
use std::cell::RefCell;

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
    lying: [Lying; 3],
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

/// Where an operand is read next.
enum Reader<'k> {
    Dense,
    One(f32),
    Runs(Cursor<'k>),
}

impl<'k> Reader<'k> {
    #[inline(always)]
    fn of(lying: &'k Lying, view: View<'_>) -> Reader<'k> {
        match lying {
            Lying::Dense => Reader::Dense,
            Lying::One => Reader::One(view.number(0)),
            Lying::Runs(runs) => Reader::Runs(runs.start()),
        }
    }

    /// The next `n` elements, which begin at element `at` of the result.
    #[inline(always)]
    fn lane<'s>(&mut self, view: View<'s>, at: usize, n: usize, scratch: &'s mut [f32]) -> Lane<'s> {
        match self {
            Reader::Dense => Lane::Each(view.numbers(at, n, scratch)),
            Reader::One(x) => Lane::One(*x),
            Reader::Runs(cursor) => {
                cursor.numbers(view, &mut scratch[..n]);
                Lane::Each(&scratch[..n])
            }
        }
    }
}

impl Elementwise {
    /// Prepares the kernel; `operands` are one to three.
    pub fn new(function: Function, operands: &[Shape], out: &Shape) -> Result<Elementwise, String> {
        let lying = std::array::from_fn(|i| operands.get(i).map_or(Lying::One, |s| Lying::of(s, out)));
        if lying.iter().any(|l| matches!(l, Lying::Runs(runs) if runs.too_deep())) {
            return Err(format!("an operation over axes {:?}, more than are followed", out.axes));
        }
        Ok(Elementwise { function, operands: operands.len(), lying })
    }

    /// Whether elements keep their places and numbers, so that a result of another format is all there is to it.
    pub fn only_rounds(&self) -> bool {
        self.function == Function::Round && self.lying[0] == Lying::Dense
    }

    /// Rough element operations per element.
    pub fn work(&self) -> usize {
        self.function.work()
    }

    pub fn run(&self, operands: &[View<'_>], out: Target<'_>) {
        debug_assert_eq!(operands.len(), self.operands);
        let none = View::F32(&[0.0]);
        let views: [View<'_>; 3] = std::array::from_fn(|i| operands.get(i).copied().unwrap_or(none));
        if out.len() == 0 {
            return;
        }
        if self.integers(&views) {
            return self.run_of_integers(&views, out);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            pulp::Arch::new().dispatch(Rows { kernel: self, views, out, scratch });
        });
    }

    /// Whether operands are integers that binary32 could not tell apart.
    fn integers(&self, views: &[View<'_>; 3]) -> bool {
        let both = |a: View<'_>, b: View<'_>| matches!((a, b), (View::I32(_), View::I32(_)));
        match self.function {
            Function::Select => both(views[1], views[2]),
            Function::Binary(Binary::Eq | Binary::Lt | Binary::Le) => both(views[0], views[1]),
            _ => false,
        }
    }

    fn run_of_integers(&self, views: &[View<'_>; 3], mut out: Target<'_>) {
        let n = out.len();
        let read = |i: usize| {
            let mut numbers = vec![0; n];
            match &self.lying[i] {
                Lying::Dense => numbers.iter_mut().enumerate().for_each(|(at, x)| *x = views[i].integer(at)),
                Lying::One => numbers.fill(views[i].integer(0)),
                Lying::Runs(runs) => runs.start().integers(views[i], &mut numbers),
            }
            numbers
        };
        let (a, b) = (read(0), read(1));
        match self.function {
            Function::Select => {
                let c = read(2);
                let chosen: Vec<i32> = (0..n).map(|i| if a[i] != 0 { b[i] } else { c[i] }).collect();
                out.copy(0, View::I32(&chosen), 0, n);
            }
            Function::Binary(Binary::Eq) => (0..n).for_each(|i| out.put(i, &[truth(a[i] == b[i])])),
            Function::Binary(Binary::Lt) => (0..n).for_each(|i| out.put(i, &[truth(a[i] < b[i])])),
            _ => (0..n).for_each(|i| out.put(i, &[truth(a[i] <= b[i])])),
        }
    }
}

/// The whole of a launch, block by block.
struct Rows<'a> {
    kernel: &'a Elementwise,
    views: [View<'a>; 3],
    out: Target<'a>,
    scratch: &'a mut Scratch,
}

impl WithSimd for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Rows { kernel, views, mut out, scratch } = self;
        let mut a = Reader::of(&kernel.lying[0], views[0]);
        let mut b = Reader::of(&kernel.lying[1], views[1]);
        let mut c = Reader::of(&kernel.lying[2], views[2]);
        let [x, y, z] = &mut scratch.operands;
        let n = out.len();
        for at in (0..n).step_by(BLOCK) {
            let n = BLOCK.min(n - at);
            let lanes = [a.lane(views[0], at, n, x), b.lane(views[1], at, n, y), c.lane(views[2], at, n, z)];
            if let Target::F32(out) = &mut out {
                apply(kernel.function, lanes, &mut out[at..at + n]);
            } else {
                apply(kernel.function, lanes, &mut scratch.result[..n]);
                out.put(at, &scratch.result[..n]);
            }
        }
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
