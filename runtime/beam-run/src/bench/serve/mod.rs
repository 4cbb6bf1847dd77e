//! `beam-run bench serve`: load on any server that speaks the OpenAI API.
//!
//! *Closed loop*: so many clients, each asking again when it has its answer. *Open loop*: requests arrive at a rate, whether or
//! not the ones before are answered; a server that is too slow shows it in the times. Prompts are made-up token ids for
//! `/v1/completions`, so that their length is exact, or messages of made-up words for `/v1/chat/completions`.

mod client;

use crate::bench::stats::{Draw, number, spread};
use crate::failure::Failure;
use crate::flags;
use clap::Args;
use client::{Reply, Server};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Arguments of `bench serve`.
#[derive(Args)]
pub struct BenchServeArgs {
    /// Where the server listens, such as `http://127.0.0.1:8000`.
    pub url: String,
    /// Model that is asked for; the first that the server lists if absent.
    #[arg(long, value_name = "NAME")]
    served_model: Option<String>,
    /// Key of the server.
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Requests in all.
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u32).range(1..))]
    requests: u32,
    /// Clients that ask again when they have their answer; with `--rate` the most requests that are open at once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: Option<u32>,
    /// Requests a second on average, arriving independently of each other.
    #[arg(long, value_name = "PER_SECOND", value_parser = flags::above_zero(1e6))]
    rate: Option<f64>,
    /// Tokens of a prompt, or about so many words of a message.
    #[arg(long, value_name = "TOKENS", default_value = "256", value_parser = clap::value_parser!(u32).range(1..))]
    input_tokens: u32,
    /// Tokens with which all prompts begin alike, of those.
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    shared_tokens: u32,
    /// Tokens of an answer; ending tokens are ignored where the server can do that.
    #[arg(long, value_name = "TOKENS", default_value = "64", value_parser = clap::value_parser!(u32).range(1..))]
    output_tokens: u32,
    /// Send messages to `/v1/chat/completions` instead of token ids to `/v1/completions`.
    #[arg(long)]
    chat: bool,
    /// Token ids of prompts are below this.
    #[arg(long, value_name = "IDS", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..))]
    vocab: u32,
    /// Seed of prompts and arrivals.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl BenchServeArgs {
    /// Requests that may be open at once, and the mean time between two arrivals.
    fn load(&self) -> (usize, Option<f64>) {
        match self.rate {
            Some(rate) => (self.concurrency.map_or(Semaphore::MAX_PERMITS, |n| n as usize), Some(1.0 / rate)),
            None => (self.concurrency.unwrap_or(1) as usize, None),
        }
    }

    fn body(&self, model: &str, number: u32) -> Value {
        let mut own = Draw(self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ u64::from(number + 1));
        let mut shared = Draw(self.seed);
        let begins = self.shared_tokens.min(self.input_tokens);
        let ids: Vec<u64> = (0..self.input_tokens)
            .map(|i| if i < begins { &mut shared } else { &mut own }.below(u64::from(self.vocab)))
            .collect();
        let mut body = json!({"model": model, "max_tokens": self.output_tokens, "temperature": 0, "stream": true,
            "stream_options": {"include_usage": true}, "ignore_eos": true, "seed": number});
        let (key, value) = if self.chat {
            let words: Vec<String> = ids.iter().map(|id| format!("w{id}")).collect();
            ("messages", json!([{"role": "user", "content": words.join(" ")}]))
        } else {
            ("prompt", json!(ids))
        };
        if let Some(fields) = body.as_object_mut() {
            fields.insert(key.to_owned(), value);
        }
        body
    }
}

/// Runs the command.
pub fn bench(args: &BenchServeArgs) -> Result<(), Failure> {
    let server = Server::new(&args.url, args.api_key.clone())
        .map_err(|e| Failure::usage(format!("R0506: `{}` is no address to ask: {e}", args.url)))?;
    if args.shared_tokens > args.input_tokens {
        let (shared, all) = (args.shared_tokens, args.input_tokens);
        return Err(Failure::usage(format!(
            "R0507: `--shared-tokens` is {shared} of the {all} of `--input-tokens`; ask for no more than those"
        )));
    }
    let (most_open, wait) = args.load();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::device(format!("R0301: no threads for connections: {e}; end other programs")))?;
    let (replies, seconds) = runtime.block_on(async {
        let unreachable =
            |e: String| Failure::input(format!("R0508: {} does not answer: {e}; is the server up?", args.url));
        let model = match &args.served_model {
            Some(name) => name.clone(),
            None => server.first_model().await.map_err(unreachable)?,
        };
        Ok(load(args, Arc::new(server), &model, most_open, wait).await)
    })?;
    let report = report(args, &replies, seconds);
    let text = if args.json { format!("{report:#}\n") } else { table(&report) };
    // A closed pipe is the reader's decision, not a fault.
    let _ = std::io::stdout().write_all(text.as_bytes());
    match replies.iter().any(|r| r.error.is_none()) {
        true => Ok(()),
        false => {
            let why = replies.iter().find_map(|r| r.error.as_deref()).unwrap_or("no request was sent");
            Err(Failure::input(format!("R0509: no request was answered: {why}")))
        }
    }
}

