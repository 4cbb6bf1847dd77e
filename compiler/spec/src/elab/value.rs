//! What an expression can be while it is elaborated.

use ir::{Axis, ConstExpr, DType, KvRef, Mask, TensorType, ValueId, WeightRef};

/// Which formats the values under an expression had; decides the lint about narrowing names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Some value under it is stored as f32.
    pub wide: bool,
    /// Some value under it is stored narrower.
    pub narrow: bool,
    /// Some value under it is an integer.
    pub integer: bool,
}

impl Origin {
    pub fn join(self, other: Origin) -> Origin {
        Origin {
            wide: self.wide || other.wide,
            narrow: self.narrow || other.narrow,
            integer: self.integer || other.integer,
        }
    }
}

/// A run-time tensor.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub id: ValueId,
    pub ty: TensorType,
    /// Whether clause R2 takes it for a *value*, which keeps its dtype, rather than an expression.
    pub value: bool,
    pub origin: Origin,
}

impl Tensor {
    /// The origin that an operation on this tensor inherits.
    pub fn origin(&self) -> Origin {
        match (self.value, self.ty.dtype) {
            (true, DType::F32) => Origin { wide: true, ..Origin::default() },
            (true, DType::Bf16) => Origin { narrow: true, ..Origin::default() },
            (_, DType::I32) => Origin { integer: true, ..Origin::default() },
            _ => self.origin,
        }
    }

    /// The same tensor, taken as a value.
    pub fn into_value(mut self) -> Tensor {
        self.value = true;
        self
    }

    pub fn axis_names(&self) -> String {
        let names: Vec<&str> = self.ty.axes.iter().map(|a| a.name.as_str()).collect();
        format!("[{}]", names.join(", "))
    }
}

/// A compile-time vector: data in binary64, or binary32 values in binary64 if it is typed f32.
#[derive(Clone, Debug)]
pub(crate) struct Vector {
    pub axes: Vec<Axis>,
    pub data: Vec<f64>,
}

/// A weight, perhaps with one index chosen along its first axis.
#[derive(Clone, Debug)]
pub(crate) struct WeightVal {
    pub reference: WeightRef,
    pub ty: TensorType,
    pub chosen: Option<Tensor>,
}

/// The meaning of an expression.
#[derive(Clone, Debug)]
pub(crate) enum Val {
    Tensor(Tensor),
    Const(ConstExpr),
    Vector(Vector),
    Weight(WeightVal),
    /// A cache after its effects so far.
    Cache(ValueId, KvRef),
    Kv(KvRef),
    Mask(Mask),
    /// `"none"` of `[values]`.
    None,
    /// A truth value of `[values]`.
    Truth(bool),
    /// The layer that runs.
    Layer,
    /// `l.column`.
    Column(String),
    /// `options.name`.
    Choice(String),
    /// The names before a dot: `W`, `kv`, `options`, a group of values.
    Root(String),
    /// Several results.
    Many(Vec<Val>),
    /// The result of a statement that was refused.
    Unknown,
    /// `top`: values, and ids if two names take it.
    Top(Tensor, Tensor),
}

impl Val {
    /// What an error calls it.
    pub fn what(&self) -> &'static str {
        match self {
            Val::Tensor(_) => "a tensor",
            Val::Const(_) => "a constant",
            Val::Vector(_) => "a constant vector",
            Val::Weight(_) => "a weight",
            Val::Cache(..) => "a cache",
            Val::Kv(_) => "a cache kind",
            Val::Mask(_) => "a mask",
            Val::None => "none",
            Val::Truth(_) => "a truth value of the spec",
            Val::Layer => "the layer",
            Val::Column(_) => "a kind of the layer",
            Val::Choice(_) => "an option",
            Val::Root(_) => "a group of names",
            Val::Many(_) => "several values",
            Val::Unknown => "unknown",
            Val::Top(..) => "the result of `top`",
        }
    }
}
