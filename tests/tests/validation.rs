//! Validation itself, validated: every pass keeps the full model and random programs bit for bit, and every mechanical
//! change of the model, one at a time, is found.

#[path = "validation/aliases.rs"]
mod aliases;
#[path = "validation/mutants.rs"]
mod mutants;
#[path = "validation/programs.rs"]
mod programs;
#[path = "validation/shrinking.rs"]
mod shrinking;

use ir::{Model, Module};
use mutants::{Fate, Mutant};
use passes::validate::{Place, Program, Record, Shrunk, Small, Trial, Verdict, validate_passes};
use passes::{Compile, Kind, Level, Note, PASSES, Pass, PassError, PassInfo, Refined, Run};
use programs::Case;
use shrinking::Outcome;
use spec::{Choices, Library, check_path};
use std::collections::BTreeMap;
use std::path::Path;
use suites::{Programs, root};
use targets::Target;

fn small_model(spec: &str, target: &Target) -> Shrunk {
    small_model_on(spec, target, &ir::Mesh::single(), None, None)
}

fn small_model_on(
    spec: &str,
    target: &Target,
    mesh: &ir::Mesh,
    combine: Option<&str>,
    act: Option<ir::DType>,
) -> Shrunk {
    let path = root().join("model-spec").join(spec);
    let mut read = |small: &Small| -> Result<Model, String> {
        let mut options: BTreeMap<String, Vec<String>> = target.options_on(mesh).into_iter().collect();
        options.extend(combine.map(|c| ("combine".to_owned(), vec![c.to_owned()])));
        let choices = Choices {
            act: act.or(target.act),
            options,
            dims: small.dims.clone(),
            layers: small.layers.clone(),
            ..Choices::default()
        };
        let checked = check_path(&path, &Library::embedded(), &choices);
        let shown = spec::render(&checked.diagnostics, &checked.sources, false);
        checked.model.ok_or(shown)
    };
    let full = read(&Small::default()).expect("a model");
    passes::shrink(&full, mesh, &mut read).expect("a small model")
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
        // What leaves every operation as it was has nothing to compare; everything else is compared whole.
        let idle = |p: &passes::validate::Validated| p.verdict == Verdict::Unchanged;
        assert!(found.passes.iter().all(|p| p.values == if idle(p) { 0 } else { found.values }), "{found:?}");
        let unchanged: Vec<&str> = found.passes.iter().filter(|p| idle(p)).map(|p| p.pass.name).collect();
        let may_be = |name: &&str| {
            let on_mesh = ["shard", "rank scale", "rank round", "wire bf16"].contains(name);
            // The specs say nothing of quantised weights, and these targets assume none.
            on_mesh
                || ["quantise", "canonicalise", "pack projections", "attach", "fuse rows", "choose layouts"]
                    .contains(name)
        };
        assert!(unchanged.iter().all(may_be) && unchanged.contains(&"choose layouts"), "{unchanged:?}");
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

/// A pass that moves a weight's index by one layer, where the spec says which.
fn lossy(module: &Module, _: &mut Vec<Note>) -> Result<Module, PassError> {
    let found = mutants::all(module).into_iter().find(|m| m.kind == "index");
    Ok(found.expect("a layer index").module)
}

/// A pass that takes logarithms of what may be below -1.
fn spoiling(module: &Module, _: &mut Vec<Note>) -> Result<Module, PassError> {
    let sigmoid = |op: &ir::Op| matches!(op, ir::Op::Unary(ir::Unary::Sigmoid));
    Ok(mutants::replaced(module, &sigmoid, &ir::Op::Unary(ir::Unary::Log1p)))
}

/// A refinement that fixes an order which was not open.
fn overreaching(module: &Module, _: &Compile<'_>) -> Result<Refined, PassError> {
    let found = mutants::all(module).into_iter().find(|m| m.kind == "order" && m.name.contains("Fold to"));
    Ok(Refined { module: found.map_or_else(|| module.clone(), |m| m.module), witness: None })
}

#[test]
fn a_pass_that_breaks_its_word_is_named_with_the_value_and_the_place() {
    let target = Target::load("cpu").expect("a target");
    let model = small_model("beam.toml", &target).model;
    let info = |name, kind| PassInfo { name, level: Level::Graph, kind, why: "a test" };
    let forget = Pass { info: info("forget", Kind::Exact), run: Run::Graph(forgetful) };
    let found = validate_passes(&model, &Compile::one_device(&target), 1, &[PASSES[0], PASSES[1], forget, PASSES[7]])
        .expect("runs");
    let verdicts: Vec<bool> = found.passes.iter().map(|p| p.verdict.holds()).collect();
    assert_eq!(verdicts, [true, true, false, true], "only the pass itself is blamed: {found:?}");
    let Verdict::Differs(difference) = &found.passes[2].verdict else { panic!("{found:?}") };
    let origin = difference.origin.clone().expect("a value");
    assert!(origin.value.starts_with("combine.bs"), "{difference}");
    assert_eq!(origin.place, Place::Layer(0));
    assert!(origin.span.is_some());

    let relaxed = Pass { info: info("relax", Kind::Relaxed("forgotten")), run: Run::Graph(forgetful) };
    let found = validate_passes(&model, &Compile::one_device(&target), 1, &[PASSES[0], relaxed]).expect("runs");
    assert!(matches!(found.passes[1].verdict, Verdict::Measured { moved: 1.., .. }), "{found:?}");

    // A relaxation that does more than round and reorder is named as well, however small its change.
    let relaxes = |run| Pass { info: info("relax", Kind::Relaxed("more")), run: Run::Graph(run) };
    for (run, why) in [(lossy as fn(&Module, &mut Vec<Note>) -> _, "numbers that add exactly"), (spoiling, "infinite")]
    {
        let passes = [PASSES[0], relaxes(run)];
        let found = validate_passes(&model, &Compile::one_device(&target), 1, &passes).expect("runs");
        let shown = match &found.passes[1].verdict {
            Verdict::Differs(difference) => difference.to_string(),
            Verdict::Stopped(why) => why.clone(),
            other => panic!("{other:?}"),
        };
        assert!(shown.contains(why), "{shown}");
    }

    // What sums do in the last bits is lost where everything rounds to bf16.
    let target = Target::load("cpu-f32").expect("a target");
    let model = small_model("beam.toml", &target).model;
    let overreach = Pass { info: info("overreach", Kind::Refines("sums")), run: Run::Refine(overreaching) };
    let found = validate_passes(&model, &Compile::one_device(&target), 1, &[PASSES[0], overreach]).expect("runs");
    assert!(!found.passes[1].verdict.holds(), "{found:?}");
}

/// A pass that keeps the largest of what a row's picks give, on every rank alike, where all were added.
fn selective(module: &Module, _: &mut Vec<Note>) -> Result<Module, PassError> {
    let sum = |op: &ir::Op| matches!(op, ir::Op::Reduce { op: ir::ReduceOp::Sum, axis, .. } if axis == "picked");
    let largest = ir::Op::Reduce { op: ir::ReduceOp::Max, axis: "picked".to_owned(), order: ir::Order::Any };
    Ok(mutants::replaced(module, &sum, &largest))
}

#[test]
fn a_relaxation_that_loses_terms_on_every_rank_alike_is_named() {
    let mut target = Target::load("cpu").expect("a target");
    target.relaxations = vec!["rank-round".to_owned()];
    let on = ir::Mesh::parse("tp=2").expect("a mesh");
    let model = small_model_on("beam.toml", &target, &on, Some("library"), None).model;
    let compile = Compile { target: &target, mesh: &on, exact: false, unpack: &[] };
    let info = PassInfo { name: "lose", level: Level::Sharded, kind: Kind::Relaxed("lose"), why: "a test" };
    let graphs = PASSES.iter().take_while(|p| p.info.name != "wire bf16").copied();
    let passes: Vec<Pass> = graphs.chain([Pass { info, run: Run::Graph(selective) }]).collect();
    let found = validate_passes(&model, &compile, 1, &passes).expect("runs");
    let [.., rounds, loses] = found.passes.as_slice() else { panic!("{found:?}") };
    assert!(matches!(rounds.verdict, Verdict::Measured { moved: 1.., .. }), "{rounds:?}");
    let Verdict::Differs(difference) = &loses.verdict else { panic!("{loses:?}") };
    assert!(difference.compared.starts_with("without roundings"), "{difference}");
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
        let named = survivors.iter().filter(|m| m.kind != "order" || target == "cpu-f32").count();
        assert!(named * 100 < fates.len() * MOST_EQUIVALENT_PERCENT, "{named} of {} survive", fates.len());
        // Everything else that a verifier refuses would be a change that no run has judged.
        assert!(fates.iter().all(|(m, fate)| *fate != Fate::Refused || m.kind == "order"), "refused unjudged");
        assert!(fates.len() > 200, "{} mutants", fates.len());
        assert_eq!(table.contains_key("round"), target == "cpu", "only bf16 rounds");
    }
}

