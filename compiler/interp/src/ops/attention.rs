//! `store` and `attend`: the two effects on a cache.

use super::leaf::constant;
use super::sum::{dot, sum, sum_of_products};
use super::{expect_axes, floats, ints, result_dtype};
use crate::cache::CachedRow;
use crate::context::Context;
use crate::error::{Fault, InterpError, broken};
use crate::tensor::{Data, Tensor};
use ir::{ConstExpr, DType, Facts, KvKind, KvRef, Mask, Order, TensorType};
use std::collections::HashMap;

/// The cache kind that a reference names for the layer that runs.
pub(crate) fn kind_of<'f>(
    kv: &KvRef,
    facts: &'f Facts,
    layer: Option<usize>,
) -> Result<(&'f KvKind, usize), InterpError> {
    let layer = layer.ok_or_else(|| Fault::NoLayer("a cache access".to_owned()))?;
    let name = match kv {
        KvRef::Kind(name) => name,
        KvRef::ByColumn(column) => scheduled(facts, layer, column)?,
    };
    let kind = facts.kv_kind(name).ok_or_else(|| Fault::Unknown {
        what: "cache kind",
        name: name.clone(),
        known: facts.kv.iter().map(|k| k.name.as_str()).collect::<Vec<_>>().join(", "),
    })?;
    Ok((kind, layer))
}

/// The layer's kind in a column of the schedule.
pub(crate) fn scheduled<'f>(facts: &'f Facts, layer: usize, column: &str) -> Result<&'f String, InterpError> {
    let unknown = || Fault::Unknown {
        what: "schedule column",
        name: format!("{column} of layer {layer}"),
        known: facts.schedule.first().map(|k| k.keys().cloned().collect::<Vec<_>>().join(", ")).unwrap_or_default(),
    };
    Ok(facts.schedule.get(layer).and_then(|kinds| kinds.get(column)).ok_or_else(unknown)?)
}

/// Names and lengths of a kind's axes, and the number of elements of a row.
fn row_axes(axes: &[ir::Axis]) -> Result<(Vec<(String, usize)>, usize), InterpError> {
    let axes = crate::shape::result_axes("store C2", &TensorType::new(DType::F32, axes.to_vec()), &[])?;
    let n = crate::tensor::elements(&axes)?;
    Ok((axes, n))
}

/// `store`: writes the key and value of every row, or of those that are live, at the row's position.
pub(crate) fn store(
    kv: &KvRef,
    facts: &Facts,
    ctx: &mut Context<'_>,
    [k, v, at]: [&Tensor; 3],
    live: Option<&Tensor>,
) -> Result<(), InterpError> {
    let (kind, layer) = kind_of(kv, facts, ctx.layer)?;
    let positions = ints("store C1", at)?;
    let (keys, values) = (floats("store C1", k)?, floats("store C1", v)?);
    let check = |x: &Tensor, axes: &[ir::Axis]| -> Result<usize, InterpError> {
        let (row, n) = row_axes(axes)?;
        let mut wanted = at.axes().to_vec();
        wanted.extend(row);
        if x.axes() != wanted {
            return Err(broken("store C2", format!("{x} is given for rows {at} of kind `{}`", kind.name)));
        }
        Ok(n)
    };
    let (nk, nv) = (check(k, &kind.k)?, check(v, &kind.v)?);
    let live = live.map(|l| super::bools("store C4", l)).transpose()?;
    if live.is_some_and(|l| l.len() != positions.len()) {
        return Err(broken("store C4", format!("{at} has other rows than what says which of them are stored")));
    }
    for (row, position) in positions.iter().enumerate() {
        if live.is_some_and(|l| !l[row]) {
            continue;
        }
        if *position < 0 {
            return Err(broken("store C3", format!("row {row} has the position {position}")));
        }
        let key = &keys[row * nk..(row + 1) * nk];
        let value = &values[row * nv..(row + 1) * nv];
        ctx.cache.store(&kind.name, layer, row, *position, key, value)?;
    }
    Ok(())
}

