//! `beam-run score`: logits, losses and graph values of given token ids.
//!
//! Every sequence runs alone, from an empty cache, in steps of the largest bucket. What is written is named
//! `logits.{s}` or `nll.{s}` by the number of the sequence; traced values carry the map's names, with `.{s}`
//! behind them if there are several sequences. An injected tensor is named like a traced one.

mod compare;
pub mod files;
mod losses;
mod names;

use crate::args::ModelArgs;
use crate::failure::Failure;
use crate::feed::{Feed, chunk_tokens};
use crate::{model, outputs};
use device::{Probe, Probed, Tensor, TensorData};
use engine::Executor;
use indexmap::IndexMap;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use losses::Losses;
use names::Names;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Positions are binary32 numbers inside a model; from here on neighbours fall together.
const POSITIONS_END: usize = 1 << 24;

/// Arguments of `score`.
#[derive(clap::Args)]
pub struct ScoreArgs {
    /// What runs.
    #[command(flatten)]
    pub model: ModelArgs,
    /// File of token ids: {"tokens": [[…], …]}.
    #[arg(long, value_name = "FILE")]
    pub tokens: PathBuf,
    /// Safetensors file to write.
    #[arg(long, value_name = "FILE", required_unless_present = "compare")]
    pub out: Option<PathBuf>,
    /// Print how far other models are from this one, layer by layer, and their losses: an artifact and its model directory, as often as
    /// there are models. A file of tokens may say which part of each sequence is given: {"tokens": [[…], …], "prompts": [length, …]}.
    #[arg(long, value_names = ["ARTIFACT", "DIR"], num_args = 2, conflicts_with_all = ["out", "nll", "trace", "inject", "synthetic"])]
    pub compare: Vec<PathBuf>,
    /// Position of the first token; nothing is cached before it.
    #[arg(long, value_name = "P", default_value_t = 0)]
    pub start: usize,
    /// Write each token's loss given the tokens before it instead of logits; the first token's is 0.
    #[arg(long)]
    pub nll: bool,
    /// Write graph values: a JSON file {"name": "graph value", …}; `{l}` on both sides stands for every layer that has the value, and a
    /// list of graph values for the first of them that a layer has.
    #[arg(long, value_name = "MAP")]
    pub trace: Option<PathBuf>,
    /// Put tensors in place of graph values: a safetensors file with names of the map, or of graph values.
    #[arg(long, value_name = "FILE")]
    pub inject: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn score(args: &ScoreArgs) -> Result<(), Failure> {
    if !args.compare.is_empty() {
        return compare::compare(args);
    }
    let out_file = args.out.as_deref().unwrap_or(Path::new(""));
    let mut read = args.model.read();
    read.push(("--tokens", &args.tokens));
    read.extend(args.trace.iter().map(|file| ("--trace", file.as_path())));
    read.extend(args.inject.iter().map(|file| ("--inject", file.as_path())));
    outputs::apart(("--out", out_file), &read)?;
    files::check_writable(out_file)?;
    let sequences = files::read_tokens(&args.tokens)?;
    let map = args.trace.as_deref().map(files::read_map).transpose()?;
    let injected = args.inject.as_deref().map(files::read_tensors).transpose()?.unwrap_or_default();
    let artifact = model::artifact(&args.model.artifact)?;
    let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
    if args.start.checked_add(longest).is_none_or(|end| end > POSITIONS_END) {
        return Err(Failure::usage(format!(
            "R0406: {longest} tokens from position {} end beyond {POSITIONS_END}, where positions stop being distinct numbers; lower `--start`",
            args.start
        )));
    }
    let feed = Feed::new(&artifact, args.start);
    let kind = args.model.executor()?;
    let mut executor =
        model::with_weights(&artifact, &args.model, |weights| feed.probed(&artifact, weights, kind, longest))?;
    check_tokens(&args.tokens, &sequences, executor.facts().vocab)?;
    let names = Names::new(map.unwrap_or_default(), &executor.value_names())?;
    let run = Run { args, feed, names, several: sequences.len() > 1, bar: bar(&sequences) };
    run.check_names()?;
    let mut per_sequence = run.probes(injected, sequences.len())?;
    let mut out = IndexMap::new();
    let mut summary = Vec::new();
    let mut odd = None;
    for (s, tokens) in sequences.iter().enumerate() {
        let inject = std::mem::take(&mut per_sequence[s]);
        let (of_sequence, first) = run.sequence(executor.as_mut(), s, tokens, inject, &mut out)?;
        summary.push(of_sequence);
        odd = odd.or(first.map(|at| (s, at)));
    }
    run.bar.finish_and_clear();
    files::write_tensors(out_file, &out)?;
    if let Some((s, at)) = odd {
        return Err(not_finite(s, args.start + at, &format!("`{}` is written as it is; ", out_file.display())));
    }
    report(args, &out, &summary);
    Ok(())
}

/// Refuses sequences that no model of so many tokens can be given; `file` has them.
pub fn check_tokens(file: &Path, sequences: &[Vec<i32>], vocab: usize) -> Result<(), Failure> {
    for (s, tokens) in sequences.iter().enumerate() {
        if tokens.is_empty() {
            return Err(Failure::input(format!(
                "R0413: sequence {s} of `{}` has no token, at least 1 is needed; remove it",
                file.display()
            )));
        }
        if let Some((i, token)) = tokens.iter().enumerate().find(|(_, t)| **t as usize >= vocab) {
            return Err(Failure::input(format!(
                "R0407: `{}` has token {token} at place {i} of sequence {s}, the model knows 0 to {}; use the model's own tokenizer",
                file.display(),
                vocab.saturating_sub(1)
            )));
        }
    }
    Ok(())
}

/// Logits that are no numbers, at a position of a sequence; `more` is said before the next step.
fn not_finite(s: usize, position: usize, more: &str) -> Failure {
    Failure::input(format!(
        "R0417: sequence {s} has logits at position {position} that are infinite or NaN, and they must be finite; {more}`--trace` with the values of layers shows where they begin"
    ))
}

fn bar(sequences: &[Vec<i32>]) -> ProgressBar {
    let total = sequences.iter().map(|s| s.len() as u64).sum();
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    match ProgressStyle::with_template("scoring {bar:40} {pos}/{len} tokens {per_sec}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn report(args: &ScoreArgs, out: &IndexMap<String, Tensor>, summary: &[serde_json::Value]) {
    if args.json {
        let tensors: Vec<_> = out.iter().map(|(name, t)| json!({"name": name, "shape": t.shape})).collect();
        let body = json!({"ok": true, "out": args.out, "sequences": summary, "tensors": tensors});
        println!("{body:#}");
    } else {
        for (s, of) in summary.iter().enumerate() {
            let loss = of["mean_nll"].as_f64().map_or(String::new(), |x| format!(", mean loss {x:.6} nats"));
            println!("sequence {s}: {} tokens{loss}", of["tokens"]);
        }
        println!("{}: {} tensors", args.out.as_deref().unwrap_or(Path::new("")).display(), out.len());
    }
}

/// The first row with a number that is not finite.
fn first_odd(rows: &[Vec<f32>]) -> Option<usize> {
    rows.iter().position(|row| row.iter().any(|x| !x.is_finite()))
}

/// What all sequences share.
struct Run<'a> {
    args: &'a ScoreArgs,
    feed: Feed,
    names: Names,
    several: bool,
    bar: ProgressBar,
}

impl Run<'_> {
    /// The name in a file of a value of a sequence.
    fn file_name(&self, name: &str, s: usize) -> String {
        if self.several { format!("{name}.{s}") } else { name.to_owned() }
    }

