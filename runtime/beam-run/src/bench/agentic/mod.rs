//! `beam-run bench agentic`: conversations of coding agents, replayed turn by turn on an engine.
//!
//! On the CPU the model computes and time is real. With `--simulate TARGET` the same engine, cache and host tier run over a
//! device that only takes the time that the target's cost model gives; everything that comes of it is marked as predicted.

mod drive;
mod ideal;
mod report;
mod sessions;

use crate::args::ModelArgs;
use crate::drafts::{self, DraftArgs};
use crate::failure::Failure;
use crate::flags;
use crate::model;
use artifact::Artifact;
use clap::Args;
use drive::{Measured, Virtual, Wall, drive};
use engine::sim::{Clock, Link, Predicted, STAND_IN, TimedTier};
use engine::{Counts, Engine, Executor, Limits, MemoryTier};
use indicatif::{ProgressBar, ProgressDrawTarget};
use report::Run;
use sessions::{Sessions, Shape, Sizes};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Device and host: a PCIe 5 link of 16 lanes, of which four fifths are had.
const HOST_LINK: Link = Link { bytes_per_second: 50e9, seconds: 2e-6, ahead_seconds: 1e-3 };
/// Share of a device's memory for weights and caches.
const MEMORY_SHARE: f64 = 0.9;

/// Arguments of `bench agentic`.
#[derive(Args)]
pub struct AgenticArgs {
    /// Artifact directory that `beamc compile` wrote.
    pub artifact: PathBuf,
    /// Model directory with the weights.
    #[arg(long, required_unless_present_any = ["synthetic", "simulate"])]
    model: Option<PathBuf>,
    /// Make weights up from this seed instead of reading them.
    #[arg(long, value_name = "SEED", conflicts_with_all = ["model", "narrow", "draft"])]
    synthetic: Option<u64>,
    /// What runs the model: cpu, cuda or interp.
    #[arg(long, default_value = "cpu", value_parser = ["cpu", "interp", "cuda"])]
    executor: String,
    /// Allow weights to be narrowed to the format that the artifact keeps.
    #[arg(long)]
    narrow: bool,
    /// Predict instead of measure: times of this target, by name or path of its file. No weights are read.
    #[arg(long, value_name = "TARGET", conflicts_with_all = ["model", "synthetic", "executor", "narrow", "draft"])]
    simulate: Option<String>,
    /// Shape of a session.
    #[arg(long, value_enum, default_value = "openhands")]
    shape: Shape,
    /// Sessions in all.
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..))]
    sessions: u32,
    /// Sessions at once.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: u32,
    /// Turns of a session.
    #[arg(long, value_name = "N", default_value = "13", value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,
    /// Tokens of the first prompt.
    #[arg(long, value_name = "TOKENS", default_value = "74160", value_parser = clap::value_parser!(u32).range(1..))]
    first_tokens: u32,
    /// Tokens by which each prompt is longer than the one before, the answer between them included.
    #[arg(long, value_name = "TOKENS", default_value = "753", value_parser = clap::value_parser!(u32).range(1..))]
    turn_tokens: u32,
    /// Tokens of an answer.
    #[arg(long, value_name = "TOKENS", default_value = "220", value_parser = clap::value_parser!(u32).range(1..))]
    answer_tokens: u32,
    /// Multiplies all sizes.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = flags::above_zero(100.0))]
    scale: f64,
    /// Mean time between an answer and the next turn, in seconds; 0, or 2 for `agentx`, if absent.
    #[arg(long, value_name = "SECONDS", value_parser = flags::within(0.0..=1e6))]
    think_seconds: Option<f64>,
    /// Tokens that the cache holds; what the sessions at once need, or on a simulated device what its memory has, if absent.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    cache_tokens: Option<u32>,
    /// Most rows of a step.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    chunked_prefill_size: Option<u32>,
    /// Memory outside the device for copies of what is cached, in 10^9 bytes; of each rank where there are several.
    #[arg(long, value_name = "GB", default_value_t = 0.0, value_parser = flags::within(0.0..=flags::MOST_GIGABYTES))]
    host_cache_gb: f64,
    /// Directory of the drafter's weights, for an artifact that was compiled with a drafter.
    #[arg(long, value_name = "DIR")]
    draft: Option<PathBuf>,
    /// What is drafted.
    #[command(flatten)]
    drafts: DraftArgs,
    /// Seed of the tokens and of the times between turns.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl AgenticArgs {
    fn sizes(&self) -> Sizes {
        let scaled = |n: u32| ((f64::from(n) * self.scale).round() as usize).max(1);
        let usual = if self.shape == Shape::Agentx { 2.0 } else { 0.0 };
        Sizes {
            turns: self.turns as usize,
            first: scaled(self.first_tokens),
            grows: scaled(self.turn_tokens),
            answer: scaled(self.answer_tokens),
            think_seconds: self.think_seconds.unwrap_or(usual),
        }
    }

    fn host_bytes(&self) -> u64 {
        (self.host_cache_gb * 1e9) as u64
    }

    fn limits(&self, context_tokens: usize) -> Limits {
        Limits {
            context_tokens: Some(context_tokens),
            // Agents that others have sent run beside them.
            running: self.concurrency as usize * if self.shape == Shape::Agentx { 4 } else { 1 },
            step_tokens: self.chunked_prefill_size.map(|n| n as usize),
            draft: self.drafts.limits(),
            ..Limits::default()
        }
    }
}

