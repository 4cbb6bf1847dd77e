//! Constants (clause R5): untyped ones in binary64, `: f32` ones operator by operator in binary32.

use super::Elab;
use super::builtin::CONST_FUNCTIONS;
use super::value::{Val, Vector};
use crate::Diagnostic;
use crate::ast::{BinaryOp, Expr, ExprKind};
use crate::stop::{Res, refuse};
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
                    return refuse(
                        Diagnostic::error("B0291", "a constant typed f32 cannot depend on the layer")
                            .at(e.span, "uses the layer's index")
                            .help("leave the type away: it rounds to f32 where it is used"),
                    );
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
                        return refuse(
                            Diagnostic::error("B0292", format!("`{other}` is no function of constants"))
                                .at(function.span, "in a constant")
                                .nearest(other, CONST_FUNCTIONS),
                        );
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
                let f: fn(&[f64]) -> f64 = match (function.text.as_str(), values.len()) {
                    ("min", 2) => |x| x[0].min(x[1]),
                    ("max", 2) => |x| x[0].max(x[1]),
                    ("where", 3) => |x| if x[0] != 0.0 { x[1] } else { x[2] },
                    (name, n) => {
                        return refuse(
                            Diagnostic::error("B0292", format!("`{name}` of {n} values is no function of constants"))
                                .at(function.span, "in a constant")
                                .help("min(a, b), max(a, b) and where(condition, a, b) are"),
                        );
                    }
                };
                self.zip(values, narrow, e.span, f)
            }
            _ => match self.expr(e, None)? {
                Val::Layer => Ok(Val::Const(ConstExpr::Layer)),
                val @ (Val::Const(_) | Val::Vector(_)) => Ok(val),
                other => refuse(
                    Diagnostic::error("B0293", "a constant is computed from constants")
                        .at(e.span, format!("this is {}", other.what()))
                        .help("leave `const` away to compute it at run time"),
                ),
            },
        }
    }

    fn map(&mut self, val: Val, narrow: bool, span: Span, f: fn(f64) -> f64, symbol: Option<ConstUnary>) -> Res<Val> {
        match (val, symbol) {
            (Val::Const(c), Some(op)) if c.number().is_none() => self.sized(ConstExpr::Unary(op, Box::new(c)), span),
            (Val::Const(c), _) => match c.number() {
                Some(x) => Ok(Val::Const(ConstExpr::Num(rounded(f(rounded(x, narrow)), narrow)))),
                None => refuse(per_layer(span)),
            },
            (Val::Vector(mut v), _) => {
                v.data.iter_mut().for_each(|x| *x = rounded(f(rounded(*x, narrow)), narrow));
                Ok(Val::Vector(v))
            }
            _ => refuse(per_layer(span)),
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
        if let (Val::Const(x), Val::Const(y), Some(op)) = (&a, &b, symbol(op))
            && (x.uses_layer() || y.uses_layer())
        {
            return self.sized(ConstExpr::Binary(op, Box::new(x.clone()), Box::new(y.clone())), span);
        }
        self.zip(vec![a, b], narrow, span, |x| f(x[0], x[1]))
    }

    fn widen(&self, val: Val, narrow: bool, span: Span) -> Res<Vector> {
        match val {
            Val::Vector(mut v) => {
                v.data.iter_mut().for_each(|x| *x = rounded(*x, narrow));
                Ok(v)
            }
            Val::Const(c) => match c.number() {
                Some(x) => Ok(Vector { axes: Vec::new(), data: vec![rounded(x, narrow)] }),
                None => refuse(per_layer(span)),
            },
            _ => refuse(per_layer(span)),
        }
    }

    /// Element by element: single numbers go with every element, vectors have the same axes; numbers only give a number.
    fn zip(&self, values: Vec<Val>, narrow: bool, span: Span, f: impl Fn(&[f64]) -> f64) -> Res<Val> {
        let values = values.into_iter().map(|v| self.widen(v, narrow, span)).collect::<Res<Vec<Vector>>>()?;
        let mut axes: &[Axis] = &[];
        for v in values.iter().filter(|v| !v.axes.is_empty()) {
            if !axes.is_empty() && axes != v.axes.as_slice() {
                return refuse(
                    Diagnostic::error("B0294", "two constant vectors have different axes")
                        .at(span, format!("`{}` and `{}`", axes[0].name, v.axes[0].name))
                        .help("vectors combine entry by entry"),
                );
            }
            axes = &v.axes;
        }
        let n = values.iter().map(|v| v.data.len()).max().unwrap_or(0);
        let at = |v: &Vector, i: usize| if v.axes.is_empty() { v.data[0] } else { v.data[i] };
        let element = |i: usize| rounded(f(&values.iter().map(|v| at(v, i)).collect::<Vec<f64>>()), narrow);
        if axes.is_empty() {
            return Ok(Val::Const(ConstExpr::Num(element(0))));
        }
        Ok(Val::Vector(Vector { axes: axes.to_vec(), data: (0..n).map(element).collect() }))
    }

    /// `iota(axis)`: 0, 1, 2, … along an axis of known length.
    pub(super) fn iota(&mut self, e: &Expr) -> Res<Vector> {
        let length = match &e.kind {
            ExprKind::Name(name) => self.resolved.facts.dims.get(name).map(|n| (name.clone(), *n)),
            _ => None,
        };
        match length {
            Some((name, n)) if n <= MAX_ENTRIES => {
                self.read.insert(("dims", name.clone()));
                Ok(Vector { axes: vec![Axis::fixed(name, n)], data: (0..n).map(|i| i as f64).collect() })
            }
            _ => {
                let known: Vec<&str> = self.resolved.facts.dims.keys().map(String::as_str).collect();
                refuse(
                    Diagnostic::error("B0295", "`iota` counts along a dimension of at most 2^20 entries")
                        .at(e.span, "not such a dimension")
                        .nearest(if let ExprKind::Name(n) = &e.kind { n } else { "" }, known),
                )
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

fn per_layer(span: Span) -> Diagnostic {
    Diagnostic::error("B0296", "a number of the layer allows + - * / ** and sqrt only")
        .at(span, "another operation")
        .help("compute it at run time: leave `const` away, or write it with these")
}
