//! `beam-run bench steps`: what whole steps take on CUDA devices, recorded as they run when serving, and every kernel start of them one by one.
//!
//! Times are the device's own: without writing a step's tables and reading tokens back. With `--synthetic` the weights are made
//! up on the device, so models can be measured that no host memory holds.

use super::stats::{Draw, percentile};
use super::trace::Trace;
use crate::args::ModelArgs;
use crate::failure::Failure;
use crate::{flags, model, outputs};
use artifact::{Artifact, Product};
use clap::Args;
use device::{CudaExecutor, ExecutorKind, Timed, pool_pages_for};
use engine::{Executor, Sampling, SequenceRows, Step, WantedRow};
use ir::RowsPerSequence;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// Steps before those that count: the first runs start by start, the second is recorded.
const UNCOUNTED: usize = 3;
/// Device time before steps that count: a device that was idle takes a moment to reach its clocks.
const WARM_UP_US: f64 = 300e3;
/// Kernels of a step that are printed.
const SHOWN: usize = 16;

/// Arguments of `bench steps`.
#[derive(Args)]
pub struct BenchStepsArgs {
    /// What runs, with `--executor cuda`.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens that stand in the cache of every sequence before it decodes.
    #[arg(long, value_name = "TOKENS", default_value = "4096", value_parser = flags::at_least(1))]
    pub context: usize,
    /// Sequences that decode at once, one case after the other; 0 for none.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,8,32")]
    pub sequences: Vec<usize>,
    /// Tokens of prompts, one case after the other; 0 for none.
    #[arg(long, value_name = "TOKENS,…", value_delimiter = ',', default_value = "8192")]
    pub prefill: Vec<usize>,
    /// Steps of each case that count.
    #[arg(long, value_name = "N", default_value = "20", value_parser = flags::at_least(1))]
    pub runs: usize,
    /// Write every start of a step of each case to this file, for ui.perfetto.dev. Starts run apart there, so they add up to more than a step.
    #[arg(long, value_name = "FILE", value_parser = flags::path)]
    pub trace: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn bench(args: &BenchStepsArgs) -> Result<(), Failure> {
    let ExecutorKind::Cuda(_) = args.model.executor()? else {
        return Err(Failure::usage("R0119: `bench steps` measures CUDA devices; say `--executor cuda`"));
    };
    args.trace.iter().try_for_each(|trace| outputs::apart(("--trace", trace), &args.model.read()))?;
    let artifact = model::artifact(&args.model.artifact)?;
    args.model.fits(&artifact)?;
    let sequences = args.sequences.iter().copied().max().unwrap_or(0).max(1);
    let needed = (args.context + args.runs + UNCOUNTED + 1).max(args.prefill.iter().copied().max().unwrap_or(0));
    if let Some(own) = model::own_context_tokens(&artifact).filter(|own| *own < needed) {
        return Err(Failure::usage(format!(
            "R0501: the steps need {needed} tokens of context, the model is made for {own}; lower `--prefill`, `--context` or `--runs`"
        )));
    }
    let mut bench = Bench::open(&artifact, &args.model, needed, sequences)?;
    let mut cases = Vec::new();
    if args.sequences.iter().any(|n| *n > 0) {
        bench.fill(args.context)?;
    }
    for count in args.sequences.iter().copied().filter(|n| *n > 0) {
        cases.push(bench.decode(count, args)?);
    }
    for tokens in args.prefill.iter().copied().filter(|n| *n > 0) {
        cases.push(bench.prefill(tokens, args)?);
    }
    if let Some(path) = &args.trace {
        let trace = cases.iter().fold(Trace::default(), |trace, case| trace.with(&case.title, &case.starts));
        std::fs::write(path, trace.json())
            .map_err(|e| Failure::output(format!("R0510: the trace cannot be written to `{}`: {e}", path.display())))?;
    }
    let text = if args.json { in_json(&artifact, &cases) } else { cases.iter().map(in_words).collect() };
    // A closed pipe is the reader's decision, not a fault.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// What was measured of one kind of step.
struct Case {
    title: String,
    tokens: usize,
    /// Microseconds of each run, ascending.
    micros: Vec<f64>,
    /// Every start of one run, by itself.
    starts: Vec<Timed>,
    /// Tiles of the last layer's sorted picks, and picks.
    picked: Option<[u32; 2]>,
}

/// An executor, and steps for it.
pub struct Bench<'a> {
    artifact: &'a Artifact,
    pages: Vec<usize>,
    /// Tokens that a sequence has at most.
    needed: usize,
    sequences: usize,
    executor: CudaExecutor,
    draw: Draw,
}

/// Rows of one sequence: which, first position, how many.
pub type Rows = (usize, usize, usize);

impl<'a> Bench<'a> {
    /// Loads an artifact for so many sequences of at most `needed` tokens.
    pub fn open(
        artifact: &'a Artifact,
        model: &ModelArgs,
        needed: usize,
        sequences: usize,
    ) -> Result<Bench<'a>, Failure> {
        let (pages, placed) = (pool_pages_for(&artifact.plan, needed, sequences), model.ranks());
        let executor = match model.synthetic {
            Some(seed) => CudaExecutor::synthetic(artifact, seed, &pages, placed).map_err(Failure::input)?,
            None => model::with_weights(artifact, model, |weights| {
                CudaExecutor::on(artifact, weights, &pages, placed).map_err(Failure::input)
            })?,
        };
        Ok(Bench { artifact, pages, needed, sequences, executor, draw: Draw(7) })
    }

