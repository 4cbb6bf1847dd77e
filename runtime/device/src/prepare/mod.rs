//! From artifact to something that runs: kernels per graph, parameters per instance, places per bucket.
//!
//! Everything that could be wrong with an artifact, a checkpoint or a plan shows here, once, at load. What passes runs
//! every step that passes the contract.

mod bucket;
mod graph;
mod inside;
mod params;
mod seen;
mod segment;

pub(crate) use bucket::{Bucket, Launch, Program, RowCounts, RowsOf, Spot};
pub(crate) use graph::Prepared;
pub(crate) use params::Params;
pub(crate) use seen::runs;
pub(crate) use segment::{Operation, Segment, Sink, Source};

use crate::error::PrepareError;
use crate::kernels::nest::Shape;
use crate::store::WeightStore;
use ir::{Captured, Instance, KernelEntry, KernelModule, Plan, PlanEntry, Scope, ValueId};
pub(crate) use params::Loader;

/// Names of an entry's inputs that a step brings.
pub(crate) const TOKENS: &str = "tokens";
/// See [`TOKENS`].
pub(crate) const POSITIONS: &str = "pos";
/// See [`TOKENS`].
pub(crate) const WANTED: &str = "rows";
/// Name of the result that holds logits.
pub(crate) const RESULT: &str = "result";

/// A value that layers hand on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandedOn {
    pub row: usize,
    pub rows: RowsOf,
}

/// One entry, ready.
#[derive(Debug)]
pub(crate) struct Entry {
    pub name: String,
    /// `first`, the classes, `last`.
    pub graphs: Vec<Prepared>,
    pub instances: Vec<Instance>,
    /// Parameters of the first graph, of every instance, of the last graph.
    pub params: Vec<Params>,
    /// Slot of every instance's layer in every KV kind.
    pub slots: Vec<Vec<Option<usize>>>,
    pub buckets: Vec<Bucket>,
    /// What a step leaves for a drafter.
    pub captures: Vec<Captured>,
    /// Elements of a row of logits.
    pub vocab: usize,
    /// One past the largest token id.
    pub tokens_end: usize,
}

impl Entry {
    /// Index into `params` of an instance.
    pub fn instance_params(instance: usize) -> usize {
        instance + 1
    }

    /// Elements of a row that layers hand on under a name, and what it has rows for.
    pub fn handed_on(&self, name: &str) -> Option<HandedOn> {
        self.graphs.iter().skip(1).find_map(|prepared| {
            let (_, id) = prepared.graph.outputs.iter().find(|(n, _)| n == name)?;
            let value = prepared.value(*id);
            Some(HandedOn { row: value.shape.as_ref()?.row, rows: value.rows })
        })
    }

    /// Index into `params` of the last graph.
    pub fn last_params(&self) -> usize {
        self.params.len() - 1
    }
}

fn mismatch(plan: impl Into<String>, kernels: impl Into<String>) -> PrepareError {
    PrepareError::Mismatch { plan: plan.into(), kernels: kernels.into() }
}

/// Prepares every entry of a module.
pub(crate) fn prepare(
    module: &KernelModule,
    plan: &Plan,
    weights: &dyn WeightStore,
) -> Result<Vec<Entry>, PrepareError> {
    if plan.entries.len() != module.entries.len() {
        return Err(mismatch(format!("has {} entries", plan.entries.len()), format!("have {}", module.entries.len())));
    }
    let mut loader = Loader::new(weights);
    module
        .entries
        .iter()
        .zip(&plan.entries)
        .map(|(entry, planned)| prepare_entry(module, entry, planned, plan, &mut loader))
        .collect()
}

/// Prepares one entry of a module; lengths of block share weights through the loader.
pub(crate) fn prepare_one(
    module: &KernelModule,
    plan: &Plan,
    name: &str,
    loader: &mut Loader<'_>,
) -> Result<Entry, PrepareError> {
    let mut found = module.entries.iter().zip(&plan.entries).filter(|(entry, _)| entry.name == name);
    match found.next() {
        Some((entry, planned)) => prepare_entry(module, entry, planned, plan, loader),
        None => Err(mismatch(format!("has no entry `{name}`"), "need it for drafts")),
    }
}

