//! Operations that quantise a value.

use crate::PassError;
use crate::copying::Copying;
use ir::{Binary, DType, Op, Order, ReduceOp, Span, Unary, ValueId};

/// nvfp4 under a number of the checkpoint.
pub(super) fn blocks(
    to: &mut Copying<'_>,
    x: ValueId,
    contract: &[String],
    number: ValueId,
    span: Option<Span>,
) -> Result<ValueId, PassError> {
    let ty = to.tensor(x)?.with_dtype(DType::Nvfp4);
    let codes = to.add(Op::BlockRound { over: contract.to_vec() }, &[x, number], ty, span);
    to.name_after(codes, x, "codes");
    Ok(codes)
}

/// e4m3 under `s = max |x| / 448`, one for each row: `codes = x * (1 / s)`, 0 where s is 0. Gives codes and s.
pub(super) fn token(
    to: &mut Copying<'_>,
    x: ValueId,
    contract: &[String],
    span: Option<Span>,
) -> Result<(ValueId, ValueId), PassError> {
    let ty = to.tensor(x)?.with_dtype(DType::F32);
    let mut largest = to.add(Op::Unary(Unary::Abs), &[x], ty.clone(), span);
    let mut rows = ty.clone();
    for axis in contract.iter().rev() {
        rows.axes.retain(|a| a.name != *axis);
        let op = Op::Reduce { op: ReduceOp::Max, axis: axis.clone(), order: Order::Fold };
        largest = to.add(op, &[largest], rows.clone(), span);
    }
    let [most, one, zero] = [numerics::E4M3_LARGEST, 1.0, 0.0].map(|x| to.number(x));
    let scale = to.binary(Binary::Div, [largest, most], &rows, span);
    to.name_after(scale, x, "scale");
    let none = to.add(Op::Binary(Binary::Eq), &[scale, zero], rows.with_dtype(DType::Bool), span);
    let inverse = to.binary(Binary::Div, [one, scale], &rows, span);
    let by = to.add(Op::Select, &[none, zero, inverse], rows, span);
    let short = to.binary(Binary::Mul, [x, by], &ty, span);
    // What the quotient leaves above the largest number, rounding puts there.
    let codes = to.add(Op::Round(DType::E4m3), &[short], ty.with_dtype(DType::E4m3), span);
    to.name_after(codes, x, "codes");
    Ok((codes, scale))
}
