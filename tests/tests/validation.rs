//! Validation itself, validated: every pass keeps the full model and random programs bit for bit, and every mechanical
//! change of the model, one at a time, is found.

#[path = "validation/mutants.rs"]
mod mutants;
#[path = "validation/programs.rs"]
mod programs;

use ir::{Model, Module};
use mutants::{Fate, Mutant};
use passes::validate::{Place, Program, Record, Shrunk, Small, Trial, Verdict, validate_passes};
use passes::{Compile, Kind, Level, Note, PASSES, Pass, PassError, PassInfo, Run};
use spec::{Choices, Library, check_path};
use std::collections::BTreeMap;
use suites::{Programs, root};
use targets::Target;

fn small_model(spec: &str, target: &Target) -> Shrunk {
    let path = root().join("model-spec").join(spec);
    let mut read = |small: &Small| -> Result<Model, String> {
        let options = target.options_on(&ir::Mesh::single()).into_iter().collect();
        let choices = Choices { act: target.act, options, dims: small.dims.clone(), layers: small.layers.clone() };
        let checked = check_path(&path, &Library::embedded(), &choices);
        let shown = spec::render(&checked.diagnostics, &checked.sources, false);
        checked.model.ok_or(shown)
    };
    let full = read(&Small::default()).expect("a model");
    passes::shrink(&full, &ir::Mesh::single(), &mut read).expect("a small model")
}

#[test]
fn every_pass_keeps_the_full_model() {
    for (spec, target) in [("beam.toml", "cpu"), ("beam.toml", "cpu-f32"), ("beam-nano.toml", "cpu")] {
        let target = Target::load(target).expect("a target");
        let shrunk = small_model(spec, &target);
        assert_eq!(shrunk.kept, []);
        let found = passes::validate(&shrunk.model, &Compile::one_device(&target), 3).expect("a model that runs");
        assert!(found.holds(), "{found:?}");
        assert!(found.values > 10_000 && found.not_finite == 0, "{found:?}");
        assert_eq!(found.passes.len(), PASSES.len());
        assert!(found.passes.iter().all(|p| p.values == found.values || p.verdict == Verdict::NotRun));
    }
}

#[test]
fn the_commands_say_so() {
    let programs = Programs::built();
    let done = programs.beamc(&["verify", "model-spec/beam.toml", "--target", "cpu", "--seeds", "1"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.out.contains("rotate the seam") && !done.out.contains("DIFFER"), "{}", done.out);
    let done = programs.beamc(&["verify", "model-spec/beam.toml", "--target", "cpu", "--seeds", "1", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&done.out).expect("JSON");
    assert_eq!(json["ok"], true);
    let runs = json["runs"].as_array().expect("runs");
    assert_eq!(runs.iter().map(|r| r["act"].as_str()).collect::<Vec<_>>(), [Some("bf16"), Some("f32")]);
    assert!(runs.iter().all(|r| r["passes"].as_array().map(Vec::len) == Some(PASSES.len())));
    let folder = tempfile::tempdir().expect("a folder");
    let artifact = folder.path().join("artifact").display().to_string();
    let done = programs.beamc(&["compile", "model-spec/beam-nano.toml", "--target", "cpu", "-o", &artifact, "--check"]);
    assert_eq!(done.code, 0, "{}", done.err);
}

/// A pass that forgets a rounding.
fn forgetful(module: &Module, _: &mut Vec<Note>) -> Result<Module, PassError> {
    let found = mutants::all(module);
    let forgotten = found.into_iter().find(|m| m.kind == "round" && m.name.contains("combine.bs"));
    Ok(forgotten.map_or_else(|| module.clone(), |m| m.module))
}

/// A refinement that fixes an order which was not open.
fn overreaching(module: &Module, _: &Target) -> Result<Module, PassError> {
    let found = mutants::all(module);
    Ok(found.into_iter().find(|m| m.kind == "order").map_or_else(|| module.clone(), |m| m.module))
}

#[test]
fn a_pass_that_breaks_its_word_is_named_with_the_value_and_the_place() {
    let target = Target::load("cpu").expect("a target");
    let model = small_model("beam.toml", &target).model;
    let info = |name, kind| PassInfo { name, level: Level::Graph, kind, why: "a test" };
    let forget = Pass { info: info("forget", Kind::Exact), run: Run::Graph(forgetful) };
    let found = validate_passes(&model, &target, 1, &[PASSES[0], PASSES[1], forget, PASSES[5]]).expect("runs");
    let verdicts: Vec<bool> = found.passes.iter().map(|p| p.verdict.holds()).collect();
    assert_eq!(verdicts, [true, true, false, true], "only the pass itself is blamed: {found:?}");
    let Verdict::Differs(difference) = &found.passes[2].verdict else { panic!("{found:?}") };
    let origin = difference.origin.clone().expect("a value");
    assert!(origin.value.starts_with("combine.bs"), "{difference}");
    assert_eq!(origin.place, Place::Layer(0));
    assert!(origin.span.is_some());

    let relaxed = Pass { info: info("relax", Kind::Relaxed("forgotten")), run: Run::Graph(forgetful) };
    let found = validate_passes(&model, &target, 1, &[PASSES[0], relaxed]).expect("runs");
    assert!(matches!(found.passes[1].verdict, Verdict::Measured { moved: 1.., .. }), "{found:?}");

    // What sums do in the last bits is lost where everything rounds to bf16.
    let target = Target::load("cpu-f32").expect("a target");
    let model = small_model("beam.toml", &target).model;
    let overreach = Pass { info: info("overreach", Kind::Refines("sums")), run: Run::Refine(overreaching) };
    let found = validate_passes(&model, &target, 1, &[PASSES[0], overreach]).expect("runs");
    assert!(!found.passes[1].verdict.holds(), "{found:?}");
}

/// Mutants that leave every bit, and why no run could tell.
const EQUIVALENT: &[(&str, &str)] = &[
    ("sum over 2,", "two terms have one order"),
    ("literal 1e-20", "a guard of a quotient whose other term is never below 1e-13 here"),
];

/// Runs every mutant of the graph level; gives its fate.
fn fates(target: &str) -> Vec<(Mutant, Fate)> {
    let target = Target::load(target).expect("a target");
    let model = small_model("beam.toml", &target).model;
    let module =
        passes::refine(&passes::to_module(&model).expect("graphs"), &Compile::one_device(&target)).expect("graphs");
    let trials = Trial::all(&model, &module, 3).expect("trials");
    let truth: Vec<Record> = trials.iter().map(|t| t.record(Program::Module(&module)).expect("runs")).collect();
    let judge = |mutant: &Mutant| {
        if ir::verify_module(&mutant.module).is_err() {
            return Fate::Refused;
        }
        for (trial, record) in trials.iter().zip(&truth) {
            match trial.agrees(Program::Module(&mutant.module), record) {
                Ok(true) => {}
                Ok(false) => return Fate::Differs,
                Err(_) => return Fate::Refused,
            }
        }
        Fate::Survives
    };
    let all = mutants::all(&module);
    let half = all.len().div_ceil(2);
    let halves: Vec<Vec<Fate>> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            all.chunks(half).map(|part| scope.spawn(move || part.iter().map(judge).collect::<Vec<_>>())).collect();
        workers.into_iter().map(|w| w.join().expect("a worker")).collect()
    });
    let fates: Vec<Fate> = halves.into_iter().flatten().collect();
    all.into_iter().zip(fates).collect()
}

