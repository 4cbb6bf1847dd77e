//! Statements and names: where a value rounds, and to what (clauses R1, R2).

use super::value::{Tensor, Val};
use super::{Elab, FrameKind};
use crate::Diagnostic;
use crate::ast::{Expr, Ident, Stmt, StmtKind, Target, TypeAst};
use crate::diag::counted;
use crate::stop::{Res, Stop, refuse};
use ir::{Axis, DType, Op, Span, Type};

impl Elab<'_> {
    /// Elaborates statements in order; the value of a last expression statement is the block's value. A statement that
    /// is refused is told, and the others are read all the same.
    pub(super) fn statements(&mut self, body: &[Stmt], hint: Option<DType>) -> Option<(Val, Span)> {
        let mut last = None;
        for (i, stmt) in body.iter().enumerate() {
            if self.found.halted {
                return None;
            }
            if self.frame().returned.is_some() || self.frame().yielded.is_some() {
                self.tell(
                    Diagnostic::error("B0204", "this statement stands after `return` or `yield`")
                        .at(stmt.span, "never reached")
                        .help("remove it, or put it before")
                        .into(),
                );
                return last;
            }
            let mark = self.mark();
            let done = match &stmt.kind {
                StmtKind::Expr(e) if i + 1 == body.len() => self.expr(e, hint).map(|v| Some((v, e.span))),
                _ => self.statement(stmt).map(|()| None),
            };
            last = done.unwrap_or_else(|stop| {
                self.tell(stop);
                self.rewind(&mark);
                self.forget(stmt);
                matches!(stmt.kind, StmtKind::Expr(_)).then_some((Val::Unknown, stmt.span))
            });
        }
        last
    }

    fn statement(&mut self, stmt: &Stmt) -> Res<()> {
        match &stmt.kind {
            StmtKind::Const { name, dtype, value } => {
                let value = self.constant(value, *dtype == Some(DType::F32))?;
                self.declare(&name.text, value);
                Ok(())
            }
            StmtKind::Let { targets, values } => self.assign(targets, values, stmt.span),
            StmtKind::Return(values) => {
                let values = self.exprs(values)?;
                self.frame().returned = Some(values);
                Ok(())
            }
            StmtKind::Yield(values) => {
                let [value] = values.as_slice() else {
                    return refuse(
                        Diagnostic::error("B0205", "`yield` gives one value")
                            .at(stmt.span, "several here")
                            .help("yield one value; run a second loop for another"),
                    );
                };
                let value = self.expr(value, None)?;
                self.frame().yielded = Some(value);
                Ok(())
            }
            StmtKind::Layers { index, body } => self.layers(index, body, stmt.span),
            StmtKind::Broken(_) => Err(Stop::Told),
            StmtKind::Expr(e) => self.expr(e, None).map(drop),
        }
    }

    fn exprs(&mut self, list: &[Expr]) -> Res<Vec<Val>> {
        let mut out = Vec::new();
        for e in list {
            match self.expr(e, None)? {
                Val::Many(items) => out.extend(items),
                Val::Top(values, ids) => out.extend([Val::Tensor(values), Val::Tensor(ids)]),
                other => out.push(other),
            }
        }
        Ok(out)
    }

    fn assign(&mut self, targets: &[Target], values: &[Expr], span: Span) -> Res<()> {
        let mut items = Vec::new();
        for (i, e) in values.iter().enumerate() {
            let hint = if values.len() == targets.len() { targets[i].ty.as_ref().and_then(|t| t.dtype) } else { None };
            match self.expr(e, hint)? {
                Val::Many(list) if values.len() == 1 => items.extend(list.into_iter().map(|v| (v, e.span))),
                Val::Top(v, ids) if values.len() == 1 && targets.len() == 2 => {
                    items.push((Val::Tensor(v), e.span));
                    items.push((Val::Tensor(ids), e.span));
                }
                other => items.push((other, e.span)),
            }
        }
        if items.len() != targets.len() {
            return refuse(
                Diagnostic::error(
                    "B0206",
                    format!("{} for {}", counted(targets.len(), "name"), counted(items.len(), "value")),
                )
                .at(span, "names and values do not match")
                .help(format!("write {} before `=`", counted(items.len(), "name"))),
            );
        }
        for (target, (value, value_span)) in targets.iter().zip(items) {
            let bound = match value {
                Val::Cache(..) | Val::Layer | Val::Mask(_) | Val::None | Val::Truth(_) | Val::Kv(_) => value,
                other => {
                    let annotation = target.ty.as_ref().and_then(|t| t.dtype);
                    let t = self.settle(other, annotation, value_span, Some(&target.name))?;
                    self.check_axes(&t, target.ty.as_ref())?;
                    let id = t.id;
                    self.frame().builder.name(id, &target.name.text);
                    Val::Tensor(t)
                }
            };
            self.bind(&target.name.text, bound, target.name.span)?;
        }
        Ok(())
    }

    /// Rounds as clauses R1 and R2 say: to the annotation; else a value keeps its dtype and an expression takes the block's.
    pub(super) fn settle(
        &mut self,
        val: Val,
        annotation: Option<DType>,
        span: Span,
        name: Option<&Ident>,
    ) -> Res<Tensor> {
        let t = self.tensor(val, span)?;
        let have = t.ty.dtype;
        let target = match annotation {
            Some(d) => d,
            None if t.value || !have.is_float() => have,
            None => self.frame().dtype,
        };
        if target == have {
            return Ok(t.into_value());
        }
        if !target.is_float() || target.is_narrow() {
            return refuse(
                Diagnostic::error("B0207", format!("a value of format {have} cannot become {target}"))
                    .at(span, format!("this is {}", t.ty))
                    .help("only floats round; positions and indices stay integers"),
            );
        }
        let origin = t.origin();
        if annotation.is_none() && origin.integer && !origin.wide && !origin.narrow && target == DType::Bf16 {
            return refuse(
                Diagnostic::error("B0209", format!("arithmetic on integers is f32, and would round to {target} here"))
                    .at(span, "positions and indices above 256 would not survive")
                    .help("give it a type: name: f32 = …, or a block `in f32`"),
            );
        }
        if let (Some(name), None) = (name, annotation)
            && target == DType::Bf16
            && origin.wide
            && !origin.narrow
            && self.resolved.lint_narrowing
        {
            let text = &name.text;
            self.warn(
                Diagnostic::warning(
                    "B0302",
                    format!("`{text}` comes from f32 values only and rounds to {target} here"),
                )
                .at(name.span, "an untyped name holds the block's dtype")
                .help(format!("write `{text}: f32 = …` to keep it, `{text}: {target} = …` if it is meant")),
            );
        }
        let ty = t.ty.with_dtype(target);
        Ok(self.emit(Op::Round(target), &[t], ty, span)?.into_value())
    }

    /// Compares a value with the axes that the text declares for it.
    pub(super) fn check_axes(&self, t: &Tensor, declared: Option<&TypeAst>) -> Res<()> {
        let Some((axes, span)) = declared.and_then(|d| Some((d.axes.as_ref()?, d.span))) else { return Ok(()) };
        let same = axes.len() == t.ty.axes.len() && axes.iter().zip(&t.ty.axes).all(|(d, a)| d.text == a.name);
        if same {
            return Ok(());
        }
        let declared: Vec<&str> = axes.iter().map(|a| a.text.as_str()).collect();
        refuse(
            Diagnostic::error(
                "B0208",
                format!("declared with axes [{}], the value has {}", declared.join(", "), t.axis_names()),
            )
            .at(span, "declared here")
            .help("declare the axes that the value has"),
        )
    }

    /// The axis a declared name stands for: a dimension, or a row axis.
    pub(super) fn declared_axis(&self, name: &Ident) -> Axis {
        self.resolved.facts.axis(&name.text).unwrap_or_else(|| Axis::rows(name.text.clone()))
    }

    /// Declares a name in the innermost scope: a parameter or a `const`.
    pub(super) fn declare(&mut self, name: &str, value: Val) {
        if let Some(scope) = self.frame().scopes.last_mut() {
            scope.insert(name.to_owned(), value);
        }
    }

    /// Assigns a name: rebinds it where it is visible in this graph, else declares it in the innermost scope. A tensor of
    /// the frame below becomes a result of this frame's graph.
    pub(super) fn bind(&mut self, name: &str, value: Val, span: Span) -> Res<()> {
        let top = self.frames.len() - 1;
        let below = if self.frames[top].kind == FrameKind::Inner { self.visible_below(top, name) } else { None };
        let frame = &mut self.frames[top];
        let outside_loop = |depth: usize| frame.loop_scopes.last().is_some_and(|first| depth < *first);
        let owner = frame.scopes.iter().rposition(|s| s.contains_key(name));
        if owner.map_or(below.is_some() && !frame.loop_scopes.is_empty(), outside_loop) {
            return refuse(Diagnostic::error("B0271", format!("`{name}` belongs outside the loop and is assigned inside"))
                    .at(span, "steps of a loop do not see each other")
                    .help("give it another name, yield it and combine after the loop, for example with sum(…, over = axis)"));
        }
        match (owner, below, &value) {
            (Some(depth), ..) => drop(frame.scopes[depth].insert(name.to_owned(), value)),
            (None, Some(true), Val::Tensor(t)) => drop(frame.assigned.insert(name.to_owned(), t.clone())),
            (None, Some(_), other) => {
                return refuse(
                    Diagnostic::error("B0238", format!("`{name}` is {} here and leaves the arm", other.what()))
                        .at(span, "only tensors can be chosen by a layer's kind")
                        .help("use it inside the arm, under another name"),
                );
            }
            (None, None, _) => self.declare(name, value),
        }
        Ok(())
    }

    /// What a name of the frames below an inner one is: a tensor (`true`) or something else.
    fn visible_below(&self, top: usize, name: &str) -> Option<bool> {
        for index in (0..top).rev() {
            let frame = &self.frames[index];
            if let Some(val) = frame.scopes.iter().rev().find_map(|s| s.get(name)) {
                return Some(matches!(val, Val::Tensor(_)));
            }
            if frame.assigned.contains_key(name) {
                return Some(true);
            }
            if frame.kind != FrameKind::Inner {
                return None;
            }
        }
        None
    }

    /// Looks a name up in the frames; a tensor of a frame below is captured as an input.
    pub(super) fn lookup(&mut self, name: &str) -> Option<Val> {
        let top = self.frames.len() - 1;
        self.lookup_in(top, name)
    }

    fn lookup_in(&mut self, index: usize, name: &str) -> Option<Val> {
        let frame = &self.frames[index];
        if let Some(t) = frame.assigned.get(name) {
            return Some(Val::Tensor(t.clone()));
        }
        if let Some(val) = frame.scopes.iter().rev().find_map(|s| s.get(name)) {
            return Some(val.clone());
        }
        if let Some(t) = frame.captures.get(name) {
            return Some(Val::Tensor(t.clone()));
        }
        if frame.kind != FrameKind::Inner || index == 0 {
            return None;
        }
        match self.lookup_in(index - 1, name)? {
            Val::Tensor(outer) => {
                if self.frames[index - 1].at == Some(outer.id) {
                    let id = self.positions_in(index, &outer.ty);
                    return Some(Val::Tensor(Tensor { id, ..outer }));
                }
                let frame = &mut self.frames[index];
                let id = frame.builder.input(name, Type::Tensor(outer.ty.clone()));
                let captured = Tensor { id, ..outer };
                frame.captures.insert(name.to_owned(), captured.clone());
                Some(Val::Tensor(captured))
            }
            Val::Cache(..) => None,
            other => Some(other),
        }
    }
}
