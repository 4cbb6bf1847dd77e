//! The step contract over a device: a step is checked, its tables are written, its bucket's programs run, tokens are chosen.

use super::driver::{Device, Recording};
use super::load::{Weights, kernels};
use super::tables::Tables;
use super::timeline::Timed;
use super::walk::{Counts, Loaded, TICKET_BYTES, pick_bytes, scratch_bytes};
use crate::contract;
use crate::error::PrepareError;
use crate::finish::{Done, answer, facts};
use crate::prepare::{POSITIONS, RESULT, TOKENS, WANTED, result_width, tokens_end};
use crate::probe::{Probe, ProbeError, Probed, Tensor};
use crate::store::WeightStore;
use artifact::Artifact;
use engine::{Executor, ExecutorFacts, PhysicalPage, Step, StepError, StepOutput, Ticket};
use indexmap::IndexMap;
use ir::RowsPerSequence;
use std::cell::Cell;
use std::collections::HashMap;

/// Runs a plan on a CUDA device.
pub struct CudaExecutor {
    loaded: Loaded,
    facts: ExecutorFacts,
    tokens_end: usize,
    start: usize,
    done: Done,
    /// By bucket and rows: nothing after the first such step, a recording after the second.
    recordings: HashMap<(usize, Counts), Option<Recording>>,
}

/// Where weights come from.
pub(super) enum Source<'a> {
    /// Numbers of the host.
    Store(&'a dyn WeightStore),
    /// Numbers made up on the device.
    Seed(u64),
}

fn device(text: String) -> PrepareError {
    PrepareError::Device(text)
}

/// A device and everything on it, for the artifact's first entry.
pub(super) fn load(artifact: &Artifact, source: Source<'_>, pool_pages: &[usize]) -> Result<Loaded, PrepareError> {
    let (module, plan) = (&artifact.kernels, &artifact.plan);
    let opened = Device::open().map_err(device)?;
    let (major, minor) = opened.arch();
    let own = format!("sm_{major}{minor}");
    let arch = &artifact.manifest.target.arch;
    if arch.trim_end_matches('a') != own {
        let needed = format!("{} is {own}, the artifact is compiled for {arch}", opened.name());
        return Err(device(format!("{needed}; compile the spec for a target of that architecture")));
    }
    let code = artifact.device.clone().ok_or_else(|| device("the artifact holds no kernels for it".to_owned()))?;
    if pool_pages.len() != plan.kv.len() {
        let found = format!("has {} KV kinds", plan.kv.len());
        return Err(PrepareError::Mismatch { plan: found, kernels: format!("get pools for {}", pool_pages.len()) });
    }
    let missing = || PrepareError::Mismatch { plan: "has no entry".to_owned(), kernels: "need one".to_owned() };
    let entry = module.entries.first().ok_or_else(missing)?.clone();
    let largest = plan.entries.iter().flat_map(|e| &e.buckets).map(|b| &b.bucket);
    let most_rows = largest.clone().map(|b| b.tokens).max().unwrap_or(1) as usize;
    let most_sequences = largest.map(|b| b.sequences).max().unwrap_or(1) as usize;
    let most_pages = pool_pages.iter().copied().max().unwrap_or(1);
    let tables = Tables::new(&opened, most_rows, most_sequences, most_pages, plan.kv.len()).map_err(device)?;
    let mut pools = Vec::new();
    for (layout, pages) in plan.kv.iter().zip(pool_pages) {
        let bytes = layout.page_bytes() as usize * pages;
        let pool = opened.allocate(bytes).map_err(device)?;
        pool.fill(0, bytes, 0).map_err(device)?;
        pools.push(pool);
    }
    let scratch = (plan.arena_bytes as usize).next_multiple_of(256);
    let arena = opened.allocate(scratch + scratch_bytes(&code, plan)).map_err(device)?;
    let tickets = opened.allocate(TICKET_BYTES).map_err(device)?;
    tickets.fill(0, TICKET_BYTES, 0).map_err(device)?;
    let picks = opened.allocate(pick_bytes(&code, most_rows)).map_err(device)?;
    Ok(Loaded {
        tickets,
        picks,
        early: Cell::new(false),
        checks: Cell::new(false),
        kernels: kernels(&opened, &code)?,
        weights: match source {
            Source::Store(store) => Weights::load(&opened, artifact, store)?,
            Source::Seed(seed) => Weights::synthetic(&opened, artifact, seed)?,
        },
        device: opened,
        code,
        arena,
        scratch,
        pools,
        tables,
        entry,
        number: 0,
        plan: plan.clone(),
    })
}

impl CudaExecutor {
    /// Loads kernels and weights; `pool_pages` per KV kind, in the plan's order, sink page included.
    pub fn new(
        artifact: &Artifact,
        store: &dyn WeightStore,
        pool_pages: &[usize],
    ) -> Result<CudaExecutor, PrepareError> {
        CudaExecutor::of(artifact, load(artifact, Source::Store(store), pool_pages)?, pool_pages)
    }

    /// The same with weights made up on the device from a seed: for measurements of models that no host memory holds.
    pub fn synthetic(artifact: &Artifact, seed: u64, pool_pages: &[usize]) -> Result<CudaExecutor, PrepareError> {
        CudaExecutor::of(artifact, load(artifact, Source::Seed(seed), pool_pages)?, pool_pages)
    }

    fn of(artifact: &Artifact, loaded: Loaded, pool_pages: &[usize]) -> Result<CudaExecutor, PrepareError> {
        let vocab = result_width(&loaded.entry)?;
        let facts = facts(&artifact.plan, vocab, pool_pages, None)?;
        let tokens_end = tokens_end(&artifact.kernels, &loaded.entry).unwrap_or(vocab);
        Ok(CudaExecutor { loaded, facts, tokens_end, start: 0, done: Done::default(), recordings: HashMap::new() })
    }

