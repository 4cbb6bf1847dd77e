//! The full model, made small, on meshes: every pass keeps what it declares on every rank.

use ir::{Class, DType, Entry, Mesh, Model, Module, Op, WeightRef};
use passes::validate::{Small, Trial, Validated, Verdict, probed, validate_passes};
use passes::{Compile, PASSES, Pass, Run, Validation};
use spec::{Choices, Library, check_path};
use std::path::Path;
use targets::Target;

/// What is run.
struct Case<'c> {
    mesh: &'c str,
    combine: &'c str,
    act: Option<DType>,
    /// Placements in place of the spec's.
    shard: &'c [(&'c str, &'c [&'c str])],
    relaxations: &'c [&'c str],
    /// The target whose formats are taken.
    formats: &'c str,
}

impl Case<'_> {
    fn small(&self, mesh: &Mesh) -> Model {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model-spec/beam.toml");
        let mut read = |small: &Small| -> Result<Model, String> {
            let choices = Choices {
                act: self.act,
                options: [("combine".to_owned(), vec![self.combine.to_owned()])].into(),
                dims: small.dims.clone(),
                layers: small.layers.clone(),
                assume: self.target().formats.assume,
                ..Choices::default()
            };
            let mut checked = check_path(&path, &Library::embedded(), &choices);
            let first = || checked.diagnostics.first().map_or_else(String::new, |d| d.message.clone());
            let mut model = checked.model.take().ok_or_else(first)?;
            for (axis, over) in self.shard {
                model.facts.shard.insert((*axis).to_owned(), over.iter().map(|a| (*a).to_owned()).collect());
            }
            Ok(model)
        };
        let full = read(&Small::default()).expect("the full model");
        let shrunk = passes::shrink(&full, mesh, &mut read).expect("a small model");
        assert!(shrunk.kept.is_empty(), "{:?}", shrunk.kept);
        shrunk.model
    }

    fn target(&self) -> Target {
        let mut target = Target::load(self.formats).expect("a target");
        target.relaxations = self.relaxations.iter().map(|r| (*r).to_owned()).collect();
        target
    }

    /// Validates every pass up to the last that leaves graphs of operations.
    fn validated(&self) -> Validation {
        let target = self.target();
        let mesh = Mesh::parse(self.mesh).expect("a mesh");
        let model = self.small(&mesh);
        let compile = Compile {
            target: &target,
            mesh: &mesh,
            exact: self.relaxations.is_empty() && self.formats == "cpu",
            unpack: &[],
        };
        let graphs = |p: &&Pass| matches!(p.run, Run::Flatten(_) | Run::Graph(_) | Run::Target(_) | Run::Refine(_));
        let passes: Vec<Pass> = PASSES.iter().filter(graphs).copied().collect();
        let found = validate_passes(&model, &compile, 1, &passes).unwrap_or_else(|e| panic!("{}: {e}", self.mesh));
        for pass in &found.passes {
            let (mesh, combine, act) = (self.mesh, self.combine, self.act);
            assert!(pass.verdict.holds(), "{mesh} {combine} {act:?} {}: {:?}", pass.pass.name, pass.verdict);
        }
        found
    }
}

fn verdict<'v>(found: &'v Validation, pass: &str) -> &'v Verdict {
    let found: Option<&Validated> = found.passes.iter().find(|p| p.pass.name == pass);
    &found.unwrap_or_else(|| panic!("`{pass}` did not run")).verdict
}

const PLAIN: Case<'static> =
    Case { mesh: "tp=2", combine: "single", act: Some(DType::F32), shard: &[], relaxations: &[], formats: "cpu" };

