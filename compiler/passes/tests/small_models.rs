//! Translation validation on small models from spec text: the model level and the graph level after every pass leave
//! equal bits on seeded inputs, step after step on a growing cache.

use interp::{Context, Env, MemoryCache, NoHooks, Outputs, Tensor, WeightMap};
use ir::{DType, Extent, KernelModule, Model, Module, Scope};
use passes::{Compile, lower, lower_step_by_step, plan, to_kernels};
use spec::{Choices, Library, check_text};
use targets::Target;

/// The base model in dimensions that an interpreter walks through quickly; odd ones where the mathematics allows.
const SMALL: &str = r#"
extends = "beam"

[dims]
layers = 7
hidden = 20
heads = 6
kv_heads = 2
head_dim = 6
ffn = 13
experts = 12
groups = 4
expert_ffn = 5
picked = 3
vocab = 37

[values]
window = 3
kept_groups = 2
"#;

fn small(act: Option<DType>) -> Model {
    let choices = Choices { act, ..Choices::default() };
    let checked = check_text("small.toml", SMALL, &Library::embedded(), &choices);
    let shown = spec::render(&checked.diagnostics, &checked.sources, false);
    checked.model.unwrap_or_else(|| panic!("{shown}"))
}

fn weights(model: &Model, seed: u64) -> WeightMap {
    let mut map = WeightMap::new();
    for weight in &model.facts.weights {
        let layers = match weight.scope {
            Scope::Model => vec![None],
            Scope::Layer => (0..model.facts.layers()).filter(|l| model.facts.layer_has(*l, weight)).map(Some).collect(),
        };
        for layer in layers {
            let hash = numerics::hash_name(&format!("{} {layer:?}", weight.name));
            let ty = weight.ty();
            let axes: Vec<(String, usize)> = ty
                .axes
                .iter()
                .map(|a| match a.extent {
                    Extent::Fixed(n) => (a.name.clone(), n as usize),
                    Extent::Rows => unreachable!("weights have no rows"),
                })
                .collect();
            let mut data: Vec<f32> = (0..weight.elements()).map(|i| 0.3 * numerics::synthetic(seed, hash, i)).collect();
            if ty.dtype == DType::Bf16 {
                numerics::round_bf16_in_place(&mut data);
            }
            let tensor = Tensor::new(axes, ty.dtype, interp::Data::F32(data)).expect("a weight of its own shape");
            map.insert(weight.name.clone(), layer, tensor);
        }
    }
    map
}

/// Two sequences in three steps: a prompt each, then chunks and single rows mixed, then single rows.
const STEPS: [&[(usize, i32)]; 3] = [
    &[(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1)],
    &[(0, 5), (1, 2), (1, 3), (1, 4), (1, 5)],
    &[(0, 6), (1, 6)],
];

fn inputs(step: usize, vocab: u64) -> Env {
    let rows = STEPS[step];
    let token = |i: usize| (numerics::uniform(11, (step * 100 + i) as u64) * vocab as f32) as i32;
    let mut env = Env::new();
    let tokens: Vec<i32> = (0..rows.len()).map(token).collect();
    env.insert("tokens", Tensor::i32(&[("T", rows.len())], tokens).expect("tokens"));
    env.insert("pos", Tensor::i32(&[("T", rows.len())], rows.iter().map(|r| r.1).collect()).expect("pos"));
    let wanted: Vec<i32> = (0..rows.len() as i32).rev().step_by(2).collect();
    env.insert("rows", Tensor::i32(&[("R", wanted.len())], wanted).expect("rows"));
    env
}

