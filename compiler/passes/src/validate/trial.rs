//! What validation runs a model on: seeded weights, and three steps of three sequences over a growing cache.

use super::parts::{self, Purpose};
use super::{plan, probe, ranks, regions};
use crate::PassError;
use interp::WeightMap;
use interp::{Cache, Context, Data, Env, Hooks, InterpError, MemoryCache, NoHooks, Outputs, RankWeights, Tensor};
use ir::ValueId;
use ir::{Axis, Block, DType, Entry, Extent, Facts, Graph, KernelModule, Model, Module, Op, Plan, Scope, Sharding};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Sequence and position of every row, step by step: two prompts, one of them far out; a row, a chunk and a new
/// prompt; one row each.
const STEPS: [&[(usize, i32)]; 3] = [
    &[(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 20000), (1, 20001), (1, 20002), (1, 20003)],
    &[(0, 5), (1, 20004), (1, 20005), (2, 0), (2, 1), (2, 2)],
    &[(0, 6), (1, 20006), (2, 3)],
];

/// Sequence and position of the first row of every block, step by step, of an entry that brings blocks.
const BLOCKS: [&[(usize, i32)]; 3] = [&[(0, 0), (1, 20000)], &[(0, 3), (1, 20002), (2, 0)], &[(1, 20009)]];

/// Sequences that occur in [`STEPS`] and [`BLOCKS`].
const SEQUENCES: usize = 3;

/// How large weights are, by seed: ordinary; so small that what is added to keep a root or a quotient finite counts;
/// so large that what saturates does.
const SCALES: [f32; 3] = [1.0, 1.0 / 1024.0, 4.0];

