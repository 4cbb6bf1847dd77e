//! **rank scale** (sharded level → sharded level)
//!
//! ```text
//! %m: f32[T] = reduce max over ffn (abs %h)          %m: f32[T] = reduce max over ffn (abs %h)
//! %a: f32[T] = the largest of all ranks' (%m)   ─►   %s: f32[T] = div (%m, 448)
//! %s: f32[T] = div (%a, 448)                         %c: e4m3[T, ffn] = round e4m3 (mul (%h, 1 / %s))
//! %c: e4m3[T, ffn] = round e4m3 (mul (%h, 1 / %s))   %p: f32[T, hidden] = linear … (%c, %d)
//! %p: f32[T, hidden] = linear … (%c, %d)             %q: f32[T, hidden] = mul (%p, mul (%s, %w))
//! %t: f32[T, hidden] = all_reduce over [tp] … (%p)   %y: f32[T, hidden] = all_reduce over [tp] … (%q)
//! %y: f32[T, hidden] = mul (%t, mul (%s, %w))
//! ```
//!
//! Why: where a quantised input is spread, its scale waits for an exchange before the product can begin. Serving engines let each
//! rank take the largest magnitude of its own part.
//! When: the target allows `rank-scale` and `--exact` is absent. (1) A scale is computed from the largest over ranks. (2)
//! Everything that comes of it ends as the left operand of a product or multiplies such a product's result, alone or
//! summed over ranks; nobody else reads that result. (3) The sum over ranks moves behind the multiplication.
//! Kind: `Relaxed("rank-scale")`: each rank rounds under its own scale.
//! Tests: below; its size on the full model, made small, in `tests/meshes.rs`.

use super::relaxed;
use crate::copying::Copying;
use crate::{Compile, Kind, Level, PassError, PassInfo, canonicalise};
use ir::{Binary, DType, Graph, Module, Op, ReduceOp, ValueId};
use std::collections::HashSet;

/// What the pass says about itself.
pub const INFO: PassInfo = PassInfo {
    name: "rank scale",
    level: Level::Sharded,
    kind: Kind::Relaxed("rank-scale"),
    why: "a scale waits for no other rank",
};

/// Runs the pass.
pub fn run(module: &Module, compile: &Compile<'_>) -> Result<Module, PassError> {
    relaxed("rank-scale", module, compile, |graph, _, _| {
        let mut current: Option<Graph> = None;
        // Each step takes one exchange away.
        for _ in 0..graph.len() {
            let at = current.as_ref().unwrap_or(graph);
            let Some(own) = at.ids().find_map(|id| Own::of(at, id)) else { break };
            current = Some(own.rewritten(at)?);
        }
        current
    })
}

/// A largest over ranks that every rank may do without.
struct Own {
    /// The largest over ranks.
    largest: ValueId,
    /// What the rank has found.
    own: ValueId,
    /// Sums over ranks and the multiplications that they move behind.
    moved: Vec<(ValueId, ValueId)>,
}

impl Own {
    fn of(graph: &Graph, largest: ValueId) -> Option<Own> {
        let own = own_part(graph, largest)?;
        let depends = depends(graph, largest);
        let is_output = |id: &ValueId| graph.outputs.iter().any(|(_, v)| v == id);
        let mut moved = Vec::new();
        for id in depends.iter() {
            if is_output(id) {
                return None;
            }
            for user in graph.users(*id).into_iter().filter(|u| !depends.contains(u)) {
                match &graph.node(user).op {
                    Op::Linear { .. } if only_left(graph, user, *id) => {}
                    Op::Binary(Binary::Mul) => moved.extend(behind(graph, user, &depends)?),
                    _ => return None,
                }
            }
            let products = graph.users(*id).into_iter().filter(|u| matches!(graph.node(*u).op, Op::Linear { .. }));
            for product in products {
                if is_output(&product) || !ends_scaled(graph, product, &depends) {
                    return None;
                }
            }
        }
        moved.sort_unstable();
        moved.dedup();
        Some(Own { largest, own, moved })
    }

    fn rewritten(&self, graph: &Graph) -> Option<Graph> {
        let mut copy = Copying::new(graph);
        for id in graph.ids() {
            if id == self.largest {
                let own = copy.at(self.own).ok()?;
                copy.set(id, own);
            } else if self.moved.iter().any(|(sum, _)| *sum == id) {
                // The partial sum stands for the sum until it is multiplied.
                let partial = *copy.operands(id).ok()?.first()?;
                copy.set(id, partial);
            } else if let Some((sum, _)) = self.moved.iter().find(|(_, product)| *product == id) {
                let operands = copy.operands(id).ok()?;
                let scaled = copy.copy_with(id, &operands);
                let ty = copy.tensor(scaled).ok()?.with_dtype(DType::F32);
                let node = graph.node(*sum);
                let total = copy.add(node.op.clone(), &[scaled], ty, node.span);
                copy.set(id, total);
            } else {
                copy.copy(id).ok()?;
            }
        }
        Some(canonicalise::graph(&copy.finish().ok()?, true))
    }
}

/// What a rank has found of a largest over ranks: `reduce max (all_gather (max (own, -inf)))`.
fn own_part(graph: &Graph, largest: ValueId) -> Option<ValueId> {
    let operand = |id: ValueId| graph.operands(id).first().copied();
    let Op::Reduce { op: ReduceOp::Max, axis, .. } = &graph.node(largest).op else { return None };
    let all = operand(largest)?;
    let Op::AllGather { into, .. } = &graph.node(all).op else { return None };
    let one = operand(all)?;
    let operands = graph.operands(one);
    let least = operands.get(1).map(|v| &graph.node(*v).op);
    let fits = into == axis
        && matches!(graph.node(one).op, Op::Binary(Binary::Max))
        && matches!(least, Some(Op::Literal(data)) if data[..] == [f32::NEG_INFINITY]);
    fits.then(|| operands.first().copied()).flatten()
}

