//! Every kernel of an artifact on this device against the interpreter, on a real step.
//!
//! A step runs launch by launch. Before a launch, what its region reads is fetched; after it, the same operations are
//! interpreted on the same numbers. Row operations must leave equal bits: they are interpreted on the core's own result. A core
//! must stay within the error that its number of terms explains.

use super::executor::{Begun, Source, begin, homes, load, staging};
use super::made::Made;
use super::ranks::Ranks;
use super::selftest_choice::choices;
use super::selftest_product::{Compared, Product};
use super::selftest_steps::Course;
use super::walk::{Counts, Loaded, Stage, graph_of_all, place};
use crate::error::PrepareError;
use crate::finish::facts;
use crate::load::{places_of_rows, pool_pages_for};
use crate::prepare::{result_width, tokens_end};
use crate::store::WeightStore;
use crate::truth::weight_map;
use crate::view::View;
use artifact::{Artifact, Param};
use engine::{SequenceRows, Step, StepError, WantedRow};
use interp::{Context, Data, Env, MemoryCache, NoHooks, RankWeights, Tensor, WeightMap, WeightSource, eval_graph};
use ir::{Anatomy, Bucket, DType, Facts, Graph, GraphBuilder, Launch, Mesh, Op, TensorType, Type, Unary, ValueId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// What was found of one region.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Kind of the region.
    pub kind: String,
    /// Kernels that it starts.
    pub kernels: Vec<String>,
    /// Of these, what no step of the test has started.
    pub idle: BTreeSet<String>,
    /// Numbers whose bits were compared.
    pub exact: u64,
    /// Of these, how many differ.
    pub wrong: u64,
    /// Numbers of cores that were compared with a bound.
    pub bounded: u64,
    /// Largest error as a share of its bound; above 1 is a fault.
    pub worst: f64,
    /// How many of all these are no numbers. Made-up weights must leave none: what is compared with them shows nothing.
    pub no_numbers: u64,
    /// Where the first difference was found.
    pub first: Option<String>,
}

impl Verdict {
    /// Whether the region is right as far as was seen.
    pub fn is_right(&self) -> bool {
        self.wrong == 0 && self.worst <= 1.0
    }
}

/// The weights of a test.
#[derive(Clone, Copy)]
pub enum Given<'a> {
    /// Numbers of the host.
    Store(&'a dyn WeightStore),
    /// Numbers made up on the device from a seed; steps then show one layer of each class, and of large products some rows and columns, for
    /// models that are too large to interpret more.
    Made(u64),
}

/// Which steps a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// One for every bucket, so that every kernel that a step can start is started.
    EveryBucket,
    /// One of each phase, for checkers that slow every instruction down.
    EachPhase,
}

/// Sequences of the test: rows of a first step, which crosses pages and windows, then a row each, then a step for every bucket.
const LENGTHS: [usize; 3] = [70, 33, 1];
/// The same where few rows are interpreted.
const FEW: [usize; 3] = [3, 1, 1];
/// Steps of a row each.
const DECODED: usize = 3;
/// Unit roundoff of binary32.
const UNIT: f64 = 1.0 / (1u64 << 24) as f64;

/// The steps of a test. A rank that stands in for all places brings the rows of each, so its buckets hold fewer of a step.
fn course(artifact: &Artifact, given: Given<'_>, placed: Ranks, steps: Steps) -> Course {
    let (lengths, decoded) = if matches!(given, Given::Store(_)) { (LENGTHS, DECODED) } else { (FEW, 1) };
    let times = if matches!(placed, Ranks::Alone(_)) { places_of_rows(artifact) } else { 1 };
    let held = |b: &Bucket| Bucket {
        tokens: b.tokens / times,
        sequences: b.sequences / times,
        wanted: b.wanted / times,
        ..b.clone()
    };
    let buckets = artifact.plan.entries.iter().take(1).flat_map(|e| &e.buckets).map(|b| held(&b.bucket));
    match steps {
        Steps::EveryBucket => Course::of(&lengths, decoded, &buckets.collect::<Vec<_>>()),
        Steps::EachPhase => Course::of_phases(&lengths),
    }
}

