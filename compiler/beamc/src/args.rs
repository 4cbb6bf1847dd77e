//! The command line.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

const EXIT_CODES: &str = "Exit codes:
  0  done
  1  the input is at fault: a spec, config, target or artifact
  2  the command line is at fault
  3  not in this build
  4  the output could not be written
  6  the compiler is at fault: a pass changed the model, or broke a rule of its level";

/// Compiles model specs to artifacts.
#[derive(Parser)]
#[command(name = "beamc", version, about, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Subcommand)]
pub enum Command {
    /// Read a spec and say what is wrong with it; print its size and layer classes.
    #[command(after_help = format!("Example:\n  beamc check model-spec/beam.toml\n\n{EXIT_CODES}"))]
    Check(CheckArgs),
    /// Compile a spec for a target into an artifact directory.
    #[command(after_help = format!("Example:\n  beamc compile model-spec/beam-nano.toml --target cpu -o artifact\n\n{EXIT_CODES}"))]
    Compile(CompileArgs),
    /// Print one level of a compilation as text.
    #[command(after_help = format!("Example:\n  beamc dump model-spec/beam.toml --target cpu --stage graph\n\n{EXIT_CODES}"))]
    Dump(DumpArgs),
    /// Show what one spec does differently from another at one level.
    #[command(after_help = format!("Example:\n  beamc diff model-spec/beam.toml my.toml --target cpu\n\n{EXIT_CODES}"))]
    Diff(DiffArgs),
    /// Validate every pass: interpret a small model of the same text before and after it and compare bits.
    #[command(after_help = format!("Example:\n  beamc verify model-spec/beam.toml --target cpu\n\n{EXIT_CODES}"))]
    Verify(VerifyArgs),
    /// Print the report of an artifact: kernels, bytes, memory, relaxations.
    #[command(after_help = format!("Example:\n  beamc report artifact --json\n\n{EXIT_CODES}"))]
    Report(ReportArgs),
    /// Write a spec from a Hugging Face config.json.
    #[command(after_help = format!("Example:\n  beamc import examples/beam-nano/config.json -o nano.toml\n\n{EXIT_CODES}"))]
    Import(ImportArgs),
    /// List the targets, or the facts of one with their sources.
    #[command(after_help = format!("Examples:\n  beamc targets\n  beamc targets h200-bf16\n\n{EXIT_CODES}"))]
    Targets(TargetsArgs),
    /// Say what an error code means.
    #[command(after_help = format!("Example:\n  beamc explain B0281\n\n{EXIT_CODES}"))]
    Explain(ExplainArgs),
    /// Say what is missing on this machine.
    #[command(after_help = format!("Example:\n  beamc doctor\n\n{EXIT_CODES}"))]
    Doctor(JsonArgs),
    /// Translate CUDA units as a worker of another process.
    #[command(hide = true, name = crate::kernels::WORKER)]
    NvrtcWorker,
}

/// A spec and what it is compiled for.
#[derive(Args, Clone)]
pub struct SpecArgs {
    /// Spec file, or a directory that holds a config.json.
    pub spec: PathBuf,
    /// Target: a name that `beamc targets` lists, or a .toml file.
    #[arg(long)]
    pub target: String,
    /// Mesh, such as tp=4,ep=1; the target has one for each size of model.
    #[arg(long)]
    pub mesh: Option<String>,
    /// Alternative for an option of the spec, such as combine=library, in place of the target's choice.
    #[arg(long, value_name = "NAME=ALTERNATIVE")]
    pub option: Vec<String>,
    /// Relaxation to allow besides those of the target, such as wire-bf16.
    #[arg(long, value_name = "NAME")]
    pub relax: Vec<String>,
    /// Weight whose inputs have a scale of their own in the checkpoint, and so codes of their own.
    #[arg(long, value_name = "NAME")]
    pub unpack: Vec<String>,
}

