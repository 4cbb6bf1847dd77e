//! Calls: the spec's own functions first, then the builtins of `docs/ops.md`.

use super::Elab;
use super::expr::unsupported;
use super::value::{Tensor, Val};
use crate::Diagnostic;
use crate::ast::{Expr, ExprKind, FunctionKind, Ident};
use crate::diag::counted;
use crate::stop::{Res, Stop, refuse};
use ir::{Axis, Binary, ConstExpr, ConstUnary, DType, Op, Order, ReduceOp, Span, TensorType, TopWhat, Unary};

/// Builtins by name with the least and the most positional arguments and the named ones.
pub(crate) const BUILTINS: [(&str, usize, usize, &[&str]); 32] = [
    ("linear", 2, 2, &[]),
    ("dot", 2, 2, &["over"]),
    ("attend", 3, 3, &["scale", "sink"]),
    ("store", 3, 4, &["at", "where"]),
    ("sum", 1, 1, &["over", "order"]),
    ("mean", 1, 1, &["over"]),
    ("max", 1, 2, &["over"]),
    ("min", 2, 2, &[]),
    ("softmax", 1, 1, &["over"]),
    ("top", 2, 2, &["over"]),
    ("top_ids", 2, 2, &["over"]),
    ("in_top", 2, 2, &["over"]),
    ("where", 3, 3, &[]),
    ("exp", 1, 1, &[]),
    ("log1p", 1, 1, &[]),
    ("tanh", 1, 1, &[]),
    ("sigmoid", 1, 1, &[]),
    ("sin", 1, 1, &[]),
    ("cos", 1, 1, &[]),
    ("sqrt", 1, 1, &[]),
    ("abs", 1, 1, &[]),
    ("clamp", 3, 3, &[]),
    ("fma", 3, 3, &[]),
    ("halves", 1, 1, &[]),
    ("concat", 2, 2, &[]),
    ("turn", 1, 1, &[]),
    ("iota", 1, 1, &[]),
    ("shift", 2, 2, &["over", "fill"]),
    ("fill", 2, 2, &[]),
    ("walk", 4, 4, &[]),
    ("probs", 4, 4, &[]),
    ("accept", 2, 6, &["rule"]),
];

/// What constants may be made with besides operators.
pub(crate) const CONST_FUNCTIONS: [&str; 10] =
    ["sqrt", "abs", "exp", "log", "sin", "cos", "iota", "where", "min", "max"];

