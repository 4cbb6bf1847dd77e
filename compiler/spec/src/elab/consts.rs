//! Constants (clause R5): untyped ones in binary64, `: f32` ones operator by operator in binary32.

use super::value::{Val, Vector};
use super::{Elab, Res};
use crate::Diagnostic;
use crate::ast::{BinaryOp, Expr, ExprKind};
use ir::{Axis, ConstBinary, ConstExpr, ConstUnary, Span};

/// Longest constant vector.
const MAX_ENTRIES: u64 = 1 << 20;

impl Elab<'_> {
    /// Evaluates a constant expression; `narrow` rounds each operation to binary32.
    pub(super) fn constant(&mut self, e: &Expr, narrow: bool) -> Res<Val> {
        let value = self.fold(e, narrow)?;
        Ok(match value {
            Val::Const(c) if narrow => match c.number() {
                Some(x) => Val::Const(ConstExpr::Num(x as f32 as f64)),
                None => {
                    return Err(Box::new(
                        Diagnostic::error("B0291", "a constant typed f32 cannot depend on the layer")
                            .at(e.span, "uses the layer's index")
                            .help("leave the type away: it rounds to f32 where it is used"),
                    ));
                }
            },
            Val::Vector(mut v) if narrow => {
                v.data.iter_mut().for_each(|x| *x = *x as f32 as f64);
                Val::Vector(v)
            }
            other => other,
        })
    }

    fn fold(&mut self, e: &Expr, narrow: bool) -> Res<Val> {
        self.descend(e.span)?;
        let val = self.fold_kind(e, narrow);
        self.levels -= 1;
        if let Ok(Val::Vector(v)) = &val {
            self.steps += v.data.len() / 64;
        }
        val
    }

    fn fold_kind(&mut self, e: &Expr, narrow: bool) -> Res<Val> {
        match &e.kind {
            ExprKind::Neg(inner) => {
                let val = self.fold(inner, narrow)?;
                self.map(val, narrow, e.span, |x| -x, Some(ConstUnary::Neg))
            }
            ExprKind::Binary(op, a, b) => {
                let (a, b) = (self.fold(a, narrow)?, self.fold(b, narrow)?);
                self.combine(*op, a, b, narrow, e.span)
            }
            ExprKind::Call { function, args, named } if named.is_empty() && args.len() == 1 => {
                if function.text == "iota" {
                    return self.iota(&args[0]).map(Val::Vector);
                }
                let (f, symbol): (fn(f64) -> f64, _) = match function.text.as_str() {
                    "sqrt" => (f64::sqrt, Some(ConstUnary::Sqrt)),
                    "abs" => (f64::abs, None),
                    "exp" => (libm::exp, None),
                    "log" => (libm::log, None),
                    "sin" => (libm::sin, None),
                    "cos" => (libm::cos, None),
                    other => {
                        return Err(Box::new(
                            Diagnostic::error("B0292", format!("`{other}` is no function of constants"))
                                .at(function.span, "in a constant")
                                .nearest(
                                    other,
                                    ["sqrt", "abs", "exp", "log", "sin", "cos", "iota", "where", "min", "max"],
                                ),
                        ));
                    }
                };
                let val = self.fold(&args[0], narrow)?;
                self.map(val, narrow, e.span, f, symbol)
            }
            ExprKind::Call { function, args, named } if named.is_empty() => {
                let mut values = Vec::new();
                for a in args {
                    values.push(self.fold(a, narrow)?);
                }
                match (function.text.as_str(), values.as_slice()) {
                    ("min", [a, b]) => self.zip(a.clone(), b.clone(), e.span, f64::min).map(Val::Vector),
                    ("max", [a, b]) => self.zip(a.clone(), b.clone(), e.span, f64::max).map(Val::Vector),
                    ("where", [c, a, b]) => {
                        let kept = self.zip(c.clone(), a.clone(), e.span, |c, a| if c != 0.0 { a } else { 0.0 })?;
                        let other = self.zip(c.clone(), b.clone(), e.span, |c, b| if c != 0.0 { 0.0 } else { b })?;
                        self.zip(Val::Vector(kept), Val::Vector(other), e.span, |a, b| a + b).map(Val::Vector)
                    }
                    (name, _) => Err(Box::new(
                        Diagnostic::error("B0292", format!("`{name}` is no such function of constants"))
                            .at(function.span, "in a constant"),
                    )),
                }
            }
            _ => match self.expr(e, None)? {
                Val::Layer => Ok(Val::Const(ConstExpr::Layer)),
                val @ (Val::Const(_) | Val::Vector(_)) => Ok(val),
                other => Err(Box::new(
                    Diagnostic::error("B0293", "a constant is computed from constants")
                        .at(e.span, format!("this is {}", other.what()))
                        .help("leave `const` away to compute it at run time"),
                )),
            },
        }
    }

    fn map(&mut self, val: Val, narrow: bool, span: Span, f: fn(f64) -> f64, symbol: Option<ConstUnary>) -> Res<Val> {
        match (val, symbol) {
            (Val::Const(c), Some(op)) if c.number().is_none() => self.sized(ConstExpr::Unary(op, Box::new(c)), span),
            (Val::Const(c), _) => match c.number() {
                Some(x) => Ok(Val::Const(ConstExpr::Num(rounded(f(rounded(x, narrow)), narrow)))),
                None => Err(per_layer(span)),
            },
            (Val::Vector(mut v), _) => {
                v.data.iter_mut().for_each(|x| *x = rounded(f(rounded(*x, narrow)), narrow));
                Ok(Val::Vector(v))
            }
            _ => Err(per_layer(span)),
        }
    }

    fn combine(&mut self, op: BinaryOp, a: Val, b: Val, narrow: bool, span: Span) -> Res<Val> {
        let f: fn(f64, f64) -> f64 = match op {
            BinaryOp::Add => |a, b| a + b,
            BinaryOp::Sub => |a, b| a - b,
            BinaryOp::Mul => |a, b| a * b,
            BinaryOp::Div => |a, b| a / b,
            BinaryOp::Rem => |a, b| a.rem_euclid(b),
            BinaryOp::Pow => libm::pow,
            BinaryOp::Eq => |a, b| f64::from(u8::from(a == b)),
            BinaryOp::Ne => |a, b| f64::from(u8::from(a != b)),
            BinaryOp::Lt => |a, b| f64::from(u8::from(a < b)),
            BinaryOp::Le => |a, b| f64::from(u8::from(a <= b)),
            BinaryOp::Gt => |a, b| f64::from(u8::from(a > b)),
            BinaryOp::Ge => |a, b| f64::from(u8::from(a >= b)),
        };
        if let (Val::Const(x), Val::Const(y)) = (&a, &b) {
            return match (x.number(), y.number(), symbol(op)) {
                (Some(x), Some(y), _) => {
                    Ok(Val::Const(ConstExpr::Num(rounded(f(rounded(x, narrow), rounded(y, narrow)), narrow))))
                }
                (_, _, Some(op)) => self.sized(ConstExpr::Binary(op, Box::new(x.clone()), Box::new(y.clone())), span),
                _ => Err(per_layer(span)),
            };
        }
        let (a, b) = (self.widen(a, narrow, span)?, self.widen(b, narrow, span)?);
        let mut out = self.zip(Val::Vector(a), Val::Vector(b), span, f)?;
        out.data.iter_mut().for_each(|x| *x = rounded(*x, narrow));
        Ok(Val::Vector(out))
    }

    fn widen(&self, val: Val, narrow: bool, span: Span) -> Res<Vector> {
        match val {
            Val::Vector(v) => Ok(v),
            Val::Const(c) => match c.number() {
                Some(x) => Ok(Vector { axes: Vec::new(), data: vec![rounded(x, narrow)] }),
                None => Err(per_layer(span)),
            },
            _ => Err(per_layer(span)),
        }
    }

    /// Element by element; one of the two may be a single number, else both have the same axes.
    fn zip(&self, a: Val, b: Val, span: Span, f: fn(f64, f64) -> f64) -> Res<Vector> {
        let (a, b) = (self.widen(a, false, span)?, self.widen(b, false, span)?);
        let (axes, n) = if a.axes.is_empty() { (b.axes.clone(), b.data.len()) } else { (a.axes.clone(), a.data.len()) };
        if !a.axes.is_empty() && !b.axes.is_empty() && a.axes != b.axes {
            return Err(Box::new(
                Diagnostic::error("B0294", "two constant vectors have different axes")
                    .at(span, format!("`{}` and `{}`", a.axes[0].name, b.axes[0].name)),
            ));
        }
        let at = |v: &Vector, i: usize| if v.axes.is_empty() { v.data[0] } else { v.data[i] };
        Ok(Vector { axes, data: (0..n).map(|i| f(at(&a, i), at(&b, i))).collect() })
    }

    /// `iota(axis)`: 0, 1, 2, … along an axis of known length.
    pub(super) fn iota(&mut self, e: &Expr) -> Res<Vector> {
        let length = match &e.kind {
            ExprKind::Name(name) => self.resolved.facts.dims.get(name).map(|n| (name.clone(), *n)),
            _ => None,
        };
        match length {
            Some((name, n)) if n <= MAX_ENTRIES => {
                Ok(Vector { axes: vec![Axis::fixed(name, n)], data: (0..n).map(|i| i as f64).collect() })
            }
            _ => {
                let known: Vec<&str> = self.resolved.facts.dims.keys().map(String::as_str).collect();
                Err(Box::new(
                    Diagnostic::error("B0295", "`iota` counts along a dimension of at most 2^20 entries")
                        .at(e.span, "not such a dimension")
                        .nearest(if let ExprKind::Name(n) = &e.kind { n } else { "" }, known),
                ))
            }
        }
    }
}

/// One binary32 rounding of a binary64 result: exact for `+ - * /` and `sqrt` of binary32 operands,
/// since binary64 has more than twice the bits.
fn rounded(x: f64, narrow: bool) -> f64 {
    if narrow { x as f32 as f64 } else { x }
}

fn symbol(op: BinaryOp) -> Option<ConstBinary> {
    Some(match op {
        BinaryOp::Add => ConstBinary::Add,
        BinaryOp::Sub => ConstBinary::Sub,
        BinaryOp::Mul => ConstBinary::Mul,
        BinaryOp::Div => ConstBinary::Div,
        BinaryOp::Pow => ConstBinary::Pow,
        _ => return None,
    })
}

fn per_layer(span: Span) -> Box<Diagnostic> {
    Box::new(
        Diagnostic::error("B0296", "a number of the layer allows + - * / ** and sqrt only")
            .at(span, "another operation"),
    )
}
