//! Element-wise operations, rounding, literals and numbers.

mod common;
use common::{op, tensor, try_op};
use ir::{Binary, ConstBinary, ConstExpr, DType, Op, Unary};

#[test]
fn operands_are_aligned_by_name_and_the_result_has_its_declared_order() {
    let a = "f32[a = 2, b = 3] 1 2 3 4 5 6";
    let b = "f32[b = 3] 10 20 30";
    assert_eq!(op(Op::Binary(Binary::Add), &[a, b], "f32[a, b = 3]"), "f32[a = 2, b = 3] 11 22 33 14 25 36");
    assert_eq!(op(Op::Binary(Binary::Add), &[a, b], "f32[b = 3, a]"), "f32[b = 3, a = 2] 11 14 22 25 33 36");
    let outer = op(Op::Binary(Binary::Mul), &["f32[a = 2] 1 2", "f32[b = 3] 1 2 3"], "f32[a, b]");
    assert_eq!(outer, "f32[a = 2, b = 3] 1 2 3 2 4 6");
    assert_eq!(op(Op::Binary(Binary::Sub), &["f32[] 5", "f32[a = 2] 1 2"], "f32[a]"), "f32[a = 2] 4 3");
    assert_eq!(op(Op::Binary(Binary::Sub), &["f32[a = 0]", "f32[] 1"], "f32[a]"), "f32[a = 0]");
}

#[test]
fn misaligned_operands_name_the_constraint() {
    let wrong = op(Op::Binary(Binary::Add), &["f32[a = 2] 1 2", "f32[a = 3] 1 2 3"], "f32[a]");
    assert!(
        wrong.starts_with("I0201 at %2 in layer 3: binary C1 does not hold: axis `a` is 2 long here and 3 there"),
        "{wrong}"
    );
    let extra = op(Op::Binary(Binary::Add), &["f32[a = 2] 1 2", "f32[b = 1] 1"], "f32[a]");
    assert!(extra.contains("binary C1") && extra.contains("axis `b`"), "{extra}");
    let absent = op(Op::Binary(Binary::Add), &["f32[a = 2] 1 2", "f32[] 1"], "f32[T, a]");
    assert!(absent.contains("no operand has the axis `T`"), "{absent}");
    let narrow = op(Op::Binary(Binary::Add), &["f32[] 1", "f32[] 1"], "bf16[]");
    assert!(narrow.contains("binary C2"), "{narrow}");
    let truth = op(Op::Binary(Binary::Add), &["bool[] yes", "f32[] 1"], "f32[]");
    assert!(truth.contains("binary C2"), "{truth}");
    let both = op(Op::Binary(Binary::And), &["f32[] 1", "bool[] yes"], "bool[]");
    assert!(both.contains("binary C3"), "{both}");
}

#[test]
fn integers_widen_and_compare_exactly() {
    assert_eq!(op(Op::Binary(Binary::Add), &["i32[T = 2] 3 16777217", "f32[] 1"], "f32[T]"), "f32[T = 2] 4 16777216");
    let big = ["i32[] 16777217", "i32[] 16777216"];
    assert_eq!(op(Op::Binary(Binary::Eq), &big, "bool[]"), "bool[] no");
    assert_eq!(op(Op::Binary(Binary::Lt), &[big[1], big[0]], "bool[]"), "bool[] yes");
    assert_eq!(op(Op::Binary(Binary::Eq), &[big[0], "f32[] 16777216"], "bool[]"), "bool[] yes");
}

#[test]
fn comparisons_follow_ieee() {
    let a = "f32[x = 4] NaN 0 -inf 2";
    let b = "f32[x = 4] NaN -0 inf 2";
    assert_eq!(op(Op::Binary(Binary::Eq), &[a, b], "bool[x]"), "bool[x = 4] no yes no yes");
    assert_eq!(op(Op::Binary(Binary::Lt), &[a, b], "bool[x]"), "bool[x = 4] no no yes no");
    assert_eq!(op(Op::Binary(Binary::Le), &[a, b], "bool[x]"), "bool[x = 4] no yes yes yes");
    assert_eq!(op(Op::Binary(Binary::Max), &[a, b], "f32[x]"), "f32[x = 4] NaN 0 inf 2");
    assert_eq!(op(Op::Binary(Binary::Min), &[a, b], "f32[x]"), "f32[x = 4] NaN -0 -inf 2");
}

