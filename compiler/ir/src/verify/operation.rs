//! Type rules of operations: leaves, element-wise operations, and dispatch to the others.

use super::collectives;
use super::cores;
use super::shapes;
use super::speculation;
use crate::WeightRef;
use crate::{Axis, Binary, DType, Extent, Facts, Graph, Op, Order, Scope, Sharding, TensorType, Type, Unary, ValueId};

/// The level that a graph stands at: some operations are legal at one only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Level<'s> {
    Model,
    Graph,
    /// With the facts of the whole model.
    Sharded(&'s Sharding, &'s Facts),
}

/// The tensors among the operands, with their number checked.
pub(super) struct Operands<'a> {
    pub(super) graph: &'a Graph,
    pub(super) ids: Vec<ValueId>,
}

impl<'a> Operands<'a> {
    pub(super) fn tensor(&self, index: usize) -> Result<&'a TensorType, String> {
        let id = self.ids.get(index).ok_or_else(|| format!("operand {index} is missing"))?;
        self.graph.tensor(*id).ok_or_else(|| format!("operand {index} is no tensor"))
    }

    pub(super) fn count(&self, wanted: usize) -> Result<(), String> {
        if self.ids.len() == wanted {
            Ok(())
        } else {
            Err(format!("has {} operands instead of {wanted}", self.ids.len()))
        }
    }

    pub(super) fn all(&self) -> Result<Vec<&'a TensorType>, String> {
        (0..self.ids.len()).map(|i| self.tensor(i)).collect()
    }
}

/// Checks one node.
pub(super) fn operation(graph: &Graph, id: ValueId, facts: &Facts, level: Level<'_>) -> Result<(), String> {
    let node = graph.node(id);
    let operands = Operands { graph, ids: graph.operands(id) };
    if node.op.is_structural() {
        // Their types depend on blocks, which the model's own rules look at.
        return if level == Level::Model { Ok(()) } else { Err("may stand only at the model level".to_owned()) };
    }
    if node.op.is_leaf() {
        operands.count(0)?;
    }
    if let Op::Input(_) = node.op {
        return match node.ty {
            Type::Tensor(_) => Ok(()),
            Type::Cache | Type::Tuple(_) => Err("an input is a tensor".to_owned()),
        };
    }
    if let Op::Store { kv, scratch } = &node.op {
        return cores::store(&operands, &node.ty, (kv, *scratch), facts, level);
    }
    let result = node.ty.tensor().ok_or_else(|| "the result is a tensor".to_owned())?;
    if node.op.is_sharded() {
        return match level {
            Level::Sharded(sharding, whole) => {
                collectives::collective(&node.op, &operands, result, whole, &sharding.mesh)
            }
            Level::Model | Level::Graph => Err("means something only on a mesh".to_owned()),
        };
    }
    match &node.op {
        Op::Reduce { order, .. } => sum(order)?,
        op => op.order().map_or(Ok(()), |order| parts(order, 0))?,
    }
    match &node.op {
        Op::Weight(reference) => weight(reference, result, facts),
        Op::Literal(data) => literal(data, result),
        Op::Scalar(_) => same(result, &TensorType::scalar(DType::F32)),
        Op::Unary(f) => unary(*f, &operands, result),
        Op::Binary(f) => binary(*f, &operands, result),
        Op::Fma => {
            operands.count(3)?;
            arithmetic(&operands.all()?, result)
        }
        Op::Select => select(&operands, result),
        Op::Round(dtype) => {
            operands.count(1)?;
            let x = operands.tensor(0)?;
            if !dtype.is_float() || x.dtype == DType::Bool {
                return Err(format!("rounds {} to {dtype}: only numbers round, and only to floats", x.dtype));
            }
            if *dtype == DType::Nvfp4 {
                return Err("rounds to nvfp4 without scales: that is `block_round`".to_owned());
            }
            same(result, &x.with_dtype(*dtype))
        }
        Op::BlockRound { over } => block_round(&operands, result, over),
        Op::Linear { contract, .. } => cores::linear(&operands, result, contract),
        Op::Dot { axis, .. } => cores::dot(&operands, result, axis),
        Op::Shift { axis, by } => speculation::shift(&operands, result, axis, *by),
        Op::Walk { what } => speculation::walk(&operands, result, *what),
        Op::Probs => speculation::probs(&operands, result),
        Op::Accept { rule, what } => speculation::accept(&operands, result, *rule, *what),
        Op::Attend { kv, .. } => cores::attend(&operands, result, kv, facts, level),
        other => shapes::shape(other, &operands, result, facts),
    }
}

/// A sum is cut into a bounded number of parts, nested to a bounded depth.
pub(super) fn parts(order: &Order, depth: usize) -> Result<(), String> {
    match order {
        Order::Any | Order::Fold | Order::Serial | Order::Fused => Ok(()),
        Order::Split { parts: 0, .. } => Err("cuts a sum into 0 parts".to_owned()),
        Order::Split { .. } if depth >= Order::MAX_DEPTH => Err("cuts parts of a sum too often".to_owned()),
        Order::Split { inner, .. } => parts(inner, depth + 1),
    }
}

