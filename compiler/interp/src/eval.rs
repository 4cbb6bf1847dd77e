//! One graph, operation by operation.

use crate::context::{Context, Site};
use crate::env::Env;
use crate::error::{Fault, InterpError, inconsistent};
use crate::ops::attention::Attention;
use crate::ops::{
    attention, cut_join, elementwise, gather, leaf, product, reduce, round, selection, shift, speculation,
};
use crate::run::Blocks;
use crate::tensor::Tensor;
use ir::{Facts, Graph, Op, TensorType, Type, ValueId};
use std::collections::HashMap;
use std::sync::Arc;

/// What a node leaves.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Numbers.
    Tensor(Arc<Tensor>),
    /// The mark that an effect on the cache has happened.
    Cache,
    /// Several values: what a block returns.
    Tuple(Vec<Value>),
}

/// Runs one graph of the graph level: inputs are read from the environment by name, outputs are written to it.
pub fn eval_graph(graph: &Graph, facts: &Facts, env: &mut Env, ctx: &mut Context<'_>) -> Result<(), InterpError> {
    let inputs = |name: &str, _: usize, _: &Type| -> Result<Value, InterpError> {
        let value = env.get(name).ok_or_else(|| Fault::NoInput(name.to_owned()))?;
        Ok(Value::Tensor(value.clone()))
    };
    let outputs = eval(graph, None, facts, None, &inputs, ctx)?;
    for (name, value) in outputs {
        if let Value::Tensor(tensor) = value {
            env.insert(name, tensor);
        }
    }
    Ok(())
}

/// Gives the value of an input by name, place in the signature and type.
pub(crate) type Inputs<'i> = &'i dyn Fn(&str, usize, &Type) -> Result<Value, InterpError>;

/// Runs a graph of either level. `blocks` is given at the model level; `block` names the running one.
pub(crate) fn eval(
    graph: &Graph,
    block: Option<&str>,
    facts: &Facts,
    blocks: Option<Blocks<'_>>,
    inputs: Inputs<'_>,
    ctx: &mut Context<'_>,
) -> Result<Vec<(String, Value)>, InterpError> {
    let names = site_names(graph)?;
    let mut values: Vec<Option<Value>> = vec![None; graph.len()];
    for id in graph.ids() {
        let layer = ctx.layer;
        let place = || match (&graph.node(id).name, block) {
            (Some(name), Some(block)) => format!("{id} ({name} of {block})"),
            (Some(name), None) => format!("{id} ({name})"),
            (None, Some(block)) => format!("{id} ({block})"),
            (None, None) => id.to_string(),
        };
        let sites: Vec<Site<'_>> =
            names.get(&id).into_iter().flatten().map(|name| Site { layer, block, name }).collect();
        let value = match injected(graph, id, &sites, ctx).map_err(|e| e.at(place, layer))? {
            Some(value) => value,
            None => {
                Node { graph, id, facts, blocks, values: &values }.eval(inputs, ctx).map_err(|e| e.at(place, layer))?
            }
        };
        if let Value::Tensor(tensor) = &value {
            sites.iter().for_each(|site| ctx.hooks.on_value(*site, tensor));
        }
        values[id.0 as usize] = Some(value);
    }
    graph
        .outputs
        .iter()
        .map(|(name, id)| {
            let value = values.get(id.0 as usize).cloned().flatten();
            Ok((
                name.clone(),
                value.ok_or_else(|| inconsistent(format!("output `{name}` is {id}, which does not exist")))?,
            ))
        })
        .collect()
}

/// Names under which each value is traced and replaced: the node's own, and an output's where no node has it.
pub(crate) fn site_names(graph: &Graph) -> Result<HashMap<ValueId, Vec<&str>>, InterpError> {
    let mut names: HashMap<ValueId, Vec<&str>> = HashMap::new();
    let mut taken: HashMap<&str, ValueId> = HashMap::new();
    for id in graph.ids() {
        if let Some(name) = &graph.node(id).name {
            names.entry(id).or_default().push(name);
            taken.insert(name, id);
        }
    }
    for (name, id) in &graph.outputs {
        if id.0 as usize >= graph.len() {
            return Err(inconsistent(format!("output `{name}` is {id}, which does not exist")));
        }
        if taken.insert(name, *id).is_none() {
            names.entry(*id).or_default().push(name);
        }
    }
    Ok(names)
}

/// The replacement for a value, if there is one.
pub(crate) fn injected(
    graph: &Graph,
    id: ValueId,
    sites: &[Site<'_>],
    ctx: &mut Context<'_>,
) -> Result<Option<Value>, InterpError> {
    let Type::Tensor(ty) = &graph.node(id).ty else {
        return Ok(None);
    };
    for site in sites {
        if let Some(tensor) = ctx.hooks.inject(*site) {
            tensor.expect_fit(ty, || format!("the value injected for `{}`", site.name))?;
            return Ok(Some(Value::Tensor(Arc::new(tensor))));
        }
    }
    Ok(None)
}

/// One node and what it needs to run.
pub(crate) struct Node<'n> {
    pub(crate) graph: &'n Graph,
    pub(crate) id: ValueId,
    pub(crate) facts: &'n Facts,
    pub(crate) blocks: Option<Blocks<'n>>,
    pub(crate) values: &'n [Option<Value>],
}

