//! `beam-run score --compare`: how far quantised models are from the one that they were made of.
//!
//! Every sequence runs through the reference and through each model beside it. What leaves a layer is compared with what leaves the
//! same layer of the reference: the error's rms over the value's rms, over all tokens. Losses are those of the tokens behind each
//! sequence's prompt, if the file of tokens says how long prompts are.

use super::{ScoreArgs, bar, check_tokens, files, first_odd, losses};
use crate::failure::Failure;
use crate::feed::{Feed, chunk_tokens};
use crate::model;
use artifact::Artifact;
use device::{Probe, Probed, Tensor, TensorData};
use engine::Executor;
use indexmap::IndexMap;
use serde_json::{Value, json};
use std::path::Path;

/// A model under comparison.
struct Side {
    name: String,
    feed: Feed,
    executor: Box<dyn Probed>,
    /// What leaves each layer, by full name.
    layers: Vec<String>,
    /// Numbers that leave a layer for each token.
    width: u64,
}

/// Sums over tokens.
#[derive(Default)]
struct Sums {
    error: f64,
    size: f64,
}

impl Sums {
    fn add(&mut self, found: &[f32], reference: &[f32]) {
        for (x, r) in found.iter().zip(reference) {
            self.error += f64::from(x - r).powi(2);
            self.size += f64::from(*r).powi(2);
        }
    }

    fn relative(&self) -> f64 {
        (self.error / self.size.max(f64::MIN_POSITIVE)).sqrt()
    }
}

/// What is known of a model.
#[derive(Default)]
struct Found {
    layers: Vec<Sums>,
    logits: Sums,
    loss: f64,
    tokens: usize,
    /// Tokens whose most probable successor is the reference's.
    same: usize,
    rows: usize,
}

/// What one sequence gives.
struct Ran {
    logits: Vec<Vec<f32>>,
    layers: IndexMap<String, Tensor>,
}

impl Side {
    fn open(
        artifact_dir: &Path,
        model: Option<&Path>,
        (args, longest): (&ScoreArgs, usize),
        reference: Option<&Side>,
    ) -> Result<Side, Failure> {
        let artifact = model::artifact(artifact_dir)?;
        let (layers, width) = (leaving(&artifact), width(&artifact));
        let same = |what: &str, own: u64, of: u64| same(what, (artifact_dir, own), (&args.model.artifact, of));
        if let Some(of) = reference {
            same("layers", layers.len() as u64, of.layers.len() as u64)?;
            same("numbers for each token between layers", width, of.width)?;
        }
        let mut source = args.model.clone();
        source.artifact = artifact_dir.to_owned();
        source.model = model.map(Path::to_owned).or(source.model);
        let weights = model::weights(&artifact, &source)?;
        let feed = Feed::new(&artifact, args.start);
        let executor = feed.probed(&artifact, &weights, args.model.executor()?, longest)?;
        if let Some(of) = reference {
            same("tokens in its vocabulary", executor.facts().vocab as u64, of.executor.facts().vocab as u64)?;
        }
        let name = artifact.manifest.target.name.clone();
        Ok(Side { name, feed, executor, layers, width })
    }

    fn run(&mut self, tokens: &[i32]) -> Result<Ran, Failure> {
        let probe = Probe { trace: self.layers.clone(), ..Probe::default() };
        self.executor.set_probe(probe).map_err(Failure::input)?;
        let chunk = chunk_tokens(self.executor.facts());
        let mut logits = Vec::with_capacity(tokens.len());
        for (i, part) in tokens.chunks(chunk).enumerate() {
            logits.extend(self.feed.run(self.executor.as_mut(), i * chunk, part)?);
        }
        Ok(Ran { logits, layers: self.executor.take_trace() })
    }
}

/// The first result of every layer, in the order in which layers run.
fn leaving(artifact: &Artifact) -> Vec<String> {
    let Some(entry) = artifact.kernels.entries.first() else { return Vec::new() };
    let of_instance = |i: &ir::Instance| {
        let graph = &entry.graphs.get(ir::KernelEntry::class_graph(i.class))?.graph;
        graph.outputs.first().map(|(_, id)| format!("layers.{}.{id}", i.layer))
    };
    entry.instances.iter().filter_map(of_instance).collect()
}

