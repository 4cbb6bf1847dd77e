//! The command line.

use crate::bench::{BenchArgs, TuneArgs};
use crate::drafts::DraftArgs;
use crate::failure::Failure;
use crate::flags;
use crate::grammar::GrammarArgs;
use crate::outputs::Read;
use crate::parse::ParseArgs;
use crate::quantise::QuantiseArgs;
use crate::score::ScoreArgs;
use crate::serve::{EndpointArgs, SchedulingArgs};
use artifact::Artifact;
use clap::{Args, Parser, Subcommand};
use device::{ExecutorKind, Ranks};
use ir::Mesh;
use std::path::{Path, PathBuf};

pub const EXIT_CODES: &str = "Exit codes:
  0  done
  1  the input is at fault: an artifact, a checkpoint, a file of tokens, a request
  2  the command line is at fault
  3  not in this build
  4  the output could not be written, or the address is in use
  5  the device could not go on";

/// Runs compiled models.
#[derive(Parser)]
#[command(name = "beam-run", version, about, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Subcommand)]
pub enum Command {
    /// Serve a model over HTTP.
    #[command(after_help = format!("Example:\n  beam-run serve artifact --model examples/beam-nano --port 8000\n\n{EXIT_CODES}"))]
    Serve(Box<ServeArgs>),
    /// Continue a prompt, or lists of token ids, on the terminal.
    #[command(after_help = format!("Examples:\n  beam-run generate artifact --model examples/beam-nano --prompt \"def main\" --max-tokens 32\n  beam-run generate artifact --model examples/beam-nano --tokens prompts.json --max-tokens 32\n\nA file of tokens is {{\"tokens\": [[…], …]}}; the same form with the new ids of each list comes out.\n\n{EXIT_CODES}"))]
    Generate(GenerateArgs),
    /// Write logits, losses or graph values of given token ids.
    #[command(after_help = format!("Examples:\n  beam-run score artifact --model examples/beam-nano --tokens prompts.json --out logits.safetensors\n  beam-run score artifact --model DIR --tokens prompts.json --out values.safetensors --executor interp --trace map.json\n\n{EXIT_CODES}"))]
    Score(ScoreArgs),
    /// Check every kernel of an artifact on this CUDA device against the interpreter.
    #[command(after_help = format!("Example:\n  beam-run selftest artifact --model DIR\n\n{EXIT_CODES}"))]
    Selftest(SelftestArgs),
    /// Measure speed.
    #[command(after_help = format!("Example:\n  beam-run bench model artifact --model examples/beam-nano --json\n\n{EXIT_CODES}"))]
    Bench(BenchArgs),
    /// Time every kernel of a tunable artifact on this CUDA device, and write down the fastest.
    #[command(after_help = format!("Example:\n  beamc compile SPEC --target h200-bf16 --tunable -o artifact\n  beam-run tune artifact --model DIR --out tuning.json\n  beamc compile SPEC --target h200-bf16 --tuning tuning.json -o tuned\n\n{EXIT_CODES}"))]
    Tune(Box<TuneArgs>),
    /// Write a quantised checkpoint in the form that public quantisers write.
    #[command(after_help = format!("Examples:\n  beam-run quantise --model examples/beam-nano --format fp8 --out nano-fp8\n  beam-run quantise --model DIR --artifact artifact --calibrate tokens.json --format nvfp4 --out DIR-nvfp4\n\n{EXIT_CODES}"))]
    Quantise(Box<QuantiseArgs>),
    /// Parse recorded outputs with a response template.
    #[command(after_help = format!("Example:\n  beam-run parse --template template.json --cases cases.jsonl\n\nOne JSON line a case comes out; tests/fixtures/response-parse/README.md says what a case is.\n\n{EXIT_CODES}"))]
    Parse(ParseArgs),
    /// Ask whether the turn grammar admits recorded outputs.
    #[command(after_help = format!("Example:\n  beam-run grammar --template template.json --model examples/beam-nano --cases grammar.jsonl\n\nOne JSON line a case comes out, {{\"id\", \"accept\"}}; tests/fixtures/response-parse/README.md says what a case is.\n\n{EXIT_CODES}"))]
    Grammar(GrammarArgs),
    /// Say what is missing on this machine.
    #[command(after_help = format!("Example:\n  beam-run doctor\n\n{EXIT_CODES}"))]
    Doctor(JsonArgs),
}

