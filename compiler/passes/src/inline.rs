//! Copies the graph of a block into another graph, calls and matches replaced by what they stand for.

use crate::PassError;
use crate::error::defect;
use ir::{Facts, Graph, GraphBuilder, KvRef, LayerKinds, Model, Op, ValueId};
use std::collections::HashMap;

/// Calls nested deeper than this are refused; blocks cannot be recursive, so only a defect gets here.
const MAX_DEPTH: usize = 256;

/// What a value of the block has become.
#[derive(Clone, Debug)]
pub(crate) enum Copied {
    One(ValueId),
    Many(Vec<ValueId>),
}

/// Values of a block → values of the graph under construction.
pub(crate) type Copies = HashMap<ValueId, Copied>;

pub(crate) struct Inliner<'a> {
    model: &'a Model,
    /// Kinds of the layer; `None` outside the layers.
    kinds: Option<&'a LayerKinds>,
    pub(crate) builder: GraphBuilder,
    /// Names for results of calls that nobody named.
    fallback: Vec<(ValueId, String)>,
}

impl<'a> Inliner<'a> {
    pub(crate) fn new(model: &'a Model, kinds: Option<&'a LayerKinds>) -> Self {
        Inliner { model, kinds, builder: GraphBuilder::new(), fallback: Vec::new() }
    }

    /// The finished graph. A result of a call that its caller did not name is named after the block.
    pub(crate) fn finish(mut self) -> Graph {
        for (id, name) in std::mem::take(&mut self.fallback) {
            if !self.builder.graph().node(id).op.is_leaf() {
                self.builder.name(id, &name);
            }
        }
        self.builder.finish()
    }

    /// Copies a whole block with the given arguments; returns its results.
    pub(crate) fn block(
        &mut self,
        graph: &Graph,
        arguments: &[ValueId],
        path: &str,
        depth: usize,
    ) -> Result<Vec<ValueId>, PassError> {
        if depth > MAX_DEPTH {
            return Err(defect(format!("calls are nested deeper than {MAX_DEPTH}")));
        }
        if graph.inputs.len() != arguments.len() {
            let (wanted, found) = (graph.inputs.len(), arguments.len());
            return Err(defect(format!("a block called in `{path}` takes {wanted} arguments and gets {found}")));
        }
        let mut copies: Copies =
            graph.inputs.iter().zip(arguments).map(|(input, value)| (*input, Copied::One(*value))).collect();
        for id in graph.ids() {
            if !copies.contains_key(&id) {
                self.node(graph, id, &mut copies, path, depth)?;
            }
        }
        graph.outputs.iter().map(|(_, v)| one(&copies, *v)).collect()
    }

    /// Copies one node whose operands are copied already.
    pub(crate) fn node(
        &mut self,
        graph: &Graph,
        id: ValueId,
        copies: &mut Copies,
        path: &str,
        depth: usize,
    ) -> Result<(), PassError> {
        let node = graph.node(id);
        let copied = match &node.op {
            Op::Item(index) => {
                let tuple = graph.operands(id).first().and_then(|t| copies.get(t));
                match tuple {
                    Some(Copied::Many(items)) if *index < items.len() => Copied::One(items[*index]),
                    _ => return Err(defect(format!("{id} takes an item of something that is no tuple"))),
                }
            }
            Op::Call(name) => {
                let callee = join(path, base(name));
                Copied::Many(self.call(graph, id, name, copies, &callee, depth)?)
            }
            Op::Match { column, arms } => {
                let kind = self.kind(column)?;
                let Some((_, block)) = arms.iter().find(|(k, _)| *k == kind) else {
                    return Err(PassError {
                        code: "P0103",
                        message: format!("a layer is `{kind}` in column `{column}`, and the match has no such arm"),
                        help: format!("add an arm `{kind} {{ … }}`"),
                        span: node.span,
                    });
                };
                // An arm is a piece of the block around it, not a block that was called: the path stays.
                Copied::Many(self.call(graph, id, block, copies, path, depth)?)
            }
            Op::Layers { .. } => {
                return Err(PassError {
                    code: "P0102",
                    message: "the layer loop stands inside a block".to_owned(),
                    help: "move the loop into the entry".to_owned(),
                    span: node.span,
                });
            }
            op => {
                let operands: Vec<ValueId> =
                    graph.operands(id).into_iter().map(|v| one(copies, v)).collect::<Result<_, _>>()?;
                let op = self.resolved(op, node.span)?;
                Copied::One(self.builder.add(op, &operands, node.ty.clone(), node.span))
            }
        };
        if let (Copied::One(value), Some(name)) = (&copied, &node.name) {
            self.builder.name(*value, &join(path, base(name)));
        }
        copies.insert(id, copied);
        Ok(())
    }

