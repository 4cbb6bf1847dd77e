//! Sequences fed to an executor one at a time, from an empty cache, in steps of the largest bucket.

use crate::failure::Failure;
use artifact::Artifact;
use device::{ExecutorKind, Probed, WeightStore, pool_pages_for};
use engine::{ExecutorFacts, SequenceRows, Step, StepError, WantedRow};

/// How steps of a model are made.
pub struct Feed {
    entry: String,
    page_tokens: usize,
    /// Position of a sequence's first token; nothing is cached before it.
    start: usize,
}

/// Tokens of a step at most, if the logits of all are wanted.
pub fn chunk_tokens(facts: &ExecutorFacts) -> usize {
    facts.max_tokens.min(facts.max_wanted).max(1)
}

impl Feed {
    /// Steps of the artifact's first entry.
    pub fn new(artifact: &Artifact, start: usize) -> Feed {
        let entry = artifact.plan.entries.first().map(|e| e.name.clone()).unwrap_or_default();
        let page_tokens = artifact.plan.kv.iter().map(|kv| kv.page_tokens as usize).max().unwrap_or(1);
        Feed { entry, page_tokens, start }
    }

    /// An executor for sequences of at most `longest` tokens.
    pub fn probed(
        &self,
        artifact: &Artifact,
        weights: &dyn WeightStore,
        kind: ExecutorKind,
        longest: usize,
    ) -> Result<Box<dyn Probed>, Failure> {
        // One page more than the tokens need, as the first position may stand anywhere in its page.
        let pages = pool_pages_for(&artifact.plan, longest + self.page_tokens, 1);
        device::load_probed(artifact, weights, kind, &pages).map_err(Failure::input)
    }

    /// Runs some tokens, `first` of which counts from the sequence's first, and gives the logits of each.
    pub fn run(&self, executor: &mut dyn Probed, first: usize, tokens: &[i32]) -> Result<Vec<Vec<f32>>, Failure> {
        let fault = |e: StepError| match e {
            StepError::Contract(_) => Failure::input(e),
            StepError::Device(_) | StepError::Cache(_) => Failure::device(e),
        };
        let step = self.step(executor.facts(), first, tokens);
        let ticket = executor.submit(step).map_err(fault)?;
        loop {
            if let Some(output) = executor.poll(ticket).map_err(fault)? {
                return Ok(output.logits.into_iter().flatten().collect());
            }
            std::thread::yield_now();
        }
    }

    fn step(&self, facts: &ExecutorFacts, first: usize, tokens: &[i32]) -> Step {
        let before = self.start / self.page_tokens;
        let end = self.start + first + tokens.len();
        let pages = end.div_ceil(self.page_tokens);
        // Virtual page 0 stands for everything before the first position and has no memory.
        let table: Vec<i32> = (0..=pages.saturating_sub(before) as i32).map(|p| if p == 0 { -1 } else { p }).collect();
        let wanted = |row| WantedRow { row, sampling: None, mask: None, logits: true };
        Step {
            entry: self.entry.clone(),
            tokens: tokens.to_vec(),
            positions: (0..tokens.len()).map(|i| (self.start + first + i) as i32).collect(),
            sequences: vec![SequenceRows {
                start: 0,
                len: tokens.len(),
                pages: std::sync::Arc::new(
                    (0..pages).map(|p| if p < before { 0 } else { (p - before + 1) as u32 }).collect(),
                ),
            }],
            translation: vec![table.into(); facts.kv.len()],
            wanted: (0..tokens.len()).map(wanted).collect(),
            ..Step::default()
        }
    }
}