/// Positions that a query at `p` may see; without a bound by the query itself, the last is its sequence's `end`.
fn visible(window: Option<u64>, p: i32, end: Option<i32>) -> (i32, i32) {
    let first = match window {
        Some(w) => (i64::from(p) - i64::try_from(w).unwrap_or(i64::MAX)).saturating_add(1).max(0) as i32,
        None => 0,
    };
    (first, end.unwrap_or(p))
}

/// Last position in this step of every row's sequence, where the mask lets a query see that far.
fn sequence_ends(
    mask: Mask,
    kind: &str,
    ctx: &Context<'_>,
    positions: &[i32],
) -> Result<Option<Vec<i32>>, InterpError> {
    if mask == Mask::Causal {
        return Ok(None);
    }
    let sequences = (0..positions.len()).map(|row| ctx.cache.sequence(kind, row)).collect::<Result<Vec<_>, _>>()?;
    let mut ends: HashMap<usize, i32> = HashMap::new();
    for (sequence, position) in sequences.iter().zip(positions) {
        ends.entry(*sequence).and_modify(|end| *end = (*end).max(*position)).or_insert(*position);
    }
    Ok(Some(sequences.iter().map(|sequence| ends[sequence]).collect()))
}

/// What an attention reads besides its operands.
pub(crate) struct Attention<'o> {
    pub(crate) kv: &'o KvRef,
    pub(crate) mask: Mask,
    pub(crate) scale: &'o ConstExpr,
    pub(crate) order: &'o Order,
    /// One more score for each query head, of a row without value.
    pub(crate) sink: Option<&'o Tensor>,
}

/// `attend`: softmax(scale · q·k) v for every row and head.
pub(crate) fn attend(
    op: &Attention<'_>,
    facts: &Facts,
    ctx: &Context<'_>,
    q: &Tensor,
    at: &Tensor,
    ty: &TensorType,
) -> Result<Tensor, InterpError> {
    let (kind, layer) = kind_of(op.kv, facts, ctx.layer)?;
    let positions = ints("attend C1", at)?;
    let queries = floats("attend C1", q)?;
    let scale = constant("the scale", op.scale, ctx.layer)? as f32;
    expect_axes("attend C5", ty, q.axes())?;
    result_dtype("attend C5", ty, DType::F32)?;

    let shape = shape_of(kind, q, at)?;
    let sink_scores = op.sink.map(|s| sinks_of(s, q, at)).transpose()?;
    let ends = sequence_ends(op.mask, &kind.name, ctx, positions)?;
    let mut out = Vec::with_capacity(q.len());
    for (row, position) in positions.iter().enumerate() {
        let (first, last) = visible(kind.window, *position, ends.as_ref().map(|ends| ends[row]));
        let cached = ctx.cache.rows(&kind.name, layer, row, first, last)?;
        if cached.is_empty() {
            return Err(broken("attend C4", format!("row {row} at position {position} sees nothing")));
        }
        if cached.iter().any(|c| c.k.len() != shape.kv_heads * shape.width || c.v.len() != shape.kv_heads * shape.width)
        {
            return Err(broken("attend C3", format!("a cached row of kind `{}` has another width", kind.name)));
        }
        for head in 0..shape.heads {
            let start = (row * shape.heads + head) * shape.width;
            let part = head / (shape.heads / shape.kv_heads) * shape.width;
            let head = Head { scale, sink: sink_scores.as_ref().map(|s| s[head]), part };
            attend_head(op.order, &head, &queries[start..start + shape.width], &cached, &mut out);
        }
    }
    Tensor::new(q.axes().to_vec(), DType::F32, Data::F32(out))
}

/// Heads and their width.
struct Shape {
    heads: usize,
    kv_heads: usize,
    width: usize,
}

