//! The witness of a sharding: the old graph for one device, its open sums in the order that the ranks add in.
//!
//! A partial sum that is completed before anything but views and cuts is the sum in the order `split P any`. One that
//! passes a product or another sum is written out: the operations from the product of weights on stand once per part, on
//! that part of the contracted axis and with the ids of that part of the table, and the parts' results are added one after the other. Nothing else
//! of the old graph changes; `validate/allowed.rs` checks that without asking this file.

use super::axes::{Axes, index_axis, table_of};
use super::pending::Pending;
use crate::PassError;
use crate::error::defect;
use ir::{Axis, Binary, DType, Extent, Graph, GraphBuilder, Op, Order, TensorType, Type, ValueId};
use std::collections::{HashMap, HashSet};

/// A sum over ranks that stands behind a product or another sum.
struct Unrolled<'p> {
    pending: &'p Pending,
    /// Mesh axes of the parts, in the order of the mesh.
    over: Vec<String>,
    /// Whether the contracted axis is cut, and whether the table is.
    sum: bool,
    own: bool,
}

/// The witness of one graph.
pub(super) fn of(graph: &Graph, axes: &Axes<'_>, pending: &[Pending]) -> Result<Graph, PassError> {
    let mut unrolled: HashMap<ValueId, Unrolled<'_>> = HashMap::new();
    let mut inside: HashSet<ValueId> = HashSet::new();
    let mut split: HashMap<ValueId, Order> = HashMap::new();
    for p in pending {
        let sum_late = !p.sum.is_empty() && p.reorders(graph, p.sum_at);
        let own_late = p.own_at.filter(|at| !p.own.is_empty() && p.reorders(graph, *at));
        if !p.sum.is_empty() && !sum_late {
            split.insert(p.origin, in_parts(axes, &p.sum));
        }
        let at = match (sum_late, own_late) {
            (true, own) => own.map_or(p.sum_at, |own| own.max(p.sum_at)),
            (false, Some(own)) => own,
            (false, None) => continue,
        };
        let own = own_late.is_some();
        let named =
            |axis: &&str| (sum_late && p.sum.iter().any(|a| a == axis)) || (own && p.own.iter().any(|a| a == axis));
        let over = axes.mesh().axes().map(|(a, _)| a).filter(named).map(str::to_owned).collect();
        inside.extend(&p.chain[..at]);
        unrolled.insert(p.chain[at], Unrolled { pending: p, over, sum: sum_late, own });
    }
    let mut writer = Writer { old: graph, axes, new: GraphBuilder::new(), map: HashMap::new(), split };
    for id in graph.ids().filter(|v| !inside.contains(v)) {
        let value = match unrolled.get(&id) {
            Some(u) => writer.unrolled(id, u)?,
            None => writer.copy(id)?,
        };
        if let Some(name) = &graph.node(id).name {
            writer.new.name(value, name);
        }
        writer.map.insert(id, value);
    }
    let inputs = graph.inputs.iter().map(|v| writer.at(*v)).collect::<Result<Vec<_>, _>>()?;
    writer.new.order_inputs(inputs);
    for (name, id) in &graph.outputs {
        let value = writer.at(*id)?;
        writer.new.output(name, value);
    }
    Ok(writer.new.finish())
}

struct Writer<'a> {
    old: &'a Graph,
    axes: &'a Axes<'a>,
    new: GraphBuilder,
    map: HashMap<ValueId, ValueId>,
    /// Products whose sum is cut, and how.
    split: HashMap<ValueId, Order>,
}

