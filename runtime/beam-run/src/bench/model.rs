//! `beam-run bench model`: tokens per second of one sequence, as a client of the engine sees them.
//!
//! Times are wall times around the engine's steps: scheduling, the device and greedy sampling, no text and no HTTP. Every run has other
//! tokens, drawn by a counter, so nothing can be reused from the run before; or the prompts of a file are continued.
//! With a drafter, the same is decoded without drafts and with them, one after the other in every run.

use crate::args::ModelArgs;
use crate::drafts::{self, DraftArgs};
use crate::failure::Failure;
use crate::{flags, generate, model};
use clap::Args;
use engine::{DraftLimits, Engine, Event, Executor, FinishReason, Progress, Request};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
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
    /// File of token ids to continue instead, at most `--decode` tokens each and no further than a token that ends an answer.
    #[arg(long, value_name = "FILE", value_parser = flags::path)]
    pub tokens: Option<PathBuf>,
    /// What is drafted.
    #[command(flatten)]
    pub drafts: DraftArgs,
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

impl BenchModelArgs {
    /// Refuses what this build cannot do, and what contradicts itself, before anything is read.
    pub fn supported(&self) -> Result<(), Failure> {
        self.model.supported()?;
        match (&self.model.model, self.model.synthetic, &self.tokens) {
            // Prompts of a file end with tokens that the directory knows.
            (Some(_), Some(_), None) => self.model.weights_alone("bench model"),
            _ => Ok(()),
        }
    }
}

/// Runs the command.
pub fn bench(args: &BenchModelArgs) -> Result<(), Failure> {
    if let Some(threads) = args.threads {
        device::use_threads(threads as usize).map_err(Failure::usage)?;
    }
    let artifact = model::artifact(&args.model.artifact)?;
    let prompts = args.tokens.as_deref().map(generate::prompts).transpose()?;
    let longest = prompts.iter().flatten().map(Vec::len).max().unwrap_or(args.context as usize);
    // A prompt that is only read still needs one token of answer.
    let needed = (args.prefill as usize + 1).max(longest + args.decode as usize + 1);
    if let Some(own) = model::own_context_tokens(&artifact).filter(|own| *own < needed) {
        return Err(Failure::usage(format!(
            "R0501: the runs need {needed} tokens of context, the model is made for {own}; lower `--prefill`, `--context` or `--decode`"
        )));
    }
    let next = "lower `--prefill`, `--context` or `--decode`";
    let engine = model::engine(&artifact, &args.model, needed, 1, &args.drafts, next)?;
    let stop = if prompts.is_some() { generate::stop_tokens(&artifact, &args.model)? } else { Vec::new() };
    let mut bench = Bench { engine, drawn: 0, prompts: prompts.unwrap_or_default(), stop };
    let mut report = json!({
        "ok": true,
        "artifact": artifact.manifest.target.name,
        "model": artifact.kernels.facts.name,
        "executor": args.model.executor()?.to_string(),
        "threads": device::threads(),
        "context": longest,
    });
    let same = bench.measure(args, &mut report)?;
    let text = if args.json { format!("{report:#}\n") } else { table(args, &report) };
    // A closed pipe is the reader's decision, not a fault.
    let _ = std::io::stdout().write_all(text.as_bytes());
    if same || !args.drafts.forced().is_null() { Ok(()) } else { Err(Failure::reported_fault()) }
}

/// One request, or several one after the other.
#[derive(Default)]
struct Times {
    /// Until the first token.
    first: Duration,
    /// From the first token to the last.
    rest: Duration,
    /// What was said, from the second token on.
    said: Vec<u32>,
}

impl Times {
    fn add(&mut self, other: Times) {
        self.rest += other.rest;
        self.said.extend(other.said);
    }
}

struct Bench {
    engine: Engine<Box<dyn Executor>>,
    drawn: u64,
    /// What is continued; drawn tokens if there is none.
    prompts: Vec<Vec<u32>>,
    stop: Vec<u32>,
}

