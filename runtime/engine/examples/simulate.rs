//! Runs the deterministic harness for longer than the tests do: `simulate SEEDS ACTIONS [FIRST]` runs seeds, `simulate FILE`
//! a script that a failing seed has printed.

use engine::harness::{Outcome, Script, run, try_seed};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| args.get(i).and_then(|a| a.parse::<u64>().ok());
    let result = match (args.first(), number(0)) {
        (Some(file), None) => std::fs::read_to_string(file)
            .map_err(|e| format!("{file}: {e}"))
            .and_then(|text| Script::parse(&text))
            .and_then(|script| run(&script)),
        (_, seeds) => seeds_of(seeds.unwrap_or(1000), number(1).unwrap_or(1000) as usize, number(2).unwrap_or(0)),
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

fn seeds_of(seeds: u64, actions: usize, first: u64) -> Result<Outcome, String> {
    let mut sum = Outcome::default();
    for seed in first..first + seeds {
        sum.add(&try_seed(seed, actions)?);
    }
    Ok(sum)
}
