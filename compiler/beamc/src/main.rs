//! `beamc`: compiles specs to artifacts and shows what it did. Needs no accelerator and reads no weight.

mod account;
mod args;
mod artifact_report;
mod check;
mod compile;
mod diff;
mod doctor;
mod draft_report;
mod drafter;
mod explain;
mod failure;
mod input;
mod kernels;
mod list_targets;
mod missing;
mod outputs;
mod report_page;
mod show;
mod stored;
mod unmet;
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
        Command::Report(a) => report_page::report(&a),
        Command::Import(a) => show::import(&a),
        Command::Targets(a) => list_targets::targets(&a),
        Command::Explain(a) => explain::explain(&a),
        Command::Doctor(a) => doctor::doctor(&a),
        Command::NvrtcWorker => kernels::worker(),
    };
    match outcome {
        Ok(text) => {
            let mut out = std::io::stdout();
            match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
                // A closed pipe is the reader's decision, not a fault.
                Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
                    let failure = failure::Failure::output("C0003", format!("the output cannot be written: {e}"));
                    failure.print(false);
                    ExitCode::from(failure.exit)
                }
                _ => ExitCode::SUCCESS,
            }
        }
        Err(failure) => {
            // The flag is read again here, since every command has it and a failure may come before any is read.
            failure.print(std::env::args().any(|a| a == "--json"));
            ExitCode::from(failure.exit)
        }
    }
}
