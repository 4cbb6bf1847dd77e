//! Element-wise functions: `unary`, `binary`, `fma`, `select`.

use super::{bools, ints, numbers, result_dtype};
use crate::error::{InterpError, broken};
use crate::shape::{aligned, result_axes, walk};
use crate::tensor::{Data, Tensor};
use ir::{Binary, DType, TensorType, Unary};

/// `unary`: one function of every element.
pub(crate) fn unary(function: Unary, x: &Tensor, ty: &TensorType) -> Result<Tensor, InterpError> {
    let space = result_axes("unary C1", ty, &[(x, &[])])?;
    let strides = aligned("unary C1", x, &space, &[])?;
    if function == Unary::Not {
        result_dtype("unary C3", ty, DType::Bool)?;
        let v = bools("unary C3", x)?;
        let mut out = Vec::new();
        walk(&space, [&strides], |[i]| {
            out.push(!v[i]);
            Ok(())
        })?;
        return Tensor::new(space, DType::Bool, Data::Bool(out));
    }
    result_dtype("unary C2", ty, DType::F32)?;
    let v = numbers("unary C2", x)?;
    let f: fn(f32) -> f32 = match function {
        Unary::Neg => |x| -x,
        Unary::Abs => f32::abs,
        Unary::Sqrt => f32::sqrt,
        Unary::Exp => numerics::exp,
        Unary::Log1p => numerics::log1p,
        Unary::Tanh => numerics::tanh,
        Unary::Sigmoid => numerics::sigmoid,
        Unary::Sin => numerics::sin,
        Unary::Cos => numerics::cos,
        Unary::Not => |x| x,
    };
    let mut out = Vec::new();
    walk(&space, [&strides], |[i]| {
        out.push(f(v[i]));
        Ok(())
    })?;
    Tensor::new(space, DType::F32, Data::F32(out))
}

/// `binary`: one function of every pair, aligned by axis name.
pub(crate) fn binary(function: Binary, a: &Tensor, b: &Tensor, ty: &TensorType) -> Result<Tensor, InterpError> {
    let space = result_axes("binary C1", ty, &[(a, &[]), (b, &[])])?;
    let strides = [aligned("binary C1", a, &space, &[])?, aligned("binary C1", b, &space, &[])?];
    let strides = [&strides[0][..], &strides[1][..]];
    if !function.is_predicate() {
        result_dtype("binary C2", ty, DType::F32)?;
        let (x, y) = (numbers("binary C2", a)?, numbers("binary C2", b)?);
        let f: fn(f32, f32) -> f32 = match function {
            Binary::Add => |a, b| a + b,
            Binary::Sub => |a, b| a - b,
            Binary::Mul => |a, b| a * b,
            Binary::Div => |a, b| a / b,
            Binary::Max => numerics::max_f32,
            _ => numerics::min_f32,
        };
        let mut out = Vec::new();
        walk(&space, strides, |[i, j]| {
            out.push(f(x[i], y[j]));
            Ok(())
        })?;
        return Tensor::new(space, DType::F32, Data::F32(out));
    }
    result_dtype("binary C4", ty, DType::Bool)?;
    let mut out = Vec::new();
    let mut push = |holds: bool| {
        out.push(holds);
        Ok(())
    };
    match (function, a.data(), b.data()) {
        (Binary::And, Data::Bool(x), Data::Bool(y)) => walk(&space, strides, |[i, j]| push(x[i] && y[j]))?,
        (Binary::Or, Data::Bool(x), Data::Bool(y)) => walk(&space, strides, |[i, j]| push(x[i] || y[j]))?,
        (Binary::And | Binary::Or, ..) => {
            return Err(broken("binary C3", format!("{} of {a} and {b}", function.word())));
        }
        (Binary::Eq, Data::Bool(x), Data::Bool(y)) => walk(&space, strides, |[i, j]| push(x[i] == y[j]))?,
        (Binary::Eq, Data::I32(x), Data::I32(y)) => walk(&space, strides, |[i, j]| push(x[i] == y[j]))?,
        (Binary::Lt, Data::I32(x), Data::I32(y)) => walk(&space, strides, |[i, j]| push(x[i] < y[j]))?,
        (Binary::Le, Data::I32(x), Data::I32(y)) => walk(&space, strides, |[i, j]| push(x[i] <= y[j]))?,
        (function, ..) => {
            let (x, y) = (numbers("binary C3", a)?, numbers("binary C3", b)?);
            walk(&space, strides, |[i, j]| {
                push(match function {
                    Binary::Eq => x[i] == y[j],
                    Binary::Lt => x[i] < y[j],
                    _ => x[i] <= y[j],
                })
            })?;
        }
    }
    Tensor::new(space, DType::Bool, Data::Bool(out))
}