/// An artifact, where its weights come from and what runs it.
#[derive(Args, Clone)]
pub struct ModelArgs {
    /// Artifact directory that `beamc compile` wrote.
    pub artifact: PathBuf,
    /// Model directory: weights, tokenizer, chat template.
    #[arg(long, required_unless_present = "synthetic")]
    pub model: Option<PathBuf>,
    /// Make weights up from this seed instead of reading them.
    #[arg(long, value_name = "SEED")]
    pub synthetic: Option<u64>,
    /// What runs the model: cpu, cuda, or interp, the slow definition of the truth (sim is not in this build).
    #[arg(long, default_value = "cpu", value_parser = ["cpu", "interp", "cuda", "sim"])]
    executor: String,
    /// Allow weights to be narrowed to the format that the artifact keeps. Changes the model's bits.
    #[arg(long, conflicts_with = "synthetic")]
    pub narrow: bool,
    /// Allow matrices that the checkpoint stores as codes and scales to be multiplied out, where the artifact keeps them wider.
    #[arg(long, conflicts_with = "synthetic")]
    pub widen: bool,
    /// Directory of the drafter's weights, for an artifact that was compiled with a drafter.
    #[arg(long, visible_alias = "speculative-draft-model-path", value_name = "DIR", conflicts_with = "synthetic")]
    pub draft: Option<PathBuf>,
    /// Plan a step when the one before it is over, not while it runs. With a drafter that is always so.
    #[arg(long)]
    pub disable_overlap_schedule: bool,
    /// Run one rank of the artifact's mesh, such as tp=8, on one CUDA device: it starts and moves what a rank does, and stands in for the
    /// others by hearing itself. For measurements; what it answers means nothing.
    #[arg(long, value_name = "MESH")]
    rank_of: Option<String>,
    /// Run all ranks of the artifact's mesh on the first CUDA device, for tests.
    #[arg(long, conflicts_with = "rank_of")]
    share_device: bool,
}

impl ModelArgs {
    /// What a command with a line of its own wants to run.
    pub fn of(artifact: &Path, model: Option<PathBuf>, synthetic: Option<u64>, executor: &str, narrow: bool) -> Self {
        let (artifact, executor) = (artifact.to_owned(), executor.to_owned());
        ModelArgs {
            artifact,
            model,
            synthetic,
            executor,
            narrow,
            widen: false,
            draft: None,
            disable_overlap_schedule: false,
            rank_of: None,
            share_device: false,
        }
    }

    /// What is read: the artifact, and the directories of weights.
    pub fn read(&self) -> Vec<Read<'_>> {
        let mut read = vec![("ARTIFACT", self.artifact.as_path())];
        read.extend(self.model.iter().map(|dir| ("--model", dir.as_path())));
        read.extend(self.draft.iter().map(|dir| ("--draft", dir.as_path())));
        read
    }

    /// Refuses what this build cannot do, before anything is read.
    pub fn supported(&self) -> Result<(), Failure> {
        self.executor().map(drop)
    }

    /// Refuses an artifact of another mesh than the one of which a rank is asked for.
    pub fn fits(&self, artifact: &Artifact) -> Result<(), Failure> {
        let Some(text) = &self.rank_of else { return Ok(()) };
        let asked = Mesh::parse(text).map_err(|e| Failure::usage(format!("R0115: `--rank-of {text}`: {e}")))?;
        let own = &artifact.manifest.mesh;
        if asked == *own {
            return Ok(());
        }
        let own = if own.is_single() { "one device".to_owned() } else { own.to_string() };
        Err(Failure::usage(format!(
            "R0111: `--rank-of` asks for a rank of {asked}, the artifact is compiled for {own}; compile it with `--mesh {asked}`"
        )))
    }

    /// Refuses a rank alone where the model's numbers are wanted.
    pub fn whole(&self) -> Result<(), Failure> {
        match &self.rank_of {
            None => Ok(()),
            Some(text) => Err(Failure::usage(format!(
                "R0116: `--rank-of {text}` runs a rank that hears itself, and its numbers are not the model's; leave it out, or measure with `bench model`"
            ))),
        }
    }

    /// Refuses what `command` would leave unread: beside a seed a directory of which it wants nothing but weights, and a drafter.
    pub fn weights_alone(&self, command: &str) -> Result<(), Failure> {
        if let (Some(model), Some(seed)) = (&self.model, self.synthetic) {
            return Err(Failure::usage(format!(
                "R0117: `--model {}` names weights and `--synthetic {seed}` makes them up, and `{command}` reads nothing else of a model directory; leave one of them out",
                model.display()
            )));
        }
        match &self.draft {
            None => Ok(()),
            Some(draft) => Err(Failure::usage(format!(
                "R0117: `--draft {}` names a drafter's weights, and `{command}` runs the model alone; leave it out",
                draft.display()
            ))),
        }
    }

    /// Where ranks run.
    pub fn ranks(&self) -> Ranks {
        match (&self.rank_of, self.share_device) {
            (Some(_), _) => Ranks::Alone(0),
            (None, true) => Ranks::Together,
            (None, false) => Ranks::Apart,
        }
    }

    /// The executor asked for, if this build has it.
    pub fn executor(&self) -> Result<ExecutorKind, Failure> {
        if self.executor == "cuda" {
            return Ok(ExecutorKind::Cuda(self.ranks()));
        }
        if self.rank_of.is_some() || self.share_device {
            let given = format!("`--executor {}` is", self.executor);
            return Err(Failure::usage(format!(
                "R0112: ranks are placed with `--rank-of` and `--share-device` on CUDA devices, {given} given; say `--executor cuda`"
            )));
        }
        self.executor.parse().map_err(|_| Failure::not_in_this_build(&format!("the executor `{}`", self.executor)))
    }
}

