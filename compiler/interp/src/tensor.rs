//! Tensors: named axes, a dtype, and the numbers.

use crate::error::{Fault, InterpError, inconsistent};
use ir::{DType, Extent, TensorType};
use std::fmt;

/// Elements, row-major. A bf16 tensor keeps binary32 numbers that bf16 holds exactly.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Elements of an f32 or bf16 tensor.
    F32(Vec<f32>),
    /// Elements of an i32 tensor.
    I32(Vec<i32>),
    /// Elements of a bool tensor.
    Bool(Vec<bool>),
}

impl Data {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Data::F32(v) => v.len(),
            Data::I32(v) => v.len(),
            Data::Bool(v) => v.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn suits(&self, dtype: DType) -> bool {
        match self {
            Data::F32(_) => dtype.is_float(),
            Data::I32(_) => dtype == DType::I32,
            Data::Bool(_) => dtype == DType::Bool,
        }
    }
}

/// A value: axes outermost first, each named once, and row-major data.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    axes: Vec<(String, usize)>,
    dtype: DType,
    data: Data,
}

/// No tensor may have more elements than this; a wrong length in a file then shows before memory runs out.
const MOST_ELEMENTS: usize = 1 << 31;

impl Tensor {
    /// A tensor; axes are outermost first. The data must fill the axes, suit the dtype, and no two axes share a name.
    pub fn new(axes: Vec<(String, usize)>, dtype: DType, data: Data) -> Result<Self, InterpError> {
        let wanted = elements(&axes)?;
        if wanted != data.len() {
            return Err(inconsistent(format!(
                "{} needs {wanted} elements, {} are given",
                text(dtype, &axes),
                data.len()
            )));
        }
        if !data.suits(dtype) {
            return Err(inconsistent(format!("the elements given for {} are of another kind", text(dtype, &axes))));
        }
        if let Some((i, axis)) = axes.iter().enumerate().find(|(i, a)| axes[..*i].iter().any(|b| b.0 == a.0)) {
            let axis = &axis.0;
            return Err(inconsistent(format!("axis `{axis}` stands twice in {}, at {i} again", text(dtype, &axes))));
        }
        Ok(Tensor { axes, dtype, data })
    }

    /// An f32 tensor.
    pub fn f32(axes: &[(&str, usize)], data: Vec<f32>) -> Result<Self, InterpError> {
        Tensor::new(owned(axes), DType::F32, Data::F32(data))
    }

    /// A bf16 tensor; the numbers are rounded.
    pub fn bf16(axes: &[(&str, usize)], mut data: Vec<f32>) -> Result<Self, InterpError> {
        numerics::round_bf16_in_place(&mut data);
        Tensor::new(owned(axes), DType::Bf16, Data::F32(data))
    }

    /// An i32 tensor.
    pub fn i32(axes: &[(&str, usize)], data: Vec<i32>) -> Result<Self, InterpError> {
        Tensor::new(owned(axes), DType::I32, Data::I32(data))
    }

    /// A bool tensor.
    pub fn bool(axes: &[(&str, usize)], data: Vec<bool>) -> Result<Self, InterpError> {
        Tensor::new(owned(axes), DType::Bool, Data::Bool(data))
    }

    /// Axes with their lengths, outermost first.
    pub fn axes(&self) -> &[(String, usize)] {
        &self.axes
    }

    /// Storage format.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements, row-major.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The elements of an f32 or bf16 tensor.
    pub fn floats(&self) -> Option<&[f32]> {
        match &self.data {
            Data::F32(v) => Some(v),
            _ => None,
        }
    }

    /// The elements of an i32 tensor.
    pub fn ints(&self) -> Option<&[i32]> {
        match &self.data {
            Data::I32(v) => Some(v),
            _ => None,
        }
    }

