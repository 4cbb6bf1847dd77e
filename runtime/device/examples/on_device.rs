//! What a benchmark script asks of a device: every kernel against the interpreter, logits of given tokens, times of steps.
//!
//! `on_device ARTIFACT MODEL TOKENS.json OUT`: OUT gets the logits, f32, row by row, of all lists one after the other. MODEL may
//! be `-` for numbers made from a seed. `NO_SELFTEST` in the environment leaves the first part out, `STEPS` says how many are timed,
//! `RANKS` where ranks run: `together` on the first device, or the first of them `alone`.

use artifact::Artifact;
use device::checkpoint::{Checkpoint, LoadOptions};
use device::{CudaExecutor, Given, Ranks, Steps, Weights, pool_pages_for, selftest};
use engine::{Executor, SequenceRows, Step, StepOutput, WantedRow};
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Rows of a prompt that run at once.
const CHUNK: usize = 512;
/// Longest sequence.
const LONGEST: usize = 2048;
/// Steps that are timed.
const STEPS: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, model, tokens, out] = arguments.as_slice() else {
        return Err("on_device ARTIFACT MODEL TOKENS.json OUT".into());
    };
    let artifact = Artifact::load(Path::new(folder))?;
    let weights = if model == "-" {
        Weights::synthetic(&artifact.recipes, 7)?
    } else {
        let checkpoint = Checkpoint::open(Path::new(model))?;
        Weights::load(&artifact.recipes, &checkpoint, &LoadOptions::default(), &mut |_| {})?
    };
    starts(&artifact);
    if std::env::var_os("NO_SELFTEST").is_none() {
        verdicts(&artifact, &weights)?;
    }
    let pages = pool_pages_for(&artifact.plan, LONGEST, 32);
    let begin = Instant::now();
    let mut executor = CudaExecutor::on(&artifact, &weights, &pages, placed())?;
    println!("ready after {:.2} s, weights included", begin.elapsed().as_secs_f64());
    let lists: serde_json::Value = serde_json::from_slice(&std::fs::read(tokens)?)?;
    let lists: Vec<Vec<i32>> = serde_json::from_value(lists["tokens"].clone())?;
    logits(&mut executor, &artifact, &pages, &lists, Path::new(out))?;
    for sequences in [1, 8, 32] {
        times(&mut executor, &artifact, &pages, sequences)?;
    }
    Ok(())
}

fn placed() -> Ranks {
    match std::env::var("RANKS").as_deref() {
        Ok("together") => Ranks::Together,
        Ok("alone") => Ranks::Alone(0),
        _ => Ranks::Apart,
    }
}

/// How many kernels a layer of each kind starts, by bucket.
fn starts(artifact: &Artifact) {
    let Some(code) = &artifact.device else { return };
    for (entry, plan) in code.entries.iter().zip(&artifact.plan.entries) {
        for bucket in &plan.buckets {
            let mut counts = Vec::new();
            for (graph, program) in entry.iter().zip(&bucket.programs) {
                let mut count = 0;
                for launch in &program.launches {
                    if let ir::Launch::Region { region, variant, .. } = launch {
                        let all = graph.regions.get(*region).map(|r| r.starts.as_slice()).unwrap_or_default();
                        count += all.iter().filter(|s| s.serves(*variant, &bucket.bucket)).count();
                    }
                }
                counts.push(format!("{} {count}", graph.name));
            }
            println!("starts, {:?} {} tokens: {}", bucket.bucket.rows, bucket.bucket.tokens, counts.join(", "));
        }
    }
}

fn verdicts(artifact: &Artifact, weights: &Weights) -> Result<(), Box<dyn Error>> {
    let verdicts = selftest(artifact, Given::Store(weights), 1, placed(), Steps::EveryBucket)?;
    for (region, v) in verdicts.iter().filter(|(_, v)| !v.is_right()) {
        println!("WRONG {region}: {} of {} bits, {:.3} of the bound: {:?}", v.wrong, v.exact, v.worst, v.first);
    }
    let wrong = verdicts.values().filter(|v| !v.is_right()).count();
    let exact: u64 = verdicts.values().map(|v| v.exact).sum();
    let bounded: u64 = verdicts.values().map(|v| v.bounded).sum();
    let worst = verdicts.values().map(|v| v.worst).fold(0.0, f64::max);
    println!("{} regions, {wrong} wrong; {exact} exact, {bounded} bounded, at most {worst:.3}", verdicts.len());
    Ok(())
}

/// A step of these rows: sequence, first position, tokens.
fn step(artifact: &Artifact, pages: &[usize], rows: &[(usize, usize, &[i32])], all: bool) -> Step {
    let mut step = Step { entry: artifact.plan.entries[0].name.clone(), ..Step::default() };
    let page_tokens = artifact.plan.kv.iter().map(|k| k.page_tokens as usize).max().unwrap_or(1);
    let each = LONGEST.div_ceil(page_tokens);
    for (sequence, first, tokens) in rows {
        let start = step.tokens.len();
        step.tokens.extend_from_slice(tokens);
        step.positions.extend((0..tokens.len()).map(|i| (first + i) as i32));
        let of: Vec<u32> = (0..each).map(|p| (sequence * each + p) as u32).collect();
        step.sequences.push(SequenceRows { start, len: tokens.len(), pages: Arc::new(of) });
        let wanted = if all { 0..tokens.len() } else { tokens.len() - 1..tokens.len() };
        step.wanted.extend(wanted.map(|i| WantedRow { row: start + i, sampling: None, mask: None, logits: true }));
    }
    let count = (each * 32) as i32;
    step.translation = pages.iter().map(|n| (1..=count).map(|p| p % *n as i32).collect()).collect();
    step
}

fn run(executor: &mut CudaExecutor, step: Step) -> Result<StepOutput, Box<dyn Error>> {
    let ticket = executor.submit(step)?;
    executor.poll(ticket)?.ok_or_else(|| "a step has no answer".into())
}

fn logits(
    executor: &mut CudaExecutor,
    artifact: &Artifact,
    pages: &[usize],
    lists: &[Vec<i32>],
    out: &Path,
) -> Result<(), Box<dyn Error>> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(out)?);
    for list in lists {
        // As many rows as a bucket gives logits of.
        for (i, chunk) in list.chunks(CHUNK.min(64)).enumerate() {
            let output = run(executor, step(artifact, pages, &[(0, i * 64, chunk)], true))?;
            for x in output.logits.iter().flatten().flatten() {
                file.write_all(&x.to_le_bytes())?;
            }
        }
    }
    Ok(())
}

fn times(
    executor: &mut CudaExecutor,
    artifact: &Artifact,
    pages: &[usize],
    sequences: usize,
) -> Result<(), Box<dyn Error>> {
    let prompt: Vec<i32> = (0..64).map(|i| i * 37 % 500).collect();
    for sequence in 0..sequences {
        run(executor, step(artifact, pages, &[(sequence, 0, &prompt)], false))?;
    }
    let steps = std::env::var("STEPS").ok().and_then(|n| n.parse().ok()).unwrap_or(STEPS);
    let mut times = Vec::new();
    for i in 0..steps {
        let rows: Vec<(usize, usize, &[i32])> = (0..sequences).map(|s| (s, 64 + i, &prompt[..1])).collect();
        let next = step(artifact, pages, &rows, false);
        let begin = Instant::now();
        run(executor, next)?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    println!(
        "decoding {sequences} sequences behind 64 tokens: {:.0} us a step (median)",
        times.get(steps / 2).copied().unwrap_or_default()
    );
    Ok(())
}
