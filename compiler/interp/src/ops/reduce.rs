//! `reduce`: one axis summed or searched for its largest element.

use super::sum::{checked_sum, sum};
use super::{axis_of, floats, kept_dtype, numbers, result_dtype};
use crate::error::{InterpError, broken};
use crate::shape::{aligned, result_axes, strides, walk};
use crate::tensor::{Data, Tensor};
use ir::{DType, Order, ReduceOp, TensorType};

/// Reduces `axis` away.
pub(crate) fn reduce(
    op: ReduceOp,
    axis: &str,
    order: &Order,
    x: &Tensor,
    ty: &TensorType,
) -> Result<Tensor, InterpError> {
    let position = axis_of("reduce C1", x, axis)?;
    if ty.axis(axis).is_some() {
        return Err(broken("reduce C2", format!("the result {ty} still has the axis `{axis}`")));
    }
    let space = result_axes("reduce C2", ty, &[(x, &[axis])])?;
    let outer = aligned("reduce C2", x, &space, &[axis])?;
    match op {
        ReduceOp::Sum => result_dtype("reduce C3", ty, DType::F32)?,
        ReduceOp::Max if ty.dtype == DType::F32 => {}
        ReduceOp::Max => {
            floats("reduce C3", x)?;
            kept_dtype("reduce C3", ty, x)?;
        }
    }
    let v = numbers("reduce C3", x)?;
    let (n, step) = (x.axes()[position].1, strides(x.axes())[position]);
    checked_sum("reduce C4", order, n)?;
    let mut out = Vec::new();
    walk(&space, [&outer], |[start]| {
        let element = |i: usize| v[start + i * step];
        out.push(match op {
            ReduceOp::Sum => sum(order, n, element),
            ReduceOp::Max => (0..n).map(element).fold(f32::NEG_INFINITY, numerics::max_f32),
        });
        Ok(())
    })?;
    Tensor::new(space, ty.dtype, Data::F32(out))
}