#[test]
fn functions_of_one_value() {
    let x = "f32[x = 3] -4 0 4";
    assert_eq!(op(Op::Unary(Unary::Neg), &[x], "f32[x]"), "f32[x = 3] 4 -0 -4");
    assert_eq!(op(Op::Unary(Unary::Abs), &[x], "f32[x]"), "f32[x = 3] 4 0 4");
    assert_eq!(op(Op::Unary(Unary::Sqrt), &[x], "f32[x]"), "f32[x = 3] NaN 0 2");
    assert_eq!(op(Op::Unary(Unary::Not), &["bool[x = 2] yes no"], "bool[x]"), "bool[x = 2] no yes");
    assert!(op(Op::Unary(Unary::Not), &[x], "bool[x]").contains("unary C3"));
    assert!(op(Op::Unary(Unary::Exp), &[x], "bf16[x]").contains("unary C2"));
    type Function = fn(f32) -> f32;
    let functions: [(Unary, Function); 6] = [
        (Unary::Exp, numerics::exp),
        (Unary::Log1p, numerics::log1p),
        (Unary::Tanh, numerics::tanh),
        (Unary::Sigmoid, numerics::sigmoid),
        (Unary::Sin, numerics::sin),
        (Unary::Cos, numerics::cos),
    ];
    for (unary, f) in functions {
        let y = try_op(Op::Unary(unary), &[tensor("f32[x = 2] 0.3 7.5")], "f32[x]").expect("a result");
        assert_eq!(y.floats(), Some(&[f(0.3), f(7.5)][..]), "{unary:?}");
    }
}

#[test]
fn a_fused_product_and_sum_rounds_once() {
    // (1 + 2^-12)^2 - 1 is exactly 2^-11 + 2^-24; two roundings lose the last term.
    let x = 1.0 + 2f32.powi(-12);
    let x = format!("f32[] {x}");
    let fused = try_op(Op::Fma, &[tensor(&x), tensor(&x), tensor("f32[] -1")], "f32[]").expect("a result");
    assert_eq!(fused.floats(), Some(&[2f32.powi(-11) + 2f32.powi(-24)][..]));
}

#[test]
fn select_keeps_dtypes() {
    let c = "bool[x = 2] yes no";
    assert_eq!(op(Op::Select, &[c, "f32[] 1", "f32[x = 2] 5 NaN"], "f32[x]"), "f32[x = 2] 1 NaN");
    assert_eq!(op(Op::Select, &[c, "bf16[] 1", "bf16[] 2"], "bf16[x]"), "bf16[x = 2] 1 2");
    assert_eq!(op(Op::Select, &[c, "bf16[] 1", "i32[] 2"], "f32[x]"), "f32[x = 2] 1 2");
    assert_eq!(op(Op::Select, &[c, "i32[] 1", "i32[] 2"], "i32[x]"), "i32[x = 2] 1 2");
    assert!(op(Op::Select, &[c, "bf16[] 1", "f32[] 2"], "bf16[x]").contains("select C3"));
    assert!(op(Op::Select, &["f32[] 1", "f32[] 1", "f32[] 2"], "f32[]").contains("select C2"));
}

#[test]
fn only_round_narrows() {
    assert_eq!(op(Op::Round(DType::Bf16), &["f32[x = 2] 1.001953125 1.00390625"], "bf16[x]"), "bf16[x = 2] 1 1");
    assert_eq!(op(Op::Round(DType::F32), &["bf16[x = 1] 1.5"], "f32[x]"), "f32[x = 1] 1.5");
    assert_eq!(op(Op::Round(DType::F32), &["i32[x = 2] 7 -16777217"], "f32[x]"), "f32[x = 2] 7 -16777216");
    assert_eq!(op(Op::Round(DType::Bf16), &["i32[x = 1] 257"], "bf16[x]"), "bf16[x = 1] 256");
    assert!(op(Op::Round(DType::I32), &["f32[] 1"], "i32[]").contains("round C2"));
    assert!(op(Op::Round(DType::Bf16), &["bool[] yes"], "bf16[]").contains("round C3"));
    assert!(op(Op::Round(DType::Bf16), &["f32[] 1"], "f32[]").contains("round C2"));
}

