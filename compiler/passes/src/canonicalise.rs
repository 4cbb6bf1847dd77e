//! **canonicalise** (graph level)
//!
//! ```text
//! %4: f32[] = scalar 0.5         %4: f32[] = literal [0.5]
//! %5: f32[] = scalar (1.0 / 2.0) %a: f32[T, hidden] = mul (%x, %4)
//! %a: … = mul (%x, %4)
//! %b: … = mul (%x, %5)           (users of %b use %a)
//! ```
//!
//! Why: equal computations become one value, so that later passes compare graphs by looking at them.
//! When: always. (1) What neither reaches an output nor stores is dropped. (2) A number that does not depend on the
//! layer becomes a literal. (3) Two nodes with equal operation, operands and type become one; stores never do. (4) A
//! round to the format that a value has is dropped, unless it makes an output.
//! Kind: `Exact`: every value that remains is computed as before.
//! Tests: below, and `tests/small_models.rs`.

use crate::{Kind, Level, Note, PassError, PassInfo};
use ir::{Class, Entry, Graph, GraphBuilder, Module, Op, ValueId};
use std::collections::HashMap;

/// What the pass says about itself.
pub const INFO: PassInfo = PassInfo {
    name: "canonicalise",
    level: Level::Graph,
    kind: Kind::Exact,
    why: "equal computations become one value",
};

/// Runs the pass.
pub fn run(module: &Module, _: &mut Vec<Note>) -> Result<Module, PassError> {
    let entries = module
        .entries
        .iter()
        .map(|entry| Entry {
            name: entry.name.clone(),
            // The inputs of the first graph are the entry's signature.
            first: graph(&entry.first, true),
            classes: entry
                .classes
                .iter()
                .map(|c| Class { name: c.name.clone(), kinds: c.kinds.clone(), graph: graph(&c.graph, false) })
                .collect(),
            instances: entry.instances.clone(),
            last: graph(&entry.last, entry.instances.is_empty()),
        })
        .collect();
    Ok(Module { facts: module.facts.clone(), entries })
}

/// One graph in canonical form; unused inputs go unless they are to be kept.
pub(crate) fn graph(graph: &Graph, keep_inputs: bool) -> Graph {
    let live = live(graph, keep_inputs);
    let made_for_output: Vec<ValueId> = graph.outputs.iter().map(|(_, v)| *v).collect();
    let mut builder = GraphBuilder::new();
    let mut copies: HashMap<ValueId, ValueId> = HashMap::new();
    let mut known: HashMap<String, ValueId> = HashMap::new();
    for id in graph.ids().filter(|v| live[v.0 as usize]) {
        let node = graph.node(id);
        let operands: Vec<ValueId> = graph.operands(id).iter().filter_map(|v| copies.get(v).copied()).collect();
        let op = match &node.op {
            Op::Scalar(expr) => match expr.number() {
                Some(x) => Op::Literal(vec![x as f32]),
                None => Op::Scalar(expr.clone().simplified()),
            },
            other => other.clone(),
        };
        let repeated = match (&op, operands.as_slice()) {
            (Op::Store { .. }, _) => None,
            (Op::Round(_), [x]) if builder.graph().node(*x).ty == node.ty && !made_for_output.contains(&id) => Some(*x),
            _ => {
                let key = format!("{op:?} {operands:?} {:?}", node.ty);
                let fresh = !made_for_output.contains(&id) || !matches!(op, Op::Round(_));
                known.get(&key).copied().filter(|_| fresh).or_else(|| {
                    known.insert(key, ValueId(builder.graph().len() as u32));
                    None
                })
            }
        };
        let copy = repeated.unwrap_or_else(|| builder.add(op, &operands, node.ty.clone(), node.span));
        if let Some(name) = &node.name {
            builder.name(copy, name);
        }
        copies.insert(id, copy);
    }
    for (name, value) in &graph.outputs {
        if let Some(copy) = copies.get(value) {
            builder.output(name, *copy);
        }
    }
    let mut done = builder.finish();
    done.inputs = graph.inputs.iter().filter_map(|v| copies.get(v).copied()).collect();
    done
}

/// Which values reach an output or store something.
fn live(graph: &Graph, keep_inputs: bool) -> Vec<bool> {
    let mut live = vec![false; graph.len()];
    for (_, v) in &graph.outputs {
        live[v.0 as usize] = true;
    }
    if keep_inputs {
        graph.inputs.iter().for_each(|v| live[v.0 as usize] = true);
    }
    for id in graph.ids().rev() {
        live[id.0 as usize] |= matches!(graph.node(id).op, Op::Store { .. });
        if live[id.0 as usize] {
            graph.operands(id).iter().for_each(|v| live[v.0 as usize] = true);
        }
    }
    live
}