    /// Name of the device.
    pub fn device(&self) -> String {
        self.executor.device()
    }

    /// What every product of a step takes with each number of shares: microseconds.
    pub fn product_micros(&mut self, rows: &[Rows]) -> Result<Vec<(Product, u64, f32)>, Failure> {
        let step = self.step(rows);
        self.executor.product_micros(&step).map_err(Failure::device)
    }

    /// Puts so many tokens of every sequence into the cache.
    pub fn fill(&mut self, context: usize) -> Result<(), Failure> {
        for sequence in 0..self.sequences {
            for chunk in self.chunks(context) {
                let step = self.step(&[(sequence, chunk.0, chunk.1)]);
                let ticket = self.executor.submit(step).map_err(Failure::device)?;
                self.executor.poll(ticket).map_err(Failure::device)?;
            }
        }
        Ok(())
    }

    /// Decodes sequences behind a context.
    fn decode(&mut self, count: usize, args: &BenchStepsArgs) -> Result<Case, Failure> {
        let rows = |at: usize| (0..count).map(|s| (s, args.context + at, 1)).collect::<Vec<Rows>>();
        let mut warm = 0.0;
        while warm < WARM_UP_US {
            let step = self.step(&rows(0));
            warm += f64::from(self.executor.device_micros(&step).map_err(Failure::device)?).max(1.0);
        }
        let mut micros = Vec::new();
        for at in 0..args.runs + UNCOUNTED {
            let step = self.step(&rows(at));
            let time = self.executor.device_micros(&step).map_err(Failure::device)?;
            micros.extend((at >= UNCOUNTED).then_some(f64::from(time)));
        }
        micros.sort_by(f64::total_cmp);
        let step = self.step(&rows(args.runs));
        let starts = self.executor.timeline(&step).map_err(Failure::device)?;
        let picked = self.executor.picked_tiles().map_err(Failure::device)?;
        let title = format!("{count} sequences behind {}", args.context);
        Ok(Case { title, tokens: count, micros, starts, picked })
    }

    /// Reads a prompt, in as many steps as its length takes.
    fn prefill(&mut self, tokens: usize, args: &BenchStepsArgs) -> Result<Case, Failure> {
        let chunks = self.chunks(tokens);
        let mut micros = Vec::new();
        for run in 0..=args.runs {
            let mut all = 0.0;
            for (first, len) in &chunks {
                let step = self.step(&[(0, *first, *len)]);
                all += f64::from(self.executor.device_micros(&step).map_err(Failure::device)?);
            }
            micros.extend((run > 0).then_some(all));
        }
        micros.sort_by(f64::total_cmp);
        let mut starts = Vec::new();
        for (first, len) in chunks {
            let step = self.step(&[(0, first, len)]);
            starts.extend(self.executor.timeline(&step).map_err(Failure::device)?);
        }
        let picked = self.executor.picked_tiles().map_err(Failure::device)?;
        Ok(Case { title: format!("a prompt of {tokens}"), tokens, micros, starts, picked })
    }

