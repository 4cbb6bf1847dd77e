//! Whole entries: a model's, with its blocks, and a module's, with its layer classes.

use crate::context::Context;
use crate::env::Env;
use crate::error::{Fault, InterpError, inconsistent};
use crate::eval::{Value, eval, eval_graph};
use crate::ops::attention::scheduled;
use crate::tensor::Tensor;
use indexmap::IndexMap;
use ir::{Block, Entry, Facts, Model, Op, Type};
use std::sync::Arc;

/// Results of an entry by name, in the order of the signature.
pub type Outputs = IndexMap<String, Arc<Tensor>>;

/// Runs an entry of the graph level: the first graph, every layer instance, the last graph.
///
/// `env` starts with the entry's inputs and is left with everything the graphs exchanged.
pub fn run_entry(entry: &Entry, facts: &Facts, env: &mut Env, ctx: &mut Context<'_>) -> Result<Outputs, InterpError> {
    ctx.layer = None;
    eval_graph(&entry.first, facts, env, ctx)?;
    for instance in &entry.instances {
        let class = entry.classes.get(instance.class).ok_or_else(|| {
            let (layer, class, known) = (instance.layer, instance.class, entry.classes.len());
            inconsistent(format!("layer {layer} is of class {class}, of which there are {known}"))
        })?;
        ctx.layer = Some(instance.layer);
        eval_graph(&class.graph, facts, env, ctx)?;
    }
    ctx.layer = None;
    eval_graph(&entry.last, facts, env, ctx)?;
    Ok(entry.last.outputs.iter().filter_map(|(name, _)| Some((name.clone(), env.get(name)?.clone()))).collect())
}

/// Runs an entry of the model level, calling blocks and looping over the layers as the spec says.
pub fn run_model(model: &Model, entry: &str, inputs: &Env, ctx: &mut Context<'_>) -> Result<Outputs, InterpError> {
    let found = model.entries.iter().find(|e| e.name == entry).ok_or_else(|| Fault::Unknown {
        what: "entry",
        name: entry.to_owned(),
        known: model.entries.iter().map(|e| e.name.as_str()).collect::<Vec<_>>().join(", "),
    })?;
    let give = |name: &str, _: usize, ty: &Type| match ty {
        Type::Cache => Ok(Value::Cache),
        _ => Ok(Value::Tensor(inputs.get(name).ok_or_else(|| Fault::NoInput(name.to_owned()))?.clone())),
    };
    ctx.layer = None;
    let blocks = Blocks { facts: &model.facts, known: &model.blocks };
    let outputs = eval(&found.graph, None, &model.facts, Some(blocks), &give, ctx)?;
    Ok(outputs
        .into_iter()
        .filter_map(|(name, value)| match value {
            Value::Tensor(tensor) => Some((name, tensor)),
            _ => None,
        })
        .collect())
}

/// The blocks that a graph of the model level may call: those before its own, so that no chain of calls can close.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'m> {
    facts: &'m Facts,
    known: &'m [Block],
}

impl Blocks<'_> {
    /// Runs a structural operation; gives the items of its tuple.
    pub(crate) fn call(&self, op: &Op, args: Vec<Value>, ctx: &mut Context<'_>) -> Result<Vec<Value>, InterpError> {
        match op {
            Op::Call(name) => self.block(name, &args, ctx),
            Op::Match { column, arms } => {
                let layer = ctx.layer.ok_or_else(|| Fault::NoLayer(format!("a match on `{column}`")))?;
                let kind = scheduled(self.facts, layer, column)?;
                let (_, block) = arms.iter().find(|(k, _)| k == kind).ok_or_else(|| Fault::Unknown {
                    what: "arm",
                    name: kind.clone(),
                    known: arms.iter().map(|(k, _)| k.as_str()).collect::<Vec<_>>().join(", "),
                })?;
                self.block(block, &args, ctx)
            }
            Op::Layers { block, carried } => self.layers(block, *carried, args, ctx),
            _ => Err(inconsistent("an operation that is no call was called")),
        }
    }

    fn layers(
        &self,
        block: &str,
        carried: usize,
        mut args: Vec<Value>,
        ctx: &mut Context<'_>,
    ) -> Result<Vec<Value>, InterpError> {
        if carried > args.len() {
            return Err(inconsistent(format!("`{block}` carries {carried} of {} operands", args.len())));
        }
        if ctx.layer.is_some() {
            return Err(inconsistent(format!("the layers of `{block}` run inside a layer")));
        }
        for layer in 0..self.facts.layers() {
            ctx.layer = Some(layer);
            let results = self.block(block, &args, ctx)?;
            if results.len() != carried {
                let n = results.len();
                return Err(inconsistent(format!("`{block}` returns {n} values, {carried} are carried")));
            }
            args.splice(..carried, results);
        }
        ctx.layer = None;
        args.truncate(carried);
        Ok(args)
    }

    /// Runs a block on positional arguments.
    fn block(&self, name: &str, args: &[Value], ctx: &mut Context<'_>) -> Result<Vec<Value>, InterpError> {
        let index = self.known.iter().position(|b| b.name == name).ok_or_else(|| Fault::Unknown {
            what: "block",
            name: name.to_owned(),
            known: self.known.iter().map(|b| b.name.as_str()).collect::<Vec<_>>().join(", "),
        })?;
        let block = &self.known[index];
        if block.graph.inputs.len() != args.len() {
            let (wanted, given) = (block.graph.inputs.len(), args.len());
            return Err(inconsistent(format!("`{name}` takes {wanted} arguments, {given} are given")));
        }
        let give = |_: &str, place: usize, _: &Type| Ok(args[place].clone());
        let callees = Blocks { facts: self.facts, known: &self.known[..index] };
        let outputs = eval(&block.graph, Some(name), self.facts, Some(callees), &give, ctx)?;
        Ok(outputs.into_iter().map(|(_, value)| value).collect())
    }
}