/// A share of mutants that may leave every bit, in percent.
const MOST_EQUIVALENT_PERCENT: usize = 3;

/// A mesh, how expert outputs are combined, and placements in place of the spec's.
type OnMesh = (&'static str, &'static str, &'static [(&'static str, &'static [&'static str])]);

/// Rows over `dp`, and weights over it too, so that ranks exchange rows.
const ROWS: &[(&str, &[&str])] = &[("T", &["dp"]), ("ffn", &["dp", "tp"])];

/// Orders of sums over ranks that leave every bit, and why.
const ONE_ORDER: &[(&str, &str)] = &[
    ("first %18 x: sum over ranks, ", "one rank has the row, the others -0"),
    ("tp=2,ep=2 engine sliding.sparse %115 towards sparse.y: ", "two of four ranks have the expert, the others -0"),
    ("tp=2,ep=2 engine full.sparse %97 towards sparse.y: ", "two of four ranks have the expert, the others -0"),
];

#[test]
fn wrong_exchanges_are_found() {
    let target = Target::load("cpu").expect("a target");
    let cases: [OnMesh; 6] = [
        ("tp=2", "single", &[]),
        ("ep=2", "library", &[]),
        ("tp=2,ep=2", "engine", &[]),
        ("tp=2,ep=2", "single", &[]),
        ("dp=2,tp=4", "single", ROWS),
        ("dp=2,tp=2", "library", ROWS),
    ];
    // By kind: found by bits, by a verifier or a run that stops, and those that survive.
    let mut table: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    let mut survive = Vec::new();
    for (mesh, combine, shard) in cases {
        let on = ir::Mesh::parse(mesh).expect("a mesh");
        let mut model = small_model_on("beam.toml", &target, &on, Some(combine), Some(ir::DType::F32)).model;
        for (axis, over) in shard {
            model.facts.shard.insert((*axis).to_owned(), over.iter().map(|a| (*a).to_owned()).collect());
        }
        let compile = Compile { target: &target, mesh: &on, exact: true, unpack: &[] };
        let flat = passes::to_module(&model).expect("graphs");
        let module = passes::refine(&flat, &compile).expect("a sharded level");
        let trials = Trial::all(&model, &flat, 1).expect("trials");
        let truth: Vec<Record> = trials.iter().map(|t| t.record(Program::Module(&module)).expect("runs")).collect();
        for mutant in mutants::exchanges(&module) {
            let verified = ir::verify_module(&mutant.module).is_ok();
            let program = Program::Module(&mutant.module);
            // Ranks that do not agree about what they share are found as well.
            let run = |(t, record): (&Trial, &Record)| t.agrees(program, record);
            let fates = || trials.iter().zip(&truth).map(run).collect::<Result<Vec<bool>, _>>();
            let fate = match verified.then(fates) {
                Some(Ok(same)) if same.iter().all(|same| *same) => Fate::Survives,
                Some(Ok(_)) => Fate::Differs,
                Some(Err(_)) | None => Fate::Refused,
            };
            table.entry(mutant.kind).or_default()[fate as usize] += 1;
            if fate == Fate::Survives {
                let name = format!("{mesh} {combine} {}", mutant.name);
                match ONE_ORDER.iter().find(|(part, _)| mutant.kind == "order" && name.contains(part)) {
                    Some((_, why)) => println!("survives: {name}, {why}"),
                    None => survive.push(name),
                }
            }
            // A probe sees all that is no order, and no order. A sum taken twice is a factor of all, which a norm behind it takes
            // out but for what guards its root, and that is too small beside a probe's numbers.
            if fate == Fate::Differs && !mutant.name.ends_with("taken twice") {
                let seen = passes::validate::probed(&model.facts, &module, &mutant.module, &trials);
                assert_eq!(seen != Ok(None), mutant.kind != "order", "{mesh} {combine} {}: {seen:?}", mutant.name);
            }
        }
    }
    for (kind, [differs, refused, survives]) in &table {
        println!("{kind:10} bits differ {differs:4}, refused {refused:3}, survive {survives:3}");
    }
    assert!(survive.is_empty(), "{survive:#?}");
    let total: usize = table.values().flatten().sum();
    assert!(total > 100 && table.contains_key("order"), "{table:?}");
}

