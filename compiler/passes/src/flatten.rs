//! **flatten** (model level → graph level)
//!
//! ```text
//! entry forward(tokens, pos, rows)              graph first (tokens, pos) -> (x, c)
//!   %x = gather (embed, tokens)                 class sliding (x, c, pos) -> (x)
//!   %l = layers layer carried 1 (%x, %c, pos)     %attention.q: … = round bf16 (%3)
//!   %y = call norm (item 0 of %l, norm)         class full (x, c, pos) -> (x)
//!                                               graph last (x, rows) -> (result)
//! ```
//!
//! Why: every later pass works on flat graphs; calls, matches and the schedule are for people.
//! When: always. (1) Calls are replaced by their blocks, matches on a layer's kind by the arm of the class, `kv[l.c]` by
//! the cache of the kind. (2) What does not depend on the layers goes to `first`, what does to `last`. (3) Values cross
//! graphs by name: entry inputs under their own, carried values and invariants under the layer block's parameter names,
//! others under their own; a name in use gets a suffix. (4) A leaf (weight, literal, number) is repeated where it is
//! needed instead of crossing. (5) An output that would only name an input or a leaf is rounded to the format it has,
//! which copies it, so that every output has an operation that makes it.
//! Kind: `Exact`.
//! Tests: `flatten_tests.rs`, and `tests/small_models.rs`.

use crate::classify_layers::{LayerClass, classify};
use crate::error::defect;
use crate::inline::{Copied, Copies, Inliner, base, one};
use crate::{Kind, Level, PassError, PassInfo};
use ir::{Block, Class, Entry, Graph, GraphBuilder, Model, Module, Op, Type, ValueId, free_name};
use std::collections::{HashMap, HashSet};

/// What the pass says about itself.
pub const INFO: PassInfo =
    PassInfo { name: "flatten", level: Level::Graph, kind: Kind::Exact, why: "one flat graph per layer class" };

/// Runs the pass.
pub fn run(model: &Model) -> Result<Module, PassError> {
    let entries = model.entries.iter().map(|e| Flatten::new(model, e)?.entry()).collect::<Result<_, _>>()?;
    Ok(Module::new(model.facts.clone(), entries))
}

/// How an argument of the layer block reaches the layers.
#[derive(Clone, Debug, PartialEq)]
enum Arrival {
    /// Under this name.
    Named(String),
    /// As a copy of this leaf of the entry.
    Leaf(ValueId),
}

struct Flatten<'a> {
    model: &'a Model,
    entry: &'a Block,
    /// The layer loop and its number of carried values.
    layers: Option<(ValueId, &'a Block, usize)>,
    /// Names in use in the entry's environment.
    names: HashSet<String>,
}

impl<'a> Flatten<'a> {
    fn new(model: &'a Model, entry: &'a Block) -> Result<Self, PassError> {
        let graph = &entry.graph;
        let mut layers = None;
        for id in graph.ids() {
            let Op::Layers { block, carried } = &graph.node(id).op else { continue };
            if layers.is_some() {
                return Err(PassError {
                    code: "P0101",
                    message: format!("entry `{}` runs the layers twice", entry.name),
                    help: "put both bodies into one block, or make two entries".to_owned(),
                    span: graph.node(id).span,
                });
            }
            let block = model.block(block).ok_or_else(|| defect(format!("there is no block `{block}`")))?;
            layers = Some((id, block, *carried));
        }
        // Results stand beside the environment in a plan, so nothing else may have their names.
        let inputs = graph.inputs.iter().filter_map(|v| graph.input_name(*v));
        let names = inputs.chain(graph.outputs.iter().map(|(n, _)| n.as_str())).map(str::to_owned).collect();
        Ok(Flatten { model, entry, layers, names })
    }

    /// A name that nothing else has.
    fn unique(&mut self, wanted: &str) -> String {
        let name = free_name(wanted, |name| self.names.contains(name));
        self.names.insert(name.clone());
        name
    }