/// Tests every region of the first entry; verdicts by graph and region.
pub fn selftest(
    artifact: &Artifact,
    given: Given<'_>,
    seed: u64,
    placed: Ranks,
    steps: Steps,
) -> Result<BTreeMap<String, Verdict>, PrepareError> {
    let course = course(artifact, given, placed, steps);
    let sequences = course.lengths.len();
    let longest = course.lengths.iter().copied().max().unwrap_or(1);
    let pages = pool_pages_for(&artifact.plan, longest, sequences);
    let source = match given {
        Given::Store(store) => Source::Store(store),
        Given::Made(seed) => Source::Seed(seed),
    };
    let loaded = load(artifact, &source, &pages, placed)?;
    loaded.iter().for_each(|r| r.checks.set(true));
    let entry = &loaded.first().ok_or_else(|| PrepareError::Device("no rank runs".to_owned()))?.entry;
    let vocab = result_width(entry)?;
    let ends = tokens_end(&artifact.kernels, entry).unwrap_or(vocab);
    let facts = facts(&artifact.plan, vocab, &pages, None)?;
    let fault = |e: StepError| PrepareError::Device(e.to_string());
    let local = artifact.kernels.local_facts().into_owned();
    let whole = match given {
        Given::Store(store) => weight_map(&artifact.kernels.facts, store)?,
        Given::Made(_) => WeightMap::new(),
    };
    let sharding = artifact.kernels.sharding.clone().unwrap_or_default();
    let mut test = Test {
        ranks: &loaded,
        facts: local.clone(),
        mesh: artifact.memory.mesh.clone(),
        is_alone: matches!(placed, Ranks::Alone(_)),
        is_sampled: matches!(given, Given::Made(_)),
        weights: match given {
            Given::Store(_) => {
                let of = |r: &Loaded| Box::new(RankWeights::new(&whole, &sharding, r.rank)) as Box<dyn WeightSource>;
                loaded.iter().map(of).collect()
            }
            Given::Made(_) => {
                let of = |r| Box::new(Made::new(r, &artifact.memory, &local)) as Box<dyn WeightSource>;
                loaded.iter().map(of).collect()
            }
        },
        made: match given {
            Given::Store(_) => Vec::new(),
            Given::Made(_) => loaded.iter().map(|r| Made::new(r, &artifact.memory, &local)).collect(),
        },
        seed,
        caches: loaded.iter().map(|_| MemoryCache::default()).collect(),
        verdicts: BTreeMap::new(),
    };
    let page_tokens = artifact.plan.kv.iter().map(|k| k.page_tokens as usize).max().unwrap_or(1);
    let per_sequence = longest.div_ceil(page_tokens);
    let mut staged = staging(&loaded).map_err(PrepareError::Device)?;
    let mut homes = homes(&loaded, &pages)?;
    for rows in &course.steps {
        let mut step = drawn(rows, per_sequence, (ends, seed));
        step.entry.clone_from(&entry.name);
        // Physical pages in another order than virtual ones.
        let count = (per_sequence * sequences) as i32;
        step.translation = pages.iter().map(|_| (0..count).map(|v| count - v).collect()).collect();
        let begun = begin(&loaded, &mut staged, (&step, &mut homes), &facts, (ends, 0), 0);
        let Begun { bucket, counts, places } = begun.map_err(fault)?;
        for (rank, cache) in loaded.iter().zip(&mut test.caches) {
            let own = |at: usize| places.get(at).is_none_or(|place| *place == rank.home);
            let mine = rows.iter().enumerate().filter(|(at, _)| own(*at));
            cache.begin_step(mine.flat_map(|(_, (s, _, count))| std::iter::repeat_n(*s, *count)).collect());
        }
        test.step(bucket, counts).map_err(PrepareError::Device)?;
    }
    let mut verdicts = test.verdicts;
    let chosen = choices(&loaded, &mut staged, vocab, seed).map_err(PrepareError::Device)?;
    verdicts.extend(chosen.map(|verdict| ("choice of tokens".to_owned(), verdict)));
    Ok(verdicts)
}

