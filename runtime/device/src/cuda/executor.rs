//! The step contract over devices, one for each rank: a step is checked, its tables are written, its bucket's programs run, tokens are
//! chosen from what the first rank has.

use super::driver::{Device, Recording};
use super::load::{Weights, kernels};
use super::ranks::{Known, Letterboxes, Ranks, introduce};
use super::tables::Tables;
use super::timeline::{Timed, timeline};
use super::walk::{Counts, Loaded, TICKET_BYTES, pick_bytes, run, scratch_bytes};
use crate::contract;
use crate::error::PrepareError;
use crate::finish::{Done, answer, facts};
use crate::prepare::{POSITIONS, RESULT, TOKENS, WANTED, result_width, tokens_end};
use crate::probe::{Probe, ProbeError, Probed, Tensor};
use crate::store::WeightStore;
use artifact::{Artifact, DeviceCode};
use engine::{Executor, ExecutorFacts, PhysicalPage, Step, StepError, StepOutput, Ticket};
use indexmap::IndexMap;
use ir::RowsPerSequence;
use std::cell::Cell;
use std::collections::HashMap;

/// Runs a plan on CUDA devices.
pub struct CudaExecutor {
    ranks: Vec<Loaded>,
    facts: ExecutorFacts,
    tokens_end: usize,
    start: usize,
    done: Done,
    /// By bucket and rows: nothing after the first such step, a recording after the second.
    recordings: HashMap<(usize, Counts), Option<Vec<Recording>>>,
}

/// Bytes that the plan of sorted picks begins with: tiles, where picks begin, picks, nothing.
const PLAN_HEAD_BYTES: usize = 16;

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

/// Every rank that runs, with all that it needs, for the artifact's first entry.
pub(super) fn load(
    artifact: &Artifact,
    source: &Source<'_>,
    pool_pages: &[usize],
    placed: Ranks,
) -> Result<Vec<Loaded>, PrepareError> {
    let mesh = &artifact.memory.mesh;
    let devices = placed.devices(mesh).map_err(device)?;
    let crowd = if placed == Ranks::Together { devices.len() as u32 } else { 1 };
    let ranks = placed.of(mesh).into_iter().zip(devices);
    let loaded = ranks.map(|(rank, device)| one(artifact, source, pool_pages, rank, device, crowd));
    let mut loaded = loaded.collect::<Result<Vec<_>, _>>()?;
    introduce(&mut loaded, mesh, placed).map_err(device)?;
    Ok(loaded)
}

/// The code for a device, if it is one that the artifact is compiled for.
fn code(artifact: &Artifact, opened: &Device) -> Result<DeviceCode, PrepareError> {
    let (major, minor) = opened.arch();
    let own = format!("sm_{major}{minor}");
    let arch = &artifact.manifest.target.arch;
    if arch.trim_end_matches('a') != own {
        let needed = format!("{} is {own}, the artifact is compiled for {arch}", opened.name());
        return Err(device(format!("{needed}; compile the spec for a target of that architecture")));
    }
    artifact.device.clone().ok_or_else(|| device("the artifact holds no kernels for it".to_owned()))
}

/// A rank on its device.
fn one(
    artifact: &Artifact,
    source: &Source<'_>,
    pool_pages: &[usize],
    rank: u64,
    opened: Device,
    crowd: u32,
) -> Result<Loaded, PrepareError> {
    let (module, plan) = (&artifact.kernels, &artifact.plan);
    let code = code(artifact, &opened)?;
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
    let mesh = artifact.memory.mesh.clone();
    Ok(Loaded {
        rank,
        tickets,
        picks,
        early: Cell::new(false),
        checks: Cell::new(false),
        kernels: kernels(&opened, &code)?,
        weights: match source {
            Source::Store(store) => Weights::load(&opened, artifact, *store, rank)?,
            Source::Seed(seed) => Weights::synthetic(&opened, artifact, *seed)?,
        },
        letterboxes: Letterboxes::new(&opened, &code, &mesh).map_err(device)?,
        known: Known::default(),
        facts: module.facts.clone(),
        mesh,
        device: opened,
        code,
        arena,
        scratch,
        pools,
        tables,
        entry,
        number: 0,
        crowd,
        plan: plan.clone(),
    })
}