    fn entry(mut self) -> Result<Entry, PassError> {
        let graph = &self.entry.graph;
        let after = depends_on(graph, self.layers.map(|(id, _, _)| id));
        let mut first = Inliner::new(self.model, None);
        let mut copies = Copies::new();
        // Without layers all work is the last graph's.
        let before = |id: &ValueId| self.layers.is_some() && !after.contains(id);
        for id in graph.inputs.iter().copied() {
            copy_input(&mut first.builder, graph, id, &mut copies)?;
        }
        for id in graph.ids().filter(before) {
            if !copies.contains_key(&id) {
                first.node(graph, id, &mut copies, "", 0)?;
            }
        }
        let mut outputs = Outputs::default();
        let mut arrivals = Vec::new();
        let (mut classes, mut instances) = (Vec::new(), Vec::new());
        if let Some((id, block, carried)) = self.layers {
            arrivals = self.arrivals(id, block, carried)?;
            for (operand, arrival) in graph.operands(id).into_iter().zip(&arrivals) {
                if let Arrival::Named(name) = arrival
                    && graph.input_name(operand) != Some(name)
                {
                    outputs.add(&mut first.builder, name, one(&copies, operand)?);
                }
            }
            let (layer_classes, layer_instances) = classify(&self.model.facts);
            for class in &layer_classes {
                classes.push(self.class(class, block, carried, &arrivals, graph, id)?);
            }
            instances = layer_instances;
        }
        let last = self.last(&after, &arrivals, &copies, &mut first.builder, &mut outputs)?;
        Ok(Entry { name: self.entry.name.clone(), first: first.finish(), classes, instances, last })
    }

    /// How each operand of the layer loop reaches the layers.
    fn arrivals(&mut self, layers: ValueId, block: &Block, carried: usize) -> Result<Vec<Arrival>, PassError> {
        let graph = &self.entry.graph;
        let mut known: HashMap<ValueId, String> = HashMap::new();
        let mut arrivals = Vec::new();
        for (i, operand) in graph.operands(layers).into_iter().enumerate() {
            let param = block.graph.inputs.get(i).and_then(|v| block.graph.input_name(*v));
            let param = param.ok_or_else(|| defect(format!("block `{}` lacks parameter {i}", block.name)))?;
            let arrival = match &graph.node(operand).op {
                _ if i < carried => Arrival::Named(self.unique(param)),
                Op::Input(name) => Arrival::Named(name.clone()),
                op if op.is_leaf() => Arrival::Leaf(operand),
                _ => match known.get(&operand) {
                    Some(name) => Arrival::Named(name.clone()),
                    None => {
                        let name = self.unique(param);
                        known.insert(operand, name.clone());
                        Arrival::Named(name)
                    }
                },
            };
            arrivals.push(arrival);
        }
        Ok(arrivals)
    }

    fn class(
        &self,
        class: &LayerClass,
        block: &Block,
        carried: usize,
        arrivals: &[Arrival],
        entry: &Graph,
        layers: ValueId,
    ) -> Result<Class, PassError> {
        let mut inliner = Inliner::new(self.model, Some(&class.kinds));
        let mut named: HashMap<&str, ValueId> = HashMap::new();
        let mut arguments = Vec::new();
        for (arrival, operand) in arrivals.iter().zip(entry.operands(layers)) {
            arguments.push(match arrival {
                Arrival::Named(name) => match named.get(name.as_str()) {
                    Some(id) => *id,
                    None => {
                        let id = inliner.builder.input(name, entry.node(operand).ty.clone());
                        named.insert(name, id);
                        id
                    }
                },
                Arrival::Leaf(leaf) => {
                    let node = entry.node(*leaf);
                    inliner.builder.add(node.op.clone(), &[], node.ty.clone(), node.span)
                }
            });
        }
        let results = inliner.block(&block.graph, &arguments, "", 0)?;
        let mut outputs = Outputs::default();
        for (arrival, value) in arrivals.iter().zip(results).take(carried) {
            if let Arrival::Named(name) = arrival {
                outputs.add(&mut inliner.builder, name, value);
            }
        }
        Ok(Class { name: class.name.clone(), kinds: class.kinds.clone(), graph: inliner.finish() })
    }