/// What is computed from a value element by element, up to products and what multiplies a product's result.
fn depends(graph: &Graph, from: ValueId) -> HashSet<ValueId> {
    let mut found = HashSet::from([from]);
    let is_sum = |id: &ValueId| matches!(graph.node(*id).op, Op::Linear { .. } | Op::AllReduce { .. });
    for id in graph.ids() {
        let operands = graph.operands(id);
        let element_wise = match &graph.node(id).op {
            Op::Unary(_) | Op::Binary(_) | Op::Fma | Op::Select | Op::Round(_) => !operands.iter().any(is_sum),
            op => op.is_view(),
        };
        if element_wise && operands.iter().any(|o| found.contains(o)) {
            found.insert(id);
        }
    }
    found
}

fn only_left(graph: &Graph, product: ValueId, id: ValueId) -> bool {
    let operands = graph.operands(product);
    operands.first() == Some(&id) && operands.iter().filter(|o| **o == id).count() == 1
}

/// The sum over ranks that a multiplication with a scale may stand before; nothing where it already does.
fn behind(graph: &Graph, user: ValueId, depends: &HashSet<ValueId>) -> Option<Option<(ValueId, ValueId)>> {
    let operands = graph.operands(user);
    let other = operands.iter().copied().find(|o| !depends.contains(o))?;
    let on_codes = |id: ValueId| {
        matches!(graph.node(id).op, Op::Linear { .. })
            && graph.operands(id).first().is_some_and(|x| depends.contains(x))
    };
    match &graph.node(other).op {
        Op::Linear { .. } if on_codes(other) => Some(None),
        Op::AllReduce { .. } if graph.users(other) == [user] => {
            let partial = graph.operands(other).first().copied()?;
            on_codes(partial).then_some(Some((other, user)))
        }
        _ => None,
    }
}

/// Whether a product's result is read by a multiplication with the scale alone, itself or its sum over ranks.
fn ends_scaled(graph: &Graph, product: ValueId, depends: &HashSet<ValueId>) -> bool {
    let alone = |id: ValueId| match graph.users(id)[..] {
        [user] => Some(user),
        _ => None,
    };
    let scales = |id: ValueId| {
        matches!(graph.node(id).op, Op::Binary(Binary::Mul)) && graph.operands(id).iter().any(|o| depends.contains(o))
    };
    match alone(product) {
        Some(user) if matches!(graph.node(user).op, Op::AllReduce { .. }) => {
            !graph.outputs.iter().any(|(_, v)| *v == user) && alone(user).is_some_and(scales)
        }
        Some(user) => scales(user),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    /// Operations of the first graph after the pass, without leaves.
    fn relaxed(values: &str, outputs: &str, allowed: bool) -> (Vec<String>, String) {
        let text = format!(
            "module m act bf16 dim hidden = 4 dim ffn = 4 shard ffn = [tp]
            mesh [tp = 2] place weight model d: ffn over [tp] weight model d: e4m3[hidden, ffn] weight model w: f32[hidden]
            entry e {{ graph first (%h) -> ({outputs}) {{ axes T = rows, ffn = 2, rank = 2
            %h: bf16[T, ffn] = input h
            %d: e4m3[hidden, ffn] = weight model d
            %w: f32[hidden] = weight model w
            %least: f32[rank=1] = literal [-inf]
            %a: f32[T, ffn] = abs (%h)
            %m: f32[T] = reduce max over ffn order fold (%a)
            %o: f32[T, rank=1] = max (%m, %least)
            %g: f32[T, rank] = all_gather rank over [tp] into rank (%o)
            %s: f32[T] = reduce max over rank order fold (%g)
            %x: f32[T, ffn] = mul (%h, %s)
            %c: e4m3[T, ffn] = round e4m3 (%x)
            %p: f32[T, hidden] = linear over [ffn] order any (%c, %d)
            %f: f32[T, hidden] = mul (%s, %w)
            {values} }}
            graph last () -> () {{ }} }}"
        );
        super::super::testing::relaxed(&text, allowed.then_some("rank-scale"), super::run)
    }

    const SUMMED: &str = "%t: f32[T, hidden] = all_reduce over [tp] order serial (%p)
        %y: f32[T, hidden] = mul (%t, %f)";

    #[test]
    fn a_rank_takes_its_own_and_multiplies_before_the_sum() {
        let (names, text) = relaxed(SUMMED, "y = %y", true);
        assert_eq!(names, ["rank-scale"]);
        let expected = "%a: f32[T, ffn] = abs (%h)
%m: f32[T] = reduce max over ffn order fold (%a)
%x: f32[T, ffn] = mul (%h, %m)
%c: e4m3[T, ffn] = round e4m3 (%x)
%p: f32[T, hidden] = linear over [ffn] order any (%c, %d)
%f: f32[T, hidden] = mul (%m, %w)
%9: f32[T, hidden] = mul (%p, %f)
%y: f32[T, hidden] = all_reduce over [tp] order serial (%9)";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_scale_that_others_read_and_a_sum_that_others_read_stay() {
        let read = "%q: f32[T, hidden] = add (%y, %t)";
        let none = (SUMMED.to_owned(), "y = %y", false);
        let sum = (format!("{SUMMED} {read}"), "y = %q", true);
        let scale = (SUMMED.to_owned(), "y = %y, s = %s", true);
        for (values, outputs, allowed) in [none, sum, scale] {
            let (names, text) = relaxed(&values, outputs, allowed);
            assert_eq!(names, [""; 0]);
            assert!(text.contains("all_gather"), "{text}");
        }
    }
}
