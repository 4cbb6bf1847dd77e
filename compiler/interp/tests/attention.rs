//! Store and attend over a cache.

mod common;
use common::{context, facts, kind, show, tensor, ty};
use interp::{Env, InterpError, MemoryCache, NoCache, Tensor, eval_graph};
use ir::{ConstExpr, Facts, Graph, GraphBuilder, KvKind, KvRef, Mask, Op, Order, Type};

/// `attend(q, store(kv.k, k, v), mask)` with 2 query heads of 2 elements over one KV head.
fn graph(mask: Mask, order: Order, scale: f64) -> Graph {
    let mut b = GraphBuilder::new();
    let row = |text: &str| Type::Tensor(ty(text));
    let q = b.input("q", row("f32[T, heads = 2, head_dim = 2]"));
    let k = b.input("k", row("f32[T, kv_heads = 1, head_dim = 2]"));
    let v = b.input("v", row("f32[T, kv_heads = 1, head_dim = 2]"));
    let at = b.input("pos", row("i32[T]"));
    let kv = KvRef::Kind("k".into());
    let cache = b.add(Op::Store { kv: kv.clone(), scratch: false }, &[k, v, at], Type::Cache, None);
    let op = Op::Attend { kv, mask, scale: ConstExpr::Num(scale), order };
    let o = b.add(op, &[q, cache, at], row("f32[T, heads = 2, head_dim = 2]"), None);
    b.output("o", o);
    b.finish()
}

fn step(rows: usize, pos: &str, q: &str, k: &str, v: &str) -> Env {
    let t = |axes: &str, numbers: &str| tensor(&format!("{axes} {numbers}"));
    [
        ("q", t(&format!("f32[T = {rows}, heads = 2, head_dim = 2]"), q)),
        ("k", t(&format!("f32[T = {rows}, kv_heads = 1, head_dim = 2]"), k)),
        ("v", t(&format!("f32[T = {rows}, kv_heads = 1, head_dim = 2]"), v)),
        ("pos", t(&format!("i32[T = {rows}]"), pos)),
    ]
    .into_iter()
    .collect()
}

fn run(graph: &Graph, facts: &Facts, cache: &mut MemoryCache, env: &mut Env) -> Result<Tensor, InterpError> {
    eval_graph(graph, facts, env, &mut context(cache, Some(0)))?;
    Ok((**env.get("o").expect("an output")).clone())
}

fn with(kv: KvKind) -> Facts {
    facts(&["k"], vec![kv])
}

#[test]
fn equal_scores_average_the_visible_values() {
    let facts = with(kind("k", 1, 2, None));
    let mut cache = MemoryCache::new(vec![0, 0]);
    let mut env = step(2, "0 1", "1 1 2 2 0 0 0 0", "0 0 0 0", "2 4 6 8");
    let o = run(&graph(Mask::Causal, Order::Any, 1.0), &facts, &mut cache, &mut env).expect("a result");
    assert_eq!(show(&o), "f32[T = 2, heads = 2, head_dim = 2] 2 4 2 4 4 6 4 6");
    // Without a causal mask the first row sees the second.
    let mut cache = MemoryCache::new(vec![0, 0]);
    let o = run(&graph(Mask::All, Order::Any, 1.0), &facts, &mut cache, &mut env).expect("a result");
    assert_eq!(show(&o), "f32[T = 2, heads = 2, head_dim = 2] 4 6 4 6 4 6 4 6");
}

#[test]
fn rows_see_their_own_sequence_and_earlier_steps() {
    let facts = with(kind("k", 1, 2, None));
    let graph = graph(Mask::Causal, Order::Any, 1.0);
    let mut cache = MemoryCache::new(vec![7, 9]);
    let mut first = step(2, "0 0", "0 0 0 0 0 0 0 0", "0 0 0 0", "1 1 5 5");
    run(&graph, &facts, &mut cache, &mut first).expect("a result");
    cache.begin_step(vec![9]);
    let mut second = step(1, "1", "0 0 0 0", "0 0", "7 7");
    let o = run(&graph, &facts, &mut cache, &mut second).expect("a result");
    assert_eq!(show(&o), "f32[T = 1, heads = 2, head_dim = 2] 6 6 6 6");
    // Storing a position again replaces it; forgetting a sequence empties it.
    let mut again = step(1, "0", "0 0 0 0", "0 0", "3 3");
    let o = run(&graph, &facts, &mut cache, &mut again).expect("a result");
    assert_eq!(show(&o), "f32[T = 1, heads = 2, head_dim = 2] 3 3 3 3");
    cache.drop_sequence(9);
    let o = run(&graph, &facts, &mut cache, &mut second).expect("a result");
    assert_eq!(show(&o), "f32[T = 1, heads = 2, head_dim = 2] 7 7 7 7");
}