fn shape_of(kind: &KvKind, q: &Tensor, at: &Tensor) -> Result<Shape, InterpError> {
    let own = q.axes().strip_prefix(at.axes()).unwrap_or_default();
    let Some(((inner, width), heads)) = own.split_last() else {
        return Err(broken("attend C2", format!("{q} does not consist of the rows {at}, heads and head elements")));
    };
    let ((k, _), (v, _)) = (row_axes(&kind.k)?, row_axes(&kind.v)?);
    let fits = |axes: &[(String, usize)]| axes.last().is_some_and(|(name, n)| name == inner && n == width);
    if !fits(&k) || !fits(&v) {
        return Err(broken("attend C3", format!("{q} against kind `{}`, whose rows are {k:?} and {v:?}", kind.name)));
    }
    let heads: usize = heads.iter().map(|a| a.1).product();
    let of = |axes: &[(String, usize)]| axes.iter().rev().skip(1).map(|a| a.1).product::<usize>();
    let kv_heads = of(&k);
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) || of(&v) != kv_heads {
        return Err(broken("attend C3", format!("{heads} query heads over {kv_heads} heads of kind `{}`", kind.name)));
    }
    Ok(Shape { heads, kv_heads, width: *width })
}

/// The sink scores of all query heads.
fn sinks_of(sink: &Tensor, q: &Tensor, at: &Tensor) -> Result<Vec<f32>, InterpError> {
    let own = q.axes().strip_prefix(at.axes()).unwrap_or_default();
    if own.split_last().is_none_or(|(_, heads)| sink.axes() != heads) {
        return Err(broken("attend C6", format!("{sink} does not have the heads of {q}")));
    }
    Ok(floats("attend C6", sink)?.to_vec())
}

/// What one query head has besides its vector.
struct Head {
    scale: f32,
    sink: Option<f32>,
    /// Where the head's elements start in a cached row.
    part: usize,
}

/// One query vector over the visible rows; appends `q.len()` numbers.
fn attend_head(order: &Order, head: &Head, q: &[f32], cached: &[CachedRow<'_>], out: &mut Vec<f32>) {
    let Head { scale, sink, part } = *head;
    let scores: Vec<f32> = cached.iter().map(|c| dot(order, q, &c.k[part..part + q.len()]) * scale).collect();
    let largest = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, numerics::max_f32);
    // The weight of the sink joins the sum last.
    let sunk = sink.map(|s| numerics::exp(s - largest));
    let weights: Vec<f32> = scores.iter().map(|s| numerics::exp(s - largest)).collect();
    match order {
        Order::Any => {
            // Both sums stay in binary64 and the quotient rounds once, so the result is as near to softmax as f32 weights allow.
            let total: f64 = weights.iter().chain(&sunk).map(|w| f64::from(*w)).sum();
            let mut sums = vec![0f64; q.len()];
            for (w, c) in weights.iter().zip(cached) {
                for (s, v) in sums.iter_mut().zip(&c.v[part..part + q.len()]) {
                    *s += f64::from(*w) * f64::from(*v);
                }
            }
            out.extend(sums.into_iter().map(|s| (s / total) as f32));
        }
        order => {
            let total = sum(order, weights.len(), |i| weights[i]);
            let total = sunk.map_or(total, |sunk| total + sunk);
            out.extend(
                (0..q.len())
                    .map(|e| sum_of_products(order, weights.len(), &|i| (weights[i], cached[i].v[part + e])) / total),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_include_the_query_itself() {
        assert_eq!(visible(Some(3), 7, None), (5, 7));
        assert_eq!(visible(Some(3), 1, None), (0, 1));
        assert_eq!(visible(None, 7, None), (0, 7));
        assert_eq!(visible(None, 7, Some(9)), (0, 9));
        assert_eq!(visible(Some(1), 7, Some(9)), (7, 9));
        assert_eq!(visible(Some(u64::MAX), 7, None), (0, 7));
    }
}
