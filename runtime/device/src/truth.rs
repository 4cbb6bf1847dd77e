//! The `interp` executor: the compiler's interpreter behind the step contract. Slow, and right by definition.
//!
//! It runs the graphs of the kernel module and ignores the plan, save for its buckets' limits and the cache layouts: keys and
//! values go through the same pages as on any other executor, so a wrong page table shows here too.

use crate::cache::{Cache as Pages, Side};
use crate::contract::{self, Rows};
use crate::drafting::{DRAFTED, Given, Inputs, Lent, Plans, following};
use crate::error::{NOT_LOADED, PrepareError};
use crate::finish::{answer, facts, pools};
use crate::prepare::{POSITIONS, RESULT, RowsOf, TOKENS, WANTED, title};
use crate::probe::{Probing, Sites, TensorData};
use crate::shell::{Runs, Shell, write_layer};
use crate::store::WeightStore;
use artifact::Artifact;
use engine::{Arrivals, ExecutorFacts, Step, StepError, StepOutput, take_all};
use interp::{Cache, CachedRow, Context, Env, Fault, Hooks, InterpError, Site, WeightMap, eval_graph};
use ir::{Capture, DType, Entry, Facts, Graph, KernelModule, Module, Plan, Scope, TOKEN_ROWS, TensorType, WANTED_ROWS};
use std::borrow::Cow;
use std::sync::Arc;

/// Runs graphs operation by operation.
pub type InterpExecutor = Shell<Interp>;

/// What runs a step: graphs, weights, caches.
pub struct Interp {
    model: Facts,
    entries: Vec<Entry>,
    weights: WeightMap,
    pools: Pages,
    buckets: Vec<Vec<ir::Bucket>>,
    tokens_end: Vec<usize>,
    drafter: Option<Drafter>,
}

/// The drafter's graphs, and what they need.
struct Drafter {
    plans: Plans,
    /// By length of block, ascending.
    blocks: Vec<(usize, Module)>,
    weights: WeightMap,
    /// Where rows that the model leaves for it come from.
    captures: Vec<Capture>,
}

impl InterpExecutor {
    /// Takes the graphs and every weight; `pool_pages` per KV kind, in the plan's order, sink page included.
    pub fn new(
        module: &KernelModule,
        plan: &Plan,
        weights: &dyn WeightStore,
        pool_pages: &[usize],
    ) -> Result<InterpExecutor, PrepareError> {
        InterpExecutor::over_pools(module, plan, weights, pools(plan, pool_pages)?, None)
    }

    /// The same for a model with its drafter, whose weights are `drafter`; `pool_pages` per kind of [`Artifact::kv`].
    pub fn with_drafter(
        artifact: &Artifact,
        weights: &dyn WeightStore,
        drafter: &dyn WeightStore,
        pool_pages: &[usize],
    ) -> Result<InterpExecutor, PrepareError> {
        let lent = Lent { own: drafter, model: weights };
        let (plans, pools) = crate::drafting::prepared(artifact, pool_pages)?;
        let all = artifact.drafter.iter().flat_map(|d| &d.blocks);
        let blocks: Vec<(usize, Module)> =
            all.map(|b| (usize::try_from(b.tokens).unwrap_or(0), b.kernels.to_module())).collect();
        let own = match blocks.last() {
            Some((_, module)) => weight_map(&module.facts, &lent)?,
            None => WeightMap::new(),
        };
        let captures = artifact.kernels.facts.exports.clone();
        let drafter = Drafter { plans, blocks, weights: own, captures };
        InterpExecutor::over_pools(&artifact.kernels, &artifact.plan, weights, pools, Some(drafter))
    }

