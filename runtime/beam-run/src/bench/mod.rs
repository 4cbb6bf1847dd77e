//! `beam-run bench`: what this machine makes of an artifact, in time.

mod model;

use crate::args::Later;
use crate::failure::Failure;
use clap::{Args, Subcommand};

pub use model::BenchModelArgs;

/// Arguments of `bench`.
#[derive(Args)]
pub struct BenchArgs {
    /// What is measured.
    #[command(subcommand)]
    pub what: What,
}

/// What is measured.
#[derive(Subcommand)]
pub enum What {
    /// Speed of one sequence: reading a prompt, then one token after the other.
    #[command(
        after_help = "Example:\n  beam-run bench model artifact --model examples/beam-nano --prefill 512 --context 64 --decode 64 --threads 2"
    )]
    Model(BenchModelArgs),
    /// Long conversations with tools (not in this build).
    #[command(after_help = "Example:\n  beam-run bench agentic artifact --model DIR")]
    Agentic(Later),
    /// Many clients of a server (not in this build).
    #[command(after_help = "Example:\n  beam-run bench serve artifact --model DIR")]
    Serve(Later),
}

impl BenchArgs {
    /// Whether results and failures are printed as JSON.
    pub fn json(&self) -> bool {
        match &self.what {
            What::Model(a) => a.json,
            What::Agentic(a) | What::Serve(a) => a.json,
        }
    }
}

/// Runs the command.
pub fn bench(args: &BenchArgs) -> Result<(), Failure> {
    match &args.what {
        What::Model(a) => a.model.supported().and_then(|()| model::bench(a)),
        What::Agentic(_) => Err(Failure::not_in_this_build("beam-run bench agentic")),
        What::Serve(_) => Err(Failure::not_in_this_build("beam-run bench serve")),
    }
}
