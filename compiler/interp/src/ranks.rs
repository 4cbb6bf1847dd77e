//! A sharded entry on all ranks of its mesh, in lock step: each operation runs on every rank before the next one begins.

use crate::context::{Context, Site, WeightSource};
use crate::env::Env;
use crate::error::{Fault, InterpError, inconsistent};
use crate::eval::{Node, Value, injected, site_names};
use crate::ops::collective::{Ranks, cut, exchange};
use crate::run::Outputs;
use crate::tensor::Tensor;
use ir::{Entry, Facts, Graph, Module, Placement, Scope, Sharding, Type, ValueId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// Runs an entry of a sharded module on all ranks. Every rank has an environment, which starts with its own rows of the
/// entry's inputs, and a context with its own parts of weights ([`RankWeights`]) and its own cache.
pub fn run_ranks(
    entry: &Entry,
    module: &Module,
    envs: &mut [Env],
    contexts: &mut [Context<'_>],
) -> Result<Vec<Outputs>, InterpError> {
    let sharding = module.sharding.as_ref();
    let sharding = sharding.ok_or_else(|| inconsistent("a program without a mesh was to run on ranks"))?;
    let ranks = sharding.mesh.ranks();
    if envs.len() as u64 != ranks || contexts.len() as u64 != ranks {
        return Err(inconsistent(format!("{} ranks are given for a mesh of {ranks}", envs.len())));
    }
    let facts = module.local_facts();
    let mut step = Step { facts: &facts, sharding, envs, contexts };
    step.layer(None);
    step.graph(&entry.first)?;
    for instance in &entry.instances {
        let class = entry.classes.get(instance.class).ok_or_else(|| {
            let (layer, class, known) = (instance.layer, instance.class, entry.classes.len());
            inconsistent(format!("layer {layer} is of class {class}, of which there are {known}"))
        })?;
        step.layer(Some(instance.layer));
        step.graph(&class.graph)?;
    }
    step.layer(None);
    step.graph(&entry.last)?;
    let results = |env: &Env| {
        entry.last.outputs.iter().filter_map(|(name, _)| Some((name.clone(), env.get(name)?.clone()))).collect()
    };
    Ok(envs.iter().map(results).collect())
}

/// What a step on all ranks works with.
struct Step<'s, 'c> {
    facts: &'s Facts,
    sharding: &'s Sharding,
    envs: &'s mut [Env],
    contexts: &'s mut [Context<'c>],
}

impl Step<'_, '_> {
    fn layer(&mut self, layer: Option<usize>) {
        self.contexts.iter_mut().for_each(|c| c.layer = layer);
    }

    fn graph(&mut self, graph: &Graph) -> Result<(), InterpError> {
        let names = site_names(graph)?;
        let mut values: Vec<Vec<Option<Value>>> = vec![vec![None; graph.len()]; self.envs.len()];
        for id in graph.ids() {
            let layer = self.contexts.first().and_then(|c| c.layer);
            let place = |rank: Option<usize>| {
                let name = graph.node(id).name.as_ref().map(|n| format!(" ({n})")).unwrap_or_default();
                let rank = rank.map(|r| format!(" on rank {r}")).unwrap_or_default();
                format!("{id}{name}{rank}")
            };
            let found: Vec<Value> = if graph.node(id).op.is_sharded() {
                self.exchange(graph, id, &values).map_err(|e| e.at(|| place(None), layer))?
            } else {
                let mut found = Vec::with_capacity(values.len());
                for (rank, values) in values.iter().enumerate() {
                    found.push(self.alone(graph, id, rank, values).map_err(|e| e.at(|| place(Some(rank)), layer))?);
                }
                found
            };
            for (rank, value) in found.into_iter().enumerate() {
                let sites = names.get(&id).into_iter().flatten().map(|name| Site { layer, block: None, name });
                let hooks = &mut *self.contexts[rank].hooks;
                let sites: Vec<Site<'_>> = sites.collect();
                if let Value::Tensor(tensor) = &value {
                    sites.iter().for_each(|site| hooks.on_value(*site, tensor));
                }
                values[rank][id.0 as usize] = Some(value);
            }
        }
        for (rank, values) in values.iter().enumerate() {
            for (name, id) in &graph.outputs {
                match values.get(id.0 as usize) {
                    Some(Some(Value::Tensor(tensor))) => self.envs[rank].insert(name.clone(), tensor.clone()),
                    _ => return Err(inconsistent(format!("output `{name}` is {id}, which is no tensor"))),
                }
            }
        }
        Ok(())
    }

    /// An operation that no other rank sees.
    fn alone(
        &mut self,
        graph: &Graph,
        id: ValueId,
        rank: usize,
        values: &[Option<Value>],
    ) -> Result<Value, InterpError> {
        let env = &self.envs[rank];
        let inputs = |name: &str, _: usize, _: &Type| -> Result<Value, InterpError> {
            let value = env.get(name).ok_or_else(|| Fault::NoInput(name.to_owned()))?;
            Ok(Value::Tensor(value.clone()))
        };
        let context = &mut self.contexts[rank];
        let name = graph.node(id).name.as_deref();
        let sites: Vec<Site<'_>> =
            name.into_iter().map(|name| Site { layer: context.layer, block: None, name }).collect();
        if let Some(value) = injected(graph, id, &sites, context)? {
            return Ok(value);
        }
        Node { graph, id, facts: self.facts, blocks: None, values }.eval(&inputs, context)
    }

    /// An operation of all ranks.
    fn exchange(&self, graph: &Graph, id: ValueId, values: &[Vec<Option<Value>>]) -> Result<Vec<Value>, InterpError> {
        let node = |values| Node { graph, id, facts: self.facts, blocks: None, values };
        let operands = values.iter().map(|values| node(values).tensors::<1>().map(|[x]| x));
        let operands = operands.collect::<Result<Vec<Arc<Tensor>>, _>>()?;
        let rows = |rank: usize, axis: &str| own_rows(values.get(rank)?, axis);
        let ranks = Ranks { mesh: &self.sharding.mesh, facts: self.facts, own_rows: &rows };
        let ty = node(&[]).ty()?;
        let results = exchange(&graph.node(id).op, &ranks, &operands, ty)?;
        Ok(results.into_iter().map(Value::Tensor).collect())
    }
}

/// Length of a row axis among the values that a rank has.
fn own_rows(values: &[Option<Value>], axis: &str) -> Option<usize> {
    values.iter().flatten().find_map(|value| match value {
        Value::Tensor(tensor) => tensor.length(axis),
        _ => None,
    })
}

/// Scope, name and layer of a weight.
type PartKey = (Scope, String, Option<usize>);

/// The weights of one rank: its parts of those of the whole model.
pub struct RankWeights<'a> {
    whole: &'a dyn WeightSource,
    sharding: &'a Sharding,
    rank: u64,
    parts: RefCell<HashMap<PartKey, Arc<Tensor>>>,
}