#[test]
fn live_values_in_one_place_are_found() {
    for (target, mesh) in [("cpu", "tp=1"), ("h200-bf16", "tp=2")] {
        let mut target = Target::load(target).expect("a target");
        let last = target.buckets.pop();
        target.buckets.truncate(1);
        target.buckets.extend(last);
        let on = ir::Mesh::parse(mesh).expect("a mesh");
        let model = small_model_on("beam.toml", &target, &on, None, None).model;
        let compile = Compile { target: &target, mesh: &on, exact: true, unpack: &[] };
        let stages = passes::Stages::compile(model, &compile).expect("a plan");
        let (mut count, mut verifier, mut checker) = (0, 0, 0);
        let mut survive = Vec::new();
        aliases::all(&stages.kernels, &stages.plan, &mut |alias| {
            count += 1;
            let verified = ir::verify_plan(&alias.plan, &stages.kernels).is_ok();
            let walked = passes::check_plan::check(&alias.plan, &stages.kernels).is_ok();
            verifier += usize::from(!verified);
            checker += usize::from(!walked);
            if verified && walked {
                survive.push(alias.name);
            }
        });
        println!("{:10} {count} pairs of live values in one place: verifier {verifier}, walk {checker}", target.name);
        assert!(survive.is_empty(), "{survive:#?}");
        // Each of the two sees all by itself.
        assert_eq!((verifier, checker), (count, count), "{}", target.name);
        assert!(count > 150, "{count}");
    }
}

