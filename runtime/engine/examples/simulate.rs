//! Runs the deterministic harness for longer than the tests do: `simulate SEEDS ACTIONS [FIRST]` runs seeds, `simulate FILE`
//! a script that a failing seed has printed. With `--as-it-is` a failing script is not shortened.

use engine::harness::{Outcome, Script, run, try_seed};
use std::process::ExitCode;
use std::time::Instant;

/// Seeds between two lines about how far it is.
const SEEDS_A_LINE: u64 = 250;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| args.get(i).and_then(|a| a.parse::<u64>().ok());
    let is_short = !args.iter().any(|a| a == "--as-it-is");
    let result = match (args.first(), number(0)) {
        (Some(file), None) => std::fs::read_to_string(file)
            .map_err(|e| format!("{file}: {e}"))
            .and_then(|text| Script::parse(&text))
            .and_then(|script| run(&script)),
        (_, seeds) => {
            let (seeds, actions, first) = (seeds.unwrap_or(1000), number(1).unwrap_or(1000), number(2).unwrap_or(0));
            seeds_of(first..first.saturating_add(seeds), actions as usize, is_short)
        }
    };
    match result {
        Ok(outcome) => {
            println!("{outcome:?}");
            ExitCode::SUCCESS
        }
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn seeds_of(seeds: std::ops::Range<u64>, actions: usize, is_short: bool) -> Result<Outcome, String> {
    let (mut sum, begun, first) = (Outcome::default(), Instant::now(), seeds.start);
    for seed in seeds {
        if seed > first && (seed - first).is_multiple_of(SEEDS_A_LINE) {
            println!("seeds {first} to {seed}: {} steps, {:.0} s", sum.steps, begun.elapsed().as_secs_f64());
        }
        let outcome = match is_short {
            true => try_seed(seed, actions)?,
            false => run(&Script::from_seed(seed, actions)).map_err(|e| format!("seed {seed}: {e}"))?,
        };
        sum.add(&outcome);
    }
    Ok(sum)
}