impl Elab<'_> {
    pub(super) fn call(&mut self, function: &Ident, args: &[Expr], named: &[(Ident, Expr)], span: Span) -> Res<Val> {
        if let Some(found) = self.program.function(&function.text) {
            self.read.insert(("blocks", function.text.clone()));
            if let Some((name, _)) = named.first() {
                return refuse(
                    Diagnostic::error("B0261", "arguments of a spec's function are positional")
                        .at(name.span, "named here")
                        .note(Some(found.name.span), "declared here")
                        .help("write the arguments in the order of the declaration, without names"),
                );
            }
            let mut values = Vec::new();
            for arg in args {
                let hint = None;
                match self.expr(arg, hint)? {
                    Val::Many(items) => values.extend(items.into_iter().map(|v| (v, arg.span))),
                    Val::Top(v, ids) => values.extend([(Val::Tensor(v), arg.span), (Val::Tensor(ids), arg.span)]),
                    value => values.push((value, arg.span)),
                }
            }
            return match found.kind {
                FunctionKind::Def => {
                    let values = values.into_iter().map(|(v, _)| v).collect();
                    self.call_def(found, values, span)
                }
                _ => self.call_fn(found, values, span),
            };
        }
        let name = function.text.as_str();
        if self.program.broken.contains(name) {
            return Err(Stop::Told);
        }
        let Some((_, least, most, known)) = BUILTINS.iter().find(|(n, ..)| *n == name) else {
            let names: Vec<&str> = BUILTINS
                .iter()
                .map(|b| b.0)
                .chain(self.program.functions.iter().map(|f| f.name.text.as_str()))
                .collect();
            return refuse(
                Diagnostic::error("B0262", format!("there is no function `{name}`"))
                    .at(function.span, "unknown")
                    .nearest(name, names),
            );
        };
        if args.len() < *least || args.len() > *most {
            return refuse(
                Diagnostic::error(
                    "B0224",
                    format!("`{name}` takes {} and gets {}", counted(*least, "argument"), args.len()),
                )
                .at(span, format!("{} here", args.len()))
                .help(format!("docs/ops.md#{name} has its form")),
            );
        }
        if let Some((wrong, _)) = named.iter().find(|(n, _)| !known.contains(&n.text.as_str())) {
            return refuse(
                Diagnostic::error("B0263", format!("`{name}` has no argument `{}`", wrong.text))
                    .at(wrong.span, "unknown")
                    .nearest(&wrong.text, known.iter().copied()),
            );
        }
        let keyword = |wanted: &str| named.iter().find(|(n, _)| n.text == wanted).map(|(_, e)| e);
        if let Some(done) = self.block_builtin(name, args, &keyword, span) {
            return done;
        }
        let other = [keyword("scale"), keyword("sink"), keyword("order")];
        self.builtin(name, args, keyword("over"), other, span)
    }

    fn builtin(
        &mut self,
        name: &str,
        args: &[Expr],
        over: Option<&Expr>,
        other: [Option<&Expr>; 3],
        span: Span,
    ) -> Res<Val> {
        let single = |op| Some(op);
        let unary = match name {
            "exp" => single(Unary::Exp),
            "log1p" => single(Unary::Log1p),
            "tanh" => single(Unary::Tanh),
            "sigmoid" => single(Unary::Sigmoid),
            "sin" => single(Unary::Sin),
            "cos" => single(Unary::Cos),
            "sqrt" => single(Unary::Sqrt),
            "abs" => single(Unary::Abs),
            _ => None,
        };
        if let Some(op) = unary {
            return match (op, self.expr(&args[0], None)?) {
                (Unary::Sqrt, Val::Const(c)) => self.sized(ConstExpr::Unary(ConstUnary::Sqrt, Box::new(c)), span),
                (_, val) => self.unary(op, val, span).map(Val::Tensor),
            };
        }
        let t = match name {
            "linear" => self.linear(&args[0], &args[1], span)?,
            "dot" => self.dot(&args[0], &args[1], over, span)?,
            "attend" => self.attend(args, [other[0], other[1]], span)?,
            "sum" => self.sum(&args[0], over, other[2], span)?,
            "mean" => self.mean(&args[0], over, span)?,
            "max" if args.len() == 1 => self.reduce(&args[0], over, ReduceOp::Max, span)?.0,
            "max" => self.pair(Binary::Max, args, span)?,
            "min" => self.pair(Binary::Min, args, span)?,
            "softmax" => self.softmax(&args[0], over, span)?,
            "top" => {
                let values = self.select(&args[0], &args[1], over, TopWhat::Values, span)?;
                let ids = self.select(&args[0], &args[1], over, TopWhat::Ids, span)?;
                return Ok(Val::Top(values, ids));
            }
            "top_ids" => self.select(&args[0], &args[1], over, TopWhat::Ids, span)?,
            "in_top" => self.in_top(&args[0], &args[1], over, span)?,
            "where" => self.choose(args, span)?,
            "clamp" => {
                let [x, low, high] = self.tensors(args)?;
                let raised = self.binary(Binary::Max, x, low, span)?;
                self.binary(Binary::Min, raised, high, span)?
            }
            "fma" => {
                let operands = self.tensors::<3>(args)?.to_vec();
                let (operands, axes, merges) = self.aligned(operands, span)?;
                let t = self.emit(Op::Fma, &operands, TensorType::new(DType::F32, axes), span)?;
                self.merged(t, &merges, span)?
            }
            "halves" => {
                let (a, b) = self.halves(&args[0], span)?;
                return Ok(Val::Many(vec![Val::Tensor(a), Val::Tensor(b)]));
            }
            "turn" => {
                let (a, b) = self.halves(&args[0], span)?;
                let value = a.value;
                let minus = Tensor { value, ..self.unary(Unary::Neg, Val::Tensor(b), span)? };
                self.concat(minus, a, span)?
            }
            "concat" => self.concat_call(&args[0], &args[1], span)?,
            "iota" => {
                let vector = self.iota(&args[0])?;
                return Ok(Val::Vector(vector));
            }
            _ => return refuse(unsupported(&format!("calls of `{name}`"), span)),
        };
        Ok(Val::Tensor(t))
    }

    fn tensors<const N: usize>(&mut self, args: &[Expr]) -> Res<[Tensor; N]> {
        let mut out = Vec::with_capacity(N);
        for e in args {
            let val = self.expr(e, None)?;
            out.push(self.tensor(val, e.span)?);
        }
        out.try_into().map_err(|_| {
            Diagnostic::error("B0224", format!("{N} arguments are expected")).help("docs/ops.md has its form").into()
        })
    }

    fn pair(&mut self, op: Binary, args: &[Expr], span: Span) -> Res<Tensor> {
        let [a, b] = self.tensors(args)?;
        self.binary(op, a, b, span)
    }

    /// The operand and the axis that a reduction runs over: `over = axis`, or the innermost one.
    pub(super) fn along(&mut self, e: &Expr, over: Option<&Expr>, span: Span) -> Res<(Tensor, Axis)> {
        let val = self.expr(e, None)?;
        let t = self.tensor(val, e.span)?;
        self.along_tensor(t, over, span)
    }

    /// As [`Self::along`], of a tensor.
    pub(super) fn along_tensor(&mut self, t: Tensor, over: Option<&Expr>, span: Span) -> Res<(Tensor, Axis)> {
        let Some(over) = over else {
            let axis = self.last_axis(&t, span)?;
            self.check_loop_axis(&axis, span)?;
            return Ok((t, axis));
        };
        let ExprKind::Name(name) = &over.kind else {
            return refuse(
                Diagnostic::error("B0264", "`over` names an axis")
                    .at(over.span, "another thing")
                    .help("write over = axis, such as over = picked"),
            );
        };
        let t = self.with_axis(t, name, over.span)?;
        let axis = t.ty.axes.iter().find(|a| a.name == *name).cloned();
        match axis {
            Some(axis) if !axis.is_rows() => {
                self.check_loop_axis(&axis, span)?;
                Ok((t, axis))
            }
            _ => refuse(
                Diagnostic::error("B0265", format!("`{name}` is an axis of rows, and rows stay apart"))
                    .at(over.span, "cannot be reduced")
                    .help("reduce over an axis of fixed length"),
            ),
        }
    }

    fn check_loop_axis(&mut self, axis: &Axis, span: Span) -> Res<()> {
        if !self.frame().loop_axes.contains(&axis.name) {
            return Ok(());
        }
        refuse(
            Diagnostic::error("B0266", format!("one step of the loop sees a single index of `{}`", axis.name))
                .at(span, "cannot run over it here")
                .help("do it after the loop"),
        )
    }

    fn reduce(&mut self, e: &Expr, over: Option<&Expr>, op: ReduceOp, span: Span) -> Res<(Tensor, Axis)> {
        let (t, axis) = self.along(e, over, span)?;
        Ok((self.reduce_tensor(t, &axis, op, span)?, axis))
    }

    /// `sum(x, over = axis, order = any)` leaves the order open, so that the sum may be cut over ranks.
    fn sum(&mut self, e: &Expr, over: Option<&Expr>, order: Option<&Expr>, span: Span) -> Res<Tensor> {
        let open = match order.map(|o| (&o.kind, o.span)) {
            None => false,
            Some((ExprKind::Name(word), _)) if word == "any" || word == "fold" => word == "any",
            Some((_, at)) => {
                let d = Diagnostic::error("B0264", "`order` is `any` or `fold`").at(at, "another thing");
                return refuse(d.help("leave it out for `fold`"));
            }
        };
        let (t, axis) = self.along(e, over, span)?;
        if !open {
            return self.reduce_tensor(t, &axis, ReduceOp::Sum, span);
        }
        let axes = t.ty.axes.iter().filter(|a| a.name != axis.name).cloned().collect();
        let op = Op::Reduce { op: ReduceOp::Sum, axis: axis.name, order: Order::Any };
        self.emit(op, &[t], TensorType::new(DType::F32, axes), span)
    }

    fn reduce_tensor(&mut self, t: Tensor, axis: &Axis, op: ReduceOp, span: Span) -> Res<Tensor> {
        let axes = t.ty.axes.iter().filter(|a| a.name != axis.name).cloned().collect();
        let ty = TensorType::new(DType::F32, axes);
        self.emit(Op::Reduce { op, axis: axis.name.clone(), order: Order::Fold }, &[t], ty, span)
    }

    /// `mean(x) = sum(x) / n` (clause R4).
    fn mean(&mut self, e: &Expr, over: Option<&Expr>, span: Span) -> Res<Tensor> {
        let (sum, axis) = self.reduce(e, over, ReduceOp::Sum, span)?;
        let n = self.tensor(Val::Const(ConstExpr::Num(super::axes::fixed(&axis) as f64)), span)?;
        self.binary(Binary::Div, sum, n, span)
    }

    /// `e = exp(x - max(x)); e / sum(e)`.
    fn softmax(&mut self, e: &Expr, over: Option<&Expr>, span: Span) -> Res<Tensor> {
        let (t, axis) = self.along(e, over, span)?;
        let top = self.reduce_tensor(t.clone(), &axis, ReduceOp::Max, span)?;
        let shifted = self.binary(Binary::Sub, t, top, span)?;
        let powers = self.unary(Unary::Exp, Val::Tensor(shifted), span)?;
        let total = self.reduce_tensor(powers.clone(), &axis, ReduceOp::Sum, span)?;
        self.binary(Binary::Div, powers, total, span)
    }

    /// How many, and the name of the axis that holds them: the dimension's, or the number.
    fn count(&mut self, e: &Expr, axis: &Axis) -> Res<(u64, String)> {
        let length = super::axes::fixed(axis);
        let (number, name) = match (&e.kind, self.expr(e, None)?) {
            (ExprKind::Name(n), Val::Const(c)) if self.resolved.facts.dims.contains_key(n) => {
                (c.number(), Some(n.clone()))
            }
            (_, Val::Const(c)) => (c.number(), None),
            (_, other) => {
                return refuse(
                    Diagnostic::error("B0267", "how many is a constant")
                        .at(e.span, format!("this is {}", other.what()))
                        .help("write a number, or the name of a dimension or value"),
                );
            }
        };
        match number {
            Some(k) if k >= 1.0 && k.fract() == 0.0 && k <= length as f64 => {
                Ok((k as u64, name.unwrap_or_else(|| format!("{}", k as u64))))
            }
            _ => refuse(
                Diagnostic::error("B0268", format!("{} of {length} cannot be taken", number.unwrap_or(f64::NAN)))
                    .at(e.span, "how many")
                    .note(
                        name.as_ref().and_then(|n| self.resolved.dim_spans.get(n).copied()),
                        "how many are taken".to_owned(),
                    )
                    .note(
                        self.resolved.dim_spans.get(&axis.name).copied(),
                        format!("`{}` has {length} entries", axis.name),
                    )
                    .help(format!("a whole number from 1 to {length}")),
            ),
        }
    }

    fn select(&mut self, e: &Expr, k: &Expr, over: Option<&Expr>, what: TopWhat, span: Span) -> Res<Tensor> {
        let (t, axis) = self.along(e, over, span)?;
        let (k, into) = self.count(k, &axis)?;
        let Some(at) = t.ty.axis(&axis.name) else { return refuse(unsupported("such axes", span)) };
        let mut axes = t.ty.axes.clone();
        axes[at] = Axis::fixed(into.clone(), k);
        let mut ty = TensorType::new(t.ty.dtype, axes);
        if what == TopWhat::Ids {
            ty.dtype = DType::I32;
            ty.indexes = Some(axis.name.clone());
        }
        let value = t.value || what == TopWhat::Ids;
        let out = self.emit(Op::Top { k, axis: axis.name, into, what }, &[t], ty, span)?;
        Ok(Tensor { value, ..out })
    }

    fn in_top(&mut self, e: &Expr, k: &Expr, over: Option<&Expr>, span: Span) -> Res<Tensor> {
        let (t, axis) = self.along(e, over, span)?;
        let (k, _) = self.count(k, &axis)?;
        let ty = t.ty.with_dtype(DType::Bool);
        self.emit(Op::InTop { k, axis: axis.name }, &[t], ty, span)
    }

    fn choose(&mut self, args: &[Expr], span: Span) -> Res<Tensor> {
        let operands = self.tensors::<3>(args)?;
        if operands[0].ty.dtype != DType::Bool {
            return refuse(
                Diagnostic::error("B0248", "a truth value decides `where`")
                    .at(args[0].span, format!("this is {}", operands[0].ty))
                    .help("write a comparison, such as where(x > 0, a, b)"),
            );
        }
        let (operands, axes, merges) = self.aligned(operands.to_vec(), span)?;
        let t = self.emit(Op::Select, &operands, TensorType::new(DType::F32, axes), span)?;
        self.merged(t, &merges, span)
    }

    fn halves(&mut self, e: &Expr, span: Span) -> Res<(Tensor, Tensor)> {
        let val = self.expr(e, None)?;
        let t = self.tensor(val, e.span)?;
        let last = self.last_axis(&t, e.span)?;
        let half = match self.resolved.facts.products.get(&last.name).map(Vec::as_slice) {
            Some([two, half]) if two == "2" => half.clone(),
            _ => {
                return refuse(
                    Diagnostic::error("B0269", format!("`{}` is not declared to have two halves", last.name))
                        .at(span, format!("the innermost axis is `{}`", last.name))
                        .help(format!("write [axes] {} = \"2.half\"", last.name)),
                );
            }
        };
        let len = super::axes::fixed(&last) / 2;
        let mut axes = t.ty.axes.clone();
        axes.pop();
        axes.push(Axis::fixed(half.clone(), len));
        let ty = TensorType::new(t.ty.dtype, axes);
        let mut part = |start: u64| {
            let op = Op::Slice { axis: last.name.clone(), start, len, into: Some(half.clone()) };
            let out = self.emit(op, std::slice::from_ref(&t), ty.clone(), span)?;
            Ok::<_, Stop>(Tensor { value: t.value, origin: t.origin, ..out })
        };
        Ok((part(0)?, part(len)?))
    }

    /// Two parts of a declared axis, or two halves.
    fn concat_call(&mut self, a: &Expr, b: &Expr, span: Span) -> Res<Tensor> {
        let vals = [self.expr(a, None)?, self.expr(b, None)?];
        if let Some(joined) = self.joined(&vals, span)? {
            return Ok(joined);
        }
        let [front, back] = vals;
        let (front, back) = (self.tensor(front, a.span)?, self.tensor(back, b.span)?);
        self.concat(front, back, span)
    }

    /// Joins two halves into the product axis that has them.
    fn concat(&mut self, a: Tensor, b: Tensor, span: Span) -> Res<Tensor> {
        let (la, lb) = (self.last_axis(&a, span)?, self.last_axis(&b, span)?);
        let whole = self
            .resolved
            .facts
            .products
            .iter()
            .find(|(_, f)| f.len() == 2 && f[0] == "2" && f[1] == la.name && la == lb)
            .map(|(p, _)| p.clone());
        let Some(axis) = whole.and_then(|p| self.resolved.facts.axis(&p)) else {
            return refuse(
                Diagnostic::error("B0270", format!("no axis consists of `{}` and `{}`", la.name, lb.name))
                    .at(span, "joined here")
                    .help("declare [axes] whole = \"2.half\" or whole = \"front + back\", and join its two parts"),
            );
        };
        let value = a.value && b.value && a.ty.dtype == b.ty.dtype;
        let dtype = if a.ty.dtype == b.ty.dtype { a.ty.dtype } else { DType::F32 };
        let (operands, mut axes, _) = self.aligned(vec![a, b], span)?;
        axes.retain(|x| x.name != la.name);
        axes.push(axis.clone());
        let out = self.emit(Op::Concat { into: axis.name }, &operands, TensorType::new(dtype, axes), span)?;
        Ok(Tensor { value, ..out })
    }
}
