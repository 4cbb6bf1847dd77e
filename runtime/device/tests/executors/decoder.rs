//! A decoder with everything in it: two kinds of attention, rotation, a dense and a routed half, layer numbers, a capped head.

use crate::build::{Build, facts, kind, weight};
use crate::harness::{Compiled, bits, compile_caching, logits, tokens};
use device::{Probe, Probed, Tensor};
use indexmap::IndexMap;
use ir::{
    Axis, Binary, Class, ConstBinary, ConstExpr, DType, Entry, Facts, Graph, Instance, LayerKinds, Module, Order,
    ReduceOp, Scope, TopWhat, Unary, ValueId, WeightRef,
};

pub const VOCAB: u64 = 37;
const WINDOW: u64 = 5;
const HALF: u64 = 4;

fn decoder_facts(act: DType) -> Facts {
    let model = |name: &str, axes: &[(&str, u64)]| weight(name, Scope::Model, act, axes);
    let layer = |name: &str, axes: &[(&str, u64)]| weight(name, Scope::Layer, act, axes);
    let (hidden, ffn, experts) = (("hidden", 24), ("ffn", 20), ("experts", 6));
    let (heads, kv, width) = (("heads", 6), ("kv_heads", 2), ("head_dim", 2 * HALF));
    let mut facts = facts(act);
    facts.weights = vec![
        model("embed", &[("vocab", VOCAB), hidden]),
        model("norm", &[hidden]),
        model("head", &[("vocab", VOCAB), hidden]),
        layer("norm", &[hidden]),
        layer("q", &[heads, width, hidden]),
        layer("k", &[kv, width, hidden]),
        layer("v", &[kv, width, hidden]),
        layer("o", &[hidden, heads, width]),
        layer("q_norm", &[width]),
        layer("bias", &[heads]),
        layer("up", &[ffn, hidden]),
        layer("down", &[hidden, ffn]),
        weight("router", Scope::Layer, DType::F32, &[experts, hidden]),
        layer("x_up", &[experts, ffn, hidden]),
        layer("x_down", &[experts, hidden, ffn]),
    ];
    facts.kv = vec![kind("near", &[0, 2], 2, 2 * HALF, Some(WINDOW)), kind("far", &[1], 2, 2 * HALF, None)];
    let kinds = |k: &str| LayerKinds::from_iter([("attn".to_owned(), k.to_owned())]);
    facts.schedule = ["near", "far", "near"].into_iter().map(kinds).collect();
    facts.dims.insert("layers".to_owned(), 3);
    facts
}

fn rms_norm(b: &mut Build, act: DType, x: ValueId, w: ValueId, axis: &str, n: f64) -> ValueId {
    let squares = b.binary(Binary::Mul, x, x);
    let sum = b.reduce(ReduceOp::Sum, axis, Order::Fold, squares);
    let count = b.scalar(ConstExpr::Num(n));
    let mean = b.binary(Binary::Div, sum, count);
    let eps = b.scalar(ConstExpr::Num(1e-6));
    let mean = b.binary(Binary::Add, mean, eps);
    let root = b.unary(Unary::Sqrt, mean);
    let one = b.scalar(ConstExpr::Num(1.0));
    let factor = b.binary(Binary::Div, one, root);
    let x = b.binary(Binary::Mul, x, factor);
    let x = b.binary(Binary::Mul, x, w);
    b.round(act, x)
}

fn first(facts: &Facts) -> Graph {
    let mut b = Build::default();
    let tokens = b.input("tokens", DType::I32, &[Axis::rows("T")]);
    let pos = b.input("pos", DType::I32, &[Axis::rows("T")]);
    b.input("rows", DType::I32, &[Axis::rows("R")]);
    let embed = b.weight(facts, WeightRef::Model("embed".to_owned()));
    let x = b.gather("vocab", embed, tokens);
    b.named("x", x);
    let inverse = b.literal(DType::F32, &[Axis::fixed("half", HALF)], vec![1.0, 0.3, 0.09, 0.027]);
    let angle = b.binary(Binary::Mul, pos, inverse);
    let c = b.unary(Unary::Cos, angle);
    b.named("c", c);
    let s = b.unary(Unary::Sin, angle);
    b.named("s", s);
    [("x", x), ("c", c), ("s", s)].into_iter().for_each(|(name, id)| b.graph.output(name, id));
    b.finish()
}

fn rotate(b: &mut Build, act: DType, x: ValueId, c: ValueId, s: ValueId) -> ValueId {
    let low = b.slice("head_dim", 0, HALF, Some("half"), x);
    let high = b.slice("head_dim", HALF, HALF, Some("half"), x);
    let mut products = [(low, c), (high, s), (high, c), (low, s)].map(|(x, f)| b.binary(Binary::Mul, x, f));
    products = [products[0], products[1], products[2], products[3]];
    let turned_low = b.binary(Binary::Sub, products[0], products[1]);
    let turned_high = b.binary(Binary::Add, products[2], products[3]);
    let joined = b.concat("head_dim", &[turned_low, turned_high]);
    b.round(act, joined)
}