fn prepare_entry(
    module: &KernelModule,
    entry: &KernelEntry,
    planned: &PlanEntry,
    plan: &Plan,
    loader: &mut Loader<'_>,
) -> Result<Entry, PrepareError> {
    let classes = entry
        .graphs
        .len()
        .checked_sub(2)
        .ok_or_else(|| mismatch("has an entry", "have no first and last graph for it"))?;
    if planned.name != entry.name || planned.instances != entry.instances {
        return Err(mismatch(
            format!("runs entry `{}` with {} layers", planned.name, planned.instances.len()),
            format!("have `{}` with {}, or another order of them", entry.name, entry.instances.len()),
        ));
    }
    if let Some(bad) = entry.instances.iter().find(|i| i.class >= classes || i.layer >= module.facts.layers()) {
        return Err(mismatch(
            format!("runs layer {} as class {}", bad.layer, bad.class),
            format!("have {classes} classes and {} layers", module.facts.layers()),
        ));
    }
    let blocks = inside::Blocks::of(entry, planned);
    let graphs = entry.graphs.iter().map(|g| Prepared::new(g, plan, blocks.as_ref()));
    let graphs = graphs.collect::<Result<Vec<_>, _>>()?;
    let mut params = vec![loader.params(&graphs[0], entry, None)?];
    for i in 0..entry.instances.len() {
        let graph = &graphs[KernelEntry::class_graph(entry.instances[i].class)];
        params.push(loader.params(graph, entry, Some(i))?);
    }
    params.push(loader.params(&graphs[classes + 1], entry, None)?);
    let slots = entry.instances.iter().map(|i| plan.kv.iter().map(|kv| kv.slot(i.layer)).collect()).collect();
    // What a drafter's entries leave are no logits.
    let vocab = if module.facts.captures.is_empty() { result_width(entry)? } else { 0 };
    let mut buckets =
        planned.buckets.iter().map(|b| Bucket::new(b, entry, &graphs, plan, vocab)).collect::<Result<Vec<_>, _>>()?;
    for bucket in &mut buckets {
        seen::mark(&graphs, &entry.instances, &planned.captures, &mut bucket.programs);
    }
    if buckets.is_empty() {
        return Err(mismatch(format!("has no bucket for entry `{}`", entry.name), "need one"));
    }
    Ok(Entry {
        name: entry.name.clone(),
        instances: entry.instances.clone(),
        params,
        slots,
        buckets,
        captures: planned.captures.clone(),
        vocab,
        tokens_end: tokens_end(module, entry).unwrap_or(vocab),
        graphs,
    })
}

/// Elements of a row of the entry's result.
pub(crate) fn result_width(entry: &KernelEntry) -> Result<usize, PrepareError> {
    let last = entry.last();
    let result = last.graph.outputs.iter().find(|(name, _)| name == RESULT);
    let shape = result.and_then(|(_, id)| last.graph.tensor(*id)).and_then(|ty| Shape::of(ty).ok());
    shape.filter(|s| s.rows.is_some()).map(|s| s.row).ok_or_else(|| {
        mismatch(
            format!("serves entry `{}`", entry.name),
            format!("give it no output `{RESULT}` with a row per wanted row"),
        )
    })
}

/// Length of the axis that token ids select along, if the graphs say so.
pub(crate) fn tokens_end(module: &KernelModule, entry: &KernelEntry) -> Option<usize> {
    let graph = &entry.first().graph;
    let tokens = graph.inputs.iter().find(|id| graph.input_name(**id) == Some(TOKENS))?;
    let declared = graph.tensor(*tokens)?.indexes.as_ref().and_then(|axis| module.facts.dims.get(axis).copied());
    let gathered = || {
        graph.users(*tokens).into_iter().find_map(|user| match &graph.node(user).op {
            ir::Op::Gather { axis } if graph.operands(user).get(1) == Some(tokens) => {
                Shape::of(graph.tensor(*graph.operands(user).first()?)?).ok()?.length(axis)
            }
            _ => None,
        })
    };
    gathered().or(declared.and_then(|n| usize::try_from(n).ok()))
}

/// A weight's title in errors.
pub(crate) fn title(scope: Scope, name: &str, layer: Option<usize>) -> String {
    match (scope, layer) {
        (Scope::Layer, Some(layer)) => format!("`{name}` of layer {layer}"),
        _ => format!("`{name}`"),
    }
}

/// Follows views to the value whose memory they show.
pub(crate) fn root(graph: &ir::Graph, mut id: ValueId) -> ValueId {
    while graph.node(id).op.is_view() {
        match graph.operands(id).first() {
            Some(operand) => id = *operand,
            None => break,
        }
    }
    id
}