/// Arguments of `check`.
#[derive(Args)]
pub struct CheckArgs {
    /// Spec file, or a directory that holds a config.json.
    pub spec: PathBuf,
    /// Check as this target compiles it.
    #[arg(long)]
    pub target: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `compile`.
#[derive(Args)]
pub struct CompileArgs {
    /// What and for what.
    #[command(flatten)]
    pub spec: SpecArgs,
    /// Artifact directory to write.
    #[arg(short, long)]
    pub output: PathBuf,
    /// A drafter's spec, or the directory of its checkpoint: it is compiled with this one into one artifact.
    #[arg(long)]
    pub draft: Option<PathBuf>,
    /// Rows of a drafted block that there are programs for; 4 and 8 if absent.
    #[arg(long, value_name = "ROWS", value_delimiter = ',', requires = "draft")]
    pub draft_tokens: Vec<u64>,
    /// Forbid every relaxation but the formats that the checkpoint is stored in.
    #[arg(long, conflicts_with = "relax")]
    pub exact: bool,
    /// Validate every pass as `beamc verify` does, and write nothing if one fails.
    #[arg(long)]
    pub check: bool,
    /// Tuning results to use, which `beam-run tune` wrote.
    #[arg(long, value_name = "FILE")]
    pub tuning: Option<PathBuf>,
    /// Pack several kernels for each product, for `beam-run tune`.
    #[arg(long)]
    pub tunable: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `dump`.
#[derive(Args)]
pub struct DumpArgs {
    /// What and for what.
    #[command(flatten)]
    pub spec: SpecArgs,
    /// Level: model, graph, sharded, kernel, plan or cuda.
    #[arg(long)]
    pub stage: String,
    /// A drafter's spec, or the directory of its checkpoint: its level follows that of the model it is compiled with.
    #[arg(long)]
    pub draft: Option<PathBuf>,
    /// Forbid every relaxation but the formats that the checkpoint is stored in.
    #[arg(long, conflicts_with = "relax")]
    pub exact: bool,
    /// Add the place in the spec to each line.
    #[arg(long)]
    pub spans: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `diff`.
#[derive(Args)]
pub struct DiffArgs {
    /// First spec.
    pub a: PathBuf,
    /// Second spec.
    pub b: PathBuf,
    /// Target of both.
    #[arg(long)]
    pub target: String,
    /// Mesh of both; the target has one for the first.
    #[arg(long)]
    pub mesh: Option<String>,
    /// Alternative for an option of both specs, in place of the target's choice.
    #[arg(long, value_name = "NAME=ALTERNATIVE")]
    pub option: Vec<String>,
    /// Level whose lines are compared after the account: model, graph, sharded, kernel or plan.
    #[arg(long, default_value = "graph")]
    pub stage: String,
    /// Leave the lines out.
    #[arg(long, conflicts_with = "stage")]
    pub brief: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `verify`.
#[derive(Args)]
pub struct VerifyArgs {
    /// What and for what.
    #[command(flatten)]
    pub spec: SpecArgs,
    /// A drafter's spec, or the directory of its checkpoint: its entries are validated too.
    #[arg(long, conflicts_with = "all_meshes")]
    pub draft: Option<PathBuf>,
    /// How many seeds to try, at most 1000; 3 if absent.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: Option<u64>,
    /// Validate on every mesh of up to 8 ranks whose axes the spec names, each axis by itself and in pairs.
    #[arg(long, conflicts_with = "mesh")]
    pub all_meshes: bool,
    /// Forbid every relaxation but the formats that the checkpoint is stored in.
    #[arg(long, conflicts_with = "relax")]
    pub exact: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `report`.
#[derive(Args)]
pub struct ReportArgs {
    /// Artifact directory.
    pub artifact: PathBuf,
    /// Bucket whose kernels are listed, such as forward-one-t8; the first if absent.
    #[arg(long)]
    pub bucket: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `import`.
#[derive(Args)]
pub struct ImportArgs {
    /// config.json, or the directory that holds it.
    pub config: PathBuf,
    /// Spec file to write; an existing file is replaced.
    #[arg(short, long)]
    pub output: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `explain`.
#[derive(Args)]
pub struct ExplainArgs {
    /// Code, such as B0281; without one, all of them are listed.
    pub code: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `targets`.
#[derive(Args)]
pub struct TargetsArgs {
    /// Target whose facts are listed.
    pub target: Option<String>,
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
