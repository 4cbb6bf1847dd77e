//! Type rules of products, stores and attention.

use super::operation::{Level, Operands, broadcast, same, same_set};
use crate::{Axis, DType, Extent, Facts, KvKind, KvRef, Op, TensorType, Type};

pub(super) fn linear(operands: &Operands<'_>, result: &TensorType, contract: &[String]) -> Result<(), String> {
    let grouped = operands.ids.len() == 3;
    operands.count(if grouped { 3 } else { 2 })?;
    let (x, w) = (operands.tensor(0)?, operands.tensor(1)?);
    if contract.is_empty() {
        return Err("contracts no axis".to_owned());
    }
    let (Some(x_rest), Some(w_rest)) = (without_end(x, contract), without_end(w, contract)) else {
        return Err(format!("contracts {}, which do not end both operands with equal lengths", contract.join(" ")));
    };
    let ends_equal = x.axes.iter().rev().zip(w.axes.iter().rev()).take(contract.len()).all(|(a, b)| a == b);
    if !ends_equal || !x.dtype.is_float() || !w.dtype.is_float() {
        return Err(format!("multiplies {x} and {w}"));
    }
    let mut rows: Vec<&Axis> = x_rest.iter().collect();
    let mut columns = w_rest;
    if grouped {
        let ids = operands.tensor(2)?;
        let (slices, rest) =
            w_rest.split_first().ok_or_else(|| "picks a slice of a weight without slices".to_owned())?;
        if ids.dtype != DType::I32 || ids.indexes.as_deref().is_some_and(|t| t != slices.name) {
            return Err(format!("picks slices along `{}` by {ids}", slices.name));
        }
        rows.extend(&ids.axes);
        columns = rest;
    }
    let wanted: Vec<&Axis> = rows.iter().copied().chain(columns).collect();
    same_set(&wanted, &result.axes)?;
    if !result.axes.ends_with(columns) {
        return Err("the weight's axes do not end the result".to_owned());
    }
    f32_result(result)
}

/// The axes before the contracted ones, if those end the type.
fn without_end<'a>(ty: &'a TensorType, contract: &[String]) -> Option<&'a [Axis]> {
    let at = ty.axes.len().checked_sub(contract.len())?;
    let (rest, end) = ty.axes.split_at(at);
    end.iter().map(|a| &a.name).eq(contract).then_some(rest)
}

fn f32_result(result: &TensorType) -> Result<(), String> {
    if result.dtype == DType::F32 { Ok(()) } else { Err(format!("leaves {}; a product leaves f32", result.dtype)) }
}

pub(super) fn dot(operands: &Operands<'_>, result: &TensorType, axis: &str) -> Result<(), String> {
    operands.count(2)?;
    let both = operands.all()?;
    let mut full = result.clone();
    let contracted = both.iter().map(|t| t.axes.iter().find(|a| a.name == axis)).collect::<Option<Vec<_>>>();
    let contracted = contracted.ok_or_else(|| format!("`{axis}` is not an axis of both operands"))?;
    if let Some(axis) = contracted.first() {
        full.axes.push((*axis).clone());
    }
    if both.iter().any(|t| !t.dtype.is_float()) || contracted.iter().any(|a| a.is_rows()) {
        return Err(format!("contracts `{axis}` of values that are no floats, or a row axis"));
    }
    broadcast(&both, &full)?;
    f32_result(result)
}

/// The cache kinds that a reference may mean.
fn kinds<'a>(kv: &KvRef, facts: &'a Facts, level: Level<'_>) -> Result<Vec<&'a KvKind>, String> {
    match kv {
        KvRef::Kind(name) => {
            facts.kv_kind(name).map(|k| vec![k]).ok_or_else(|| format!("there is no cache kind `{name}`"))
        }
        KvRef::ByColumn(_) if level != Level::Model => Err("names a cache by column".to_owned()),
        // A kind without a cache is found when classes are made: the block may not run there.
        KvRef::ByColumn(column) => {
            let found = facts.kv.iter().filter(|k| facts.schedule.iter().any(|s| s.get(column) == Some(&k.name)));
            let found: Vec<&KvKind> = found.collect();
            if found.is_empty() { Err(format!("no kind in column `{column}` is a cache kind")) } else { Ok(found) }
        }
    }
}

