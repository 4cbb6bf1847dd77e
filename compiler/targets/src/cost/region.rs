//! What one region reads, writes, computes and sends.

use super::{Load, Work, all_reduce_bytes, distinct, one_way_bytes};
use ir::{
    DType, Extent, Facts, Graph, KernelGraph, KernelKind, KvRef, Mask, Mesh, Op, Region, TensorType, Type, ValueId,
};
use std::collections::{HashMap, HashSet};

/// What regions are looked at with.
pub(super) struct Context<'a> {
    pub(super) facts: &'a Facts,
    pub(super) mesh: &'a Mesh,
    pub(super) load: Load,
    pub(super) kv_dtype: DType,
    /// Row axes that an exchange between ranks made, with their rows.
    pub(super) gathered: HashMap<String, u64>,
}

impl Context<'_> {
    fn elements(&self, ty: &TensorType) -> f64 {
        let length = |axis: &ir::Axis| match axis.extent {
            Extent::Fixed(n) => n,
            Extent::Rows => self.rows(&axis.name),
        };
        ty.axes.iter().map(|a| length(a) as f64).product()
    }

    /// Rows along a row axis; one that nobody knows counts as one row.
    pub(super) fn rows(&self, axis: &str) -> u64 {
        self.load.rows(axis).or_else(|| self.gathered.get(axis).copied()).unwrap_or(1)
    }

    fn bytes(&self, ty: &TensorType) -> f64 {
        self.elements(ty) * bytes_each(ty.dtype)
    }

    /// Work of one region; that of a view is nothing.
    /// `leaving` says which values need memory.
    pub(super) fn region(&self, kernel_graph: &KernelGraph, leaving: &[bool], region: &Region) -> Work {
        let mut work = Work::default();
        if region.kind == KernelKind::View {
            return work;
        }
        work.launches = 1.0;
        let graph = &kernel_graph.graph;
        let inside: HashSet<ValueId> = region.values.iter().copied().collect();
        self.reads(graph, region, &inside, &mut work);
        for id in &region.values {
            self.operation(graph, *id, &mut work);
            let leaves = leaving.get(id.0 as usize).copied().unwrap_or(false);
            if let (true, Some(ty)) = (leaves, graph.tensor(*id)) {
                work.written_bytes += self.bytes(ty);
            }
        }
        work
    }

    /// Every value from outside once, by the operations that read it.
    fn reads(&self, graph: &Graph, region: &Region, inside: &HashSet<ValueId>, work: &mut Work) {
        let mut readers: HashMap<ValueId, Vec<(ValueId, usize)>> = HashMap::new();
        let mut order = Vec::new();
        for id in &region.values {
            for (slot, operand) in graph.operands(*id).into_iter().enumerate() {
                if inside.contains(&operand) {
                    continue;
                }
                let root = root(graph, operand);
                let list = readers.entry(root).or_default();
                if list.is_empty() {
                    order.push(root);
                }
                list.push((*id, slot));
            }
        }
        for root in order {
            let Some(ty) = graph.tensor(root) else { continue };
            let whole = self.bytes(ty);
            let read =
                readers[&root].iter().map(|(user, slot)| self.read(graph, *user, *slot, ty, whole)).fold(0.0, f64::max);
            match &graph.node(root).op {
                Op::Weight(_) => work.weight_bytes += read,
                Op::Literal(_) | Op::Scalar(_) => {}
                _ => work.read_bytes += read,
            }
        }
    }

    /// Bytes of an outside value that one operation reads.
    fn read(&self, graph: &Graph, user: ValueId, slot: usize, ty: &TensorType, whole: f64) -> f64 {
        let operands = graph.operands(user);
        match &graph.node(user).op {
            Op::Linear { .. } if slot == 1 && operands.len() > 2 => {
                whole * self.share_of_slices(graph, ty, operands[2])
            }
            Op::Gather { .. } if slot == 0 => {
                let picked = graph.tensor(user).map_or(whole, |t| self.elements(t) * bytes_each(ty.dtype));
                (picked * self.owned(graph, operands[1])).min(whole)
            }
            Op::Slice { .. } => graph.tensor(user).map_or(whole, |t| self.bytes(t)),
            _ => whole,
        }
    }

    /// Share of a weight's slices along its first axis that the ids touch.
    fn share_of_slices(&self, graph: &Graph, weight: &TensorType, ids: ValueId) -> f64 {
        let (Some(ids_type), Some(axis)) = (graph.tensor(ids), weight.axes.first()) else { return 1.0 };
        let Extent::Fixed(local) = axis.extent else { return 1.0 };
        let all = local as f64 / self.owned(graph, ids);
        let picks = ids_type.fixed_elements() as f64;
        let rows: f64 = ids_type.row_axes().map(|a| self.rows(a) as f64).product();
        distinct(all, picks, rows) / all.max(1.0)
    }

    /// Share of ids that this rank owns: all, unless they passed `own`.
    fn owned(&self, graph: &Graph, ids: ValueId) -> f64 {
        match &graph.node(root(graph, ids)).op {
            Op::Own { over, .. } => 1.0 / self.mesh.parts(over).max(1) as f64,
            _ => 1.0,
        }
    }

    fn operation(&self, graph: &Graph, id: ValueId, work: &mut Work) {
        let operands = graph.operands(id);
        let of = |slot: usize| operands.get(slot).and_then(|v| graph.tensor(*v));
        let result = graph.tensor(id).map_or(0.0, |t| self.elements(t));
        let first = of(0).map_or(0.0, |t| self.elements(t));
        match &graph.node(id).op {
            Op::Linear { contract, .. } => {
                let summed: f64 = contract.iter().map(|a| length(of(0), a)).product();
                let share = operands.get(2).map_or(1.0, |ids| self.owned(graph, *ids));
                product(work, of(0), of(1), 2.0 * result * summed * share);
            }
            Op::Dot { axis, .. } => product(work, of(0), of(1), 2.0 * result * length(of(0), axis)),
            Op::Attend { kv: KvRef::Kind(kind), mask, .. } => self.attend(kind, *mask, of(0), work),
            Op::Store { .. } => {
                let stored: f64 = [of(0), of(1)].into_iter().flatten().map(|t| self.elements(t)).sum();
                work.kv_written_bytes += stored * bytes_each(self.kv_dtype);
            }
            Op::AllReduce { over, .. } => {
                work.row_operations += first * self.mesh.parts(over) as f64;
                work.sent_bytes += all_reduce_bytes(of(0).map_or(0.0, |t| self.bytes(t)), self.mesh, over);
                work.exchanges += 1.0;
            }
            Op::AllGather { over, .. } => {
                work.sent_bytes += one_way_bytes(graph.tensor(id).map_or(0.0, |t| self.bytes(t)), self.mesh, over);
                work.exchanges += 1.0;
            }
            Op::ReduceScatter { over, .. } => {
                work.row_operations += first;
                work.sent_bytes += one_way_bytes(of(0).map_or(0.0, |t| self.bytes(t)), self.mesh, over);
                work.exchanges += 1.0;
            }
            Op::Reduce { .. } | Op::Top { .. } | Op::InTop { .. } => work.row_operations += first,
            Op::Unary(_) | Op::Binary(_) | Op::Fma | Op::Select | Op::Round(_) | Op::BlockRound { .. } => {
                work.row_operations += result;
            }
            _ => {}
        }
    }

    fn attend(&self, kind: &str, mask: Mask, q: Option<&TensorType>, work: &mut Work) {
        let (Some(kind), Some(q)) = (self.facts.kv_kind(kind), q) else { return };
        let row = |axes: &[ir::Axis]| TensorType::new(self.kv_dtype, axes.to_vec()).fixed_elements();
        let cached = (row(&kind.k) + row(&kind.v)) as f64 * bytes_each(self.kv_dtype);
        work.kv_read_bytes += cached * self.load.touched_rows(kind.window);
        let keys = self.load.visible_keys(kind.window, mask == Mask::Causal);
        let operations = 4.0 * q.fixed_elements() as f64 * keys;
        // Cached codes are widened to the query's format, so no unit for narrow products takes them.
        *widest(work, [q.dtype, self.kv_dtype]) += operations;
    }
}

