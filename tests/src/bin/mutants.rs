//! Hunts the engine's mutants: `cargo run --release -p suites --bin mutants [--list | --build | --program FILE] [FROM [TO]]`. `--build` builds the
//! tests with all switches and says where they are; with `--program` they hunt where there is no compiler.
//!
//! Every mutant must be caught by the engine's own unit tests, the simulation of 400 seeds among them (a broken invariant, a
//! wrong answer, a panic, no end, or other sums than expected), or stand in `tests/equivalent-mutants.txt` with the reason why
//! nobody could tell it from the engine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use suites::mutate::{Mutant, equivalent, mutants, write};

/// Tests in the order in which mutants meet them: a few seeds, which catch most, all that is quick, and the other seeds.
const STAGES: [&[&str]; 3] = [&["the_first_seeds_hold"], &["--skip", "seeds_hold"], &["seeds_hold_every_invariant"]];
/// A mutant that has taken so many times the processor time of the engine, and some seconds more, finds no end.
const PATIENCE: u64 = 4;
const PATIENCE_SECONDS: u64 = 2;
/// Processor time of the engine itself, at most, in seconds.
const SOUND_SECONDS: u64 = 600;
/// Memory of a mutant that runs away, in kilobytes.
const MEMORY_KB: u64 = 3_000_000;

fn main() -> ExitCode {
    match hunt() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

/// Tests, and the processor time that a mutant may take for them.
struct Stage {
    tests: &'static [&'static str],
    patience_seconds: u64,
}

fn hunt() -> Result<bool, String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|a| a == flag);
    if has("--list") {
        mutants()?.0.iter().enumerate().for_each(|(id, mutant)| println!("{id} {}", mutant.name()));
        return Ok(true);
    }
    let place = suites::root().join("target/mutants");
    let given = args.iter().position(|a| a == "--program").map(|at| at + 1);
    let program = match given {
        Some(at) => PathBuf::from(args.get(at).ok_or("`--program` names no file")?),
        None => {
            write(&place.join("engine"))?;
            build(&place)?
        }
    };
    if has("--build") {
        println!("{}", program.display());
        return Ok(true);
    }
    let numbers: Vec<&String> =
        args.iter().enumerate().filter(|(at, a)| Some(*at) != given && !a.starts_with("--")).map(|(_, a)| a).collect();
    let number = |i: usize, usual| numbers.get(i).map_or(Ok(usual), |a| a.parse().map_err(|e| format!("{a}: {e}")));
    let (from, to) = (number(0, 0)?, number(1, usize::MAX)?);
    let (all, reasons) = (mutants()?.0, equivalent()?);
    let stages = STAGES.iter().map(|tests| stage(&program, tests)).collect::<Result<Vec<_>, _>>()?;
    let listed = |id: &usize| all.get(*id).is_some_and(|mutant| reasons.contains_key(&mutant.name()));
    let (known, hunted): (Vec<usize>, Vec<usize>) = (from..to.min(all.len())).partition(listed);
    let (next, mut survivors) = (AtomicUsize::new(0), Vec::new());
    let hunter = || -> Result<Vec<usize>, String> {
        let mut alive = Vec::new();
        while let Some(id) = hunted.get(next.fetch_add(1, Ordering::Relaxed)) {
            if lives(&program, *id, &stages)? {
                println!("{id} lives: {}", all.get(*id).map(Mutant::name).unwrap_or_default());
                alive.push(*id);
            }
        }
        Ok(alive)
    };
    let hunters = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let found: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..hunters).map(|_| scope.spawn(hunter)).collect();
        running.into_iter().map(|hunter| hunter.join().map_err(|_| "a hunter has died".to_owned())).collect()
    });
    for alive in found {
        survivors.extend(alive??);
    }
    survivors.sort_unstable();
    let (caught, listed) = (hunted.len() - survivors.len(), known.len());
    println!("{caught} caught, {listed} listed as equivalent, {} alive: {survivors:?}", survivors.len());
    let unknown = stale(&all, &reasons);
    unknown.iter().for_each(|name| println!("no such mutant any more: {name}"));
    Ok(survivors.is_empty() && unknown.is_empty())
}

/// Runs tests on the engine without a mutant.
fn stage(program: &Path, tests: &'static [&'static str]) -> Result<Stage, String> {
    let begun = Instant::now();
    if !holds(program, usize::MAX, &Stage { tests, patience_seconds: SOUND_SECONDS })? {
        return Err(format!("the engine without a mutant does not pass its own tests ({})", tests.join(" ")));
    }
    Ok(Stage { tests, patience_seconds: begun.elapsed().as_secs() * PATIENCE + PATIENCE_SECONDS })
}

/// Whether no test tells a mutant from the engine.
fn lives(program: &Path, mutant: usize, stages: &[Stage]) -> Result<bool, String> {
    for stage in stages {
        if !holds(program, mutant, stage)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn stale(all: &[Mutant], reasons: &BTreeMap<String, String>) -> Vec<String> {
    let names: Vec<String> = all.iter().map(Mutant::name).collect();
    reasons.keys().filter(|name| !names.contains(name)).cloned().collect()
}

/// Builds the copy's unit tests.
fn build(place: &Path) -> Result<PathBuf, String> {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(place.join("engine")).args(["test", "--release", "--quiet", "--lib", "--no-run"]);
    command.args(["--message-format", "json", "--target-dir"]).arg(place.join("build")).env("RUSTFLAGS", "-A warnings");
    let output = command.stderr(Stdio::inherit()).output().map_err(|e| format!("cargo: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut messages = text.lines().rev().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let program = messages.find_map(|m| Some(PathBuf::from(m["executable"].as_str()?)));
    program.filter(|_| output.status.success()).ok_or_else(|| format!("the mutants do not build: {}", output.status))
}

/// Whether a mutant passes the tests of a stage.
fn holds(program: &Path, mutant: usize, stage: &Stage) -> Result<bool, String> {
    let mut command = Command::new("sh");
    let bounds = format!("ulimit -v {MEMORY_KB}; ulimit -t {}; exec \"$0\" \"$@\"", stage.patience_seconds);
    command.args(["-c", &bounds]).arg(program).args(stage.tests).args(["--test-threads", "1"]);
    command.env("ENGINE_MUTANT", mutant.to_string()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command.status().map_err(|e| format!("{}: {e}", program.display()))?.success())
}
