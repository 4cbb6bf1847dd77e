//! Sums in each of the orders.

use crate::error::{InterpError, broken};
use ir::Order;

/// The sum of `term(0)`, …, `term(n - 1)`, each a binary32 number.
pub(crate) fn sum(order: &Order, n: usize, term: impl Fn(usize) -> f32) -> f32 {
    sum_of(order, n, &term)
}

fn sum_of(order: &Order, n: usize, term: &dyn Fn(usize) -> f32) -> f32 {
    match order {
        Order::Any => sum64(n, |i| f64::from(term(i))) as f32,
        Order::Fold => numerics::fold_by(n, term),
        // Numbers that are no products have nothing that could stay unrounded.
        Order::Serial | Order::Fused => (1..n).fold(if n == 0 { 0.0 } else { term(0) }, |total, i| total + term(i)),
        Order::Split { parts, inner } => split(*parts, n, |start, len| sum_of(inner, len, &|i| term(start + i))),
    }
}

/// The sum over `parts` equal contiguous parts of `n` terms, each given by first term and length. Where `n` does not come out
/// even the last parts are shorter; [`checked`] keeps that from happening.
fn split(parts: u64, n: usize, mut part: impl FnMut(usize, usize) -> f32) -> f32 {
    let parts = usize::try_from(parts).unwrap_or(usize::MAX).clamp(1, n.max(1));
    let len = n.div_ceil(parts);
    let mut starts = (0..parts).map(|p| (p * len).min(n)).map(|start| (start, len.min(n - start)));
    let first = starts.next().map_or(0.0, |(start, len)| part(start, len));
    starts.filter(|(_, len)| *len > 0).fold(first, |total, (start, len)| total + part(start, len))
}

/// Demands that every cut of an order comes out even over `n` terms.
pub(crate) fn checked(rule: &'static str, order: &Order, n: usize) -> Result<(), InterpError> {
    match order {
        Order::Any | Order::Fold | Order::Serial | Order::Fused => Ok(()),
        Order::Split { parts, inner } => match usize::try_from(*parts) {
            Ok(parts) if parts > 0 && n.is_multiple_of(parts) => checked(rule, inner, n / parts),
            _ => Err(broken(rule, format!("{n} terms have no {parts} equal parts"))),
        },
    }
}

/// [`checked`] for terms that are no products.
pub(crate) fn checked_sum(rule: &'static str, order: &Order, n: usize) -> Result<(), InterpError> {
    if order.is_of_products() {
        return Err(broken(rule, format!("the order `{order}` is for products")));
    }
    checked(rule, order, n)
}

/// The sum of products of two binary32 numbers each. For `any` and `fused` products are exact; for other orders each is rounded.
pub(crate) fn sum_of_products(order: &Order, n: usize, factors: &dyn Fn(usize) -> (f32, f32)) -> f32 {
    match order {
        Order::Any => sum64(n, |i| {
            let (a, b) = factors(i);
            f64::from(a) * f64::from(b)
        }) as f32,
        Order::Fused => fused((0..n).map(factors)),
        Order::Split { parts, inner } => {
            split(*parts, n, |start, len| sum_of_products(inner, len, &|i| factors(start + i)))
        }
        order => sum(order, n, |i| {
            let (a, b) = factors(i);
            a * b
        }),
    }
}

/// The sum of products of two rows of equal length.
pub(crate) fn dot(order: &Order, a: &[f32], b: &[f32]) -> f32 {
    match order {
        Order::Any => dot64(a, b) as f32,
        Order::Fused => fused(a.iter().copied().zip(b.iter().copied())),
        Order::Split { parts, inner } => {
            split(*parts, a.len().min(b.len()), |start, len| dot(inner, &a[start..start + len], &b[start..start + len]))
        }
        order => sum_of_products(order, a.len().min(b.len()), &|i| (a[i], b[i])),
    }
}

/// One running total by ascending index, each product added without being rounded first.
fn fused(mut factors: impl Iterator<Item = (f32, f32)>) -> f32 {
    let first = factors.next().map_or(0.0, |(a, b)| a * b);
    factors.fold(first, |total, (a, b)| a.mul_add(b, total))
}

/// Binary64 accumulation: eight running totals by index modulo 8, then added pairwise as in a group of `fold`.
fn sum64(n: usize, mut term: impl FnMut(usize) -> f64) -> f64 {
    let mut lanes = [0f64; 8];
    for i in 0..n {
        lanes[i % 8] += term(i);
    }
    pairwise(lanes)
}

