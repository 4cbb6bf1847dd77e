//! `linear` and `dot`: sums of products.

use super::sum::{checked, dot as row_dot, sum_of_products};
use super::{NOWHERE, axis_of, floats, ints, result_dtype};
use crate::error::{InterpError, broken};
use crate::shape::{aligned, result_axes, strides, walk};
use crate::tensor::{Data, Tensor};
use ir::{DType, Order, TensorType};

/// Demands that `x` ends with the contracted axes; gives their lengths.
fn contracted(x: &Tensor, contract: &[String]) -> Result<Vec<usize>, InterpError> {
    let skip = x.axes().len().checked_sub(contract.len());
    let tail = skip.and_then(|s| x.axes().get(s..)).unwrap_or_default();
    if contract.is_empty() || tail.len() != contract.len() || tail.iter().zip(contract).any(|(a, c)| a.0 != *c) {
        return Err(broken("linear C1", format!("{x} does not end with [{}]", contract.join(", "))));
    }
    Ok(tail.iter().map(|a| a.1).collect())
}

/// `linear`: x times the transpose of w, or of the slice of w that each row's id names.
pub(crate) fn linear(
    contract: &[String],
    order: &Order,
    x: &Tensor,
    w: &Tensor,
    ids: Option<&Tensor>,
    ty: &TensorType,
) -> Result<Tensor, InterpError> {
    let (kx, kw) = (contracted(x, contract)?, contracted(w, contract)?);
    if kx != kw {
        return Err(broken("linear C2", format!("{x} against {w}")));
    }
    let k: usize = kx.iter().product();
    checked("linear C7", order, k)?;
    let (xv, wv) = (floats("linear C3", x)?, floats("linear C3", w)?);
    result_dtype("linear C3", ty, DType::F32)?;

    // Free axes of w: those that are neither contracted nor, with ids, the first.
    let first_free = usize::from(ids.is_some());
    let free = w.axes().get(first_free..w.axes().len() - contract.len());
    let free = free.ok_or_else(|| broken("linear C4", format!("{w} has no axis that ids could index")))?;
    let outputs: usize = free.iter().map(|a| a.1).product();
    let batch_axes = ty.axes.len().checked_sub(free.len()).and_then(|n| ty.axes.get(..n)).unwrap_or_default();
    let batch_ty = TensorType::new(ty.dtype, batch_axes.to_vec());
    let consumed: Vec<&str> = contract.iter().map(String::as_str).collect();
    let mut operands: Vec<(&Tensor, &[&str])> = vec![(x, &consumed)];
    operands.extend(ids.map(|i| (i, &[][..])));
    let batch = result_axes("linear C5", &batch_ty, &operands)?;
    let mut axes = batch.clone();
    axes.extend_from_slice(free);
    super::expect_axes("linear C5", ty, &axes)?;
    let from_x = aligned("linear C5", x, &batch, &consumed)?;

    let mut out = Vec::with_capacity(crate::tensor::elements(&axes)?);
    let row_of = |out: &mut Vec<f32>, x_at: usize, w_at: usize| {
        let row = &xv[x_at..x_at + k];
        out.extend((0..outputs).map(|n| row_dot(order, row, &wv[w_at + n * k..w_at + (n + 1) * k])));
    };
    match ids {
        None => walk(&batch, [&from_x], |[at]| {
            row_of(&mut out, at, 0);
            Ok(())
        })?,
        Some(ids) => {
            let picks = ints("linear C4", ids)?;
            let from_ids = aligned("linear C5", ids, &batch, &[])?;
            let slices = w.axes()[0].1;
            walk(&batch, [&from_x, &from_ids], |[at, pick]| {
                let id = picks[pick];
                if id == NOWHERE {
                    out.extend(std::iter::repeat_n(numerics::ABSENT, outputs));
                    return Ok(());
                }
                let slice = usize::try_from(id).ok().filter(|i| *i < slices).ok_or_else(|| {
                    broken("linear C6", format!("id {id} is outside `{}`, which has {slices}", w.axes()[0].0))
                })?;
                row_of(&mut out, at, slice * outputs * k);
                Ok(())
            })?;
        }
    }
    Tensor::new(axes, DType::F32, Data::F32(out))
}

/// `dot`: sum of products over one axis, others aligned by name.
pub(crate) fn dot(axis: &str, order: &Order, a: &Tensor, b: &Tensor, ty: &TensorType) -> Result<Tensor, InterpError> {
    let (pa, pb) = (axis_of("dot C1", a, axis)?, axis_of("dot C1", b, axis)?);
    let n = a.axes()[pa].1;
    if b.axes()[pb].1 != n {
        return Err(broken("dot C1", format!("`{axis}` is {n} long in {a}, not so in {b}")));
    }
    checked("dot C4", order, n)?;
    let consumed = [axis];
    let space = result_axes("dot C2", ty, &[(a, &consumed), (b, &consumed)])?;
    let from_a = aligned("dot C2", a, &space, &consumed)?;
    let from_b = aligned("dot C2", b, &space, &consumed)?;
    let (av, bv) = (floats("dot C3", a)?, floats("dot C3", b)?);
    result_dtype("dot C3", ty, DType::F32)?;
    let (sa, sb) = (strides(a.axes())[pa], strides(b.axes())[pb]);
    let mut out = Vec::new();
    walk(&space, [&from_a, &from_b], |[i, j]| {
        out.push(sum_of_products(order, n, &|t| (av[i + t * sa], bv[j + t * sb])));
        Ok(())
    })?;
    Tensor::new(space, DType::F32, Data::F32(out))
}