impl Writer<'_> {
    fn at(&self, id: ValueId) -> Result<ValueId, PassError> {
        self.map.get(&id).copied().ok_or_else(|| defect(format!("{id} is used before it is made")))
    }

    fn op(&self, id: ValueId) -> Op {
        let mut op = self.old.node(id).op.clone();
        if let (Some(split), Some(order)) = (self.split.get(&id), op.order_mut()) {
            *order = split.closed(order);
        }
        op
    }

    fn copy(&mut self, id: ValueId) -> Result<ValueId, PassError> {
        let node = self.old.node(id);
        if let Op::Input(name) = &node.op {
            return Ok(self.new.input(name, node.ty.clone()));
        }
        let operands = self.old.operands(id).into_iter().map(|o| self.at(o)).collect::<Result<Vec<_>, _>>()?;
        Ok(self.new.add(self.op(id), &operands, node.ty.clone(), node.span))
    }

    /// The value as a sum of its parts.
    fn unrolled(&mut self, id: ValueId, u: &Unrolled<'_>) -> Result<ValueId, PassError> {
        let chain: Vec<ValueId> = u.pending.chain.iter().copied().take_while(|v| *v != id).chain([id]).collect();
        let mesh = self.axes.mesh();
        // The ranks of one group: those that have coordinate 0 outside it. Rows go back to their ranks last, so the sums over
        // the other axes come first.
        let (outer, inner): (Vec<String>, Vec<String>) =
            u.over.iter().cloned().partition(|axis| self.axes.rows().contains(axis));
        let mut total: Option<ValueId> = None;
        for outer_rank in mesh.group(0, &outer) {
            let mut group: Option<ValueId> = None;
            for rank in mesh.group(outer_rank, &inner) {
                let mut part =
                    self.origin_part(u, mesh.place(rank, &u.pending.sum), mesh.place(rank, &u.pending.own))?;
                for pair in chain.windows(2) {
                    let node = self.old.node(pair[1]);
                    let operands = self.old.operands(pair[1]).into_iter();
                    let operands = operands.map(|o| if o == pair[0] { Ok(part) } else { self.at(o) });
                    let operands = operands.collect::<Result<Vec<_>, _>>()?;
                    part = self.new.add(node.op.clone(), &operands, node.ty.clone(), node.span);
                }
                group = Some(self.added(id, group, part)?);
            }
            let group = group.ok_or_else(|| defect("a group without ranks"))?;
            total = Some(self.added(id, total, group)?);
        }
        let total = total.ok_or_else(|| defect("a mesh without ranks"))?;
        let node = self.old.node(id);
        match &node.ty {
            Type::Tensor(ty) if ty.dtype == DType::Bf16 => {
                Ok(self.new.add(Op::Round(DType::Bf16), &[total], node.ty.clone(), node.span))
            }
            _ => Ok(total),
        }
    }

    /// A running total with one more term.
    fn added(&mut self, id: ValueId, total: Option<ValueId>, term: ValueId) -> Result<ValueId, PassError> {
        let Some(total) = total else { return Ok(term) };
        let ty = self.old.tensor(id).map(|t| t.with_dtype(DType::F32));
        let ty = ty.ok_or_else(|| defect(format!("{id} is summed and is no tensor")))?;
        Ok(self.new.add(Op::Binary(Binary::Add), &[total, term], Type::Tensor(ty), None))
    }

    /// The product on one part of the contracted axis and of the table.
    fn origin_part(&mut self, u: &Unrolled<'_>, sum_place: u64, own_place: u64) -> Result<ValueId, PassError> {
        let id = u.pending.origin;
        let node = self.old.node(id);
        let mut operands = self.old.operands(id).into_iter().map(|o| self.at(o)).collect::<Result<Vec<_>, _>>()?;
        let mut op = self.op(id);
        if u.sum
            && let Op::Linear { contract, .. } = &mut op
            && let Some(axis) = contract.first_mut()
        {
            let parts = self.axes.parts(&u.pending.sum);
            let name = format!("{axis}.part");
            for operand in operands.iter_mut().take(2) {
                *operand = self.cut(*operand, axis, &name, parts, sum_place)?;
            }
            *axis = name;
        }
        if u.own {
            let axis = index_axis(self.old, id).ok_or_else(|| defect("an exclusive value without a table"))?;
            let whole = length(self.old, table_of(self.old, id), &axis)?;
            let len = whole / self.axes.parts(&u.pending.own).max(1);
            if let Some(ids) = operands.last_mut() {
                *ids = self.inside(*ids, own_place * len, len)?;
            }
        }
        Ok(self.new.add(op, &operands, node.ty.clone(), node.span))
    }

    /// One of `parts` equal parts of an axis, under another name.
    fn cut(&mut self, x: ValueId, axis: &str, into: &str, parts: u64, place: u64) -> Result<ValueId, PassError> {
        let Type::Tensor(ty) = self.new.graph().node(x).ty.clone() else { return Err(defect("a part of no tensor")) };
        let Some(position) = ty.axis(axis) else { return Err(defect(format!("{ty} has no axis `{axis}`"))) };
        let Extent::Fixed(n) = ty.axes[position].extent else { return Err(defect("a part of rows")) };
        let len = n / parts.max(1);
        let mut ty = TensorType { indexes: None, ..ty };
        ty.axes[position] = Axis::fixed(into, len);
        let op = Op::Slice { axis: axis.to_owned(), start: place * len, len, into: Some(into.to_owned()) };
        Ok(self.new.add(op, &[x], Type::Tensor(ty), None))
    }

    /// The ids from `start` on, `len` of them; -1 for the others.
    fn inside(&mut self, ids: ValueId, start: u64, len: u64) -> Result<ValueId, PassError> {
        let Type::Tensor(ty) = self.new.graph().node(ids).ty.clone() else { return Err(defect("ids of no tensor")) };
        let number = Type::Tensor(TensorType::scalar(DType::I32));
        let truth = Type::Tensor(ty.with_dtype(DType::Bool));
        let mut literal = |x: f32| self.new.add(Op::Literal(vec![x]), &[], number.clone(), None);
        let (first, end, none) = (literal(start as f32), literal((start + len) as f32), literal(-1.0));
        let above = self.new.add(Op::Binary(Binary::Le), &[first, ids], truth.clone(), None);
        let below = self.new.add(Op::Binary(Binary::Lt), &[ids, end], truth.clone(), None);
        let both = self.new.add(Op::Binary(Binary::And), &[above, below], truth, None);
        Ok(self.new.add(Op::Select, &[both, ids, none], Type::Tensor(ty), None))
    }
}

/// The order of a sum whose parts lie on ranks: over the mesh axes of rows, then over the others inside.
fn in_parts(axes: &Axes<'_>, over: &[String]) -> Order {
    let (outer, inner): (Vec<String>, Vec<String>) = over.iter().cloned().partition(|a| axes.rows().contains(a));
    let split = |over: &[String], order: Order| match axes.parts(over) {
        0 | 1 => order,
        parts => Order::Split { parts, inner: Box::new(order) },
    };
    split(&outer, split(&inner, Order::Any))
}

fn length(graph: &Graph, table: ValueId, axis: &str) -> Result<u64, PassError> {
    let length = graph.tensor(table).and_then(|t| t.axes.iter().find(|a| a.name == axis)).map(|a| a.extent);
    match length {
        Some(Extent::Fixed(n)) => Ok(n),
        _ => Err(defect(format!("a table without the axis `{axis}`"))),
    }
}
