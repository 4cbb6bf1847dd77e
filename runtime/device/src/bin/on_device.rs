//! Runs an artifact on the CUDA device of this machine: every kernel against the interpreter, then whole sequences against
//! the interpreter's logits, then times of steps.
//!
//! `on_device ARTIFACT MODEL_DIR [TOKENS]`

use device::checkpoint::{Checkpoint, LoadOptions, Weights};
use device::{CudaExecutor, InterpExecutor, pool_pages_for, selftest};
use engine::{Executor, SequenceRows, Step, WantedRow};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

type Fault = Box<dyn std::error::Error>;

fn main() -> Result<(), Fault> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, model, rest @ ..] = arguments.as_slice() else {
        return Err("on_device ARTIFACT MODEL_DIR [TOKENS]".into());
    };
    let artifact = artifact::Artifact::load(Path::new(dir))?;
    let weights = match model.strip_prefix("seed=") {
        Some(seed) => Weights::synthetic(&artifact.recipes, seed.parse()?)?,
        None => {
            let checkpoint = Checkpoint::open(Path::new(model))?;
            Weights::load(&artifact.recipes, &checkpoint, &LoadOptions::default(), &mut |_| {})?
        }
    };
    let mut wrong = 0;
    for (region, verdict) in selftest(&artifact, &weights, 1)? {
        let word = if verdict.is_right() { "right" } else { "WRONG" };
        wrong += usize::from(!verdict.is_right());
        println!(
            "{word} {region:44} {:15} {:9} exact, {:6} differ, {:9} bounded, worst {:.4} {}",
            verdict.kind,
            verdict.exact,
            verdict.wrong,
            verdict.bounded,
            verdict.worst,
            verdict.first.unwrap_or_default()
        );
    }
    println!("{wrong} regions are wrong");
    let tokens: usize = rest.first().map_or(Ok(200), |n| n.parse())?;
    sequences(&artifact, &weights, tokens)?;
    if wrong == 0 { Ok(()) } else { Err("some kernels are wrong".into()) }
}

/// A step of one sequence whose pages lie in order; all rows are wanted, or the last.
fn step(executor: &dyn Executor, first: usize, tokens: &[i32], all: bool) -> Step {
    let facts = executor.facts();
    let pages: Vec<u32> = (0..1000).collect();
    let table: Arc<[i32]> = (1..1001).collect();
    let wanted = if all { 0..tokens.len() } else { tokens.len() - 1..tokens.len() };
    Step {
        entry: "forward".to_owned(),
        tokens: tokens.to_vec(),
        positions: (first..first + tokens.len()).map(|p| p as i32).collect(),
        sequences: vec![SequenceRows { start: 0, len: tokens.len(), pages }],
        translation: facts.kv.iter().map(|_| table.clone()).collect(),
        wanted: wanted.map(|row| WantedRow { row, sampling: None, mask: None, logits: true }).collect(),
    }
}

fn logits(executor: &mut dyn Executor, step: Step) -> Result<Vec<Vec<f32>>, Fault> {
    let ticket = executor.submit(step)?;
    let output = executor.poll(ticket)?.ok_or("no answer")?;
    Ok(output.logits.into_iter().flatten().collect())
}

fn sequences(artifact: &artifact::Artifact, weights: &Weights, count: usize) -> Result<(), Fault> {
    let pages = pool_pages_for(&artifact.plan, 1000 * 64, 1);
    let mut cuda = CudaExecutor::new(artifact, weights, &pages)?;
    let mut truth = InterpExecutor::new(&artifact.kernels, &artifact.plan, weights, &pages)?;
    let vocab = cuda.facts().vocab;
    let tokens: Vec<i32> = (0..count as u64).map(|i| (numerics::uniform(7, i) * vocab as f32) as i32).collect();
    let (mut same, mut clear, mut agree, mut largest) = (0usize, 0usize, 0usize, 0f32);
    let chunk = 60.min(count);
    let mut at = 0;
    while at < count {
        let end = if at + chunk < count - 20 { at + chunk } else { at + 1 };
        let part = &tokens[at..end];
        let both = step(&truth, at, part, true);
        let a = logits(&mut cuda, both.clone())?;
        let b = logits(&mut truth, both)?;
        for (x, y) in a.iter().zip(&b) {
            same += usize::from(x.iter().zip(y).all(|(x, y)| numerics::same_bits(*x, *y)));
            largest = x.iter().zip(y).fold(largest, |m, (x, y)| m.max((x - y).abs()));
            let best = numerics::top_ids(y, 2);
            if y[best[0]] - y[best[1]] > 0.5 {
                clear += 1;
                agree += usize::from(numerics::argmax(x) == Some(best[0]));
            }
        }
        at = end;
    }
    println!(
        "{count} rows: {same} with equal bits, largest difference of a logit {largest}; {agree} of {clear} clear choices agree"
    );
    let started = Instant::now();
    let runs = 200;
    for i in 0..runs {
        let one = step(&cuda, 100 + i, &tokens[..1], false);
        logits(&mut cuda, one)?;
    }
    println!("decoding alone: {:.1} us a step, {} steps", started.elapsed().as_secs_f64() * 1e6 / runs as f64, runs);
    Ok(())
}