#[test]
fn literals_must_fill_their_type_exactly() {
    assert_eq!(op(Op::Literal(vec![1.0, -2.0]), &[], "i32[x = 2]"), "i32[x = 2] 1 -2");
    assert_eq!(op(Op::Literal(vec![1.0, 0.0]), &[], "bool[x = 2]"), "bool[x = 2] yes no");
    assert_eq!(op(Op::Literal(vec![0.5]), &[], "bf16[]"), "bf16[] 0.5");
    assert!(op(Op::Literal(vec![0.1]), &[], "bf16[]").contains("literal C2"));
    assert!(op(Op::Literal(vec![0.5]), &[], "i32[]").contains("literal C2"));
    assert!(op(Op::Literal(vec![0.5]), &[], "f32[x = 2]").contains("literal C1"));
    assert!(op(Op::Literal(vec![0.5]), &[], "f32[T]").contains("literal C1"));
}

#[test]
fn numbers_of_the_layer_round_once_from_binary64() {
    // Layer 3: 1 / sqrt(8).
    let n = ConstExpr::Binary(ConstBinary::Mul, Box::new(ConstExpr::Num(2.0)), Box::new(ConstExpr::Layer));
    let n = ConstExpr::Binary(ConstBinary::Add, Box::new(n), Box::new(ConstExpr::Num(2.0)));
    let root = ConstExpr::Unary(ir::ConstUnary::Sqrt, Box::new(n));
    let s = ConstExpr::Binary(ConstBinary::Div, Box::new(ConstExpr::Num(1.0)), Box::new(root));
    let y = try_op(Op::Scalar(s), &[], "f32[]").expect("a result");
    assert_eq!(y.floats(), Some(&[(1.0 / 8f64.sqrt()) as f32][..]));
    assert!(op(Op::Scalar(ConstExpr::Num(1.0)), &[], "bf16[]").contains("scalar C1"));
}

#[test]
fn narrow_formats_round_to_nearest_and_stop_at_the_largest() {
    let x = "f32[a = 5] 17 19 1000 -inf 0.001";
    assert_eq!(op(Op::Round(DType::E4m3), &[x], "e4m3[a]"), "e4m3[a = 5] 16 20 448 -448 0.001953125");
    assert_eq!(op(Op::Round(DType::E5m2), &["f32[a = 3] 9 11 100000"], "e5m2[a]"), "e5m2[a = 3] 8 12 57344");
    assert_eq!(op(Op::Round(DType::F32), &["e4m3[a = 2] 16 448"], "f32[a]"), "f32[a = 2] 16 448");
    assert!(op(Op::Round(DType::Nvfp4), &["f32[] 1"], "nvfp4[]").contains("round C2"));
}

#[test]
fn a_block_has_one_scale_and_rounds_under_it() {
    let over = |axes: &[&str]| Op::BlockRound { over: axes.iter().map(|a| (*a).to_owned()).collect() };
    let x = "f32[T = 1, a = 2, b = 8] -12 1 0 0 0 0 0 0 0 0 0 0 0 0 0 5";
    let ty = "nvfp4[T, a = 2, b = 8]";
    let wanted = "nvfp4[T = 1, a = 2, b = 8] -12 1 0 0 0 0 0 0 0 0 0 0 0 0 0 4";
    assert_eq!(op(over(&["a", "b"]), &[x, "f32[] 1"], ty), wanted);
    // Under another number the same block is a quotient: 12 / 2 under the scale 1, 5 / 2 under it is a tie.
    let halves = "nvfp4[T = 1, a = 2, b = 8] -6 0.5 0 0 0 0 0 0 0 0 0 0 0 0 0 2";
    assert_eq!(op(over(&["a", "b"]), &[x, "f32[] 2"], ty), halves);
    assert!(op(over(&["b"]), &[x, "f32[] 1"], ty).contains("block_round C4"));
    assert!(op(over(&["b", "a"]), &[x, "f32[] 1"], ty).contains("block_round C4"));
    assert!(op(over(&["a", "b"]), &[x, "f32[n = 2] 1 2"], ty).contains("block_round C3"));
    assert!(op(over(&["a", "b"]), &[x, "f32[] 1"], "f32[T, a = 2, b = 8]").contains("block_round C1"));
    assert!(
        op(over(&["a", "b"]), &["i32[a = 2, b = 8] 1 2 3 4 5 6 7 8 1 2 3 4 5 6 7 8", "f32[] 1"], "nvfp4[a, b]")
            .contains("block_round C2")
    );
}
