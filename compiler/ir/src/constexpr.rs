//! Numbers known when a layer instance is made: expressions over the layer index, evaluated in binary64.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One-operand functions of constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConstUnary {
    /// Sign change.
    Neg,
    /// Correctly rounded square root.
    Sqrt,
}

/// Two-operand functions of constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConstBinary {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Quotient.
    Div,
    /// Power.
    Pow,
}

impl ConstBinary {
    /// The operator as written in specs and IR text.
    pub fn sign(self) -> &'static str {
        match self {
            ConstBinary::Add => "+",
            ConstBinary::Sub => "-",
            ConstBinary::Mul => "*",
            ConstBinary::Div => "/",
            ConstBinary::Pow => "**",
        }
    }
}

/// A constant of a layer instance (clause R7): a number, the layer index, or an operation on such.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConstExpr {
    /// A number.
    Num(#[serde(with = "crate::json::exact_f64")] f64),
    /// The zero-based index of the layer.
    Layer,
    /// A function of one constant.
    Unary(ConstUnary, Box<ConstExpr>),
    /// A function of two constants.
    Binary(ConstBinary, Box<ConstExpr>, Box<ConstExpr>),
}

impl ConstExpr {
    /// Evaluates in binary64 (clause R5, untyped constants), for the layer with index `layer`.
    pub fn eval(&self, layer: usize) -> f64 {
        match self {
            ConstExpr::Num(x) => *x,
            ConstExpr::Layer => layer as f64,
            ConstExpr::Unary(ConstUnary::Neg, a) => -a.eval(layer),
            ConstExpr::Unary(ConstUnary::Sqrt, a) => a.eval(layer).sqrt(),
            ConstExpr::Binary(op, a, b) => {
                let (a, b) = (a.eval(layer), b.eval(layer));
                match op {
                    ConstBinary::Add => a + b,
                    ConstBinary::Sub => a - b,
                    ConstBinary::Mul => a * b,
                    ConstBinary::Div => a / b,
                    ConstBinary::Pow => libm::pow(a, b),
                }
            }
        }
    }

    /// The number, if the layer index does not occur.
    pub fn number(&self) -> Option<f64> {
        (!self.uses_layer()).then(|| self.eval(0))
    }

    /// Whether the value depends on the layer.
    pub fn uses_layer(&self) -> bool {
        match self {
            ConstExpr::Num(_) => false,
            ConstExpr::Layer => true,
            ConstExpr::Unary(_, a) => a.uses_layer(),
            ConstExpr::Binary(_, a, b) => a.uses_layer() || b.uses_layer(),
        }
    }

    /// Number of parts.
    pub fn size(&self) -> usize {
        match self {
            ConstExpr::Num(_) | ConstExpr::Layer => 1,
            ConstExpr::Unary(_, a) => 1 + a.size(),
            ConstExpr::Binary(_, a, b) => 1 + a.size() + b.size(),
        }
    }

    /// Folds every part that does not depend on the layer into one number.
    pub fn simplified(self) -> ConstExpr {
        if let Some(x) = self.number() {
            return ConstExpr::Num(x);
        }
        match self {
            ConstExpr::Unary(op, a) => ConstExpr::Unary(op, Box::new(a.simplified())),
            ConstExpr::Binary(op, a, b) => ConstExpr::Binary(op, Box::new(a.simplified()), Box::new(b.simplified())),
            leaf => leaf,
        }
    }
}

impl fmt::Display for ConstExpr {
    /// Prints fully parenthesised; numbers in the shortest form that reads back to the same bits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConstExpr::Num(x) => write!(f, "{x:?}"),
            ConstExpr::Layer => f.write_str("l"),
            ConstExpr::Unary(ConstUnary::Neg, a) => write!(f, "neg({a})"),
            ConstExpr::Unary(ConstUnary::Sqrt, a) => write!(f, "sqrt({a})"),
            ConstExpr::Binary(op, a, b) => write!(f, "({a} {} {b})", op.sign()),
        }
    }
}
