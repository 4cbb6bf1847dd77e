//! Parts of an axis: `x[axis 1..]`, `sum(t in axis: …)`, and what `concat` puts together again.

use super::Elab;
use super::axes::fixed;
use super::value::{Tensor, Val, Vector};
use crate::Diagnostic;
use crate::ast::{Expr, Ident};
use crate::stop::{Res, refuse};
use ir::{Axis, Binary, ConstExpr, DType, Op, Span, TensorType};

/// Longest axis that a sum is written out along.
const MOST_TERMS: u64 = 64;

impl Elab<'_> {
    /// `x[axis i]`, `x[axis a..b]`, `x[axis a..]`.
    pub(super) fn part(
        &mut self,
        base: &Expr,
        axis: &Ident,
        (start, range, end): (&Expr, bool, Option<&Expr>),
        span: Span,
    ) -> Res<Val> {
        let val = self.expr(base, None)?;
        let t = self.tensor(val, base.span)?;
        let t = self.with_axis(t, &axis.text, axis.span)?;
        let Some(found) = t.ty.axes.iter().find(|a| a.name == axis.text && !a.is_rows()).cloned() else {
            return refuse(
                Diagnostic::error("B0265", format!("`{}` is an axis of rows, and rows stay apart", axis.text))
                    .at(axis.span, "cannot be cut")
                    .help("cut an axis of fixed length"),
            );
        };
        let length = fixed(&found);
        let first = self.place(start, length.saturating_sub(1), &found)?;
        let last = match end {
            Some(e) => self.place(e, length, &found)?,
            None if range => length,
            None => first + 1,
        };
        if last <= first {
            let d = Diagnostic::error("B0254", format!("the part of `{}` from {first} to {last} is empty", axis.text));
            return refuse(d.at(span, "nothing here").help("write a range whose end is larger than its start"));
        }
        let into = if range { Some(self.part_name(&found, first, last, span)?) } else { None };
        let mut axes = t.ty.axes.clone();
        let at = axes.iter().position(|a| *a == found).unwrap_or(0);
        match &into {
            Some(name) => axes[at] = Axis::fixed(name.clone(), last - first),
            None => drop(axes.remove(at)),
        }
        let ty = TensorType { axes, ..t.ty.clone() };
        let (value, origin) = (t.value, t.origin);
        let op = Op::Slice { axis: found.name, start: first, len: last - first, into };
        let out = self.emit(op, &[t], ty, span)?;
        Ok(Val::Tensor(Tensor { value, origin, ..out }))
    }

    /// A whole number from 0 to `most`.
    fn place(&mut self, e: &Expr, most: u64, axis: &Axis) -> Res<u64> {
        let number = match self.expr(e, None)? {
            Val::Const(c) => c.number(),
            _ => None,
        };
        match number {
            Some(x) if x >= 0.0 && x.fract() == 0.0 && x <= most as f64 => Ok(x as u64),
            _ => refuse(
                Diagnostic::error("B0254", format!("the index is no whole number up to {most}"))
                    .at(e.span, format!("`{}` has {} entries", axis.name, fixed(axis)))
                    .help(format!("write a whole number from 0 to {most}")),
            ),
        }
    }

    /// The axis that a range is: the whole one, or a declared part of it.
    fn part_name(&self, axis: &Axis, first: u64, last: u64, span: Span) -> Res<String> {
        if first == 0 && last == fixed(axis) {
            return Ok(axis.name.clone());
        }
        let mut at = 0;
        for (name, length) in self.resolved.sums.get(&axis.name).into_iter().flatten() {
            if (at, at + length) == (first, last) && name.parse::<u64>().is_err() {
                return Ok(name.clone());
            }
            at += length;
        }
        refuse(
            Diagnostic::error("B0254", format!("no axis is the part of `{}` from {first} to {last}", axis.name))
                .at(span, "has no name")
                .help(format!("declare it: [axes] {} = \"{first} + rest\"", axis.name)),
        )
    }

    /// `sum(t in axis: term)`: the terms written out, added from the first to the last.
    pub(super) fn each(&mut self, function: &Ident, index: &Ident, axis: &Ident, term: &Expr, span: Span) -> Res<Val> {
        if function.text != "sum" {
            return refuse(
                Diagnostic::error("B0263", format!("`{}` does not run along an axis", function.text))
                    .at(span, "only `sum` does")
                    .help("write sum(t in axis: …)"),
            );
        }
        self.read.insert(("dims", axis.text.clone()));
        let Some(length) = self.resolved.facts.dims.get(&axis.text).copied().filter(|n| (1..=MOST_TERMS).contains(n))
        else {
            return refuse(
                Diagnostic::error(
                    "B0254",
                    format!("a sum is written out along a dimension of 1 to {MOST_TERMS} entries"),
                )
                .at(axis.span, "not such a dimension")
                .help("write sum(x, over = axis) for a longer one"),
            );
        };
        let mut total: Option<Tensor> = None;
        for i in 0..length {
            let known = Val::Const(ConstExpr::Num(i as f64));
            self.frame().scopes.push([(index.text.clone(), known)].into());
            let value = self.expr(term, None).and_then(|v| self.tensor(v, term.span));
            self.frame().scopes.pop();
            let value = value?;
            total = Some(match total {
                None => value,
                Some(sum) => self.binary(Binary::Add, sum, value, span)?,
            });
        }
        match total {
            Some(t) => Ok(Val::Tensor(t)),
            None => refuse(super::index::no_axes(span)),
        }
    }

    /// `fill(number, axis)`: the same number along an axis.
    pub(super) fn fill(&mut self, number: &Expr, axis: &Expr) -> Res<Val> {
        let mut vector = self.iota(axis)?;
        let x = match self.expr(number, None)? {
            Val::Const(c) => c.number(),
            _ => None,
        };
        let Some(x) = x else {
            return refuse(
                Diagnostic::error("B0267", "what fills an axis is a constant")
                    .at(number.span, "known only when a step arrives")
                    .help("write a number, or the name of a value"),
            );
        };
        vector.data.iter_mut().for_each(|entry| *entry = x);
        Ok(Val::Vector(vector))
    }

    /// Joins the two parts of an axis that is declared as their sum; nothing if no such axis is meant.
    pub(super) fn joined(&mut self, vals: &[Val; 2], span: Span) -> Res<Option<Tensor>> {
        let last = |val: &Val| match val {
            Val::Tensor(t) => t.ty.axes.last().filter(|a| !a.is_rows()).map(|a| a.name.clone()),
            Val::Vector(v) => v.axes.last().map(|a| a.name.clone()),
            _ => None,
        };
        let ends = [last(&vals[0]), last(&vals[1])];
        let is = |part: &(String, u64), end: &Option<String>| end.as_ref() == Some(&part.0);
        let found = self.resolved.sums.iter().find_map(|(whole, parts)| match parts.as_slice() {
            [a, b] if is(a, &ends[0]) || is(b, &ends[1]) => Some((whole.clone(), [a.clone(), b.clone()])),
            _ => None,
        });
        let Some((whole, parts)) = found else { return Ok(None) };
        let axis = Axis::fixed(whole, parts[0].1 + parts[1].1);
        match vals {
            [Val::Tensor(a), Val::Tensor(b)] if is(&parts[0], &ends[0]) && is(&parts[1], &ends[1]) => {
                let outer = |t: &Tensor| t.ty.axes[..t.ty.axes.len() - 1].to_vec();
                if outer(a) != outer(b) || a.ty.dtype != b.ty.dtype {
                    return refuse(not_joined(&axis, format!("{} and {}", a.ty, b.ty), span));
                }
                let ty = TensorType { axes: [outer(a), vec![axis.clone()]].concat(), ..a.ty.clone() };
                let value = a.value && b.value;
                let out = self.emit(Op::Concat { into: axis.name }, &[a.clone(), b.clone()], ty, span)?;
                Ok(Some(Tensor { value, ..out }))
            }
            // One element of each row, and numbers that are known.
            [Val::Tensor(one), Val::Vector(rest)] if parts[0].1 == 1 && !is(&parts[0], &ends[0]) => {
                self.padded(one, rest, &axis, 0, span).map(Some)
            }
            [Val::Vector(rest), Val::Tensor(one)] if parts[1].1 == 1 && !is(&parts[1], &ends[1]) => {
                self.padded(one, rest, &axis, fixed(&axis) - 1, span).map(Some)
            }
            _ => refuse(not_joined(&axis, format!("{} and {}", vals[0].what(), vals[1].what()), span)),
        }
    }

    /// `one` at place `at` of the axis, the numbers of `rest` at the others.
    fn padded(&mut self, one: &Tensor, rest: &Vector, axis: &Axis, at: u64, span: Span) -> Res<Tensor> {
        let dtype = if one.ty.dtype == DType::I32 { DType::I32 } else { DType::F32 };
        let fits = |x: &&f64| dtype == DType::F32 || (x.fract() == 0.0 && x.abs() < f64::from(1 << 24));
        if one.ty.dtype != dtype || !rest.data.iter().all(|x| fits(&x)) {
            return refuse(not_joined(axis, format!("{} and other numbers", one.ty), span));
        }
        let place = |i: u64| if i == at { 1.0 } else { 0.0 };
        let mut data: Vec<f32> = rest.data.iter().map(|x| *x as f32).collect();
        data.insert((at as usize).min(data.len()), 0.0);
        let of = |dtype| TensorType::new(dtype, vec![axis.clone()]);
        let chosen = self.emit(Op::Literal((0..fixed(axis)).map(place).collect()), &[], of(DType::Bool), span)?;
        let numbers = self.emit(Op::Literal(data), &[], of(dtype), span)?;
        let ty = TensorType { axes: [one.ty.axes.clone(), vec![axis.clone()]].concat(), ..one.ty.clone() };
        Ok(self.emit(Op::Select, &[chosen, one.clone(), numbers], ty, span)?.into_value())
    }
}

fn not_joined(axis: &Axis, found: String, span: Span) -> Diagnostic {
    Diagnostic::error("B0270", format!("`{}` is not made of {found}", axis.name))
        .at(span, "joined here")
        .help("its parts have one dtype and the same axes in front; one element of a row goes with numbers from `fill`")
}
