//! What each operation demands of the axes of its operands and its result.

use super::axes::{Axes, Key, index_axis};
use ir::{DType, Extent, Graph, KvRef, Op, ReduceOp, Scope, ValueId, WeightRef};

/// One graph's variables.
pub(super) struct Walk<'a, 'm> {
    pub(super) axes: &'a mut Axes<'m>,
    pub(super) graph: &'a Graph,
    pub(super) number: usize,
    pub(super) entry: usize,
}

impl Walk<'_, '_> {
    fn fixed(&self, id: ValueId) -> Vec<(String, u64)> {
        let axes = self.graph.tensor(id).map(|t| t.axes.as_slice()).unwrap_or_default();
        let fixed = axes.iter().filter_map(|a| match a.extent {
            Extent::Fixed(n) => Some((a.name.clone(), n)),
            Extent::Rows => None,
        });
        fixed.collect()
    }

    fn var(&mut self, id: ValueId, axis: &str) -> Option<usize> {
        let (name, n) = self.fixed(id).into_iter().find(|(name, _)| name == axis)?;
        Some(self.axes.variable(Key::Value(self.number, id, name), n))
    }

    fn force(&mut self, id: ValueId, axis: &str) {
        if let Some(v) = self.var(id, axis) {
            self.axes.force(v);
        }
    }

    fn join(&mut self, a: (ValueId, &str), b: (ValueId, &str)) {
        if let (Some(x), Some(y)) = (self.var(a.0, a.1), self.var(b.0, b.1)) {
            self.axes.join(x, y);
        }
    }

    /// Axes of one name are one axis.
    fn through(&mut self, from: ValueId, to: ValueId, except: &[&str]) {
        for (name, _) in self.fixed(from) {
            if !except.contains(&name.as_str()) {
                self.join((from, &name), (to, &name));
            }
        }
    }

    fn all_whole(&mut self, id: ValueId) {
        for (name, _) in self.fixed(id) {
            self.force(id, &name);
        }
    }

    /// A name that graphs exchange has one placement.
    pub(super) fn exchanged(&mut self, name: &str, id: ValueId) {
        for (axis, n) in self.fixed(id) {
            let other = self.axes.variable(Key::Exchanged(self.entry, name.to_owned(), axis.clone()), n);
            if let Some(v) = self.var(id, &axis) {
                self.axes.join(v, other);
            }
        }
    }

    /// What one operation makes equal or whole; `made` are the names that graphs of the entry leave.
    pub(super) fn node(&mut self, id: ValueId, made: &[&str]) {
        let graph = self.graph;
        let operands = graph.operands(id);
        let first = operands.first().copied().unwrap_or(id);
        match &graph.node(id).op {
            // What the entry is given is whole on every rank.
            Op::Input(name) if !made.contains(&name.as_str()) => self.all_whole(id),
            Op::Input(name) => self.exchanged(name, id),
            Op::Weight(reference) => self.weight(id, reference),
            Op::Unary(_) | Op::Round(_) => self.through(first, id, &[]),
            Op::Binary(_) | Op::Fma | Op::Select => operands.iter().for_each(|o| self.through(*o, id, &[])),
            Op::Reduce { op, axis, .. } => {
                // The largest of all is the largest of the ranks' own.
                if *op == ReduceOp::Sum || graph.tensor(id).is_none_or(|ty| ty.dtype != DType::F32) {
                    self.force(first, axis);
                }
                self.through(first, id, &[axis]);
            }
            Op::BlockRound { over } => {
                over.iter().skip(1).for_each(|axis| self.force(first, axis));
                self.through(first, id, &[]);
            }
            Op::Top { axis, into, .. } => {
                self.force(first, axis);
                self.force(id, into);
                self.through(first, id, &[axis]);
            }
            Op::InTop { axis, .. } => {
                self.force(first, axis);
                self.through(first, id, &[]);
            }
            Op::Gather { axis } => {
                // What rows pick beside the slices of a product are numbers for its result, few: every rank has all of them.
                let beside = |ids: &ValueId| graph.users(*ids).into_iter().any(|u| picks_slices(graph, u, *ids));
                if index_axis(graph, id).is_none() || operands.get(1).is_some_and(beside) {
                    self.force(first, axis);
                }
                self.through(first, id, &[axis]);
                operands.iter().skip(1).for_each(|ids| self.through(*ids, id, &[]));
            }
            Op::Slice { axis, into, .. } => {
                self.force(first, axis);
                into.iter().for_each(|into| self.force(id, into));
                self.through(first, id, &[axis]);
            }
            Op::Concat { into } => {
                self.force(id, into);
                for operand in &operands {
                    if let Some((inner, _)) = self.fixed(*operand).last().cloned() {
                        self.force(*operand, &inner);
                        self.through(*operand, id, &[&inner]);
                    }
                }
            }
            Op::Split { axis } => self.view(first, axis, id),
            Op::Merge { into } => self.view(id, into, first),
            Op::Rename { from, to } => {
                self.join((first, from), (id, to));
                self.through(first, id, &[from]);
            }
            Op::Linear { contract, order } => self.linear(id, &operands, contract, order.is_open()),
            Op::Dot { axis, .. } => {
                for operand in &operands {
                    self.force(*operand, axis);
                    self.through(*operand, id, &[axis]);
                }
            }
            Op::Store { kv: KvRef::Kind(kind), .. } => self.store(&operands, kind),
            Op::Attend { .. } => {
                self.through(first, id, &[]);
                let heads = self.positions(&operands);
                for (_, (axis, _)) in self.fixed(first).into_iter().enumerate().filter(|(place, _)| *place != heads) {
                    self.force(first, &axis);
                }
            }
            _ => self.all_whole(id),
        }
    }