/// A layer; `cached` is the format that keys and values are rounded to before they are stored, if any.
fn layer(facts: &Facts, kind: &str, cached: Option<DType>) -> Graph {
    let act = facts.act;
    let mut b = Build::default();
    let rows = Axis::rows("T");
    let x = b.input("x", act, &[rows.clone(), Axis::fixed("hidden", 24)]);
    let pos = b.input("pos", DType::I32, std::slice::from_ref(&rows));
    let product = |b: &mut Build, contract: &[&str], x, w: &str, name: &str| {
        let w = b.weight(facts, WeightRef::Layer(w.to_owned()));
        let y = b.linear(contract, Order::Fused, x, w, None);
        let y = b.round(act, y);
        b.named(name, y)
    };
    let norm = b.weight(facts, WeightRef::Layer("norm".to_owned()));
    let h = rms_norm(&mut b, act, x, norm, "hidden", 24.0);
    b.named("h", h);
    let mut q = product(&mut b, &["hidden"], h, "q", "q");
    let mut k = product(&mut b, &["hidden"], h, "k", "k");
    let v = product(&mut b, &["hidden"], h, "v", "v");
    let q_norm = b.weight(facts, WeightRef::Layer("q_norm".to_owned()));
    q = rms_norm(&mut b, act, q, q_norm, "head_dim", 2.0 * HALF as f64);
    if kind == "near" {
        let half = Axis::fixed("half", HALF);
        let c = b.input("c", DType::F32, &[rows.clone(), half.clone()]);
        let s = b.input("s", DType::F32, &[rows, half]);
        q = rotate(&mut b, act, q, c, s);
        k = rotate(&mut b, act, k, c, s);
    }
    b.named("q.used", q);
    let [k, v] = [k, v].map(|x| cached.map_or(x, |dtype| b.round(dtype, x)));
    let cache = b.store(kind, k, v, pos);
    let a = b.attend(kind, q, cache, pos, 0.35);
    b.named("attention", a);
    let a = b.round(act, a);
    let bias = b.weight(facts, WeightRef::Layer("bias".to_owned()));
    let a = b.binary(Binary::Mul, a, bias);
    let a = b.round(act, a);
    let o = product(&mut b, &["heads", "head_dim"], a, "o", "o");
    // A factor that depends on the layer, as residual scales do.
    let number = ConstExpr::Binary(ConstBinary::Add, Box::new(ConstExpr::Layer), Box::new(ConstExpr::Num(2.0)));
    let n = b.scalar(number);
    let o = b.binary(Binary::Div, o, n);
    let o = b.round(act, o);
    let sum = b.binary(Binary::Add, x, o);
    let x = b.round(act, sum);
    b.named("mid", x);
    let m = if kind == "near" { dense(&mut b, facts, x) } else { routed(&mut b, facts, x) };
    let sum = b.binary(Binary::Add, x, m);
    let out = b.round(act, sum);
    b.named("out", out);
    b.graph.output("x", out);
    b.finish()
}

fn dense(b: &mut Build, facts: &Facts, x: ValueId) -> ValueId {
    let up = b.weight(facts, WeightRef::Layer("up".to_owned()));
    let u = b.linear(&["hidden"], Order::Fused, x, up, None);
    let u = b.unary(Unary::Sigmoid, u);
    let u = b.round(facts.act, u);
    let down = b.weight(facts, WeightRef::Layer("down".to_owned()));
    let d = b.linear(&["ffn"], Order::Fused, u, down, None);
    b.round(facts.act, d)
}

fn routed(b: &mut Build, facts: &Facts, x: ValueId) -> ValueId {
    let router = b.weight(facts, WeightRef::Layer("router".to_owned()));
    let r = b.linear(&["hidden"], Order::Fused, x, router, None);
    let score = b.unary(Unary::Sigmoid, r);
    let ids = b.top(2, "experts", "picked", TopWhat::Ids, score);
    b.named("ids", ids);
    let p = b.gather("experts", score, ids);
    let up = b.weight(facts, WeightRef::Layer("x_up".to_owned()));
    let u = b.linear(&["hidden"], Order::Fused, x, up, Some(ids));
    let u = b.unary(Unary::Tanh, u);
    let u = b.round(facts.act, u);
    let down = b.weight(facts, WeightRef::Layer("x_down".to_owned()));
    let d = b.linear(&["ffn"], Order::Fused, u, down, Some(ids));
    let d = b.round(facts.act, d);
    b.named("experts.down", d);
    let weighted = b.binary(Binary::Mul, p, d);
    let sum = b.reduce(ReduceOp::Sum, "picked", Order::Fold, weighted);
    b.round(facts.act, sum)
}

