//! `beam-run bench model`: tokens per second of one sequence, as a client of the engine sees them.
//!
//! Times are wall times around the engine's steps: scheduling, the device and greedy sampling, no text and no HTTP. Every run has other
//! tokens, drawn by a counter, so nothing can be reused from the run before.

use crate::args::ModelArgs;
use crate::failure::Failure;
use crate::model;
use clap::Args;
use engine::{Engine, Event, Executor, FinishReason, Progress, Request};
use serde_json::{Value, json};
use std::io::Write;
use std::time::{Duration, Instant};

/// Arguments of `bench model`.
#[derive(Args)]
pub struct BenchModelArgs {
    /// What runs.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens of the prompt whose reading is timed.
    #[arg(long, value_name = "TOKENS", default_value = "512", value_parser = clap::value_parser!(u32).range(1..))]
    pub prefill: u32,
    /// Tokens that stand in the cache before decoding is timed.
    #[arg(long, value_name = "TOKENS", default_value = "64", value_parser = clap::value_parser!(u32).range(1..))]
    pub context: u32,
    /// Tokens decoded one after the other.
    #[arg(long, value_name = "TOKENS", default_value = "64", value_parser = clap::value_parser!(u32).range(1..))]
    pub decode: u32,
    /// Runs of each kind that count, after one that does not.
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Threads that compute; all processors if absent.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn bench(args: &BenchModelArgs) -> Result<(), Failure> {
    if let Some(threads) = args.threads {
        device::use_threads(threads as usize).map_err(Failure::usage)?;
    }
    let artifact = model::artifact(&args.model.artifact)?;
    // A prompt that is only read still needs one token of answer.
    let needed = (args.prefill as usize + 1).max(args.context as usize + args.decode as usize + 1);
    if let Some(own) = model::own_context_tokens(&artifact).filter(|own| *own < needed) {
        return Err(Failure::usage(format!(
            "R0501: the runs need {needed} tokens of context, the model is made for {own}; lower `--prefill`, `--context` or `--decode`"
        )));
    }
    let mut bench = Bench {
        engine: model::engine(&artifact, &args.model, needed, 1, "lower `--prefill`, `--context` or `--decode`")?,
        drawn: 0,
    };
    let mut prefill = Vec::new();
    let mut decode = Vec::new();
    for run in 0..=args.runs {
        let read = bench.run(args.prefill, 1)?.first;
        // The first decoded token ends the reading of the context; what follows is timed.
        let written = bench.run(args.context, args.decode + 1)?;
        if run > 0 {
            prefill.push(read);
            decode.push(written.rest);
        }
    }
    let report = json!({
        "ok": true,
        "artifact": artifact.manifest.target.name,
        "model": artifact.kernels.facts.name,
        "executor": args.model.executor()?.to_string(),
        "threads": device::threads(),
        "prefill": timed(args.prefill, &prefill),
        "decode": timed(args.decode, &decode),
        "context": args.context,
    });
    let text = if args.json { format!("{report:#}\n") } else { table(args, &report) };
    // A closed pipe is the reader's decision, not a fault.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// Times of one request.
struct Times {
    /// Until its first token.
    first: Duration,
    /// From its first token to its last.
    rest: Duration,
}

struct Bench {
    engine: Engine<Box<dyn Executor>>,
    drawn: u64,
}

impl Bench {
    /// One request, alone.
    fn run(&mut self, prompt: u32, answer: u32) -> Result<Times, Failure> {
        let vocab = self.engine.vocab() as u64;
        let prompt: Vec<u32> = (0..u64::from(prompt)).map(|i| self.draw(i, vocab)).collect();
        self.drawn += prompt.len() as u64;
        let request = Request { prompt, max_tokens: Some(answer as usize), ..Request::default() };
        let start = Instant::now();
        let mut first = None;
        self.engine.submit(request).map_err(Failure::input)?;
        loop {
            let progress = self.engine.step();
            for event in self.engine.take_events() {
                match event {
                    Event::Token { .. } => {
                        first.get_or_insert_with(|| start.elapsed());
                    }
                    Event::Finished { reason: FinishReason::Error(text), .. } => return Err(Failure::device(text)),
                    _ => {}
                }
            }
            match progress {
                Progress::Idle => break,
                Progress::Worked => {}
                Progress::Waiting => std::thread::yield_now(),
            }
        }
        let first = first.ok_or_else(|| Failure::device("R0303: an answer without a token; please report it"))?;
        Ok(Times { first, rest: start.elapsed() - first })
    }

    fn draw(&self, i: u64, vocab: u64) -> u32 {
        // The golden ratio spreads counters evenly; the upper half of the product is the good one.
        let spread = (self.drawn + i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (spread % vocab.max(1)) as u32
    }
}

/// Runs of `tokens` tokens each.
fn timed(tokens: u32, runs: &[Duration]) -> Value {
    let mut sorted: Vec<f64> = runs.iter().map(Duration::as_secs_f64).collect();
    sorted.sort_by(f64::total_cmp);
    let at = |i: usize| sorted.get(i).copied().unwrap_or(f64::NAN);
    let median = (at((sorted.len().saturating_sub(1)) / 2) + at(sorted.len() / 2)) / 2.0;
    let tokens_f = f64::from(tokens);
    json!({
        "tokens": tokens,
        "runs_s": runs.iter().map(Duration::as_secs_f64).collect::<Vec<_>>(),
        "median_s": median,
        "best_s": at(0),
        "tokens_per_s": tokens_f / median,
        "ms_per_token": median * 1e3 / tokens_f,
    })
}

fn table(args: &BenchModelArgs, report: &Value) -> String {
    let line = |kind: &str, what: String| {
        let timed = &report[kind];
        let number = |key: &str| timed[key].as_f64().unwrap_or(f64::NAN);
        format!(
            "{what}: {:.0} tokens/s, {:.3} ms in the middle of {} runs, {:.3} ms at best\n",
            number("tokens_per_s"),
            number("median_s") * 1e3,
            args.runs,
            number("best_s") * 1e3
        )
    };
    format!(
        "{} for {}, executor {}, {} threads\n{}{}",
        report["model"].as_str().unwrap_or_default(),
        report["artifact"].as_str().unwrap_or_default(),
        report["executor"].as_str().unwrap_or_default(),
        report["threads"],
        line("prefill", format!("prompt of {} tokens", args.prefill)),
        line("decode", format!("{} tokens after {}", args.decode, args.context)),
    )
}