    fn last(
        &mut self,
        after: &HashSet<ValueId>,
        arrivals: &[Arrival],
        first_copies: &Copies,
        first: &mut GraphBuilder,
        outputs: &mut Outputs,
    ) -> Result<Graph, PassError> {
        let entry = self.entry;
        let graph = &entry.graph;
        let mut last = Inliner::new(self.model, None);
        let mut copies = Copies::new();
        if self.layers.is_none() {
            for id in graph.inputs.iter().copied() {
                copy_input(&mut last.builder, graph, id, &mut copies)?;
            }
        }
        let results: HashSet<ValueId> = graph.outputs.iter().map(|(_, v)| *v).collect();
        for id in graph.ids() {
            let here = self.layers.is_none() || after.contains(&id);
            if here {
                self.last_node(&mut last, graph, id, arrivals, &mut copies)?;
                continue;
            }
            let needed = results.contains(&id) || graph.users(id).iter().any(|u| self.crosses(*u, after));
            let node = graph.node(id);
            if !needed || matches!(node.ty, Type::Tuple(_)) {
                continue;
            }
            if node.op.is_leaf() && graph.input_name(id).is_none() {
                last.node(graph, id, &mut copies, "", 0)?;
                continue;
            }
            let name = match graph.input_name(id) {
                Some(name) => name.to_owned(),
                None => {
                    let name = self.unique(node.name.as_deref().map_or("first", base));
                    outputs.add(first, &name, one(first_copies, id)?);
                    name
                }
            };
            let value = last.builder.input(&name, node.ty.clone());
            copies.insert(id, Copied::One(value));
        }
        let mut named = Outputs::default();
        for (name, value) in &graph.outputs {
            let value = one(&copies, *value)?;
            named.add(&mut last.builder, name, value);
        }
        Ok(last.finish())
    }

    /// Whether a user stands in the last graph; the layer loop itself stands between the graphs.
    fn crosses(&self, user: ValueId, after: &HashSet<ValueId>) -> bool {
        after.contains(&user) && self.layers.is_none_or(|(id, _, _)| id != user)
    }

    fn last_node(
        &self,
        last: &mut Inliner<'_>,
        graph: &Graph,
        id: ValueId,
        arrivals: &[Arrival],
        copies: &mut Copies,
    ) -> Result<(), PassError> {
        if copies.contains_key(&id) || self.layers.is_some_and(|(layers, _, _)| layers == id) {
            return Ok(());
        }
        if let (Op::Item(index), Some((layers, _, _))) = (&graph.node(id).op, self.layers)
            && graph.operands(id) == [layers]
        {
            let Some(Arrival::Named(name)) = arrivals.get(*index) else {
                return Err(defect(format!("{id} takes an item that the layers do not carry")));
            };
            let found = last.builder.graph().inputs.iter().copied();
            let known = found.clone().find(|v| last.builder.graph().input_name(*v) == Some(name));
            let value = known.unwrap_or_else(|| last.builder.input(name, graph.node(id).ty.clone()));
            copies.insert(id, Copied::One(value));
            return Ok(());
        }
        last.node(graph, id, copies, "", 0)
    }
}

/// Outputs of a graph under construction; each gets a value of its own.
#[derive(Default)]
struct Outputs {
    taken: HashSet<ValueId>,
}

impl Outputs {
    fn add(&mut self, builder: &mut GraphBuilder, name: &str, value: ValueId) {
        let node = builder.graph().node(value);
        let unchanged = matches!(&node.op, Op::Input(input) if input == name);
        let borrowed = node.op.is_leaf() || self.taken.contains(&value);
        let mut output = value;
        if let (true, false, Type::Tensor(ty)) = (borrowed, unchanged, &node.ty)
            && ty.dtype.is_float()
        {
            let (op, ty, span) = (Op::Round(ty.dtype), node.ty.clone(), node.span);
            output = builder.add(op, &[value], ty, span);
        }
        self.taken.insert(output);
        builder.name(output, name);
        builder.output(name, output);
    }
}

fn copy_input(builder: &mut GraphBuilder, graph: &Graph, id: ValueId, copies: &mut Copies) -> Result<(), PassError> {
    let name = graph.input_name(id).ok_or_else(|| defect(format!("{id} is listed as an input and is none")))?;
    let value = builder.input(name, graph.node(id).ty.clone());
    copies.insert(id, Copied::One(value));
    Ok(())
}

/// The values that depend on the given one, itself included.
fn depends_on(graph: &Graph, on: Option<ValueId>) -> HashSet<ValueId> {
    let mut set: HashSet<ValueId> = on.into_iter().collect();
    for id in graph.ids() {
        if graph.operands(id).iter().any(|v| set.contains(v)) {
            set.insert(id);
        }
    }
    set
}

#[cfg(test)]
#[path = "flatten_tests.rs"]
mod tests;
