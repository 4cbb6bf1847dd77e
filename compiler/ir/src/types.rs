//! Types: a dtype and a list of named axes.

use crate::DType;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How long an axis is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// Known when the spec is compiled.
    Fixed(u64),
    /// Known when a step arrives: tokens, sequences, wanted rows.
    Rows,
}

/// One named axis of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Axis {
    /// Name; two values with an axis of one name are aligned along it.
    pub name: String,
    /// Length.
    pub extent: Extent,
}

impl Axis {
    /// An axis of known length.
    pub fn fixed(name: impl Into<String>, length: u64) -> Self {
        Axis { name: name.into(), extent: Extent::Fixed(length) }
    }

    /// An axis whose length each step brings.
    pub fn rows(name: impl Into<String>) -> Self {
        Axis { name: name.into(), extent: Extent::Rows }
    }

    /// Whether the length is only known when a step arrives.
    pub fn is_rows(&self) -> bool {
        self.extent == Extent::Rows
    }
}

/// The type of a tensor value. Axes are outermost first; row axes precede fixed ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorType {
    /// Storage format.
    pub dtype: DType,
    /// Named axes, outermost first; empty for a single number.
    pub axes: Vec<Axis>,
    /// For integers that select along an axis: the name of that axis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub indexes: Option<String>,
}

impl TensorType {
    /// A type without an index target.
    pub fn new(dtype: DType, axes: Vec<Axis>) -> Self {
        TensorType { dtype, axes, indexes: None }
    }

    /// A single number.
    pub fn scalar(dtype: DType) -> Self {
        TensorType::new(dtype, Vec::new())
    }

    /// The same axes in another format.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        TensorType { dtype, axes: self.axes.clone(), indexes: None }
    }

    /// Position of an axis, if the value has it.
    pub fn axis(&self, name: &str) -> Option<usize> {
        self.axes.iter().position(|a| a.name == name)
    }

    /// Product of the fixed extents: elements per combination of row indices; the largest number where 64 bits do not
    /// suffice, which no verified weight or value comes near.
    pub fn fixed_elements(&self) -> u64 {
        let lengths = self.axes.iter().map(|a| if let Extent::Fixed(n) = a.extent { n } else { 1 });
        lengths.fold(1, u64::saturating_mul)
    }

    /// Names of the row axes, outermost first.
    pub fn row_axes(&self) -> impl Iterator<Item = &str> {
        self.axes.iter().filter(|a| a.is_rows()).map(|a| a.name.as_str())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.dtype)?;
        if let Some(target) = &self.indexes {
            write!(f, "<{target}>")?;
        }
        f.write_str("[")?;
        for (i, axis) in self.axes.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{}", axis.name)?;
        }
        f.write_str("]")
    }
}

/// The type of any value of a graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Type {
    /// Numbers.
    Tensor(TensorType),
    /// The cache of one KV kind as it stands after the effects it depends on.
    Cache,
    /// Several values at once: what a call, a match or the layer loop leaves (model level only).
    Tuple(Vec<Type>),
}

impl Type {
    /// The tensor type, if this is one.
    pub fn tensor(&self) -> Option<&TensorType> {
        match self {
            Type::Tensor(t) => Some(t),
            Type::Cache | Type::Tuple(_) => None,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Tensor(t) => t.fmt(f),
            Type::Cache => f.write_str("cache"),
            Type::Tuple(items) => {
                f.write_str("(")?;
                for (i, item) in items.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}{item}")?;
                }
                f.write_str(")")
            }
        }
    }
}