/// Counts a product's operations with those of its operands' formats.
fn product(work: &mut Work, a: Option<&TensorType>, b: Option<&TensorType>, operations: f64) {
    let (Some(a), Some(b)) = (a, b) else { return };
    let count = match (a.dtype, b.dtype) {
        (DType::E4m3 | DType::E5m2, DType::E4m3 | DType::E5m2) => &mut work.fp8_operations,
        (DType::Nvfp4, DType::Nvfp4) => &mut work.fp4_operations,
        (a, b) => widest(work, [a, b]),
    };
    *count += operations;
}

/// Where operations on such operands are counted, a narrow one being widened to the other.
fn widest(work: &mut Work, operands: [DType; 2]) -> &mut f64 {
    match operands.into_iter().filter(|d| *d == DType::F32).count() {
        0 => &mut work.bf16_operations,
        1 => &mut work.mixed_operations,
        _ => &mut work.f32_operations,
    }
}

fn length(ty: Option<&TensorType>, axis: &str) -> f64 {
    let found = ty.and_then(|t| t.axes.iter().find(|a| a.name == axis));
    found.map_or(1.0, |a| if let Extent::Fixed(n) = a.extent { n as f64 } else { 1.0 })
}

/// The value whose memory this one is.
fn root(graph: &Graph, id: ValueId) -> ValueId {
    let mut at = id;
    while graph.node(at).op.is_view() && graph.node(at).ty != Type::Cache {
        match graph.operands(at).first() {
            Some(operand) => at = *operand,
            None => break,
        }
    }
    at
}

/// Bytes of one element, its share of a block's scale included.
fn bytes_each(dtype: DType) -> f64 {
    dtype.bytes_for(DType::BLOCK) as f64 / DType::BLOCK as f64
}