    fn over_pools(
        module: &KernelModule,
        plan: &Plan,
        weights: &dyn WeightStore,
        pools: Pages,
        drafter: Option<Drafter>,
    ) -> Result<InterpExecutor, PrepareError> {
        for kernels in module.entries.iter().flat_map(|e| &e.graphs) {
            for id in kernels.graph.ids() {
                RowsOf::value(&kernels.name, &kernels.graph, id)?;
            }
        }
        let vocab = module.entries.first().map(crate::prepare::result_width).transpose()?.unwrap_or(0);
        let tokens_end = |e| crate::prepare::tokens_end(module, e).unwrap_or(vocab);
        let mut facts = facts(plan, vocab, &pools.pages(), pools.shared_bytes())?;
        facts.kv = pools.layouts();
        facts.draft = drafter.as_ref().map(|d| d.plans.facts.clone());
        let runs = Interp {
            model: module.facts.clone(),
            entries: module.entries.iter().map(ir::KernelEntry::to_entry).collect(),
            weights: weight_map(&module.facts, weights)?,
            pools,
            buckets: plan.entries.iter().map(|e| e.buckets.iter().map(|b| b.bucket.clone()).collect()).collect(),
            tokens_end: module.entries.iter().map(tokens_end).collect(),
            drafter,
        };
        Ok(Shell::over(facts, runs))
    }
}

impl Runs for Interp {
    fn run(
        &mut self,
        step: &Step,
        facts: &ExecutorFacts,
        mut probing: Option<&mut Probing>,
        arrivals: Option<&mut dyn Arrivals>,
    ) -> Result<StepOutput, StepError> {
        if let Some(arrivals) = arrivals {
            let pools = &mut self.pools;
            take_all(arrivals, &mut |kind, layer, page, bytes| write_layer(pools, kind, layer, page, bytes));
        }
        if facts.draft.as_ref().is_some_and(|d| d.entry == step.entry) {
            return self.draft(step, facts);
        }
        let Some(index) = self.entries.iter().position(|e| e.name == step.entry) else {
            return Err(StepError::Contract(format!("it runs entry `{}`, the artifact has no such entry", step.entry)));
        };
        let start = probing.as_ref().map_or(0, |p| p.start);
        let mut rows = contract::check(step, facts, self.tokens_end[index], start)?;
        if let Some(drafter) = &self.drafter {
            drafter.plans.add_guests(&mut rows, step, facts, start)?;
        }
        if contract::choose_bucket(step, self.buckets[index].iter().enumerate()).is_none() {
            return Err(StepError::Contract(format!(
                "{} rows of {} sequences fit no bucket",
                step.tokens.len(),
                step.sequences.len()
            )));
        }
        let fault = |e: InterpError| StepError::Device(e.to_string());
        let wanted: Vec<i32> = step.wanted.iter().map(|w| w.row as i32).collect();
        let mut env = Env::new();
        let inputs = [
            (TOKENS, TOKEN_ROWS, &step.tokens),
            (POSITIONS, TOKEN_ROWS, &step.positions),
            (WANTED, WANTED_ROWS, &wanted),
        ];
        for (name, axis, numbers) in inputs {
            env.insert(name, interp::Tensor::i32(&[(axis, numbers.len())], numbers.clone()).map_err(fault)?);
        }
        let entry = &self.entries[index];
        let counts = (step.tokens.len(), step.wanted.len());
        let mut captured: Vec<Arc<interp::Tensor>> = Vec::new();
        let mut cache = Paged { pools: &mut self.pools, rows: &rows };
        // Graph by graph, not as a whole entry: a probe has to know which of them runs.
        let first = std::iter::once((None, &entry.first));
        let layers = entry.instances.iter().filter_map(|i| Some((Some(i.layer), &entry.classes.get(i.class)?.graph)));
        let last = std::iter::once((None, &entry.last));
        for (stage, (layer, graph)) in first.chain(layers).chain(last).enumerate() {
            let mut hooks = Watch { graph, stage, counts, probing: probing.as_deref_mut(), fault: None };
            let mut context = Context { layer, weights: &self.weights, cache: &mut cache, hooks: &mut hooks };
            let result = eval_graph(graph, &self.model, &mut env, &mut context);
            hooks.fault.map_or(Ok(()), Err)?;
            result.map_err(fault)?;
            let Some((drafter, layer)) = self.drafter.as_ref().zip(layer) else { continue };
            for capture in drafter.captures.iter().filter(|c| c.entry == step.entry && c.layers.contains(&layer)) {
                captured.extend(env.get(&capture.value).cloned());
            }
        }
        if let Some(probing) = probing {
            probing.finish_step(counts.0, counts.1);
        }
        let output = match env.get(RESULT).and_then(|t| t.floats()) {
            Some(logits) => answer(step, logits, facts.vocab)?,
            None => return Err(StepError::Device(format!("entry `{}` has no result of floats", step.entry))),
        };
        if let Some(drafter) = &self.drafter {
            drafter.follow(&captured, &following(step, &output), &mut self.pools, &rows)?;
        }
        Ok(output)
    }

