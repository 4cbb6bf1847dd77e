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
    Ok(module.with_entries(entries))
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

#[cfg(test)]
mod tests {
    use super::graph;
    use crate::testing::{Make, text};
    use ir::{Binary, ConstExpr, DType, Op, Unary};

    #[test]
    fn equal_values_become_one_and_dead_ones_go() {
        let mut m = Make::default();
        let x = m.input("x", DType::F32, "T hidden");
        let unused = m.input("unused", DType::F32, "T hidden");
        let number =
            |m: &mut Make, x| m.builder.add(Op::Scalar(ConstExpr::Num(x)), &[], Make::tensor(DType::F32, ""), None);
        let (a, b) = (number(&mut m, 0.5), m.literal(0.5));
        let first = m.binary(Binary::Mul, x, a);
        let second = m.binary(Binary::Mul, x, b);
        m.builder.name(second, "half");
        let swapped = m.op(Op::Binary(Binary::Mul), &[b, x], DType::F32, "T hidden");
        m.like(Op::Unary(Unary::Exp), &[unused]);
        let sum = m.binary(Binary::Add, first, second);
        let wide = m.like(Op::Round(DType::F32), &[sum]);
        m.builder.name(wide, "sum");
        let ty = m.ty(x);
        let rest = m.builder.add(Op::Binary(Binary::Sub), &[wide, swapped], ir::Type::Tensor(ty), None);
        let kept = m.like(Op::Round(DType::F32), &[rest]);
        m.builder.output("result", kept);
        let done = graph(&m.builder.finish(), false);
        let text = text(&done);
        // `mul` is not reordered: that would be exact too, but operands stay as the spec has them.
        let expected = "graph g (%x) -> (result = %6) {
  axes T = rows
  %x: f32[T, hidden] = input x
  %1: f32[] = literal [0.5]
  %half: f32[T, hidden] = mul (%x, %1)
  %3: f32[T, hidden] = mul (%1, %x)
  %sum: f32[T, hidden] = add (%half, %half)
  %5: f32[T, hidden] = sub (%sum, %3)
  %6: f32[T, hidden] = round f32 (%5)
}
";
        assert_eq!(text, expected);
        assert_eq!(graph(&done, false), done);
    }

    #[test]
    fn two_stores_of_equal_rows_stay_two() {
        let mut m = Make::default();
        let k = m.input("k", DType::Bf16, "T kv_heads head_dim");
        let at = m.input("at", DType::I32, "T");
        for _ in 0..2 {
            let kv = ir::KvRef::Kind("near".to_owned());
            m.builder.add(Op::Store { kv, scratch: false }, &[k, k, at], ir::Type::Cache, None);
        }
        assert_eq!(graph(&m.builder.finish(), false).len(), 4);
    }
}
