//! Type rules of what exchanges data between ranks, and of what depends on the rank.

use super::operation::{Operands, same, sum};
use crate::{Axis, DType, Extent, Facts, Mesh, Op, TensorType};

pub(super) fn collective(
    op: &Op,
    operands: &Operands<'_>,
    result: &TensorType,
    facts: &Facts,
    mesh: &Mesh,
) -> Result<(), String> {
    operands.count(1)?;
    let x = operands.tensor(0)?;
    match op {
        Op::AllReduce { over, order } => {
            group(over, mesh)?;
            sum(order)?;
            float(x)?;
            same(result, &x.with_dtype(DType::F32))
        }
        Op::AllGather { axis, over, into } => {
            group(over, mesh)?;
            let joined = exchanged(x, axis, into, |n| n.checked_mul(mesh.parts(over)))?;
            same(result, &replaced(x, axis, joined, x.dtype))
        }
        Op::ReduceScatter { axis, over, into } => {
            group(over, mesh)?;
            float(x)?;
            let ranks = mesh.parts(over);
            let part = exchanged(x, axis, into, |n| n.is_multiple_of(ranks).then(|| n / ranks))?;
            same(result, &replaced(x, axis, part, DType::F32))
        }
        Op::Own { axis, over } => {
            group(over, mesh)?;
            if x.dtype != DType::I32 || x.indexes.as_ref().is_some_and(|target| target != axis) {
                return Err(format!("{x} are no indices of `{axis}`"));
            }
            match facts.dims.get(axis) {
                Some(n) if n.is_multiple_of(mesh.parts(over)) => {}
                Some(n) => return Err(format!("`{axis}` has length {n}, the mesh {} parts of it", mesh.parts(over))),
                None => return Err(format!("`{axis}` is no axis of the facts")),
            }
            if result.indexes.as_ref() != Some(axis) {
                return Err(format!("gives ids that are not marked as indices of `{axis}`"));
            }
            same(result, x)
        }
        _ => Err("has no type rule".to_owned()),
    }
}

fn float(x: &TensorType) -> Result<(), String> {
    if x.dtype.is_float() { Ok(()) } else { Err(format!("adds {}, which is no float", x.dtype)) }
}

/// Mesh axes exist and stand once.
pub(super) fn group(over: &[String], mesh: &Mesh) -> Result<(), String> {
    if over.is_empty() {
        return Err("names no mesh axis".to_owned());
    }
    for (i, axis) in over.iter().enumerate() {
        if mesh.length(axis) < 2 {
            return Err(format!("the mesh has no axis `{axis}`"));
        }
        if over.iter().take(i).any(|a| a == axis) {
            return Err(format!("names the mesh axis `{axis}` twice"));
        }
    }
    Ok(())
}

/// The axis that stands in the result. Rows become other rows, so they get another name.
fn exchanged(x: &TensorType, axis: &str, into: &str, n: impl Fn(u64) -> Option<u64>) -> Result<Axis, String> {
    let found = x.axes.iter().find(|a| a.name == axis).ok_or_else(|| format!("the operand has no axis `{axis}`"))?;
    match found.extent {
        Extent::Rows if into == axis => Err(format!("gives other rows the name `{axis}` again")),
        Extent::Rows => Ok(Axis::rows(into)),
        Extent::Fixed(length) => {
            let n = n(length).ok_or_else(|| format!("`{axis}` of length {length} does not come out even"))?;
            Ok(Axis::fixed(into, n))
        }
    }
}

fn replaced(x: &TensorType, axis: &str, by: Axis, dtype: DType) -> TensorType {
    let one = |a: &Axis| if a.name == axis { by.clone() } else { a.clone() };
    TensorType::new(dtype, x.axes.iter().map(one).collect())
}