/// Runs the command.
pub fn bench(args: &AgenticArgs) -> Result<(), Failure> {
    if args.turn_tokens < args.answer_tokens {
        return Err(Failure::usage(format!(
            "R0504: `--turn-tokens` {} holds `--answer-tokens` {}, and is less; raise it, or shorten the answers",
            args.turn_tokens, args.answer_tokens
        )));
    }
    let sizes = args.sizes();
    let artifact = match &args.simulate {
        // An artifact for a machine that is not here, or without its kernels, is enough to predict from.
        Some(_) => Artifact::read(&args.artifact).map_err(Failure::input)?,
        None => model::artifact(&args.artifact)?,
    };
    let longest = Sessions::longest(args.shape, sizes);
    args.drafts.agree(&artifact, args.draft.is_some() || args.simulate.is_some())?;
    if let Some(own) = model::own_context_tokens(&artifact).filter(|own| *own < longest) {
        return Err(Failure::usage(format!(
            "R0501: the sessions need {longest} tokens of context, the model is made for {own}; lower `--scale` or `--turns`"
        )));
    }
    let run = match &args.simulate {
        Some(target) => simulated(args, sizes, longest, artifact, target)?,
        None => measured(args, sizes, longest, &artifact)?,
    };
    run.print(args.json);
    Ok(())
}

fn sessions(args: &AgenticArgs, sizes: Sizes, vocab: usize) -> Sessions {
    Sessions::new(args.shape, sizes, (args.sessions as usize, args.concurrency as usize), vocab, args.seed)
}

/// A bar on a terminal.
fn bar() -> (ProgressBar, impl FnMut(usize)) {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let shown = bar.clone();
    (bar, move |done| shown.set_position(done as u64))
}

fn measured(args: &AgenticArgs, sizes: Sizes, longest: usize, artifact: &Artifact) -> Result<Run, Failure> {
    let mut model_args = ModelArgs::of(&args.artifact, args.model.clone(), args.synthetic, &args.executor, args.narrow);
    model_args.draft.clone_from(&args.draft);
    let limits = args.limits(longest);
    let next = "lower `--scale`, `--concurrency` or `--cache-tokens`";
    let needed = limits.running * longest;
    let cache = args.cache_tokens.map_or(needed, |n| (n as usize).max(longest));
    if let Some(asked) = args.cache_tokens.filter(|n| (*n as usize) < cache) {
        eprintln!("warning: the cache holds {cache} tokens instead of {asked}: the longest session needs so many");
    }
    let mut engine =
        model::engine_of(artifact, &model_args, limits, (cache, 1), |text| Failure::usage(format!("{text}; {next}")))?;
    if args.host_bytes() > 0 {
        engine = engine.with_host_tier(Box::new(MemoryTier::new(args.host_bytes())));
    }
    let mut sessions = sessions(args, sizes, engine.vocab());
    let (shown, count) = bar();
    let start = Instant::now();
    let turns = drive(&mut engine, &mut sessions, &mut Wall(start), count)?;
    shown.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    Ok(finished(args, artifact, &engine, turns, seconds))
}

