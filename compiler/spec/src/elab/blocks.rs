//! Builtins that draft and judge a block of tokens: `shift`, `walk`, `probs`, `accept`, and `store` and `fill`, which they need.

use super::Elab;
use super::value::{Origin, Tensor, Val};
use crate::Diagnostic;
use crate::ast::{Expr, ExprKind};
use crate::stop::{Res, refuse};
use ir::{AcceptRule, AcceptWhat, DType, Op, Span, TensorType, WalkWhat};

/// Finds a named argument.
type Keyword<'k, 'e> = &'k dyn Fn(&str) -> Option<&'e Expr>;

impl Elab<'_> {
    /// The builtin of this name, if it is one of these.
    pub(super) fn block_builtin(
        &mut self,
        name: &str,
        args: &[Expr],
        keyword: Keyword<'_, '_>,
        span: Span,
    ) -> Option<Res<Val>> {
        Some(match name {
            "store" => self.store(args, [keyword("at"), keyword("where")], span),
            "fill" => self.fill(&args[0], &args[1]),
            "shift" => self.shift(args, [keyword("over"), keyword("fill")], span).map(Val::Tensor),
            "walk" => self.walk(args, span),
            "probs" => self.probs(args, span).map(Val::Tensor),
            "accept" => self.accept(args, keyword("rule"), span),
            _ => return None,
        })
    }

    /// `shift(x, t, over = axis, fill = y)`: the element `t` places before, y or 0 where there is none.
    fn shift(&mut self, args: &[Expr], [over, fill]: [Option<&Expr>; 2], span: Span) -> Res<Tensor> {
        let by = match self.expr(&args[1], None)? {
            Val::Const(c) => c.number(),
            _ => None,
        };
        let (x, axis) = self.along(&args[0], over, span)?;
        let length = super::axes::fixed(&axis);
        let Some(by) = by.filter(|by| *by >= 0.0 && by.fract() == 0.0 && *by <= length as f64) else {
            return refuse(
                Diagnostic::error("B0254", format!("a shift is a whole number of places up to {length}"))
                    .at(args[1].span, format!("`{}` has {length} entries", axis.name))
                    .help(format!("write a whole number from 0 to {length}")),
            );
        };
        if by == 0.0 {
            return Ok(x);
        }
        let (value, origin, ty) = (x.value, x.origin, x.ty.clone());
        let mut operands = vec![x];
        if let Some(e) = fill {
            let val = self.expr(e, None)?;
            operands.push(self.tensor(val, e.span)?);
        }
        let out = self.checked(Op::Shift { axis: axis.name, by: by as u64 }, &operands, ty, span)?;
        Ok(Tensor { value, origin, ..out })
    }

    fn operands(&mut self, args: &[Expr]) -> Res<Vec<Tensor>> {
        args.iter().map(|e| self.operand(e)).collect()
    }

    /// `walk(score, ids, temp, coin)`: tokens, and the distributions they were drawn from.
    fn walk(&mut self, args: &[Expr], span: Span) -> Res<Val> {
        let operands = self.operands(args)?;
        let ids = operands[1].ty.clone();
        let mut tokens = TensorType { dtype: DType::I32, ..ids.clone() };
        tokens.axes.pop();
        let probs = TensorType::new(DType::F32, ids.axes);
        let tokens = self.checked(Op::Walk { what: WalkWhat::Tokens }, &operands, tokens, span)?;
        let probs = self.checked(Op::Walk { what: WalkWhat::Probs }, &operands, probs, span)?;
        Ok(Val::Many(vec![Val::Tensor(tokens), Val::Tensor(probs)]))
    }

    /// `probs(z, temp, top_k, top_p)`: the distribution that tokens are drawn from.
    fn probs(&mut self, args: &[Expr], span: Span) -> Res<Tensor> {
        let operands = self.operands(args)?;
        let ty = operands[0].ty.with_dtype(DType::F32);
        self.checked(Op::Probs, &operands, ty, span)
    }

    /// `accept(tokens, z)`: count and bonus; `accept(tokens, p, ids, q, coin, last, rule = token)`: also the rest.
    fn accept(&mut self, args: &[Expr], rule: Option<&Expr>, span: Span) -> Res<Val> {
        let written = rule.map(|e| (&e.kind, e.span));
        let rule = match written {
            None => Some(if args.len() == 2 { AcceptRule::Greedy } else { AcceptRule::Token }),
            Some((ExprKind::Name(name), _)) => AcceptRule::ALL.into_iter().find(|r| r.word() == name),
            Some(_) => None,
        };
        let Some(rule) = rule else {
            return refuse(
                Diagnostic::error("B0264", "`rule` is `greedy`, `token` or `block`")
                    .at(written.map_or(span, |(_, at)| at), "another thing")
                    .help("leave it out for `greedy` of logits, `token` of distributions"),
            );
        };
        let operands = self.operands(args)?;
        let mut row = TensorType::new(DType::I32, operands[0].ty.axes.clone());
        row.axes.pop();
        let rest = row.axes.iter().chain(operands[1].ty.axes.last()).cloned().collect();
        let mut results = vec![(AcceptWhat::Count, row.clone()), (AcceptWhat::Bonus, row)];
        if rule.draws() {
            results.push((AcceptWhat::Rest, TensorType::new(DType::F32, rest)));
        }
        let mut items = Vec::new();
        for (what, ty) in results {
            items.push(Val::Tensor(self.checked(Op::Accept { rule, what }, &operands, ty, span)?));
        }
        Ok(Val::Many(items))
    }

    /// Adds an operation whose operands its type rule checks; the result is a value.
    fn checked(&mut self, op: Op, operands: &[Tensor], ty: TensorType, span: Span) -> Res<Tensor> {
        let out = self.emit(op, operands, ty, span)?;
        let top = self.frames.len() - 1;
        let checked = ir::check_operation(self.frames[top].builder.graph(), out.id, &self.resolved.facts);
        match checked {
            Ok(()) => Ok(Tensor { origin: Origin::default(), ..out.into_value() }),
            Err(why) => refuse(
                Diagnostic::error("B0297", format!("the operands do not fit: {why}")).at(span, "in this call").help(
                    "docs/ops.md has the axes and formats of each operand; a name of type f32 keeps an expression f32",
                ),
            ),
        }
    }
}
