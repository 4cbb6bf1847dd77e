//! Whole entries: layer classes and the seam at the graph level, blocks at the model level, hooks at both.

mod common;
use common::{context, facts, show, tensor, ty};
use interp::{Context, Env, Hooks, NoCache, NoHooks, Outputs, Site, Tensor, WeightMap, run_entry, run_model};
use ir::{
    Binary, Block, Class, ConstExpr, Entry, Facts, Graph, GraphBuilder, Instance, LayerKinds, Model, Op, Type, ValueId,
    WeightRef,
};

fn t(text: &str) -> Type {
    Type::Tensor(ty(text))
}

const ROW: &str = "f32[T, h = 1]";

fn add(b: &mut GraphBuilder, x: ValueId, y: ValueId) -> ValueId {
    b.add(Op::Binary(Binary::Add), &[x, y], t(ROW), None)
}

fn weight(b: &mut GraphBuilder, reference: WeightRef) -> ValueId {
    b.add(Op::Weight(reference), &[], t("f32[h = 1]"), None)
}

/// Model weight `norm` is 1000; layer l has `w` = 10 (l + 1) and `next` = l + 1.
fn weights() -> WeightMap {
    let mut weights = WeightMap::new();
    let one = |x: usize| tensor(&format!("f32[h = 1] {x}"));
    weights.insert("norm", None, one(1000));
    for l in 0..3 {
        weights.insert("w", Some(l), one(10 * (l + 1)));
        weights.insert("next", Some(l), one(l + 1));
    }
    weights
}

fn three_layers() -> Facts {
    facts(&["a", "b", "a"], vec![])
}

/// Class `a`: x = x + w + l; n = the successor's weight. Class `b`: x = -x.
fn entry() -> Entry {
    let mut first = GraphBuilder::new();
    let x = first.input("start", t(ROW));
    let n = weight(&mut first, WeightRef::FirstLayer("next".into()));
    let n = add(&mut first, x, n);
    first.output("x", x);
    first.output("n", n);

    let mut a = GraphBuilder::new();
    let x = a.input("x", t(ROW));
    let w = weight(&mut a, WeightRef::Layer("w".into()));
    let l = a.add(Op::Scalar(ConstExpr::Layer), &[], t("f32[]"), None);
    let y = add(&mut a, x, w);
    let y = add(&mut a, y, l);
    a.name(y, "x");
    let next = weight(&mut a, WeightRef::Next { layer: "next".into(), last: "norm".into() });
    let n = add(&mut a, y, next);
    a.output("x", y);
    a.output("n", n);

    let mut b = GraphBuilder::new();
    let x = b.input("x", t(ROW));
    let y = b.add(Op::Unary(ir::Unary::Neg), &[x], t(ROW), None);
    b.output("x", y);

    let mut last = GraphBuilder::new();
    let n = last.input("n", t(ROW));
    last.output("result", n);

    let class = |name: &str, graph: Graph| Class {
        name: name.into(),
        kinds: LayerKinds::from_iter([("attn".to_owned(), name.to_owned())]),
        graph,
    };
    Entry {
        name: "forward".into(),
        first: first.finish(),
        classes: vec![class("a", a.finish()), class("b", b.finish())],
        instances: (0..3).map(|layer| Instance { layer, class: layer % 2 }).collect(),
        last: last.finish(),
    }
}

