//! Element-wise operations with broadcasting by axis name, rounding included.

use super::cursor::{Cursor, Lying, Repeated};
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
    repeats: Option<Repeats>,
}

/// Of two operands one lies as the result, the other in blocks that are repeated.
#[derive(Clone, Copy, Debug)]
struct Repeats {
    op: Arithmetic,
    repeated: Repeated,
    /// Whether it is the first that is repeated.
    first: bool,
}

/// Operations of two operands that models have along blocks.
#[derive(Clone, Copy, Debug)]
enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
}

impl Repeats {
    fn of(function: Function, lying: &[Lying; 3]) -> Option<Repeats> {
        let op = match function {
            Function::Binary(Binary::Add) => Arithmetic::Add,
            Function::Binary(Binary::Sub) => Arithmetic::Sub,
            Function::Binary(Binary::Mul) => Arithmetic::Mul,
            Function::Binary(Binary::Div) => Arithmetic::Div,
            _ => return None,
        };
        let (first, runs) = match lying {
            [Lying::Dense, Lying::Runs(runs), _] => (false, runs),
            [Lying::Runs(runs), Lying::Dense, _] => (true, runs),
            _ => return None,
        };
        runs.repeated().map(|repeated| Repeats { op, repeated, first })
    }
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
        let repeats = Repeats::of(function, &lying);
        Ok(Elementwise { function, operands: operands.len(), lying, repeats })
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
        let out = match (self.repeats, views, out) {
            (Some(Repeats { first, repeated, op }), [View::F32(a), View::F32(b), _], Target::F32(out)) => {
                let (dense, blocks) = if first { (b, a) } else { (a, b) };
                return pulp::Arch::new().dispatch(Blocks { op, repeated, first, dense, blocks, out });
            }
            (.., out) => out,
        };
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

/// The whole of a launch whose operands are as [`Repeats`] has them.
struct Blocks<'a> {
    op: Arithmetic,
    repeated: Repeated,
    first: bool,
    dense: &'a [f32],
    blocks: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for Blocks<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match (self.op, self.first) {
            (Arithmetic::Add, _) => self.each::<S, { Blocks::ADD }>(simd),
            (Arithmetic::Mul, _) => self.each::<S, { Blocks::MUL }>(simd),
            (Arithmetic::Sub, false) => self.each::<S, { Blocks::SUB }>(simd),
            (Arithmetic::Sub, true) => self.each::<S, { Blocks::SUB_FROM }>(simd),
            (Arithmetic::Div, false) => self.each::<S, { Blocks::DIV }>(simd),
            (Arithmetic::Div, true) => self.each::<S, { Blocks::DIV_OF }>(simd),
        }
    }
}

impl Blocks<'_> {
    const ADD: u8 = 0;
    const MUL: u8 = 1;
    const SUB: u8 = 2;
    const DIV: u8 = 3;
    /// The element of the block comes first.
    const SUB_FROM: u8 = 4;
    const DIV_OF: u8 = 5;

    /// Every element and the one of its block. Loops, no closures: what is not inlined is not compiled for vectors.
    #[inline(always)]
    fn each<S: Simd, const OP: u8>(self, simd: S) {
        let Blocks { repeated: Repeated { block, times }, dense, blocks, out, .. } = self;
        let whole = block.saturating_mul(times).min(out.len()).max(1);
        let parts = out.chunks_mut(whole).zip(dense.chunks(whole));
        if block == 1 {
            for ((out, dense), x) in parts.zip(blocks) {
                let ((out, rest), (dense, dense_rest)) = (S::as_mut_simd_f32s(out), S::as_simd_f32s(dense));
                let xs = simd.splat_f32s(*x);
                for (out, d) in out.iter_mut().zip(dense) {
                    *out = vectors::<S, OP>(simd, *d, xs);
                }
                for (out, d) in rest.iter_mut().zip(dense_rest) {
                    *out = numbers::<OP>(*d, *x);
                }
            }
            return;
        }
        for ((out, dense), xs) in parts.zip(blocks.chunks_exact(block)) {
            let (xs, xs_rest) = S::as_simd_f32s(xs);
            for (out, dense) in out.chunks_exact_mut(block).zip(dense.chunks_exact(block)) {
                let ((out, rest), (dense, dense_rest)) = (S::as_mut_simd_f32s(out), S::as_simd_f32s(dense));
                for ((out, d), x) in out.iter_mut().zip(dense).zip(xs) {
                    *out = vectors::<S, OP>(simd, *d, *x);
                }
                for ((out, d), x) in rest.iter_mut().zip(dense_rest).zip(xs_rest) {
                    *out = numbers::<OP>(*d, *x);
                }
            }
        }
    }
}

