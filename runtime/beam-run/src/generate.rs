//! `beam-run generate`: continuations on the terminal, of a text or of lists of token ids.

use crate::args::{GenerateArgs, ModelArgs};
use crate::failure::Failure;
use crate::model;
use engine::{Engine, Event, Executor, FinishReason, Progress, Refusal, Request, RequestId, Sampling};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use text::{OutputText, Text};

/// A file of tokens, in and out.
#[derive(Deserialize, Serialize)]
#[serde(expecting = "an object with the key `tokens`")]
struct Tokens {
    tokens: Vec<Vec<u32>>,
}

/// Runs the command.
pub fn generate(args: &GenerateArgs) -> Result<(), Failure> {
    match (&args.prompt, &args.tokens) {
        (Some(prompt), _) => continue_text(args, prompt),
        (None, Some(file)) => continue_tokens(args, file),
        (None, None) => Err(Failure::usage("R0201: neither `--prompt` nor `--tokens` is given; give one of them")),
    }
}

fn request(args: &GenerateArgs, prompt: Vec<u32>, stop: &[u32]) -> Request {
    let sampling = Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        seed: args.seed,
        ..Sampling::default()
    };
    let stop = if args.ignore_eos { Vec::new() } else { stop.to_vec() };
    Request { prompt, max_tokens: Some(args.max_tokens), sampling, stop, ..Request::default() }
}

/// An engine with just the cache that the longest of these prompts needs.
fn engine_for(
    args: &GenerateArgs,
    artifact: &artifact::Artifact,
    longest: usize,
) -> Result<Engine<Box<dyn Executor>>, Failure> {
    let own = model::own_context_tokens(artifact);
    let needed = longest.saturating_add(args.max_tokens).min(own.unwrap_or(usize::MAX));
    let next = "lower `--max-tokens` or shorten the prompt";
    model::engine(artifact, &args.model, needed.max(2), 1, &args.drafts, next)
}

fn submit(engine: &mut Engine<Box<dyn Executor>>, request: Request) -> Result<RequestId, Failure> {
    engine.submit(request).map_err(|refusal| match refusal {
        Refusal::AnswerTooLong { .. } | Refusal::NoAnswer | Refusal::Sampling(_) => Failure::usage(refusal),
        _ => Failure::input(refusal),
    })
}

/// Steps until nothing is left, giving every event to `take`.
fn run(
    engine: &mut Engine<Box<dyn Executor>>,
    mut take: impl FnMut(Event) -> Result<(), Failure>,
) -> Result<(), Failure> {
    loop {
        let progress = engine.step();
        for event in engine.take_events() {
            if let Event::Finished { reason: FinishReason::Error(text), .. } = event {
                return Err(Failure::device(text));
            }
            take(event)?;
        }
        match progress {
            Progress::Idle => return Ok(()),
            Progress::Worked => {}
            Progress::Waiting => engine.executor_mut().wait_for_step(model::LONGEST_WAIT),
        }
    }
}

fn continue_tokens(args: &GenerateArgs, file: &Path) -> Result<(), Failure> {
    let prompts = read_tokens(file)?;
    let artifact = model::artifact(&args.model.artifact)?;
    let stop = stop_tokens(&artifact, &args.model)?;
    let longest = prompts.tokens.iter().map(Vec::len).max().unwrap_or(0);
    let mut engine = engine_for(args, &artifact, longest)?;
    let mut ids = Vec::new();
    for prompt in prompts.tokens {
        ids.push(submit(&mut engine, request(args, prompt, &stop))?);
    }
    let mut answers = Tokens { tokens: vec![Vec::new(); ids.len()] };
    run(&mut engine, |event| {
        if let Event::Token { request, token, .. } = event {
            let answer = ids.iter().position(|id| *id == request).and_then(|at| answers.tokens.get_mut(at));
            answer.into_iter().for_each(|answer| answer.push(token.id));
        }
        Ok(())
    })?;
    write_out(&format!("{}\n", json!(answers)))
}

/// Tokens that end an answer, as the model directory knows them.
pub fn stop_tokens(artifact: &artifact::Artifact, args: &ModelArgs) -> Result<Vec<u32>, Failure> {
    let stop = artifact.kernels.facts.runtime.stop.clone();
    match args.model.as_deref().filter(|dir| dir.is_dir()) {
        Some(dir) => text::stop_tokens(dir, &stop).map_err(Failure::input),
        None => Ok(stop),
    }
}

/// The lists of a file of tokens.
pub fn prompts(file: &Path) -> Result<Vec<Vec<u32>>, Failure> {
    Ok(read_tokens(file)?.tokens)
}

fn read_tokens(file: &Path) -> Result<Tokens, Failure> {
    let shown = file.display();
    let bytes =
        std::fs::read(file).map_err(|e| Failure::input(format!("R0202: {shown}: {e}; name a file of token ids")))?;
    serde_json::from_slice(&bytes).map_err(|e| {
        Failure::input(format!(
            "R0203: {shown} is no file of tokens: {e}; it must be {{\"tokens\": [[1, 2, …], …]}} with ids from 0 to {}",
            u32::MAX
        ))
    })
}

fn continue_text(args: &GenerateArgs, prompt: &str) -> Result<(), Failure> {
    let dir = args.model.model.as_deref().ok_or_else(|| {
        Failure::usage(
            "R0204: a text needs a tokenizer, and `--model` is not given; name the model directory, or use `--tokens`",
        )
    })?;
    let artifact = model::artifact(&args.model.artifact)?;
    let text = Arc::new(Text::load(dir, &artifact.kernels.facts.runtime.stop).map_err(Failure::input)?);
    let prompt = text.tokenizer.encode(prompt, true).map_err(Failure::input)?;
    let mut engine = engine_for(args, &artifact, prompt.len())?;
    submit(&mut engine, request(args, prompt, &text.stop))?;
    let mut output = OutputText::new(text, Vec::new(), false);
    let mut whole = String::new();
    let mut tokens = Vec::new();
    let mut end = None;
    run(&mut engine, |event| {
        let piece = match event {
            Event::Token { token, stops, .. } => {
                tokens.push(token.id);
                if stops {
                    return Ok(());
                }
                output.push(token.id)
            }
            Event::Started { .. } | Event::Scored { .. } => return Ok(()),
            Event::Finished { reason, usage, .. } => {
                end = Some((reason, usage));
                output.finish()
            }
        };
        let piece = piece.map_err(Failure::input)?.text;
        whole.push_str(&piece);
        if args.json { Ok(()) } else { write_out(&piece) }
    })?;
    if !args.json {
        return write_out("\n");
    }
    let (reason, usage) = end.ok_or_else(|| {
        Failure::device("R0303: the answer has no end; this is a defect of beam-run, please report it")
    })?;
    let (finish_reason, stop_reason) = match reason {
        FinishReason::Stop(token) => ("stop", Some(token)),
        FinishReason::Length => ("length", None),
        FinishReason::Aborted | FinishReason::Error(_) => ("abort", None),
    };
    let report = json!({
        "ok": true,
        "text": whole,
        "tokens": tokens,
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
        "usage": {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens},
    });
    write_out(&format!("{report:#}\n"))
}

/// Writes at once: a reader follows the answer as it comes.
fn write_out(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(Failure::reader_gone()),
        Err(error) => {
            Err(Failure::output(format!("R0304: the output cannot be written: {error}; check where it goes")))
        }
    }
}
