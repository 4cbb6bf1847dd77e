//! A product against its definition where the weight is too large to interpret: some of its rows and, of each weight that they pick, some columns.
//!
//! ```text
//! rows of x ─ some ─┐
//! their picks ──────┼─► the weight's rows that these need, read back ─► interpreted in parts, a thread each
//! columns ─ some ───┘
//! ```
//!
//! Columns are drawn one from each run of equal length, so that none of a kernel's tiles is left out as long as runs are no longer than tiles.

use super::made::Made;
use interp::{Context, Data, Env, MemoryCache, NoHooks, NoWeights, Tensor, eval_graph};
use ir::{Axis, DType, Facts, GraphBuilder, Op, TensorType, Type, Unary, WeightRef};
use rayon::prelude::*;
use std::sync::Arc;

/// Most numbers of weights that are interpreted at once.
const MOST_NUMBERS: usize = 1 << 26;
/// Most products of numbers that are interpreted with all rows and columns.
const MOST_TERMS: usize = 1 << 28;
/// Rows that are looked at where not all are.
const SOME_ROWS: usize = 8;
/// Columns of one thread.
const AT_ONCE: usize = 64;

/// A product with its operands, and what a kernel made of them.
pub struct Product<'a> {
    /// `Op::Linear`.
    pub op: &'a Op,
    /// Its type.
    pub result: &'a TensorType,
    /// The weight, its type, and the layer that runs.
    pub weight: (&'a WeightRef, &'a TensorType, Option<usize>),
    /// Rows.
    pub x: &'a Tensor,
    /// Which of the weight's groups each row picks.
    pub ids: Option<&'a Tensor>,
    /// What was computed.
    pub made: &'a Tensor,
}

/// What is compared.
pub struct Compared {
    /// Numbers of the kernel.
    pub made: Vec<f32>,
    /// Numbers of the interpreter.
    pub core: Vec<f32>,
    /// Sums of the terms' magnitudes.
    pub size: Vec<f32>,
}