/// A step of these sequences, first positions and numbers of rows; tokens below `ends` are drawn by sequence and position.
fn drawn(rows: &[(usize, usize, usize)], per_sequence: usize, (ends, seed): (usize, u64)) -> Step {
    let mut step = Step::default();
    for (s, first, rows) in rows.iter().copied() {
        let start = step.tokens.len();
        for position in first..first + rows {
            let draw = numerics::uniform(seed, (s * 100_000 + position) as u64);
            step.tokens.push((draw * ends as f32) as i32);
            step.positions.push(position as i32);
        }
        let pages = (0..per_sequence).map(|p| (s * per_sequence + p) as u32).collect::<Vec<u32>>().into();
        step.sequences.push(SequenceRows { start, len: rows, pages });
        let row = step.tokens.len() - 1;
        step.wanted.push(WantedRow { row, sampling: None, mask: None, logits: true });
    }
    step
}

struct Test<'a> {
    ranks: &'a [Loaded],
    /// Facts as a rank sees them.
    facts: Facts,
    mesh: Mesh,
    /// Whether a rank hears itself from the places of all others.
    is_alone: bool,
    /// Whether a step shows one layer of each class.
    is_sampled: bool,
    weights: Vec<Box<dyn WeightSource + 'a>>,
    /// The same where they were made up; nothing where they are the host's.
    made: Vec<Made<'a>>,
    seed: u64,
    caches: Vec<MemoryCache>,
    verdicts: BTreeMap<String, Verdict>,
}

/// A region of one rank as it runs.
struct At<'a> {
    /// Index of the rank among those that run.
    rank: usize,
    loaded: &'a Loaded,
    stage: Stage<'a>,
    number: usize,
    layer: Option<usize>,
    counts: Counts,
    /// What the region reads, and what ranks exchanged in it.
    given: HashMap<ValueId, Arc<Tensor>>,
    /// Values of `given` that the region itself makes.
    made: Vec<ValueId>,
}