/// A level that can be run.
#[derive(Clone, Copy, Debug)]
pub enum Program<'p> {
    /// Entries and blocks.
    Model(&'p Model),
    /// Flat graphs per layer class.
    Module(&'p Module),
    /// Flat graphs region by region: a region sees what earlier ones left, and leaves what later ones read.
    Kernels(&'p KernelModule),
    /// Launches on an arena, with the regions that they launch.
    Plan(&'p KernelModule, &'p Plan),
}

impl<'p> Program<'p> {
    /// The mesh that it runs on and the facts of the whole model, if it runs on one.
    fn mesh(self) -> Option<(&'p Sharding, &'p Facts)> {
        match self {
            Program::Model(_) => None,
            Program::Module(module) => Some((module.sharding.as_ref()?, &module.facts)),
            Program::Kernels(kernels) | Program::Plan(kernels, _) => Some((kernels.sharding.as_ref()?, &kernels.facts)),
        }
    }
}

/// One entry with weights and inputs for every step.
#[derive(Debug)]
pub struct Trial {
    /// Entry that runs.
    pub entry: String,
    /// Seed of weights and inputs.
    pub seed: u64,
    weights: WeightMap,
    /// Sequence and position of every row, step by step.
    steps: Vec<Vec<(usize, i32)>>,
    inputs: Vec<Env>,
    kinds: Vec<String>,
    layers: usize,
    /// Inputs that hold numbers of token rows.
    picks: BTreeSet<String>,
}

/// Keys and values of one kind, layer and sequence, in the order of positions: `(position, keys, values)`.
pub type CachedRows = Vec<(i32, Vec<f32>, Vec<f32>)>;

/// Everything a run leaves.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Results, step by step.
    pub results: Vec<Outputs>,
    /// The cache after the last step, by kind, layer and sequence.
    pub cache: BTreeMap<(String, usize, usize), CachedRows>,
}

impl Trial {
    /// Every entry with every seed from 1 to `seeds`. What an input means is read from the flat graphs.
    pub fn all(model: &Model, module: &Module, seeds: u64) -> Result<Vec<Trial>, PassError> {
        let mut trials = Vec::new();
        for (signature, entry) in model.entries.iter().zip(&module.entries) {
            for seed in 1..=seeds.max(1) {
                let mut trial = Trial::new(&model.facts, signature, entry, seed).map_err(|e| refused(&e))?;
                trial.take(&module.facts).map_err(|e| refused(&e))?;
                trials.push(trial);
            }
        }
        Ok(trials)
    }

    fn new(facts: &Facts, signature: &Block, entry: &Entry, seed: u64) -> Result<Trial, InterpError> {
        let roles = roles(entry);
        let steps = steps(&signature.graph);
        let inputs = |(step, rows): (usize, &Vec<(usize, i32)>)| {
            let brought = Brought { step, rows, blocks: BLOCKS[step].len() };
            inputs(&signature.graph, &roles, facts, seed, &brought)
        };
        let picks = roles.iter().filter(|(_, role)| matches!(role, Role::Index(axis) if axis == ir::TOKEN_ROWS));
        let inputs = steps.iter().enumerate().map(inputs).collect::<Result<_, _>>()?;
        Ok(Trial {
            entry: signature.name.clone(),
            seed,
            weights: weights(facts, seed, &|w| w.dtype, &|x| x)?,
            steps,
            inputs,
            kinds: facts.kv.iter().map(|k| k.name.clone()).collect(),
            layers: facts.layers(),
            picks: picks.map(|(name, _)| name.clone()).collect(),
        })
    }

    /// Adds parts of quantised matrices that facts name, made of the matrices.
    pub fn take(&mut self, facts: &Facts) -> Result<(), InterpError> {
        parts::add(&mut self.weights, facts, Purpose::Trial)
    }

    /// The same steps with numbers for a probe: floats are binary32, weights multiples of a step and of ordinary size. Parts of
    /// quantised matrices are those that `quantised` names.
    pub(super) fn probe(&self, facts: &Facts, quantised: [&Facts; 2]) -> Result<Trial, InterpError> {
        let step = |x: f32| (x * probe::WEIGHT_STEPS).round_ties_even() / probe::WEIGHT_STEPS;
        let wide = |env: &Env| -> Result<Env, InterpError> {
            let mut new = Env::new();
            for (name, tensor) in env.iter() {
                let dtype = probe::wide(tensor.dtype());
                new.insert(name, Tensor::new(tensor.axes().to_vec(), dtype, tensor.data().clone())?);
            }
            Ok(new)
        };
        let mut weights = weights(facts, 1, &|w| probe::wide(w.dtype), &step)?;
        for facts in quantised {
            parts::add(&mut weights, facts, Purpose::Probe)?;
        }
        Ok(Trial {
            entry: self.entry.clone(),
            seed: self.seed,
            weights,
            steps: self.steps.clone(),
            inputs: self.inputs.iter().map(wide).collect::<Result<_, _>>()?,
            kinds: self.kinds.clone(),
            layers: self.layers,
            picks: self.picks.clone(),
        })
    }

    /// Runs every step. `after_step` sees the results of each and ends the run by returning false.
    pub fn run(
        &self,
        program: Program<'_>,
        hooks: &mut dyn Hooks,
        mut after_step: impl FnMut(usize, &Outputs) -> bool,
    ) -> Result<Record, InterpError> {
        if let Some(mesh) = program.mesh() {
            return self.run_on_ranks(program, mesh, hooks, after_step);
        }
        let mut cache = MemoryCache::default();
        let mut record = Record::default();
        for (step, env) in self.inputs.iter().enumerate() {
            cache.begin_step(self.steps[step].iter().map(|(sequence, _)| *sequence).collect());
            let mut context = Context { layer: None, weights: &self.weights, cache: &mut cache, hooks: &mut *hooks };
            let outputs = match program {
                Program::Model(model) => interp::run_model(model, &self.entry, env, &mut context)?,
                Program::Module(module) => {
                    interp::run_entry(self.entry_of(module)?, &module.facts, &mut env.clone(), &mut context)?
                }
                Program::Kernels(kernels) => {
                    let (envs, contexts) = (std::slice::from_ref(env), std::slice::from_mut(&mut context));
                    let left = regions::step(kernels, &self.entry, envs, contexts)?;
                    left.into_iter().next().unwrap_or_default()
                }
                Program::Plan(kernels, plan) => {
                    let (envs, contexts) = (std::slice::from_ref(env), std::slice::from_mut(&mut context));
                    let left = plan::step((kernels, plan), &self.entry, &self.steps[step], envs, contexts)?;
                    left.into_iter().next().unwrap_or_default()
                }
            };
            let go_on = after_step(step, &outputs);
            record.results.push(outputs);
            if !go_on {
                return Ok(record);
            }
        }
        record.cache = self.contents(&mut cache)?;
        Ok(record)
    }

    fn entry_of<'m>(&self, module: &'m Module) -> Result<&'m Entry, InterpError> {
        let found = module.entries.iter().find(|e| e.name == self.entry);
        found.ok_or_else(|| interp::Fault::Graph(format!("the entry `{}` is gone", self.entry)).into())
    }

    /// Runs every step on all ranks. What ranks have in common must be the same on each of them; the record holds whole
    /// values, as if one device had run. `hooks` see rank 0.
    fn run_on_ranks(
        &self,
        program: Program<'_>,
        (sharding, facts): (&Sharding, &Facts),
        hooks: &mut dyn Hooks,
        mut after_step: impl FnMut(usize, &Outputs) -> bool,
    ) -> Result<Record, InterpError> {
        let ranks = sharding.mesh.ranks() as usize;
        let weights: Vec<RankWeights<'_>> =
            (0..ranks).map(|rank| RankWeights::new(&self.weights, sharding, rank as u64)).collect();
        let mut caches: Vec<MemoryCache> = vec![MemoryCache::default(); ranks];
        let mut record = Record::default();
        for (step, env) in self.inputs.iter().enumerate() {
            let split = ranks::Split::of(&self.steps[step], env, sharding, &|name| self.picks.contains(name))?;
            let mut envs: Vec<Env> = split.envs.clone();
            let mut rest: Vec<NoHooks> = vec![NoHooks; ranks];
            let mut contexts: Vec<Context<'_>> = Vec::with_capacity(ranks);
            let mut first = Some(&mut *hooks);
            for (((rank, cache), weights), none) in caches.iter_mut().enumerate().zip(&weights).zip(&mut rest) {
                cache.begin_step(split.sequences[rank].clone());
                let hooks: &mut dyn Hooks = match first.take() {
                    Some(hooks) => hooks,
                    None => none,
                };
                contexts.push(Context { layer: None, weights, cache, hooks });
            }
            let outputs = match program {
                Program::Model(_) => return Err(interp::Fault::Graph("a model runs on no mesh".to_owned()).into()),
                Program::Module(module) => interp::run_ranks(self.entry_of(module)?, module, &mut envs, &mut contexts)?,
                Program::Kernels(kernels) => regions::step(kernels, &self.entry, &envs, &mut contexts)?,
                Program::Plan(kernels, plan) => {
                    plan::step((kernels, plan), &self.entry, &self.steps[step], &envs, &mut contexts)?
                }
            };
            let outputs = split.whole(&outputs)?;
            let go_on = after_step(step, &outputs);
            record.results.push(outputs);
            if !go_on {
                return Ok(record);
            }
        }
        let found = caches.iter_mut().map(|c| self.contents(c)).collect::<Result<Vec<_>, _>>()?;
        record.cache = ranks::whole_cache(&found, facts, sharding)?;
        Ok(record)
    }

    /// All that the cache holds: its rows are asked for as if a step had one row of each sequence.
    fn contents(&self, cache: &mut MemoryCache) -> Result<BTreeMap<(String, usize, usize), CachedRows>, InterpError> {
        cache.begin_step((0..SEQUENCES).collect());
        let mut all = BTreeMap::new();
        for kind in &self.kinds {
            for layer in 0..self.layers {
                for sequence in 0..SEQUENCES {
                    let rows = cache.rows(kind, layer, sequence, 0, i32::MAX)?;
                    let rows = rows.into_iter().map(|r| (r.position, r.k.into_owned(), r.v.into_owned()));
                    all.insert((kind.clone(), layer, sequence), rows.collect());
                }
            }
        }
        Ok(all)
    }
}

