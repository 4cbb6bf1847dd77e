//! One graph: a kernel per value, every stride resolved.

use super::inside::{Blocks, Inside};
use super::{RowsOf, root};
use crate::error::PrepareError;
use crate::kernels::elementwise::{Elementwise, Function};
use crate::kernels::nest::Shape;
use crate::kernels::{Kernel, attend, block_round, gather, linear, moves, reduce, store, top, walk};
use ir::{DType, Graph, KernelGraph, KvRef, Op, Plan, ValueId};

/// What is known of a value.
#[derive(Debug)]
pub(crate) struct Value {
    /// Its shape; `None` for caches.
    pub shape: Option<Shape>,
    pub dtype: DType,
    /// What it has a row for.
    pub rows: RowsOf,
    /// The same memory with rows inside those of sequences, if it has such.
    pub inside: Option<Inside>,
    /// Rows that it is computed along, or, if it is stored, stored along.
    pub along: RowsOf,
    /// The value whose memory it shows: itself, unless it is a view.
    pub root: ValueId,
    /// Operands that are read, views followed.
    pub operands: Vec<ValueId>,
    /// What computes it; `None` for leaves and views.
    pub kernel: Option<Kernel>,
    /// Whether it is the same in every step: computed from weights and numbers alone, once, when they are loaded.
    pub constant: bool,
}

impl Value {
    /// Elements of a row and what it has rows for, to an operation along such rows.
    pub fn row_along(&self, along: RowsOf) -> Option<(usize, RowsOf)> {
        match &self.inside {
            Some(inside) if inside.rows == along => Some((inside.shape.row, along)),
            _ => Some((self.shape.as_ref()?.row, self.rows)),
        }
    }
}

/// A graph, ready.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub name: String,
    pub graph: Graph,
    /// By value id.
    pub values: Vec<Value>,
    /// Values computed by each region, ascending.
    pub regions: Vec<Vec<ValueId>>,
    /// By value id: whether it is computed, and read by its own region only, so that a plan need not place it.
    pub inner: Vec<bool>,
}

impl Prepared {
    /// Prepares a graph; `blocks` where every sequence of a step has one.
    pub fn new(kernels: &KernelGraph, plan: &Plan, blocks: Option<&Blocks>) -> Result<Prepared, PrepareError> {
        let graph = &kernels.graph;
        let mut values: Vec<Value> = Vec::with_capacity(graph.len());
        for id in graph.ids() {
            let rows = RowsOf::value(&kernels.name, graph, id)?;
            let preparing = Preparing { graph, before: &values, plan, blocks };
            let value = preparing.value(id, rows).map_err(|fact| PrepareError::Unsupported {
                graph: kernels.name.clone(),
                value: title(graph, id),
                fact,
            })?;
            values.push(value);
        }
        let computed = |id: &ValueId| values.get(id.0 as usize).is_some_and(|v| v.kernel.is_some() && !v.constant);
        let regions: Vec<Vec<ValueId>> =
            kernels.regions.iter().map(|r| r.values.iter().copied().filter(computed).collect()).collect();
        let inner = inner(graph, &values, &regions);
        Ok(Prepared { name: kernels.name.clone(), graph: graph.clone(), values, regions, inner })
    }

    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// A value's name in errors.
    pub fn title(&self, id: ValueId) -> String {
        title(&self.graph, id)
    }
}

/// See [`Prepared::inner`].
fn inner(graph: &Graph, values: &[Value], regions: &[Vec<ValueId>]) -> Vec<bool> {
    let mut region = vec![None; values.len()];
    for (number, ids) in regions.iter().enumerate() {
        ids.iter().for_each(|id| region[id.0 as usize] = Some(number));
    }
    let mut inner: Vec<bool> = region.iter().map(Option::is_some).collect();
    for (reader, value) in values.iter().enumerate() {
        for operand in &value.operands {
            inner[operand.0 as usize] &= region[operand.0 as usize] == region[reader] || value.kernel.is_none();
        }
    }
    graph.outputs.iter().for_each(|(_, id)| inner[values[id.0 as usize].root.0 as usize] = false);
    // A region of one operation has nothing inside it.
    for ids in regions.iter().filter(|ids| ids.len() == 1) {
        inner[ids[0].0 as usize] = false;
    }
    inner
}

