//! Operations, one file per family; each check cites the constraint of `docs/ops.md` that it enforces.

pub(crate) mod attention;
pub(crate) mod collective;
pub(crate) mod cut_join;
pub(crate) mod elementwise;
pub(crate) mod gather;
pub(crate) mod leaf;
pub(crate) mod product;
pub(crate) mod reduce;
pub(crate) mod round;
pub(crate) mod selection;
pub(crate) mod shift;
pub(crate) mod speculation;
pub(crate) mod sum;

use crate::error::{InterpError, broken};
use crate::tensor::{Data, Tensor};
use ir::{DType, TensorType};
use std::borrow::Cow;

/// The id that picks nothing: another rank has what it stands for.
pub(crate) const NOWHERE: i32 = -1;

/// The elements of a float operand.
pub(crate) fn floats<'t>(rule: &'static str, x: &'t Tensor) -> Result<&'t [f32], InterpError> {
    x.floats().ok_or_else(|| broken(rule, format!("{x} is not f32 or bf16")))
}

/// The elements of a float or integer operand as binary32; integers beyond 2^24 round to nearest even.
pub(crate) fn numbers<'t>(rule: &'static str, x: &'t Tensor) -> Result<Cow<'t, [f32]>, InterpError> {
    match x.data() {
        Data::F32(v) => Ok(Cow::Borrowed(v)),
        Data::I32(v) => Ok(Cow::Owned(v.iter().map(|i| *i as f32).collect())),
        Data::Bool(_) => Err(broken(rule, format!("{x} is not a number"))),
    }
}

/// The elements of an integer operand.
pub(crate) fn ints<'t>(rule: &'static str, x: &'t Tensor) -> Result<&'t [i32], InterpError> {
    x.ints().ok_or_else(|| broken(rule, format!("{x} is not i32")))
}

/// The elements of a bool operand.
pub(crate) fn bools<'t>(rule: &'static str, x: &'t Tensor) -> Result<&'t [bool], InterpError> {
    x.bools().ok_or_else(|| broken(rule, format!("{x} is not bool")))
}

/// Demands a dtype of the result.
pub(crate) fn result_dtype(rule: &'static str, ty: &TensorType, wanted: DType) -> Result<(), InterpError> {
    if ty.dtype == wanted {
        return Ok(());
    }
    Err(broken(rule, format!("the result is declared {}, it is {wanted}", ty.dtype)))
}

/// Demands that the result keeps the operand's dtype, or widens bf16 to f32.
pub(crate) fn kept_dtype(rule: &'static str, ty: &TensorType, x: &Tensor) -> Result<(), InterpError> {
    if ty.dtype == x.dtype() || (ty.dtype == DType::F32 && x.dtype() == DType::Bf16) {
        return Ok(());
    }
    Err(broken(rule, format!("the result is declared {}, the operand is {x}", ty.dtype)))
}

/// Demands an axis of an operand; gives its position.
pub(crate) fn axis_of(rule: &'static str, x: &Tensor, name: &str) -> Result<usize, InterpError> {
    x.axis(name).ok_or_else(|| broken(rule, format!("{x} has no axis `{name}`")))
}

/// Demands exactly these axes, in this order, of the declared result.
pub(crate) fn expect_axes(rule: &'static str, ty: &TensorType, wanted: &[(String, usize)]) -> Result<(), InterpError> {
    let fits = ty.axes.len() == wanted.len()
        && ty
            .axes
            .iter()
            .zip(wanted)
            .all(|(a, (name, len))| a.name == *name && (a.is_rows() || a.extent == ir::Extent::Fixed(*len as u64)));
    if fits {
        return Ok(());
    }
    let names: Vec<String> = wanted.iter().map(|(name, len)| format!("{name} = {len}")).collect();
    Err(broken(rule, format!("the result is declared {ty}, its axes are [{}]", names.join(", "))))
}
