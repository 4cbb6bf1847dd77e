//! From the command line to an engine: artifact, weights with progress, executor, pools.

use crate::args::ModelArgs;
use crate::drafts::{self, DraftArgs};
use crate::failure::Failure;
use artifact::{Artifact, WeightRecipe};
use device::checkpoint::{Checkpoint, LoadOptions, Progress, Streamed};
use device::{Ahead, ExecutorKind, PrepareError, WeightStore, Weights, pool_pages_for, pool_pages_of};
use engine::{Engine, Executor, Limits};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::path::Path;
use std::time::Duration;

/// Context of a model that names none, and the longest that is taken without being asked for: its cache is held in
/// memory from the start.
const DEFAULT_CONTEXT_TOKENS: usize = 32768;

/// How long a loop around an engine sleeps at most while a step runs; it wakes when the step is over.
pub const LONGEST_WAIT: Duration = Duration::from_millis(1);

/// Reads and verifies the artifact.
pub fn artifact(dir: &Path) -> Result<Artifact, Failure> {
    Artifact::load(dir).map_err(Failure::input)
}

/// Reads or makes up the weights, with a progress bar on a terminal.
pub fn weights(artifact: &Artifact, args: &ModelArgs) -> Result<Weights, Failure> {
    let model = match (args.synthetic, &args.model) {
        (Some(seed), _) => return Weights::synthetic(&artifact.recipes, seed).map_err(Failure::input),
        (None, Some(model)) => model,
        (None, None) => {
            return Err(Failure::usage(
                "R0101: neither `--model` nor `--synthetic` is given; name the model directory",
            ));
        }
    };
    read(&artifact.recipes, model, artifact, args)
}

/// Calls `load` with the weights: for a device they are read from the checkpoint as it takes them, for all others they are in memory.
pub fn with_weights<T>(
    artifact: &Artifact,
    args: &ModelArgs,
    load: impl FnOnce(&dyn WeightStore) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (ExecutorKind::Cuda(_), None, Some(model)) = (args.executor()?, args.synthetic, &args.model) else {
        return load(&weights(artifact, args)?);
    };
    let checkpoint = Checkpoint::open(model).map_err(Failure::input)?;
    let bar = bar();
    let progress = |p| show(&bar, p);
    let weights =
        Streamed::open(&artifact.recipes, &checkpoint, &options(artifact, args), progress).map_err(Failure::input)?;
    let loaded = load(&weights);
    bar.finish_and_clear();
    match weights.fault() {
        Some(fault) => Err(Failure::input(fault)),
        None => loaded,
    }
}

/// The drafter's weights, if they are asked for.
fn drafter_weights(artifact: &Artifact, args: &ModelArgs) -> Result<Option<Weights>, Failure> {
    let Some(draft) = &args.draft else { return Ok(None) };
    let Some(drafter) = &artifact.drafter else {
        return Err(Failure::usage(format!(
            "R0114: `--draft` names `{}`, and the artifact of {} has no drafter; compile it with `beamc compile --draft`",
            draft.display(),
            artifact.manifest.model
        )));
    };
    read(&drafter.recipes, draft, artifact, args).map(Some)
}

/// Reads the weights that recipes of an artifact describe.
fn read(recipes: &[WeightRecipe], model: &Path, artifact: &Artifact, args: &ModelArgs) -> Result<Weights, Failure> {
    let checkpoint = Checkpoint::open(model).map_err(Failure::input)?;
    let bar = bar();
    let mut progress = |p| show(&bar, p);
    let weights = Weights::load(recipes, &checkpoint, &options(artifact, args), &mut progress).map_err(Failure::input);
    bar.finish_and_clear();
    weights
}

fn options(artifact: &Artifact, args: &ModelArgs) -> LoadOptions {
    let cached_codes = artifact.kv().iter().any(|kv| kv.dtype.is_narrow());
    LoadOptions { narrow: args.narrow, widen: args.widen, cached_codes, ..LoadOptions::default() }
}

