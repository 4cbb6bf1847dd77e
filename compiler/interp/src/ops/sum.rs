//! Sums in each of the orders.

use ir::Order;

/// The sum of `term(0)`, …, `term(n - 1)`, each a binary32 number.
pub(crate) fn sum(order: &Order, n: usize, mut term: impl FnMut(usize) -> f32) -> f32 {
    match order {
        Order::Any => sum64(n, |i| f64::from(term(i))) as f32,
        Order::Fold => numerics::fold_by(n, term),
        Order::Serial => (1..n).fold(if n == 0 { 0.0 } else { term(0) }, |total, i| total + term(i)),
    }
}

/// The sum of products of two binary32 numbers each. For `any` products are exact; for other orders each is rounded.
pub(crate) fn sum_of_products(order: &Order, n: usize, factors: impl Fn(usize) -> (f32, f32)) -> f32 {
    match order {
        Order::Any => sum64(n, |i| {
            let (a, b) = factors(i);
            f64::from(a) * f64::from(b)
        }) as f32,
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
        order => sum_of_products(order, a.len().min(b.len()), |i| (a[i], b[i])),
    }
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
