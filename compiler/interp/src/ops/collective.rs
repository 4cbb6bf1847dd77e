//! What ranks exchange, computed for all of them at once; and ids as a rank's own part sees them.

use super::sum::{checked_sum, sum};
use super::{NOWHERE, axis_of, expect_axes, floats, ints, kept_dtype, result_dtype};
use crate::error::{InterpError, broken, inconsistent};
use crate::shape::{strides, walk};
use crate::tensor::{Data, Tensor};
use ir::{DType, Facts, Mesh, Op, Order, TensorType};
use std::sync::Arc;

/// What surrounds an exchange.
#[derive(Clone, Copy)]
pub struct Ranks<'r> {
    /// The ranks.
    pub mesh: &'r Mesh,
    /// Facts, for the lengths of whole axes.
    pub facts: &'r Facts,
    /// Rows that a rank's step brought along a row axis.
    pub own_rows: &'r dyn Fn(usize, &str) -> Option<usize>,
}

/// The results of an operation of a mesh ([`Op::is_sharded`]) on all ranks, from the operands of all ranks.
///
/// `ty` is the declared type of the result on one rank. Errors cite the constraints of `docs/ops.md`.
pub fn exchange(
    op: &Op,
    ranks: &Ranks<'_>,
    operands: &[Arc<Tensor>],
    ty: &TensorType,
) -> Result<Vec<Arc<Tensor>>, InterpError> {
    if operands.len() as u64 != ranks.mesh.ranks() {
        let (given, wanted) = (operands.len(), ranks.mesh.ranks());
        return Err(inconsistent(format!("{given} ranks take part in an exchange of {wanted}")));
    }
    if let Op::Own { axis, over } = op {
        let own = |(rank, ids): (usize, &Arc<Tensor>)| own(axis, over, rank as u64, ids, ranks, ty).map(Arc::new);
        return operands.iter().enumerate().map(own).collect();
    }
    let over = op.exchanges().ok_or_else(|| inconsistent("an operation that exchanges nothing was to exchange"))?;
    let mut results: Vec<Option<Arc<Tensor>>> = vec![None; operands.len()];
    for rank in 0..operands.len() {
        if results[rank].is_some() {
            continue;
        }
        let members: Vec<usize> = ranks.mesh.group(rank as u64, over).into_iter().map(|r| r as usize).collect();
        let parts: Vec<&Tensor> = members.iter().map(|r| &*operands[*r]).collect();
        match op {
            Op::AllReduce { order, .. } => {
                result_dtype("all_reduce C3", ty, DType::F32)?;
                let total = Arc::new(total(["all_reduce C1", "all_reduce C2"], order, &parts)?);
                expect_axes("all_reduce C3", ty, total.axes())?;
                members.iter().for_each(|r| results[*r] = Some(total.clone()));
            }
            Op::AllGather { axis, into, .. } => {
                let whole = Arc::new(joined(axis, into, &parts, ty)?);
                members.iter().for_each(|r| results[*r] = Some(whole.clone()));
            }
            Op::ReduceScatter { axis, into, .. } => {
                result_dtype("reduce_scatter C3", ty, DType::F32)?;
                let total = total(["reduce_scatter C1", "reduce_scatter C2"], &Order::Serial, &parts)?;
                let position = axis_of("reduce_scatter C2", &total, axis)?;
                let rows = ty.axes.get(position).is_some_and(ir::Axis::is_rows);
                let mut start = 0;
                for r in &members {
                    let len =
                        if rows { (ranks.own_rows)(*r, into) } else { Some(total.axes()[position].1 / parts.len()) };
                    let len =
                        len.ok_or_else(|| broken("reduce_scatter C4", format!("rank {r} has no rows `{into}`")))?;
                    let part = cut(&total, position, into, start, len)?;
                    expect_axes("reduce_scatter C3", ty, part.axes())?;
                    results[*r] = Some(Arc::new(part));
                    start += len;
                }
                if start != total.axes()[position].1 {
                    let n = total.axes()[position].1;
                    return Err(broken("reduce_scatter C4", format!("{n} rows are shared out, ranks have {start}")));
                }
            }
            _ => return Err(inconsistent("an operation that exchanges nothing was to exchange")),
        }
    }
    results.into_iter().map(|r| r.ok_or_else(|| inconsistent("a rank is in no group"))).collect()
}