    /// The elements of a bool tensor.
    pub fn bools(&self) -> Option<&[bool]> {
        match &self.data {
            Data::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Position of an axis.
    pub fn axis(&self, name: &str) -> Option<usize> {
        self.axes.iter().position(|a| a.0 == name)
    }

    /// Length of an axis.
    pub fn length(&self, name: &str) -> Option<usize> {
        self.axes.iter().find(|a| a.0 == name).map(|a| a.1)
    }

    /// Whether the other tensor has the same axes and dtype and equal elements, NaNs being equal whatever their payload.
    pub fn same(&self, other: &Tensor) -> bool {
        self.axes == other.axes
            && self.dtype == other.dtype
            && match (&self.data, &other.data) {
                (Data::F32(a), Data::F32(b)) => {
                    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| numerics::same_bits(*x, *y))
                }
                (a, b) => a == b,
            }
    }

    /// Whether dtype, axis names and fixed lengths are those of the type.
    pub fn fits(&self, ty: &TensorType) -> bool {
        self.dtype == ty.dtype
            && self.axes.len() == ty.axes.len()
            && self.axes.iter().zip(&ty.axes).all(|((name, len), axis)| {
                *name == axis.name && (axis.is_rows() || axis.extent == Extent::Fixed(*len as u64))
            })
    }

    /// Checks [`Tensor::fits`] for a value that came from outside the graph.
    pub(crate) fn expect_fit(&self, ty: &TensorType, what: impl FnOnce() -> String) -> Result<(), InterpError> {
        if self.fits(ty) {
            return Ok(());
        }
        let wanted: Vec<String> = ty
            .axes
            .iter()
            .map(|a| match a.extent {
                Extent::Fixed(n) => format!("{} = {n}", a.name),
                Extent::Rows => a.name.clone(),
            })
            .collect();
        let wanted = format!("{}[{}]", ty.dtype, wanted.join(", "));
        Err(Fault::Mismatch { what: what(), got: self.to_string(), wanted }.into())
    }
}

impl fmt::Display for Tensor {
    /// Dtype and axes with their lengths; no elements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(self.dtype, &self.axes))
    }
}

fn text(dtype: DType, axes: &[(String, usize)]) -> String {
    let axes: Vec<String> = axes.iter().map(|(name, len)| format!("{name} = {len}")).collect();
    format!("{dtype}[{}]", axes.join(", "))
}

fn owned(axes: &[(&str, usize)]) -> Vec<(String, usize)> {
    axes.iter().map(|(name, len)| ((*name).to_owned(), *len)).collect()
}

/// Product of the lengths, if it is one that memory could hold. An empty axis does not excuse the others: strides are
/// products of them.
pub(crate) fn elements(axes: &[(String, usize)]) -> Result<usize, InterpError> {
    axes.iter()
        .try_fold(1usize, |n, (_, len)| n.checked_mul((*len).max(1)))
        .filter(|n| *n <= MOST_ELEMENTS)
        .map(|n| if axes.iter().any(|a| a.1 == 0) { 0 } else { n })
        .ok_or_else(|| inconsistent(format!("axes {axes:?} have more than 2^31 elements")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ill_formed_tensors_are_refused() {
        let code = |t: Result<Tensor, InterpError>| t.expect_err("an error").fault.code();
        assert_eq!(code(Tensor::f32(&[("a", 2)], vec![1.0])), "I0203");
        assert_eq!(code(Tensor::f32(&[("a", 1), ("a", 1)], vec![1.0])), "I0203");
        assert_eq!(code(Tensor::new(vec![], DType::I32, Data::F32(vec![1.0]))), "I0203");
        let huge = 1 << 40;
        assert_eq!(code(Tensor::f32(&[("a", huge), ("b", huge)], vec![])), "I0203");
        assert_eq!(code(Tensor::f32(&[("a", 0), ("b", huge), ("c", huge)], vec![])), "I0203");
    }

    #[test]
    fn nans_are_one_value_and_zeros_are_two() {
        let t = |x: f32| Tensor::f32(&[], vec![x]).expect("a tensor");
        assert!(t(f32::NAN).same(&t(-f32::NAN)));
        assert!(!t(0.0).same(&t(-0.0)));
        assert_eq!(Tensor::bf16(&[], vec![1.001]).expect("a tensor").floats(), Some(&[1.0][..]));
    }
}