fn title(graph: &Graph, id: ValueId) -> String {
    graph.node(id).name.clone().unwrap_or_else(|| id.to_string())
}

/// A graph of which some values are prepared.
struct Preparing<'a> {
    graph: &'a Graph,
    before: &'a [Value],
    plan: &'a Plan,
    blocks: Option<&'a Blocks>,
}

impl Preparing<'_> {
    fn value(&self, id: ValueId, rows: RowsOf) -> Result<Value, String> {
        let Preparing { graph, before, .. } = *self;
        let node = graph.node(id);
        let operands = graph.operands(id);
        let shape = node.ty.tensor().map(Shape::of).transpose()?;
        let dtype = node.ty.tensor().map_or(DType::F32, |t| t.dtype);
        let op = &node.op;
        if op.is_structural() {
            return Err("an operation of the model level".to_owned());
        }
        let inside = self.blocks.zip(shape.as_ref()).and_then(|(blocks, shape)| blocks.inside(shape));
        let along_inside = self.blocks.and_then(|blocks| blocks.along(graph, id, before, inside.as_ref()));
        let kernel = if op.is_leaf() || op.is_view() {
            None
        } else {
            Some(self.kernel(id, along_inside.as_ref(), shape.as_ref())?)
        };
        if let (DType::Nvfp4, Some(kernel), Some(shape)) = (dtype, &kernel, &shape) {
            let inner = along_inside.as_ref().map(|inside| &inside.shape);
            block_round::whole_blocks(kernel, inner.unwrap_or(shape))?;
        }
        if op.is_view() {
            let operand = operands.first().and_then(|o| before[o.0 as usize].shape.as_ref());
            let same = operand
                .zip(shape.as_ref())
                .is_some_and(|(a, b)| a.row == b.row && a.rows.is_some() == b.rows.is_some());
            if !same {
                return Err("a view of another number of elements".to_owned());
            }
        }
        // A cache is no memory of the arena: what reads it finds it by kind and layer.
        let read: Vec<ValueId> =
            operands.iter().filter(|o| graph.tensor(**o).is_some()).map(|o| root(graph, *o)).collect();
        let along = match (&kernel, read.first()) {
            _ if along_inside.is_some() => along_inside.map_or(rows, |inside| inside.rows),
            (Some(Kernel::Store(_)), Some(key)) => before[key.0 as usize].rows,
            _ => rows,
        };
        let constant = kernel.as_ref().is_some_and(|kernel| self.is_constant(kernel, dtype, shape.as_ref(), &read));
        Ok(Value { shape, dtype, rows, inside, along, root: root(graph, id), operands: read, kernel, constant })
    }

    /// Whether what a kernel computes of its operands is small and the same in every step.
    fn is_constant(&self, kernel: &Kernel, dtype: DType, shape: Option<&Shape>, operands: &[ValueId]) -> bool {
        /// Elements: a value stands beside the weights for every layer.
        const MOST: usize = 1 << 16;
        let is_small = shape.is_some_and(|s| s.rows.is_none() && s.row <= MOST);
        let copied = matches!(kernel, Kernel::Elementwise(_) | Kernel::Moves(_) | Kernel::Reduce(_));
        let is_known = |id: &ValueId| match &self.graph.node(*id).op {
            Op::Weight(_) | Op::Literal(_) | Op::Scalar(_) => true,
            _ => self.before[id.0 as usize].constant,
        };
        is_small && copied && matches!(dtype, DType::F32 | DType::I32) && operands.iter().all(is_known)
    }

    /// The kernel of an operation, along rows inside those of sequences or as its operands are declared; `out` is its result as declared.
    fn kernel(&self, id: ValueId, along: Option<&Inside>, out: Option<&Shape>) -> Result<Kernel, String> {
        let Preparing { graph, before, plan, .. } = *self;
        let node = graph.node(id);
        let ids = graph.operands(id);
        let shape = |value: &Value| match &value.inside {
            Some(inside) if along.is_some() => Some(inside.shape.clone()),
            _ => value.shape.clone(),
        };
        let shapes: Vec<Shape> = ids.iter().filter_map(|o| shape(&before[o.0 as usize])).collect();
        // Rows of a step alone go where the next rows go: whoever plans steps keeps these places free.
        if let Op::Store { kv, .. } = &node.op {
            let (kind, layout) = kv_kind(kv, plan)?;
            at_positions(graph, ids.get(2))?;
            let width = (layout.heads * layout.head_elements) as usize;
            return Ok(Kernel::Store(store::Store::new(kind, width, three(&shapes)?, shapes.get(3))?));
        }
        let inner = along.filter(|_| out.is_some()).map(|inside| &inside.shape);
        let out = inner.or(out).ok_or("an operation that leaves a cache")?;
        same_rows(&node.op, &shapes, out)?;
        let x = shapes.first().ok_or("an operation without operands")?;
        Ok(match &node.op {
            Op::Unary(f) => Kernel::Elementwise(elementwise(Function::Unary(*f), 1, &shapes, out)?),
            Op::Binary(f) => Kernel::Elementwise(elementwise(Function::Binary(*f), 2, &shapes, out)?),
            Op::Fma => Kernel::Elementwise(elementwise(Function::Fma, 3, &shapes, out)?),
            Op::Select => Kernel::Elementwise(elementwise(Function::Select, 3, &shapes, out)?),
            Op::Round(_) => Kernel::Elementwise(elementwise(Function::Round, 1, &shapes, out)?),
            Op::BlockRound { .. } => {
                let [x, g] = two(&shapes)?;
                Kernel::BlockRound(block_round::BlockRound::new(x, g, out)?)
            }
            Op::Reduce { op, axis, order } => Kernel::Reduce(reduce::Reduce::new(*op, order, axis, x, out)?),
            Op::Top { k, axis, into, what } => Kernel::Top(top::Top::select(*k, axis, into, *what, x, out)?),
            Op::InTop { k, axis } => Kernel::Top(top::Top::members(*k, axis, x, out)?),
            Op::Gather { axis } => {
                let [x, ids] = two(&shapes)?;
                Kernel::Gather(gather::Gather::new(axis, x, ids, out)?)
            }
            Op::Slice { axis, start, len, into } => {
                Kernel::Moves(moves::Moves::slice(axis, *start, *len, into.as_deref(), x, out)?)
            }
            Op::Concat { into } => Kernel::Moves(moves::Moves::concat(into, &shapes, out)?),
            Op::Linear { contract, order } => {
                let [x, w] = two(&shapes)?;
                Kernel::Linear(linear::Linear::new(contract, order, x, w, shapes.get(2), out)?)
            }
            Op::Dot { axis, order } => {
                let operands = two(&shapes)?;
                Kernel::Dot(reduce::Dot::new(order, axis, operands, out)?)
            }
            Op::Attend { kv, mask, .. } => {
                at_positions(graph, ids.get(2))?;
                let (kind, layout) = kv_kind(kv, plan)?;
                // Query and positions are read, perhaps sink scores.
                let [q, at] = two(&shapes)?;
                Kernel::Attend(attend::Attend::new(kind, layout, *mask, [q, at, out], shapes.get(2))?)
            }
            Op::Input(_) | Op::Weight(_) | Op::Literal(_) | Op::Scalar(_) => return Err("a leaf".to_owned()),
            Op::Split { .. } | Op::Merge { .. } | Op::Rename { .. } => return Err("a view".to_owned()),
            Op::AllReduce { .. } | Op::AllGather { .. } | Op::ReduceScatter { .. } | Op::Own { .. } => {
                return Err("an operation of a mesh of several ranks".to_owned());
            }
            Op::Shift { axis, by } => match along {
                Some(inside) if out.rows.as_ref() == Some(axis) => {
                    Kernel::ShiftRows(moves::ShiftRows { row: out.row, by: *by as usize, block: inside.per_sequence })
                }
                _ => Kernel::Moves(moves::Moves::shift(axis, *by, &shapes, out)?),
            },
            Op::Walk { what } => Kernel::Walk(walk::Walk::new(*what, &shapes, out)?),
            Op::Probs | Op::Accept { .. } => {
                return Err("a choice of tokens inside the model, which steps do outside of it".to_owned());
            }
            Op::Store { .. } | Op::Call(_) | Op::Match { .. } | Op::Layers { .. } | Op::Item(_) => {
                return Err("an operation of another level".to_owned());
            }
        })
    }
}

