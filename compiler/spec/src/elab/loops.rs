//! `for … in … { … yield … }`: the body over a whole axis at once.

use super::Elab;
use super::index::no_axes;
use super::value::{Origin, Tensor, Val};
use crate::Diagnostic;
use crate::ast::{Expr, Ident, Stmt};
use crate::diag::counted;
use crate::stop::{Res, Stop, refuse};
use ir::{Axis, DType, Span};

impl Elab<'_> {
    /// `for a, b in x, y { … yield e }`: the body over a whole axis at once; one step sees a single index of it.
    pub(super) fn for_yield(
        &mut self,
        vars: &[Ident],
        over: &[Expr],
        body: &[Stmt],
        hint: Option<DType>,
        span: Span,
    ) -> Res<Val> {
        if vars.len() != over.len() {
            return refuse(
                Diagnostic::error(
                    "B0256",
                    format!("{} over {}", counted(vars.len(), "name"), counted(over.len(), "value")),
                )
                .at(span, "one name for each value")
                .help(format!("write {} between `for` and `in`", counted(over.len(), "name"))),
            );
        }
        let mut scope = std::collections::HashMap::new();
        let mut axis: Option<Axis> = None;
        for (var, e) in vars.iter().zip(over) {
            let val = self.expr(e, None)?;
            let t = self.settle(val, None, e.span, None)?;
            let last = self.last_axis(&t, e.span)?;
            if let Some(first) = axis.as_ref().filter(|a| **a != last) {
                return refuse(
                    Diagnostic::error(
                        "B0257",
                        format!("the loop walks along `{}` and `{}` at once", first.name, last.name),
                    )
                    .at(e.span, format!("its last axis is `{}`", last.name))
                    .help("walk values whose last axis is the same"),
                );
            }
            axis = Some(last);
            scope.insert(var.text.clone(), Val::Tensor(t));
        }
        let Some(axis) = axis else { return refuse(no_axes(span)) };
        let depth = self.frame().scopes.len();
        self.frame().loop_scopes.push(depth);
        self.frame().scopes.push(scope);
        self.frame().loop_axes.push(axis.name.clone());
        let before = self.found.stops;
        self.statements(body, None);
        self.frame().loop_axes.pop();
        self.frame().loop_scopes.pop();
        self.frame().scopes.pop();
        let yielded = self.frame().yielded.take();
        if self.found.stops > before {
            return Err(Stop::Told);
        }
        let Some(value) = yielded else {
            return refuse(
                Diagnostic::error("B0258", "the loop yields nothing")
                    .at(span, "no `yield` in its body")
                    .help("end the body with `yield value`"),
            );
        };
        let t = self.settle(value, hint, span, None)?;
        if t.ty.axis(&axis.name).is_none() {
            return refuse(
                Diagnostic::error("B0259", "what the loop yields does not depend on the loop")
                    .at(span, format!("the value has axes {}", t.axis_names()))
                    .help("compute it before the loop"),
            );
        }
        Ok(Val::Tensor(Tensor { origin: Origin::default(), ..t.into_value() }))
    }
}
