//! The `cpu` executor: the plan walker over Rust kernels. A step runs where it is submitted.

use crate::arena::Arena;
use crate::cache::Cache;
use crate::contract::{self, Rows};
use crate::error::PrepareError;
use crate::finish::{answer, facts, pools};
use crate::prepare::{Entry, RESULT, RowCounts, prepare};
use crate::probe::{Probing, Sites};
use crate::shell::{Runs, Shell};
use crate::store::WeightStore;
use crate::walker::Walker;
use engine::{ExecutorFacts, Step, StepError, StepOutput};
use ir::{KernelModule, Plan};

/// Runs a plan on this machine's processor.
pub type CpuExecutor = Shell<Cpu>;

/// What runs a step: kernels, memory, caches.
pub struct Cpu {
    entries: Vec<Entry>,
    arena: Arena,
    /// Operands whose places results take.
    aside: Vec<u64>,
    pools: Cache,
}

impl CpuExecutor {
    /// Prepares kernels, weights and memory; `pool_pages` per KV kind, in the plan's order, sink page included.
    pub fn new(
        module: &KernelModule,
        plan: &Plan,
        weights: &dyn WeightStore,
        pool_pages: &[usize],
    ) -> Result<CpuExecutor, PrepareError> {
        let entries = prepare(module, plan, weights)?;
        let pools = pools(plan, pool_pages)?;
        let facts = facts(plan, entries.first().map_or(0, |e| e.vocab), &pools.pages(), pools.shared_bytes())?;
        let bytes = entries.iter().flat_map(|e| &e.buckets).map(|b| b.arena_bytes).max().unwrap_or(0);
        let arena = Arena::new(bytes).ok_or(PrepareError::ArenaMemory { bytes: bytes as u64 })?;
        Ok(Shell::over(facts, Cpu { entries, arena, aside: Vec::new(), pools }))
    }
}

impl Runs for Cpu {
    fn run(
        &mut self,
        step: &Step,
        facts: &ExecutorFacts,
        mut probing: Option<&mut Probing>,
    ) -> Result<StepOutput, StepError> {
        let refuse = |text: String| Err(StepError::Contract(text));
        let Some(entry) = self.entries.iter().find(|e| e.name == step.entry) else {
            return refuse(format!("it runs entry `{}`, the artifact has no such entry", step.entry));
        };
        let start = probing.as_ref().map_or(0, |p| p.start);
        let rows: Rows = contract::check(step, facts, entry.tokens_end, start)?;
        let shapes = entry.buckets.iter().enumerate().map(|(i, b)| (i, &b.shape));
        let Some(bucket) = contract::choose_bucket(step, shapes) else {
            return refuse(format!(
                "{} rows of {} sequences with {} wanted fit no bucket; the largest is {}",
                step.tokens.len(),
                step.sequences.len(),
                step.wanted.len(),
                entry.buckets.last().map_or_else(String::new, |b| b.shape.to_string())
            ));
        };
        let bucket = &entry.buckets[bucket];
        let counts = RowCounts { tokens: step.tokens.len(), wanted: step.wanted.len() };
        let mut walker = Walker {
            entry,
            bucket,
            arena: &mut self.arena,
            aside: &mut self.aside,
            pools: &mut self.pools,
            rows: &rows,
            counts,
            probing: probing.as_deref_mut(),
        };
        walker.run(step)?;
        if let Some(probing) = probing {
            probing.finish_step(counts.tokens, counts.wanted);
        }
        match bucket.shared_slot(RESULT, counts.wanted * entry.vocab).map(|slot| self.arena.read(slot)) {
            Some(crate::view::View::F32(logits)) => answer(step, logits, entry.vocab),
            _ => Err(StepError::Device("the plan has no f32 place for logits".to_owned())),
        }
    }

    fn pools(&mut self) -> &mut Cache {
        &mut self.pools
    }

    fn sites(&self) -> Option<Sites<'_>> {
        let entry = self.entries.first()?;
        Some(Sites { graphs: entry.graphs.iter().map(|g| &g.graph).collect(), instances: &entry.instances })
    }
}