/// All steps, one after the other, on one cache.
fn run(weights: &WeightMap, vocab: u64, mut one: impl FnMut(&mut Env, &mut Context<'_>) -> Outputs) -> Vec<Outputs> {
    let mut cache = MemoryCache::new(Vec::new());
    (0..STEPS.len())
        .map(|step| {
            cache.begin_step(STEPS[step].iter().map(|r| r.0).collect());
            let mut context = Context { layer: None, weights, cache: &mut cache, hooks: &mut NoHooks };
            one(&mut inputs(step, vocab), &mut context)
        })
        .collect()
}

fn run_module(module: &Module, weights: &WeightMap) -> Vec<Outputs> {
    run(weights, module.facts.dims["vocab"], |env, context| {
        interp::run_entry(&module.entries[0], &module.facts, env, context).expect("the graph level runs")
    })
}

fn assert_equal_bits(a: &[Outputs], b: &[Outputs], what: &str) {
    for (step, (a, b)) in a.iter().zip(b).enumerate() {
        assert_eq!(a.len(), b.len(), "{what}: step {step}");
        for ((name, a), (other, b)) in a.iter().zip(b) {
            assert!(name == other && a.same(b), "{what}: `{name}` differs in step {step}");
        }
    }
}

fn validated(model: &Model) -> Vec<Outputs> {
    let weights = weights(model, 3);
    let truth = run(&weights, model.facts.dims["vocab"], |env, context| {
        interp::run_model(model, "forward", env, context).expect("the model level runs")
    });
    let snapshots = lower_step_by_step(model).expect("a model that compiles");
    for snapshot in &snapshots {
        assert_equal_bits(&truth, &run_module(&snapshot.module, &weights), snapshot.pass.name);
    }
    let module = &snapshots.last().expect("a pass ran").module;
    let kernels = to_kernels(module, &Compile::one_device(&Target::load("cpu").expect("a target"))).expect("kernels");
    let again = kernels.to_module();
    assert_equal_bits(&truth, &run_module(&again, &weights), "select kernels");
    truth
}

#[test]
fn every_pass_keeps_every_bit() {
    for act in [None, Some(DType::F32)] {
        let outputs = validated(&small(act));
        let result = outputs[0]["result"].floats().expect("logits");
        assert!(result.iter().all(|x| x.is_finite()) && result.iter().any(|x| x.abs() > 1e-3));
    }
}

#[test]
fn the_classes_of_the_base_model_and_its_seam() {
    let lowered = lower(&small(None)).expect("a model that compiles");
    assert_eq!(lowered.notes, []);
    let entry = &lowered.module.entries[0];
    let classes: Vec<&str> = entry.classes.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(classes, ["sliding.dense", "sliding.sparse", "full.sparse"]);
    for class in &entry.classes {
        let outputs: Vec<&str> = class.graph.outputs.iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(outputs, ["x", "norm"]);
    }
    // The input norm stands at the end of each layer only, and the last graph begins with a gather of it.
    let dense = ir::print_graph("dense", &entry.classes[0].graph, &lowered.module.facts, false);
    assert!(!dense.contains("weight layer input_norm"), "{dense}");
    assert!(dense.contains("weight next input_norm else norm"), "{dense}");
    insta::assert_snapshot!(ir::print_graph("last", &entry.last, &lowered.module.facts, false));
}

#[test]
fn text_and_json_carry_every_level() {
    let model = small(None);
    let module = passes::to_module(&model).expect("a model that compiles");
    // Spans do not travel in text; everything else does.
    let text = ir::print_module(&module, false);
    let back = ir::parse_module(&text).expect("text that parses");
    assert_eq!(ir::print_module(&back, false), text);
    assert_eq!(ir::verify_module(&back), Ok(()));
    assert!(ir::print_module(&module, true).contains("  ; "));
    let again: Module = through_json(&module);
    assert_eq!(again, module);
    assert_eq!(through_json::<Model>(&model), model);
    let target = Target::load("cpu").expect("a target");
    let compile = Compile::one_device(&target);
    let kernels = to_kernels(&module, &compile).expect("kernels");
    assert_eq!(through_json::<KernelModule>(&kernels), kernels);
    let plan = plan(&kernels, &compile).expect("a plan");
    assert_eq!(through_json::<ir::Plan>(&plan), plan);
}

fn through_json<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    serde_json::from_str(&serde_json::to_string(value).expect("JSON")).expect("JSON that reads back")
}

#[test]
fn compiling_twice_gives_identical_text() {
    let target = Target::load("cpu").expect("a target");
    let all = || {
        let stages =
            passes::Stages::compile(small(None), &Compile::one_device(&target)).expect("a model that compiles");
        let stages_of = [
            passes::Stage::Model,
            passes::Stage::Graph,
            passes::Stage::Sharded,
            passes::Stage::Kernel,
            passes::Stage::Plan,
        ];
        stages_of.map(|stage| stages.text(stage, true))
    };
    assert_eq!(all(), all());
}
