//! `gather`: elements picked along an axis by integer ids.

use super::{NOWHERE, axis_of, ints, kept_dtype};
use crate::error::{InterpError, broken};
use crate::shape::{aligned, result_axes, strides, walk};
use crate::tensor::{Data, Tensor};
use ir::TensorType;

/// Picks along `axis` of x; axes common to both operands are aligned.
pub(crate) fn gather(axis: &str, x: &Tensor, ids: &Tensor, ty: &TensorType) -> Result<Tensor, InterpError> {
    let position = axis_of("gather C1", x, axis)?;
    let picks = ints("gather C2", ids)?;
    let consumed = [axis];
    let space = result_axes("gather C3", ty, &[(x, &consumed), (ids, &[])])?;
    let from_x = aligned("gather C3", x, &space, &consumed)?;
    let from_ids = aligned("gather C3", ids, &space, &[])?;
    kept_dtype("gather C4", ty, x)?;
    let (n, step) = (x.axes()[position].1, strides(x.axes())[position]);
    let mut sources = Vec::new();
    walk(&space, [&from_x, &from_ids], |[base, at]| {
        let id = picks[at];
        if id == NOWHERE && x.dtype().is_float() {
            sources.push(None);
            return Ok(());
        }
        let index = usize::try_from(id).ok().filter(|i| *i < n);
        let index = index.ok_or_else(|| broken("gather C5", format!("id {id} is outside `{axis}`, which has {n}")))?;
        sources.push(Some(base + index * step));
        Ok(())
    })?;
    let data = match x.data() {
        Data::F32(v) => Data::F32(sources.iter().map(|i| i.map_or(numerics::ABSENT, |i| v[i])).collect()),
        Data::I32(v) => Data::I32(sources.iter().flatten().map(|i| v[*i]).collect()),
        Data::Bool(v) => Data::Bool(sources.iter().flatten().map(|i| v[*i]).collect()),
    };
    Tensor::new(space, ty.dtype, data)
}
