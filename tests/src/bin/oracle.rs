//! Prints the table of agreement with independent values: `cargo run --release -p suites --bin oracle [DIRECTORY …]`.
//!
//! Without arguments it runs the fixtures of the repository. Any directory of the same form may be given.

use std::path::PathBuf;
use std::process::ExitCode;
use suites::oracle::{Oracle, table};

fn main() -> ExitCode {
    let mut folders: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if folders.is_empty() {
        folders = ["beam-tiny-f32", "beam-tiny-bf16", "beam-tiny-bf16-packed"].map(suites::fixture).into();
    }
    let rows: Vec<_> = folders.iter().flat_map(|f| Oracle::open(f).run()).collect();
    print!("{}", table(&rows));
    if rows.iter().all(|r| r.holds) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
