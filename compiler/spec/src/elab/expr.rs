//! Expressions: names, operators, indexing, calls.

use super::Elab;
use super::value::{Tensor, Val, WeightVal};
use crate::Diagnostic;
use crate::ast::{BinaryOp, Expr, ExprKind, Ident};
use crate::facts::Value;
use crate::names::MOST_SUGGESTED;
use crate::stop::{Res, Stop, refuse};
use ir::{
    Binary, ConstBinary, ConstExpr, ConstUnary, DType, KvRef, Mask, Op, Scope, Span, TensorType, Unary, WeightRef,
};

/// Names with a meaning of their own.
pub(crate) const WORDS: [&str; 9] = ["inf", "none", "causal", "all", "scratch", "W", "kv", "options", "target"];

impl Elab<'_> {
    /// Elaborates an expression. `hint` is the dtype of the name it is bound to, which a `for … yield` rounds to.
    pub(super) fn expr(&mut self, e: &Expr, hint: Option<DType>) -> Res<Val> {
        self.descend(e.span)?;
        let val = self.expr_kind(e, hint);
        self.levels -= 1;
        val
    }

    fn expr_kind(&mut self, e: &Expr, hint: Option<DType>) -> Res<Val> {
        match &e.kind {
            ExprKind::Number(x) => Ok(Val::Const(ConstExpr::Num(*x))),
            ExprKind::Name(name) => self.name(name, e.span),
            ExprKind::Field(base, field) => self.field(base, field),
            ExprKind::Index(base, items) => self.index(base, items, e.span),
            ExprKind::Call { function, args, named } => self.call(function, args, named, e.span),
            ExprKind::Neg(inner) => match self.expr(inner, None)? {
                Val::Const(c) => self.sized(ConstExpr::Unary(ConstUnary::Neg, Box::new(c)), e.span),
                other => self.unary(Unary::Neg, other, e.span).map(Val::Tensor),
            },
            ExprKind::Binary(op, a, b) => {
                let (left, right) = (self.expr(a, None)?, self.expr(b, None)?);
                self.operator(*op, left, right, e.span)
            }
            ExprKind::As(base, name) => self.rename(base, name, e.span),
            ExprKind::Part { base, axis, start, range, end } => {
                self.part(base, axis, (start, *range, end.as_deref()), e.span)
            }
            ExprKind::Each { function, index, axis, term } => self.each(function, index, axis, term, e.span),
            ExprKind::Match { subject, arms } => self.match_expr(subject, arms, hint, e.span),
            ExprKind::For { vars, over, body } => self.for_yield(vars, over, body, hint, e.span),
        }
    }

    fn name(&mut self, name: &str, span: Span) -> Res<Val> {
        match self.lookup(name) {
            Some(Val::Unknown) => return Err(Stop::Told),
            Some(val) => return Ok(val),
            None => {}
        }
        if let Some(n) = self.resolved.facts.dims.get(name) {
            self.read.insert(("dims", name.to_owned()));
            return Ok(Val::Const(ConstExpr::Num(*n as f64)));
        }
        if self.resolved.values.contains_key(name) {
            self.read.insert(("values", name.to_owned()));
        }
        match self.resolved.values.get(name) {
            Some((_, Value::Number(x))) => return Ok(Val::Const(ConstExpr::Num(*x))),
            Some((_, Value::None)) => return Ok(Val::None),
            Some((_, Value::Truth(b))) => return Ok(Val::Truth(*b)),
            Some((_, Value::Group(_))) => return Ok(Val::Root(name.to_owned())),
            None => {}
        }
        match name {
            "inf" => Ok(Val::Const(ConstExpr::Num(f64::INFINITY))),
            "none" => Ok(Val::None),
            "causal" => Ok(Val::Mask(Mask::Causal)),
            "all" => Ok(Val::Mask(Mask::All)),
            "W" | "kv" | "options" | "target" => Ok(Val::Root(name.to_owned())),
            _ => {
                let d =
                    Diagnostic::error("B0241", format!("the name `{name}` has no meaning here")).at(span, "unknown");
                if self.found.list.len() >= MOST_SUGGESTED {
                    return refuse(d);
                }
                let known = self.known_names();
                refuse(d.nearest(name, known.iter().map(String::as_str)))
            }
        }
    }

    fn known_names(&self) -> Vec<String> {
        let locals = self.frames.iter().flat_map(|f| f.scopes.iter().flat_map(|s| s.keys()));
        let facts = &self.resolved.facts;
        let mut names: Vec<String> =
            locals.chain(facts.dims.keys()).chain(self.resolved.values.keys()).cloned().collect();
        names.sort();
        names.dedup();
        names
    }

    fn field(&mut self, base: &Expr, field: &Ident) -> Res<Val> {
        let wrong = |what: &str| {
            refuse(
                Diagnostic::error("B0242", format!("{what} has no parts"))
                    .at(base.span, format!("`.{}` is asked of it", field.text))
                    .help(format!("leave `.{}` away, or write the name of a group before it", field.text)),
            )
        };
        match self.expr(base, None)? {
            Val::Layer if field.text == "index" => Ok(Val::Const(ConstExpr::Layer)),
            Val::Layer => {
                let known: Vec<String> =
                    self.resolved.facts.schedule.first().map(|k| k.keys().cloned().collect()).unwrap_or_default();
                if known.contains(&field.text) {
                    self.read.insert(("schedule", field.text.clone()));
                    return Ok(Val::Column(field.text.clone()));
                }
                refuse(
                    Diagnostic::error("B0243", format!("the schedule has no column `{}`", field.text))
                        .at(field.span, "unknown")
                        .nearest(&field.text, known.iter().map(String::as_str)),
                )
            }
            Val::Root(root) => self.root_field(&root, field),
            other => wrong(other.what()),
        }
    }

    fn root_field(&mut self, root: &str, field: &Ident) -> Res<Val> {
        let unknown = |known: Vec<String>, what: &str| {
            refuse(
                Diagnostic::error("B0244", format!("there is no {what} `{}`", field.text))
                    .at(field.span, "unknown")
                    .nearest(&field.text, known.iter().map(String::as_str)),
            )
        };
        match root {
            "W" => self.weight(field),
            "target" | "target.W" | "target.dims" => self.target_field(root, field),
            "kv" => {
                let known: Vec<String> = self.resolved.facts.kv.iter().map(|k| k.name.clone()).collect();
                if known.contains(&field.text) {
                    self.read.insert(("kv", field.text.clone()));
                    return Ok(Val::Kv(KvRef::Kind(field.text.clone())));
                }
                unknown(known, "cache kind")
            }
            "options" => {
                if self.resolved.option_spans.contains_key(&field.text) {
                    self.read.insert(("options", field.text.clone()));
                    return Ok(Val::Choice(field.text.clone()));
                }
                unknown(self.resolved.option_spans.keys().cloned().collect(), "option")
            }
            group => match self.resolved.values.get(group) {
                Some((_, Value::Group(items))) => match items.get(&field.text) {
                    Some(x) => Ok(Val::Const(ConstExpr::Num(*x))),
                    None => unknown(items.keys().cloned().collect(), "value"),
                },
                _ => unknown(Vec::new(), "value"),
            },
        }
    }

    /// `W.name`: a layer weight where a layer runs, else a weight of the model.
    fn weight(&mut self, field: &Ident) -> Res<Val> {
        let facts = &self.resolved.facts;
        let in_layer = self.frames.last().is_some_and(|f| f.in_layer);
        let found = if in_layer { facts.weight(Scope::Layer, &field.text) } else { None };
        let Some(weight) = found.or_else(|| facts.weight(Scope::Model, &field.text)) else {
            let known: Vec<&str> = facts.weights.iter().map(|w| w.name.as_str()).collect();
            let d = match facts.weight(Scope::Layer, &field.text) {
                Some(w) => {
                    Diagnostic::error("B0245", format!("`W.{}` is a layer's weight, and no layer runs here", w.name))
                        .at(field.span, "outside the layer loop")
                        .note(w.span, "declared for layers")
                        .help("read it inside `for l in layers`, or in a function called from there")
                }
                None => Diagnostic::error("B0244", format!("there is no weight `{}`", field.text))
                    .at(field.span, "unknown")
                    .nearest(&field.text, known),
            };
            return refuse(d);
        };
        let (scope, ty) = (weight.scope, weight.ty());
        if let Some(when) = &weight.when {
            let known = &self.frames[self.frames.len() - 1].kinds;
            let here = known.iter().find(|(c, _)| *c == when.column).map(|(_, k)| k.as_str());
            let always = facts.schedule.iter().all(|k| k.get(&when.column) == Some(&when.kind));
            if here != Some(when.kind.as_str()) && !always {
                let at = match here {
                    Some(kind) => format!("here the layer is {kind}"),
                    None => "here the layer may be of another kind".to_owned(),
                };
                return refuse(
                    Diagnostic::error(
                        "B0246",
                        format!("`W.{}` exists only where {} is {}", field.text, when.column, when.kind),
                    )
                    .at(field.span, at)
                    .note(weight.span, "declared with this condition")
                    .help(format!("use it inside match l.{} {{ {} {{ … }} }}", when.column, when.kind)),
                );
            }
        }
        self.used.insert((scope, field.text.clone()));
        let reference = match scope {
            Scope::Model => WeightRef::Model(field.text.clone()),
            Scope::Layer => WeightRef::Layer(field.text.clone()),
        };
        Ok(Val::Weight(WeightVal { reference, ty, chosen: None }))
    }

    /// A value as a run-time tensor of the graph under construction.
    pub(super) fn tensor(&mut self, val: Val, span: Span) -> Res<Tensor> {
        match val {
            Val::Tensor(t) | Val::Top(t, _) => Ok(t),
            Val::Const(c) => {
                let op = Op::Scalar(c.simplified());
                self.emit(op, &[], TensorType::scalar(DType::F32), span)
            }
            Val::Vector(v) => {
                // Constant data is copied into every graph that uses it.
                self.steps += v.data.len();
                let data = v.data.iter().map(|x| *x as f32).collect();
                self.emit(Op::Literal(data), &[], TensorType::new(DType::F32, v.axes), span)
            }
            Val::Weight(w) => {
                let whole = self.emit(Op::Weight(w.reference), &[], w.ty, span)?.into_value();
                match w.chosen {
                    None => Ok(whole),
                    Some(ids) => {
                        let axis = whole.ty.axes[0].name.clone();
                        self.gather(whole, ids, &axis, span)
                    }
                }
            }
            Val::Layer => self.tensor(Val::Const(ConstExpr::Layer), span),
            other => refuse(
                Diagnostic::error("B0247", "a tensor or a number is expected")
                    .at(span, format!("this is {}", other.what()))
                    .help("write a tensor or a number here"),
            ),
        }
    }

    pub(super) fn unary(&mut self, op: Unary, val: Val, span: Span) -> Res<Tensor> {
        let t = self.tensor(val, span)?;
        let dtype = if op == Unary::Not { DType::Bool } else { DType::F32 };
        self.check_float(&t, op == Unary::Not, span)?;
        let ty = t.ty.with_dtype(dtype);
        self.emit(Op::Unary(op), &[t], ty, span)
    }

    fn check_float(&self, t: &Tensor, wants_bool: bool, span: Span) -> Res<()> {
        if (t.ty.dtype == DType::Bool) == wants_bool {
            return Ok(());
        }
        let wanted = if wants_bool { "a truth value" } else { "numbers" };
        refuse(Diagnostic::error("B0248", format!("{wanted} are expected")).at(span, format!("this is {}", t.ty)).help(
            if wants_bool {
                "write a comparison, such as x > 0"
            } else {
                "write where(x, 1, 0) to make numbers of truth values"
            },
        ))
    }

    fn operator(&mut self, op: BinaryOp, left: Val, right: Val, span: Span) -> Res<Val> {
        let (left, right) = (constant_layer(left), constant_layer(right));
        if let (Val::Const(a), Val::Const(b)) = (&left, &right)
            && let Some(op) = const_op(op)
        {
            return self.sized(ConstExpr::Binary(op, Box::new(a.clone()), Box::new(b.clone())), span);
        }
        let binary = match op {
            BinaryOp::Add => Binary::Add,
            BinaryOp::Sub => Binary::Sub,
            BinaryOp::Mul => Binary::Mul,
            BinaryOp::Div => Binary::Div,
            BinaryOp::Eq | BinaryOp::Ne => Binary::Eq,
            BinaryOp::Lt => Binary::Lt,
            BinaryOp::Le => Binary::Le,
            BinaryOp::Gt => return self.operator(BinaryOp::Lt, right, left, span),
            BinaryOp::Ge => return self.operator(BinaryOp::Le, right, left, span),
            BinaryOp::Pow => return self.power(left, right, span),
            BinaryOp::Rem => {
                return refuse(
                    Diagnostic::error("B0249", "`%` works on constants only")
                        .at(span, "run-time operands")
                        .help("compute the remainder in a `const`, or write the run-time value without `%`"),
                );
            }
        };
        let (a, b) = (self.tensor(left, span)?, self.tensor(right, span)?);
        let t = self.binary(binary, a, b, span)?;
        if op == BinaryOp::Ne {
            return self.unary(Unary::Not, Val::Tensor(t), span).map(Val::Tensor);
        }
        Ok(Val::Tensor(t))
    }

    /// `x ** c` for the exponents that a few correctly rounded operations express.
    fn power(&mut self, base: Val, exponent: Val, span: Span) -> Res<Val> {
        let x = self.tensor(base, span)?;
        let exponent = match &exponent {
            Val::Const(c) => c.number(),
            _ => None,
        };
        let one = Val::Const(ConstExpr::Num(1.0));
        let t = match exponent {
            Some(2.0) => self.binary(Binary::Mul, x.clone(), x, span)?,
            Some(0.5) => self.unary(Unary::Sqrt, Val::Tensor(x), span)?,
            Some(-0.5) => {
                let root = self.unary(Unary::Sqrt, Val::Tensor(x), span)?;
                let one = self.tensor(one, span)?;
                self.binary(Binary::Div, one, root, span)?
            }
            Some(-1.0) => {
                let one = self.tensor(one, span)?;
                self.binary(Binary::Div, one, x, span)?
            }
            _ => {
                return refuse(
                    Diagnostic::error("B0250", "the exponent of a run-time value is 2, 0.5, -0.5 or -1")
                        .at(span, "another exponent")
                        .help("write the product out, or compute the power as a `const`"),
                );
            }
        };
        Ok(Val::Tensor(t))
    }

    /// An element-wise operation of two tensors, aligned by axis name.
    pub(super) fn binary(&mut self, op: Binary, a: Tensor, b: Tensor, span: Span) -> Res<Tensor> {
        let wants_bool = matches!(op, Binary::And | Binary::Or);
        self.check_float(&a, wants_bool, span)?;
        self.check_float(&b, wants_bool, span)?;
        let (operands, axes, merges) = self.aligned(vec![a, b], span)?;
        let dtype = if op.is_predicate() { DType::Bool } else { DType::F32 };
        let t = self.emit(Op::Binary(op), &operands, TensorType::new(dtype, axes), span)?;
        self.merged(t, &merges, span)
    }
}

/// `l` in arithmetic is the layer's index.
fn constant_layer(val: Val) -> Val {
    match val {
        Val::Layer => Val::Const(ConstExpr::Layer),
        other => other,
    }
}

fn const_op(op: BinaryOp) -> Option<ConstBinary> {
    Some(match op {
        BinaryOp::Add => ConstBinary::Add,
        BinaryOp::Sub => ConstBinary::Sub,
        BinaryOp::Mul => ConstBinary::Mul,
        BinaryOp::Div => ConstBinary::Div,
        BinaryOp::Pow => ConstBinary::Pow,
        _ => return None,
    })
}

pub(super) fn unsupported(what: &str, span: Span) -> Diagnostic {
    Diagnostic::error("B0090", format!("{what} are not supported yet"))
        .at(span, "used here")
        .help("README.md has the table of what works; write it in other words")
}