/// Rows, then the axes of a cache row. A scratch row may be one of a block of known length.
fn rows_then(ty: &TensorType, inner: &[Axis], scratch: bool) -> Result<Vec<Axis>, String> {
    let at = ty.axes.len().checked_sub(inner.len()).filter(|at| ty.axes.get(*at..) == Some(inner));
    let rows = at.and_then(|at| ty.axes.get(..at)).filter(|rows| scratch || rows.iter().all(Axis::is_rows));
    rows.map(<[Axis]>::to_vec).ok_or_else(|| format!("{ty} is not rows of the cache kind"))
}

fn positions(operands: &Operands<'_>, index: usize, rows: &[Axis]) -> Result<(), String> {
    let at = operands.tensor(index)?;
    if at.dtype == DType::I32 && at.axes == rows { Ok(()) } else { Err(format!("{at} are not the rows' positions")) }
}

pub(super) fn store(
    operands: &Operands<'_>,
    result: &Type,
    (kv, scratch): (&KvRef, bool),
    facts: &Facts,
    level: Level<'_>,
) -> Result<(), String> {
    let chosen = operands.ids.len() == 4;
    operands.count(if chosen { 4 } else { 3 })?;
    let (k, v) = (operands.tensor(0)?, operands.tensor(1)?);
    for kind in kinds(kv, facts, level)? {
        let rows = rows_then(k, &kind.k, scratch)?;
        if rows_then(v, &kind.v, scratch)? != rows {
            return Err(format!("{k} and {v} have different rows"));
        }
        positions(operands, 2, &rows)?;
        if chosen {
            let live = operands.tensor(3)?;
            if live.dtype != DType::Bool || live.axes != rows {
                return Err(format!("stores where {live} holds, which is no truth value of each row"));
            }
        }
    }
    if !k.dtype.is_float() || !v.dtype.is_float() {
        return Err(format!("stores {} and {}", k.dtype, v.dtype));
    }
    if *result == Type::Cache { Ok(()) } else { Err(format!("leaves {result}, not a cache")) }
}

pub(super) fn attend(
    operands: &Operands<'_>,
    result: &TensorType,
    kv: &KvRef,
    facts: &Facts,
    level: Level<'_>,
) -> Result<(), String> {
    let sunk = operands.ids.len() == 4;
    operands.count(if sunk { 4 } else { 3 })?;
    let q = operands.tensor(0)?;
    let cache = operands.ids.get(1).copied();
    let stored = cache.map(|id| &operands.graph.node(id).op);
    match stored {
        Some(Op::Store { kv: written, .. }) if written == kv => {}
        Some(Op::Store { .. }) => return Err("reads one cache kind from the store of another".to_owned()),
        _ => return Err("reads a cache that is no store's".to_owned()),
    }
    let rows = operands.tensor(2)?.axes.len();
    for kind in kinds(kv, facts, level)? {
        let heads = |axes: &[Axis]| {
            let (last, heads) = axes.split_last()?;
            let count = heads.iter().try_fold(1u64, |n, a| match a.extent {
                Extent::Fixed(m) => n.checked_mul(m),
                Extent::Rows => None,
            })?;
            Some((count, last.clone()))
        };
        let fixed: Vec<Axis> = q.axes.iter().skip(rows).cloned().collect();
        match (heads(&fixed), heads(&kind.k), heads(&kind.v)) {
            (Some((queries, e)), Some((keys, ke)), Some((values, ve)))
                if e == ke && ve.extent == ke.extent && keys == values && keys > 0 && queries % keys == 0 => {}
            _ => return Err(format!("heads of {q} do not fit cache kind `{}`", kind.name)),
        }
    }
    if sunk {
        let sink = operands.tensor(3)?;
        let heads = q.axes.iter().skip(rows).collect::<Vec<_>>();
        if !sink.dtype.is_float() || !sink.axes.iter().eq(heads.iter().rev().skip(1).rev().copied()) {
            return Err(format!("has {sink} as the sink of {q}"));
        }
    }
    // Rows of a block stand apart by an axis of known length as well; then heads and their elements follow.
    let at = operands.tensor(2)?;
    let inside = q.axes.starts_with(&at.axes) && at.axes.first().is_some_and(Axis::is_rows);
    if at.dtype != DType::I32 || !inside || q.axes.iter().skip(at.axes.len()).any(Axis::is_rows) {
        return Err(format!("{at} are not the rows' positions"));
    }
    if !q.dtype.is_float() {
        return Err(format!("asks by {}", q.dtype));
    }
    same(result, &q.with_dtype(DType::F32))
}