/// The model level refused to run.
pub(super) fn refused(error: &InterpError) -> PassError {
    PassError {
        code: "P0401",
        message: format!("the interpreter refuses the model: {error}"),
        help: "check the spec alone with `beamc check`; if it passes, report it together with the spec".to_owned(),
        span: None,
    }
}

/// Products keep about the size of their input; vectors are norms' weights and biases.
fn weights(
    facts: &Facts,
    seed: u64,
    dtype: &dyn Fn(&ir::Weight) -> DType,
    number: &dyn Fn(f32) -> f32,
) -> Result<WeightMap, InterpError> {
    let scale = SCALES[((seed - 1) % SCALES.len() as u64) as usize];
    let mut map = WeightMap::new();
    for weight in &facts.weights {
        let layers: Vec<Option<usize>> = match weight.scope {
            Scope::Model => vec![None],
            Scope::Layer => (0..facts.layers()).filter(|l| facts.layer_has(*l, weight)).map(Some).collect(),
        };
        let ty = weight.ty();
        let width = ty.axes.last().map_or(1, |axis| length(axis, 0));
        let size = scale * if ty.axes.len() > 1 { 1.4 / (width as f32).sqrt() } else { 0.6 };
        for layer in layers {
            let key = numerics::hash_name(&format!("{} {layer:?}", weight.name));
            let data: Vec<f32> =
                (0..weight.elements()).map(|i| number(size * numerics::synthetic(seed, key, i))).collect();
            let axes = ty.axes.iter().map(|axis| (axis.name.clone(), length(axis, 0))).collect();
            map.insert(weight.name.clone(), layer, floats(axes, dtype(weight), data)?);
        }
    }
    Ok(map)
}

fn floats(axes: Vec<(String, usize)>, dtype: DType, mut data: Vec<f32>) -> Result<Tensor, InterpError> {
    if dtype == DType::Bf16 {
        numerics::round_bf16_in_place(&mut data);
    }
    Tensor::new(axes, dtype, Data::F32(data))
}

fn length(axis: &Axis, rows: usize) -> usize {
    match axis.extent {
        Extent::Fixed(n) => n as usize,
        Extent::Rows => rows,
    }
}

