//! The `cpu` executor: the plan walker over Rust kernels. A step runs where it is submitted.

use crate::arena::{Arena, Slot};
use crate::cache::Cache;
use crate::contract::{self, Rows};
use crate::drafting::{DRAFTED, Inputs, Lent, Plans, block_of, following};
use crate::error::PrepareError;
use crate::finish::{answer, facts, pools};
use crate::prepare::{Bucket, Entry, Loader, RESULT, RowCounts, prepare, prepare_one};
use crate::probe::{Probing, Sites};
use crate::segment::team_for;
use crate::shell::{Runs, Shell, write_layer};
use crate::store::WeightStore;
use crate::view::View;
use crate::walker::Walker;
use artifact::Artifact;
use engine::{Arrivals, ExecutorFacts, Step, StepError, StepOutput, take_all};
use ir::{KernelModule, Plan};

/// Runs a plan on this machine's processor.
pub type CpuExecutor = Shell<Cpu>;

/// What runs a step: kernels, memory, caches.
pub struct Cpu {
    entries: Vec<Entry>,
    drafter: Option<Drafter>,
    arena: Arena,
    /// Operands whose places results take.
    aside: Vec<u64>,
    pools: Cache,
}

/// The drafter's kernels.
struct Drafter {
    plans: Plans,
    /// Brings its cache up to date.
    context: Entry,
    /// Proposes tokens, by length of block, ascending.
    draft: Vec<Entry>,
}

impl CpuExecutor {
    /// Prepares kernels, weights and memory; `pool_pages` per KV kind, in the plan's order, sink page included.
    pub fn new(
        module: &KernelModule,
        plan: &Plan,
        weights: &dyn WeightStore,
        pool_pages: &[usize],
    ) -> Result<CpuExecutor, PrepareError> {
        let pools = pools(plan, pool_pages)?;
        CpuExecutor::over_pools(prepare(module, plan, weights)?, None, plan, pools)
    }

    /// The same for a model with its drafter, whose weights are `drafter`; `pool_pages` per kind of [`Artifact::kv`].
    pub fn with_drafter(
        artifact: &Artifact,
        weights: &dyn WeightStore,
        drafter: &dyn WeightStore,
        pool_pages: &[usize],
    ) -> Result<CpuExecutor, PrepareError> {
        let lent = Lent { own: drafter, model: weights };
        let (plans, pools) = crate::drafting::prepared(artifact, pool_pages)?;
        let entries = prepare(&artifact.kernels, &artifact.plan, weights)?;
        let mut loader = Loader::new(&lent);
        let mut draft = Vec::new();
        let mut context = None;
        for block in artifact.drafter.iter().flat_map(|d| &d.blocks) {
            let plan = plans.plan(&block.plan);
            draft.push(prepare_one(&block.kernels, &plan, &plans.facts.entry, &mut loader)?);
            // It is the same whatever the length of block.
            if context.is_none() {
                context = Some(prepare_one(&block.kernels, &plan, &plans.context, &mut loader)?);
            }
        }
        let drafter = context.map(|context| Drafter { plans, context, draft });
        CpuExecutor::over_pools(entries, drafter, &artifact.plan, pools)
    }

    fn over_pools(
        entries: Vec<Entry>,
        drafter: Option<Drafter>,
        plan: &Plan,
        pools: Cache,
    ) -> Result<CpuExecutor, PrepareError> {
        let vocab = entries.first().map_or(0, |e| e.vocab);
        let mut facts = facts(plan, vocab, &pools.pages(), pools.shared_bytes())?;
        facts.kv = pools.layouts();
        facts.draft = drafter.as_ref().map(|d| d.plans.facts.clone());
        let own = drafter.iter().flat_map(|d| d.draft.iter().chain([&d.context]));
        let bytes = entries.iter().chain(own).flat_map(|e| &e.buckets).map(|b| b.arena_bytes).max().unwrap_or(0);
        let arena = Arena::new(bytes).ok_or(PrepareError::ArenaMemory { bytes: bytes as u64 })?;
        Ok(Shell::over(facts, Cpu { entries, drafter, arena, aside: Vec::new(), pools }))
    }
}

/// The rows that a step brings.
fn counts(step: &Step) -> RowCounts {
    RowCounts { tokens: step.tokens.len(), wanted: step.wanted.len(), sequences: step.sequences.len() }
}

/// The same for as long as a walk takes.
fn lent<'a>(arrivals: &'a mut Option<&mut dyn Arrivals>) -> Option<&'a mut dyn Arrivals> {
    let arrivals = arrivals.as_mut()?;
    Some(&mut **arrivals)
}

impl Cpu {
    /// Runs an entry of the drafter; its results stand in the bucket's shared places afterwards.
    fn run_drafter(
        arena: &mut Arena,
        aside: &mut Vec<u64>,
        pools: &mut Cache,
        (entry, bucket): (&Entry, &Bucket),
        (rows, counts): (&Rows, RowCounts),
        inputs: &Inputs,
    ) -> Result<(), StepError> {
        let team = team_for(counts.tokens);
        Walker { entry, bucket, arena, aside, pools, rows, counts, probing: None, arrivals: None, team }.run_on(inputs)
    }

