//! Type rules of what drafts and verifies a block of tokens: `shift`, `walk`, `probs`, `accept`.

use super::operation::{Operands, same};
use crate::{AcceptRule, AcceptWhat, Axis, DType, Extent, TensorType, WalkWhat};

/// An axis of known length, no shorter than the way; what fills is of the same format and has the other axes or fewer.
pub(super) fn shift(operands: &Operands<'_>, result: &TensorType, axis: &str, by: u64) -> Result<(), String> {
    let filled = operands.ids.len() == 2;
    operands.count(if filled { 2 } else { 1 })?;
    let x = operands.tensor(0)?;
    match x.axes.iter().find(|a| a.name == axis).map(|a| a.extent) {
        Some(Extent::Fixed(n)) if by <= n => {}
        Some(Extent::Fixed(n)) => return Err(format!("moves {by} places along `{axis}`, which has {n}")),
        Some(Extent::Rows) => return Err(format!("moves along row axis `{axis}`")),
        None => return Err(format!("the operand has no axis `{axis}`")),
    }
    if filled {
        let fill = operands.tensor(1)?;
        let inside = fill.axes.iter().all(|a| a.name != axis && x.axes.contains(a));
        if fill.dtype != x.dtype || !inside {
            return Err(format!("fills {x} with {fill}"));
        }
    }
    same(result, x)
}

/// The rows of a block's operand, and the axes of known length behind them.
fn rows_and(ty: &TensorType, fixed: usize) -> Result<(&[Axis], &[Axis]), String> {
    let at = ty.axes.len().checked_sub(fixed).ok_or_else(|| format!("{ty} has too few axes"))?;
    let (rows, rest) = ty.axes.split_at(at);
    if rows.iter().all(Axis::is_rows) && rest.iter().all(|a| !a.is_rows()) {
        Ok((rows, rest))
    } else {
        Err(format!("{ty} has no {fixed} axes of known length behind its rows"))
    }
}

/// Demands an operand's format and axes.
fn wanted(operands: &Operands<'_>, index: usize, dtype: DType, axes: &[&[Axis]]) -> Result<(), String> {
    let found = operands.tensor(index)?;
    if found.dtype == dtype && found.axes.iter().eq(axes.iter().copied().flatten()) {
        return Ok(());
    }
    Err(format!("operand {index} is {found}, {} is wanted", TensorType::new(dtype, axes.concat())))
}

/// `score[rows, slots, before, cand]`, `ids[rows, slots, cand]`, `temp[rows]`, `coin[rows, slots]`.
pub(super) fn walk(operands: &Operands<'_>, result: &TensorType, what: WalkWhat) -> Result<(), String> {
    operands.count(4)?;
    let (rows, inner) = rows_and(operands.tensor(0)?, 3)?;
    let [slots, before, cand] = inner else { return Err("scores no candidates".to_owned()) };
    wanted(operands, 0, DType::F32, &[rows, inner])?;
    if before.extent != cand.extent {
        return Err(format!("walks from `{}` to `{}`, which have different lengths", before.name, cand.name));
    }
    let (slots, cand) = (std::slice::from_ref(slots), std::slice::from_ref(cand));
    wanted(operands, 1, DType::I32, &[rows, slots, cand])?;
    wanted(operands, 2, DType::F32, &[rows])?;
    wanted(operands, 3, DType::F32, &[rows, slots])?;
    match what {
        WalkWhat::Tokens => same(result, &TensorType::new(DType::I32, [rows, slots].concat())),
        WalkWhat::Probs => same(result, &TensorType::new(DType::F32, [rows, slots, cand].concat())),
    }
}

/// `z[rows, …, vocab]`, and a temperature, a number of tokens and a share of the mass for each row.
pub(super) fn probs(operands: &Operands<'_>, result: &TensorType) -> Result<(), String> {
    operands.count(4)?;
    let z = operands.tensor(0)?;
    let rows: Vec<Axis> = z.axes.iter().take_while(|a| a.is_rows()).cloned().collect();
    if z.axes.len() == rows.len() || !z.dtype.is_float() {
        return Err(format!("draws from {z}, which holds no logits of a known number of tokens"));
    }
    for (index, dtype) in [(1, DType::F32), (2, DType::I32), (3, DType::F32)] {
        wanted(operands, index, dtype, &[&rows])?;
    }
    same(result, &z.with_dtype(DType::F32))
}

/// `tokens[rows, slots]` against `z` or `p[rows, block, vocab]`, where a block is one longer than its slots; for a rule that
/// draws also `ids` and `q[rows, slots, cand]`, `coin[rows, slots]` and `last[rows]`.
pub(super) fn accept(
    operands: &Operands<'_>,
    result: &TensorType,
    rule: AcceptRule,
    what: AcceptWhat,
) -> Result<(), String> {
    operands.count(if rule.draws() { 6 } else { 2 })?;
    let (rows, slots) = rows_and(operands.tensor(0)?, 1)?;
    wanted(operands, 0, DType::I32, &[rows, slots])?;
    let target = operands.tensor(1)?;
    let (target_rows, inner) = rows_and(target, 2)?;
    let [block, vocab] = inner else { return Err("judges by no distribution".to_owned()) };
    let longer =
        |a: Extent, b: Extent| matches!((a, b), (Extent::Fixed(a), Extent::Fixed(b)) if b.checked_add(1) == Some(a));
    if target_rows != rows || !target.dtype.is_float() || !slots.iter().all(|s| longer(block.extent, s.extent)) {
        return Err(format!("judges {} by {target}", operands.tensor(0)?));
    }
    if rule.draws() {
        wanted(operands, 1, DType::F32, &[rows, inner])?;
        let (_, drafted) = rows_and(operands.tensor(2)?, 2)?;
        if !drafted.starts_with(slots) {
            return Err(format!("has candidates {}", operands.tensor(2)?));
        }
        wanted(operands, 2, DType::I32, &[rows, drafted])?;
        wanted(operands, 3, DType::F32, &[rows, drafted])?;
        wanted(operands, 4, DType::F32, &[rows, slots])?;
        wanted(operands, 5, DType::F32, &[rows])?;
    }
    match what {
        AcceptWhat::Count | AcceptWhat::Bonus => same(result, &TensorType::new(DType::I32, rows.to_vec())),
        AcceptWhat::Rest if rule.draws() => {
            same(result, &TensorType::new(DType::F32, [rows, std::slice::from_ref(vocab)].concat()))
        }
        AcceptWhat::Rest => Err("a greedy rule leaves no rest".to_owned()),
    }
}