/// The order of a sum whose terms are no products.
pub(super) fn sum(order: &Order) -> Result<(), String> {
    if order.is_of_products() {
        return Err(format!("sums in the order `{order}`, which is for products"));
    }
    parts(order, 0)
}

fn weight(reference: &WeightRef, result: &TensorType, facts: &Facts) -> Result<(), String> {
    match reference {
        WeightRef::Packed { into, parts } => packed(into, parts, result, facts),
        WeightRef::Next { last, .. } => {
            same(result, &plain_weight(reference, facts)?)?;
            same(result, &plain_weight(&WeightRef::Model(last.clone()), facts)?)
        }
        plain => same(result, &plain_weight(plain, facts)?),
    }
}

/// Type of a weight that is not packed; of one that stands for two, the layer's.
fn plain_weight(reference: &WeightRef, facts: &Facts) -> Result<TensorType, String> {
    let (scope, name) = match reference {
        WeightRef::Model(name) => (Scope::Model, name),
        WeightRef::Layer(name) | WeightRef::FirstLayer(name) | WeightRef::OfLayer { name, .. } => (Scope::Layer, name),
        WeightRef::Next { layer, .. } => (Scope::Layer, layer),
        WeightRef::Packed { .. } => return Err("packs what is packed already".to_owned()),
    };
    let found = facts.weight(scope, name).ok_or_else(|| format!("there is no weight `{name}` of this scope"))?;
    Ok(found.ty())
}

/// Each part has the axes before `into` in front, those after it at the end, and one or more between; what is between
/// adds up to the length of `into`.
fn packed(into: &str, parts: &[WeightRef], result: &TensorType, facts: &Facts) -> Result<(), String> {
    let at = result.axis(into).ok_or_else(|| format!("the packed weight has no axis `{into}`"))?;
    let (front, end) = (&result.axes[..at], &result.axes[at + 1..]);
    if parts.len() < 2 {
        return Err(format!("packs {} weights; two or more make a packed one", parts.len()));
    }
    let mut length = 0u64;
    for part in parts {
        let ty = plain_weight(part, facts)?;
        if matches!(part, WeightRef::Next { .. }) {
            return Err("packs a weight that stands for two".to_owned());
        }
        let between = ty.axes.len().checked_sub(front.len() + end.len()).filter(|n| *n > 0);
        let joined = between.and_then(|n| ty.axes.get(at..at + n));
        let fits = ty.axes.starts_with(front) && ty.axes.ends_with(end) && ty.dtype == result.dtype;
        let (Some(joined), true) = (joined, fits) else {
            return Err(format!("packs {} into {}", long(&ty), long(result)));
        };
        let rows = joined.iter().try_fold(1u64, |n, axis| match axis.extent {
            Extent::Fixed(m) => n.checked_mul(m),
            Extent::Rows => None,
        });
        length = rows.and_then(|n| length.checked_add(n)).ok_or_else(|| format!("packs rows of {}", long(&ty)))?;
    }
    let declared = result.axes.get(at).map(|a| a.extent);
    if declared == Some(Extent::Fixed(length)) {
        Ok(())
    } else {
        Err(format!("packs {length} rows into {}", long(result)))
    }
}

/// Data fill the axes; every number is one of the dtype.
fn literal(data: &[f32], result: &TensorType) -> Result<(), String> {
    if result.axes.iter().any(Axis::is_rows) {
        return Err("a literal has rows".to_owned());
    }
    let elements = result.axes.iter().try_fold(1u64, |n, axis| match axis.extent {
        Extent::Fixed(length) => n.checked_mul(length),
        Extent::Rows => None,
    });
    if elements != Some(data.len() as u64) {
        return Err(format!("a literal of type {result} has {} numbers", data.len()));
    }
    let fits = |x: &f32| match result.dtype {
        DType::F32 => true,
        DType::Bf16 => x.to_bits() & 0xffff == 0,
        DType::E4m3 | DType::E5m2 | DType::Nvfp4 => false,
        DType::I32 => x.fract() == 0.0,
        DType::Bool => *x == 0.0 || *x == 1.0,
    };
    match data.iter().find(|x| !fits(x)) {
        Some(x) => Err(format!("{x} is no number of dtype {}", result.dtype)),
        None => Ok(()),
    }
}

