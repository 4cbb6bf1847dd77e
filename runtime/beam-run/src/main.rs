//! `beam-run`: runs artifacts. Ties loader, executor, engine, text and server together and holds no logic of theirs.

mod args;
mod bench;
mod doctor;
mod drafts;
mod failure;
mod feed;
mod flags;
mod generate;
mod grammar;
mod model;
mod outputs;
mod parse;
mod quantise;
mod score;
mod selftest;
mod serve;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    // A defect of ours is told in one line; a backtrace helps nobody who did not ask for it.
    if std::env::var_os("RUST_BACKTRACE").is_none() {
        std::panic::set_hook(Box::new(|info| eprintln!("a defect of beam-run, please report it: {info}")));
    }
    let cli = Cli::parse();
    let (json, outcome) = match &cli.command {
        Command::Serve(a) => (a.json, a.model.supported().and_then(|()| serve::serve(a))),
        Command::Generate(a) => {
            (a.json, a.model.supported().and_then(|()| a.model.whole()).and_then(|()| generate::generate(a)))
        }
        Command::Score(a) => {
            let fits = a.model.supported().and_then(|()| a.model.whole()).and_then(|()| a.model.weights_alone("score"));
            (a.json, fits.and_then(|()| score::score(a)))
        }
        Command::Doctor(a) => (a.json, doctor::doctor(a)),
        Command::Selftest(a) => {
            let fits = a.model.supported().and_then(|()| a.model.weights_alone("selftest"));
            (a.json, fits.and_then(|()| selftest::selftest(a)))
        }
        Command::Bench(a) => (a.json(), bench::bench(a)),
        Command::Tune(a) => (a.json, bench::tune(a)),
        Command::Quantise(a) => (a.json, quantise::quantise(a)),
        Command::Parse(a) => (a.json, parse::parse(a)),
        Command::Grammar(a) => (a.json, grammar::grammar(a)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print(json);
            ExitCode::from(failure.exit)
        }
    }
}
