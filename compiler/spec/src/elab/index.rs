//! What stands behind a value: `x[i]`, `W.x[e]`, `kv[l.column]`, `x as axis`.

use super::Elab;
use super::value::{Tensor, Val, WeightVal};
use crate::Diagnostic;
use crate::ast::{Expr, Ident};
use crate::stop::{Res, refuse};
use ir::{Axis, ConstExpr, DType, KvRef, Op, Span, TensorType};

impl Elab<'_> {
    pub(super) fn index(&mut self, base: &Expr, items: &[Expr], span: Span) -> Res<Val> {
        let base_val = self.expr(base, None)?;
        let [item] = items else {
            return refuse(
                Diagnostic::error("B0251", "one index is expected")
                    .at(span, "another number of them")
                    .help("write one index a bracket: x[a][b]"),
            );
        };
        let item_val = self.expr(item, None)?;
        match (base_val, item_val) {
            (Val::Root(root), Val::Column(column)) if root == "kv" => self.kv_by_column(&column, span),
            (base_val, Val::Const(c)) => {
                let t = self.tensor(base_val, base.span)?;
                self.element(t, &c, span)
            }
            (Val::Weight(w), Val::Tensor(ids)) if w.chosen.is_none() => {
                self.check_index(&ids, &w.ty.axes[0], item.span)?;
                Ok(Val::Weight(WeightVal { chosen: Some(ids), ..w }))
            }
            (base_val, Val::Tensor(ids)) => {
                let t = self.tensor(base_val, base.span)?;
                let axis = match (&ids.ty.indexes, t.ty.axes.first()) {
                    (Some(axis), _) => axis.clone(),
                    (None, Some(first)) => first.name.clone(),
                    (None, None) => return refuse(no_axes(span)),
                };
                let t = self.with_axis(t, &axis, span)?;
                self.gather(t, ids, &axis, span).map(Val::Tensor)
            }
            (_, other) => refuse(
                Diagnostic::error("B0252", "an index is an integer tensor or a constant")
                    .at(item.span, format!("this is {}", other.what()))
                    .help("write a whole number, or ids such as those of `top_ids`"),
            ),
        }
    }

    fn kv_by_column(&mut self, column: &str, span: Span) -> Res<Val> {
        let known = self.frame().kinds.iter().find(|(c, _)| c == column).map(|(_, k)| k.clone());
        let kinds: Vec<String> = match &known {
            Some(kind) => vec![kind.clone()],
            None => self.resolved.facts.schedule.iter().filter_map(|k| k.get(column).cloned()).collect(),
        };
        if let Some(missing) = kinds.iter().find(|k| self.resolved.facts.kv_kind(k).is_none()) {
            let have: Vec<&str> = self.resolved.facts.kv.iter().map(|k| k.name.as_str()).collect();
            return refuse(
                Diagnostic::error("B0253", format!("layers of the kind `{missing}` have no cache kind of that name"))
                    .at(span, format!("cache kinds are {}", have.join(", ")))
                    .help(format!("declare [kv] {missing} = {{ … }}")),
            );
        }
        self.read.extend(kinds.iter().map(|k| ("kv", k.clone())));
        Ok(Val::Kv(match known {
            Some(kind) => KvRef::Kind(kind),
            None => KvRef::ByColumn(column.to_owned()),
        }))
    }

    /// `x[2]`: one element of the first fixed axis.
    fn element(&mut self, t: Tensor, at: &ConstExpr, span: Span) -> Res<Val> {
        let Some(axis) = t.ty.axes.iter().find(|a| !a.is_rows()).cloned() else { return refuse(no_axes(span)) };
        let length = super::axes::fixed(&axis);
        let start = match at.number() {
            Some(x) if x >= 0.0 && x.fract() == 0.0 && (x as u64) < length => x as u64,
            _ => {
                return refuse(
                    Diagnostic::error("B0254", format!("the index is no whole number below {length}"))
                        .at(span, format!("`{}` has {length} entries", axis.name))
                        .help(format!("write a whole number from 0 to {}", length.saturating_sub(1))),
                );
            }
        };
        let axes = t.ty.axes.iter().filter(|a| a.name != axis.name).cloned().collect();
        let ty = TensorType::new(t.ty.dtype, axes);
        let value = t.value;
        let out = self.emit(Op::Slice { axis: axis.name, start, len: 1, into: None }, &[t], ty, span)?;
        Ok(Val::Tensor(Tensor { value, ..out }))
    }

    fn check_index(&self, ids: &Tensor, axis: &Axis, span: Span) -> Res<()> {
        let fits = ids.ty.dtype == DType::I32 && ids.ty.indexes.as_ref().is_none_or(|t| *t == axis.name);
        if fits {
            return Ok(());
        }
        refuse(
            Diagnostic::error("B0252", format!("an index along `{}` is expected", axis.name))
                .at(span, format!("this is {}", ids.ty))
                .help("write a whole number, or ids such as those of `top_ids`"),
        )
    }

    /// Picks along an axis; axes that both have are aligned.
    pub(super) fn gather(&mut self, t: Tensor, ids: Tensor, axis: &str, span: Span) -> Res<Tensor> {
        let Some(at) = t.ty.axis(axis) else { return refuse(no_axes(span)) };
        self.check_index(&ids, &t.ty.axes[at].clone(), span)?;
        let fresh: Vec<Axis> = ids.ty.axes.iter().filter(|a| t.ty.axis(&a.name).is_none()).cloned().collect();
        let mut axes = t.ty.axes.clone();
        axes.splice(at..=at, fresh);
        let (rows, rest): (Vec<Axis>, Vec<Axis>) = axes.into_iter().partition(Axis::is_rows);
        let mut ty = TensorType::new(t.ty.dtype, rows.into_iter().chain(rest).collect());
        ty.indexes = t.ty.indexes.clone();
        let (value, origin) = (t.value, t.origin);
        let out = self.emit(Op::Gather { axis: axis.to_owned() }, &[t, ids], ty, span)?;
        Ok(Tensor { value, origin, ..out })
    }

    pub(super) fn rename(&mut self, base: &Expr, name: &Ident, span: Span) -> Res<Val> {
        let val = self.expr(base, None)?;
        let t = self.tensor(val, base.span)?;
        let last = self.last_axis(&t, base.span)?;
        let length = super::axes::fixed(&last);
        match self.resolved.facts.dims.get(&name.text) {
            Some(n) if *n != length => {
                return refuse(
                    Diagnostic::error(
                        "B0255",
                        format!("`{}` has {n} entries, `{}` has {length}", name.text, last.name),
                    )
                    .at(span, "renamed here")
                    .note(self.resolved.dim_spans.get(&name.text).copied(), format!("{n} entries"))
                    .help(format!("write a name that is no dimension: `as other_{}`", name.text)),
                );
            }
            _ => {}
        }
        let mut axes = t.ty.axes.clone();
        axes.pop();
        axes.push(Axis::fixed(name.text.clone(), length));
        let ty = TensorType { axes, ..t.ty.clone() };
        let value = t.value;
        let out = self.emit(Op::Rename { from: last.name, to: name.text.clone() }, &[t], ty, span)?;
        Ok(Val::Tensor(Tensor { value, ..out }))
    }
}

pub(super) fn no_axes(span: Span) -> Diagnostic {
    Diagnostic::error("B0260", "a value with an axis to pick along is expected")
        .at(span, "it has none")
        .help("leave the index away: the value is a single number")
}