/// Arguments of `selftest`.
#[derive(Args)]
pub struct SelftestArgs {
    /// What is tested. It runs on the CUDA device, whatever the executor.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Make the weights up on the device, for models that this machine's memory does not hold; steps then have few rows.
    #[arg(long, requires = "synthetic")]
    pub on_device: bool,
    /// One step of each phase (prompt, the rest of a prompt, decoding) instead of one for every bucket, for checkers such as compute-sanitizer.
    #[arg(long)]
    pub quick: bool,
    /// Seed of the tokens of the test's steps.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `serve`.
#[derive(Args)]
pub struct ServeArgs {
    /// What is served.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1", value_parser = flags::name)]
    pub host: String,
    /// Port to listen on; 0 takes any free one.
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Keep every request's tokens independent of its company. On a CPU that always holds.
    #[arg(long)]
    pub deterministic: bool,
    /// Name that clients see; the model directory's name if absent.
    #[arg(long, value_name = "NAME", value_parser = flags::name)]
    pub served_model_name: Option<String>,
    /// Longest sequence, prompt and answer together; the model's own context if absent, at most 32768 without this.
    #[arg(long, value_name = "TOKENS", value_parser = flags::at_least(flags::LEAST_CONTEXT_TOKENS))]
    pub context: Option<usize>,
    /// Most requests that run at once, and how many of the longest the cache holds; if absent, as many as the artifact decodes
    /// in one step, and a cache for 8 of the longest.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_running: Option<u32>,
    /// Who runs when, and what is kept.
    #[command(flatten)]
    pub scheduling: SchedulingArgs,
    /// What is drafted.
    #[command(flatten)]
    pub drafts: DraftArgs,
    /// Keys, limits and habits of the endpoint.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `generate`.
#[derive(Args)]
pub struct GenerateArgs {
    /// What runs.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Text to continue, as it stands: no chat template.
    #[arg(long, value_name = "TEXT", required_unless_present = "tokens", conflicts_with = "tokens")]
    pub prompt: Option<String>,
    /// File of token ids to continue; no tokenizer is needed.
    #[arg(long, value_name = "FILE")]
    pub tokens: Option<PathBuf>,
    /// Most tokens to add.
    #[arg(long, value_name = "N", value_parser = flags::at_least(1))]
    pub max_tokens: usize,
    /// Divides the logits; 0 takes the most probable token.
    #[arg(long, default_value_t = 0.0, value_parser = flags::temperature)]
    pub temperature: f32,
    /// Keep the K most probable tokens; 0 keeps all.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: u32,
    /// Keep the most probable tokens whose probability reaches P.
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = flags::share)]
    pub top_p: f32,
    /// Seed of the draws.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// What is drafted.
    #[command(flatten)]
    pub drafts: DraftArgs,
    /// Go on after a token that ends an answer.
    #[arg(long)]
    pub ignore_eos: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// A command without further arguments.
#[derive(Args)]
pub struct JsonArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
