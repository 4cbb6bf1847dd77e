//! The step contract over devices, one for each rank: a step is checked, what it brings is sent, its bucket's programs run, tokens are
//! chosen.
//!
//! ```text
//! submit n      ─ what it brings ─► programs, choice ─► tokens brought ─┐
//! submit n + 1  ─ rows that stand for tokens of n ─► …                  ├─► poll n
//! ```
//!
//! A step all of whose tokens the device chooses is *in flight* when `submit` returns, and another may be submitted. The host waits for
//! any other, since it chooses from logits, which the next step overwrites.

use super::choose::{Brought, Choice, Choices, Choosing, Masks, choosing, found, send};
use super::driver::{Device, Recording, Staging};
use super::homes::{self, Homes};
use super::load::{Weights, kernels};
use super::ranks::{Known, Letterboxes, MOST_RANKS, Ranks, introduce};
use super::tables::Tables;
use super::timeline::{Timed, timeline};
use super::walk::{Counts, Loaded, Shares, TICKET_BYTES, pick_bytes, run, scratch_bytes};
use crate::contract;
use crate::error::PrepareError;
use crate::finish::{Done, facts};
use crate::prepare::{POSITIONS, RESULT, TOKENS, WANTED, result_width, tokens_end};
use crate::probe::{Probe, ProbeError, Probed, Tensor};
use crate::store::WeightStore;
use artifact::{Artifact, DeviceCode, Product};
use engine::{Executor, ExecutorFacts, PhysicalPage, Step, StepError, StepOutput, Ticket, answer_beside};
use indexmap::IndexMap;
use ir::{RowsPerSequence, TOKEN_ROWS};
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Most steps in flight.
const MOST_FLIGHTS: usize = 2;
/// Between two looks at a device.
const LOOK: Duration = Duration::from_micros(10);
/// Most bytes of staging memory of a step; what is beyond is sent all the same, but the host waits.
const MOST_STAGED_BYTES: usize = 32 << 20;

/// Runs a plan on CUDA devices.
pub struct CudaExecutor {
    ranks: Vec<Loaded>,
    facts: ExecutorFacts,
    tokens_end: usize,
    start: usize,
    done: Done,
    /// By bucket, rows and choices: nothing after the first such step, a recording after the second.
    recordings: HashMap<(usize, Counts, Choosing), Option<Vec<Recording>>>,
    /// Steps in flight, in the order of submission.
    flights: VecDeque<Flight>,
    last: Last,
    masks: Masks,
    homes: Homes,
    /// Staging memory of all ranks that no step uses.
    staging: Vec<Vec<Staging>>,
    /// Steps that are done.
    spare: Vec<Step>,
}

/// A step that was started.
struct Started {
    bucket: usize,
    /// What the device chooses, by wanted row.
    rows: Vec<Option<Choice>>,
    brought: Option<Brought>,
    staging: Vec<Staging>,
    /// By wanted row, the place of its ranks and which row it is there; none where all ranks run all rows.
    wanted: Vec<(usize, usize)>,
}

/// A step in flight.
struct Flight {
    ticket: Ticket,
    step: Step,
    started: Started,
}

/// What rows of the next step may stand for: the choices of the step that was submitted last.
enum Last {
    /// It is in flight, with so many wanted rows, and has its tokens on the device.
    InFlight(usize),
    /// Its tokens are known.
    Known(Vec<Option<u32>>),
}