/// What an integer input means.
enum Role {
    /// It selects along an axis.
    Index(String),
    /// It is a position in its sequence.
    Position,
}

/// Roles of the entry's integer inputs, from what their users do with them.
fn roles(entry: &Entry) -> HashMap<String, Role> {
    let mut roles = HashMap::new();
    for (_, graph) in entry.graphs() {
        for input in graph.ids() {
            let Some(name) = graph.input_name(input) else { continue };
            for (id, user) in users(graph, input) {
                let operands = graph.operands(user);
                let at = |place: usize| operands.get(place) == Some(&id);
                let role = match &graph.node(user).op {
                    Op::Gather { axis } if at(1) => Role::Index(axis.clone()),
                    Op::Linear { .. } if at(2) => match graph.tensor(operands[1]).and_then(|t| t.axes.first()) {
                        Some(axis) => Role::Index(axis.name.clone()),
                        None => continue,
                    },
                    Op::Store { .. } | Op::Attend { .. } if at(2) => Role::Position,
                    _ => continue,
                };
                roles.insert(name.to_owned(), role);
            }
        }
    }
    roles
}

/// What reads a value, or what only moves its elements: each reader with what it reads.
fn users(graph: &Graph, of: ValueId) -> Vec<(ValueId, ValueId)> {
    let (mut found, mut open) = (Vec::new(), vec![of]);
    while let Some(id) = open.pop() {
        for user in graph.users(id) {
            found.push((id, user));
            if matches!(graph.node(user).op, Op::Concat { .. } | Op::Shift { .. } | Op::Rename { .. }) {
                open.push(user);
            }
        }
    }
    found
}

/// The rows of every step of an entry, by its inputs.
fn steps(signature: &Graph) -> Vec<Vec<(usize, i32)>> {
    let Some(block) = ir::block_rows(signature) else {
        return STEPS.iter().map(|rows| rows.to_vec()).collect();
    };
    let rows = |(sequence, first): &(usize, i32)| {
        let (sequence, first) = (*sequence, *first);
        (0..block as i32).map(move |i| (sequence, first + i))
    };
    BLOCKS.iter().map(|blocks| blocks.iter().flat_map(rows).collect()).collect()
}

/// What a step brings.
struct Brought<'r> {
    step: usize,
    rows: &'r [(usize, i32)],
    /// Blocks, of an entry that brings them.
    blocks: usize,
}

/// The entry's inputs for one step.
fn inputs(
    signature: &Graph,
    roles: &HashMap<String, Role>,
    facts: &Facts,
    seed: u64,
    brought: &Brought<'_>,
) -> Result<Env, InterpError> {
    let Brought { step, rows, blocks } = *brought;
    // Every other row, the last first: a strict subset, in another order.
    let wanted: Vec<i32> = (0..rows.len() as i32).rev().step_by(2).collect();
    let mut env = Env::new();
    for id in &signature.inputs {
        let (Some(name), Some(ty)) = (signature.input_name(*id), signature.tensor(*id)) else { continue };
        let rows_of = |axis: &Axis| match axis.name.as_str() {
            ir::WANTED_ROWS => wanted.len(),
            ir::SEQUENCE_ROWS => blocks,
            _ => rows.len(),
        };
        let axes: Vec<(String, usize)> =
            ty.axes.iter().map(|axis| (axis.name.clone(), length(axis, rows_of(axis)))).collect();
        let n: usize = axes.iter().map(|a| a.1).product();
        let key = numerics::hash_name(&format!("{name} step {step}"));
        let draw = |i: usize, below: u64| (numerics::uniform(seed ^ key, i as u64) * below as f32) as i32;
        let tensor = match ty.dtype {
            DType::F32 | DType::Bf16 => {
                floats(axes, ty.dtype, (0..n).map(|i| numerics::synthetic(seed, key, i as u64)).collect())?
            }
            DType::E4m3 | DType::E5m2 | DType::Nvfp4 => {
                return Err(regions::broken(format!("no entry takes {} in, as `{name}` is", ty.dtype)));
            }
            DType::Bool => Tensor::new(axes, ty.dtype, Data::Bool((0..n).map(|i| draw(i, 2) == 1).collect()))?,
            DType::I32 => {
                let number = |i: usize| match roles.get(name) {
                    Some(Role::Index(axis)) => match facts.dims.get(axis) {
                        Some(below) => draw(i, *below),
                        None => wanted[i % wanted.len()],
                    },
                    _ => rows[i % rows.len()].1,
                };
                Tensor::new(axes, ty.dtype, Data::I32((0..n).map(number).collect()))?
            }
        };
        env.insert(name, tensor);
    }
    Ok(env)
}