/// How many random programs are tried: `BEAM_PROGRAMS`, or 2,000, or 200 without optimisation.
fn programs_wanted() -> u64 {
    let few = if cfg!(debug_assertions) { 200 } else { 2000 };
    std::env::var("BEAM_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(few)
}

/// What random programs came to.
#[derive(Default)]
struct Tally {
    values: u64,
    not_finite: u64,
    refused: u64,
    meshes: BTreeMap<String, u64>,
    moved: u64,
}

/// Runs one case; a case that fails is made small, written down and told.
fn tried(seed: u64, tally: &mut Tally) -> Result<(), String> {
    let case = Case::new(seed);
    match shrinking::run(&case, &PASSES) {
        Outcome::Holds(found) => {
            tally.values += found.values;
            tally.not_finite += found.not_finite;
            *tally.meshes.entry(case.mesh().to_string()).or_default() += 1;
            let moved = |p: &passes::validate::Validated| matches!(p.verdict, Verdict::Refined { moved: 1.. });
            tally.moved += u64::from(found.passes.iter().any(moved));
            Ok(())
        }
        Outcome::Refused => {
            tally.refused += 1;
            Ok(())
        }
        Outcome::NoSpec(shown) => Err(format!("seed {seed} is no spec\n{}\n{shown}", case.text)),
        Outcome::Fails { what, detail } => {
            let small = shrinking::shrink(&case, &|c| shrinking::fault(c, &PASSES));
            let path = shrinking::write(&small, Path::new(env!("CARGO_TARGET_TMPDIR"))).expect("a file");
            let path = path.display().to_string();
            Err(format!("seed {seed}: {what}: {detail}\nmade small: {path}\n{}", small.command(&path)))
        }
    }
}

#[test]
fn every_pass_keeps_random_programs() {
    let wanted = programs_wanted();
    let workers = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let run = |start: usize| {
        let mut tally = Tally::default();
        let failed: Vec<String> =
            (start as u64..wanted).step_by(workers).filter_map(|seed| tried(seed, &mut tally).err()).take(3).collect();
        (tally, failed)
    };
    let shares: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|start| scope.spawn(move || run(start))).collect();
        running.into_iter().map(|w| w.join().expect("a worker")).collect()
    });
    let mut all = Tally::default();
    let mut failed = Vec::new();
    for (tally, more) in shares {
        all.values += tally.values;
        all.not_finite += tally.not_finite;
        all.refused += tally.refused;
        all.moved += tally.moved;
        for (mesh, n) in tally.meshes {
            *all.meshes.entry(mesh).or_default() += n;
        }
        failed.extend(more);
    }
    println!(
        "{wanted} programs, {} numbers a level, {} not finite, {} refused, sums moved in {}, meshes {:?}",
        all.values, all.not_finite, all.refused, all.moved, all.meshes
    );
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    assert!(all.not_finite * 20 < all.values, "{} of {} numbers say little", all.not_finite, all.values);
    assert!(all.refused * 20 < wanted, "{} of {wanted} cannot lie on their mesh", all.refused);
    assert!(all.meshes.len() > 5 && all.moved > 0, "{:?}", all.meshes);
}

