//! Hunts the engine's mutants: `cargo run --release -p suites --bin mutants [--list] [FROM [TO]]`.
//!
//! Every mutant must be caught by the simulation of the seeds that the engine's own test runs (a broken invariant, a wrong
//! answer, a panic, no end, or other sums than that test expects), or stand in `tests/equivalent-mutants.txt` with the
//! reason why nobody could tell it from the engine.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use suites::mutate::{Mutant, equivalent, mutants, write};

/// Seeds and actions of the hunt: those of the engine's own test.
const SEEDS: &str = "400";
const ACTIONS: &str = "150";
/// How long a mutant may run; the engine itself takes a fraction of it.
const PATIENCE: Duration = Duration::from_secs(60);
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

fn hunt() -> Result<bool, String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|a| a == "--list") {
        mutants()?.0.iter().enumerate().for_each(|(id, mutant)| println!("{id} {}", mutant.name()));
        return Ok(true);
    }
    let number = |i: usize, usual: usize| args.get(i).map_or(Ok(usual), |a| a.parse().map_err(|e| format!("{a}: {e}")));
    let place = suites::root().join("target/mutants");
    let all = write(&place.join("engine"))?;
    let program = build(&place)?;
    let reasons = equivalent()?;
    let (mut caught, mut listed, mut survivors) = (0, 0, Vec::new());
    let Some(sound) = run(&program, usize::MAX)? else {
        return Err("the engine without a mutant does not pass its own simulation".to_owned());
    };
    for (id, mutant) in all.iter().enumerate().take(number(1, usize::MAX)?).skip(number(0, 0)?) {
        if reasons.contains_key(&mutant.name()) {
            listed += 1;
        } else if run(&program, id)?.as_ref() == Some(&sound) {
            println!("{id} lives: {}", mutant.name());
            survivors.push(id);
        } else {
            caught += 1;
        }
    }
    println!("{caught} caught, {listed} listed as equivalent, {} alive: {survivors:?}", survivors.len());
    let unknown = stale(&all, &reasons);
    unknown.iter().for_each(|name| println!("no such mutant any more: {name}"));
    Ok(survivors.is_empty() && unknown.is_empty())
}

fn stale(all: &[Mutant], reasons: &BTreeMap<String, String>) -> Vec<String> {
    let names: Vec<String> = all.iter().map(Mutant::name).collect();
    reasons.keys().filter(|name| !names.contains(name)).cloned().collect()
}

fn build(place: &Path) -> Result<std::path::PathBuf, String> {
    let target = place.join("build");
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(place.join("engine")).args(["build", "--release", "--quiet", "--example", "simulate"]);
    command.args(["--features", "toy", "--target-dir"]).arg(&target).env("RUSTFLAGS", "-A warnings");
    match command.status() {
        Ok(status) if status.success() => Ok(target.join("release/examples/simulate")),
        other => Err(format!("the mutants do not build: {other:?}")),
    }
}

/// What the simulation counts in the end with this mutant; `None` if it does not hold.
fn run(program: &Path, mutant: usize) -> Result<Option<String>, String> {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -v {MEMORY_KB}; exec \"$0\" {SEEDS} {ACTIONS} 0 --as-it-is")]).arg(program);
    command.env("ENGINE_MUTANT", mutant.to_string()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|e| format!("{}: {e}", program.display()))?;
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            let output = child.wait_with_output().map_err(|e| e.to_string())?;
            let text = String::from_utf8_lossy(&output.stdout);
            return Ok(text.lines().last().filter(|_| status.success()).map(str::to_owned));
        }
        if begun.elapsed() > PATIENCE {
            child.kill().and_then(|()| child.wait()).map_err(|e| e.to_string())?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