#[test]
fn every_mesh_keeps_every_bit() {
    for (mesh, combine, narrow) in [
        ("tp=2", "library", true),
        ("tp=2", "single", false),
        ("tp=4", "engine", false),
        ("tp=8", "single", false),
        ("tp=16", "single", true),
        ("ep=2", "engine", false),
        ("ep=2", "single", false),
        ("ep=4", "library", false),
        ("tp=2,ep=2", "single", true),
        ("ep=4,tp=2", "library", false),
    ] {
        for act in [Some(DType::F32), None].into_iter().take(1 + usize::from(narrow)) {
            let found = Case { mesh, combine, act, ..PLAIN }.validated();
            let Verdict::Refined { moved } = verdict(&found, "shard") else { panic!("{mesh}: sharding refines") };
            // In f32 a sum in another order shows; whole experts, added in the order of the spec, move nothing.
            let exact = mesh.starts_with("ep") && !mesh.contains("tp") && combine != "single";
            assert!(act.is_none() || (*moved == 0) == exact, "{mesh} {combine}: {moved} moved");
        }
    }
}

#[test]
fn rows_of_a_sequence_stay_with_their_rank() {
    let shard: &[(&str, &[&str])] = &[("T", &["dp"]), ("ffn", &["dp", "tp"]), ("experts", &["dp", "ep"])];
    for (mesh, combine) in [("dp=2", "single"), ("dp=2", "library"), ("dp=2,tp=2", "single"), ("dp=3,ep=2", "engine")] {
        let found = Case { mesh, combine, shard, ..PLAIN }.validated();
        assert!(matches!(verdict(&found, "shard"), Verdict::Refined { .. }));
    }
    // Blocks have no scale of a row, so they go where their rows go.
    let found = Case { mesh: "dp=2,tp=2", formats: "cpu-nvfp4", act: None, shard, ..PLAIN }.validated();
    assert!(matches!(verdict(&found, "shard"), Verdict::Refined { .. }));
}

/// A token's scale is found with the rows of all ranks where a product takes them all, and multiplies before they go home.
#[test]
fn scales_of_tokens_stay_with_their_rows() {
    let shard: &[(&str, &[&str])] = &[("T", &["dp"]), ("ffn", &["dp", "tp"]), ("experts", &["dp", "ep"])];
    let widths: &[(&str, &[&str])] = &[("T", &["dp"]), ("ffn", &["dp", "tp"]), ("expert_ffn", &["dp", "tp"])];
    let formats = "cpu-fp8";
    let own: &[&str] = &["rank-scale"];
    for (mesh, combine, shard, relaxations) in [
        ("dp=2", "single", shard, own),
        ("dp=2,tp=2", "library", shard, &[]),
        ("dp=3,ep=2", "engine", shard, &[]),
        ("dp=2,tp=2", "single", widths, own),
    ] {
        let found = Case { mesh, combine, formats, act: None, shard, relaxations }.validated();
        assert!(matches!(verdict(&found, "shard"), Verdict::Refined { .. }), "{mesh} {combine}");
        let moved = matches!(verdict(&found, "rank scale"), Verdict::Measured { moved, .. } if *moved > 0);
        assert_eq!(moved, !relaxations.is_empty(), "{mesh} {combine}: {:?}", verdict(&found, "rank scale"));
    }
}

#[test]
fn relaxations_are_measured_and_recorded() {
    for (mesh, combine) in [("tp=4", "library"), ("ep=2,tp=2", "library"), ("tp=4", "engine"), ("tp=4", "single")] {
        for act in [None, Some(DType::F32)] {
            let relaxations: &[&str] = &["rank-round", "wire-bf16"];
            let found = Case { mesh, combine, act, relaxations, ..PLAIN }.validated();
            for pass in ["rank round", "wire bf16"] {
                let (moved, largest) = match verdict(&found, pass) {
                    Verdict::Measured { moved, largest, .. } => (*moved, *largest),
                    Verdict::Unchanged => (0, 0.0),
                    other => panic!("{pass} is relaxed: {other:?}"),
                };
                println!("{mesh} {combine} {act:?} {pass}: {moved} of {} moved, by {largest:e} at most", found.values);
                // `single` rounds once, behind the sum over ranks.
                let idle = pass == "rank round" && combine == "single";
                assert_eq!(moved == 0, idle, "{mesh} {combine} {act:?} {pass}");
            }
        }
    }
}

