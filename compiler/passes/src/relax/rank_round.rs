//! **rank round** (sharded level → sharded level)
//!
//! ```text
//! %p: f32[T, picked, hidden] = linear … (%h, %d, %ids)          %p: f32[T, picked, hidden] = linear … (%h, %d, %ids)
//! %s: f32[T, picked, hidden] = all_reduce over [tp] … (%p)      %y: bf16[T, picked, hidden] = round bf16 (%p)
//! %y: bf16[T, picked, hidden] = round bf16 (%s)            ─►   %w: f32[T, picked, hidden] = mul (%f, %y)
//! %w: f32[T, picked, hidden] = mul (%f, %y)                     %t: f32[T, hidden] = reduce sum over picked … (%w)
//! %t: f32[T, hidden] = reduce sum over picked … (%w)            %r: bf16[T, hidden] = round bf16 (%t)
//! %r: bf16[T, hidden] = round bf16 (%t)                         %s: f32[T, hidden] = all_reduce over [tp] … (%r)
//! ```
//!
//! Why: where a rounding stands between a partial sum and a sum over an axis, adding over ranks before it moves that axis'
//! length times as many bytes. Serving engines round on every rank and add later.
//! When: the target allows `rank-round` and `--exact` is absent. (1) A sum over ranks is followed, each value having one
//! user, by roundings, views, cuts, products with a factor that is the same on all ranks, and sums, of the latter at
//! least one; it moves to the place with the fewest bytes, the earliest of those. (2) Two sums over ranks that then
//! follow each other become one.
//! Kind: `Relaxed("rank-round")`: what each rank has of the sum rounds, and rounds again after the sum over ranks.
//! Tests: below; its size on the full model, made small, in `tests/meshes.rs`.

use super::relaxed;
use crate::{Compile, Kind, Level, PassError, PassInfo, canonicalise};
use ir::{
    Binary, DType, Extent, Graph, GraphBuilder, Module, Op, Placement, ReduceOp, Sharding, TensorType, Type, ValueId,
};
use std::collections::HashSet;

/// What the pass says about itself.
pub const INFO: PassInfo = PassInfo {
    name: "rank round",
    level: Level::Sharded,
    kind: Kind::Relaxed("rank-round"),
    why: "a sum over ranks waits for what makes it small",
};

/// Runs the pass.
pub fn run(module: &Module, compile: &Compile<'_>) -> Result<Module, PassError> {
    relaxed("rank-round", module, compile, |graph, module, sharding| {
        let mut current: Option<Graph> = None;
        // Each move or merge takes a sum over ranks later or away, so this ends; the bound is for what it might miss.
        for _ in 0..graph.len() {
            let at = current.as_ref().unwrap_or(graph);
            match moved(at, module, sharding).or_else(|| merged(at, sharding)) {
                Some(next) => current = Some(next),
                None => break,
            }
        }
        current
    })
}

/// The graph with one sum over ranks moved.
fn moved(graph: &Graph, module: &Module, sharding: &Sharding) -> Option<Graph> {
    let incomplete = incomplete(graph, module, sharding);
    for id in graph.ids().filter(|v| matches!(graph.node(*v).op, Op::AllReduce { .. })) {
        let chain = chain(graph, id, &incomplete);
        let sums = |at: usize| chain.iter().take(at + 1).any(|v| matches!(graph.node(*v).op, Op::Reduce { .. }));
        let here = bytes(graph, *graph.operands(id).first()?);
        let best = (1..chain.len()).filter(|at| sums(*at)).map(|at| (bytes(graph, chain[at]), at)).min();
        if let Some((fewer, at)) = best
            && fewer < here
        {
            return Some(rewritten(graph, id, &chain[1..=at]));
        }
    }
    None
}

/// The sum over ranks and what may stand before it instead, each the only user of the one before.
fn chain(graph: &Graph, id: ValueId, incomplete: &HashSet<ValueId>) -> Vec<ValueId> {
    let mut chain = vec![id];
    let mut last = id;
    while !graph.outputs.iter().any(|(_, v)| *v == last)
        && let [user] = graph.users(last)[..]
    {
        let passes = match &graph.node(user).op {
            Op::Round(_) | Op::Slice { .. } | Op::Reduce { op: ReduceOp::Sum, .. } => true,
            Op::Binary(Binary::Mul) => {
                let operands = graph.operands(user);
                operands.iter().filter(|o| **o == last).count() == 1
                    && operands.iter().all(|o| *o == last || !incomplete.contains(o))
            }
            op => op.is_view(),
        };
        if !passes {
            break;
        }
        chain.push(user);
        last = user;
    }
    chain
}