/// The same computation with the loop, match and calls still in place.
fn model() -> Model {
    let call = |b: &mut GraphBuilder, op: Op, args: &[ValueId]| {
        let tuple = b.add(op, args, Type::Tuple(vec![t(ROW)]), None);
        b.add(Op::Item(0), &[tuple], t(ROW), None)
    };
    let mut a = GraphBuilder::new();
    let x = a.input("v", t(ROW));
    let w = weight(&mut a, WeightRef::Layer("w".into()));
    let l = a.add(Op::Scalar(ConstExpr::Layer), &[], t("f32[]"), None);
    let y = add(&mut a, x, w);
    let y = add(&mut a, y, l);
    a.name(y, "sum");
    a.output("0", y);

    let mut neg = GraphBuilder::new();
    let x = neg.input("v", t(ROW));
    let y = neg.add(Op::Unary(ir::Unary::Neg), &[x], t(ROW), None);
    neg.output("0", y);

    let mut layer = GraphBuilder::new();
    let x = layer.input("x", t(ROW));
    layer.input("unused", t(ROW));
    let arms = vec![("a".to_owned(), "plus".to_owned()), ("b".to_owned(), "minus".to_owned())];
    let y = call(&mut layer, Op::Match { column: "attn".into(), arms }, &[x]);
    layer.output("0", y);

    let mut forward = GraphBuilder::new();
    let x = forward.input("start", t(ROW));
    let y = call(&mut forward, Op::Layers { block: "layer".into(), carried: 1 }, &[x, x]);
    let norm = weight(&mut forward, WeightRef::Model("norm".into()));
    let z = add(&mut forward, y, norm);
    forward.output("result", z);

    let block = |name: &str, b: GraphBuilder| Block { name: name.into(), graph: b.finish() };
    Model {
        facts: three_layers(),
        blocks: vec![block("plus", a), block("minus", neg), block("layer", layer)],
        entries: vec![block("forward", forward)],
    }
}

fn inputs() -> Env {
    [("start", tensor("f32[T = 2, h = 1] 0 5"))].into_iter().collect()
}

