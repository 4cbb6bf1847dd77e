//! Type rules of reductions, selections, cuts, joins and views.

use super::operation::{Operands, same, same_set};
use crate::{Axis, DType, Extent, Facts, Op, ReduceOp, TensorType, TopWhat};

pub(super) fn shape(op: &Op, operands: &Operands<'_>, result: &TensorType, facts: &Facts) -> Result<(), String> {
    if let Op::Concat { into } = op {
        return concat(operands, result, into);
    }
    if let Op::Gather { axis } = op {
        operands.count(2)?;
        return gather(operands.tensor(0)?, operands.tensor(1)?, result, axis);
    }
    operands.count(1)?;
    let x = operands.tensor(0)?;
    match op {
        Op::Reduce { op, axis, .. } => {
            fixed(x, axis)?;
            let integer = *op == ReduceOp::Max && x.dtype == DType::I32 && result.dtype == DType::I32;
            number(x)?;
            same(result, &replaced(x, axis, &[], if integer { DType::I32 } else { DType::F32 }))
        }
        Op::Top { k, axis, into, what } => {
            let length = fixed(x, axis)?;
            number(x)?;
            if *k == 0 || *k > length {
                return Err(format!("takes the {k} largest of {length}"));
            }
            let dtype = match what {
                TopWhat::Ids => DType::I32,
                // Widening is exact, so both say the same.
                TopWhat::Values if result.dtype == x.dtype => x.dtype,
                TopWhat::Values => DType::F32,
            };
            if *what == TopWhat::Ids && result.indexes.as_ref() != Some(axis) {
                return Err(format!("gives ids that are not marked as indices of `{axis}`"));
            }
            same(result, &replaced(x, axis, &[Axis::fixed(into, *k)], dtype))
        }
        Op::InTop { k, axis } => {
            let length = fixed(x, axis)?;
            number(x)?;
            if *k == 0 || *k > length {
                return Err(format!("asks for the {k} largest of {length}"));
            }
            same(result, &x.with_dtype(DType::Bool))
        }
        Op::Slice { axis, start, len, into } => {
            let length = fixed(x, axis)?;
            if start.checked_add(*len).is_none_or(|end| end > length) || *len == 0 {
                return Err(format!("cuts {len} elements from {start} out of {length}"));
            }
            let part = match into {
                Some(name) => vec![Axis::fixed(name, *len)],
                None if *len == 1 => Vec::new(),
                None => return Err(format!("cuts {len} elements and drops the axis")),
            };
            same(result, &replaced(x, axis, &part, x.dtype))
        }
        Op::Split { axis } => view(x, result, axis, facts),
        Op::Merge { into } => view(result, x, into, facts),
        Op::Rename { from, to } => {
            let found = x.axes.iter().find(|a| a.name == *from).ok_or_else(|| missing(from))?;
            let renamed = Axis { name: to.clone(), extent: found.extent };
            same(result, &replaced(x, from, &[renamed], x.dtype))
        }
        _ => Err("has no type rule".to_owned()),
    }
}

fn missing(axis: &str) -> String {
    format!("the operand has no axis `{axis}`")
}

fn number(x: &TensorType) -> Result<(), String> {
    if x.dtype == DType::Bool { Err("compares or adds bools".to_owned()) } else { Ok(()) }
}

/// Length of an axis that must be fixed.
fn fixed(x: &TensorType, axis: &str) -> Result<u64, String> {
    match x.axes.iter().find(|a| a.name == axis).map(|a| a.extent) {
        Some(Extent::Fixed(n)) => Ok(n),
        Some(Extent::Rows) => Err(format!("works along row axis `{axis}`")),
        None => Err(missing(axis)),
    }
}

/// The type with one axis replaced by others.
fn replaced(x: &TensorType, axis: &str, by: &[Axis], dtype: DType) -> TensorType {
    let mut axes = Vec::new();
    for a in &x.axes {
        if a.name == axis {
            axes.extend_from_slice(by);
        } else {
            axes.push(a.clone());
        }
    }
    TensorType::new(dtype, axes)
}

/// `product` has one axis where `factors` has the factors that the facts name for it, and the lengths agree.
fn view(product: &TensorType, factors: &TensorType, axis: &str, facts: &Facts) -> Result<(), String> {
    let length = fixed(product, axis)?;
    let place = product.axis(axis).ok_or_else(|| missing(axis))?;
    let count = (factors.axes.len() + 1).checked_sub(product.axes.len()).filter(|n| *n > 0);
    let parts = count.and_then(|n| factors.axes.get(place..place + n));
    let parts = parts.ok_or_else(|| format!("axis `{axis}` is not viewed as factors"))?;
    if let Some(names) = facts.products.get(axis)
        && !parts.iter().map(|a| &a.name).eq(names)
    {
        return Err(format!("the factors of `{axis}` are {}", names.join(".")));
    }
    let lengths = parts.iter().try_fold(1u64, |n, a| match a.extent {
        Extent::Fixed(m) => n.checked_mul(m),
        Extent::Rows => None,
    });
    if lengths != Some(length) {
        return Err(format!("the factors of `{axis}` do not multiply to {length}"));
    }
    same(factors, &replaced(product, axis, parts, product.dtype))
}

fn gather(x: &TensorType, ids: &TensorType, result: &TensorType, axis: &str) -> Result<(), String> {
    if ids.dtype != DType::I32 {
        return Err(format!("picks by {}, which is no integer", ids.dtype));
    }
    if ids.indexes.as_deref().is_some_and(|target| target != axis) {
        return Err(format!("picks along `{axis}` by indices of `{}`", ids.indexes.as_deref().unwrap_or_default()));
    }
    x.axis(axis).ok_or_else(|| missing(axis))?;
    if ids.axis(axis).is_some() {
        return Err(format!("the indices have the axis `{axis}` that they select along"));
    }
    let kept = x.axes.iter().filter(|a| a.name != axis).chain(&ids.axes);
    same_set(&kept.collect::<Vec<_>>(), &result.axes)?;
    if result.dtype == x.dtype { Ok(()) } else { Err(format!("picks {} and gives {}", x.dtype, result.dtype)) }
}

fn concat(operands: &Operands<'_>, result: &TensorType, into: &str) -> Result<(), String> {
    let all = operands.all()?;
    let first = all.first().ok_or_else(|| "joins nothing".to_owned())?;
    let mut length = 0u64;
    for x in &all {
        let inner = x.axes.last().ok_or_else(|| "joins a single number".to_owned())?;
        length = length.saturating_add(fixed(x, &inner.name)?);
        let outer = |t: &TensorType| t.axes.split_last().map(|(_, rest)| rest.to_vec()).unwrap_or_default();
        if outer(x) != outer(first) {
            return Err("joins values whose outer axes differ".to_owned());
        }
    }
    let dtype = if all.iter().all(|t| t.dtype == result.dtype) { result.dtype } else { DType::F32 };
    let inner = first.axes.last().map(|a| a.name.clone()).unwrap_or_default();
    same(result, &replaced(first, &inner, &[Axis::fixed(into, length)], dtype))
}