/// Values that differ between ranks of a group because a sum over ranks is still to come.
fn incomplete(graph: &Graph, module: &Module, sharding: &Sharding) -> HashSet<ValueId> {
    let placements = sharding.weights.iter().map(|w| &w.axes);
    let spread: HashSet<&String> = placements.flat_map(Placement::keys).collect();
    let is_part = |id: ValueId, axis: &String| {
        let whole = module.facts.dims.get(axis).copied().map(Extent::Fixed);
        let found = graph.tensor(id).and_then(|t| t.axes.iter().find(|a| a.name == *axis)).map(|a| a.extent);
        spread.contains(axis) && found != whole
    };
    let mut incomplete: HashSet<ValueId> = HashSet::new();
    for id in graph.ids() {
        let operands = graph.operands(id);
        let begins = match &graph.node(id).op {
            Op::Linear { contract, .. } => contract.iter().any(|axis| is_part(operands[0], axis)),
            Op::Own { .. } => true,
            _ => false,
        };
        let goes_on = operands.iter().any(|o| incomplete.contains(o)) && graph.node(id).op.exchanges().is_none();
        if begins || goes_on {
            incomplete.insert(id);
        }
    }
    incomplete
}

fn bytes(graph: &Graph, id: ValueId) -> u64 {
    graph.tensor(id).map_or(u64::MAX, |t| t.dtype.bytes_for(t.fixed_elements()))
}

/// The graph with the sum over ranks `id` behind `passed`, the operations that follow it.
fn rewritten(graph: &Graph, id: ValueId, passed: &[ValueId]) -> Graph {
    let mut copy = Copy::of(graph);
    for old in graph.ids() {
        if old == id {
            // The partial sum stands for the sum until the last of the operations that it passes.
            let operand = copy.operands(old)[0];
            copy.map.push(operand);
            continue;
        }
        let mut value = copy.node(old, passed.contains(&old));
        if passed.last() == Some(&old) {
            value = copy.completed(graph, old, value, graph.node(id).op.clone());
        }
        copy.finish_node(old, value);
    }
    copy.finish()
}

/// The graph with two sums over ranks that follow each other joined.
fn merged(graph: &Graph, sharding: &Sharding) -> Option<Graph> {
    for id in graph.ids() {
        let Op::AllReduce { over, order } = &graph.node(id).op else { continue };
        let mut inner = *graph.operands(id).first()?;
        if matches!(graph.node(inner).op, Op::Round(_)) && graph.users(inner).len() == 1 {
            inner = *graph.operands(inner).first()?;
        }
        let Op::AllReduce { over: before, .. } = &graph.node(inner).op else { continue };
        if graph.users(inner).len() != 1 || before.iter().any(|axis| over.contains(axis)) {
            continue;
        }
        let both = sharding.mesh.axes().map(|(axis, _)| axis.to_owned());
        let both: Vec<String> = both.filter(|axis| over.contains(axis) || before.contains(axis)).collect();
        let mut copy = Copy::of(graph);
        for old in graph.ids() {
            let value = if old == id {
                let operand = copy.map[graph.operands(inner)[0].0 as usize];
                let node = graph.node(old);
                let op = Op::AllReduce { over: both.clone(), order: order.clone() };
                copy.new.add(op, &[operand], node.ty.clone(), node.span)
            } else {
                copy.node(old, false)
            };
            copy.finish_node(old, value);
        }
        return Some(canonicalise::graph(&copy.finish(), true));
    }
    None
}

/// A graph being copied with changes.
struct Copy<'a> {
    graph: &'a Graph,
    new: GraphBuilder,
    map: Vec<ValueId>,
}

impl<'a> Copy<'a> {
    fn of(graph: &'a Graph) -> Self {
        Copy { graph, new: GraphBuilder::new(), map: Vec::new() }
    }

    fn operands(&self, old: ValueId) -> Vec<ValueId> {
        self.graph.operands(old).into_iter().map(|o| self.map[o.0 as usize]).collect()
    }

    /// The node itself; one that only moves data keeps the format of its operand, which may be another now.
    fn node(&mut self, old: ValueId, narrow: bool) -> ValueId {
        let node = self.graph.node(old);
        let operands = self.operands(old);
        let moves = node.op.is_view() || matches!(node.op, Op::Slice { .. });
        let found = operands.first().and_then(|o| self.new.graph().tensor(*o)).map(|t| t.dtype);
        let ty = match (&node.ty, found) {
            (Type::Tensor(ty), Some(dtype)) if narrow && moves => Type::Tensor(TensorType { dtype, ..ty.clone() }),
            (ty, _) => ty.clone(),
        };
        match &node.op {
            Op::Input(name) => self.new.input(name, ty),
            op => self.new.add(op.clone(), &operands, ty, node.span),
        }
    }

    /// The sum over ranks of a value, in the format that the old value has.
    fn completed(&mut self, graph: &Graph, old: ValueId, value: ValueId, op: Op) -> ValueId {
        let Some(ty) = self.new.graph().tensor(value).cloned() else { return value };
        let span = graph.node(old).span;
        let total = self.new.add(op, &[value], Type::Tensor(ty.with_dtype(DType::F32)), span);
        match graph.tensor(old) {
            Some(wanted) if wanted.dtype == DType::Bf16 => {
                self.new.add(Op::Round(DType::Bf16), &[total], Type::Tensor(wanted.clone()), span)
            }
            _ => total,
        }
    }