impl CudaExecutor {
    /// Loads kernels and weights, each rank on a device of its own; `pool_pages` per KV kind, in the plan's order, sink page included.
    pub fn new(
        artifact: &Artifact,
        store: &dyn WeightStore,
        pool_pages: &[usize],
    ) -> Result<CudaExecutor, PrepareError> {
        CudaExecutor::on(artifact, store, pool_pages, Ranks::Apart)
    }

    /// The same with ranks where `placed` says.
    pub fn on(
        artifact: &Artifact,
        store: &dyn WeightStore,
        pool_pages: &[usize],
        placed: Ranks,
    ) -> Result<CudaExecutor, PrepareError> {
        CudaExecutor::of(artifact, load(artifact, &Source::Store(store), pool_pages, placed)?, pool_pages)
    }

    /// The same with weights made up on the device from a seed: for measurements of models that no host memory holds.
    pub fn synthetic(
        artifact: &Artifact,
        seed: u64,
        pool_pages: &[usize],
        placed: Ranks,
    ) -> Result<CudaExecutor, PrepareError> {
        CudaExecutor::of(artifact, load(artifact, &Source::Seed(seed), pool_pages, placed)?, pool_pages)
    }

    fn of(artifact: &Artifact, ranks: Vec<Loaded>, pool_pages: &[usize]) -> Result<CudaExecutor, PrepareError> {
        let Some(first) = ranks.first() else { return Err(device("no rank runs".to_owned())) };
        let vocab = result_width(&first.entry)?;
        let facts = facts(&artifact.plan, vocab, pool_pages, None)?;
        let tokens_end = tokens_end(&artifact.kernels, &first.entry).unwrap_or(vocab);
        Ok(CudaExecutor { ranks, facts, tokens_end, start: 0, done: Done::default(), recordings: HashMap::new() })
    }

    /// Runs a step start by start; gives each start's kernel, the kind of its region and its microseconds on the device.
    pub fn timeline(&mut self, step: &Step) -> Result<Vec<Timed>, StepError> {
        let (bucket, counts) = begin(&self.ranks, step, &self.facts, self.tokens_end, self.start)?;
        timeline(&self.ranks, bucket, counts).map_err(StepError::Device)
    }

    /// Runs a step as a recording, once it has run so; gives the microseconds that the device takes, without the host's work and without
    /// reading back logits.
    pub fn device_micros(&mut self, step: &Step) -> Result<f32, StepError> {
        let fault = StepError::Device;
        let (bucket, counts) = begin(&self.ranks, step, &self.facts, self.tokens_end, self.start)?;
        self.wait().map_err(fault)?;
        let first = |ranks: &[Loaded]| ranks.first().ok_or("no rank runs".to_owned())?.device.mark();
        let before = first(&self.ranks).map_err(fault)?;
        self.start_all(bucket, counts).map_err(fault)?;
        let after = first(&self.ranks).map_err(fault)?;
        self.wait().map_err(fault)?;
        before.micros_to(&after).map_err(fault)
    }