impl<'a> RankWeights<'a> {
    /// The parts of a rank.
    pub fn new(whole: &'a dyn WeightSource, sharding: &'a Sharding, rank: u64) -> Self {
        RankWeights { whole, sharding, rank, parts: RefCell::new(HashMap::new()) }
    }
}

impl WeightSource for RankWeights<'_> {
    fn weight(&self, scope: Scope, name: &str, layer: Option<usize>) -> Result<Arc<Tensor>, InterpError> {
        let Some(placement) = self.sharding.weight(scope, name) else { return self.whole.weight(scope, name, layer) };
        let key = (scope, name.to_owned(), layer);
        if let Some(part) = self.parts.borrow().get(&key) {
            return Ok(part.clone());
        }
        let whole = self.whole.weight(scope, name, layer)?;
        let part = Arc::new(slice_for_rank(&whole, placement, self.sharding, self.rank)?);
        self.parts.borrow_mut().insert(key, part.clone());
        Ok(part)
    }
}

/// A rank's part of a whole tensor.
pub fn slice_for_rank(
    whole: &Tensor,
    placement: &Placement,
    sharding: &Sharding,
    rank: u64,
) -> Result<Tensor, InterpError> {
    let mut part = whole.clone();
    for (axis, over) in placement {
        let Some(position) = part.axis(axis) else { continue };
        let n = part.axes()[position].1 as u64;
        let range = sharding.part(n, over, rank);
        let (start, len) = range.ok_or_else(|| {
            inconsistent(format!("`{axis}` of length {n} has no {} equal parts", sharding.mesh.parts(over)))
        })?;
        part = cut(&part, position, axis, start as usize, len as usize)?;
    }
    Ok(part)
}