    fn finish_node(&mut self, old: ValueId, value: ValueId) {
        if let Some(name) = &self.graph.node(old).name {
            self.new.name(value, name);
        }
        self.map.push(value);
    }

    fn finish(mut self) -> Graph {
        self.new.order_inputs(self.graph.inputs.iter().map(|v| self.map[v.0 as usize]).collect());
        for (name, v) in &self.graph.outputs {
            self.new.output(name, self.map[v.0 as usize]);
        }
        self.new.finish()
    }
}

#[cfg(test)]
mod tests {
    const HEADER: &str = "module m act bf16 dim hidden = 4 dim experts = 4 dim expert_ffn = 4 dim picked = 2
        shard expert_ffn = [tp] shard experts = [ep]";

    /// Operations of the first graph after the pass, without leaves.
    fn relaxed(mesh: &str, values: &str, allowed: bool) -> (Vec<String>, String) {
        let text = format!(
            "{HEADER} mesh [{mesh}] place weight model d: expert_ffn over [tp]
            weight model d: bf16[experts, hidden, expert_ffn]
            entry e {{ graph first (%h, %f, %ids) -> (o = %o) {{ axes T = rows, expert_ffn = 2
            %h: bf16[T, picked, expert_ffn] = input h
            %f: f32[T, picked] = input f
            %ids: i32<experts>[T, picked] = input ids
            %d: bf16[experts, hidden, expert_ffn] = weight model d
            %p: f32[T, picked, hidden] = linear over [expert_ffn] order any (%h, %d, %ids)
            {values} }}
            graph last () -> () {{ }} }}"
        );
        super::super::testing::relaxed(&text, allowed.then_some("rank-round"), super::run)
    }

    const LIBRARY: &str = "%s: f32[T, picked, hidden] = all_reduce over [tp] order serial (%p)
        %y: bf16[T, picked, hidden] = round bf16 (%s)
        %w: f32[T, picked, hidden] = mul (%f, %y)
        %t: f32[T, hidden] = reduce sum over picked order fold (%w)
        %o: bf16[T, hidden] = round bf16 (%t)";

    #[test]
    fn the_sum_over_ranks_waits_for_the_sum_over_experts() {
        let (names, text) = relaxed("tp = 2", LIBRARY, true);
        assert_eq!(names, ["rank-round"]);
        let expected = "%p: f32[T, picked, hidden] = linear over [expert_ffn] order any (%h, %d, %ids)
%y: bf16[T, picked, hidden] = round bf16 (%p)
%w: f32[T, picked, hidden] = mul (%f, %y)
%t: f32[T, hidden] = reduce sum over picked order fold (%w)
%8: bf16[T, hidden] = round bf16 (%t)
%9: f32[T, hidden] = all_reduce over [tp] order serial (%8)
%o: bf16[T, hidden] = round bf16 (%9)";
        assert_eq!(text, expected);
    }

    #[test]
    fn two_sums_over_ranks_that_follow_each_other_become_one() {
        let values = "%s: f32[T, picked, hidden] = all_reduce over [tp] order serial (%p)
            %y: bf16[T, picked, hidden] = round bf16 (%s)
            %e: f32[T, picked, hidden] = all_reduce over [ep] order serial (%y)
            %w: f32[T, picked, hidden] = mul (%f, %e)
            %t: f32[T, hidden] = reduce sum over picked order fold (%w)
            %o: bf16[T, hidden] = round bf16 (%t)";
        let (_, text) = relaxed("tp = 2, ep = 2", values, true);
        assert_eq!(text.matches("all_reduce").count(), 1, "{text}");
        assert!(text.contains("all_reduce over [tp, ep] order serial"), "{text}");
    }

    #[test]
    fn what_has_another_user_or_no_sum_behind_it_stays() {
        let shared = LIBRARY.replace(
            "%o: bf16[T, hidden] = round bf16 (%t)",
            "%u: f32[T, hidden] = reduce sum over picked order fold (%s) %o: f32[T, hidden] = add (%t, %u)",
        );
        let alone = "%s: f32[T, picked, hidden] = all_reduce over [tp] order serial (%p)
            %o: bf16[T, picked, hidden] = round bf16 (%s)";
        for (values, allowed) in [(shared.as_str(), true), (alone, true), (LIBRARY, false)] {
            let (names, text) = relaxed("tp = 2", values, allowed);
            assert_eq!(names, [""; 0]);
            assert!(text.contains("%s: f32[T, picked, hidden] = all_reduce over [tp] order serial (%p)"), "{text}");
        }
    }
}
