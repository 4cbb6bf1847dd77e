//! `beam-run bench`: what this machine makes of an artifact, in time.

mod agentic;
mod model;
mod serve;
mod stats;
mod steps;
mod trace;
mod tune;

use crate::args::EXIT_CODES;
use crate::failure::Failure;
use clap::{Args, Subcommand};

use agentic::AgenticArgs;
pub use model::BenchModelArgs;
use serve::BenchServeArgs;
use steps::BenchStepsArgs;
pub use tune::{TuneArgs, tune};

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
        after_help = format!("Example:\n  beam-run bench model artifact --model examples/beam-nano --prefill 512 --context 64 --decode 64 --threads 2\n\n{EXIT_CODES}")
    )]
    Model(BenchModelArgs),
    /// Whole steps on CUDA devices, decoding and prompts, and every kernel start of them.
    #[command(
        after_help = format!("Examples:\n  beam-run bench steps artifact --model examples/beam-nano --executor cuda --context 64 --prefill 512 --trace steps.json\n  beam-run bench steps artifact-tp8 --synthetic 7 --executor cuda --rank-of tp=8 --context 1024 --sequences 1\n\n{EXIT_CODES}")
    )]
    Steps(Box<BenchStepsArgs>),
    /// Conversations of coding agents, turn by turn: measured, or predicted for a named target.
    #[command(
        after_help = format!("Examples:\n  beam-run bench agentic artifact --model examples/beam-nano --scale 0.01 --sessions 4 --concurrency 2\n  beam-run bench agentic artifact-tp8 --simulate h200-bf16 --concurrency 16 --sessions 32\n\n{EXIT_CODES}")
    )]
    Agentic(Box<AgenticArgs>),
    /// Load on any server that speaks the OpenAI API, with a fixed number of clients or at a fixed rate.
    #[command(
        after_help = format!("Examples:\n  beam-run bench serve http://127.0.0.1:8000 --concurrency 32 --requests 256\n  beam-run bench serve http://127.0.0.1:8000 --rate 4 --requests 256\n\n{EXIT_CODES}")
    )]
    Serve(BenchServeArgs),
}

impl BenchArgs {
    /// Whether results and failures are printed as JSON.
    pub fn json(&self) -> bool {
        match &self.what {
            What::Model(a) => a.json,
            What::Steps(a) => a.json,
            What::Agentic(a) => a.json,
            What::Serve(a) => a.json,
        }
    }
}

/// Runs the command.
pub fn bench(args: &BenchArgs) -> Result<(), Failure> {
    match &args.what {
        What::Model(a) => a.supported().and_then(|()| model::bench(a)),
        What::Steps(a) => a.model.weights_alone("bench steps").and_then(|()| steps::bench(a)),
        What::Agentic(a) => agentic::bench(a),
        What::Serve(a) => serve::bench(a),
    }
}