/// Numbers of a token that leave a layer.
fn width(artifact: &Artifact) -> u64 {
    let width = || {
        let entry = artifact.kernels.entries.first()?;
        let class = entry.instances.first()?.class;
        let graph = &entry.graphs.get(ir::KernelEntry::class_graph(class))?.graph;
        let (_, leaves) = graph.outputs.first()?;
        let lengths = graph.tensor(*leaves)?.axes.iter().filter_map(|axis| match axis.extent {
            ir::Extent::Fixed(length) => Some(length),
            ir::Extent::Rows => None,
        });
        Some(lengths.product())
    };
    width().unwrap_or(0)
}

/// Refuses models that cannot be compared: each with its artifact and its number of something.
fn same(what: &str, one: (&Path, u64), other: (&Path, u64)) -> Result<(), Failure> {
    if one.1 == other.1 {
        return Ok(());
    }
    Err(Failure::input(format!(
        "R0418: the model of `{}` has {} {what}, that of `{}` has {}; compare artifacts of one model",
        one.0.display(),
        one.1,
        other.0.display(),
        other.1
    )))
}

/// Place of the largest number, the first of equal ones.
fn best(row: &[f32]) -> usize {
    row.iter().enumerate().fold((0, f32::NEG_INFINITY), |b, (i, x)| if *x > b.1 { (i, *x) } else { b }).0
}

impl Found {
    /// Adds a sequence, of which the first `prompt` tokens are given.
    fn add(&mut self, ran: &Ran, reference: &Ran, tokens: &[i32], prompt: usize) {
        let layers = ran.layers.values().zip(reference.layers.values());
        self.layers.resize_with(self.layers.len().max(layers.len()), Sums::default);
        for (sums, (found, wanted)) in self.layers.iter_mut().zip(layers) {
            if let (TensorData::F32(found), TensorData::F32(wanted)) = (&found.data, &wanted.data) {
                sums.add(found, wanted);
            }
        }
        for (at, (row, wanted)) in ran.logits.iter().zip(&reference.logits).enumerate() {
            self.logits.add(row, wanted);
            self.same += usize::from(best(row) == best(wanted));
            self.rows += 1;
            if let Some(next) = tokens.get(at + 1).filter(|_| at + 1 >= prompt) {
                self.loss += losses::loss(row, *next as usize);
                self.tokens += 1;
            }
        }
    }

    fn mean(&self) -> f64 {
        self.loss / self.tokens.max(1) as f64
    }

    fn json(&self, name: &str, reference: &Found) -> Value {
        json!({
            "name": name,
            "mean_nll": self.mean(),
            "nll_change": self.mean() / reference.mean() - 1.0,
            "logits_error": self.logits.relative(),
            "same_best": self.same as f64 / self.rows.max(1) as f64,
            "layer_errors": self.layers.iter().map(Sums::relative).collect::<Vec<_>>(),
        })
    }
}

/// Refuses a file without sequences, and sequences of which no token is scored.
fn check_answers(file: &Path, sequences: &[Vec<i32>], prompts: &[usize]) -> Result<(), Failure> {
    let file = file.display();
    if sequences.is_empty() {
        return Err(Failure::input(format!("R0416: `{file}` has no sequence, and at least 1 is compared; add one")));
    }
    for (s, (tokens, prompt)) in sequences.iter().zip(prompts).enumerate() {
        // The first token has no loss, as nothing is before it.
        let given = (*prompt).max(1);
        if tokens.len() <= given {
            return Err(Failure::input(format!(
                "R0416: sequence {s} of `{file}` has {} tokens, and the first {given} are given, so that no loss is left to compare; make it longer, shorten its prompt or remove it",
                tokens.len()
            )));
        }
    }
    Ok(())
}

/// Logits that are no numbers, of a model at a position of a sequence.
fn not_finite(name: &str, s: usize, position: usize) -> Failure {
    Failure::input(format!(
        "R0417: sequence {s} has logits of {name} at position {position} that are infinite or NaN, and they must be finite; `score --out` with `--trace` and the values of layers shows where they begin"
    ))
}