fn simulated(
    args: &AgenticArgs,
    sizes: Sizes,
    longest: usize,
    artifact: Artifact,
    target: &str,
) -> Result<Run, Failure> {
    let clock = Clock::default();
    let page_tokens = artifact.plan.kv.first().map_or(1, |kind| kind.page_tokens.max(1));
    let of_tokens = |n: u32| {
        // Of every kind as if it kept everything, which is more than windows need.
        let pages = u64::from(n).div_ceil(page_tokens) + 1;
        artifact.plan.kv.iter().filter(|k| k.window.is_none()).map(|k| k.page_bytes() * pages).sum::<u64>().max(1)
    };
    let cache_bytes = args.cache_tokens.map(of_tokens);
    let kernels = Arc::new(artifact.kernels.clone());
    let (plan, weight_bytes) = (&artifact.plan, artifact.memory.bytes);
    let blocks = artifact.drafter.iter().flat_map(|drafter| &drafter.blocks);
    let drafter = blocks.map(|b| (b.tokens as usize, Arc::new(b.kernels.clone()))).collect();
    let wanted = Predicted { kernels, plan, weight_bytes, target, memory_share: MEMORY_SHARE, cache_bytes, drafter };
    let device = wanted.device(clock.clone()).map_err(Failure::input)?;
    let limits = args.limits(longest);
    let mut engine = Engine::new(device, limits).map_err(Failure::input)?;
    if engine.limit_tokens() < longest {
        let holds = engine.limit_tokens();
        return Err(Failure::usage(format!(
            "R0505: the cache holds sequences of {holds} tokens, the sessions need {longest}; raise `--cache-tokens` or lower `--scale`"
        )));
    }
    if args.host_bytes() > 0 {
        // Copies are stand-ins, so the link hands on as many bytes less.
        let link = Link { bytes_per_second: HOST_LINK.bytes_per_second / STAND_IN as f64, ..HOST_LINK };
        let tier = TimedTier::new(MemoryTier::new(args.host_bytes()), clock.clone(), link);
        engine = engine.with_host_tier(Box::new(tier));
    }
    let mut sessions = sessions(args, sizes, engine.vocab());
    let (shown, count) = bar();
    let turns = drive(&mut engine, &mut sessions, &mut Virtual(clock.clone()), count)?;
    shown.finish_and_clear();
    let mut run = finished(args, &artifact, &engine, turns, clock.seconds());
    run.predicted_for = Some(target.to_owned());
    run.busy_share = Some(engine.executor().busy_seconds() / clock.seconds());
    Ok(run)
}

fn finished<E: Executor>(
    args: &AgenticArgs,
    artifact: &Artifact,
    engine: &Engine<E>,
    turns: Vec<Measured>,
    seconds: f64,
) -> Run {
    let scheduler = engine.scheduler();
    Run {
        model: artifact.kernels.facts.name.clone(),
        artifact: artifact.manifest.target.name.clone(),
        shape: args.shape,
        concurrency: args.concurrency as usize,
        sessions: args.sessions as usize,
        devices: artifact.manifest.mesh.ranks().max(1),
        page_tokens: scheduler.kv().pages().page_tokens(),
        cache_tokens: scheduler.kv().capacity_tokens(),
        preempted: scheduler.counts().preempted,
        steps: scheduler.counts().steps,
        forced_acceptance: args.drafts.forced(),
        drafts: scheduler.facts().draft.as_ref().map(|_| drafts::report(&Counts::default(), &scheduler.counts())),
        host: scheduler.kv().host_use(),
        turns,
        seconds,
        predicted_for: None,
        busy_share: None,
    }
}