    /// Runs a step start by start; gives each start's kernel, the kind of its region and its microseconds on the device.
    pub fn timeline(&mut self, step: &Step) -> Result<Vec<Timed>, StepError> {
        let (bucket, counts) = begin(&self.loaded, step, &self.facts, self.tokens_end, self.start)?;
        self.loaded.timeline(&self.loaded.plan.entries[0].buckets[bucket], counts).map_err(StepError::Device)
    }

    /// Runs a step as a recording, once it has run so; gives the microseconds that the device takes, without the host's work and without
    /// reading back logits.
    pub fn device_micros(&mut self, step: &Step) -> Result<f32, StepError> {
        let fault = StepError::Device;
        let (bucket, counts) = begin(&self.loaded, step, &self.facts, self.tokens_end, self.start)?;
        self.loaded.device.wait().map_err(fault)?;
        let before = self.loaded.device.mark().map_err(fault)?;
        self.start_all(bucket, counts).map_err(fault)?;
        let after = self.loaded.device.mark().map_err(fault)?;
        self.loaded.device.wait().map_err(fault)?;
        before.micros_to(&after).map_err(fault)
    }

    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        let fault = StepError::Device;
        let (bucket, counts) = begin(&self.loaded, step, &self.facts, self.tokens_end, self.start)?;
        self.start_all(bucket, counts).map_err(fault)?;
        let bucket = &self.loaded.plan.entries[0].buckets[bucket];
        let place = bucket.shared.get(RESULT).ok_or_else(|| fault("the plan has no place for logits".to_owned()))?;
        let mut bytes = vec![0u8; counts.wanted * self.facts.vocab * 4];
        self.loaded.arena.read(place.offset_bytes as usize, &mut bytes).map_err(fault)?;
        let word = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        let logits: Vec<f32> = bytes.chunks_exact(4).map(word).collect();
        answer(step, &logits, self.facts.vocab)
    }
}

impl CudaExecutor {
    /// Runs a bucket's programs. Steps of decoding recur with the same rows, so their starts are recorded; the first runs as
    /// it is, because the driver may load kernels then, which a recording forbids.
    fn start_all(&mut self, index: usize, counts: Counts) -> Result<(), String> {
        let loaded = &self.loaded;
        let bucket = &loaded.plan.entries[0].buckets[index];
        let recurs = bucket.bucket.rows != RowsPerSequence::Ragged;
        match self.recordings.get_mut(&(index, counts)) {
            Some(Some(recording)) => return loaded.device.replay(recording),
            Some(empty) => {
                let recording = loaded.device.record(|| loaded.run(bucket, counts))?;
                return loaded.device.replay(empty.insert(recording));
            }
            None if recurs => drop(self.recordings.insert((index, counts), None)),
            None => {}
        }
        loaded.run(bucket, counts)
    }
}

/// Checks a step and writes what it brings; gives its bucket and rows.
pub(super) fn begin(
    loaded: &Loaded,
    step: &Step,
    facts: &ExecutorFacts,
    tokens_end: usize,
    start: usize,
) -> Result<(usize, Counts), StepError> {
    if step.entry != loaded.entry.name {
        return Err(StepError::Contract(format!("it runs entry `{}`, which is not loaded", step.entry)));
    }
    let rows = contract::check(step, facts, tokens_end, start)?;
    let buckets = &loaded.plan.entries[0].buckets;
    let Some(index) = contract::choose_bucket(step, buckets.iter().map(|b| &b.bucket).enumerate()) else {
        let (rows, sequences) = (step.tokens.len(), step.sequences.len());
        return Err(StepError::Contract(format!("{rows} rows of {sequences} sequences fit no bucket")));
    };
    let counts = Counts { tokens: step.tokens.len(), wanted: step.wanted.len() };
    let fault = StepError::Device;
    loaded.tables.write(step, &rows).map_err(fault)?;
    let wanted: Vec<i32> = step.wanted.iter().map(|w| w.row as i32).collect();
    for (name, numbers) in [(TOKENS, &step.tokens), (POSITIONS, &step.positions), (WANTED, &wanted)] {
        if let Some(buffer) = buckets[index].shared.get(name) {
            loaded.arena.write(buffer.offset_bytes as usize, bytemuck::cast_slice(numbers)).map_err(fault)?;
        }
    }
    Ok((index, counts))
}

impl Executor for CudaExecutor {
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
        let (Some(pool), Some(layout)) = (self.loaded.pools.get(kind), self.loaded.plan.kv.get(kind)) else {
            return Err(StepError::Contract(format!("pages of KV kind {kind} are to be copied, there is none")));
        };
        let bytes = layout.page_bytes() as usize;
        for (from, to) in pages {
            let (Ok(from), Ok(to)) = (usize::try_from(*from), usize::try_from(*to)) else {
                return Err(StepError::Contract(format!("page {from} is to be copied to {to}")));
            };
            pool.copy_within(from * bytes, to * bytes, bytes).map_err(StepError::Contract)?;
        }
        Ok(())
    }
}

impl Probed for CudaExecutor {
    fn set_probe(&mut self, probe: Probe) -> Result<(), ProbeError> {
        // Values inside kernels never stand in memory; those between them will be traced when that is built.
        if let Some(name) = probe.trace.iter().chain(probe.inject.keys()).next() {
            return Err(ProbeError::NotHere { name: name.clone() });
        }
        self.start = probe.start;
        Ok(())
    }

    fn take_trace(&mut self) -> IndexMap<String, Tensor> {
        IndexMap::new()
    }

    fn value_names(&self) -> Vec<String> {
        Vec::new()
    }
}