impl<'n> Node<'n> {
    /// All operands.
    fn operands(&self) -> Result<Vec<Value>, InterpError> {
        self.graph
            .operands(self.id)
            .into_iter()
            .map(|v| {
                let value = self.values.get(v.0 as usize).cloned().flatten();
                value.ok_or_else(|| inconsistent(format!("{} uses {v} before it is computed", self.id)))
            })
            .collect()
    }

    /// Exactly `N` tensor operands.
    pub(crate) fn tensors<const N: usize>(&self) -> Result<[Arc<Tensor>; N], InterpError> {
        let all = self.tensor_list()?;
        let found = all.len();
        all.try_into().map_err(|_| inconsistent(format!("{} takes {N} operands, {found} are given", self.id)))
    }

    fn tensor_list(&self) -> Result<Vec<Arc<Tensor>>, InterpError> {
        self.operands()?.into_iter().map(|v| self.tensor(v)).collect()
    }

    fn tensor(&self, value: Value) -> Result<Arc<Tensor>, InterpError> {
        match value {
            Value::Tensor(t) => Ok(t),
            _ => Err(inconsistent(format!("an operand of {} is not a tensor", self.id))),
        }
    }

    /// The declared tensor type of the result.
    pub(crate) fn ty(&self) -> Result<&'n TensorType, InterpError> {
        self.graph.tensor(self.id).ok_or_else(|| inconsistent(format!("{} is not declared a tensor", self.id)))
    }

    pub(crate) fn eval(&self, inputs: Inputs<'_>, ctx: &mut Context<'_>) -> Result<Value, InterpError> {
        let node = self.graph.node(self.id);
        let tensor = match &node.op {
            Op::Input(name) => return self.input(name, inputs),
            Op::Store { kv, .. } => {
                let operands = self.tensor_list()?;
                let (rows, live) = match &operands[..] {
                    [k, v, at] => ([&**k, &**v, &**at], None),
                    [k, v, at, live] => ([&**k, &**v, &**at], Some(&**live)),
                    _ => {
                        return Err(inconsistent(format!(
                            "{} takes keys, values, positions and truth values",
                            self.id
                        )));
                    }
                };
                attention::store(kv, self.facts, ctx, rows, live)?;
                return Ok(Value::Cache);
            }
            Op::Call(_) | Op::Match { .. } | Op::Layers { .. } => {
                let blocks = self.blocks.ok_or_else(|| {
                    inconsistent(format!("{} calls a block, which only the model level may", self.id))
                })?;
                return Ok(Value::Tuple(blocks.call(&node.op, self.operands()?, ctx)?));
            }
            Op::Item(i) => return self.item(*i),
            Op::Weight(reference) => return Ok(Value::Tensor(leaf::weight(reference, self.facts, ctx, self.ty()?)?)),
            Op::Attend { kv, mask, scale, order } => {
                let mut operands = self.operands()?;
                let sink = if operands.len() == 4 { operands.pop() } else { None };
                let operands: [Value; 3] = operands
                    .try_into()
                    .map_err(|_| inconsistent(format!("{} takes a query, a cache and positions", self.id)))?;
                let [q, cache, at] = operands;
                if !matches!(cache, Value::Cache) {
                    return Err(inconsistent(format!("the second operand of {} is not a cache", self.id)));
                }
                let (q, at) = (self.tensor(q)?, self.tensor(at)?);
                let sink = sink.map(|s| self.tensor(s)).transpose()?;
                let op = Attention { kv, mask: *mask, scale, order, sink: sink.as_deref() };
                attention::attend(&op, self.facts, ctx, &q, &at, self.ty()?)?
            }
            op if op.is_sharded() => {
                return Err(inconsistent(format!("{} needs the ranks of a mesh, one program runs alone", self.id)));
            }
            op => self.pure(op, ctx)?,
        };
        Ok(Value::Tensor(Arc::new(tensor)))
    }

    /// Operations on tensors alone.
    fn pure(&self, op: &Op, ctx: &Context<'_>) -> Result<Tensor, InterpError> {
        let ty = self.ty()?;
        match op {
            Op::Literal(numbers) => leaf::literal(numbers, ty),
            Op::Scalar(expr) => leaf::scalar(expr, ctx.layer, ty),
            Op::Binary(function) => {
                let [a, b] = self.tensors()?;
                elementwise::binary(*function, &a, &b, ty)
            }
            Op::Fma => {
                let [a, b, c] = self.tensors()?;
                elementwise::fma(&a, &b, &c, ty)
            }
            Op::Select => {
                let [c, a, b] = self.tensors()?;
                elementwise::select(&c, &a, &b, ty)
            }
            Op::Gather { axis } => {
                let [x, ids] = self.tensors()?;
                gather::gather(axis, &x, &ids, ty)
            }
            Op::BlockRound { over } => {
                let [x, g] = self.tensors()?;
                round::block_round(over, &x, &g, ty)
            }
            Op::Dot { axis, order } => {
                let [a, b] = self.tensors()?;
                product::dot(axis, order, &a, &b, ty)
            }
            Op::Linear { contract, order } => {
                let operands = self.tensor_list()?;
                match &operands[..] {
                    [x, w] => product::linear(contract, order, x, w, None, ty),
                    [x, w, ids] => product::linear(contract, order, x, w, Some(ids), ty),
                    _ => Err(inconsistent(format!("{} takes a value, a weight and perhaps ids", self.id))),
                }
            }
            Op::Shift { axis, by } => {
                let operands = self.tensor_list()?;
                match &operands[..] {
                    [x] => shift::shift(axis, *by, x, None, ty),
                    [x, fill] => shift::shift(axis, *by, x, Some(fill), ty),
                    _ => Err(inconsistent(format!("{} takes a value and what fills", self.id))),
                }
            }
            Op::Walk { what } => {
                let [score, ids, temp, coin] = self.tensors()?;
                speculation::walk(*what, [&score, &ids, &temp, &coin], ty)
            }
            Op::Probs => {
                let [z, temp, top_k, top_p] = self.tensors()?;
                speculation::probs([&z, &temp, &top_k, &top_p], ty)
            }
            Op::Accept { rule, what } => {
                let operands = self.tensor_list()?;
                let operands: Vec<&Tensor> = operands.iter().map(|t| &**t).collect();
                speculation::accept(*rule, *what, &operands, ty)
            }
            Op::Concat { into } => {
                let parts = self.tensor_list()?;
                let parts: Vec<&Tensor> = parts.iter().map(|p| &**p).collect();
                cut_join::concat(into, &parts, ty)
            }
            op => {
                let [x] = self.tensors()?;
                self.of_one(op, &x, ty)
            }
        }
    }

    /// Operations on one tensor.
    fn of_one(&self, op: &Op, x: &Tensor, ty: &TensorType) -> Result<Tensor, InterpError> {
        match op {
            Op::Unary(function) => elementwise::unary(*function, x, ty),
            Op::Round(to) => round::round(*to, x, ty),
            Op::Reduce { op, axis, order } => reduce::reduce(*op, axis, order, x, ty),
            Op::Top { k, axis, into, what } => selection::top(*k, axis, into, *what, x, ty),
            Op::InTop { k, axis } => selection::in_top(*k, axis, x, ty),
            Op::Slice { axis, start, len, into } => cut_join::slice(axis, *start, *len, into.as_deref(), x, ty),
            Op::Split { axis } => cut_join::split(axis, x, ty),
            Op::Merge { into } => cut_join::merge(into, x, ty),
            Op::Rename { from, to } => cut_join::rename(from, to, x, ty),
            _ => Err(inconsistent(format!("{} is not an operation on one tensor", self.id))),
        }
    }

    fn input(&self, name: &str, inputs: Inputs<'_>) -> Result<Value, InterpError> {
        let ty = &self.graph.node(self.id).ty;
        if matches!(ty, Type::Cache) && self.blocks.is_none() {
            // At the graph level a cache has no data of its own: the effect happened in an earlier graph.
            return Ok(Value::Cache);
        }
        let place = self.graph.inputs.iter().position(|v| *v == self.id);
        let place = place.ok_or_else(|| inconsistent(format!("input `{name}` is missing from the signature")))?;
        let value = inputs(name, place, ty)?;
        match (&value, ty) {
            (Value::Tensor(tensor), Type::Tensor(ty)) => tensor.expect_fit(ty, || format!("input `{name}`"))?,
            (Value::Cache, Type::Cache) | (Value::Tuple(_), Type::Tuple(_)) => {}
            _ => return Err(inconsistent(format!("input `{name}` is declared {ty}, another kind of value is given"))),
        }
        Ok(value)
    }

    fn item(&self, i: usize) -> Result<Value, InterpError> {
        match self.operands()?.into_iter().next() {
            Some(Value::Tuple(items)) if i < items.len() => Ok(items[i].clone()),
            Some(Value::Tuple(items)) => {
                Err(inconsistent(format!("{} takes item {i} of a tuple of {}", self.id, items.len())))
            }
            _ => Err(inconsistent(format!("{} takes an item of something that is not a tuple", self.id))),
        }
    }
}