    /// Refuses names of the map that would replace what is written anyway.
    fn check_names(&self) -> Result<(), Failure> {
        match self.names.pairs().map(|(name, _)| self.file_name(name, 0)).find(|name| names::is_reserved(name)) {
            Some(name) => Err(Failure::input(format!(
                "R0414: a value of the map would be written as `{name}`, a name that the file has for itself; choose another name in the map"
            ))),
            None => Ok(()),
        }
    }

    /// Injected tensors by sequence and graph name.
    fn probes(
        &self,
        injected: IndexMap<String, Tensor>,
        sequences: usize,
    ) -> Result<Vec<IndexMap<String, Tensor>>, Failure> {
        let mut out = vec![IndexMap::new(); sequences];
        for (file_name, tensor) in injected {
            let found = (0..sequences).find_map(|s| {
                let name = if self.several { file_name.strip_suffix(&format!(".{s}"))? } else { &file_name };
                Some((s, self.names.graph_name(name)?))
            });
            let Some((s, graph_name)) = found else {
                let suffix = if self.several { " with `.0`, `.1`, … behind it for each sequence" } else { "" };
                return Err(Failure::input(format!(
                    "R0408: tensor `{file_name}` is to be injected, but is no name of the map and no graph value; the nearest is `{}`{suffix}",
                    self.names.nearest(&file_name)
                )));
            };
            out[s].insert(graph_name.to_owned(), tensor);
        }
        Ok(out)
    }

    /// Scores one sequence and adds its tensors to `out`: what is told of it, and its first token with logits that are not finite.
    fn sequence(
        &self,
        executor: &mut dyn Probed,
        s: usize,
        tokens: &[i32],
        inject: IndexMap<String, Tensor>,
        out: &mut IndexMap<String, Tensor>,
    ) -> Result<(serde_json::Value, Option<usize>), Failure> {
        let probe = Probe { trace: self.names.traced(), inject, rows: Some(tokens.len()), start: self.args.start };
        executor.set_probe(probe).map_err(Failure::input)?;
        let vocab = executor.facts().vocab;
        let chunk = chunk_tokens(executor.facts());
        let mut logits = Vec::new();
        let mut losses = Losses::default();
        let mut odd = None;
        for (i, part) in tokens.chunks(chunk).enumerate() {
            let first = i * chunk;
            let rows = self.feed.run(executor, first, part)?;
            odd = odd.or_else(|| first_odd(&rows).map(|place| first + place));
            for (place, row) in rows.iter().enumerate() {
                if self.args.nll {
                    losses.row(row, tokens.get(first + place + 1).copied());
                } else {
                    logits.extend_from_slice(row);
                }
            }
            self.bar.inc(part.len() as u64);
        }
        let mut mean = None;
        if self.args.nll {
            let values = losses.finish(tokens.len());
            mean = Some(values.iter().map(|x| f64::from(*x)).sum::<f64>() / (tokens.len().max(2) - 1) as f64);
            out.insert(format!("nll.{s}"), Tensor { shape: vec![tokens.len()], data: TensorData::F32(values) });
        } else {
            let tensor = Tensor { shape: vec![tokens.len(), vocab], data: TensorData::F32(logits) };
            out.insert(format!("logits.{s}"), tensor);
        }
        let traced = executor.take_trace();
        for (name, graph_name) in self.names.pairs() {
            // One graph value may have several names in the map.
            match traced.get(graph_name) {
                Some(tensor) => out.insert(self.file_name(name, s), tensor.clone()),
                None => {
                    return Err(Failure::input(format!(
                        "R0409: `{graph_name}` took no value in any step of sequence {s}; trace what uses it"
                    )));
                }
            };
        }
        Ok((json!({"tokens": tokens.len(), "mean_nll": mean}), odd))
    }
}