/// Runs the comparison.
pub fn compare(args: &ScoreArgs) -> Result<(), Failure> {
    let (sequences, prompts) = files::read_prompted(&args.tokens)?;
    let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
    check_answers(&args.tokens, &sequences, &prompts)?;
    let mut sides = vec![Side::open(&args.model.artifact, None, (args, longest), None)?];
    for pair in args.compare.chunks(2) {
        if let [artifact, model] = pair {
            let side = Side::open(artifact, Some(model), (args, longest), sides.first())?;
            sides.push(side);
        }
    }
    for side in &sides {
        check_tokens(&args.tokens, &sequences, side.executor.facts().vocab)?;
    }
    let bar = bar(&sequences);
    let mut found: Vec<Found> = sides.iter().map(|_| Found::default()).collect();
    for (s, (tokens, prompt)) in sequences.iter().zip(&prompts).enumerate() {
        let mut reference: Option<Ran> = None;
        for (side, found) in sides.iter_mut().zip(&mut found) {
            let ran = side.run(tokens)?;
            if let Some(at) = first_odd(&ran.logits) {
                return Err(not_finite(&side.name, s, at));
            }
            found.add(&ran, reference.as_ref().unwrap_or(&ran), tokens, *prompt);
            reference.get_or_insert(ran);
        }
        bar.inc(tokens.len() as u64);
    }
    bar.finish_and_clear();
    let Some(reference) = found.first() else { return Ok(()) };
    let models: Vec<Value> = sides.iter().zip(&found).map(|(s, f)| f.json(&s.name, reference)).collect();
    if args.json {
        println!("{:#}", json!({"ok": true, "tokens": reference.tokens, "models": models}));
    } else {
        print!("{}", tables(&sides, &found));
    }
    Ok(())
}

/// Both tables, in Markdown.
fn tables(sides: &[Side], found: &[Found]) -> String {
    let Some(reference) = found.first() else { return String::new() };
    let mut out = format!(
        "| target | mean loss of {} tokens, nats | change | logits' error | same best token |\n|---|---|---|---|---|\n",
        reference.tokens
    );
    for (side, f) in sides.iter().zip(found) {
        let change = 100.0 * (f.mean() / reference.mean() - 1.0);
        let same = 100.0 * f.same as f64 / f.rows.max(1) as f64;
        let (mean, logits) = (f.mean(), 100.0 * f.logits.relative());
        out.push_str(&format!("| {} | {mean:.5} | {change:+.2} % | {logits:.2} % | {same:.1} % |\n", side.name));
    }
    let names: Vec<&str> = sides.iter().skip(1).map(|s| s.name.as_str()).collect();
    out.push_str(&format!("\n| after layer | {} |\n|{}\n", names.join(" | "), "---|".repeat(names.len() + 1)));
    for layer in 0..reference.layers.len() {
        let errors = found.iter().skip(1).map(|f| f.layers.get(layer).map_or(f64::NAN, Sums::relative));
        let errors: Vec<String> = errors.map(|e| format!("{:.3} %", 100.0 * e)).collect();
        out.push_str(&format!("| {layer} | {} |\n", errors.join(" | ")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(logits: &[&[f32]], layer: &[f32]) -> Ran {
        let tensor = Tensor { shape: vec![layer.len()], data: TensorData::F32(layer.to_vec()) };
        Ran {
            logits: logits.iter().map(|row| row.to_vec()).collect(),
            layers: IndexMap::from([("layers.0.x".to_owned(), tensor)]),
        }
    }

    #[test]
    fn errors_are_relative_and_losses_are_of_answers() {
        let reference = ran(&[&[0.0, 0.0], &[9.0, 0.0], &[0.0, 0.0]], &[3.0, 4.0]);
        let other = ran(&[&[0.0, 1.0], &[9.0, 0.0], &[0.0, 0.0]], &[3.0, 4.5]);
        let mut found = Found::default();
        found.add(&other, &reference, &[1, 1, 0], 2);
        assert_eq!(found.layers[0].relative(), 0.1);
        assert_eq!((found.tokens, found.same, found.rows), (1, 2, 3));
        assert!((found.loss - (1.0f64 + (-9.0f64).exp()).ln()).abs() < 1e-12, "the loss of token 0 behind [9, 0]");
        let mut all = Found::default();
        all.add(&other, &reference, &[1, 1, 0], 0);
        assert_eq!(all.tokens, 2);
        assert_eq!((best(&[1.0, 2.0, 2.0]), best(&[])), (1, 0));
    }
}
