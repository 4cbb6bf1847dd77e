//! Probes: a form of a sharded level in which rounding points and the order of a sum over ranks leave no trace.
//!
//! ```text
//! round bf16 (x)          round f32 (x)
//! linear (x, W)      ─►   linear (x to a multiple of 1/4, at most 4; W of multiples of 1/8)
//! mul (f, partial)        mul (f to 3 bits, partial)
//! ```
//!
//! A relaxation may move roundings and sums over ranks, so its size on ordinary numbers says nothing about a term that is
//! lost or counted twice. In this form it must change no number at all: nothing narrows, and what stands between a product
//! of weights and the sum over ranks that completes it is exact in binary32, so every order gives the same. Terms of such a
//! product are multiples of 1/32; sums of a small model's few dozen of them stay below 2^8, two factors of three bits and
//! a sum over picked experts add about eight bits more: 24 bits hold that. What is computed from complete values need not
//! be exact, because it is the same operation on the same number.
//!
//! Quantised inputs are made exact too: a scale found from a largest magnitude becomes a power of two, blocks are a quotient by
//! the checkpoint's number, which is a power of two here, and it is what is quantised that becomes a multiple of a step.
//!
//! The factors are found without asking the pass: a value that is multiplied with what comes of a product of weights that a
//! sum over ranks completes, before or after it is completed, and that does not depend on that product itself.

use ir::{Binary, Class, DType, Entry, Graph, GraphBuilder, Module, Op, ReduceOp, TensorType, Type, ValueId};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Steps of an operand of a product per 1, and its largest size.
const OPERAND: (f32, f32) = (4.0, 4.0);
/// Steps of a weight per 1.
pub(super) const WEIGHT_STEPS: f32 = 8.0;
/// Splits a number of 24 bits after the third: 2^21 + 1.
const SHORT: f32 = 2_097_153.0;
/// The same after the first: 2^23 + 1.
const SHORTEST: f32 = 8_388_609.0;

/// A level as a probe.
pub(super) fn of(module: &Module) -> Module {
    let entry = |e: &Entry| Entry {
        first: graph(&e.first),
        classes: e.classes.iter().map(|c| Class { graph: graph(&c.graph), ..c.clone() }).collect(),
        last: graph(&e.last),
        ..e.clone()
    };
    let mut probe = module.with_entries(module.entries.iter().map(entry).collect());
    probe.facts.weights.iter_mut().for_each(|w| w.dtype = wide(w.dtype));
    probe
}

pub(super) fn wide(dtype: DType) -> DType {
    if dtype.is_float() { DType::F32 } else { dtype }
}

fn graph(graph: &Graph) -> Graph {
    let factors = factors(graph);
    let coarse = operands_of_products(graph);
    let mut probe = Writer { new: GraphBuilder::new(), short: HashMap::new(), coarse: HashMap::new() };
    let mut copies: Vec<ValueId> = Vec::with_capacity(graph.len());
    for id in graph.ids() {
        let node = graph.node(id);
        let mut operands: Vec<ValueId> = graph.operands(id).iter().map(|v| copies[v.0 as usize]).collect();
        for (slot, operand) in operands.iter_mut().enumerate() {
            if coarse.contains(&(id, slot)) {
                *operand = probe.coarse(*operand);
            } else if factors.contains(&(id, slot)) {
                *operand = probe.short(*operand, SHORT);
            }
        }
        let ty = match &node.ty {
            Type::Tensor(ty) => Type::Tensor(ty.with_dtype(wide(ty.dtype))),
            other => other.clone(),
        };
        let copy = match &node.op {
            Op::Input(name) => probe.new.input(name, ty),
            Op::Round(dtype) => probe.new.add(Op::Round(wide(*dtype)), &operands, ty, node.span),
            Op::BlockRound { .. } => probe.new.add(Op::Binary(Binary::Div), &operands, ty, node.span),
            op => probe.new.add(op.clone(), &operands, ty, node.span),
        };
        let copy = if is_found_scale(graph, id) { probe.power_of_two(copy) } else { copy };
        if let Some(name) = &node.name {
            probe.new.name(copy, name);
        }
        copies.push(copy);
    }
    probe.new.order_inputs(graph.inputs.iter().map(|v| copies[v.0 as usize]).collect());
    for (name, id) in &graph.outputs {
        probe.new.output(name, copies[id.0 as usize]);
    }
    probe.new.finish()
}

struct Writer {
    new: GraphBuilder,
    short: HashMap<ValueId, ValueId>,
    coarse: HashMap<ValueId, ValueId>,
}

impl Writer {
    fn number(&mut self, x: f32) -> ValueId {
        self.new.add(Op::Literal(vec![x]), &[], Type::Tensor(TensorType::scalar(DType::F32)), None)
    }

