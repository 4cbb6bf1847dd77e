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
        DType::E4m3 => Data::F32(as_floats()?.into_iter().map(numerics::round_e4m3).collect()),
        DType::E5m2 => Data::F32(as_floats()?.into_iter().map(numerics::round_e5m2).collect()),
        DType::Nvfp4 => return Err(broken("round C2", "nvfp4 needs scales; `block_round` finds them".to_owned())),
        DType::I32 | DType::Bool => return Err(broken("round C2", format!("{to} is not a float format"))),
    };
    Tensor::new(x.axes().to_vec(), to, data)
}

/// `block_round`: nvfp4 in blocks along the trailing axes, which count as one.
pub(crate) fn block_round(over: &[String], x: &Tensor, g: &Tensor, ty: &TensorType) -> Result<Tensor, InterpError> {
    expect_axes("block_round C1", ty, x.axes())?;
    if ty.dtype != DType::Nvfp4 {
        return Err(broken("block_round C1", format!("the result is declared {}, blocks are nvfp4", ty.dtype)));
    }
    let numbers = floats("block_round C2", x)?;
    let (true, [g]) = (g.axes().is_empty(), floats("block_round C3", g)?) else {
        return Err(broken("block_round C3", format!("{g} is no single number")));
    };
    let row = x.axes().len().checked_sub(over.len()).and_then(|at| x.axes().get(at..)).unwrap_or_default();
    let ends = !over.is_empty() && row.iter().map(|a| &a.0).eq(over);
    if !ends || !row.iter().map(|a| a.1).product::<usize>().is_multiple_of(numerics::BLOCK) {
        let (axes, block) = (over.join(", "), numerics::BLOCK);
        return Err(broken("block_round C4", format!("{x} is not whole blocks of {block} along [{axes}]")));
    }
    let (blocks, _) = numbers.as_chunks::<{ numerics::BLOCK }>();
    let values = blocks.iter().flat_map(|block| numerics::Block::of(block, *g).values()).collect();
    Tensor::new(x.axes().to_vec(), DType::Nvfp4, Data::F32(values))
}
