//! The graph of one rank, from the graph of the whole model.

use super::axes::{Axes, index_axis, table_of};
use super::pending::{Pending, by_value};
use crate::PassError;
use crate::error::defect;
use ir::{Axis, DType, Extent, Graph, GraphBuilder, Node, Op, Order, TensorType, Type, ValueId};
use std::collections::HashMap;

/// Rewrites a graph; `results` says whether its outputs are the entry's.
pub(super) fn local(
    graph: &Graph,
    number: usize,
    axes: &Axes<'_>,
    pending: &[Pending],
    results: bool,
) -> Result<Graph, PassError> {
    let complete = by_value(pending);
    let mut rewriter =
        Rewriter { old: graph, number, axes, new: GraphBuilder::new(), map: Vec::new(), owned: HashMap::new() };
    for id in graph.ids() {
        let mut value = rewriter.operation(id)?;
        for (index, sum, own) in complete.get(&id).into_iter().flatten() {
            let Some(p) = pending.get(*index) else { continue };
            value = rewriter.complete(id, value, p, *sum, *own);
        }
        if let Some(name) = &graph.node(id).name {
            rewriter.new.name(value, name);
        }
        rewriter.map.push(value);
    }
    let inputs = graph.inputs.iter().map(|v| rewriter.at(*v)).collect::<Result<Vec<_>, _>>()?;
    rewriter.new.order_inputs(inputs);
    for (name, id) in &graph.outputs {
        let value = if results { rewriter.gathered(*id)? } else { rewriter.at(*id)? };
        rewriter.new.output(name, value);
    }
    Ok(rewriter.new.finish())
}

struct Rewriter<'a> {
    old: &'a Graph,
    number: usize,
    axes: &'a Axes<'a>,
    new: GraphBuilder,
    /// New values by old id.
    map: Vec<ValueId>,
    /// Own parts of ids, by ids and axis.
    owned: HashMap<(ValueId, String), ValueId>,
}

impl Rewriter<'_> {
    fn at(&self, id: ValueId) -> Result<ValueId, PassError> {
        self.map.get(id.0 as usize).copied().ok_or_else(|| defect(format!("{id} is used before it is made")))
    }

    /// The type of a value on one rank.
    fn local_type(&self, id: ValueId) -> Type {
        match &self.old.node(id).ty {
            Type::Tensor(ty) => Type::Tensor(self.local_tensor(id, ty)),
            other => other.clone(),
        }
    }

    fn local_tensor(&self, id: ValueId, ty: &TensorType) -> TensorType {
        let axis = |a: &Axis| match a.extent {
            Extent::Fixed(n) => {
                let parts = self.axes.parts(self.axes.of(self.number, id, &a.name));
                // Where there are more ranks than entries, neighbours share one.
                Axis::fixed(a.name.clone(), if n.is_multiple_of(parts) { n / parts } else { 1 })
            }
            Extent::Rows => a.clone(),
        };
        TensorType { axes: ty.axes.iter().map(axis).collect(), ..ty.clone() }
    }

    /// The operation itself, on the rank's parts.
    fn operation(&mut self, id: ValueId) -> Result<ValueId, PassError> {
        let node = self.old.node(id);
        let mut operands = self.old.operands(id).into_iter().map(|o| self.at(o)).collect::<Result<Vec<_>, _>>()?;
        if let Some(axis) = index_axis(self.old, id) {
            let over = self.axes.of(self.number, table_of(self.old, id), &axis).to_vec();
            if !over.is_empty()
                && let Some(ids) = operands.last_mut()
            {
                *ids = self.own(*ids, axis, over);
            }
        }
        let ty = self.local_type(id);
        Ok(match &node.op {
            Op::Input(name) => self.new.input(name, ty),
            op => self.new.add(op.clone(), &operands, ty, node.span),
        })
    }

    fn own(&mut self, ids: ValueId, axis: String, over: Vec<String>) -> ValueId {
        if let Some(own) = self.owned.get(&(ids, axis.clone())) {
            return *own;
        }
        let Node { ty, span, .. } = self.new.graph().node(ids).clone();
        let ty = match ty {
            Type::Tensor(t) => Type::Tensor(TensorType { indexes: Some(axis.clone()), ..t }),
            other => other,
        };
        let own = self.new.add(Op::Own { axis: axis.clone(), over }, &[ids], ty, span);
        if let Some(name) = self.new.graph().node(ids).name.clone() {
            self.new.name(own, &format!("{name}.own"));
        }
        self.owned.insert((ids, axis), own);
        own
    }

    /// Adds over ranks what is incomplete, and gives the value its format back.
    fn complete(&mut self, id: ValueId, value: ValueId, pending: &Pending, sum: bool, own: bool) -> ValueId {
        let named = |axis: &&str| (sum && pending.sum.iter().any(|a| a == axis)) || (own && pending.own.iter().any(|a| a == axis));
        let over: Vec<String> = self.axes.mesh().axes().map(|(a, _)| a).filter(named).map(str::to_owned).collect();
        if over.is_empty() {
            return value;
        }
        let span = self.old.node(id).span;
        let Type::Tensor(ty) = self.new.graph().node(value).ty.clone() else { return value };
        let wide = Type::Tensor(ty.with_dtype(DType::F32));
        let total = self.new.add(Op::AllReduce { over, order: Order::Serial }, &[value], wide, span);
        if ty.dtype == DType::F32 {
            return total;
        }
        // One rank had the value and the others -0, so the sum is a number of the narrow format.
        self.new.add(Op::Round(ty.dtype), &[total], Type::Tensor(ty), span)
    }

    /// The whole value on every rank.
    fn gathered(&mut self, id: ValueId) -> Result<ValueId, PassError> {
        let mut value = self.at(id)?;
        let node = self.old.node(id);
        let Some(ty) = self.old.tensor(id) else { return Ok(value) };
        for axis in &ty.axes {
            let over = self.axes.of(self.number, id, &axis.name).to_vec();
            if over.is_empty() {
                continue;
            }
            let Type::Tensor(mut whole) = self.new.graph().node(value).ty.clone() else { return Ok(value) };
            whole.axes.iter_mut().filter(|a| a.name == axis.name).for_each(|a| *a = axis.clone());
            let op = Op::AllGather { axis: axis.name.clone(), over, into: axis.name.clone() };
            value = self.new.add(op, &[value], Type::Tensor(whole), node.span);
            if let Some(name) = &node.name {
                self.new.name(value, &format!("{name}.whole"));
            }
        }
        Ok(value)
    }
}