    fn binary(&mut self, f: Binary, a: ValueId, b: ValueId, ty: &TensorType) -> ValueId {
        self.new.add(Op::Binary(f), &[a, b], Type::Tensor(ty.clone()), None)
    }

    fn floats(&self, id: ValueId) -> Option<TensorType> {
        self.new.graph().tensor(id).filter(|ty| ty.dtype == DType::F32).map(|ty| ty.with_dtype(DType::F32))
    }

    /// The nearest multiple of a step, of bounded size: adding and taking away a number whose last bit is the step.
    fn coarse(&mut self, x: ValueId) -> ValueId {
        if let Some(known) = self.coarse.get(&x) {
            return *known;
        }
        let Some(ty) = self.floats(x) else { return x };
        let (steps, most) = OPERAND;
        let (above, below, shift) = (self.number(most), self.number(-most), self.number(1.5 * 8_388_608.0 / steps));
        let mut y = self.binary(Binary::Min, x, above, &ty);
        y = self.binary(Binary::Max, y, below, &ty);
        y = self.binary(Binary::Add, y, shift, &ty);
        y = self.binary(Binary::Sub, y, shift, &ty);
        self.coarse.insert(x, y);
        y
    }

    /// A power of two from the number on, below four times of it.
    fn power_of_two(&mut self, x: ValueId) -> ValueId {
        let Some(ty) = self.floats(x) else { return x };
        let two = self.number(2.0);
        let twice = self.binary(Binary::Mul, x, two, &ty);
        self.short(twice, SHORTEST)
    }

    /// The leading bits that a splitting constant leaves.
    fn short(&mut self, x: ValueId, constant: f32) -> ValueId {
        if let Some(known) = self.short.get(&x) {
            return *known;
        }
        let Some(ty) = self.floats(x) else { return x };
        let by = self.number(constant);
        let wide = self.binary(Binary::Mul, x, by, &ty);
        let rest = self.binary(Binary::Sub, wide, x, &ty);
        let y = self.binary(Binary::Sub, wide, rest, &ty);
        self.short.insert(x, y);
        y
    }
}

/// Where what products take in becomes a multiple of a step: in the product itself, or in what quantises, which may stand in
/// the graph before. Rows of a cache are quantised too, and are no products' inputs.
fn operands_of_products(graph: &Graph) -> HashSet<(ValueId, usize)> {
    let narrow = |id: ValueId| graph.tensor(id).is_some_and(|ty| ty.dtype.is_narrow());
    let cached = |id: ValueId| graph.users(id).iter().any(|u| matches!(graph.node(*u).op, Op::Store { .. }));
    let place = |id: ValueId| match &graph.node(id).op {
        Op::Linear { .. } => graph.operands(id).first().filter(|x| !narrow(**x)).map(|_| (id, 0)),
        Op::BlockRound { .. } => Some((id, 0)),
        Op::Round(dtype) if dtype.is_narrow() && !cached(id) => {
            let scaled = graph.operands(id).first().copied()?;
            let axes = graph.tensor(scaled).map(|t| t.axes.len());
            let is_whole = |o: &ValueId| graph.tensor(*o).map(|t| t.axes.len()) == axes;
            let slot = graph.operands(scaled).iter().position(is_whole)?;
            Some((scaled, slot))
        }
        _ => None,
    };
    graph.ids().filter_map(place).collect()
}

/// Whether a value is a scale found from a largest magnitude: it over a number of the graph.
fn is_found_scale(graph: &Graph, id: ValueId) -> bool {
    let operands = graph.operands(id);
    let op = |slot: usize| operands.get(slot).map(|v| &graph.node(*v).op);
    matches!(graph.node(id).op, Op::Binary(Binary::Div))
        && matches!(op(0), Some(Op::Reduce { op: ReduceOp::Max, .. }))
        && matches!(op(1), Some(Op::Literal(_)))
}

/// Factors of products with what a sum over ranks completes: the product and the place of the factor in it.
fn factors(graph: &Graph) -> HashSet<(ValueId, usize)> {
    let reached = completed(graph);
    // For each value: the products that it is linear in, and all that it depends on.
    let mut linear: Vec<BTreeSet<ValueId>> = Vec::with_capacity(graph.len());
    let mut depends: Vec<BTreeSet<ValueId>> = Vec::with_capacity(graph.len());
    let mut factors = HashSet::new();
    for id in graph.ids() {
        let operands = graph.operands(id);
        let joined = |sets: &[BTreeSet<ValueId>]| -> BTreeSet<ValueId> {
            operands.iter().filter_map(|v| sets.get(v.0 as usize)).flatten().copied().collect()
        };
        let (mut own, mut all) = (BTreeSet::new(), joined(&depends));
        if is_linear(&graph.node(id).op) {
            own = joined(&linear);
        }
        if let (Op::Binary(Binary::Mul), [a, b]) = (&graph.node(id).op, operands.as_slice()) {
            for (slot, factor, other) in [(0, a, b), (1, b, a)] {
                let of = &linear[other.0 as usize];
                if !of.is_empty() && of.is_disjoint(&depends[factor.0 as usize]) {
                    factors.insert((id, slot));
                }
            }
        }
        if reached.contains(&id) {
            own.insert(id);
            all.insert(id);
        }
        linear.push(own);
        depends.push(all);
    }
    // Two products with each other: neither is a factor, for either may be the part of a sum.
    let both = |(id, slot): &(ValueId, usize)| factors.contains(&(*id, 1 - slot));
    factors.iter().filter(|f| !both(f)).copied().collect()
}