    /// First positions and lengths of the steps that read so many tokens.
    fn chunks(&self, tokens: usize) -> Vec<(usize, usize)> {
        let buckets = self.artifact.plan.entries.iter().flat_map(|e| &e.buckets).map(|b| &b.bucket);
        let ragged = buckets.filter(|b| b.rows == RowsPerSequence::Ragged).map(|b| b.tokens as usize);
        let most = ragged.max().unwrap_or(1).max(1);
        (0..tokens).step_by(most).map(|first| (first, most.min(tokens - first))).collect()
    }

    fn step(&mut self, rows: &[Rows]) -> Step {
        let entry = self.artifact.plan.entries.first().map(|e| e.name.clone()).unwrap_or_default();
        let mut step = Step { entry, ..Step::default() };
        let page_tokens = self.artifact.plan.kv.iter().map(|k| k.page_tokens as usize).max().unwrap_or(1).max(1);
        let each = self.needed.div_ceil(page_tokens);
        let vocab = self.executor.facts().vocab as u64;
        for (sequence, first, len) in rows {
            let start = step.tokens.len();
            for position in *first..first + len {
                step.tokens.push(self.draw.below(vocab) as i32);
                step.positions.push(position as i32);
            }
            let pages: Vec<u32> = (0..each).map(|p| (sequence * each + p) as u32).collect();
            step.sequences.push(SequenceRows { start, len: *len, pages: Arc::new(pages) });
            step.wanted.push(WantedRow {
                row: start + len - 1,
                sampling: Some(Sampling::default()),
                mask: None,
                logits: false,
            });
        }
        let count = (each * self.sequences) as i32;
        let tables = self.pages.iter().map(|pages| (1..=count).map(|p| p.min(*pages as i32 - 1)).collect());
        step.translation = tables.collect();
        step
    }
}

fn in_json(artifact: &Artifact, cases: &[Case]) -> String {
    let of = |case: &Case| {
        let starts = case.starts.iter();
        let starts: Vec<Value> =
            starts.map(|t| json!({ "region": t.region, "kernel": t.kernel, "micros": t.micros })).collect();
        json!({
            "case": case.title, "tokens": case.tokens, "runs_us": case.micros,
            "median_us": percentile(&case.micros, 0.5), "best_us": case.micros.first(), "starts": starts,
            "tiles_of_picks": case.picked.map(|[tiles, _]| tiles), "picks": case.picked.map(|[_, picks]| picks),
        })
    };
    let (model, target) = (&artifact.kernels.facts.name, &artifact.manifest.target.name);
    let cases: Vec<Value> = cases.iter().map(of).collect();
    format!("{:#}\n", json!({ "ok": true, "model": model, "artifact": target, "cases": cases }))
}

/// The median, and which kernels take how long.
fn in_words(case: &Case) -> String {
    let (median, total) = (percentile(&case.micros, 0.5), case.starts.iter().map(|t| t.micros).sum::<f32>());
    let mut text = format!(
        "{}: {:.3} ms in the middle of {} runs; {} starts, {:.3} ms apart\n",
        case.title,
        median / 1e3,
        case.micros.len(),
        case.starts.len(),
        total / 1e3
    );
    if let Some([tiles, picks]) = case.picked {
        text += &format!("  {picks} picks of the last layer in {tiles} tiles\n");
    }
    let mut kernels: BTreeMap<&str, (usize, f32)> = BTreeMap::new();
    for t in &case.starts {
        let of = kernels.entry(t.kernel.as_str()).or_default();
        *of = (of.0 + 1, of.1 + t.micros);
    }
    let mut kernels: Vec<_> = kernels.into_iter().collect();
    kernels.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    for (kernel, (count, micros)) in kernels.iter().take(SHOWN) {
        text += &format!("  {micros:10.1} us  {count:3} x {:9.1}  {kernel}\n", micros / *count as f32);
    }
    text
}
