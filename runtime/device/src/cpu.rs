//! The `cpu` executor: the plan walker over Rust kernels. A step runs where it is submitted.

use crate::arena::Arena;
use crate::cache::Pool;
use crate::contract::{self, Rows};
use crate::error::PrepareError;
use crate::finish::{Done, answer, copy_pages, facts, pools};
use crate::prepare::{Entry, RESULT, RowCounts, prepare};
use crate::probe::{Probe, ProbeError, Probed, Probing, Sites, Tensor};
use crate::store::WeightStore;
use crate::walker::Walker;
use engine::{Executor, ExecutorFacts, PhysicalPage, Step, StepError, StepOutput, Ticket};
use indexmap::IndexMap;
use ir::{KernelModule, Plan};

/// Runs a plan on this machine's processor.
pub struct CpuExecutor {
    facts: ExecutorFacts,
    entries: Vec<Entry>,
    arena: Arena,
    pools: Vec<Pool>,
    probing: Option<Probing>,
    done: Done,
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
        let facts = facts(plan, entries.first().map_or(0, |e| e.vocab), pool_pages)?;
        let arena = usize::try_from(plan.arena_bytes).ok().filter(|n| *n <= isize::MAX as usize);
        let arena = arena.ok_or_else(|| PrepareError::Mismatch {
            plan: format!("needs an arena of {} bytes", plan.arena_bytes),
            kernels: "run on a machine that cannot address it".to_owned(),
        })?;
        Ok(CpuExecutor { facts, entries, arena: Arena::new(arena), pools, probing: None, done: Done::default() })
    }

    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        let refuse = |text: String| Err(StepError::Contract(text));
        let Some(entry) = self.entries.iter().find(|e| e.name == step.entry) else {
            return refuse(format!("it runs entry `{}`, the artifact has no such entry", step.entry));
        };
        let start = self.probing.as_ref().map_or(0, |p| p.start);
        let rows: Rows = contract::check(step, &self.facts, entry.tokens_end, start)?;
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
            pools: &mut self.pools,
            rows: &rows,
            counts,
            probing: self.probing.as_mut(),
        };
        walker.run(step)?;
        if let Some(probing) = &mut self.probing {
            probing.finish_step(counts.tokens, counts.wanted);
        }
        match bucket.shared_slot(RESULT, counts.wanted * entry.vocab).map(|slot| self.arena.read(slot)) {
            Some(crate::view::View::F32(logits)) => answer(step, logits, entry.vocab),
            _ => Err(StepError::Device("the plan has no f32 place for logits".to_owned())),
        }
    }
}

impl Executor for CpuExecutor {
    fn facts(&self) -> &ExecutorFacts {
        &self.facts
    }

    fn submit(&mut self, step: Step) -> Result<Ticket, StepError> {
        let output = self.run(&step)?;
        Ok(self.done.keep(output))
    }

    fn poll(&mut self, ticket: Ticket) -> Result<Option<StepOutput>, StepError> {
        self.done.take(ticket)
    }

    fn copy_pages(&mut self, kind: usize, pages: &[(PhysicalPage, PhysicalPage)]) -> Result<(), StepError> {
        copy_pages(&mut self.pools, kind, pages)
    }
}

impl Probed for CpuExecutor {
    fn set_probe(&mut self, probe: Probe) -> Result<(), ProbeError> {
        self.probing = None;
        if probe != Probe::default()
            && let Some(entry) = self.entries.first()
        {
            self.probing = Some(Probing::new(probe, &sites(entry))?);
        }
        Ok(())
    }

    fn take_trace(&mut self) -> IndexMap<String, Tensor> {
        self.probing.as_mut().map(Probing::take).unwrap_or_default()
    }

    fn value_names(&self) -> Vec<String> {
        self.entries.first().map(|entry| sites(entry).names()).unwrap_or_default()
    }
}

fn sites(entry: &Entry) -> Sites<'_> {
    Sites { graphs: entry.graphs.iter().map(|g| &g.graph).collect(), instances: &entry.instances }
}