impl Bench {
    /// All runs, into the report; whether the tokens with drafts are those without.
    fn measure(&mut self, args: &BenchModelArgs, report: &mut Value) -> Result<bool, Failure> {
        let wished = self.engine.drafts().clone();
        let has_drafter = self.engine.scheduler().facts().draft.is_some();
        let is_drafting = has_drafter && wished.rows.is_none_or(|rows| rows > 1);
        let plain = DraftLimits { rows: Some(0), ..DraftLimits::default() };
        let (mut prefill, mut decode, mut drafted) = (Vec::new(), Vec::new(), Vec::new());
        let (mut tokens, mut same) = (0, true);
        let before = self.engine.scheduler().counts();
        for run in 0..=args.runs {
            self.engine.set_drafts(plain.clone());
            let prompt = self.drawn(args.prefill as usize);
            let read = self.run(prompt, 1)?.first;
            // The first decoded token ends the reading of the context; what follows is timed.
            let drawn = [self.drawn(args.context as usize)];
            let (mut alone, mut with) = (Times::default(), Times::default());
            // One prompt after the other with and without: what else the machine does changes from second to second.
            for prompt in if self.prompts.is_empty() { drawn.to_vec() } else { self.prompts.clone() } {
                self.engine.set_drafts(plain.clone());
                alone.add(self.run(prompt.clone(), args.decode as usize + 1)?);
                if is_drafting {
                    self.engine.set_drafts(wished.clone());
                    with.add(self.run(prompt, args.decode as usize + 1)?);
                }
            }
            if is_drafting {
                same &= with.said == alone.said;
                drafted.extend((run > 0).then_some(with.rest));
            }
            if run > 0 {
                tokens = alone.said.len();
                prefill.push(read);
                decode.push(alone.rest);
            }
        }
        report["prefill"] = timed(args.prefill as usize, &prefill);
        report["decode"] = timed(tokens, &decode);
        if is_drafting {
            let mut with = timed(tokens, &drafted);
            let rate = |timed: &Value| timed["tokens_per_s"].as_f64().unwrap_or(f64::NAN);
            with["times_as_fast"] = json!(rate(&with) / rate(&report["decode"]));
            with["same_tokens"] = json!(same);
            with["forced_acceptance"] = args.drafts.forced();
            with["drafts"] = drafts::report(&before, &self.engine.scheduler().counts());
            report["decode_with_drafts"] = with;
            report["ok"] = json!(same || args.drafts.forced() != Value::Null);
        }
        Ok(same)
    }

    /// One request, alone.
    fn run(&mut self, prompt: Vec<u32>, answer: usize) -> Result<Times, Failure> {
        let stop = self.stop.clone();
        let request = Request { prompt, max_tokens: Some(answer), stop, ..Request::default() };
        let start = Instant::now();
        let mut times = Times::default();
        let mut first = None;
        self.engine.submit(request).map_err(Failure::input)?;
        loop {
            let progress = self.engine.step();
            for event in self.engine.take_events() {
                match event {
                    Event::Token { token, .. } if first.is_some() => times.said.push(token.id),
                    Event::Token { .. } => first = Some(start.elapsed()),
                    Event::Finished { reason: FinishReason::Error(text), .. } => return Err(Failure::device(text)),
                    _ => {}
                }
            }
            match progress {
                Progress::Idle => break,
                Progress::Worked => {}
                Progress::Waiting => self.engine.executor_mut().wait_for_step(model::LONGEST_WAIT),
            }
        }
        times.first = first.ok_or_else(|| Failure::device("R0303: an answer without a token; please report it"))?;
        times.rest = start.elapsed() - times.first;
        Ok(times)
    }

    /// So many tokens that nobody has had before.
    fn drawn(&mut self, n: usize) -> Vec<u32> {
        let vocab = self.engine.vocab() as u64;
        let tokens = (0..n as u64).map(|i| self.draw(i, vocab)).collect();
        self.drawn += n as u64;
        tokens
    }

    fn draw(&self, i: u64, vocab: u64) -> u32 {
        // The golden ratio spreads counters evenly; the upper half of the product is the good one.
        let spread = (self.drawn + i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (spread % vocab.max(1)) as u32
    }
}

/// Runs of `tokens` tokens each.
fn timed(tokens: usize, runs: &[Duration]) -> Value {
    let mut sorted: Vec<f64> = runs.iter().map(Duration::as_secs_f64).collect();
    sorted.sort_by(f64::total_cmp);
    let at = |i: usize| sorted.get(i).copied().unwrap_or(f64::NAN);
    let median = (at((sorted.len().saturating_sub(1)) / 2) + at(sorted.len() / 2)) / 2.0;
    let tokens_f = tokens as f64;
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
    let mut text = format!(
        "{} for {}, executor {}, {} threads\n{}{}",
        report["model"].as_str().unwrap_or_default(),
        report["artifact"].as_str().unwrap_or_default(),
        report["executor"].as_str().unwrap_or_default(),
        report["threads"],
        line("prefill", format!("prompt of {} tokens", args.prefill)),
        line("decode", format!("{} tokens after {}", report["decode"]["tokens"], report["context"])),
    );
    let with = &report["decode_with_drafts"];
    if with.is_null() {
        return text;
    }
    let number = |path: &str| with.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN);
    text += &line("decode_with_drafts", "the same with drafts".to_owned());
    text += &format!(
        "{:.2} times as fast, {:.2} tokens a block, {:.1} % of drafts stand; {}\n",
        number("/times_as_fast"),
        number("/drafts/tokens_per_block"),
        number("/drafts/accept_rate") * 100.0,
        match (args.drafts.simulate_acceptance, with["same_tokens"].as_bool()) {
            (Some(tokens), _) => format!("FORCED to {tokens} tokens a block: the text is meaningless"),
            (None, Some(true)) => "the same tokens".to_owned(),
            (None, _) => "OTHER TOKENS than without drafts: please report it".to_owned(),
        },
    );
    text
}