/// Products of weights that a sum over ranks completes.
fn completed(graph: &Graph) -> HashSet<ValueId> {
    let mut found = HashSet::new();
    let sums = |v: &ValueId| matches!(graph.node(*v).op, Op::AllReduce { .. } | Op::ReduceScatter { .. });
    let mut open: Vec<ValueId> = graph.ids().filter(sums).collect();
    let mut seen: HashSet<ValueId> = open.iter().copied().collect();
    while let Some(id) = open.pop() {
        for operand in graph.operands(id) {
            if matches!(graph.node(operand).op, Op::Linear { .. }) {
                found.insert(operand);
            } else if is_linear(&graph.node(operand).op) && seen.insert(operand) {
                open.push(operand);
            }
        }
    }
    found
}

/// Whether a sum over ranks may stand before or after an operation, but for roundings and order.
fn is_linear(op: &Op) -> bool {
    match op {
        Op::Round(_) | Op::Slice { .. } | Op::Reduce { op: ReduceOp::Sum, .. } | Op::Binary(Binary::Mul) => true,
        Op::AllReduce { .. } | Op::ReduceScatter { .. } => true,
        op => op.is_view(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn operands_and_factors_are_short_and_nothing_narrows() {
        let text = "module m act bf16 dim hidden = 4 dim ffn = 8 shard ffn = [tp] mesh [tp = 2]
            weight model down: bf16[hidden, ffn]
            entry e { graph first (%h, %f) -> (y = %y) { axes T = rows, ffn = 4
            %h: bf16[T, ffn] = input h
            %f: f32[T] = input f
            %d: bf16[hidden, ffn] = weight model down
            %p: f32[T, hidden] = linear over [ffn] order any (%h, %d)
            %r: bf16[T, hidden] = round bf16 (%p)
            %m: f32[T, hidden] = mul (%f, %r)
            %s: f32[T, hidden] = all_reduce over [tp] order serial (%m)
            %q: f32[T, hidden] = mul (%s, %s)
            %y: bf16[T, hidden] = round bf16 (%q) }
            graph last () -> () { } }";
        let module = ir::parse_module(text).expect("a module");
        let probe = super::of(&module);
        let text = ir::print_module(&probe, false);
        assert!(!text.contains("bf16[") && !text.contains("round bf16"), "{text}");
        let graph = &probe.entries[0].first;
        let of = |name: &str, slot: usize| {
            let id = graph.find(name).expect("a value");
            let operand = graph.operands(id)[slot];
            graph.node(operand).name.clone()
        };
        // The operand of the product and the factor go through operations without names; a square has no factor.
        assert_eq!((of("p", 0), of("m", 0)), (None, None), "{text}");
        assert_eq!((of("p", 1).as_deref(), of("m", 1).as_deref()), (Some("d"), Some("r")));
        assert_eq!((of("q", 0).as_deref(), of("q", 1).as_deref()), (Some("s"), Some("s")));
    }

    #[test]
    fn short_numbers_are_what_they_are_said_to_be() {
        let coarse = |x: f32| (x.clamp(-4.0, 4.0) + 1.5 * 2_097_152.0) - 1.5 * 2_097_152.0;
        for (x, wanted) in [(0.3, 0.25), (-1.9, -2.0), (100.0, 4.0), (0.1, 0.0)] {
            assert_eq!(coarse(x), wanted);
        }
        let (steps, most) = super::OPERAND;
        assert_eq!((1.5 * 8_388_608.0 / steps, most), (1.5 * 2_097_152.0, 4.0));
        for (x, wanted) in [(0.3f32, 0.3125), (1.1, 1.0), (-7.9, -8.0)] {
            let wide = x * super::SHORT;
            assert_eq!(wide - (wide - x), wanted);
        }
        for (x, wanted) in [(1.0f32, 2.0), (1.4, 2.0), (1.5, 4.0), (1.9, 4.0), (0.0, 0.0)] {
            let wide = 2.0 * x * super::SHORTEST;
            assert_eq!(wide - (wide - 2.0 * x), wanted);
        }
    }
}