fn with_hooks(hooks: &mut dyn Hooks, run: impl FnOnce(&mut Context<'_>) -> Outputs) -> Outputs {
    let (weights, mut cache) = (weights(), NoCache);
    run(&mut Context { layer: None, weights: &weights, cache: &mut cache, hooks })
}

/// Layer 0: x + 10 + 0; layer 1: negated; layer 2: x + 30 + 2; then + 1000.
const RESULT: &str = "f32[T = 2, h = 1] 1022 1017";

#[test]
fn an_entry_runs_first_layers_last() {
    let mut env = inputs();
    let facts = three_layers();
    let out = with_hooks(&mut NoHooks, |ctx| run_entry(&entry(), &facts, &mut env, ctx).expect("a result"));
    assert_eq!(out.keys().collect::<Vec<_>>(), ["result"]);
    assert_eq!(show(&out["result"]), RESULT);
    assert_eq!(show(env.get("x").expect("x stays in the environment")), "f32[T = 2, h = 1] 22 17");
}

#[test]
fn the_seam_reads_the_successors_weight() {
    // The value of n after each graph, in order: the first layer's, layer 1's, the model's.
    #[derive(Default)]
    struct Seam(Vec<(Option<usize>, String)>);
    impl Hooks for Seam {
        fn on_value(&mut self, site: Site<'_>, value: &Tensor) {
            if site.name == "n" {
                self.0.push((site.layer, show(value)));
            }
        }
    }
    let mut seam = Seam::default();
    let facts = three_layers();
    with_hooks(&mut seam, |ctx| run_entry(&entry(), &facts, &mut inputs(), ctx).expect("a result"));
    let n = |x: &str| format!("f32[T = 2, h = 1] {x}");
    assert_eq!(seam.0, [(None, n("1 6")), (Some(0), n("12 17")), (Some(2), n("1022 1017")), (None, n("1022 1017"))]);
}

#[test]
fn a_model_calls_matches_and_loops() {
    let model = model();
    let out = with_hooks(&mut NoHooks, |ctx| run_model(&model, "forward", &inputs(), ctx).expect("a result"));
    assert_eq!(show(&out["result"]), RESULT);
}

/// Replaces one value of one layer.
struct Replace {
    layer: Option<usize>,
    name: &'static str,
    by: &'static str,
    seen: Vec<String>,
}

impl Hooks for Replace {
    fn inject(&mut self, site: Site<'_>) -> Option<Tensor> {
        (site.layer == self.layer && site.name == self.name).then(|| tensor(self.by))
    }

    fn on_value(&mut self, site: Site<'_>, value: &Tensor) {
        if site.layer == self.layer {
            let block = site.block.map(|b| format!("{b}.")).unwrap_or_default();
            self.seen.push(format!("{block}{} {}", site.name, show(value)));
        }
    }
}

#[test]
fn named_values_can_be_seen_and_replaced() {
    let model = model();
    let mut hooks = Replace { layer: Some(2), name: "sum", by: "f32[T = 2, h = 1] 1 2", seen: vec![] };
    let out = with_hooks(&mut hooks, |ctx| run_model(&model, "forward", &inputs(), ctx).expect("a result"));
    assert_eq!(show(&out["result"]), "f32[T = 2, h = 1] 1001 1002");
    assert!(hooks.seen.contains(&"plus.sum f32[T = 2, h = 1] 1 2".to_owned()), "{:?}", hooks.seen);

    // The input `x` of class `a` and its output `x` share a name: the node that has it wins, and the input is one.
    let mut hooks = Replace { layer: Some(2), name: "x#2", by: "f32[T = 2, h = 1] 1 2", seen: vec![] };
    let facts = three_layers();
    let out = with_hooks(&mut hooks, |ctx| run_entry(&entry(), &facts, &mut inputs(), ctx).expect("a result"));
    assert_eq!(show(&out["result"]), "f32[T = 2, h = 1] 1001 1002");
}

#[test]
fn a_replacement_must_fit() {
    let facts = three_layers();
    for by in ["f32[T = 2] 1 2", "bf16[T = 2, h = 1] 1 2", "f32[T = 1, h = 2] 1 2"] {
        let mut hooks = Replace { layer: Some(0), name: "x#2", by, seen: vec![] };
        let (weights, mut cache) = (weights(), NoCache);
        let mut ctx = Context { layer: None, weights: &weights, cache: &mut cache, hooks: &mut hooks };
        let e = run_entry(&entry(), &facts, &mut inputs(), &mut ctx).expect_err("an error");
        assert_eq!((e.fault.code(), e.layer), ("I0202", Some(0)), "{e}");
    }
}

#[test]
fn what_is_missing_is_named() {
    let facts = three_layers();
    let run = |entry: &Entry, env: &mut Env| {
        let mut cache = NoCache;
        run_entry(entry, &facts, env, &mut context(&mut cache, None)).expect_err("an error").to_string()
    };
    let e = run(&entry(), &mut Env::new());
    assert!(e.starts_with("I0101 at %0 (start): the graph reads `start`"), "{e}");
    let e = run(&entry(), &mut inputs());
    assert!(e.starts_with("I0102") && e.contains("weight `next` of layer 0"), "{e}");
    let mut env: Env = [("start", tensor("f32[T = 2, h = 2] 0 5 0 5"))].into_iter().collect();
    let e = run(&entry(), &mut env);
    assert!(e.contains("I0202") && e.contains("f32[T = 2, h = 2]") && e.contains("f32[T, h = 1]"), "{e}");
    let mut wrong = entry();
    wrong.instances[0].class = 9;
    assert!(run_error(&wrong, &facts).contains("class 9"));
    let mut swapped = entry();
    swapped.last = swapped.classes[0].graph.clone();
    assert!(run_error(&swapped, &facts).starts_with("I0103"));
}

fn run_error(entry: &Entry, facts: &Facts) -> String {
    let (weights, mut cache, mut hooks) = (weights(), NoCache, NoHooks);
    let mut ctx = Context { layer: None, weights: &weights, cache: &mut cache, hooks: &mut hooks };
    run_entry(entry, facts, &mut inputs(), &mut ctx).expect_err("an error").to_string()
}

#[test]
fn a_broken_model_is_refused() {
    let run = |model: &Model, name: &str| {
        let (weights, mut cache, mut hooks) = (weights(), NoCache, NoHooks);
        let mut ctx = Context { layer: None, weights: &weights, cache: &mut cache, hooks: &mut hooks };
        run_model(model, name, &inputs(), &mut ctx).expect_err("an error").to_string()
    };
    assert!(run(&model(), "draft").contains("entry `draft` does not exist; known: forward"));
    let mut no_block = model();
    no_block.blocks.remove(0);
    assert!(run(&no_block, "forward").contains("block `plus`"));
    // A block may only call blocks before it, so a cycle cannot be entered.
    let mut cyclic = model();
    cyclic.blocks.swap(0, 2);
    assert!(run(&cyclic, "forward").contains("block `plus`"));
    let mut unknown_kind = model();
    unknown_kind.facts.schedule[1].insert("attn".into(), "c".into());
    assert!(run(&unknown_kind, "forward").contains("arm `c` does not exist; known: a, b"));
    let mut unused = model();
    unused.blocks[2].graph.inputs.pop();
    assert!(run(&unused, "forward").starts_with("I0203"));
}
