//! The router block of the model spec, interpreted from recorded logits, chooses the recorded experts and weights.

use interp::{Context, Env, Hooks, NoCache, Site, Tensor, WeightMap, eval_graph};
use spec::{Choices, Library, check_text, render};
use suites::fixture;
use suites::safetensors_file::{Numbers, read};

const HIDDEN: usize = 8;

/// Puts the recorded logits in the place of the router's product.
struct Logits(Tensor);

impl Hooks for Logits {
    fn inject(&mut self, site: Site<'_>) -> Option<Tensor> {
        (site.name == "logits").then(|| self.0.clone())
    }
}

/// One recorded set: ids and weights as the block computes them.
fn route(set: &serde_json::Value, logits: &Numbers, bias: &Numbers) -> (Vec<i32>, Vec<f32>) {
    let text = format!(
        "extends = \"beam\"\n[dims]\nhidden = {HIDDEN}\nexperts = {}\ngroups = {}\npicked = {}\n[values]\nkept_groups = {}\n",
        set["experts"], set["n_group"], set["top_k"], set["topk_group"]
    );
    let checked = check_text("routing.toml", &text, &Library::embedded(), &Choices::default());
    let model = checked.model.unwrap_or_else(|| panic!("{}", render(&checked.diagnostics, &checked.sources, false)));
    let block = model.block("route").expect("the spec has a router block");
    let (rows, experts) = (logits.shape[0], logits.shape[1]);
    let mut weights = WeightMap::new();
    let zeros = Tensor::f32(&[("experts", experts), ("hidden", HIDDEN)], vec![0.0; experts * HIDDEN]).expect("router");
    weights.insert("router", Some(0), zeros);
    weights.insert("router_bias", Some(0), Tensor::f32(&[("experts", experts)], bias.data.clone()).expect("bias"));
    let mut hooks = Logits(Tensor::f32(&[("T", rows), ("experts", experts)], logits.data.clone()).expect("logits"));
    let mut env = Env::new();
    env.insert("x", Tensor::bf16(&[("T", rows), ("hidden", HIDDEN)], vec![0.0; rows * HIDDEN]).expect("x"));
    let mut ctx = Context { layer: Some(0), weights: &weights, cache: &mut NoCache, hooks: &mut hooks };
    eval_graph(&block.graph, &model.facts, &mut env, &mut ctx).expect("the block runs");
    let result = |name: &str| env.get(name).expect("result").clone();
    (result("result.0").ints().expect("ids").to_vec(), result("result.1").floats().expect("weights").to_vec())
}

#[test]
fn recorded_choices_are_made_again() {
    let folder = fixture("beam-routing");
    let cases: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("cases.json")).expect("cases")).expect("JSON");
    let values = read(&folder.join("cases.safetensors"));
    let (mut rows, mut bits, mut total) = (0, 0, 0);
    for (name, set) in cases.as_object().expect("sets") {
        let get = |what: &str| &values[&format!("{name}.{what}")];
        let (ids, weights) = route(set, get("logits"), get("bias"));
        let expected: Vec<i32> = get("ids").data.iter().map(|x| *x as i32).collect();
        assert_eq!(ids, expected, "{name}: experts");
        for (ours, recorded) in weights.iter().zip(&get("weights").data) {
            // Two exponentials of one ULP each under a quotient of sums: 1e-6 is generous, 1e-5 is the table's limit.
            assert!((ours - recorded).abs() <= 1e-6, "{name}: weight {ours} instead of {recorded}");
            bits += usize::from(ours.to_bits() == recorded.to_bits());
            total += 1;
        }
        rows += expected.len();
    }
    assert!(rows > 500, "only {rows} choices were compared");
    println!("{rows} choices equal; {bits} of {total} weights equal bit for bit");
}
