//! Alignment by axis name: lengths, strides, and walking several tensors at once.

use crate::Tensor;
use crate::error::{InterpError, broken};
use ir::{Extent, TensorType};

/// Axes of a result: names and order from its type, lengths from the type or, for row axes, from the operands.
///
/// Operands come with the axes that the operation consumes. Breaks `rule` where an operand disagrees with the type, or
/// two operands with each other.
pub(crate) fn result_axes(
    rule: &'static str,
    ty: &TensorType,
    operands: &[(&Tensor, &[&str])],
) -> Result<Vec<(String, usize)>, InterpError> {
    let mut axes = Vec::with_capacity(ty.axes.len());
    for axis in &ty.axes {
        let mut length = match axis.extent {
            Extent::Fixed(n) => Some(usize::try_from(n).map_err(|_| too_long(rule, &axis.name, n))?),
            Extent::Rows => None,
        };
        for found in operands
            .iter()
            .filter(|(_, consumed)| !consumed.contains(&axis.name.as_str()))
            .filter_map(|(t, _)| t.length(&axis.name))
        {
            match length {
                Some(n) if n != found => {
                    return Err(broken(rule, format!("axis `{}` is {n} long here and {found} there", axis.name)));
                }
                _ => length = Some(found),
            }
        }
        let length =
            length.ok_or_else(|| broken(rule, format!("no operand has the axis `{}` of the result", axis.name)))?;
        axes.push((axis.name.clone(), length));
    }
    Ok(axes)
}

fn too_long(rule: &'static str, axis: &str, n: u64) -> InterpError {
    broken(rule, format!("axis `{axis}` is {n} long, more than this machine can address"))
}

/// Row-major strides of a list of axes.
pub(crate) fn strides(axes: &[(String, usize)]) -> Vec<usize> {
    let mut strides = vec![1; axes.len()];
    for i in (1..axes.len()).rev() {
        strides[i - 1] = strides[i] * axes[i].1;
    }
    strides
}

/// Stride of the operand along every axis of `space`, 0 where it does not have the axis.
///
/// Breaks `rule` if the operand has an axis that neither `space` nor `consumed` names, or one of another length.
pub(crate) fn aligned(
    rule: &'static str,
    operand: &Tensor,
    space: &[(String, usize)],
    consumed: &[&str],
) -> Result<Vec<usize>, InterpError> {
    let own = strides(operand.axes());
    for (name, length) in operand.axes() {
        if consumed.contains(&name.as_str()) {
            continue;
        }
        match space.iter().find(|a| a.0 == *name) {
            None => return Err(broken(rule, format!("{operand} has the axis `{name}`, the result does not"))),
            Some((_, n)) if n != length => {
                return Err(broken(rule, format!("axis `{name}` is {length} long in {operand} and {n} in the result")));
            }
            Some(_) => {}
        }
    }
    Ok(space
        .iter()
        .map(|(name, _)| if consumed.contains(&name.as_str()) { 0 } else { operand.axis(name).map_or(0, |i| own[i]) })
        .collect())
}

/// Visits every index of `space` in row-major order with the offsets that go with it.
pub(crate) fn walk<const N: usize>(
    space: &[(String, usize)],
    strides: [&[usize]; N],
    mut visit: impl FnMut([usize; N]) -> Result<(), InterpError>,
) -> Result<(), InterpError> {
    if space.iter().any(|a| a.1 == 0) {
        return Ok(());
    }
    let mut index = vec![0usize; space.len()];
    let mut offsets = [0usize; N];
    loop {
        visit(offsets)?;
        let mut d = space.len();
        loop {
            if d == 0 {
                return Ok(());
            }
            d -= 1;
            index[d] += 1;
            for (offset, stride) in offsets.iter_mut().zip(strides) {
                *offset += stride[d];
            }
            if index[d] < space[d].1 {
                break;
            }
            for (offset, stride) in offsets.iter_mut().zip(strides) {
                *offset -= stride[d] * space[d].1;
            }
            index[d] = 0;
        }
    }
}