    fn call(
        &mut self,
        graph: &Graph,
        id: ValueId,
        block: &str,
        copies: &Copies,
        path: &str,
        depth: usize,
    ) -> Result<Vec<ValueId>, PassError> {
        let Some(callee) = self.model.block(block) else {
            return Err(defect(format!("there is no block `{block}`")));
        };
        let arguments: Vec<ValueId> =
            graph.operands(id).into_iter().map(|v| one(copies, v)).collect::<Result<_, _>>()?;
        let results = self.block(&callee.graph, &arguments, path, depth + 1)?;
        if matches!(graph.node(id).op, Op::Call(_)) {
            for (i, result) in results.iter().enumerate() {
                let name = if results.len() == 1 { path.to_owned() } else { format!("{path}.{i}") };
                self.fallback.push((*result, name));
            }
        }
        Ok(results)
    }

    fn kind(&self, column: &str) -> Result<String, PassError> {
        let kinds = self.kinds.ok_or_else(|| defect("a match on a layer's kind stands outside the layers"))?;
        kinds.get(column).cloned().ok_or_else(|| defect(format!("the schedule has no column `{column}`")))
    }

    /// The operation with a cache named by column replaced by the cache of the layer's kind.
    fn resolved(&self, op: &Op, span: Option<ir::Span>) -> Result<Op, PassError> {
        let resolve = |kv: &KvRef| match kv {
            KvRef::Kind(_) => Ok(kv.clone()),
            KvRef::ByColumn(column) => {
                let kind = self.kind(column)?;
                known_kv(&self.model.facts, column, &kind, span)?;
                Ok(KvRef::Kind(kind))
            }
        };
        Ok(match op {
            Op::Store { kv, scratch } => Op::Store { kv: resolve(kv)?, scratch: *scratch },
            Op::Attend { kv, mask, scale, order } => {
                Op::Attend { kv: resolve(kv)?, mask: *mask, scale: scale.clone(), order: order.clone() }
            }
            other => other.clone(),
        })
    }
}

fn known_kv(facts: &Facts, column: &str, kind: &str, span: Option<ir::Span>) -> Result<(), PassError> {
    match facts.kv_kind(kind) {
        Some(_) => Ok(()),
        None => Err(PassError {
            code: "P0104",
            message: format!("a layer is `{kind}` in column `{column}`, and `[kv]` has no such cache"),
            help: format!("declare `{kind}` in `[kv]`, or store only in arms whose kinds have a cache"),
            span,
        }),
    }
}

/// The copy of a value that is not a tuple.
pub(crate) fn one(copies: &Copies, id: ValueId) -> Result<ValueId, PassError> {
    match copies.get(&id) {
        Some(Copied::One(value)) => Ok(*value),
        Some(Copied::Many(_)) => Err(defect(format!("{id} is a tuple where a value is needed"))),
        None => Err(defect(format!("{id} is used before it is copied"))),
    }
}

/// A name without the suffix that keeps instances apart: values count their own repetitions after inlining.
pub(crate) fn base(name: &str) -> &str {
    match name.rsplit_once('#') {
        Some((stem, count)) if !stem.is_empty() && count.chars().all(|c| c.is_ascii_digit()) => stem,
        _ => name,
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
