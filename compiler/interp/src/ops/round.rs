//! `round`: the one operation that narrows.

use super::{expect_axes, floats, ints};
use crate::error::{InterpError, broken};
use crate::tensor::{Data, Tensor};
use ir::{DType, TensorType};

/// Converts every element to the storage format.
pub(crate) fn round(to: DType, x: &Tensor, ty: &TensorType) -> Result<Tensor, InterpError> {
    expect_axes("round C1", ty, x.axes())?;
    if ty.dtype != to {
        return Err(broken("round C2", format!("the result is declared {}, the operation rounds to {to}", ty.dtype)));
    }
    let as_floats = || -> Result<Vec<f32>, InterpError> {
        match x.dtype() {
            DType::I32 => Ok(ints("round C3", x)?.iter().map(|i| *i as f32).collect()),
            _ => Ok(floats("round C3", x)?.to_vec()),
        }
    };
    let data = match to {
        DType::F32 => Data::F32(as_floats()?),
        DType::Bf16 => {
            let mut numbers = as_floats()?;
            numerics::round_bf16_in_place(&mut numbers);
            Data::F32(numbers)
        }
        DType::I32 | DType::Bool => return Err(broken("round C2", format!("{to} is not a float format"))),
    };
    Tensor::new(x.axes().to_vec(), to, data)
}