    fn pools(&mut self) -> &mut Pages {
        &mut self.pools
    }

    fn sites(&self) -> Option<Sites<'_>> {
        let entry = self.entries.first()?;
        Some(Sites { graphs: entry.graphs().map(|(_, graph)| graph).collect(), instances: &entry.instances })
    }
}

impl Interp {
    /// Runs a draft step.
    fn draft(&mut self, step: &Step, facts: &ExecutorFacts) -> Result<StepOutput, StepError> {
        let Some(drafter) = &self.drafter else {
            return Err(StepError::Contract("it drafts, and there is no drafter".to_owned()));
        };
        let mut rows = contract::check(step, facts, self.tokens_end.first().copied().unwrap_or(0), 0)?;
        drafter.plans.add_guests(&mut rows, step, facts, 0)?;
        let (block, inputs) = drafter.plans.drafting(step)?;
        let module = drafter.blocks.iter().find(|(rows, _)| *rows == block).map(|(_, module)| module);
        let name = &drafter.plans.facts.entry;
        let outputs = drafter.run(module, name, (&inputs, None), &mut self.pools, &rows)?;
        let [tokens, ids, q] = DRAFTED.map(|name| outputs.get(name));
        let found = tokens.and_then(|t| t.ints()).zip(ids.and_then(|t| t.ints())).zip(q.and_then(|t| t.floats()));
        let Some(((tokens, ids), q)) = found else {
            return Err(StepError::Device(format!("entry `{name}` leaves no tokens")));
        };
        let drafts = drafter.plans.drafts(block, tokens, ids, q);
        Ok(StepOutput { drafts, ..StepOutput::default() })
    }
}

impl Drafter {
    /// Brings its cache up to date from the rows that the model left, layer by layer.
    fn follow(
        &self,
        captured: &[Arc<interp::Tensor>],
        inputs: &Inputs,
        pools: &mut Pages,
        rows: &Rows,
    ) -> Result<(), StepError> {
        let module = self.blocks.last().map(|(_, module)| module);
        let layers: Vec<&[f32]> = captured.iter().filter_map(|t| t.floats()).collect();
        let count = rows.position.len();
        let width = layers.first().map_or(0, |x| x.len() / count.max(1));
        let mut side_by_side = Vec::with_capacity(layers.len() * count * width);
        for row in 0..count {
            layers.iter().for_each(|x| side_by_side.extend_from_slice(&x[row * width..(row + 1) * width]));
        }
        let captured = (self.plans.captured.as_str(), side_by_side);
        self.run(module, &self.plans.context, (inputs, Some(captured)), pools, rows).map(drop)
    }

    fn run(
        &self,
        module: Option<&Module>,
        name: &str,
        (inputs, captured): (&Inputs, Option<(&str, Vec<f32>)>),
        pools: &mut Pages,
        rows: &Rows,
    ) -> Result<interp::Outputs, StepError> {
        let lost = || StepError::Device(format!("the drafter has no entry `{name}` of this length"));
        let module = module.ok_or_else(lost)?;
        let entry = module.entries.iter().find(|e| e.name == name).ok_or_else(lost)?;
        let fault = |e: InterpError| StepError::Device(e.to_string());
        let given = inputs.iter().map(|(name, numbers)| (*name, data(numbers)));
        let captured = captured.map(|(name, numbers)| (name, interp::Data::F32(numbers)));
        let mut env = Env::new();
        for (name, data) in given.chain(captured) {
            let graph = &entry.first;
            let input = graph.inputs.iter().find(|id| graph.input_name(**id) == Some(name));
            let Some(ty) = input.and_then(|id| graph.tensor(*id)) else { continue };
            let each = usize::try_from(ty.fixed_elements()).unwrap_or(usize::MAX).max(1);
            let count = match &data {
                interp::Data::F32(x) => x.len(),
                interp::Data::I32(x) => x.len(),
                interp::Data::Bool(x) => x.len(),
            };
            env.insert(name, interp::Tensor::new(lengths(ty, count / each), ty.dtype, data).map_err(fault)?);
        }
        let mut cache = Paged { pools, rows };
        let mut hooks = interp::NoHooks;
        let mut context = Context { layer: None, weights: &self.weights, cache: &mut cache, hooks: &mut hooks };
        interp::run_entry(entry, &module.facts, &mut env, &mut context).map_err(fault)
    }
}