/// A pass that takes every maximum for a minimum.
fn confused(module: &Module, _: &mut Vec<Note>) -> Result<Module, PassError> {
    Ok(mutants::replaced(module, &|op| matches!(op, ir::Op::Binary(ir::Binary::Max)), &ir::Op::Binary(ir::Binary::Min)))
}

#[test]
fn a_program_that_fails_is_made_small_and_written_down() {
    let info = PassInfo { name: "confuse", level: Level::Graph, kind: Kind::Exact, why: "a test" };
    let confuse = Pass { info, run: Run::Graph(confused) };
    let mut passes = PASSES.to_vec();
    passes.insert(2, confuse);
    let fault = |case: &Case| shrinking::fault(case, &passes);
    // Of cases on several ranks the first in which the pass shows.
    let mut cases = (0..500).map(Case::new).filter(|c| c.mesh().ranks() > 1);
    let case = cases.find(|c| fault(c).as_deref() == Some("confuse")).expect("a maximum");
    let small = shrinking::shrink(&case, &fault);
    assert_eq!(fault(&small).as_deref(), Some("confuse"));
    assert_eq!((small.mesh.len(), small.target), (0, "cpu"), "{small:?}");
    // A clamp is a maximum and a minimum.
    let maximum = small.text.contains("max(") || small.text.contains("clamp(");
    assert!(maximum && small.text.contains("layers = 1\n"), "{}", small.text);
    let (before, after) = (case.text.lines().count(), small.text.lines().count());
    println!("{before} lines become {after}:\n{}", small.text);
    assert!(after * 2 < before && after < 40, "{before} to {after}\n{}", small.text);

    let folder = tempfile::tempdir().expect("a folder");
    let path = shrinking::write(&small, folder.path()).expect("a file");
    let text = std::fs::read_to_string(&path).expect("a file");
    let command = small.command(&path.display().to_string());
    assert!(
        text.starts_with(&format!("# {command}\n")) && command.contains(" --target cpu --option mode="),
        "{command}"
    );
    let written = Case { text, ..small };
    assert_eq!(fault(&written).as_deref(), Some("confuse"), "the file fails as the case does");
    assert!(matches!(shrinking::run(&written, &PASSES), Outcome::Holds(_)), "without the pass it holds");
}
