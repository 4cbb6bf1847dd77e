//! Sums of products.

mod common;
use common::{op, tensor, try_op};
use interp::Tensor;
use ir::{Op, Order};

fn linear(contract: &[&str], order: Order) -> Op {
    Op::Linear { contract: contract.iter().map(|c| (*c).to_owned()).collect(), order }
}

#[test]
fn a_linear_yields_the_leading_axes_of_the_weight() {
    let x = "bf16[T = 2, h = 2] 1 2 3 4";
    let w = "bf16[n = 3, h = 2] 1 0 0 1 1 1";
    assert_eq!(op(linear(&["h"], Order::Any), &[x, w], "f32[T, n = 3]"), "f32[T = 2, n = 3] 1 2 3 3 4 7");
    let x = "f32[T = 1, a = 2, b = 2] 1 2 3 4";
    let w = "f32[n = 1, m = 2, a = 2, b = 2] 1 1 1 1 0 0 0 1";
    assert_eq!(op(linear(&["a", "b"], Order::Any), &[x, w], "f32[T, n = 1, m = 2]"), "f32[T = 1, n = 1, m = 2] 10 4");
}

#[test]
fn ids_choose_each_rows_slice() {
    let w = "f32[e = 3, n = 1, h = 2] 1 0 0 1 1 1";
    let ids = "i32[T = 2, picked = 2] 0 2 1 1";
    let x = "f32[T = 2, h = 2] 1 2 3 4";
    let wanted = "f32[T = 2, picked = 2, n = 1] 1 3 4 4";
    assert_eq!(op(linear(&["h"], Order::Any), &[x, w, ids], "f32[T, picked = 2, n = 1]"), wanted);
    // x may carry the picked axis already.
    let x = "f32[T = 1, picked = 2, h = 2] 1 2 3 4";
    let ids = "i32[T = 1, picked = 2] 0 2";
    let wanted = "f32[T = 1, picked = 2, n = 1] 1 7";
    assert_eq!(op(linear(&["h"], Order::Any), &[x, w, ids], "f32[T, picked = 2, n = 1]"), wanted);
}

#[test]
fn a_linear_checks_its_operands() {
    let x = "f32[T = 1, h = 2] 1 2";
    let w = "f32[e = 1, n = 1, h = 2] 1 0";
    let any = || linear(&["h"], Order::Any);
    assert!(op(linear(&["n"], Order::Any), &[x, w], "f32[T, n = 1]").contains("linear C1"));
    assert!(op(any(), &[x, "f32[n = 1, h = 3] 1 2 3"], "f32[T, n = 1]").contains("linear C2"));
    assert!(op(any(), &[x, "i32[n = 1, h = 2] 1 2"], "f32[T, n = 1]").contains("linear C3"));
    assert!(op(any(), &[x, w], "bf16[T, e = 1, n = 1]").contains("linear C3"));
    assert!(op(any(), &[x, w, "f32[T = 1] 0"], "f32[T, n = 1]").contains("linear C4"));
    assert!(op(any(), &[x, "f32[h = 2] 1 2", "i32[T = 1] 0"], "f32[T]").contains("linear C4"));
    assert!(op(any(), &[x, w], "f32[T, n = 1, e = 1]").contains("linear C5"));
    assert!(op(any(), &[x, w, "i32[T = 1] 1"], "f32[T, n = 1]").contains("linear C6"));
    assert!(op(any(), &[x], "f32[T]").contains("I0203"));
}

#[test]
fn orders_are_what_they_say() {
    let n = 300;
    let x: Vec<f32> = (0..n).map(|i| numerics::synthetic(1, 1, i)).collect();
    let w: Vec<f32> = (0..n).map(|i| numerics::synthetic(1, 2, i)).collect();
    let products: Vec<f32> = x.iter().zip(&w).map(|(a, b)| a * b).collect();
    let run = |order: Order| {
        let x = Tensor::f32(&[("h", x.len())], x.clone()).expect("a tensor");
        let w = Tensor::f32(&[("n", 1), ("h", w.len())], w.clone()).expect("a tensor");
        try_op(linear(&["h"], order), &[x, w], "f32[n = 1]").expect("a result").floats().expect("floats")[0]
    };
    assert_eq!(run(Order::Fold).to_bits(), numerics::fold_sum(&products).to_bits());
    assert_eq!(run(Order::Serial).to_bits(), products.iter().copied().reduce(|a, b| a + b).expect("terms").to_bits());
    let fused = x.iter().zip(&w).fold(-0.0f32, |total, (a, b)| a.mul_add(*b, total));
    assert_eq!(run(Order::Fused).to_bits(), fused.to_bits());
    assert_ne!(fused.to_bits(), run(Order::Serial).to_bits());
    // Any order of a binary64 sum of 300 exact products of size one is within 300 · 2^-53 · 300 of the exact sum.
    let exact: f64 = x.iter().zip(&w).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    assert!((f64::from(run(Order::Any)) - exact).abs() <= exact.abs() * 2f64.powi(-24) + 1e-11);
}

#[test]
fn small_integers_give_the_same_bits_in_every_order() {
    // |x|, |w| ≤ 15 keep every partial sum below 2^24.
    let text = |f: fn(i32) -> i32| (0..700).map(|i| f(i).to_string()).collect::<Vec<_>>().join(" ");
    let x = format!("f32[h = 700] {}", text(|i| i * 7 % 31 - 15));
    let w = format!("f32[n = 1, h = 700] {}", text(|i| i * 11 % 31 - 15));
    let results: Vec<String> = [Order::Any, Order::Fold, Order::Serial, Order::Fused]
        .map(|o| op(linear(&["h"], o), &[&x, &w], "f32[n = 1]"))
        .to_vec();
    assert!(results.iter().all(|r| *r == results[0]), "{results:?}");
}

#[test]
fn a_dot_aligns_what_it_does_not_contract() {
    let dot = |axis: &str| Op::Dot { axis: axis.into(), order: Order::Any };
    let a = "f32[T = 2, c = 2] 1 2 3 4";
    assert_eq!(op(dot("c"), &[a, "f32[T = 2, c = 2] 1 1 2 2"], "f32[T]"), "f32[T = 2] 3 14");
    assert_eq!(op(dot("c"), &[a, "f32[c = 2, n = 2] 1 2 3 4"], "f32[T, n = 2]"), "f32[T = 2, n = 2] 7 10 15 22");
    assert_eq!(op(dot("T"), &[a, "f32[T = 2] 1 10"], "f32[c = 2]"), "f32[c = 2] 31 42");
    assert!(op(dot("x"), &[a, a], "f32[T]").contains("dot C1"));
    assert!(op(dot("c"), &[a, "f32[c = 3] 1 2 3"], "f32[T]").contains("dot C1"));
    assert!(op(dot("c"), &[a, "f32[c = 2] 1 2"], "f32[]").contains("dot C2"));
    assert!(op(dot("c"), &[a, "i32[c = 2] 1 2"], "f32[T]").contains("dot C3"));
    assert_eq!(tensor(a).length("c"), Some(2));
}
