//! How entries come apart into graphs.

use super::run;
use crate::testing::{Make, facts, text, two_kind_model};
use crate::{canonicalise, lower, plan, to_kernels};
use ir::{Binary, ConstExpr, DType, Graph, Model, Op, Type, Unary, ValueId};

fn wide() -> Type {
    Make::tensor(DType::Bf16, "T hidden")
}

/// A model whose entry embeds tokens, runs `layer` over the given carried values, and returns what `tail` makes.
fn model(
    layer: ir::Block,
    carried: usize,
    operands: impl FnOnce(&mut Make, ValueId, ValueId) -> Vec<ValueId>,
    tail: impl FnOnce(&mut Make, &[ValueId], ValueId) -> ValueId,
) -> Model {
    let mut m = Make::default();
    let tokens = m.input("tokens", DType::I32, "T");
    let embed = m.model_weight("embed");
    let x = m.op(Op::Gather { axis: "vocab".to_owned() }, &[embed, tokens], DType::Bf16, "T hidden");
    m.builder.name(x, "start");
    let operands = operands(&mut m, x, tokens);
    let op = Op::Layers { block: layer.name.clone(), carried };
    let items = m.call(op, &operands, vec![wide(); carried]);
    let result = tail(&mut m, &items, x);
    m.builder.output("result", result);
    Model { facts: facts(), blocks: vec![layer], entries: vec![m.block("forward")] }
}

fn names(graph: &Graph) -> (Vec<&str>, Vec<&str>) {
    let inputs = graph.inputs.iter().filter_map(|v| graph.input_name(*v)).collect();
    (inputs, graph.outputs.iter().map(|(n, _)| n.as_str()).collect())
}

fn compiled(model: &Model) -> ir::Module {
    let module = lower(model).unwrap_or_else(|e| panic!("{e}")).module;
    let target = targets::Target::load("cpu").unwrap();
    let compile = crate::Compile::one_device(&target);
    plan(&to_kernels(&module, &compile).unwrap(), &compile).unwrap_or_else(|e| panic!("{e}"));
    module
}

#[test]
fn values_keep_the_path_of_the_blocks_they_come_from() {
    let module = run(&two_kind_model()).unwrap();
    insta::assert_snapshot!(text(&canonicalise::graph(&module.entries[0].classes[1].graph, false)));
}

#[test]
fn carried_values_that_change_places_are_copied_by_an_operation() {
    let mut m = Make::default();
    let (a, b) = (m.input("a", DType::Bf16, "T hidden"), m.input("b", DType::Bf16, "T hidden"));
    m.builder.output("result.0", b);
    m.builder.output("result.1", a);
    let layer = m.block("layer");
    let model = model(layer, 2, |_, x, _| vec![x, x], |m, items, _| m.binary(Binary::Add, items[0], items[1]));
    let module = compiled(&model);
    let entry = &module.entries[0];
    assert_eq!(names(&entry.first), (vec!["tokens"], vec!["a", "b"]));
    let class = text(&entry.classes[0].graph);
    assert_eq!(class.matches("round bf16").count(), 2, "{class}");
}

#[test]
fn leaves_are_repeated_and_other_values_cross_under_their_names() {
    let mut m = Make::default();
    let x = m.input("x", DType::Bf16, "T hidden");
    let factor = m.input("factor", DType::F32, "");
    let shift = m.input("shift", DType::F32, "T hidden");
    let y = m.binary(Binary::Mul, x, factor);
    let y = m.binary(Binary::Add, y, shift);
    let y = m.round(y, "");
    m.builder.output("result", y);
    let layer = m.block("layer");
    let model = model(
        layer,
        1,
        |m, x, _| {
            let factor = m.builder.add(Op::Scalar(ConstExpr::Num(0.5)), &[], Make::tensor(DType::F32, ""), None);
            let shift = m.like(Op::Unary(Unary::Exp), &[x]);
            vec![x, factor, shift]
        },
        |m, items, start| m.binary(Binary::Add, items[0], start),
    );
    let module = compiled(&model);
    let entry = &module.entries[0];
    // `x` and `start` are one value when the layers begin; the tail still needs it when `x` has moved on.
    assert_eq!(names(&entry.first), (vec!["tokens"], vec!["x", "shift", "start"]));
    assert_eq!(names(&entry.classes[0].graph), (vec!["x", "shift"], vec!["x"]));
    assert_eq!(names(&entry.last), (vec!["start", "x"], vec!["result"]));
    assert!(text(&entry.classes[0].graph).contains("literal [0.5]"));
}