impl Last {
    fn of(output: &StepOutput) -> Last {
        Last::Known(output.tokens.iter().map(|t| t.as_ref().map(|t| t.id)).collect())
    }
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
    for one in &mut loaded {
        one.is_alone = matches!(placed, Ranks::Alone(_));
    }
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
    let most_wanted = plan.entries.iter().flat_map(|e| &e.buckets).map(|b| b.bucket.wanted).max().unwrap_or(1) as usize;
    let vocab = result_width(&entry)? as u64;
    let choice = code.choice.as_ref().filter(|c| c.vocab == vocab);
    let choices = choice.map(|c| Choices::new(&opened, c, most_wanted)).transpose().map_err(device)?;
    let mesh = artifact.memory.mesh.clone();
    let spread = module.sharding.as_ref().and_then(|s| s.rows.get(TOKEN_ROWS)).cloned().unwrap_or_default();
    if mesh.parts(&spread) > MOST_RANKS as u64 {
        return Err(device(format!("rows are spread over {} ranks, {MOST_RANKS} at most", mesh.parts(&spread))));
    }
    Ok(Loaded {
        home: mesh.place(rank, &spread) as usize,
        spread,
        is_alone: false,
        rank,
        tickets,
        picks,
        early: Cell::new(false),
        checks: Cell::new(false),
        shares: Cell::new(None),
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
        choices,
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
        let mut facts = facts(&artifact.plan, vocab, pool_pages, None)?;
        let homes = homes(&ranks, pool_pages)?;
        // What a rank chooses for its own rows, others do not know.
        facts.takes_choices = first.choices.is_some() && !homes.are_apart();
        let tokens_end = tokens_end(&artifact.kernels, &first.entry).unwrap_or(vocab);
        let staging = (0..MOST_FLIGHTS).map(|_| staging(&ranks)).collect::<Result<Vec<_>, _>>().map_err(device)?;
        Ok(CudaExecutor {
            ranks,
            facts,
            tokens_end,
            start: 0,
            done: Done::default(),
            recordings: HashMap::new(),
            flights: VecDeque::new(),
            last: Last::Known(Vec::new()),
            masks: Masks::default(),
            homes,
            staging,
            spare: Vec::new(),
        })
    }

    /// Runs a step start by start; gives each start's kernel, the kind of its region and its microseconds on the device.
    pub fn timeline(&mut self, step: &Step) -> Result<Vec<Timed>, StepError> {
        let (bucket, counts, started) = self.prepare(step)?;
        let timed = timeline(&self.ranks, bucket, counts, choosing(&started.rows, false)).map_err(StepError::Device);
        self.staging.push(started.staging);
        timed
    }

    /// Runs a step start by start with every number of shares that a product has a kernel for; gives products, shares and microseconds.
    pub fn product_micros(&mut self, step: &Step) -> Result<Vec<(Product, u64, f32)>, StepError> {
        let Some(first) = self.ranks.first() else { return Ok(Vec::new()) };
        let regions = first.code.entries.iter().flatten().flat_map(|g| &g.regions);
        let all: Vec<artifact::Alternative> = regions.flat_map(|r| r.alternatives.iter().cloned()).collect();
        let name =
            |a: &artifact::Alternative| Some((first.code.kernels.get(a.kernel)?.name.clone(), (a.product, a.shares)));
        let known: HashMap<String, (Product, u64)> = all.iter().filter_map(name).collect();
        let numbers: BTreeSet<u64> = all.iter().map(|a| a.shares).collect();
        let mut found = Vec::new();
        for shares in numbers {
            self.ranks.iter().for_each(|r| r.shares.set(Some(shares)));
            let timed = self.timeline(step);
            self.ranks.iter().for_each(|r| r.shares.set(None));
            let of = |t: Timed| known.get(&t.kernel).map(|(product, shares)| (*product, *shares, t.micros));
            found.extend(timed?.into_iter().filter_map(of));
        }
        Ok(found)
    }

    /// Name of the first rank's device.
    pub fn device(&self) -> String {
        self.ranks.first().map_or_else(String::new, |r| r.device.name().to_owned())
    }

    /// Runs a step as a recording, once it has run so; gives the microseconds that the device takes, without the host's work and without
    /// reading back logits.
    pub fn device_micros(&mut self, step: &Step) -> Result<f32, StepError> {
        let fault = StepError::Device;
        let (bucket, counts, started) = self.prepare(step)?;
        self.wait().map_err(fault)?;
        let first = |ranks: &[Loaded]| ranks.first().ok_or("no rank runs".to_owned())?.device.mark();
        let before = first(&self.ranks).map_err(fault)?;
        self.start_all(bucket, counts, choosing(&started.rows, false)).map_err(fault)?;
        let after = first(&self.ranks).map_err(fault)?;
        self.wait().map_err(fault)?;
        self.staging.push(started.staging);
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

    /// Sends what a step brings, and how its tokens are chosen.
    fn prepare(&mut self, step: &Step) -> Result<(usize, Counts, Started), StepError> {
        let fault = StepError::Device;
        let mut staging = match self.staging.pop() {
            Some(staging) => staging,
            None => staging(&self.ranks).map_err(fault)?,
        };
        let choices = if let Last::InFlight(wanted) = self.last { wanted } else { 0 };
        let tokens = (self.tokens_end, choices);
        let given = (step, &mut self.homes);
        let Begun { bucket, counts, places } =
            match begin(&self.ranks, &mut staging, given, &self.facts, tokens, self.start) {
                Ok(begun) => begun,
                Err(error) => {
                    self.staging.push(staging);
                    return Err(error);
                }
            };
        // Blocks to verify are accepted by the host, which needs whole distributions.
        let chooses = self.facts.takes_choices && step.blocks.is_empty();
        let choice = |w| if chooses { Choice::of(w, self.facts.vocab) } else { None };
        let rows: Vec<Option<Choice>> = step.wanted.iter().map(choice).collect();
        if rows.iter().any(Option::is_some) {
            send(&self.ranks, &mut staging, &mut self.masks, &rows).map_err(fault)?;
        }
        let wanted = if places.is_empty() { Vec::new() } else { homes::wanted(step, &places) };
        Ok((bucket, counts, Started { bucket, rows, brought: None, staging, wanted }))
    }

    /// Starts a step and has what it chooses brought back.
    fn start(&mut self, step: &Step) -> Result<Started, StepError> {
        let fault = StepError::Device;
        let (bucket, counts, mut started) = self.prepare(step)?;
        let choosing = choosing(&started.rows, step.tokens.iter().any(|t| *t < 0));
        self.start_all(bucket, counts, choosing).map_err(fault)?;
        let first = self.ranks.first().and_then(|r| r.choices.as_ref()).filter(|_| choosing.chooses);
        if let Some((choices, staging)) = first.zip(started.staging.first_mut()) {
            started.brought = Some(choices.bring(staging, counts.wanted, &started.rows).map_err(fault)?);
        }
        started.staging.iter_mut().try_for_each(Staging::end).map_err(fault)?;
        Ok(started)
    }

    /// The output of a step that is done, or that is waited for here; `logits` by wanted row, as far as they are needed.
    fn finish(&mut self, step: Step, mut started: Started, logits: &[Vec<f32>]) -> Result<StepOutput, StepError> {
        let fault = StepError::Device;
        let mut answers = Vec::new();
        for (row, choice) in started.rows.iter().enumerate() {
            let (Some(choice), Some(brought)) = (choice, &started.brought) else {
                answers.push(None);
                continue;
            };
            let staging = started.staging.first_mut().ok_or_else(|| fault("no rank runs".to_owned()))?;
            answers.push(Some(found(staging, brought, row, choice, self.facts.vocab).map_err(fault)?));
        }
        let chosen = |at: usize| {
            let (answer, sampling) = answers.get(at)?.as_ref().zip(step.wanted.get(at)?.sampling.as_ref())?;
            Some(answer.as_ref().map(|found| found.report(sampling)).map_err(Clone::clone))
        };
        let output = answer_beside(&step, |at| logits.get(at).map_or(&[], Vec::as_slice), chosen);
        self.staging.push(started.staging);
        // Not everybody asks for them.
        if self.spare.len() < MOST_FLIGHTS {
            self.spare.push(step);
        }
        Ok(output)
    }

    /// Logits of the wanted rows that the host chooses for, or that are asked for; nothing for the others.
    fn logits(&self, step: &Step, started: &Started) -> Result<Vec<Vec<f32>>, String> {
        let first = self.ranks.first().ok_or("no rank runs")?;
        let place = first.bucket(started.bucket)?.shared.get(RESULT).ok_or("the plan has no place for logits")?;
        let needed = |at: usize| {
            let of = |w: &engine::WantedRow| w.logits || (w.sampling.is_some() && started.rows[at].is_none());
            step.wanted.get(at).is_some_and(of)
        };
        let row_bytes = self.facts.vocab * 4;
        let (mut logits, mut at) = (vec![Vec::new(); step.wanted.len()], 0);
        let apart = self.homes.are_apart();
        while at < step.wanted.len() {
            let most = if apart { 1 } else { step.wanted.len() - at };
            let run = (at..at + most).take_while(|at| needed(*at)).count();
            let (home, row) = started.wanted.get(at).copied().unwrap_or((first.home, at));
            let rank = self.ranks.iter().find(|r| r.home == home).ok_or("no rank has the row's logits")?;
            let mut bytes = vec![0u8; run * row_bytes];
            rank.arena.read(place.offset_bytes as usize + row * row_bytes, &mut bytes)?;
            let word = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            for (row, bytes) in logits[at..].iter_mut().zip(bytes.chunks_exact(row_bytes.max(1))) {
                *row = bytes.chunks_exact(4).map(word).collect();
            }
            at += run.max(1);
        }
        Ok(logits)
    }

    /// Waits for the step that was submitted first of those in flight, and keeps its output.
    fn land(&mut self) -> Result<(), StepError> {
        let Some(flight) = self.flights.pop_front() else { return Ok(()) };
        let output = self.finish(flight.step, flight.started, &[])?;
        if self.flights.is_empty() && matches!(self.last, Last::InFlight(_)) {
            self.last = Last::of(&output);
        }
        self.done.keep_as(flight.ticket, output);
        Ok(())
    }

    /// Gives rows that stand for tokens of the step before those that are known. Where none could be chosen, nobody looks at what is
    /// computed.
    fn settle(&self, step: &mut Step) -> Result<(), StepError> {
        let Last::Known(chosen) = &self.last else { return Ok(()) };
        for (row, token) in step.tokens.iter_mut().enumerate().filter(|(_, token)| **token < 0) {
            let Some(found) = chosen.get(!*token as usize) else {
                let (found, count) = (*token, chosen.len());
                return Err(StepError::Contract(format!(
                    "row {row} has token {found}, the step before chose {count} tokens"
                )));
            };
            *token = found.map_or(0, |token| token as i32);
        }
        Ok(())
    }
}

impl CudaExecutor {
    /// Runs a bucket's programs. Steps of decoding recur with the same rows, so their starts are recorded; the first runs as
    /// it is, because the driver may load kernels then, which a recording forbids.
    fn start_all(&mut self, index: usize, counts: Counts, choosing: Choosing) -> Result<(), String> {
        let ranks = &self.ranks;
        let bucket = ranks.first().ok_or("no rank runs")?.bucket(index)?;
        // Ranks of one device wait for each other from here, and so does who looks for a fault; that cannot be recorded.
        let is_alone = ranks.iter().all(|r| r.crowd == 1 && !r.device.is_blocking());
        let recurs = is_alone && bucket.bucket.rows != RowsPerSequence::Ragged;
        let recordings = match self.recordings.get_mut(&(index, counts, choosing)) {
            Some(Some(recordings)) => recordings,
            Some(empty) => {
                let made = ranks.iter().map(|r| r.device.record(|| r.run(index, counts, choosing)));
                empty.insert(made.collect::<Result<Vec<_>, _>>()?)
            }
            None => {
                if recurs {
                    self.recordings.insert((index, counts, choosing), None);
                }
                return run(ranks, index, counts, choosing);
            }
        };
        ranks.iter().zip(recordings).try_for_each(|(rank, recording)| rank.device.replay(recording))
    }

    fn wait(&self) -> Result<(), String> {
        self.ranks.iter().try_for_each(|r| r.device.wait())
    }
}

/// Staging memory of a step, for each rank.
pub(super) fn staging(ranks: &[Loaded]) -> Result<Vec<Staging>, String> {
    let of = |rank: &Loaded| {
        let buckets = rank.plan.entries.iter().flat_map(|e| &e.buckets).map(|b| &b.bucket);
        let rows = buckets.map(|b| (b.tokens * 2 + b.wanted) as usize * 4).max().unwrap_or(0);
        let choices = rank.choices.as_ref().map_or(0, Choices::staged_bytes);
        // Some more, because pieces begin at whole lines.
        let tables = rank.tables.bytes().min(MOST_STAGED_BYTES);
        Staging::new(&rank.device, tables + rows + choices + 64 * (rank.plan.kv.len() + 128))
    };
    ranks.iter().map(of).collect()
}

/// Places of the rows of ranks that run.
pub(super) fn homes(ranks: &[Loaded], pool_pages: &[usize]) -> Result<Homes, PrepareError> {
    let first = ranks.first().ok_or_else(|| device("no rank runs".to_owned()))?;
    let only = first.is_alone.then_some(first.home);
    Ok(Homes::new(first.mesh.parts(&first.spread) as usize, only, pool_pages))
}

/// A step whose rows were sent.
pub(super) struct Begun {
    /// Its bucket.
    pub bucket: usize,
    /// Its rows.
    pub counts: Counts,
    /// The place of every sequence; none where all ranks run all rows.
    pub places: Vec<usize>,
}

/// Checks a step and sends what it brings; gives its bucket and rows. `tokens` is one past the largest token id, and how many tokens of
/// the step before rows may stand for.
pub(super) fn begin(
    ranks: &[Loaded],
    staging: &mut [Staging],
    (step, homes): (&Step, &mut Homes),
    facts: &ExecutorFacts,
    tokens: (usize, usize),
    start: usize,
) -> Result<Begun, StepError> {
    let loaded = ranks.first().ok_or_else(|| StepError::Device("no rank runs".to_owned()))?;
    if step.entry != loaded.entry.name {
        return Err(StepError::Contract(format!("it runs entry `{}`, which is not loaded", step.entry)));
    }
    let rows = contract::check_behind(step, facts, tokens.0, start, tokens.1)?;
    let buckets = &loaded.plan.entries[0].buckets;
    // A rank that is at all places has the rows of each.
    let times = if loaded.is_alone { homes.places() } else { 1 };
    let holds = |b: &ir::Bucket| {
        (step.tokens.len() * times) as u64 <= b.tokens && (step.wanted.len() * times) as u64 <= b.wanted
    };
    let fitting = buckets.iter().map(|b| &b.bucket).enumerate().filter(|(_, b)| holds(b));
    let Some(bucket) = contract::choose_bucket(step, fitting) else {
        let (rows, sequences) = (step.tokens.len(), step.sequences.len());
        return Err(StepError::Contract(format!("{rows} rows of {sequences} sequences fit no bucket")));
    };
    let mut counts = Counts { tokens: step.tokens.len(), wanted: step.wanted.len(), shares: None };
    let shared = &buckets[bucket].shared;
    if !homes.are_apart() {
        for (rank, staging) in ranks.iter().zip(staging) {
            send_rows(rank, staging, (step, &rows), shared)?;
        }
        return Ok(Begun { bucket, counts, places: Vec::new() });
    }
    let places = homes.of(step, &rows, &loaded.plan.kv)?;
    let parts: Vec<homes::Part> = (0..homes.places()).map(|place| homes::part(step, &rows, &places, place)).collect();
    let mut shares = Shares::default();
    for (place, (tokens, wanted)) in shares.tokens.iter_mut().zip(&mut shares.wanted).enumerate() {
        let of = if loaded.is_alone && place < homes.places() { parts.get(loaded.home) } else { parts.get(place) };
        (*tokens, *wanted) = of.map_or((0, 0), |of| (of.step.tokens.len() as u32, of.step.wanted.len() as u32));
    }
    counts.shares = Some(shares);
    for (rank, staging) in ranks.iter().zip(staging) {
        if let Some(part) = parts.get(rank.home) {
            send_rows(rank, staging, (&part.step, &part.rows), shared)?;
        }
    }
    Ok(Begun { bucket, counts, places })
}

/// Sends what a rank runs of a step.
fn send_rows(
    rank: &Loaded,
    staging: &mut Staging,
    (step, rows): (&Step, &contract::Rows),
    shared: &IndexMap<String, ir::Buffer>,
) -> Result<(), StepError> {
    let fault = StepError::Device;
    let wanted: Vec<i32> = step.wanted.iter().map(|w| w.row as i32).collect();
    staging.begin().map_err(fault)?;
    rank.tables.send(staging, step, rows).map_err(fault)?;
    for (name, numbers) in [(TOKENS, &step.tokens), (POSITIONS, &step.positions), (WANTED, &wanted)] {
        if let Some(buffer) = shared.get(name) {
            let bytes = bytemuck::cast_slice(numbers);
            staging.send(&rank.arena, buffer.offset_bytes as usize, bytes).map_err(fault)?;
        }
    }
    Ok(())
}

impl Executor for CudaExecutor {
    fn facts(&self) -> &ExecutorFacts {
        &self.facts
    }

    fn submit(&mut self, mut step: Step) -> Result<Ticket, StepError> {
        while self.flights.len() >= MOST_FLIGHTS {
            self.land()?;
        }
        self.settle(&mut step)?;
        let started = self.start(&step)?;
        let needs_logits =
            |(w, row): (&engine::WantedRow, &Option<Choice>)| w.logits || (w.sampling.is_some() && row.is_none());
        if step.wanted.iter().zip(&started.rows).any(needs_logits) {
            let logits = self.logits(&step, &started).map_err(StepError::Device)?;
            // A fault of another rank is this step's.
            self.wait().map_err(StepError::Device)?;
            let output = self.finish(step, started, &logits)?;
            self.last = Last::of(&output);
            return Ok(self.done.keep(output));
        }
        let ticket = self.done.ticket();
        self.last = Last::InFlight(step.wanted.len());
        self.flights.push_back(Flight { ticket, step, started });
        Ok(ticket)
    }

    fn poll(&mut self, ticket: Ticket) -> Result<Option<StepOutput>, StepError> {
        while self.flights.iter().any(|f| f.ticket == ticket) {
            let done = |f: &Flight| f.started.staging.iter().map(Staging::is_done).find(|done| *done != Ok(true));
            match self.flights.front().and_then(done) {
                None => self.land()?,
                Some(Ok(_)) => return Ok(None),
                Some(Err(text)) => {
                    // What was computed behind a fault is lost with it.
                    self.flights.clear();
                    return Err(StepError::Device(text));
                }
            }
        }
        self.done.take(ticket)
    }

    fn in_flight_limit(&self) -> usize {
        if self.facts.takes_choices { MOST_FLIGHTS } else { 1 }
    }

    fn wait_for_step(&mut self, most: Duration) {
        let since = Instant::now();
        let runs = |f: &Flight| f.started.staging.iter().any(|staging| matches!(staging.is_done(), Ok(false)));
        while self.flights.front().is_some_and(runs) && since.elapsed() < most {
            std::thread::sleep(LOOK);
        }
    }

    fn spare(&mut self) -> Option<Step> {
        self.spare.pop()
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
            self.homes.copied(kind, from, to);
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
