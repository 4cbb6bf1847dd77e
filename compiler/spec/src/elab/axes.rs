//! Axes: broadcasting by name, product axes seen as their factors (clause R6).

use super::Elab;
use super::value::Tensor;
use crate::Diagnostic;
use crate::stop::{Res, Stop, refuse};
use ir::{Axis, Extent, Op, Span, TensorType};

impl Elab<'_> {
    /// The operands of an element-wise operation, split where one has a product axis and another its factor,
    /// with the axes of the result and the products to merge again afterwards.
    pub(super) fn aligned(&mut self, operands: Vec<Tensor>, span: Span) -> Res<(Vec<Tensor>, Vec<Axis>, Vec<String>)> {
        let products = self.resolved.facts.products.clone();
        let mut operands = operands;
        let mut merges = Vec::new();
        for (product, factors) in &products {
            let whole = operands.iter().any(|t| t.ty.axis(product).is_some());
            let part =
                operands.iter().any(|t| t.ty.axis(product).is_none() && factors.iter().any(|f| t.ty.axis(f).is_some()));
            if whole && part {
                for t in &mut operands {
                    if t.ty.axis(product).is_some() {
                        *t = self.split(t.clone(), product, span)?;
                    }
                }
                merges.push(product.clone());
            }
        }
        let mut axes: Vec<Axis> = Vec::new();
        for t in &operands {
            axes = union(&axes, &t.ty.axes).map_err(|name| {
                Stop::from(
                    Diagnostic::error("B0211", format!("the axis `{name}` has two lengths here"))
                        .at(span, "operands cannot be aligned")
                        .help(format!("rename one of them: `x as other_{name}`")),
                )
            })?;
        }
        Ok((operands, axes, merges))
    }

    /// Undoes the splits of `aligned`.
    pub(super) fn merged(&mut self, mut t: Tensor, merges: &[String], span: Span) -> Res<Tensor> {
        for product in merges {
            let factors = self.resolved.facts.products[product].clone();
            let Some(start) = t.ty.axis(&factors[0]) else { continue };
            let adjacent = factors.iter().enumerate().all(|(i, f)| t.ty.axis(f) == Some(start + i));
            let Some(whole) = self.resolved.facts.axis(product) else { continue };
            if adjacent {
                let mut axes = t.ty.axes.clone();
                axes.splice(start..start + factors.len(), [whole]);
                let ty = TensorType::new(t.ty.dtype, axes);
                let value = t.value;
                t = self.emit(Op::Merge { into: product.clone() }, &[t], ty, span)?;
                t.value = value;
            }
        }
        Ok(t)
    }

    fn split(&mut self, t: Tensor, product: &str, span: Span) -> Res<Tensor> {
        let Some(at) = t.ty.axis(product) else { return Ok(t) };
        let factors = self.resolved.facts.products[product].clone();
        let mut axes = t.ty.axes.clone();
        let parts: Vec<Axis> = factors.iter().filter_map(|f| self.resolved.facts.axis(f)).collect();
        axes.splice(at..=at, parts);
        let ty = TensorType::new(t.ty.dtype, axes);
        let value = t.value;
        let mut out = self.emit(Op::Split { axis: product.to_owned() }, &[t], ty, span)?;
        out.value = value;
        Ok(out)
    }

    /// The tensor seen so that it has the axis: itself, or with the product that contains it split.
    pub(super) fn with_axis(&mut self, t: Tensor, axis: &str, span: Span) -> Res<Tensor> {
        if t.ty.axis(axis).is_some() {
            return Ok(t);
        }
        let product = self
            .resolved
            .facts
            .products
            .iter()
            .find(|(p, f)| t.ty.axis(p).is_some() && f.iter().any(|f| f == axis))
            .map(|(p, _)| p.clone());
        match product {
            Some(product) => self.split(t, &product, span),
            None => {
                let have = t.axis_names();
                let known: Vec<String> = t.ty.axes.iter().map(|a| a.name.clone()).collect();
                refuse(
                    Diagnostic::error("B0212", format!("the value has no axis `{axis}`"))
                        .at(span, format!("its axes are {have}"))
                        .nearest(axis, known.iter().map(String::as_str)),
                )
            }
        }
    }

    /// The innermost axis of a value, which must have a fixed length.
    pub(super) fn last_axis(&self, t: &Tensor, span: Span) -> Res<Axis> {
        let last = t.ty.axes.last().cloned();
        match last {
            Some(axis) if !axis.is_rows() => Ok(axis),
            _ => refuse(
                Diagnostic::error("B0213", "a value with a fixed innermost axis is expected")
                    .at(span, format!("its axes are {}", t.axis_names()))
                    .help("write over = axis with the name of an axis of fixed length"),
            ),
        }
    }
}

/// Length of a fixed axis.
pub(super) fn fixed(axis: &Axis) -> u64 {
    match axis.extent {
        Extent::Fixed(n) => n,
        Extent::Rows => 0,
    }
}

/// Axes of both, in an order that both agree with where they do; row axes first. An axis with two lengths is an error.
fn union(a: &[Axis], b: &[Axis]) -> Result<Vec<Axis>, String> {
    for x in a {
        if b.iter().any(|y| y.name == x.name && y.extent != x.extent) {
            return Err(x.name.clone());
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut out: Vec<Axis> = Vec::new();
    let later = |list: &[Axis], from: usize, name: &str| list[from..].iter().any(|x| x.name == name);
    while i < a.len() || j < b.len() {
        let taken = |axis: &Axis| out.iter().any(|o| o.name == axis.name);
        if i < a.len() && taken(&a[i]) {
            i += 1;
        } else if j < b.len() && taken(&b[j]) {
            j += 1;
        } else if i < a.len() && (j >= b.len() || !later(b, j, &a[i].name) || a[i].name == b[j].name) {
            out.push(a[i].clone());
            i += 1;
        } else if j < b.len() && (i >= a.len() || !later(a, i, &b[j].name)) {
            out.push(b[j].clone());
            j += 1;
        } else {
            // The two disagree about the order: the left one's stands.
            out.push(a[i].clone());
            i += 1;
        }
    }
    let (rows, rest): (Vec<Axis>, Vec<Axis>) = out.into_iter().partition(Axis::is_rows);
    Ok(rows.into_iter().chain(rest).collect())
}