#[test]
fn a_parameter_named_like_an_entry_input_gets_a_name_of_its_own() {
    let mut m = Make::default();
    let x = m.input("tokens", DType::Bf16, "T hidden");
    let y = m.like(Op::Unary(Unary::Exp), &[x]);
    let y = m.round(y, "");
    m.builder.output("result", y);
    let layer = m.block("layer");
    let module = compiled(&model(layer, 1, |_, x, _| vec![x], |m, items, _| m.like(Op::Unary(Unary::Exp), items)));
    let entry = &module.entries[0];
    assert_eq!(names(&entry.first), (vec!["tokens"], vec!["tokens#2"]));
    assert_eq!(names(&entry.last), (vec!["tokens#2"], vec!["result"]));
}

#[test]
fn an_entry_without_layers_is_all_tail() {
    let mut m = Make::default();
    let x = m.input("x", DType::Bf16, "T hidden");
    let y = m.like(Op::Unary(Unary::Exp), &[x]);
    m.builder.output("result", y);
    let mut model = two_kind_model();
    model.entries = vec![m.block("forward")];
    let entry = &compiled(&model).entries[0];
    assert_eq!(names(&entry.first), (vec!["x"], vec![]));
    assert_eq!((names(&entry.last), entry.instances.len()), ((vec!["x"], vec!["result"]), 0));
}

#[test]
fn an_entry_that_runs_the_layers_twice_is_refused() {
    let mut model = two_kind_model();
    let mut m = Make::default();
    let x = m.input("x", DType::Bf16, "T hidden");
    let pos = m.input("pos", DType::I32, "T");
    let layers = || Op::Layers { block: "layer".to_owned(), carried: 1 };
    let x = m.call(layers(), &[x, pos], vec![wide()])[0];
    let x = m.call(layers(), &[x, pos], vec![wide()])[0];
    m.builder.output("result", x);
    model.entries = vec![m.block("forward")];
    let error = lower(&model).unwrap_err();
    assert_eq!(
        error.to_string(),
        "P0101: entry `forward` runs the layers twice; put both bodies into one block, or make two entries"
    );
}

#[test]
fn a_kind_without_an_arm_or_a_cache_is_refused() {
    let mut model = two_kind_model();
    for layer in [0, 1, 3] {
        model.facts.schedule[layer].insert("attn".to_owned(), "other".to_owned());
    }
    model.facts.kv[0].layers.clear();
    let error = lower(&model).unwrap_err();
    assert_eq!(
        error.to_string(),
        "P0103: a layer is `other` in column `attn`, and the match has no such arm; add an arm `other { … }`"
    );
    model.facts.kv.remove(0);
    model.facts.schedule.iter_mut().for_each(|k| drop(k.insert("attn".to_owned(), "near".to_owned())));
    model.facts.schedule[2].insert("attn".to_owned(), "far".to_owned());
    let error = lower(&model).unwrap_err();
    assert!(
        error.to_string().starts_with("P0104: a layer is `near` in column `attn`, and `[kv]` has no such cache"),
        "{error}"
    );
}

#[test]
fn a_broken_model_level_is_a_defect_not_a_panic() {
    let mut model = two_kind_model();
    model.blocks.remove(0);
    let error = lower(&model).unwrap_err();
    assert_eq!(error.code, "P0901");
    assert!(error.message.contains("no block `norm` stands before"), "{error}");
}