/// A bar on the error stream, hidden by itself where that is no terminal.
fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("loading weights {bar:40} {bytes}/{total_bytes} {bytes_per_sec}") {
        bar.set_style(style);
    }
    bar
}

fn show(bar: &ProgressBar, progress: Progress) {
    bar.set_length(progress.total_bytes);
    bar.set_position(progress.done_bytes);
}

/// Longest sequence that the model is made for.
pub fn own_context_tokens(artifact: &Artifact) -> Option<usize> {
    artifact.kernels.facts.runtime.context.and_then(|n| usize::try_from(n).ok())
}

/// The context to serve with: what is asked for, or the model's own as far as it is taken without being asked for.
pub fn context_tokens(artifact: &Artifact, asked: Option<usize>) -> Result<usize, Failure> {
    match (asked, own_context_tokens(artifact)) {
        (Some(asked), Some(own)) if asked > own => Err(Failure::usage(format!(
            "R0104: `--context` asks for {asked} tokens, the model is made for {own}; ask for less"
        ))),
        (Some(asked), _) => Ok(asked),
        (None, own) => Ok(own.unwrap_or(DEFAULT_CONTEXT_TOKENS).min(DEFAULT_CONTEXT_TOKENS)),
    }
}

/// An engine for `running` sequences of `context_tokens`; `next` is what to do if memory cannot hold their cache.
pub fn engine(
    artifact: &Artifact,
    args: &ModelArgs,
    context_tokens: usize,
    running: usize,
    drafts: &DraftArgs,
    next: &str,
) -> Result<Engine<Box<dyn Executor>>, Failure> {
    drafts.agree(artifact, args.draft.is_some())?;
    let draft = drafts.limits();
    let limits = Limits { context_tokens: Some(context_tokens), running, draft, ..Limits::default() };
    engine_of(artifact, args, limits, (context_tokens, running), |text| Failure::usage(format!("{text}; {next}")))
}

/// The same with all that an engine can be told, and a cache for so many sequences of so many tokens; `no_memory` makes a failure
/// of the text that says that there is no memory for it.
pub fn engine_of(
    artifact: &Artifact,
    args: &ModelArgs,
    mut limits: Limits,
    (context_tokens, running): (usize, usize),
    no_memory: impl FnOnce(String) -> Failure,
) -> Result<Engine<Box<dyn Executor>>, Failure> {
    args.fits(artifact)?;
    limits.keeps_prefixes &= !device::rows_are_apart(artifact);
    let drafter = drafter_weights(artifact, args)?;
    let (kind, context) = (args.executor()?, context_tokens);
    let failure = |e| match e {
        PrepareError::PoolMemory { kind, pages, bytes } => no_memory(format!(
            "R0105: the cache of {running} sequences of {context_tokens} tokens needs {pages} pages of `{kind}`, {bytes} bytes, which this machine does not give"
        )),
        other => Failure::input(other),
    };
    let mut executor = with_weights(artifact, args, |weights| {
        let loaded = match &drafter {
            Some(drafter) => {
                device::load_drafting(artifact, weights, drafter, kind, &pool_pages_of(artifact, context, running))
            }
            None => device::load_shared(artifact, weights, kind, &pool_pages_for(&artifact.plan, context, running)),
        };
        loaded.map_err(failure)
    })?;
    drafts::learn_costs(&mut executor, &mut limits)?;
    // With a drafter a step is planned when its drafts are known; a device may take two steps by itself.
    let takes_one = executor.in_flight_limit() == 1 && executor.facts().draft.is_none();
    if takes_one && !args.disable_overlap_schedule {
        executor = Box::new(
            Ahead::new(executor).map_err(|e| Failure::device(format!("R0305: no thread for the steps: {e}")))?,
        );
    }
    let mut engine = Engine::new(executor, limits).map_err(Failure::input)?;
    if args.disable_overlap_schedule {
        engine.take_one_step_at_a_time();
    }
    Ok(engine)
}