impl Product<'_> {
    /// Compares some numbers; `None` where all can be, as the interpreter does by itself.
    pub fn sampled(&self, weights: &Made<'_>, facts: &Facts, seed: u64) -> Result<Option<Compared>, String> {
        let Op::Linear { contract, .. } = self.op else { return Ok(None) };
        let (reference, ty, layer) = self.weight;
        let fixed = |axes: &[Axis]| TensorType::new(DType::F32, axes.to_vec()).fixed_elements() as usize;
        let behind = ty.axes.len().checked_sub(contract.len()).ok_or("a weight without the sum's axes")?;
        let (free, inner) = ty.axes.split_at(behind);
        let (group, free) = free.split_at(usize::from(self.ids.is_some()));
        let (groups, columns, k) = (fixed(group), fixed(free), fixed(inner));
        let rows = self.made.len() / columns.max(1);
        if groups * columns * k <= MOST_NUMBERS && rows * columns * k <= MOST_TERMS {
            return Ok(None);
        }
        let axis = self.result.row_axes().next().ok_or("a product without rows")?;
        let count = self.made.axes().iter().find(|a| a.0 == axis).map_or(1, |a| a.1);
        let rows = drawn(seed, count, count.min(SOME_ROWS));
        let (x, made) = (taken(self.x, axis, &rows)?, taken(self.made, axis, &rows)?);
        let ids = self.ids.map(|ids| taken(ids, axis, &rows)).transpose()?;
        // Groups that these rows pick, by new numbers.
        let mut picks: Vec<usize> =
            ids.iter().flat_map(|t| t.ints().unwrap_or_default()).filter_map(|id| usize::try_from(*id).ok()).collect();
        picks.sort_unstable();
        picks.dedup();
        let ids = ids.map(|ids| {
            let new = |id: &i32| picks.iter().position(|p| i32::try_from(*p) == Ok(*id)).map_or(*id, |p| p as i32);
            let numbers = ids.ints().unwrap_or_default().iter().map(new).collect();
            Tensor::new(ids.axes().to_vec(), DType::I32, Data::I32(numbers)).map_err(|e| e.to_string())
        });
        let ids = ids.transpose()?.map(Arc::new);
        if self.ids.is_none() {
            picks = vec![0];
        }
        let some = (MOST_NUMBERS / (picks.len() * k).max(1)).max(1);
        let chosen = drawn(seed ^ 1, columns, columns.min(some));
        let x = Arc::new(x);
        let parts = chosen.chunks(AT_ONCE).collect::<Vec<_>>();
        let numbers = parts.iter().map(|part| weights.rows(reference, layer, (groups, &picks, part), k));
        let numbers = numbers.collect::<Result<Vec<_>, String>>()?;
        let part = |(columns, numbers): (&&[usize], Vec<f32>)| {
            let lead = group.iter().map(|a| Axis::fixed(a.name.clone(), picks.len() as u64));
            let axes = lead.chain([Axis::fixed(COLUMN, columns.len() as u64)]).chain(inner.to_vec()).collect();
            self.interpret(facts, (&x, ids.as_ref()), (axes, ty.dtype, numbers), free.len())
        };
        let all: Vec<[Vec<f32>; 2]> = parts.par_iter().zip(numbers).map(part).collect::<Result<_, String>>()?;
        let (made, lines) = (made.floats().ok_or("a core of other numbers")?, made.len() / columns);
        let mut found = Compared { made: Vec::new(), core: Vec::new(), size: Vec::new() };
        for (own, [core, size]) in parts.iter().zip(all) {
            let of = |line: usize| own.iter().map(move |column| made[line * columns + column]);
            found.made.extend((0..lines).flat_map(of));
            found.core.extend(core);
            found.size.extend(size);
        }
        Ok(Some(found))
    }

    /// The product with some columns, and the same with magnitudes.
    fn interpret(
        &self,
        facts: &Facts,
        (x, ids): (&Arc<Tensor>, Option<&Arc<Tensor>>),
        (axes, dtype, numbers): (Vec<Axis>, DType, Vec<f32>),
        free: usize,
    ) -> Result<[Vec<f32>; 2], String> {
        let lengths =
            axes.iter().map(|a| (a.name.clone(), if let ir::Extent::Fixed(n) = a.extent { n as usize } else { 1 }));
        let weight = Tensor::new(lengths.collect(), dtype, Data::F32(numbers)).map_err(|e| e.to_string())?;
        let column = axes.iter().find(|a| a.name == COLUMN).cloned().ok_or("no columns")?;
        let mut builder = GraphBuilder::new();
        let mut env = Env::new();
        let row_axis = self.result.row_axes().next().unwrap_or_default().to_owned();
        let mut operand = |name: &str, tensor: &Arc<Tensor>| {
            let axis = |(name, n): &(String, usize)| {
                if *name == row_axis { Axis::rows(name.clone()) } else { Axis::fixed(name.clone(), *n as u64) }
            };
            let ty = TensorType::new(tensor.dtype(), tensor.axes().iter().map(axis).collect());
            env.insert(name.to_owned(), tensor.clone());
            (builder.input(name, Type::Tensor(ty.clone())), ty)
        };
        let given = [operand("x", x), operand("w", &Arc::new(weight))];
        let ids = ids.map(|ids| operand("ids", ids).0);
        let kept = self.result.axes.len().checked_sub(free).ok_or("a result without columns")?;
        let axes = self.result.axes[..kept].iter().cloned().chain([column]).collect();
        let result = Type::Tensor(TensorType::new(DType::F32, axes));
        let product = |operands: Vec<ir::ValueId>, builder: &mut GraphBuilder| {
            let operands: Vec<_> = operands.into_iter().chain(ids).collect();
            builder.add(self.op.clone(), &operands, result.clone(), None)
        };
        let core = product(given.iter().map(|g| g.0).collect(), &mut builder);
        let abs = |(id, ty): &(ir::ValueId, TensorType), builder: &mut GraphBuilder| {
            builder.add(Op::Unary(Unary::Abs), &[*id], Type::Tensor(ty.with_dtype(DType::F32)), None)
        };
        let sizes = given.iter().map(|g| abs(g, &mut builder)).collect();
        let size = product(sizes, &mut builder);
        let mut graph = builder.finish();
        graph.outputs = vec![("core".to_owned(), core), ("size".to_owned(), size)];
        let (mut cache, mut hooks) = (MemoryCache::default(), NoHooks);
        let mut context = Context { layer: None, weights: &NoWeights, cache: &mut cache, hooks: &mut hooks };
        eval_graph(&graph, facts, &mut env, &mut context).map_err(|e| e.to_string())?;
        let of = |name: &str| env.get(name).and_then(|t| t.floats()).map(<[f32]>::to_vec).ok_or("no reference");
        Ok([of("core")?, of("size")?])
    }
}

/// Name of the columns that are looked at.
const COLUMN: &str = "column";

/// One number from each of `some` runs of 0 .. `count`, ascending; the last of all among them.
fn drawn(seed: u64, count: usize, some: usize) -> Vec<usize> {
    let run = |i: usize| (i * count / some, (i + 1) * count / some);
    let one = |i: usize| {
        let (first, end) = run(i);
        let draw = numerics::uniform(seed, i as u64) * (end - first) as f32;
        if i + 1 == some { end - 1 } else { (first + draw as usize).min(end - 1) }
    };
    (0..some).map(one).collect()
}

/// Some rows of a tensor along one axis; the tensor as it is where it has no such axis.
fn taken(of: &Tensor, axis: &str, rows: &[usize]) -> Result<Tensor, String> {
    let Some(at) = of.axes().iter().position(|a| a.0 == axis) else { return Ok(of.clone()) };
    let inner: usize = of.axes()[at + 1..].iter().map(|a| a.1).product();
    let outer: usize = of.axes()[..at].iter().map(|a| a.1).product();
    let count = of.axes()[at].1;
    fn pick<T: Copy>(from: &[T], outer: usize, count: usize, inner: usize, rows: &[usize]) -> Vec<T> {
        let starts = (0..outer).flat_map(|o| rows.iter().map(move |row| (o * count + row) * inner));
        starts.flat_map(|start| from[start..start + inner].iter().copied()).collect()
    }
    let data = match of.data() {
        Data::F32(from) => Data::F32(pick(from, outer, count, inner, rows)),
        Data::I32(from) => Data::I32(pick(from, outer, count, inner, rows)),
        Data::Bool(from) => Data::Bool(pick(from, outer, count, inner, rows)),
    };
    let mut axes = of.axes().to_vec();
    axes[at].1 = rows.len();
    Tensor::new(axes, of.dtype(), data).map_err(|e| e.to_string())
}