fn last(facts: &Facts) -> Graph {
    let mut b = Build::default();
    let x = b.input("x", facts.act, &[Axis::rows("T"), Axis::fixed("hidden", 24)]);
    let rows = b.input("rows", DType::I32, &[Axis::rows("R")]);
    let x = b.gather("T", x, rows);
    let norm = b.weight(facts, WeightRef::Model("norm".to_owned()));
    let x = rms_norm(&mut b, facts.act, x, norm, "hidden", 24.0);
    let head = b.weight(facts, WeightRef::Model("head".to_owned()));
    let z = b.linear(&["hidden"], Order::Fused, x, head, None);
    let z = b.round(facts.act, z);
    b.named("z", z);
    let cap = b.scalar(ConstExpr::Num(30.0));
    let z = b.binary(Binary::Div, z, cap);
    let z = b.unary(Unary::Tanh, z);
    let z = b.binary(Binary::Mul, z, cap);
    b.graph.output("result", z);
    b.finish()
}

/// The decoder, with everything between operations in `act`.
pub fn decoder(act: DType) -> Compiled {
    decoder_caching(act, "act")
}

/// The same with cached rows in that format.
fn decoder_caching(act: DType, rows: &str) -> Compiled {
    let facts = decoder_facts(act);
    let class = |name: &str| Class {
        name: name.to_owned(),
        kinds: LayerKinds::from_iter([("attn".to_owned(), name.to_owned())]),
        graph: layer(&facts, name, rows.parse().ok()),
    };
    let instances = [0, 1, 0].iter().enumerate().map(|(layer, class)| Instance { layer, class: *class }).collect();
    let entry = Entry {
        name: "forward".to_owned(),
        first: first(&facts),
        classes: vec![class("near"), class("far")],
        instances,
        last: last(&facts),
    };
    compile_caching(&Module::new(facts, vec![entry]), 11, rows)
}

/// Traces of a whole prompt under an executor, with some values injected.
pub fn traces(
    executor: &mut dyn Probed,
    prompt: &[i32],
    trace: Vec<String>,
    inject: IndexMap<String, Tensor>,
    chunks: &[usize],
) -> (Vec<Vec<f32>>, IndexMap<String, Tensor>) {
    executor.set_probe(Probe { trace, inject, ..Probe::default() }).expect("a probe of existing values");
    let logits = logits(executor, prompt, chunks, 0);
    (logits, executor.take_trace())
}

/// Everything but the sums inside attention is the interpreter's bit for bit: with the attention results of `cpu` put into `interp`, every
/// named value and every logit is equal.
#[test]
fn cpu_equals_the_interpreter_given_its_attention() {
    for (act, rows) in [(DType::Bf16, "act"), (DType::F32, "act"), (DType::Bf16, "e4m3"), (DType::F32, "e4m3")] {
        let model = decoder_caching(act, rows);
        let prompt = tokens(23, VOCAB, 5);
        let mut cpu = model.cpu();
        let names = cpu.value_names();
        let (cpu_logits, cpu_traces) = traces(&mut cpu, &prompt, names.clone(), IndexMap::new(), &[23]);
        assert_eq!(cpu_traces.len(), names.len(), "every named value is available");
        let inject: IndexMap<_, _> =
            cpu_traces.iter().filter(|(n, _)| n.ends_with(".attention")).map(|(n, t)| (n.clone(), t.clone())).collect();
        assert_eq!(inject.len(), 3);
        let mut interp = model.interp();
        let (logits, found) = traces(&mut interp, &prompt, names.clone(), inject, &[23]);
        for name in &names {
            assert_eq!(found[name], cpu_traces[name], "{act}, rows in {rows}: {name}");
        }
        assert_eq!(bits(&logits), bits(&cpu_logits));
    }
}

/// Attention itself: against binary64 sums, relative to the size of values, within what eight-lane and per-key sums of so few terms can lose.
#[test]
fn attention_is_near_the_interpreters() {
    ["act", "e4m3"].into_iter().for_each(attention_is_near);
}

fn attention_is_near(rows: &str) {
    let model = decoder_caching(DType::F32, rows);
    let prompt = tokens(40, VOCAB, 6);
    let names: Vec<String> = (0..3).map(|l| format!("layers.{l}.attention")).collect();
    let (_, of_cpu) = traces(&mut model.cpu(), &prompt, names.clone(), IndexMap::new(), &[40]);
    let inject: IndexMap<_, _> =
        of_cpu.iter().map(|(n, t)| (n.clone(), t.clone())).filter(|(n, _)| !n.starts_with("layers.2")).collect();
    let (_, of_interp) = traces(&mut model.interp(), &prompt, vec![names[2].clone()], inject, &[40]);
    let (device::TensorData::F32(a), device::TensorData::F32(b)) =
        (&of_cpu[&names[2]].data, &of_interp[&names[2]].data)
    else {
        panic!("attention leaves floats")
    };
    let size = b.iter().fold(0f32, |m, x| m.max(x.abs()));
    // Scores: 8 terms; sums: at most 5 keys, weights within 2 ulp; thirty roundings of 2^-24 in the worst case.
    let bound = 30.0 * size * f32::EPSILON / 2.0 * 4.0;
    let worst = a.iter().zip(b).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
    assert!(worst <= bound, "rows in {rows}: {worst} against {bound}");
}