#[test]
fn mutants_of_the_full_model_are_found() {
    for target in ["cpu", "cpu-f32"] {
        let fates = fates(target);
        let mut table: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
        for (mutant, fate) in &fates {
            table.entry(mutant.kind).or_default()[*fate as usize] += 1;
        }
        for (kind, [differs, refused, survives]) in &table {
            println!("{target:8} {kind:10} bits differ {differs:4}, refused {refused:3}, survive {survives:3}");
        }
        let survivors: Vec<&Mutant> =
            fates.iter().filter(|(_, fate)| *fate == Fate::Survives).map(|(mutant, _)| mutant).collect();
        // The last bits of sums show where nothing rounds them away: orders are judged in f32.
        let judged = survivors.iter().filter(|m| m.kind != "order" || target == "cpu-f32");
        let mut unexplained = Vec::new();
        for mutant in judged {
            match EQUIVALENT.iter().find(|(part, _)| mutant.name.contains(part)) {
                Some((_, why)) => println!("{target:8} survives: {}, {why}", mutant.name),
                None => unexplained.push(mutant.name.as_str()),
            }
        }
        println!("{target:8} {} mutants, {} survive", fates.len(), survivors.len());
        assert!(unexplained.is_empty(), "{unexplained:#?}");
        // Everything else that a verifier refuses would be a change that no run has judged.
        assert!(fates.iter().all(|(m, fate)| *fate != Fate::Refused || m.kind == "order"), "refused unjudged");
        assert!(fates.len() > 200, "{} mutants", fates.len());
        assert_eq!(table.contains_key("round"), target == "cpu", "only bf16 rounds");
    }
}

/// How many random programs are tried: `BEAM_PROGRAMS`, or 200.
fn programs_wanted() -> u64 {
    std::env::var("BEAM_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(200)
}

#[test]
fn every_pass_keeps_random_programs() {
    let target = Target::load("cpu").expect("a target");
    let (mut values, mut not_finite, mut rotated) = (0, 0, 0);
    for seed in 0..programs_wanted() {
        let text = programs::spec(seed);
        let act = (seed % 2 == 1).then_some(ir::DType::F32);
        let mode = if seed % 4 < 2 { "one" } else { "two" };
        let options = [("mode".to_owned(), vec![mode.to_owned()])].into();
        let choices = Choices { act, options, ..Choices::default() };
        let checked = spec::check_text("random.toml", &text, &Library::embedded(), &choices);
        let shown = spec::render(&checked.diagnostics, &checked.sources, false);
        let model = checked.model.unwrap_or_else(|| panic!("seed {seed}\n{text}\n{shown}"));
        let found = passes::validate(&model, &Compile::one_device(&target), 1)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
        assert!(found.holds(), "seed {seed}: {found:#?}\n{text}");
        values += found.values;
        not_finite += found.not_finite;
        rotated += u64::from(passes::lower(&model).is_ok_and(|l| l.notes.is_empty()));
    }
    println!("{} programs, {values} numbers a level, {not_finite} not finite, {rotated} rotated", programs_wanted());
    assert!(not_finite * 20 < values, "{not_finite} of {values} numbers say little");
    assert!(rotated > 0 && rotated < programs_wanted(), "{rotated} seams");
}
