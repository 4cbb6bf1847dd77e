//! What the suites share: where things are, how the programs are built and run.

pub mod mutate;
pub mod oracle;
mod programs;
pub mod rust_source;
pub mod safetensors_file;
pub mod server;

pub use programs::{Output, Programs};

use std::path::PathBuf;

/// Root of the workspace.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Checkpoints with values of an independent implementation.
pub fn fixture(name: &str) -> PathBuf {
    root().join("tests/fixtures").join(name)
}

/// The trained example checkpoint.
pub fn nano() -> PathBuf {
    root().join("examples/beam-nano")
}