impl Test<'_> {
    fn step(&mut self, bucket: usize, counts: Counts) -> Result<(), String> {
        let ranks = self.ranks;
        let stages = ranks.iter().map(|r| r.stages(r.bucket(bucket)?)).collect::<Result<Vec<_>, String>>()?;
        let mut seen = Vec::new();
        for (number, first) in stages.first().into_iter().flatten().enumerate() {
            if self.is_sampled && seen.contains(&first.index) {
                // Another layer of a class that this step has shown.
                graph_of_all(ranks, &stages, number, counts)?;
                continue;
            }
            seen.push(first.index);
            let all: Vec<Stage<'_>> = stages.iter().filter_map(|s| s.get(number).copied()).collect();
            for launch in &first.program.launches {
                match launch {
                    Launch::Region { region, .. } => self.region(&all, *region, launch, counts)?,
                    Launch::Move { .. } => {
                        ranks.iter().zip(&all).try_for_each(|(r, stage)| r.launch(stage, launch, counts))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn region(&mut self, stages: &[Stage<'_>], number: usize, launch: &Launch, counts: Counts) -> Result<(), String> {
        let first = stages.first().ok_or("no rank runs")?;
        let graph = &first.graph.graph;
        let region = first.graph.regions.get(number).ok_or("there is no such region")?;
        let anatomy = Anatomy::of(graph, &region.values)?;
        let reads = outside(graph, &region.values);
        let mut all = Vec::new();
        for (rank, (loaded, stage)) in self.ranks.iter().zip(stages).enumerate() {
            let layer = stage.instance.and_then(|i| loaded.entry.instances.get(i)).map(|i| i.layer);
            let mut at =
                At { rank, loaded, stage: *stage, number, layer, counts, given: HashMap::new(), made: Vec::new() };
            for id in &reads {
                let value = at.fetch(*id, place(stage, root(graph, *id))?)?;
                at.given.insert(*id, value);
            }
            all.push(at);
        }
        for at in &all {
            // What the region does not write shows as poison.
            let loaded = at.loaded;
            loaded.arena.fill(loaded.scratch, loaded.arena.bytes() - loaded.scratch, 0xff)?;
            loaded.early.set(false);
        }
        for at in &all {
            at.loaded.launch(&at.stage, launch, counts)?;
        }
        all.iter().try_for_each(|at| at.loaded.device.wait())?;
        self.exchanged(&region.values, &mut all)?;
        let title = format!("{} {}", first.graph.name, region.name);
        let mut verdict = self.verdicts.remove(&title).unwrap_or_default();
        verdict.kind = region.kind.word().to_owned();
        for at in &mut all {
            let code = at.loaded.region(&at.stage, number)?;
            let name = |k: usize| at.loaded.code.kernels.get(k).map(|k| k.name.clone()).unwrap_or_default();
            if verdict.kernels.is_empty() {
                verdict.kernels = code.starts.iter().map(|s| name(s.kernel)).collect();
                verdict.idle = verdict.kernels.iter().cloned().collect();
            }
            if let Launch::Region { variant, .. } = launch {
                let started = code.starts.iter().filter(|s| s.serves(*variant, &at.stage.bucket.bucket));
                for start in started {
                    verdict.idle.remove(&name(start.kernel));
                }
            }
            let core = anatomy.core.filter(|id| !at.made.contains(id));
            if let Some(id) = core {
                let made = at.core_result(id)?;
                self.bound(at, &anatomy, id, &made, &mut verdict)?;
                at.given.insert(id, made);
                at.made.push(id);
            }
            self.rows(at, &region.values, core, &mut verdict)?;
        }
        self.verdicts.insert(title, verdict);
        Ok(())
    }

    /// What ranks exchange in a region, from what each of them read.
    fn exchanged(&mut self, values: &[ValueId], all: &mut [At<'_>]) -> Result<(), String> {
        let Some(graph) = all.first().map(|at| &at.stage.graph.graph) else { return Ok(()) };
        for id in values.iter().copied().filter(|v| graph.node(*v).op.is_sharded()) {
            let operand = *graph.operands(id).first().ok_or("nothing is exchanged")?;
            let mut operands = Vec::new();
            for at in all.iter() {
                let mut cut = Cut::new(graph, values, &at.made);
                let copy = cut.add(operand);
                let env = self.interpret(at, &cut, &[("own".to_owned(), copy)])?;
                operands.push(env.get("own").ok_or("a value was not interpreted")?.clone());
            }
            if self.is_alone {
                operands = vec![operands[0].clone(); self.mesh.ranks() as usize];
            }
            let (counts, loaded) = all.first().map(|at| (at.counts, at.loaded)).ok_or("no rank runs")?;
            let own_rows = |rank: usize, axis: &str| {
                counts.of(Some(axis), loaded.mesh.place(rank as u64, &loaded.spread) as usize).ok()
            };
            let ranks = interp::Ranks { mesh: &self.mesh, facts: &self.facts, own_rows: &own_rows };
            let ty = graph.tensor(id).ok_or("what is exchanged is no tensor")?;
            let results = interp::exchange(&graph.node(id).op, &ranks, &operands, ty).map_err(|e| e.to_string())?;
            for at in all.iter_mut() {
                let result = results.get(at.loaded.rank as usize).ok_or("a rank got nothing")?;
                at.given.insert(id, result.clone());
                at.made.push(id);
            }
        }
        Ok(())
    }

    fn interpret(&mut self, at: &At<'_>, cut: &Cut<'_>, outputs: &[(String, ValueId)]) -> Result<Env, String> {
        let mut graph = cut.builder.graph().clone();
        graph.outputs = outputs.to_vec();
        let mut env = Env::new();
        for (id, value) in &at.given {
            env.insert(id.to_string(), value.clone());
        }
        let mut hooks = NoHooks;
        let (weights, cache) = (self.weights[at.rank].as_ref(), &mut self.caches[at.rank]);
        let mut context = Context { layer: at.layer, weights, cache, hooks: &mut hooks };
        eval_graph(&graph, &self.facts, &mut env, &mut context).map_err(|e| e.to_string())?;
        Ok(env)
    }
    /// A core against its definition, with the error that its terms explain.
    fn bound(
        &mut self,
        at: &At<'_>,
        anatomy: &Anatomy,
        id: ValueId,
        made: &Arc<Tensor>,
        verdict: &mut Verdict,
    ) -> Result<(), String> {
        let (graph, layer) = (&at.stage.graph.graph, at.layer);
        let mut inside = anatomy.before.clone();
        inside.push(id);
        let mut cut = Cut::new(graph, &inside, &at.made);
        let copy = cut.add(id);
        let mut outputs = vec![("core".to_owned(), copy)];
        // The same with magnitudes: what the error is relative to.
        let terms = match graph.node(id).op.clone() {
            Op::Linear { contract, .. } => {
                let operands = cut.builder.graph().operands(copy);
                let mut sizes = Vec::new();
                for (slot, v) in operands.iter().enumerate() {
                    let Some(ty) = cut.builder.graph().tensor(*v).cloned() else { continue };
                    let abs = Type::Tensor(TensorType::new(DType::F32, ty.axes.clone()));
                    let size = if slot < 2 { cut.builder.add(Op::Unary(Unary::Abs), &[*v], abs, None) } else { *v };
                    sizes.push(size);
                }
                let node = graph.node(id);
                let size = cut.builder.add(node.op.clone(), &sizes, node.ty.clone(), None);
                outputs.push(("size".to_owned(), size));
                let x = graph.operands(id).first().and_then(|v| graph.tensor(*v)).cloned();
                let axes = x.map(|t| t.axes).unwrap_or_default();
                let length = |a: &ir::Axis| if let ir::Extent::Fixed(n) = a.extent { n } else { 1 };
                axes.iter().filter(|a| contract.contains(&a.name)).map(length).product::<u64>() as f64
            }
            _ => 0.0,
        };
        let of = |t: &Tensor| t.floats().map(<[f32]>::to_vec);
        // All of a core, also where some of its numbers are compared.
        let whole = made.floats().map_or(0, no_numbers);
        let found = match self.sampled(at, anatomy, id, made)? {
            Some(found) => found,
            None => {
                let env = self.interpret(at, &cut, &outputs)?;
                let named = |name: &str| env.get(name).and_then(|t| of(t));
                let made = of(made).ok_or("a core of other numbers")?;
                Compared { made, core: named("core").ok_or("no reference")?, size: named("size").unwrap_or_default() }
            }
        };
        let Compared { made, core, size } = &found;
        if made.len() != core.len() || !(size.is_empty() || size.len() == core.len()) {
            return Err(format!(
                "a core of {} numbers, {} to compare with, {} sizes",
                made.len(),
                core.len(),
                size.len()
            ));
        }
        let largest = core.iter().fold(0f32, |m, x| m.max(x.abs()));
        for (i, (a, b)) in made.iter().zip(core).enumerate() {
            // Sums of n terms err by about √n roundings; attention by the roundings of its scores, which stand in an exponent.
            let bound = match size.get(i) {
                Some(size) => 2.0 * (terms.sqrt() + 1.0) * UNIT * f64::from(*size) + f64::from(f32::MIN_POSITIVE),
                None => 256.0 * UNIT * f64::from(largest) + f64::from(f32::MIN_POSITIVE),
            };
            let error = (f64::from(*a) - f64::from(*b)).abs();
            let share = if a.is_nan() != b.is_nan() {
                f64::INFINITY
            } else if error.is_nan() {
                0.0
            } else {
                error / bound
            };
            if share > 1.0 && verdict.worst <= 1.0 {
                verdict.first = Some(format!("core of layer {layer:?}, element {i}: {a} against {b}"));
            }
            verdict.worst = verdict.worst.max(share);
        }
        verdict.bounded += core.len() as u64;
        verdict.no_numbers += whole;
        Ok(())
    }

    /// Some numbers of a product whose weight is too large to interpret; `None` for any other core.
    fn sampled(
        &mut self,
        at: &At<'_>,
        anatomy: &Anatomy,
        id: ValueId,
        made: &Arc<Tensor>,
    ) -> Result<Option<Compared>, String> {
        let graph = &at.stage.graph.graph;
        let operands = graph.operands(id);
        let (Op::Linear { .. }, [x, w, ids @ ..]) = (&graph.node(id).op, operands.as_slice()) else { return Ok(None) };
        let (Op::Weight(reference), Some(ty), Some(result)) = (&graph.node(*w).op, graph.tensor(*w), graph.tensor(id))
        else {
            return Ok(None);
        };
        if self.made.is_empty() {
            return Ok(None);
        }
        let mut cut = Cut::new(graph, &anatomy.before, &at.made);
        let outputs: Vec<_> =
            std::iter::once(x).chain(ids).map(|operand| (operand.to_string(), cut.add(*operand))).collect();
        let env = self.interpret(at, &cut, &outputs)?;
        let operand = |id: &ValueId| env.get(&id.to_string()).ok_or("an operand was not interpreted");
        let (x, ids) = (operand(x)?, ids.first().map(operand).transpose()?);
        let weight = (reference, ty, at.layer);
        let product = Product { op: &graph.node(id).op, result, weight, x, ids: ids.map(|t| &**t), made };
        product.sampled(&self.made[at.rank], &self.facts, self.seed)
    }

    /// Row operations, on what the core left.
    fn rows(
        &mut self,
        at: &At<'_>,
        values: &[ValueId],
        own: Option<ValueId>,
        verdict: &mut Verdict,
    ) -> Result<(), String> {
        let (graph, layer) = (&at.stage.graph.graph, at.layer);
        let leaving = at.stage.graph.leaving();
        let mut cut = Cut::new(graph, values, &at.made);
        let mut outputs = Vec::new();
        for id in values {
            // What only leads to the core was checked with it.
            let copy = if graph.node(*id).ty.tensor().is_some() && !leaving[id.0 as usize] {
                None
            } else {
                Some(cut.add(*id))
            };
            if let (Some(copy), true) = (copy, leaving[id.0 as usize]) {
                outputs.push((id.to_string(), copy));
            }
        }
        let env = self.interpret(at, &cut, &outputs)?;
        for id in values.iter().filter(|v| leaving[v.0 as usize] && Some(**v) != own) {
            let wanted = env.get(&id.to_string()).ok_or("a value was not interpreted")?;
            let found = at.fetch(*id, place(&at.stage, *id)?)?;
            let wrong = differences(&found, wanted);
            verdict.exact += wanted.len() as u64;
            verdict.wrong += wrong.len() as u64;
            verdict.no_numbers += found.floats().map_or(0, no_numbers);
            if let (Some(i), None) = (wrong.first(), &verdict.first) {
                let name = graph.node(*id).name.clone().unwrap_or_else(|| id.to_string());
                verdict.first = Some(format!("{name} of layer {layer:?}, element {i}: {}", pair(&found, wanted, *i)));
            }
        }
        Ok(())
    }
}

impl At<'_> {
    fn fetch(&self, id: ValueId, place: usize) -> Result<Arc<Tensor>, String> {
        let ty = self.stage.graph.graph.tensor(id).ok_or("a cache is no tensor")?;
        let mut bytes = vec![0u8; self.loaded.bytes(&self.stage, id, self.counts)?];
        self.loaded.arena.read(place, &mut bytes)?;
        Ok(Arc::new(tensor(ty, (self.counts, self.loaded.home), &bytes)?))
    }

    /// What a core left: in scratch, or in its own place.
    fn core_result(&self, id: ValueId) -> Result<Arc<Tensor>, String> {
        let code = self.loaded.region(&self.stage, self.number)?;
        let leaves = self.stage.graph.leaving()[id.0 as usize];
        if leaves {
            return self.fetch(id, place(&self.stage, id)?);
        }
        // The core's start writes to the last scratch place that was made.
        let index = code.scratch.len().checked_sub(1).ok_or("a core has no scratch")?;
        let writes = |p: &Param| *p == Param::Scratch(index) || *p == Param::Checked(Box::new(Param::Scratch(index)));
        let written = code.starts.iter().any(|s| s.params.iter().any(writes));
        if !written {
            return Err("nothing writes a core's scratch".to_owned());
        }
        self.fetch(id, self.loaded.scratch_at(&self.stage, code, index))
    }
}

fn no_numbers(of: &[f32]) -> u64 {
    of.iter().filter(|x| x.is_nan()).count() as u64
}

fn differences(a: &Tensor, b: &Tensor) -> Vec<usize> {
    match (a.data(), b.data()) {
        (Data::F32(x), Data::F32(y)) => {
            (0..y.len()).filter(|i| !x.get(*i).is_some_and(|x| numerics::same_bits(*x, y[*i]))).collect()
        }
        (Data::I32(x), Data::I32(y)) => (0..y.len()).filter(|i| x.get(*i) != Some(&y[*i])).collect(),
        (Data::Bool(x), Data::Bool(y)) => (0..y.len()).filter(|i| x.get(*i) != Some(&y[*i])).collect(),
        _ => (0..b.len()).collect(),
    }
}

fn pair(a: &Tensor, b: &Tensor, i: usize) -> String {
    match (a.data(), b.data()) {
        (Data::F32(x), Data::F32(y)) => format!("{:?} against {:?}", x.get(i), y.get(i)),
        (Data::I32(x), Data::I32(y)) => format!("{:?} against {:?}", x.get(i), y.get(i)),
        _ => "another value".to_owned(),
    }
}

fn root(graph: &Graph, id: ValueId) -> ValueId {
    crate::prepare::root(graph, id)
}

/// Tensors that a set of operations reads from the arena.
fn outside(graph: &Graph, values: &[ValueId]) -> Vec<ValueId> {
    let mut found = Vec::new();
    for id in values.iter().flat_map(|v| graph.operands(*v)) {
        // What a view outside shows is what is read.
        let id = if values.contains(&id) { id } else { root(graph, id) };
        let op = &graph.node(id).op;
        let leaf = op.is_leaf() && !matches!(op, Op::Input(_));
        if !values.contains(&id) && !leaf && graph.tensor(id).is_some() && !found.contains(&id) {
            found.push(id);
        }
    }
    found
}

/// A tensor of bytes.
fn tensor(ty: &TensorType, (counts, home): (Counts, usize), bytes: &[u8]) -> Result<Tensor, String> {
    let mut axes = Vec::new();
    for axis in &ty.axes {
        let length = match axis.extent {
            ir::Extent::Fixed(n) => n as usize,
            ir::Extent::Rows => counts.of(Some(&axis.name), home)?,
        };
        axes.push((axis.name.clone(), length));
    }
    let word = |b: &[u8]| [b[0], b[1], b[2], b[3]];
    let data = match ty.dtype {
        DType::F32 => Data::F32(bytes.chunks_exact(4).map(|b| f32::from_le_bytes(word(b))).collect()),
        DType::Bf16 => {
            let wide = |b: &[u8]| numerics::bf16_value(u16::from_le_bytes([b[0], b[1]]));
            Data::F32(bytes.chunks_exact(2).map(wide).collect())
        }
        DType::E4m3 | DType::E5m2 | DType::Nvfp4 => Data::F32(View::of(ty.dtype, bytes).to_f32()),
        DType::I32 => Data::I32(bytes.chunks_exact(4).map(|b| i32::from_le_bytes(word(b))).collect()),
        DType::Bool => Data::Bool(bytes.iter().map(|b| *b != 0).collect()),
    };
    Tensor::new(axes, ty.dtype, data).map_err(|e| e.to_string())
}

/// A part of a graph as a graph of its own; what it reads are inputs, called by their numbers.
struct Cut<'a> {
    graph: &'a Graph,
    inside: &'a [ValueId],
    /// Values that are given although they are inside.
    given: &'a [ValueId],
    builder: GraphBuilder,
    copies: HashMap<ValueId, ValueId>,
}

impl<'a> Cut<'a> {
    fn new(graph: &'a Graph, inside: &'a [ValueId], given: &'a [ValueId]) -> Cut<'a> {
        Cut { graph, inside, given, builder: GraphBuilder::new(), copies: HashMap::new() }
    }

    fn add(&mut self, id: ValueId) -> ValueId {
        if let Some(copy) = self.copies.get(&id) {
            return *copy;
        }
        let node = self.graph.node(id);
        let leaf = node.op.is_leaf() && !matches!(node.op, Op::Input(_));
        let computed = self.inside.contains(&id) || leaf || node.op.is_view();
        let copy = if computed && !self.given.contains(&id) {
            let operands: Vec<ValueId> = self.graph.operands(id).into_iter().map(|v| self.add(v)).collect();
            self.builder.add(node.op.clone(), &operands, node.ty.clone(), None)
        } else {
            self.builder.input(&id.to_string(), node.ty.clone())
        };
        self.copies.insert(id, copy);
        copy
    }
}