    /// Runs a draft step.
    fn draft(&mut self, step: &Step, facts: &ExecutorFacts) -> Result<StepOutput, StepError> {
        let Some(drafter) = &self.drafter else {
            return Err(StepError::Contract("it drafts, and there is no drafter".to_owned()));
        };
        let tokens_end = self.entries.first().map_or(0, |e| e.tokens_end);
        let mut rows = contract::check(step, facts, tokens_end, 0)?;
        drafter.plans.add_guests(&mut rows, step, facts, 0)?;
        let (block, inputs) = drafter.plans.drafting(step)?;
        let counts = counts(step);
        let of_block = |b: &&Bucket| block_of(&b.shape) == Some(block) && counts.sequences as u64 <= b.shape.sequences;
        let found = drafter.draft.iter().find_map(|e| Some((e, e.buckets.iter().find(of_block)?)));
        let Some((entry, bucket)) = found else {
            let sequences = counts.sequences;
            return Err(StepError::Contract(format!("{sequences} blocks of {block} rows fit no bucket")));
        };
        let (arena, aside, pools) = (&mut self.arena, &mut self.aside, &mut self.pools);
        Cpu::run_drafter(arena, aside, pools, (entry, bucket), (&rows, counts), &inputs)?;
        let elements = counts.sequences * (block - 1);
        let candidates = elements * drafter.plans.facts.candidates;
        let slots = [elements, candidates, candidates];
        let places: Vec<Slot> =
            DRAFTED.iter().zip(slots).filter_map(|(name, len)| bucket.shared_slot(name, len)).collect();
        let views: Vec<View<'_>> = places.iter().map(|slot| self.arena.read(*slot)).collect();
        match views[..] {
            [View::I32(tokens), View::I32(ids), View::F32(q)] => {
                let drafts = drafter.plans.drafts(block, tokens, ids, q);
                Ok(StepOutput { drafts, ..StepOutput::default() })
            }
            _ => Err(StepError::Device("the drafter's plan has no places for what it proposes".to_owned())),
        }
    }

    /// Brings the drafter's cache to where the model's is, from the rows that the step left.
    fn follow(&mut self, step: &Step, rows: &Rows, output: &StepOutput) -> Result<(), StepError> {
        let Some(drafter) = &self.drafter else { return Ok(()) };
        let (counts, entry) = (counts(step), &drafter.context);
        let Some(bucket) = entry.buckets.iter().find(|b| counts.tokens as u64 <= b.shape.tokens) else {
            return Err(StepError::Contract(format!("{} rows fit no bucket of the drafter", counts.tokens)));
        };
        let (arena, aside, pools) = (&mut self.arena, &mut self.aside, &mut self.pools);
        Cpu::run_drafter(arena, aside, pools, (entry, bucket), (rows, counts), &following(step, output))
    }
}

impl Runs for Cpu {
    fn run(
        &mut self,
        step: &Step,
        facts: &ExecutorFacts,
        mut probing: Option<&mut Probing>,
        mut arrivals: Option<&mut dyn Arrivals>,
    ) -> Result<StepOutput, StepError> {
        if facts.draft.as_ref().is_some_and(|d| d.entry == step.entry) {
            return self.draft(step, facts);
        }
        let refuse = |text: String| Err(StepError::Contract(text));
        let Some(entry) = self.entries.iter().find(|e| e.name == step.entry) else {
            return refuse(format!("it runs entry `{}`, the artifact has no such entry", step.entry));
        };
        let start = probing.as_ref().map_or(0, |p| p.start);
        let mut rows: Rows = contract::check(step, facts, entry.tokens_end, start)?;
        if let Some(drafter) = &self.drafter {
            drafter.plans.add_guests(&mut rows, step, facts, start)?;
        }
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
        let counts = counts(step);
        // Who looks on sees rows in order.
        let team = if probing.is_none() { team_for(counts.tokens) } else { None };
        Walker {
            entry,
            bucket,
            arena: &mut self.arena,
            aside: &mut self.aside,
            pools: &mut self.pools,
            rows: &rows,
            counts,
            probing: probing.as_deref_mut(),
            arrivals: lent(&mut arrivals),
            team,
        }
        .run(step)?;
        if let Some(arrivals) = arrivals {
            // What is left is the drafter's.
            let pools = &mut self.pools;
            take_all(arrivals, &mut |kind, layer, page, bytes| write_layer(pools, kind, layer, page, bytes));
        }
        if let Some(probing) = probing {
            probing.finish_step(counts.tokens, counts.wanted);
        }
        let output = match bucket.shared_slot(RESULT, counts.wanted * entry.vocab).map(|slot| self.arena.read(slot)) {
            Some(View::F32(logits)) => answer(step, logits, entry.vocab)?,
            _ => return Err(StepError::Device("the plan has no f32 place for logits".to_owned())),
        };
        self.follow(step, &rows, &output)?;
        Ok(output)
    }

    fn takes_arrivals(&self) -> bool {
        true
    }

    fn pools(&mut self) -> &mut Cache {
        &mut self.pools
    }

    fn sites(&self) -> Option<Sites<'_>> {
        let entry = self.entries.first()?;
        Some(Sites { graphs: entry.graphs.iter().map(|g| &g.graph).collect(), instances: &entry.instances })
    }
}
