//! Products of quantised weights and inputs, of random sizes: every value has the interpreter's bits.

use crate::build::{Build, facts, scoring, weight};
use crate::harness::{compile, same_values, tokens};
use ir::{Axis, Binary, ConstExpr, DType, Facts, Module, Order, ReduceOp, Scope, TopWhat, Unary, ValueId, WeightRef};

const ROWS: u64 = 19;
const EXPERTS: u64 = 5;

/// Sizes of one case: inner axes of x, outputs.
struct Sizes {
    outer: u64,
    inner: u64,
    out: u64,
    act: DType,
}

fn quantised_facts(sizes: &Sizes) -> Facts {
    let mut facts = facts(sizes.act);
    let (outer, inner, out, experts) =
        (("outer", sizes.outer), ("inner", sizes.inner), ("out", sizes.out), ("experts", EXPERTS));
    let model = |name: &str, dtype, axes: &[(&str, u64)]| weight(name, Scope::Model, dtype, axes);
    facts.weights = vec![
        model("x", sizes.act, &[("vocab", ROWS), outer, inner]),
        model("router", DType::F32, &[("vocab", ROWS), experts]),
        model("w8", DType::E4m3, &[out, inner]),
        model("both8", DType::E4m3, &[out, outer, inner]),
        model("w5", DType::E5m2, &[out, inner]),
        model("w4", DType::Nvfp4, &[out, inner]),
        model("both4", DType::Nvfp4, &[out, outer, inner]),
        model("experts8", DType::E4m3, &[experts, out, inner]),
        model("experts4", DType::Nvfp4, &[experts, out, inner]),
        model("scale", DType::F32, &[out]),
        model("scales", DType::F32, &[experts, out]),
        model("number", DType::F32, &[]),
    ];
    facts.dims = [outer, inner, out, experts].into_iter().map(|(n, len)| (n.to_owned(), len)).collect();
    facts
}

/// A graph under construction with its facts.
struct Made<'f> {
    b: Build,
    facts: &'f Facts,
    named: usize,
}

impl Made<'_> {
    fn w(&mut self, name: &str) -> ValueId {
        self.b.weight(self.facts, WeightRef::Model(name.to_owned()))
    }

    fn name(&mut self, id: ValueId) -> ValueId {
        self.named += 1;
        self.b.named(&format!("n{}", self.named), id)
    }

    fn number(&mut self, x: f64) -> ValueId {
        self.b.scalar(ConstExpr::Num(x))
    }

    /// Codes of x under one scale a token, and the scale.
    fn codes(&mut self, x: ValueId, over: &[&str]) -> (ValueId, ValueId) {
        let mut largest = self.b.unary(Unary::Abs, x);
        for axis in over.iter().rev() {
            largest = self.b.reduce(ReduceOp::Max, axis, Order::Any, largest);
        }
        let (most, zero, one) = (self.number(448.0), self.number(0.0), self.number(1.0));
        let scale = self.b.binary(Binary::Div, largest, most);
        let none = self.b.binary(Binary::Eq, scale, zero);
        let factor = self.b.binary(Binary::Div, one, scale);
        let factor = self.b.select(none, zero, factor);
        let x = self.b.binary(Binary::Mul, x, factor);
        let codes = self.b.round(DType::E4m3, x);
        (self.name(codes), self.name(scale))
    }

    /// A product, times what its operands' scales say, rounded.
    fn product(&mut self, over: &[&str], (x, w): (ValueId, ValueId), scales: &[ValueId], ids: Option<ValueId>) {
        let mut y = self.b.linear(over, Order::Fused, x, w, ids);
        self.name(y);
        for scale in scales {
            y = self.b.binary(Binary::Mul, y, *scale);
        }
        let y = self.b.round(DType::Bf16, y);
        self.name(y);
    }

    /// Everything that quantised products consist of.
    fn all(&mut self, x: ValueId, ids: ValueId) {
        let (scale, scales, g) = (self.w("scale"), self.w("scales"), self.w("number"));
        let of_ids = self.b.gather("experts", scales, ids);
        let g = self.b.unary(Unary::Abs, g);
        let weights = |over: &[&str]| if over.len() == 1 { ["w8", "w4"] } else { ["both8", "both4"] };
        for over in [&["inner"][..], &["outer", "inner"]] {
            let [w8, w4] = weights(over).map(|name| self.w(name));
            let (codes, token) = self.codes(x, over);
            self.product(over, (codes, w8), &[token, scale], None);
            let blocks = self.b.block_round(over, x, g);
            self.name(blocks);
            self.product(over, (blocks, w4), &[g, scale], None);
            self.product(over, (x, w8), &[scale], None);
            self.product(over, (x, w4), &[scale], None);
        }
        let (experts8, experts4, w5) = (self.w("experts8"), self.w("experts4"), self.w("w5"));
        let (codes, token) = self.codes(x, &["inner"]);
        self.product(&["inner"], (codes, experts8), &[token, of_ids], Some(ids));
        let blocks = self.b.block_round(&["inner"], x, g);
        self.product(&["inner"], (blocks, experts4), &[g, of_ids], Some(ids));
        let wide = self.b.round(DType::E5m2, x);
        self.name(wide);
        self.product(&["inner"], (wide, w5), &[], None);
        let back = self.b.round(DType::F32, blocks);
        self.name(back);
        // Numbers of three bits under 1: many lie in the middle of two codes, where the last bit of any scale shows.
        let (short, one) = (self.b.round(DType::F32, wide), self.number(1.0));
        let middles = self.b.block_round(&["inner"], short, one);
        self.name(middles);
        let back = self.b.round(DType::F32, middles);
        self.name(back);
    }
}

fn module(sizes: &Sizes) -> Module {
    let facts = quantised_facts(sizes);
    let mut made = Made { b: Build::default(), facts: &facts, named: 0 };
    let rows = Axis::rows("T");
    let tokens = made.b.input("tokens", DType::I32, std::slice::from_ref(&rows));
    made.b.input("pos", DType::I32, &[rows]);
    made.b.input("rows", DType::I32, &[Axis::rows("R")]);
    let (table, router) = (made.w("x"), made.w("router"));
    let x = made.b.gather("vocab", table, tokens);
    let scores = made.b.gather("vocab", router, tokens);
    let ids = made.b.top(2, "experts", "picked", TopWhat::Ids, scores);
    made.all(x, ids);
    made.b.graph.output("scores", scores);
    let first = made.b.finish();
    scoring(facts, first, Axis::fixed("experts", EXPERTS))
}

#[test]
fn quantised_products_have_the_interpreters_bits() {
    let mut compared = 0;
    for (seed, (outer, inner, out)) in [(1, 16, 1), (3, 48, 35), (2, 80, 7), (5, 32, 64)].into_iter().enumerate() {
        for act in [DType::Bf16, DType::F32] {
            let model = compile(&module(&Sizes { outer, inner, out, act }), seed as u64);
            for rows in [1, 13] {
                let what = format!("{outer} x {inner} to {out}, {act}, {rows} rows");
                same_values(&model, &tokens(rows, ROWS, seed as u64), &what, |_| compared += 1);
            }
        }
    }
    assert!(compared > 16 * 30, "only {compared} values were compared");
}
