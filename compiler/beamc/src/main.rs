//! `beamc`: compiles specs to artifacts and shows what it did. Needs no accelerator and reads no weight.

mod args;
mod artifact_report;
mod check;
mod compile;
mod diff;
mod doctor;
mod explain;
mod failure;
mod input;
mod show;
mod verify;

use args::{Cli, Command};
use clap::Parser;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.command {
        Command::Check(a) => check::check(&a),
        Command::Compile(a) => compile::compile(&a),
        Command::Dump(a) => show::dump(&a),
        Command::Diff(a) => diff::diff(&a),
        Command::Verify(a) => verify::verify(&a),
        Command::Report(a) => artifact_report::report(&a),
        Command::Import(a) => show::import(&a),
        Command::Targets(a) => explain::targets(&a),
        Command::Explain(a) => explain::explain(&a),
        Command::Doctor(a) => doctor::doctor(&a),
    };
    match outcome {
        Ok(text) => {
            // A closed pipe is the reader's decision, not a fault.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(failure) => {
            // The flag is read again here, since every command has it and a failure may come before any is read.
            failure.print(std::env::args().any(|a| a == "--json"));
            ExitCode::from(failure.exit)
        }
    }
}