/// Codes and scales on ranks: nothing but the format's own size, and the same bits on every mesh, experts apart or cut.
#[test]
fn formats_are_measured_and_keep_every_bit_on_a_mesh() {
    for (formats, mesh, combine) in [
        ("cpu-fp8", "tp=2", "single"),
        ("cpu-fp8", "tp=2,ep=2", "library"),
        ("cpu-fp8", "ep=4", "single"),
        ("cpu-nvfp4", "tp=2", "engine"),
        ("cpu-nvfp4", "tp=2,ep=2", "single"),
        ("cpu-f32-kv8", "tp=2", "single"),
    ] {
        let found = Case { mesh, combine, formats, act: None, ..PLAIN }.validated();
        let Verdict::Measured { moved, median, largest } = verdict(&found, "quantise") else {
            panic!("{formats} changes numbers: {:?}", verdict(&found, "quantise"))
        };
        println!("{formats} {mesh}: {moved} of {} moved, {median:e} in the middle, {largest:e} at most", found.values);
        assert!(*moved > 0 && matches!(verdict(&found, "shard"), Verdict::Refined { .. }));
    }
}

#[test]
fn a_rank_s_own_scale_is_measured() {
    for (formats, mesh, combine) in [("cpu-fp8", "tp=2", "single"), ("cpu-fp8", "tp=2,ep=2", "library")] {
        let found = Case { mesh, combine, formats, act: None, relaxations: &["rank-scale"], ..PLAIN }.validated();
        let Verdict::Measured { moved, median, largest } = verdict(&found, "rank scale") else {
            panic!("{:?}", verdict(&found, "rank scale"))
        };
        println!("{mesh} {combine}: {moved} of {} moved, {median:e} in the middle, {largest:e} at most", found.values);
        assert!(*moved > 0);
    }
}

/// One operation of every class of the quantised model, put wrong, is seen although codes round anyway.
#[test]
fn a_wrong_scale_is_no_relaxation() {
    let case = Case { formats: "cpu-nvfp4", mesh: "tp=1", ..PLAIN };
    let (target, mesh) = (case.target(), Mesh::parse("tp=1").expect("a mesh"));
    let model = case.small(&mesh);
    let compile = Compile { target: &target, mesh: &mesh, exact: false, unpack: &[] };
    let flat = passes::to_module(&model).expect("graphs");
    let good = passes::quantise::run(&flat, &compile).expect("codes");
    let trials = Trial::all(&model, &flat, 1).expect("trials");
    let seen = |module: &Module| probed(&model.facts, &flat, module, &trials).expect("a run");
    assert_eq!(seen(&good), None);
    let swapped = |from: &str, to: &str| {
        let (from, to) = (WeightRef::Layer(from.to_owned()), WeightRef::Layer(to.to_owned()));
        let op = |node: &ir::Node| {
            if node.op == Op::Weight(from.clone()) { Op::Weight(to.clone()) } else { node.op.clone() }
        };
        let class = |c: &Class| Class { graph: c.graph.map_ops(op), ..c.clone() };
        let entry = |e: &Entry| Entry { classes: e.classes.iter().map(class).collect(), ..e.clone() };
        good.with_entries(good.entries.iter().map(entry).collect())
    };
    for (from, to) in [
        ("x_gate.scale", "x_up.scale"),
        ("k.scale", "v.scale"),
        ("ffn_down.scale", "o.scale"),
        ("o.input", "q.k.v.gate.input"),
    ] {
        // A number of inputs is taken twice, in blocks and behind the product, and cancels; codes alone say which it was.
        assert_eq!(seen(&swapped(from, to)).is_some(), !from.ends_with(".input"), "{from} for {to}");
    }
}