    /// How many tiles the picks of the last step's last layer with picks were sorted into, and how many picks there were: when decoding, the tiles are
    /// little more than the distinct picks. `None` where no layer sorts any.
    pub fn picked_tiles(&self) -> Result<Option<[u32; 2]>, StepError> {
        let Some(first) = self.ranks.first().filter(|r| r.picks.bytes() > PLAN_HEAD_BYTES) else { return Ok(None) };
        let mut head = [0u8; PLAN_HEAD_BYTES];
        first.picks.read(0, &mut head).map_err(StepError::Device)?;
        let word = |i: usize| u32::from_le_bytes([head[i * 4], head[i * 4 + 1], head[i * 4 + 2], head[i * 4 + 3]]);
        Ok(Some([word(0), word(2)]))
    }

    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        let fault = StepError::Device;
        let (bucket, counts) = begin(&self.ranks, step, &self.facts, self.tokens_end, self.start)?;
        self.start_all(bucket, counts).map_err(fault)?;
        let first = self.ranks.first().ok_or_else(|| fault("no rank runs".to_owned()))?;
        let bucket = first.bucket(bucket).map_err(fault)?;
        let place = bucket.shared.get(RESULT).ok_or_else(|| fault("the plan has no place for logits".to_owned()))?;
        let mut bytes = vec![0u8; counts.wanted * self.facts.vocab * 4];
        first.arena.read(place.offset_bytes as usize, &mut bytes).map_err(fault)?;
        // A fault of another rank is this step's.
        self.wait().map_err(fault)?;
        let word = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        let logits: Vec<f32> = bytes.chunks_exact(4).map(word).collect();
        answer(step, &logits, self.facts.vocab)
    }
}

impl CudaExecutor {
    /// Runs a bucket's programs. Steps of decoding recur with the same rows, so their starts are recorded; the first runs as
    /// it is, because the driver may load kernels then, which a recording forbids.
    fn start_all(&mut self, index: usize, counts: Counts) -> Result<(), String> {
        let ranks = &self.ranks;
        let bucket = ranks.first().ok_or("no rank runs")?.bucket(index)?;
        // Ranks of one device wait for each other from here, which cannot be recorded.
        let is_alone = ranks.iter().all(|r| r.crowd == 1);
        let recurs = is_alone && bucket.bucket.rows != RowsPerSequence::Ragged;
        let recordings = match self.recordings.get_mut(&(index, counts)) {
            Some(Some(recordings)) => recordings,
            Some(empty) => {
                let made = ranks.iter().map(|r| r.device.record(|| r.run(index, counts)));
                empty.insert(made.collect::<Result<Vec<_>, _>>()?)
            }
            None => {
                if recurs {
                    self.recordings.insert((index, counts), None);
                }
                return run(ranks, index, counts);
            }
        };
        ranks.iter().zip(recordings).try_for_each(|(rank, recording)| rank.device.replay(recording))
    }

    fn wait(&self) -> Result<(), String> {
        self.ranks.iter().try_for_each(|r| r.device.wait())
    }
}

/// Checks a step and writes what it brings; gives its bucket and rows.
pub(super) fn begin(
    ranks: &[Loaded],
    step: &Step,
    facts: &ExecutorFacts,
    tokens_end: usize,
    start: usize,
) -> Result<(usize, Counts), StepError> {
    let loaded = ranks.first().ok_or_else(|| StepError::Device("no rank runs".to_owned()))?;
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
    let wanted: Vec<i32> = step.wanted.iter().map(|w| w.row as i32).collect();
    for rank in ranks {
        rank.tables.write(step, &rows).map_err(fault)?;
        for (name, numbers) in [(TOKENS, &step.tokens), (POSITIONS, &step.positions), (WANTED, &wanted)] {
            if let Some(buffer) = buckets[index].shared.get(name) {
                rank.arena.write(buffer.offset_bytes as usize, bytemuck::cast_slice(numbers)).map_err(fault)?;
            }
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
        let found = |r: &'_ Loaded| r.pools.get(kind).is_some() && r.plan.kv.get(kind).is_some();
        if !self.ranks.iter().all(found) {
            return Err(StepError::Contract(format!("pages of KV kind {kind} are to be copied, there is none")));
        }
        let both = |r| pages.iter().map(move |pair| (r, pair));
        for (rank, (from, to)) in self.ranks.iter().flat_map(both) {
            let (Some(pool), Some(layout)) = (rank.pools.get(kind), rank.plan.kv.get(kind)) else { continue };
            let bytes = layout.page_bytes() as usize;
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
