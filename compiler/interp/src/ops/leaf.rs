//! Leaves: weights, literals, instance numbers. Inputs are the caller's.

use crate::context::Context;
use crate::error::{Fault, InterpError, broken};
use crate::shape::result_axes;
use crate::tensor::{Data, Tensor};
use ir::{ConstExpr, DType, Facts, Scope, TensorType, WeightRef};
use std::sync::Arc;

/// `weight`: the tensor that the reference names for the layer that runs.
pub(crate) fn weight(
    reference: &WeightRef,
    facts: &Facts,
    ctx: &Context<'_>,
    ty: &TensorType,
) -> Result<Arc<Tensor>, InterpError> {
    if let WeightRef::Packed { into, parts } = reference {
        return packed(into, parts, facts, ctx, ty).map(Arc::new);
    }
    let weight = plain(reference, facts, ctx)?;
    let name = || match reference {
        WeightRef::Model(name)
        | WeightRef::Layer(name)
        | WeightRef::FirstLayer(name)
        | WeightRef::OfLayer { name, .. } => name.clone(),
        WeightRef::Next { layer, .. } => layer.clone(),
        WeightRef::Packed { into, .. } => into.clone(),
    };
    weight.expect_fit(ty, || format!("weight `{}`", name()))?;
    Ok(weight)
}

/// A weight as the source has it.
fn plain(reference: &WeightRef, facts: &Facts, ctx: &Context<'_>) -> Result<Arc<Tensor>, InterpError> {
    let running = |name: &str| ctx.layer.ok_or_else(|| Fault::NoLayer(format!("weight `{name}`")));
    let (scope, name, layer) = match reference {
        WeightRef::Model(name) => (Scope::Model, name, None),
        WeightRef::Layer(name) => (Scope::Layer, name, Some(running(name)?)),
        WeightRef::FirstLayer(name) => (Scope::Layer, name, Some(0)),
        WeightRef::OfLayer { layer, name } => (Scope::Layer, name, Some(*layer)),
        WeightRef::Next { layer, last } => match running(layer)? + 1 {
            next if next < facts.layers() => (Scope::Layer, layer, Some(next)),
            _ => (Scope::Model, last, None),
        },
        WeightRef::Packed { .. } => return Err(broken("weight C1", "a packed weight is a part of another")),
    };
    ctx.weights.weight(scope, name, layer)
}

/// Weights joined along their own rows: the axes between those in front of `into` and those behind it.
fn packed(
    into: &str,
    parts: &[WeightRef],
    facts: &Facts,
    ctx: &Context<'_>,
    ty: &TensorType,
) -> Result<Tensor, InterpError> {
    let at = ty.axis(into).ok_or_else(|| broken("weight C1", format!("the result has no axis `{into}`")))?;
    let behind = ty.axes.len() - at - 1;
    let weights = parts.iter().map(|part| plain(part, facts, ctx)).collect::<Result<Vec<_>, _>>()?;
    let shown = |w: &Tensor| broken("weight C1", format!("{w} is a part of {ty}"));
    let product = |axes: &[(String, usize)]| axes.iter().map(|a| a.1).product::<usize>();
    // Per part its numbers, and how many of them stand together for one index in front.
    let mut runs: Vec<(&[f32], usize)> = Vec::new();
    let mut rows = 0;
    let mut outer: Option<Vec<(String, usize)>> = None;
    let mut inner: Option<Vec<(String, usize)>> = None;
    for weight in &weights {
        let axes = weight.axes();
        let end = axes.len().checked_sub(behind).filter(|end| *end > at).ok_or_else(|| shown(weight))?;
        let (front, between, back) = (&axes[..at], &axes[at..end], &axes[end..]);
        if outer.get_or_insert_with(|| front.to_vec()) != front || inner.get_or_insert_with(|| back.to_vec()) != back {
            return Err(shown(weight));
        }
        rows += product(between);
        runs.push((weight.floats().ok_or_else(|| shown(weight))?, product(between) * product(back)));
    }
    let (mut axes, inner) = (outer.unwrap_or_default(), inner.unwrap_or_default());
    let mut data = Vec::new();
    for i in 0..product(&axes) {
        for (numbers, run) in &runs {
            data.extend_from_slice(numbers.get(i * run..(i + 1) * run).unwrap_or_default());
        }
    }
    axes.push((into.to_owned(), rows));
    axes.extend(inner);
    let joined = Tensor::new(axes, ty.dtype, Data::F32(data))?;
    joined.expect_fit(ty, || "a packed weight".to_owned())?;
    if weights.iter().any(|w| w.dtype() != ty.dtype) {
        return Err(broken("weight C1", format!("parts of {ty} have other formats")));
    }
    Ok(joined)
}

/// `literal`: constant data over the axes of the result.
pub(crate) fn literal(numbers: &[f32], ty: &TensorType) -> Result<Tensor, InterpError> {
    let axes = result_axes("literal C1", ty, &[])?;
    let wrong = |x: f32| broken("literal C2", format!("{x} is not a {}", ty.dtype));
    let data = match ty.dtype {
        DType::F32 => Data::F32(numbers.to_vec()),
        DType::Bf16 => {
            if let Some(x) = numbers.iter().find(|x| !numerics::is_bf16(**x)) {
                return Err(wrong(*x));
            }
            Data::F32(numbers.to_vec())
        }
        DType::E4m3 | DType::E5m2 | DType::Nvfp4 => {
            return Err(broken("literal C2", format!("no literal is {}", ty.dtype)));
        }
        DType::I32 => {
            let whole = |x: &f32| if (*x as i32) as f32 == *x { Ok(*x as i32) } else { Err(wrong(*x)) };
            Data::I32(numbers.iter().map(whole).collect::<Result<_, _>>()?)
        }
        DType::Bool => {
            let truth = |x: &f32| if *x == 0.0 || *x == 1.0 { Ok(*x == 1.0) } else { Err(wrong(*x)) };
            Data::Bool(numbers.iter().map(truth).collect::<Result<_, _>>()?)
        }
    };
    Tensor::new(axes, ty.dtype, data)
        .map_err(|_| broken("literal C1", format!("{} numbers are given for {ty}", numbers.len())))
}

/// A constant of the layer instance in binary64.
pub(crate) fn constant(what: &str, expr: &ConstExpr, layer: Option<usize>) -> Result<f64, InterpError> {
    match (layer, expr.number()) {
        (_, Some(number)) => Ok(number),
        (Some(layer), None) => Ok(expr.eval(layer)),
        (None, None) => Err(Fault::NoLayer(format!("{what} {expr}")).into()),
    }
}

/// `scalar`: a constant of the layer instance, rounded once.
pub(crate) fn scalar(expr: &ConstExpr, layer: Option<usize>, ty: &TensorType) -> Result<Tensor, InterpError> {
    if ty.dtype != DType::F32 || !ty.axes.is_empty() {
        return Err(broken("scalar C1", format!("the result is declared {ty}, it is f32[]")));
    }
    Tensor::f32(&[], vec![constant("the number", expr, layer)? as f32])
}
