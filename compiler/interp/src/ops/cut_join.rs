//! `slice`, `concat`, and the views `split`, `merge`, `rename`.

use super::{axis_of, expect_axes, kept_dtype};
use crate::error::{InterpError, broken};
use crate::shape::{aligned, result_axes, strides, walk};
use crate::tensor::{Data, Tensor, elements};
use ir::TensorType;

/// Elements of x in the order of their offsets.
fn picked(x: &Tensor, offsets: &[usize]) -> Data {
    match x.data() {
        Data::F32(v) => Data::F32(offsets.iter().map(|i| v[*i]).collect()),
        Data::I32(v) => Data::I32(offsets.iter().map(|i| v[*i]).collect()),
        Data::Bool(v) => Data::Bool(offsets.iter().map(|i| v[*i]).collect()),
    }
}

/// `slice`: a contiguous part of an axis, renamed or, when it is one element, dropped.
pub(crate) fn slice(
    axis: &str,
    start: u64,
    len: u64,
    into: Option<&str>,
    x: &Tensor,
    ty: &TensorType,
) -> Result<Tensor, InterpError> {
    let position = axis_of("slice C1", x, axis)?;
    let n = x.axes()[position].1;
    let (Ok(first), Ok(count)) = (usize::try_from(start), usize::try_from(len)) else {
        return Err(broken("slice C2", format!("elements {start} to {start} + {len} of `{axis}`, which has {n}")));
    };
    if first.checked_add(count).is_none_or(|end| end > n) {
        return Err(broken("slice C2", format!("elements {start} to {start} + {len} of `{axis}`, which has {n}")));
    }
    let mut axes = x.axes().to_vec();
    let mut from = strides(x.axes());
    let base = first * from[position];
    match into {
        Some(name) => axes[position] = (name.to_owned(), count),
        None if count == 1 => {
            axes.remove(position);
            from.remove(position);
        }
        None => return Err(broken("slice C3", format!("a part of {count} elements has no name"))),
    }
    expect_axes("slice C4", ty, &axes)?;
    kept_dtype("slice C4", ty, x)?;
    let mut offsets = Vec::new();
    walk(&axes, [&from], |[i]| {
        offsets.push(base + i);
        Ok(())
    })?;
    Tensor::new(axes, ty.dtype, picked(x, &offsets))
}

/// `concat`: joins along the innermost axis.
pub(crate) fn concat(into: &str, parts: &[&Tensor], ty: &TensorType) -> Result<Tensor, InterpError> {
    let Some((last, leading)) = ty.axes.split_last() else {
        return Err(broken("concat C2", format!("the result is declared {ty}, without an axis to join along")));
    };
    let mut lengths = Vec::new();
    let mut inner_names = Vec::new();
    for part in parts {
        let Some((name, n)) = part.axes().last() else {
            return Err(broken("concat C1", format!("{part} has no axis to join along")));
        };
        kept_dtype("concat C4", ty, part)?;
        lengths.push(*n);
        inner_names.push([name.as_str()]);
    }
    let joined: usize = lengths.iter().sum();
    if last.name != into || !(last.is_rows() || last.extent == ir::Extent::Fixed(joined as u64)) {
        return Err(broken("concat C2", format!("the result is declared {ty}, the joined axis is {into} = {joined}")));
    }
    let leading = TensorType::new(ty.dtype, leading.to_vec());
    let operands: Vec<(&Tensor, &[&str])> = parts.iter().zip(&inner_names).map(|(t, n)| (*t, &n[..])).collect();
    let space = result_axes("concat C3", &leading, &operands)?;
    let outer: Vec<Vec<usize>> =
        operands.iter().map(|(part, inner)| aligned("concat C3", part, &space, inner)).collect::<Result<_, _>>()?;

    // One walk per part gives the offsets of its runs; the runs are then interleaved.
    let mut starts: Vec<Vec<usize>> = Vec::new();
    for strides in &outer {
        let mut runs = Vec::new();
        walk(&space, [strides], |[i]| {
            runs.push(i);
            Ok(())
        })?;
        starts.push(runs);
    }
    let mut axes = space.clone();
    axes.push((into.to_owned(), joined));
    let rows = elements(&space)?;
    fn interleave<T: Copy>(rows: usize, starts: &[Vec<usize>], lengths: &[usize], parts: &[&[T]]) -> Vec<T> {
        let mut out = Vec::new();
        for row in 0..rows {
            for ((runs, len), part) in starts.iter().zip(lengths).zip(parts) {
                out.extend_from_slice(&part[runs[row]..runs[row] + len]);
            }
        }
        out
    }
    let mixed = || broken("concat C4", format!("the parts of {ty} are of different kinds"));
    let data = match parts.first().map(|p| p.data()) {
        Some(Data::F32(_)) => {
            let parts: Option<Vec<&[f32]>> = parts.iter().map(|p| p.floats()).collect();
            Data::F32(interleave(rows, &starts, &lengths, &parts.ok_or_else(mixed)?))
        }
        Some(Data::I32(_)) => {
            let parts: Option<Vec<&[i32]>> = parts.iter().map(|p| p.ints()).collect();
            Data::I32(interleave(rows, &starts, &lengths, &parts.ok_or_else(mixed)?))
        }
        Some(Data::Bool(_)) => {
            let parts: Option<Vec<&[bool]>> = parts.iter().map(|p| p.bools()).collect();
            Data::Bool(interleave(rows, &starts, &lengths, &parts.ok_or_else(mixed)?))
        }
        None => return Err(broken("concat C1", "there is no part")),
    };
    Tensor::new(axes, ty.dtype, data)
}