    /// Keys and values lie where their cache does.
    fn store(&mut self, operands: &[ValueId], kind: &str) {
        let heads = self.positions(operands);
        for operand in operands.iter().take(2) {
            for (place, (axis, n)) in self.fixed(*operand).into_iter().enumerate() {
                if place < heads {
                    self.force(*operand, &axis);
                    continue;
                }
                let cached = self.axes.variable(Key::Cached(kind.to_owned(), axis.clone()), n);
                if let Some(v) = self.var(*operand, &axis) {
                    self.axes.join(v, cached);
                }
                // Heads come first; what a head consists of stays together.
                if place > heads {
                    self.force(*operand, &axis);
                }
            }
        }
    }

    /// How many axes of a store or an attention stand before the heads: as many as its positions have, along a block.
    fn positions(&self, operands: &[ValueId]) -> usize {
        operands.get(2).map_or(0, |at| self.fixed(*at).len())
    }

    /// A product axis is spread as its outermost factor.
    fn view(&mut self, product: ValueId, axis: &str, factors: ValueId) {
        let whole: Vec<String> = self.fixed(product).into_iter().map(|a| a.0).filter(|a| a != axis).collect();
        let parts: Vec<String> = self.fixed(factors).into_iter().map(|a| a.0).filter(|a| !whole.contains(a)).collect();
        for (i, factor) in parts.iter().enumerate() {
            if i == 0 {
                self.join((product, axis), (factors, factor));
            } else {
                self.force(factors, factor);
            }
        }
        self.through(product, factors, &[axis]);
    }

    fn linear(&mut self, id: ValueId, operands: &[ValueId], contract: &[String], open: bool) {
        let [x, w, ids @ ..] = operands else { return };
        for (i, axis) in contract.iter().enumerate() {
            self.join((*x, axis), (*w, axis));
            // Parts of a sum are contiguous, so only the outermost axis can be cut; a sum in a fixed order cannot.
            if i > 0 || !open {
                self.force(*x, axis);
            }
        }
        let mut except: Vec<&str> = contract.iter().map(String::as_str).collect();
        self.through(*x, id, &except);
        let index = if ids.is_empty() { None } else { self.fixed(*w).first().map(|a| a.0.clone()) };
        if let Some(index) = &index {
            if index_axis(self.graph, id).is_none() {
                self.force(*w, index);
            }
            except.push(index);
        }
        self.through(*w, id, &except);
        ids.iter().for_each(|ids| self.through(*ids, id, &[]));
    }

    fn weight(&mut self, id: ValueId, reference: &WeightRef) {
        let names = match reference {
            WeightRef::Model(name) => vec![(Scope::Model, name)],
            WeightRef::Layer(name) | WeightRef::FirstLayer(name) | WeightRef::OfLayer { name, .. } => {
                vec![(Scope::Layer, name)]
            }
            WeightRef::Next { layer, last } => vec![(Scope::Layer, layer), (Scope::Model, last)],
            WeightRef::Packed { .. } => return self.all_whole(id),
        };
        for (scope, name) in names {
            for (axis, n) in self.fixed(id) {
                let weight = self.axes.variable(Key::Weight(scope, name.clone(), axis.clone()), n);
                if let Some(v) = self.var(id, &axis) {
                    self.axes.join(v, weight);
                }
            }
        }
    }
}

/// Whether the ids pick the slices of a product.
fn picks_slices(graph: &Graph, product: ValueId, ids: ValueId) -> bool {
    matches!(graph.node(product).op, Op::Linear { .. }) && graph.operands(product).get(2) == Some(&ids)
}