/// An input's numbers as the interpreter has them.
fn data(numbers: &Given) -> interp::Data {
    match numbers {
        Given::I32(x) => interp::Data::I32(x.clone()),
        Given::F32(x) => interp::Data::F32(x.clone()),
        Given::Bool(x) => interp::Data::Bool(x.iter().map(|b| *b != 0).collect()),
    }
}

/// Every weight of the model as a tensor with its declared axes.
pub(crate) fn weight_map(facts: &Facts, store: &dyn WeightStore) -> Result<WeightMap, PrepareError> {
    let mut map = WeightMap::new();
    for weight in &facts.weights {
        let layers: Vec<Option<usize>> = match weight.scope {
            Scope::Model => vec![None],
            Scope::Layer => (0..facts.layers()).filter(|l| facts.layer_has(*l, weight)).map(Some).collect(),
        };
        for layer in layers {
            let name = || title(weight.scope, &weight.name, layer);
            let missing = || PrepareError::WeightMissing { graph: "any".to_owned(), weight: name(), fact: NOT_LOADED };
            let data = store.f32(weight.scope, &weight.name, layer).ok_or_else(missing)?;
            let (found, ty) = (data.len(), weight.ty());
            let numbers = interp::Data::F32(data.to_vec());
            let tensor =
                interp::Tensor::new(lengths(&ty, 0), ty.dtype, numbers).map_err(|_| PrepareError::WeightSize {
                    graph: "any".to_owned(),
                    weight: name(),
                    found,
                    needed: usize::try_from(ty.fixed_elements()).unwrap_or(usize::MAX),
                })?;
            map.insert(&weight.name, layer, tensor);
        }
    }
    Ok(map)
}

/// Axes with their lengths, for that many rows.
fn lengths(ty: &TensorType, rows: usize) -> Vec<(String, usize)> {
    ty.axes
        .iter()
        .map(|a| match a.extent {
            ir::Extent::Fixed(n) => (a.name.clone(), n as usize),
            ir::Extent::Rows => (a.name.clone(), rows),
        })
        .collect()
}

/// The pools as the interpreter's cache.
struct Paged<'a> {
    pools: &'a mut Pages,
    rows: &'a Rows,
}

impl Paged<'_> {
    /// Kind and slot of a layer.
    fn find(&self, kind: &str, layer: usize) -> Result<(usize, usize), InterpError> {
        let index = self.pools.find(kind);
        let found = index.and_then(|i| Some((i, self.pools.pool(i)?.layout.slot(layer)?)));
        found.ok_or_else(|| {
            let fault = Fault::Cache { kind: kind.to_owned(), what: format!("layer {layer}") };
            InterpError { fault, value: None, layer: Some(layer) }
        })
    }
}