/// The same elements under other axes.
fn view(rule: &'static str, x: &Tensor, axes: Vec<(String, usize)>, ty: &TensorType) -> Result<Tensor, InterpError> {
    expect_axes(rule, ty, &axes)?;
    kept_dtype(rule, ty, x)?;
    Tensor::new(axes, ty.dtype, x.data().clone())
}

/// Axes of the declared type from `at` on, `count` of them, with their lengths.
fn declared_run(
    rule: &'static str,
    ty: &TensorType,
    at: usize,
    count: usize,
) -> Result<Vec<(String, usize)>, InterpError> {
    let run = ty.axes.get(at..at + count).unwrap_or_default().to_vec();
    result_axes(rule, &TensorType::new(ty.dtype, run), &[])
}

/// `split`: a product axis seen as its factors.
pub(crate) fn split(axis: &str, x: &Tensor, ty: &TensorType) -> Result<Tensor, InterpError> {
    let position = axis_of("split C1", x, axis)?;
    let count = (ty.axes.len() + 1).saturating_sub(x.axes().len());
    let factors = declared_run("split C2", ty, position, count)?;
    let product = elements(&factors)?;
    if product != x.axes()[position].1 || factors.is_empty() {
        let n = x.axes()[position].1;
        return Err(broken("split C2", format!("`{axis}` has {n} elements, the factors in {ty} have {product}")));
    }
    let mut axes = x.axes().to_vec();
    axes.splice(position..=position, factors);
    view("split C3", x, axes, ty)
}

/// `merge`: adjacent factor axes seen as their product.
pub(crate) fn merge(into: &str, x: &Tensor, ty: &TensorType) -> Result<Tensor, InterpError> {
    let Some(position) = ty.axis(into) else {
        return Err(broken("merge C1", format!("the result {ty} has no axis `{into}`")));
    };
    let count = (x.axes().len() + 1).saturating_sub(ty.axes.len());
    let Some(factors) = x.axes().get(position..position + count).filter(|f| !f.is_empty()) else {
        return Err(broken("merge C1", format!("{x} has no run of axes that {ty} could merge")));
    };
    let product = elements(factors)?;
    let mut axes = x.axes().to_vec();
    axes.splice(position..position + count, [(into.to_owned(), product)]);
    view("merge C2", x, axes, ty)
}

/// `rename`: an axis under another name.
pub(crate) fn rename(from: &str, to: &str, x: &Tensor, ty: &TensorType) -> Result<Tensor, InterpError> {
    let position = axis_of("rename C1", x, from)?;
    let mut axes = x.axes().to_vec();
    axes[position].0 = to.to_owned();
    view("rename C2", x, axes, ty)
}