#[test]
fn without_a_causal_mask_a_row_sees_its_sequence_up_to_its_end_in_the_step() {
    let facts = with(kind("k", 1, 2, None));
    let zeros = |n: usize| vec!["0"; n].join(" ");
    let mut cache = MemoryCache::new(vec![0, 0, 0, 1]);
    let mut long = step(4, "0 1 2 0", &zeros(16), &zeros(8), "1 1 3 3 5 5 9 9");
    run(&graph(Mask::All, Order::Any, 1.0), &facts, &mut cache, &mut long).expect("a result");
    // The sequence goes back to position 1: what stands at 2 is of a course given up, and no row of this step.
    cache.begin_step(vec![0, 0, 1, 1]);
    let mut again = step(4, "0 1 1 2", &zeros(16), &zeros(8), "1 1 3 3 6 6 3 3");
    let o = run(&graph(Mask::All, Order::Any, 1.0), &facts, &mut cache, &mut again).expect("a result");
    assert_eq!(show(&o), "f32[T = 4, heads = 2, head_dim = 2] 2 2 2 2 2 2 2 2 6 6 6 6 6 6 6 6");
}

#[test]
fn a_window_counts_the_query_itself() {
    let facts = with(kind("k", 1, 2, Some(2)));
    let mut cache = MemoryCache::new(vec![0; 3]);
    let zeros = "0 0 0 0 0 0 0 0 0 0 0 0";
    let mut env = step(3, "0 1 2", zeros, "0 0 0 0 0 0", "1 1 3 3 5 5");
    let o = run(&graph(Mask::Causal, Order::Any, 1.0), &facts, &mut cache, &mut env).expect("a result");
    assert_eq!(show(&o), "f32[T = 3, heads = 2, head_dim = 2] 1 1 1 1 2 2 2 2 4 4 4 4");
}

#[test]
fn query_heads_share_kv_heads_in_order() {
    let mut b = GraphBuilder::new();
    let row = |text: &str| Type::Tensor(ty(text));
    let q = b.input("q", row("f32[T, heads = 4, head_dim = 1]"));
    let k = b.input("k", row("f32[T, kv_heads = 2, head_dim = 1]"));
    let at = b.input("pos", row("i32[T]"));
    let kv = KvRef::ByColumn("attn".into());
    let cache = b.add(Op::Store { kv: kv.clone(), scratch: false }, &[k, k, at], Type::Cache, None);
    let op = Op::Attend { kv, mask: Mask::Causal, scale: ConstExpr::Num(1.0), order: Order::Any };
    let o = b.add(op, &[q, cache, at], row("f32[T, heads = 4, head_dim = 1]"), None);
    b.output("o", o);
    let mut env: Env = [
        ("q", tensor("f32[T = 1, heads = 4, head_dim = 1] 1 1 1 1")),
        ("k", tensor("f32[T = 1, kv_heads = 2, head_dim = 1] 10 20")),
        ("pos", tensor("i32[T = 1] 0")),
    ]
    .into_iter()
    .collect();
    let mut cache = MemoryCache::new(vec![0]);
    let facts = facts(&["full"], vec![kind("full", 2, 1, None)]);
    let o = run(&b.finish(), &facts, &mut cache, &mut env).expect("a result");
    assert_eq!(show(&o), "f32[T = 1, heads = 4, head_dim = 1] 10 10 20 20");
}