/// Sends all requests; the replies, and how long it took.
async fn load(
    args: &BenchServeArgs,
    server: Arc<Server>,
    model: &str,
    most_open: usize,
    wait: Option<f64>,
) -> (Vec<Reply>, f64) {
    let path = if args.chat { "/v1/chat/completions" } else { "/v1/completions" };
    let (open, mut tasks) = (Arc::new(Semaphore::new(most_open)), JoinSet::new());
    let (start, mut arrivals, mut due) = (Instant::now(), Draw(args.seed ^ 0xa771), 0.0);
    for number in 0..args.requests {
        if let Some(mean) = wait {
            due += arrivals.wait(mean);
            tokio::time::sleep_until((start + Duration::from_secs_f64(due)).into()).await;
        }
        // The semaphore is never closed.
        let Ok(permit) = open.clone().acquire_owned().await else { break };
        let (server, body) = (server.clone(), args.body(model, number));
        tasks.spawn(async move {
            let reply = server.stream(path, &body).await;
            drop(permit);
            reply
        });
    }
    (tasks.join_all().await, start.elapsed().as_secs_f64())
}

fn report(args: &BenchServeArgs, replies: &[Reply], seconds: f64) -> Value {
    let good: Vec<&Reply> = replies.iter().filter(|r| r.error.is_none()).collect();
    let sum = |of: fn(&Reply) -> u64| good.iter().map(|r| of(r)).sum::<u64>();
    let (input, output, cached) = (sum(|r| r.prompt_tokens), sum(|r| r.completion_tokens), sum(|r| r.cached_tokens));
    let rate = |n: u64| number(n as f64 / seconds);
    let per_token = |r: &&Reply| {
        let (first, tokens) = (r.first?, r.completion_tokens.checked_sub(1).filter(|n| *n > 0)?);
        Some((r.last - first) / tokens as f64)
    };
    let mut statuses = std::collections::BTreeMap::<String, usize>::new();
    for reply in replies {
        *statuses.entry(reply.status.to_string()).or_default() += 1;
    }
    let refused: Vec<&Reply> = replies.iter().filter(|r| matches!(r.status, 429 | 503)).collect();
    json!({
        "ok": true,
        "url": args.url,
        "loop": if args.rate.is_some() { "open" } else { "closed" },
        "rate_per_second": args.rate,
        "concurrency": args.concurrency,
        "requests": replies.len(),
        "answered": good.len(),
        "statuses": statuses,
        "refused_when_full": refused.len(),
        "of_those_with_retry_after": refused.iter().filter(|r| r.retry_after).count(),
        "first_error": replies.iter().find_map(|r| r.error.clone()),
        "seconds": number(seconds),
        "requests_per_second": rate(good.len() as u64),
        "input_tokens_per_second": rate(input),
        "output_tokens_per_second": rate(output),
        "cached_share_of_input": number(cached as f64 / input.max(1) as f64),
        "time_to_first_token": spread(good.iter().filter_map(|r| r.first).collect(), "s"),
        "between_pieces": spread(good.iter().flat_map(|r| r.gaps.iter().copied()).collect(), "s"),
        "time_per_output_token": spread(good.iter().filter_map(per_token).collect(), "s"),
        "whole_request": spread(good.iter().map(|r| r.last).collect(), "s"),
    })
}

fn table(report: &Value) -> String {
    let at = |path: &str| report.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN);
    let mut text = format!(
        "{} of {} requests answered in {:.2} s, {} refused when full ({} loop)\n\
         {:.2} requests/s, {:.1} input tokens/s ({:.1} % cached), {:.1} output tokens/s\n",
        report["answered"],
        report["requests"],
        at("/seconds"),
        report["refused_when_full"],
        report["loop"].as_str().unwrap_or_default(),
        at("/requests_per_second"),
        at("/input_tokens_per_second"),
        at("/cached_share_of_input") * 100.0,
        at("/output_tokens_per_second"),
    );
    for (key, name) in [
        ("time_to_first_token", "first token"),
        ("between_pieces", "between pieces"),
        ("time_per_output_token", "per output token"),
        ("whole_request", "whole request"),
    ] {
        let ms = |p: &str| at(&format!("/{key}/{p}")) * 1e3;
        text += &match ms("p50").is_finite() {
            true => format!("{name}: {:.2} ms p50, {:.2} ms p90, {:.2} ms p99\n", ms("p50"), ms("p90"), ms("p99")),
            false => format!("{name}: nothing was measured\n"),
        };
    }
    if let Some(error) = report["first_error"].as_str() {
        text += &format!("first error: {error}\n");
    }
    text
}
