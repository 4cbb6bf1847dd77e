//! `top` and `in_top`: the largest elements along an axis, ties to the lower index, NaN behind every number.

use super::{axis_of, expect_axes, floats, kept_dtype, result_dtype};
use crate::error::{InterpError, broken};
use crate::shape::{strides, walk};
use crate::tensor::{Data, Tensor};
use ir::{DType, TensorType, TopWhat};

/// A walk over every row along one axis: the space of the other axes, the operand's strides there, length and stride of the axis.
struct Rows {
    space: Vec<(String, usize)>,
    outer: Vec<usize>,
    n: usize,
    step: usize,
}

fn rows(rule: &'static str, x: &Tensor, axis: &str, k: u64) -> Result<(Rows, usize), InterpError> {
    let position = axis_of(rule, x, axis)?;
    let n = x.axes()[position].1;
    let k = usize::try_from(k).unwrap_or(usize::MAX);
    if k == 0 || k > n {
        return Err(broken(rule, format!("{k} of {n} elements of `{axis}` are wanted")));
    }
    let mut space = x.axes().to_vec();
    let mut outer = strides(x.axes());
    let step = outer.remove(position);
    space.remove(position);
    Ok((Rows { space, outer, n, step }, k))
}

/// `top`: the k largest, descending.
pub(crate) fn top(
    k: u64,
    axis: &str,
    into: &str,
    what: TopWhat,
    x: &Tensor,
    ty: &TensorType,
) -> Result<Tensor, InterpError> {
    let v = floats("top C2", x)?;
    let (rows, k) = rows("top C1", x, axis, k)?;
    let mut axes = x.axes().to_vec();
    for a in &mut axes {
        if a.0 == axis {
            *a = (into.to_owned(), k);
        }
    }
    expect_axes("top C3", ty, &axes)?;
    // Row-major strides of the result along the same outer axes.
    let mut outer = strides(&axes);
    let step = axes.iter().position(|a| a.0 == into).map_or(1, |i| outer.remove(i));
    let total: usize = axes.iter().map(|a| a.1).product();
    let mut values = vec![0f32; total];
    let mut indices = vec![0i32; total];
    walk(&rows.space, [&rows.outer, &outer], |[from, to]| {
        let row: Vec<f32> = (0..rows.n).map(|i| v[from + i * rows.step]).collect();
        for (rank, i) in numerics::top_ids(&row, k).into_iter().enumerate() {
            values[to + rank * step] = row[i];
            indices[to + rank * step] = i as i32;
        }
        Ok(())
    })?;
    match what {
        TopWhat::Values => {
            kept_dtype("top C4", ty, x)?;
            Tensor::new(axes, ty.dtype, Data::F32(values))
        }
        TopWhat::Ids => {
            result_dtype("top C4", ty, DType::I32)?;
            Tensor::new(axes, DType::I32, Data::I32(indices))
        }
    }
}

/// `in_top`: whether each element is among the k largest.
pub(crate) fn in_top(k: u64, axis: &str, x: &Tensor, ty: &TensorType) -> Result<Tensor, InterpError> {
    let v = floats("in_top C2", x)?;
    let (rows, k) = rows("in_top C1", x, axis, k)?;
    expect_axes("in_top C3", ty, x.axes())?;
    result_dtype("in_top C3", ty, DType::Bool)?;
    let mut out = vec![false; x.len()];
    walk(&rows.space, [&rows.outer], |[from]| {
        let row: Vec<f32> = (0..rows.n).map(|i| v[from + i * rows.step]).collect();
        for i in numerics::top_ids(&row, k) {
            out[from + i * rows.step] = true;
        }
        Ok(())
    })?;
    Tensor::new(x.axes().to_vec(), DType::Bool, Data::Bool(out))
}
