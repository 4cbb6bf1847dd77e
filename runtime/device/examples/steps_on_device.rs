//! Whole steps of a model on a device, with weights made up there: `steps_on_device ARTIFACT CONTEXT OUT.json [SEQUENCES…]`.
//!
//! Decodes 1, 8 and 32 sequences (or as many as are named) behind CONTEXT tokens and runs a prompt; OUT gets the time of every start. Of an artifact for several
//! ranks the first runs, and hears itself from the places of the others.

use artifact::Artifact;
use device::{CudaExecutor, Ranks, Timed, pool_pages_for};
use engine::{Executor, SequenceRows, Step, WantedRow};
use ir::RowsPerSequence;
use serde_json::json;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

/// Steps that are timed, and prompts.
const STEPS: usize = 50;
const PROMPTS: usize = 5;
/// Longest prompt.
const PROMPT: usize = 8192;

type Done<T> = Result<T, Box<dyn Error>>;

fn main() -> Done<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, context, out, counts @ ..] = arguments.as_slice() else {
        return Err("steps_on_device ARTIFACT CONTEXT OUT.json [SEQUENCES…]".into());
    };
    let counts = counts.iter().map(|n| n.parse()).collect::<Result<Vec<usize>, _>>()?;
    let counts = if counts.is_empty() { vec![1, 8, 32] } else { counts };
    let (artifact, context) = (Artifact::load(Path::new(folder))?, context.parse::<usize>()?);
    let sequences = counts.iter().copied().max().unwrap_or(1);
    let longest = (context + STEPS + 8).max(PROMPT);
    let pages = pool_pages_for(&artifact.plan, longest, sequences);
    let placed = if artifact.memory.mesh.is_single() { Ranks::Apart } else { Ranks::Alone(0) };
    let executor = CudaExecutor::synthetic(&artifact, 7, &pages, placed)?;
    let mut run = Run { artifact: &artifact, pages, longest, sequences, executor };
    let chunk = run.largest_prompt();
    for sequence in 0..sequences {
        for first in (0..context).step_by(chunk) {
            run.step(&[(sequence, first, chunk.min(context - first))])?;
        }
    }
    let mut all = serde_json::Map::new();
    for count in counts {
        let rows = |at: usize| (0..count).map(|s| (s, context + at, 1)).collect::<Vec<_>>();
        let mut times = Vec::new();
        for at in 0..STEPS + 3 {
            let step = run.of(&rows(at));
            times.push(run.executor.device_micros(&step)?);
        }
        let timed = run.executor.timeline(&run.of(&rows(STEPS)))?;
        report(&format!("{count} sequences behind {context}"), &mut times[3..], &timed);
        all.insert(format!("{count} sequences"), listed(&timed));
    }
    let prompt = run.of(&[(0, 0, chunk)]);
    let mut times = (0..PROMPTS).map(|_| run.executor.device_micros(&prompt)).collect::<Result<Vec<_>, _>>()?;
    let timed = run.executor.timeline(&prompt)?;
    report(&format!("a prompt of {chunk}"), &mut times, &timed);
    all.insert("prompt".to_owned(), listed(&timed));
    std::fs::write(out, serde_json::to_vec(&json!(all))?)?;
    Ok(())
}

struct Run<'a> {
    artifact: &'a Artifact,
    pages: Vec<usize>,
    longest: usize,
    sequences: usize,
    executor: CudaExecutor,
}

impl Run<'_> {
    fn largest_prompt(&self) -> usize {
        let buckets = self.artifact.plan.entries.iter().flat_map(|e| &e.buckets).map(|b| &b.bucket);
        let ragged = buckets.filter(|b| b.rows == RowsPerSequence::Ragged).map(|b| b.tokens as usize);
        ragged.max().unwrap_or(1).min(PROMPT)
    }

    fn step(&mut self, rows: &[(usize, usize, usize)]) -> Done<()> {
        let ticket = self.executor.submit(self.of(rows))?;
        self.executor.poll(ticket)?;
        Ok(())
    }

    /// A step of these rows: sequence, first position, how many.
    fn of(&self, rows: &[(usize, usize, usize)]) -> Step {
        let mut step = Step { entry: self.artifact.plan.entries[0].name.clone(), ..Step::default() };
        let page_tokens = self.artifact.plan.kv.iter().map(|k| k.page_tokens as usize).max().unwrap_or(1);
        let each = self.longest.div_ceil(page_tokens);
        let vocabulary = self.executor.facts().vocab;
        for (sequence, first, count) in rows {
            let start = step.tokens.len();
            for position in *first..first + count {
                let draw = numerics::uniform(3, (sequence * 1_000_003 + position) as u64);
                step.tokens.push((draw * vocabulary as f32 * 0.9) as i32);
                step.positions.push(position as i32);
            }
            let pages: Vec<u32> = (0..each).map(|p| (sequence * each + p) as u32).collect();
            step.sequences.push(SequenceRows { start, len: *count, pages: Arc::new(pages) });
            let row = start + count - 1;
            step.wanted.push(WantedRow { row, sampling: None, mask: None, logits: false });
        }
        let count = (each * self.sequences) as i32;
        let tables = self.artifact.plan.kv.iter().zip(&self.pages);
        step.translation = tables.map(|(_, pages)| (1..=count).map(|p| p.min(*pages as i32 - 1)).collect()).collect();
        step
    }
}

/// The median, and which kernels take how long.
fn report(what: &str, times: &mut [f32], timed: &[Timed]) {
    times.sort_by(f32::total_cmp);
    let total: f32 = timed.iter().map(|t| t.micros).sum();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    println!(
        "{what}: {:.3} ms (median of {}); {} starts, {:.3} ms apart",
        median / 1e3,
        times.len(),
        timed.len(),
        total / 1e3
    );
    let mut kernels: BTreeMap<&str, (usize, f32)> = BTreeMap::new();
    for t in timed {
        let of = kernels.entry(t.kernel.as_str()).or_default();
        *of = (of.0 + 1, of.1 + t.micros);
    }
    let mut kernels: Vec<_> = kernels.into_iter().collect();
    kernels.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    for (kernel, (count, micros)) in kernels.iter().take(16) {
        println!("  {micros:10.1} us  {count:3} x {:9.1}  {kernel}", micros / *count as f32);
    }
}

fn listed(timed: &[Timed]) -> serde_json::Value {
    let one = |t: &Timed| json!({ "region": t.region, "kernel": t.kernel, "micros": t.micros });
    timed.iter().map(one).collect()
}
