//! The graph of one rank, from the graph of the whole model.

use super::axes::{Axes, index_axis, table_of};
use super::error;
use super::pending::{Pending, by_value};
use super::rows_back::over_rows;
use crate::PassError;
use crate::error::defect;
use ir::ValueId;
use ir::{ALL_ROWS, Axis, Binary, DType, Extent, Graph, GraphBuilder, Node, Op, Order, ReduceOp, TensorType, Type};
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
    let mut rewriter = Rewriter {
        old: graph,
        number,
        axes,
        new: GraphBuilder::new(),
        map: Vec::new(),
        owned: HashMap::new(),
        joined: HashMap::new(),
    };
    let owners = |id: &ValueId| -> Vec<String> {
        let of = pending.iter().filter(|p| p.maxima.contains(id));
        of.flat_map(|p| p.own.iter().cloned()).collect()
    };
    for id in graph.ids() {
        let mut value = rewriter.operation(id)?;
        value = rewriter.largest(id, value, &owners(&id))?;
        for (index, sum, own) in complete.get(&id).into_iter().flatten() {
            let Some(p) = pending.get(*index) else { continue };
            value = rewriter.complete(id, value, p, *sum, *own)?;
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
        if rewriter.has_all_rows(value) {
            let what = format!("`{name}` leaves a graph with the rows of all of them");
            return Err(error::rows_apart(&what, axes.rows(), graph.node(*id).span));
        }
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
    /// Values with the rows of all ranks, by those with a rank's own.
    joined: HashMap<ValueId, ValueId>,
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
        let all_rows = self.sees_all_rows(id, &operands)?;
        if all_rows {
            operands = operands.into_iter().map(|o| self.all_rows(o)).collect();
        }
        if let Some(axis) = index_axis(self.old, id) {
            let over = self.axes.of(self.number, table_of(self.old, id), &axis).to_vec();
            if !over.is_empty()
                && let Some(ids) = operands.last_mut()
            {
                *ids = self.own(*ids, axis, over);
            }
        }
        let ty = match self.local_type(id) {
            Type::Tensor(ty) if all_rows => Type::Tensor(with_all_rows(&ty)),
            ty => ty,
        };
        Ok(match &node.op {
            Op::Input(name) => self.new.input(name, ty),
            op => self.new.add(op.clone(), &operands, ty, node.span),
        })
    }

    /// Whether an operation works on the rows of all ranks: a product with a weight that is spread over the mesh axes of
    /// the rows does, so does what has rows and an axis that is spread over them, and what follows until a sum over ranks
    /// brings the rows back.
    fn sees_all_rows(&self, id: ValueId, operands: &[ValueId]) -> Result<bool, PassError> {
        let rows = self.axes.rows();
        if rows.is_empty() {
            return Ok(false);
        }
        let node = self.old.node(id);
        let apart = |what: &str| error::rows_apart(what, rows, node.span);
        if let Some(over) = over_rows(self.old, self.number, id, self.axes) {
            return if over.starts_with(rows) { Ok(true) } else { Err(apart("a weight is spread over part of them")) };
        }
        if !operands.iter().any(|o| self.has_all_rows(*o)) {
            return Ok(false);
        }
        match &node.op {
            Op::Store { .. } | Op::Attend { .. } => Err(apart("a cache holds only those of the rank's own sequences")),
            Op::Gather { axis }
                if self
                    .old
                    .operands(id)
                    .first()
                    .and_then(|x| self.old.tensor(*x))
                    .is_some_and(|t| t.row_axes().any(|row| row == axis)) =>
            {
                Err(apart("rows are picked by their number on one rank"))
            }
            _ => Ok(true),
        }
    }

    fn has_all_rows(&self, value: ValueId) -> bool {
        self.new.graph().tensor(value).is_some_and(|t| t.row_axes().any(|row| row.ends_with(ALL_ROWS)))
    }

    /// The value with the rows of all ranks.
    fn all_rows(&mut self, value: ValueId) -> ValueId {
        if let Some(joined) = self.joined.get(&value) {
            return *joined;
        }
        let node = self.new.graph().node(value).clone();
        let Type::Tensor(ty) = &node.ty else { return value };
        let Some(axis) = ty.row_axes().next().filter(|row| !row.ends_with(ALL_ROWS)).map(str::to_owned) else {
            return value;
        };
        let op = Op::AllGather { over: self.axes.rows().to_vec(), into: format!("{axis}{ALL_ROWS}"), axis };
        let joined = self.new.add(op, &[value], Type::Tensor(with_all_rows(ty)), node.span);
        if let Some(name) = &node.name {
            self.new.name(joined, &format!("{name}{ALL_ROWS}"));
        }
        self.joined.insert(value, joined);
        joined
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
    fn complete(
        &mut self,
        id: ValueId,
        value: ValueId,
        pending: &Pending,
        sum: bool,
        own: bool,
    ) -> Result<ValueId, PassError> {
        let named = |axis: &&str| {
            (sum && pending.sum.iter().any(|a| a == axis)) || (own && pending.own.iter().any(|a| a == axis))
        };
        let over: Vec<String> = self.axes.mesh().axes().map(|(a, _)| a).filter(named).map(str::to_owned).collect();
        let Type::Tensor(ty) = self.new.graph().node(value).ty.clone() else { return Ok(value) };
        let span = self.old.node(id).span;
        let (back, over): (Vec<String>, Vec<String>) =
            over.into_iter().partition(|axis| self.axes.rows().contains(axis));
        let mut wide = ty.with_dtype(DType::F32);
        let mut total = value;
        if !over.is_empty() {
            let op = Op::AllReduce { over, order: Order::Serial };
            total = self.new.add(op, &[total], Type::Tensor(wide.clone()), span);
        }
        if !back.is_empty() {
            let joined =
                ty.row_axes().next().and_then(|row| Some((row.to_owned(), row.strip_suffix(ALL_ROWS)?.to_owned())));
            let (from, into) =
                joined.ok_or_else(|| error::rows_apart("a sum over them has no rows", self.axes.rows(), span))?;
            wide.axes.iter_mut().filter(|a| a.name == from).for_each(|a| a.name.clone_from(&into));
            let op = Op::ReduceScatter { axis: from, over: self.axes.rows().to_vec(), into };
            total = self.new.add(op, &[total], Type::Tensor(wide.clone()), span);
        }
        if ty.dtype == DType::F32 {
            return Ok(total);
        }
        // One rank had the value and the others -0, so the sum is a number of the narrow format.
        Ok(self.new.add(Op::Round(ty.dtype), &[total], Type::Tensor(wide.with_dtype(ty.dtype)), span))
    }

    /// The largest over ranks, of what each has found along its part of an axis or in the rows that it owns.
    fn largest(&mut self, id: ValueId, value: ValueId, owners: &[String]) -> Result<ValueId, PassError> {
        let Op::Reduce { op: ReduceOp::Max, axis, .. } = &self.old.node(id).op else { return Ok(value) };
        let operand = self.old.operands(id).first().copied().ok_or_else(|| defect(format!("{id} reduces nothing")))?;
        let spread = self.axes.of(self.number, operand, axis);
        let named = |mesh: &&str| spread.iter().chain(owners).any(|a| a == mesh);
        let over: Vec<String> = self.axes.mesh().axes().map(|(a, _)| a).filter(named).map(str::to_owned).collect();
        let Type::Tensor(ty) = self.new.graph().node(value).ty.clone() else { return Ok(value) };
        if over.is_empty() {
            return Ok(value);
        }
        let span = self.old.node(id).span;
        let ranks = format!("{axis}.rank");
        let with = |n: u64| {
            let axes = ty.axes.iter().cloned().chain([Axis::fixed(ranks.clone(), n)]).collect();
            Type::Tensor(TensorType::new(DType::F32, axes))
        };
        let one = Type::Tensor(TensorType::new(DType::F32, vec![Axis::fixed(ranks.clone(), 1)]));
        let least = self.new.add(Op::Literal(vec![f32::NEG_INFINITY]), &[], one, None);
        let own = self.new.add(Op::Binary(Binary::Max), &[value, least], with(1), span);
        let parts = self.axes.parts(&over);
        let gather = Op::AllGather { axis: ranks.clone(), over, into: ranks.clone() };
        let all = self.new.add(gather, &[own], with(parts), span);
        let largest = Op::Reduce { op: ReduceOp::Max, axis: ranks, order: Order::Fold };
        Ok(self.new.add(largest, &[all], Type::Tensor(ty), span))
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

fn with_all_rows(ty: &TensorType) -> TensorType {
    let axis = |a: &Axis| {
        if a.is_rows() && !a.name.ends_with(ALL_ROWS) { Axis::rows(format!("{}{ALL_ROWS}", a.name)) } else { a.clone() }
    };
    TensorType { axes: ty.axes.iter().map(axis).collect(), ..ty.clone() }
}
