//! The full model at each level, pinned: what an edit of the spec or of a pass does shows as a diff.

use passes::{Compile, Stage, Stages};
use spec::{Choices, Library, check_path};
use suites::root;
use targets::Target;

fn stages(spec: &str, target: &str) -> Stages {
    let target = Target::load(target).expect("target");
    let choices =
        Choices {
            act: target.act,
            options: target.options_on(&ir::Mesh::single()).into_iter().collect(),
            ..Choices::default()
        };
    let checked = check_path(&root().join("model-spec").join(spec), &Library::embedded(), &choices);
    assert!(checked.diagnostics.is_empty(), "{}", spec::render(&checked.diagnostics, &checked.sources, false));
    let mut model = checked.model.expect("model");
    model.facts.files = model.facts.files.iter().map(|f| f.rsplit('/').next().unwrap_or(f).to_owned()).collect();
    Stages::compile(model, &Compile::one_device(&target)).expect("compiles")
}

#[test]
fn the_full_model_at_model_level() {
    insta::assert_snapshot!(stages("beam.toml", "cpu").text(Stage::Model, false));
}

#[test]
fn the_full_model_at_graph_level() {
    insta::assert_snapshot!(stages("beam.toml", "cpu").text(Stage::Graph, false));
}

#[test]
fn the_full_model_at_kernel_level() {
    insta::assert_snapshot!(stages("beam.toml", "cpu").text(Stage::Kernel, false));
}

#[test]
fn the_small_model_as_a_plan() {
    insta::assert_snapshot!(stages("beam-nano.toml", "cpu").text(Stage::Plan, false));
}

#[test]
fn the_graph_level_reads_back() {
    for (spec, target) in [("beam.toml", "cpu"), ("beam.toml", "cpu-f32"), ("beam-nano.toml", "cpu")] {
        let module = stages(spec, target).module;
        let text = ir::print_module(&module, false);
        let back = ir::parse_module(&text).unwrap_or_else(|e| panic!("{spec}: {e}"));
        assert_eq!(ir::print_module(&back, false), text);
    }
}

#[test]
fn the_full_model_has_its_parameters_and_classes() {
    let stages = stages("beam.toml", "cpu");
    assert_eq!(stages.module.facts.parameters(), 501_267_612_352);
    let classes: Vec<&str> = stages.module.entries[0].classes.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(classes, ["sliding.dense", "sliding.sparse", "full.sparse"]);
}