#[test]
fn the_result_is_softmax_to_the_last_bit_or_so() {
    let n = 50usize;
    let draw = |name, len: usize| (0..len as u64).map(|i| numerics::synthetic(3, name, i)).collect::<Vec<f32>>();
    let (q, k, v) = (draw(1, n * 4), draw(2, n * 2), draw(3, n * 2));
    let text = |x: &[f32]| x.iter().map(f32::to_string).collect::<Vec<_>>().join(" ");
    let pos = (0..n).map(|p| p.to_string()).collect::<Vec<_>>().join(" ");
    let facts = with(kind("k", 1, 2, None));
    for order in [Order::Any, Order::Fold, Order::Serial, Order::Fused] {
        let mut env = step(n, &pos, &text(&q), &text(&k), &text(&v));
        let mut cache = MemoryCache::new(vec![0; n]);
        let o = run(&graph(Mask::Causal, order.clone(), 0.7), &facts, &mut cache, &mut env).expect("a result");
        let o = o.floats().expect("floats");
        let scale = f64::from(0.7f32);
        for (t, h, e) in (0..n).flat_map(|t| (0..4).map(move |i| (t, i / 2, i % 2))) {
            let at = |x: &[f32], i: usize| f64::from(x[i]);
            let s: Vec<f64> = (0..=t)
                .map(|j| scale * (0..2).map(|d| at(&q, (t * 2 + h) * 2 + d) * at(&k, j * 2 + d)).sum::<f64>())
                .collect();
            let total: f64 = s.iter().map(|s| s.exp()).sum();
            let exact: f64 = (0..=t).map(|j| s[j].exp() / total * at(&v, j * 2 + e)).sum();
            let spread: f64 = (0..=t).map(|j| s[j].exp() / total * at(&v, j * 2 + e).abs()).sum();
            // Scores below 16 in size carry three roundings (product, scale, difference) of at most 2^-21, the exponential
            // one of 2^-23: 2^-19 relative on each weight covers them. The f32 orders add one rounding per term.
            let terms = if order == Order::Any { 0.0 } else { n as f64 * 2f64.powi(-24) };
            let bound = spread * (2f64.powi(-19) + terms) + exact.abs() * 2f64.powi(-24);
            let got = f64::from(o[(t * 2 + h) * 2 + e]);
            assert!((got - exact).abs() <= bound, "{order:?}, row {t}: {got} against {exact}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let causal = graph(Mask::Causal, Order::Any, 1.0);
    let env = || step(1, "0", "0 0 0 0", "0 0", "1 1");
    let fail = |facts: &Facts, env: &mut Env, cache: &mut MemoryCache| {
        run(&causal, facts, cache, env).expect_err("an error").to_string()
    };
    let good = with(kind("k", 1, 2, None));
    let one = || MemoryCache::new(vec![0]);
    let e = fail(&good, &mut step(1, "-1", "0 0 0 0", "0 0", "1 1"), &mut one());
    assert!(e.contains("store C3"), "{e}");
    let e = fail(&with(kind("k", 2, 1, None)), &mut env(), &mut one());
    assert!(e.contains("store C2"), "{e}");
    let e = fail(&facts(&["k"], vec![]), &mut env(), &mut one());
    assert!(e.starts_with("I0104") && e.contains("cache kind `k`"), "{e}");
    let e = fail(&good, &mut env(), &mut MemoryCache::new(vec![]));
    assert!(e.starts_with("I0301"), "{e}");
    let mut no_cache = NoCache;
    let e = eval_graph(&causal, &good, &mut env(), &mut context(&mut no_cache, Some(0))).expect_err("an error");
    assert_eq!(e.fault.code(), "I0301");
    let mut cache = one();
    let e = eval_graph(&causal, &good, &mut env(), &mut context(&mut cache, None)).expect_err("an error");
    assert_eq!(e.fault.code(), "I0103");
    let mut uneven = kind("k", 1, 2, None);
    uneven.v = vec![ir::Axis::fixed("kv_heads", 1), ir::Axis::fixed("head_dim", 3)];
    let mut e = env();
    e.insert("v", tensor("f32[T = 1, kv_heads = 1, head_dim = 2] 1 1"));
    assert!(fail(&with(uneven), &mut e, &mut one()).contains("store C2"));
}

/// A sink of score 0 weighs as much as a row of score 0 and adds no value; one far below all scores changes nothing.
#[test]
fn a_sink_takes_weight_and_gives_no_value() {
    for order in [Order::Any, Order::Fold, Order::Serial, Order::Fused] {
        let mut b = GraphBuilder::new();
        let row = |text: &str| Type::Tensor(ty(text));
        let q = b.input("q", row("f32[T, heads = 2, head_dim = 2]"));
        let k = b.input("k", row("f32[T, kv_heads = 1, head_dim = 2]"));
        let at = b.input("pos", row("i32[T]"));
        let sink = b.input("sink", row("f32[heads = 2]"));
        let kv = KvRef::Kind("k".into());
        let cache = b.add(Op::Store { kv: kv.clone(), scratch: false }, &[k, k, at], Type::Cache, None);
        let op = Op::Attend { kv, mask: Mask::Causal, scale: ConstExpr::Num(1.0), order };
        let o = b.add(op, &[q, cache, at, sink], row("f32[T, heads = 2, head_dim = 2]"), None);
        b.output("o", o);
        let mut env: Env = [
            ("q", tensor("f32[T = 2, heads = 2, head_dim = 2] 0 0 0 0 0 0 0 0")),
            ("k", tensor("f32[T = 2, kv_heads = 1, head_dim = 2] 2 4 4 8")),
            ("pos", tensor("i32[T = 2] 0 1")),
            ("sink", tensor("f32[heads = 2] 0 -1000")),
        ]
        .into_iter()
        .collect();
        let mut cache = MemoryCache::new(vec![0, 0]);
        let facts = with(kind("k", 1, 2, None));
        let graph = b.finish();
        let o = run(&graph, &facts, &mut cache, &mut env).expect("a result");
        assert_eq!(show(&o), "f32[T = 2, heads = 2, head_dim = 2] 1 2 2 4 2 4 3 6");
        env.insert("sink", tensor("f32[heads = 1] 0"));
        let e = run(&graph, &facts, &mut cache, &mut env).expect_err("one number for two heads");
        assert!(e.to_string().contains("sink") || e.to_string().contains("attend C6"), "{e}");
    }
}