/// The axes named end x, their lengths are known and multiply to whole blocks; the second operand is one number.
fn block_round(operands: &Operands<'_>, result: &TensorType, over: &[String]) -> Result<(), String> {
    operands.count(2)?;
    let (x, g) = (operands.tensor(0)?, operands.tensor(1)?);
    if !x.dtype.is_float() || g.dtype != DType::F32 || !g.axes.is_empty() {
        return Err(format!("makes blocks of {x} under {g}: floats under one f32 are wanted"));
    }
    let ends = x.axes.len().checked_sub(over.len()).map(|at| &x.axes[at..]);
    let ends = ends.filter(|axes| !over.is_empty() && axes.iter().map(|a| &a.name).eq(over));
    let elements = ends.and_then(|axes| {
        axes.iter().try_fold(1u64, |n, axis| match axis.extent {
            Extent::Fixed(length) => n.checked_mul(length),
            Extent::Rows => None,
        })
    });
    match elements {
        None => Err(format!("makes blocks over [{}], {x} does not end so", over.join(", "))),
        Some(n) if n % DType::BLOCK != 0 => Err(format!("makes blocks of {} of {n} elements", DType::BLOCK)),
        Some(_) => same(result, &x.with_dtype(DType::Nvfp4)),
    }
}

fn unary(f: Unary, operands: &Operands<'_>, result: &TensorType) -> Result<(), String> {
    operands.count(1)?;
    let x = operands.tensor(0)?;
    if f == Unary::Not {
        return match x.dtype {
            DType::Bool => same(result, x),
            other => Err(format!("`not` of {other}")),
        };
    }
    arithmetic(&[x], result)
}

fn binary(f: Binary, operands: &Operands<'_>, result: &TensorType) -> Result<(), String> {
    operands.count(2)?;
    let both = operands.all()?;
    let logical = matches!(f, Binary::And | Binary::Or);
    if !f.is_predicate() {
        return arithmetic(&both, result);
    }
    if both.iter().any(|t| (t.dtype == DType::Bool) != logical) {
        return Err(format!("`{}` of {} and {}", f.word(), both[0].dtype, both[1].dtype));
    }
    broadcast(&both, result)?;
    if result.dtype == DType::Bool { Ok(()) } else { Err(format!("a predicate of dtype {}", result.dtype)) }
}

fn select(operands: &Operands<'_>, result: &TensorType) -> Result<(), String> {
    operands.count(3)?;
    let all = operands.all()?;
    let [condition, a, b] = all.as_slice() else { return Err("has no three operands".to_owned()) };
    if condition.dtype != DType::Bool {
        return Err(format!("selects by {}, which is no bool", condition.dtype));
    }
    broadcast(&all, result)?;
    let fits = match (a.dtype, b.dtype) {
        (a, b) if a == b && a == result.dtype => true,
        (DType::Bool, _) | (_, DType::Bool) => false,
        _ => result.dtype == DType::F32,
    };
    if fits { Ok(()) } else { Err(format!("selects {} or {} and gives {}", a.dtype, b.dtype, result.dtype)) }
}

/// Numbers in, f32 out; integers alone may stay integers.
fn arithmetic(operands: &[&TensorType], result: &TensorType) -> Result<(), String> {
    if operands.iter().any(|t| t.dtype == DType::Bool) {
        return Err("computes with a bool".to_owned());
    }
    broadcast(operands, result)?;
    let integers = operands.iter().all(|t| t.dtype == DType::I32);
    match result.dtype {
        DType::F32 => Ok(()),
        DType::I32 if integers => Ok(()),
        other => Err(format!("leaves {other}; arithmetic leaves f32, only a round narrows")),
    }
}

/// The result has each operand axis once, with the same length, and no other.
pub(super) fn broadcast(operands: &[&TensorType], result: &TensorType) -> Result<(), String> {
    let axes: Vec<&Axis> = operands.iter().flat_map(|t| &t.axes).collect();
    same_set(&axes, &result.axes)
}

/// The result's axes are the given ones, in any order.
pub(super) fn same_set(wanted: &[&Axis], result: &[Axis]) -> Result<(), String> {
    for axis in wanted {
        match result.iter().find(|a| a.name == axis.name) {
            Some(found) if found.extent == axis.extent => {}
            Some(_) => return Err(format!("axis `{}` has two lengths", axis.name)),
            None => return Err(format!("axis `{}` of an operand is missing in the result", axis.name)),
        }
    }
    match result.iter().find(|a| wanted.iter().all(|w| w.name != a.name)) {
        Some(extra) => Err(format!("axis `{}` of the result comes from no operand", extra.name)),
        None => Ok(()),
    }
}

/// Equal dtype and axes; what an integer indexes is not part of the rule.
pub(super) fn same(result: &TensorType, wanted: &TensorType) -> Result<(), String> {
    if result.dtype == wanted.dtype && result.axes == wanted.axes {
        Ok(())
    } else {
        Err(format!("is {}, the rule gives {}", long(result), long(wanted)))
    }
}

/// A type with lengths, for errors.
fn long(ty: &TensorType) -> String {
    let axes: Vec<String> = ty
        .axes
        .iter()
        .map(|a| match a.extent {
            Extent::Fixed(n) => format!("{}={n}", a.name),
            Extent::Rows => a.name.clone(),
        })
        .collect();
    format!("{}[{}]", ty.dtype, axes.join(", "))
}