#[inline(always)]
fn vectors<S: Simd, const OP: u8>(simd: S, a: S::f32s, b: S::f32s) -> S::f32s {
    match OP {
        Blocks::ADD => simd.add_f32s(a, b),
        Blocks::MUL => simd.mul_f32s(a, b),
        Blocks::SUB => simd.sub_f32s(a, b),
        Blocks::DIV => simd.div_f32s(a, b),
        Blocks::SUB_FROM => simd.sub_f32s(b, a),
        _ => simd.div_f32s(b, a),
    }
}

#[inline(always)]
fn numbers<const OP: u8>(a: f32, b: f32) -> f32 {
    match OP {
        Blocks::ADD => a + b,
        Blocks::MUL => a * b,
        Blocks::SUB => a - b,
        Blocks::DIV => a / b,
        Blocks::SUB_FROM => b - a,
        _ => b / a,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(rows: bool, axes: &[(&str, usize)]) -> Shape {
        Shape {
            rows: rows.then(|| "T".to_owned()),
            axes: axes.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
            row: axes.iter().map(|(_, n)| n).product(),
        }
    }

    /// Three rows of [a, b, c], and operands that lack some of the axes: those that lie in repeated blocks, and those that do not.
    #[test]
    fn blocks_that_are_repeated_meet_the_elements_that_axes_say() {
        const ROWS: usize = 3;
        let (a, b, c) = (("a", 5), ("b", 3), ("c", 37));
        let out = shape(true, &[a, b, c]);
        let ops = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div];
        for (rows, axes, repeats) in [
            (false, vec![c], true),
            (false, vec![b, c], true),
            (false, vec![a, b, c], true),
            (true, vec![], true),
            (true, vec![a], true),
            (true, vec![a, b], true),
            (true, vec![a, c], true),
            (true, vec![c], true),
            (false, vec![a], false),
            (false, vec![a, c], false),
            (true, vec![b], false),
            (true, vec![b, c], true),
        ] {
            let operand = shape(rows, &axes);
            let numbers =
                |n: usize, seed| -> Vec<f32> { (0..n as u64).map(|i| numerics::uniform(seed, i) - 0.25).collect() };
            let dense = numbers(ROWS * out.row, 1);
            let other = numbers(if rows { ROWS * operand.row } else { operand.row }, 2);
            let strides = ["a", "b", "c"].map(|name| operand.stride(name));
            let of = |i: usize| {
                let (row, at) = (i / out.row, [i / 111 % 5, i / 37 % 3, i % 37]);
                let inside: usize = at.iter().zip(strides).map(|(at, stride)| at * stride).sum();
                other[row * operand.row_stride(Some("T")) + inside]
            };
            for (op, first) in ops.into_iter().flat_map(|op| [(op, false), (op, true)]) {
                let operands = if first { [operand.clone(), out.clone()] } else { [out.clone(), operand.clone()] };
                let kernel = Elementwise::new(Function::Binary(op), &operands, &out).unwrap();
                assert_eq!(kernel.repeats.is_some(), repeats, "{axes:?}");
                let mut found = vec![f32::NAN; dense.len()];
                let views = [View::F32(&dense), View::F32(&other)];
                kernel.run(&if first { [views[1], views[0]] } else { views }, Target::F32(&mut found));
                for (i, (found, d)) in found.iter().zip(&dense).enumerate() {
                    let (x, y) = if first { (of(i), *d) } else { (*d, of(i)) };
                    let truth = match op {
                        Binary::Add => x + y,
                        Binary::Sub => x - y,
                        Binary::Mul => x * y,
                        _ => x / y,
                    };
                    assert_eq!(found.to_bits(), truth.to_bits(), "{op:?} of {axes:?} at {i}, first: {first}");
                }
            }
        }
    }
}