impl Cache for Paged<'_> {
    fn store(&mut self, kind: &str, layer: usize, row: usize, _: i32, k: &[f32], v: &[f32]) -> Result<(), InterpError> {
        let (kind, slot) = self.find(kind, layer)?;
        let position = self.rows.position[row];
        let Some(mut pool) = self.pools.pool_mut(kind) else { return Ok(()) };
        let page_tokens = pool.layout.page_tokens as usize;
        let page = self.rows.pages[kind][self.rows.sequence[row]].get(position / page_tokens);
        pool.store(page, slot, position % page_tokens, Side::Key, k);
        pool.store(page, slot, position % page_tokens, Side::Value, v);
        Ok(())
    }

    fn sequence(&self, kind: &str, row: usize) -> Result<usize, InterpError> {
        let what = || format!("row {row}: the step has {} rows", self.rows.sequence.len());
        let fault = || Fault::Cache { kind: kind.to_owned(), what: what() };
        self.rows.sequence.get(row).copied().ok_or_else(|| InterpError { fault: fault(), value: None, layer: None })
    }

    fn rows(
        &self,
        kind: &str,
        layer: usize,
        row: usize,
        first: i32,
        last: i32,
    ) -> Result<Vec<CachedRow<'_>>, InterpError> {
        let (kind, slot) = self.find(kind, layer)?;
        let Some(pool) = self.pools.pool(kind) else { return Ok(Vec::new()) };
        let layout = pool.layout;
        let (page_tokens, width, heads) =
            (layout.page_tokens as usize, layout.head_elements as usize, layout.heads as usize);
        let sequence = self.rows.sequence[row];
        let first = (first.max(0) as usize).max(self.rows.start);
        let read = |position: usize, side| {
            let page = self.rows.pages[kind][sequence].get(position / page_tokens);
            let mut row = vec![0.0; heads * width];
            for (head, out) in row.chunks_exact_mut(width).enumerate() {
                pool.load(page, slot, position % page_tokens, 1, head, side, out);
            }
            Cow::Owned(row)
        };
        Ok((first..=last.max(0) as usize)
            .map(|p| CachedRow { position: p as i32, k: read(p, Side::Key), v: read(p, Side::Value) })
            .collect())
    }
}

/// The probe as the interpreter's hooks, while one graph runs.
struct Watch<'a> {
    graph: &'a Graph,
    stage: usize,
    /// Token rows and wanted rows of the step.
    counts: (usize, usize),
    probing: Option<&'a mut Probing>,
    fault: Option<StepError>,
}

impl Hooks for Watch<'_> {
    fn inject(&mut self, site: Site<'_>) -> Option<interp::Tensor> {
        let probing = self.probing.as_ref()?;
        let id = self.graph.find(site.name)?;
        let ty = self.graph.tensor(id)?.clone();
        let rows = match ty.row_axes().next() {
            None => 1,
            Some(WANTED_ROWS) => self.counts.1,
            Some(_) => self.counts.0,
        };
        let data = match probing.injection(self.stage, id, 0, rows) {
            Ok(data) => data?,
            Err(fault) => {
                self.fault.get_or_insert(fault);
                return None;
            }
        };
        let data = match (data, ty.dtype) {
            (TensorData::I32(x), _) => interp::Data::I32(x),
            (TensorData::F32(x), DType::Bool) => interp::Data::Bool(x.iter().map(|x| *x != 0.0).collect()),
            (TensorData::F32(x), dtype) => interp::Data::F32(kept(dtype, x)),
        };
        interp::Tensor::new(lengths(&ty, rows), ty.dtype, data).ok()
    }

    fn on_value(&mut self, site: Site<'_>, value: &interp::Tensor) {
        if let Some(probing) = &mut self.probing
            && let Some(id) = self.graph.find(site.name)
        {
            probing.trace(self.stage, id, || match value.data() {
                interp::Data::F32(x) => TensorData::F32(x.clone()),
                interp::Data::I32(x) => TensorData::I32(x.clone()),
                interp::Data::Bool(x) => TensorData::F32(x.iter().map(|b| f32::from(u8::from(*b))).collect()),
            });
        }
    }
}

/// Numbers as a value of that format keeps them; of nvfp4 whole blocks, as the processor's kernels write them.
fn kept(dtype: DType, x: Vec<f32>) -> Vec<f32> {
    let mut bytes = vec![0u64; (dtype.bytes_for(x.len() as u64) as usize).div_ceil(8)];
    if dtype == DType::F32 {
        return x;
    }
    let size = dtype.bytes_for(x.len() as u64) as usize;
    let bytes = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut bytes)[..size];
    let mut target = crate::view::Target::of(dtype, bytes);
    target.put(0, &x);
    target.view().to_f32()
}