/// [`sum64`] of the products of two rows, in a form that compilers turn into vector code.
fn dot64(a: &[f32], b: &[f32]) -> f64 {
    let (wide_a, rest_a) = a.as_chunks::<8>();
    let (wide_b, rest_b) = b.as_chunks::<8>();
    let mut lanes = [0f64; 8];
    for (x, y) in wide_a.iter().zip(wide_b) {
        for j in 0..8 {
            lanes[j] += f64::from(x[j]) * f64::from(y[j]);
        }
    }
    for ((lane, x), y) in lanes.iter_mut().zip(rest_a).zip(rest_b) {
        *lane += f64::from(*x) * f64::from(*y);
    }
    pairwise(lanes)
}

fn pairwise(l: [f64; 8]) -> f64 {
    ((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + (l[6] + l[7]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_differ_where_they_should() {
        let x = [1e8f32, 1.0, 1.0, 1.0, -1e8, 1.0, 1.0, 1.0, 0.5];
        assert_eq!(sum(&Order::Any, 9, |i| x[i]), 6.5);
        assert_eq!(sum(&Order::Serial, 9, |i| x[i]), 3.5);
        assert_eq!(sum(&Order::Fold, 9, |i| x[i]), numerics::fold_sum(&x));
        assert_eq!(sum(&Order::Any, 0, |_| 1.0).to_bits(), 0);
        assert_eq!(sum(&Order::Serial, 1, |_| -0.0).to_bits(), 0x8000_0000);
        let split = |parts, inner| Order::Split { parts, inner: Box::new(inner) };
        assert_eq!(sum(&split(3, Order::Serial), 9, |i| x[i]), (x[0] + 1.0 + 1.0) + (1.0 + x[4] + 1.0) + 2.5);
        assert_eq!(sum(&split(9, Order::Any), 9, |i| x[i]), sum(&Order::Serial, 9, |i| x[i]));
        assert_eq!(sum(&split(1, Order::Fold), 9, |i| x[i]), sum(&Order::Fold, 9, |i| x[i]));
        assert_eq!(sum(&split(2, split(2, Order::Any)), 8, |i| x[i]), ((x[0] + 1.0) + 2.0) + ((x[4] + 1.0) + 2.0));
        assert!(checked("reduce C4", &split(2, split(3, Order::Any)), 12).is_ok());
        assert!(checked("reduce C4", &split(2, split(3, Order::Any)), 8).is_err());
        assert!(checked("reduce C4", &split(0, Order::Any), 8).is_err());
        assert!(checked("linear C7", &split(2, Order::Fused), 8).is_ok());
        assert!(checked_sum("reduce C4", &split(2, Order::Fused), 8).is_err());
    }

    #[test]
    fn a_fused_product_is_not_rounded_before_it_is_added() {
        // (1 + 2^-12)² = 1 + 2^-11 + 2^-24, whose last part no binary32 number beside 1 can hold.
        let (a, b) = ([1.0, 1.0 + 2f32.powi(-12)], [-1.0, 1.0 + 2f32.powi(-12)]);
        assert_eq!(dot(&Order::Serial, &a, &b), 2f32.powi(-11));
        assert_eq!(dot(&Order::Fused, &a, &b), 2f32.powi(-11) + 2f32.powi(-24));
        assert_eq!(sum_of_products(&Order::Fused, 2, &|i| (a[i], b[i])), dot(&Order::Fused, &a, &b));
        let cut = Order::Split { parts: 2, inner: Box::new(Order::Fused) };
        assert_eq!(dot(&cut, &a, &b), 2f32.powi(-11), "parts are added after they are rounded");
        assert_eq!(dot(&Order::Fused, &[-1.0], &[0.0]).to_bits(), 0x8000_0000);
        assert_eq!(dot(&Order::Fused, &[], &[]).to_bits(), 0);
    }

    #[test]
    fn the_vector_form_is_the_definition() {
        for n in 0..40 {
            let a: Vec<f32> = (0..n).map(|i| numerics::synthetic(1, 0, i)).collect();
            let b: Vec<f32> = (0..n).map(|i| numerics::synthetic(2, 0, i)).collect();
            let slow = sum64(a.len(), |i| f64::from(a[i]) * f64::from(b[i]));
            assert_eq!(dot64(&a, &b).to_bits(), slow.to_bits(), "{n}");
        }
    }
}