/// `fma`: `a * b + c` with one rounding.
pub(crate) fn fma(a: &Tensor, b: &Tensor, c: &Tensor, ty: &TensorType) -> Result<Tensor, InterpError> {
    let space = result_axes("fma C1", ty, &[(a, &[]), (b, &[]), (c, &[])])?;
    result_dtype("fma C2", ty, DType::F32)?;
    let (x, y, z) = (numbers("fma C2", a)?, numbers("fma C2", b)?, numbers("fma C2", c)?);
    let sa = aligned("fma C1", a, &space, &[])?;
    let sb = aligned("fma C1", b, &space, &[])?;
    let sc = aligned("fma C1", c, &space, &[])?;
    let mut out = Vec::new();
    walk(&space, [&sa, &sb, &sc], |[i, j, k]| {
        out.push(x[i].mul_add(y[j], z[k]));
        Ok(())
    })?;
    Tensor::new(space, DType::F32, Data::F32(out))
}

/// `select`: `a` where the condition holds, else `b`.
pub(crate) fn select(condition: &Tensor, a: &Tensor, b: &Tensor, ty: &TensorType) -> Result<Tensor, InterpError> {
    let space = result_axes("select C1", ty, &[(condition, &[]), (a, &[]), (b, &[])])?;
    let holds = bools("select C2", condition)?;
    let sc = aligned("select C1", condition, &space, &[])?;
    let sa = aligned("select C1", a, &space, &[])?;
    let sb = aligned("select C1", b, &space, &[])?;
    fn pick<T: Copy>(
        space: &[(String, usize)],
        strides: [&[usize]; 3],
        holds: &[bool],
        x: &[T],
        y: &[T],
    ) -> Result<Vec<T>, InterpError> {
        let mut out = Vec::new();
        walk(space, strides, |[c, i, j]| {
            out.push(if holds[c] { x[i] } else { y[j] });
            Ok(())
        })?;
        Ok(out)
    }
    let strides = [&sc[..], &sa[..], &sb[..]];
    let data = match ty.dtype {
        DType::F32 => {
            let (x, y) = (numbers("select C3", a)?, numbers("select C3", b)?);
            Data::F32(pick(&space, strides, holds, &x, &y)?)
        }
        DType::I32 => Data::I32(pick(&space, strides, holds, ints("select C3", a)?, ints("select C3", b)?)?),
        DType::Bool => Data::Bool(pick(&space, strides, holds, bools("select C3", a)?, bools("select C3", b)?)?),
        DType::Bf16 | DType::E4m3 | DType::E5m2 | DType::Nvfp4 => match (a.floats(), b.floats()) {
            (Some(x), Some(y)) if a.dtype() == ty.dtype && b.dtype() == ty.dtype => {
                Data::F32(pick(&space, strides, holds, x, y)?)
            }
            _ => return Err(broken("select C3", format!("{a} and {b} are not both {}, as {ty} is", ty.dtype))),
        },
    };
    Tensor::new(space, ty.dtype, data)
}
