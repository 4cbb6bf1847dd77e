//! The full model at each level, pinned: what an edit of the spec or of a pass does shows as a diff.
//!
//! Levels on a mesh are long, so each graph has a file of its own, and a mesh that differs in numbers alone is pinned as
//! its difference from another: tp = 8 from tp = 4, one device from tp = 4, ep = 4 from one device.

mod compiled;

use compiled::compiled;
use ir::Mesh;
use passes::{Compile, Stage};
use similar::TextDiff;
use spec::{Choices, Library, check_path};
use std::collections::BTreeMap;
use suites::root;
use targets::Target;

const DEVICE: &str = "h200-bf16";

fn text(spec: &str, target: &str, mesh: &str, stage: Stage) -> String {
    compiled(spec, target, mesh, false).text(stage, false)
}

/// A level of a drafter, of its blocks of 8, compiled with its target; before it the lines of the target that know of it.
fn paired(spec: &str, draft: &str, mesh: &str, stage: Stage) -> String {
    let mesh = Mesh::parse(mesh).expect("mesh");
    let target = Target::load(if mesh.is_single() { "cpu" } else { DEVICE }).expect("target");
    let options: BTreeMap<_, _> = target.options_on(&mesh).into_iter().collect();
    let read = |spec: &str, choices: &Choices| {
        let mut model =
            check_path(&root().join("model-spec").join(spec), &Library::embedded(), choices).model.expect("a model");
        model.facts.files.clear();
        model
    };
    let model = read(spec, &Choices { options: options.clone(), ..Choices::default() });
    let own = Choices { options, target: Some(Box::new(model.clone())), ..Choices::default() };
    let compile = Compile { target: &target, mesh: &mesh, exact: false, unpack: &[] };
    let paired = passes::pair(model, vec![read(draft, &own)], &compile).unwrap_or_else(|e| panic!("{e}"));
    let knows = |line: &&str| line.contains("capture.") || line.contains(" slots ") || line.contains("export ");
    let of_target = paired.target.text(stage, false);
    let lines: Vec<&str> = of_target.lines().filter(knows).collect();
    let drafter: String = paired.drafter.iter().map(|d| d.text(stage, false)).collect();
    format!("{}\n\n{drafter}", lines.join("\n"))
}

#[test]
fn the_small_drafter_at_each_level() {
    for (level, stage) in [("graph", Stage::Graph), ("kernel", Stage::Kernel), ("plan", Stage::Plan)] {
        let text = paired("beam-nano.toml", "beam-nano-dflash2.toml", "", stage);
        insta::assert_snapshot!(format!("drafter_{level}"), text);
    }
}

#[test]
fn the_full_drafter_on_four_ranks() {
    insta::assert_snapshot!(paired("beam.toml", "beam-dflash2.toml", "tp=4", Stage::Kernel));
}

/// The facts, then every graph by its name.
fn pieces(text: &str) -> Vec<(String, String)> {
    let mut pieces: Vec<(String, String)> = vec![("facts".to_owned(), String::new())];
    for line in text.lines() {
        let head = line.strip_prefix("  graph ").or_else(|| line.strip_prefix("  class "));
        if let Some(name) = head.and_then(|rest| rest.split([' ', '(']).next()) {
            pieces.push((name.to_owned(), String::new()));
        }
        if let Some((_, piece)) = pieces.last_mut() {
            piece.push_str(line);
            piece.push('\n');
        }
    }
    pieces
}

fn each_graph(level: &str, text: &str) {
    let pieces = pieces(text);
    assert_eq!(pieces.len(), 6, "facts, first, three classes, last");
    for (name, piece) in pieces {
        insta::assert_snapshot!(format!("{level}_{}", name.replace('.', "_")), piece);
    }
}

fn difference(from: &str, to: &str) -> String {
    TextDiff::from_lines(from, to).unified_diff().context_radius(1).to_string()
}

#[test]
fn the_full_model_at_model_level() {
    insta::assert_snapshot!(text("beam.toml", "cpu", "", Stage::Model));
}

#[test]
fn the_full_model_at_graph_level() {
    insta::assert_snapshot!(text("beam.toml", "cpu", "", Stage::Graph));
}

#[test]
fn the_small_model_as_a_plan() {
    insta::assert_snapshot!(text("beam-nano.toml", "cpu", "", Stage::Plan));
}

#[test]
fn the_full_model_sharded() {
    let text = |mesh| text("beam.toml", DEVICE, mesh, Stage::Sharded);
    let (one, tp4) = (text(""), text("tp=4"));
    each_graph("sharded_tp4", &tp4);
    insta::assert_snapshot!("sharded_tp8_from_tp4", difference(&tp4, &text("tp=8")));
    insta::assert_snapshot!("sharded_tp1_from_tp4", difference(&tp4, &one));
    insta::assert_snapshot!("sharded_ep4_from_tp1", difference(&one, &text("ep=4")));
}

#[test]
fn the_full_model_at_kernel_level() {
    let text = |mesh| text("beam.toml", DEVICE, mesh, Stage::Kernel);
    let (one, tp4) = (text(""), text("tp=4"));
    each_graph("kernel_tp4", &tp4);
    each_graph("kernel_tp1", &one);
    insta::assert_snapshot!("kernel_tp8_from_tp4", difference(&tp4, &text("tp=8")));
    insta::assert_snapshot!("kernel_ep4_from_tp1", difference(&one, &text("ep=4")));
}

#[test]
fn graph_and_sharded_levels_read_back() {
    let device = ["", "tp=8", "ep=4", "tp=2,ep=2"].map(|mesh| ("beam.toml", DEVICE, mesh));
    let others = [("beam.toml", "cpu", ""), ("beam.toml", "cpu-f32", ""), ("beam-nano.toml", "cpu", "tp=2")];
    for (spec, target, mesh) in device.into_iter().chain(others) {
        let stages = compiled(spec, target, mesh, false);
        for module in [&stages.graph, &stages.module] {
            let text = ir::print_module(module, false);
            let back = ir::parse_module(&text).unwrap_or_else(|e| panic!("{spec} on {mesh}: {e}"));
            assert_eq!(ir::print_module(&back, false), text);
        }
    }
}

#[test]
fn the_full_model_has_its_parameters_and_classes() {
    let stages = compiled("beam.toml", "cpu", "", false);
    assert_eq!(stages.module.facts.parameters(), 501_267_612_352);
    let classes: Vec<&str> = stages.module.entries[0].classes.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(classes, ["sliding.dense", "sliding.sparse", "full.sparse"]);
}