/// Demands that operands have the result's row axis or none, and that the result's rows come from one.
fn same_rows(op: &Op, shapes: &[Shape], out: &Shape) -> Result<(), String> {
    let gathered = |i: usize, s: &Shape| match op {
        Op::Gather { axis } => i == 0 && s.rows.as_ref() == Some(axis),
        _ => false,
    };
    let mut has_rows = out.rows.is_none();
    for (i, shape) in shapes.iter().enumerate() {
        if gathered(i, shape) || shape.rows.is_none() {
            continue;
        }
        if shape.rows != out.rows {
            return Err(format!("an operation on rows {:?} whose result has rows {:?}", shape.rows, out.rows));
        }
        has_rows = true;
    }
    if has_rows { Ok(()) } else { Err("a value per row whose operands have no row".to_owned()) }
}

/// Demands that a cache is used at the step's own positions.
fn at_positions(graph: &Graph, at: Option<&ValueId>) -> Result<(), String> {
    match at.and_then(|at| graph.input_name(root(graph, *at))) {
        Some(super::POSITIONS) => Ok(()),
        _ => Err("a cache used at other positions than the step's".to_owned()),
    }
}

fn elementwise(function: Function, operands: usize, shapes: &[Shape], out: &Shape) -> Result<Elementwise, String> {
    if shapes.len() != operands {
        return Err(format!("an operation of {operands} operands with {}", shapes.len()));
    }
    let fits = |s: &Shape| {
        (s.rows.is_none() || s.rows == out.rows) && s.axes.iter().all(|(name, n)| out.length(name) == Some(*n))
    };
    if let Some(bad) = shapes.iter().find(|s| !fits(s)) {
        return Err(format!("an operand with axes {:?} broadcast to {:?}", bad.axes, out.axes));
    }
    Elementwise::new(function, shapes, out)
}

fn two(shapes: &[Shape]) -> Result<[&Shape; 2], String> {
    match shapes {
        [a, b, ..] => Ok([a, b]),
        _ => Err(format!("an operation of two operands with {}", shapes.len())),
    }
}

fn three(shapes: &[Shape]) -> Result<[&Shape; 3], String> {
    match shapes {
        [a, b, c, ..] => Ok([a, b, c]),
        _ => Err(format!("an operation of three operands with {}", shapes.len())),
    }
}

fn kv_kind<'p>(kv: &KvRef, plan: &'p Plan) -> Result<(usize, &'p ir::KvLayout), String> {
    let KvRef::Kind(name) = kv else { return Err("a cache named by a column, which is the model level".to_owned()) };
    let found = plan.kv.iter().enumerate().find(|(_, layout)| layout.kind == *name);
    found.ok_or_else(|| format!("a cache of kind `{name}`, for which the plan has no layout"))
}