/// The element-wise sum of the members' tensors, widened first.
fn total(rules: [&'static str; 2], order: &Order, parts: &[&Tensor]) -> Result<Tensor, InterpError> {
    let numbers = parts.iter().map(|p| floats(rules[0], p)).collect::<Result<Vec<_>, _>>()?;
    let first = parts.first().ok_or_else(|| inconsistent("a group without ranks"))?;
    if let Some(other) = parts.iter().find(|p| p.axes() != first.axes()) {
        return Err(broken(rules[1], format!("one rank has {first}, another {other}")));
    }
    checked_sum(rules[1], order, parts.len())?;
    let out = (0..first.len()).map(|i| sum(order, numbers.len(), |rank| numbers[rank][i])).collect();
    Tensor::new(first.axes().to_vec(), DType::F32, Data::F32(out))
}

/// Parts one after the other along an axis.
fn joined(axis: &str, into: &str, parts: &[&Tensor], ty: &TensorType) -> Result<Tensor, InterpError> {
    let first = parts.first().ok_or_else(|| inconsistent("a group without ranks"))?;
    let position = axis_of("all_gather C1", first, axis)?;
    let others = |t: &Tensor| -> Vec<(String, usize)> { t.axes().iter().filter(|a| a.0 != axis).cloned().collect() };
    if let Some(other) = parts.iter().find(|p| p.axis(axis) != Some(position) || others(p) != others(first)) {
        return Err(broken("all_gather C1", format!("one rank has {first}, another {other}")));
    }
    kept_dtype("all_gather C2", ty, first)?;
    let mut axes = first.axes().to_vec();
    axes[position] = (into.to_owned(), parts.iter().map(|p| p.axes()[position].1).sum());
    expect_axes("all_gather C2", ty, &axes)?;
    let outer: usize = axes[..position].iter().map(|a| a.1).product();
    let inner: usize = axes[position + 1..].iter().map(|a| a.1).product();
    let runs = |len: usize, i: usize| i * len * inner..(i + 1) * len * inner;
    let mixed = || broken("all_gather C2", "ranks hold numbers of different kinds");
    macro_rules! join {
        ($of:ident) => {{
            let lists = parts.iter().map(|p| p.$of().ok_or_else(mixed)).collect::<Result<Vec<_>, _>>()?;
            let mut out = Vec::new();
            for i in 0..outer {
                for (part, list) in parts.iter().zip(&lists) {
                    out.extend_from_slice(&list[runs(part.axes()[position].1, i)]);
                }
            }
            out
        }};
    }
    let data = match first.data() {
        Data::F32(_) => Data::F32(join!(floats)),
        Data::I32(_) => Data::I32(join!(ints)),
        Data::Bool(_) => Data::Bool(join!(bools)),
    };
    Tensor::new(axes, ty.dtype, data)
}

/// A contiguous part of an axis under another name.
pub(crate) fn cut(x: &Tensor, position: usize, into: &str, start: usize, len: usize) -> Result<Tensor, InterpError> {
    let mut axes = x.axes().to_vec();
    let from = strides(x.axes());
    let n = axes[position].1;
    if start.checked_add(len).is_none_or(|end| end > n) {
        return Err(inconsistent(format!("elements {start} to {start} + {len} of {x}")));
    }
    axes[position] = (into.to_owned(), len);
    let mut offsets = Vec::new();
    walk(&axes, [&from], |[i]| {
        offsets.push(start * from[position] + i);
        Ok(())
    })?;
    let data = match x.data() {
        Data::F32(v) => Data::F32(offsets.iter().map(|i| v[*i]).collect()),
        Data::I32(v) => Data::I32(offsets.iter().map(|i| v[*i]).collect()),
        Data::Bool(v) => Data::Bool(offsets.iter().map(|i| v[*i]).collect()),
    };
    Tensor::new(axes, x.dtype(), data)
}

/// `own`: ids inside the rank's part of the axis.
fn own(
    axis: &str,
    over: &[String],
    rank: u64,
    ids: &Tensor,
    ranks: &Ranks<'_>,
    ty: &TensorType,
) -> Result<Tensor, InterpError> {
    let numbers = ints("own C1", ids)?;
    expect_axes("own C3", ty, ids.axes())?;
    result_dtype("own C3", ty, DType::I32)?;
    let parts = ranks.mesh.parts(over);
    let whole = ranks.facts.dims.get(axis).copied().filter(|n| n.is_multiple_of(parts));
    let whole = whole.ok_or_else(|| broken("own C2", format!("`{axis}` has no {parts} equal parts")))?;
    let len = (whole / parts) as i64;
    let start = ranks.mesh.place(rank, over) as i64 * len;
    let local = |id: &i32| match i64::from(*id) - start {
        at if (0..len).contains(&at) => at as i32,
        _ => NOWHERE,
    };
    Tensor::new(ids.axes().to_vec(), DType::I32, Data::I32(numbers.iter().map(local).collect()))
}
