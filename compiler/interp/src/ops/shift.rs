//! `shift`: elements moved along an axis of known length.

use super::{axis_of, expect_axes, kept_dtype};
use crate::error::{InterpError, broken};
use crate::shape::{aligned, strides, walk};
use crate::tensor::{Data, Tensor};
use ir::TensorType;

/// The element `by` places before; the first `by` places take `fill`, or 0.
pub(crate) fn shift(
    axis: &str,
    by: u64,
    x: &Tensor,
    fill: Option<&Tensor>,
    ty: &TensorType,
) -> Result<Tensor, InterpError> {
    let position = axis_of("shift C1", x, axis)?;
    let n = x.axes()[position].1;
    let by = usize::try_from(by).ok().filter(|by| *by <= n);
    let by = by.ok_or_else(|| broken("shift C1", format!("more places than the {n} of `{axis}`")))?;
    expect_axes("shift C2", ty, x.axes())?;
    kept_dtype("shift C2", ty, x)?;
    let own = strides(x.axes());
    let from_fill = fill.map(|f| aligned("shift C3", f, x.axes(), &[])).transpose()?;
    if fill.is_some_and(|f| f.dtype() != x.dtype() || f.axis(axis).is_some()) {
        return Err(broken("shift C3", format!("{x} is filled with another format, or along `{axis}`")));
    }
    let none = vec![0; x.axes().len()];
    let (step, span) = (own[position], own[position] * n);
    // Per element where it comes from: x, or what fills.
    let mut sources: Vec<Result<usize, usize>> = Vec::with_capacity(x.len());
    walk(x.axes(), [&own, from_fill.as_ref().unwrap_or(&none)], |[i, j]| {
        let place = i % span / step;
        sources.push(if place >= by { Ok(i - by * step) } else { Err(j) });
        Ok(())
    })?;
    fn picked<T: Copy + Default>(x: &[T], fill: Option<&[T]>, sources: &[Result<usize, usize>]) -> Vec<T> {
        let filled = |j: usize| fill.and_then(|f| f.get(j).copied()).unwrap_or_default();
        sources.iter().map(|s| s.map_or_else(filled, |i| x[i])).collect()
    }
    let data = match x.data() {
        Data::F32(v) => Data::F32(picked(v, fill.and_then(Tensor::floats), &sources)),
        Data::I32(v) => Data::I32(picked(v, fill.and_then(Tensor::ints), &sources)),
        Data::Bool(v) => Data::Bool(picked(v, fill.and_then(Tensor::bools), &sources)),
    };
    Tensor::new(x.axes().to_vec(), ty.dtype, data)
}
