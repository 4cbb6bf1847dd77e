//! Reductions, selections, gathers, cuts, joins and views.

mod common;
use common::op;
use ir::{Op, Order, ReduceOp, TopWhat};

fn reduce(op: ReduceOp, axis: &str, order: Order) -> Op {
    Op::Reduce { op, axis: axis.into(), order }
}

#[test]
fn any_axis_can_be_reduced() {
    let x = "f32[a = 2, b = 3] 1 2 3 4 5 6";
    assert_eq!(op(reduce(ReduceOp::Sum, "b", Order::Fold), &[x], "f32[a]"), "f32[a = 2] 6 15");
    assert_eq!(op(reduce(ReduceOp::Sum, "a", Order::Fold), &[x], "f32[b]"), "f32[b = 3] 5 7 9");
    assert_eq!(op(reduce(ReduceOp::Max, "a", Order::Fold), &["i32[a = 2] 3 7"], "f32[]"), "f32[] 7");
    assert_eq!(op(reduce(ReduceOp::Max, "a", Order::Fold), &["bf16[a = 2] -0 0"], "bf16[]"), "bf16[] 0");
    assert_eq!(op(reduce(ReduceOp::Max, "a", Order::Fold), &["f32[a = 3] 3 NaN 7"], "f32[]"), "f32[] NaN");
    assert_eq!(op(reduce(ReduceOp::Max, "a", Order::Fold), &["f32[a = 0]"], "f32[]"), "f32[] -inf");
    assert_eq!(op(reduce(ReduceOp::Sum, "a", Order::Serial), &["f32[a = 0]"], "f32[]"), "f32[] 0");
}

#[test]
fn the_order_of_a_sum_is_the_one_named() {
    let x = "f32[a = 9] 1e8 1 1 1 -1e8 1 1 1 0.5";
    assert_eq!(op(reduce(ReduceOp::Sum, "a", Order::Serial), &[x], "f32[]"), "f32[] 3.5");
    assert!(op(reduce(ReduceOp::Sum, "a", Order::Fused), &[x], "f32[]").contains("reduce C4"));
    assert_eq!(op(reduce(ReduceOp::Sum, "a", Order::Any), &[x], "f32[]"), "f32[] 6.5");
    let parts: Vec<f32> = vec![1e8, 1.0, 1.0, 1.0, -1e8, 1.0, 1.0, 1.0, 0.5];
    let fold = format!("f32[] {}", numerics::fold_sum(&parts));
    assert_eq!(op(reduce(ReduceOp::Sum, "a", Order::Fold), &[x], "f32[]"), fold);
}

#[test]
fn reductions_check_their_axes() {
    let x = "f32[a = 2, b = 3] 1 2 3 4 5 6";
    assert!(op(reduce(ReduceOp::Sum, "c", Order::Fold), &[x], "f32[a]").contains("reduce C1"));
    assert!(op(reduce(ReduceOp::Sum, "b", Order::Fold), &[x], "f32[a, b = 3]").contains("reduce C2"));
    assert!(op(reduce(ReduceOp::Sum, "b", Order::Fold), &[x], "f32[]").contains("reduce C2"));
    assert!(op(reduce(ReduceOp::Sum, "b", Order::Fold), &[x], "bf16[a]").contains("reduce C3"));
    assert!(op(reduce(ReduceOp::Sum, "b", Order::Fold), &["bool[b = 1] yes"], "f32[]").contains("reduce C3"));
}

fn top(k: u64, axis: &str, what: TopWhat) -> Op {
    Op::Top { k, axis: axis.into(), into: "picked".into(), what }
}

#[test]
fn selections_break_ties_to_the_lower_index() {
    let x = "f32[T = 2, e = 4] 1 3 3 2 NaN -inf 5 -inf";
    let ids = op(top(3, "e", TopWhat::Ids), &[x], "i32[T, picked = 3]");
    assert_eq!(ids, "i32[T = 2, picked = 3] 1 2 3 2 1 3");
    let values = op(top(3, "e", TopWhat::Values), &[x], "f32[T, picked = 3]");
    assert_eq!(values, "f32[T = 2, picked = 3] 3 3 2 5 -inf -inf");
    let whether = op(Op::InTop { k: 2, axis: "e".into() }, &[x], "bool[T, e = 4]");
    assert_eq!(whether, "bool[T = 2, e = 4] no yes yes no no yes yes no");
}

#[test]
fn selections_run_along_any_axis() {
    let x = "f32[a = 3, b = 2] 1 6 2 5 3 4";
    let values = op(top(2, "a", TopWhat::Values), &[x], "f32[picked = 2, b = 2]");
    assert_eq!(values, "f32[picked = 2, b = 2] 3 6 2 5");
    let whether = op(Op::InTop { k: 1, axis: "a".into() }, &[x], "bool[a = 3, b = 2]");
    assert_eq!(whether, "bool[a = 3, b = 2] no yes no no yes no");
    assert!(op(top(4, "a", TopWhat::Ids), &[x], "i32[picked = 4, b = 2]").contains("top C1"));
    assert!(op(top(0, "a", TopWhat::Ids), &[x], "i32[picked = 0, b = 2]").contains("top C1"));
    assert!(op(top(2, "a", TopWhat::Ids), &[x], "i32[b = 2, picked = 2]").contains("top C3"));
    assert!(op(top(2, "a", TopWhat::Ids), &[x], "f32[picked = 2, b = 2]").contains("top C4"));
    assert!(op(Op::InTop { k: 9, axis: "a".into() }, &[x], "bool[a = 3, b = 2]").contains("in_top C1"));
}

fn gather(axis: &str) -> Op {
    Op::Gather { axis: axis.into() }
}

#[test]
fn an_embedding_is_a_gather_along_the_vocabulary() {
    let w = "bf16[vocab = 3, hidden = 2] 1 2 3 4 5 6";
    assert_eq!(op(gather("vocab"), &[w, "i32[T = 2] 2 0"], "bf16[T, hidden = 2]"), "bf16[T = 2, hidden = 2] 5 6 1 2");
}

#[test]
fn common_axes_are_aligned() {
    let score = "f32[T = 2, experts = 3] 1 2 3 4 5 6";
    let ids = "i32[T = 2, picked = 2] 2 0 1 1";
    assert_eq!(op(gather("experts"), &[score, ids], "f32[T, picked = 2]"), "f32[T = 2, picked = 2] 3 1 5 5");
    // Wanted rows: the gathered axis is a row axis.
    assert_eq!(op(gather("T"), &[score, "i32[R = 1] 1"], "f32[R, experts = 3]"), "f32[R = 1, experts = 3] 4 5 6");
    // Ids that carry the gathered axis itself: a permutation along it.
    assert_eq!(op(gather("T"), &["f32[T = 3] 7 8 9", "i32[T = 3] 2 2 0"], "f32[T]"), "f32[T = 3] 9 9 7");
}

#[test]
fn ids_out_of_range_are_refused() {
    let w = "f32[vocab = 3] 1 2 3";
    assert!(op(gather("vocab"), &[w, "i32[T = 1] 3"], "f32[T]").contains("gather C5"));
    // What another rank has reads as -0.
    assert_eq!(op(gather("vocab"), &[w, "i32[T = 1] -1"], "f32[T]"), "f32[T = 1] -0");
    assert!(op(gather("vocab"), &[w, "i32[T = 1] -2"], "f32[T]").contains("gather C5"));
    assert!(op(gather("vocab"), &[w, "f32[T = 1] 1"], "f32[T]").contains("gather C2"));
    assert!(op(gather("v"), &[w, "i32[T = 1] 1"], "f32[T]").contains("gather C1"));
    assert!(op(gather("vocab"), &[w, "i32[T = 1] 1"], "i32[T]").contains("gather C4"));
}

fn slice(axis: &str, start: u64, len: u64, into: Option<&str>) -> Op {
    Op::Slice { axis: axis.into(), start, len, into: into.map(str::to_owned) }
}

#[test]
fn slices_cut_one_axis() {
    let x = "bf16[a = 2, b = 4] 1 2 3 4 5 6 7 8";
    assert_eq!(op(slice("b", 2, 2, Some("half")), &[x], "bf16[a, half = 2]"), "bf16[a = 2, half = 2] 3 4 7 8");
    assert_eq!(op(slice("a", 1, 1, None), &[x], "bf16[b = 4]"), "bf16[b = 4] 5 6 7 8");
    assert!(op(slice("b", 3, 2, Some("half")), &[x], "bf16[a, half = 2]").contains("slice C2"));
    assert!(op(slice("b", u64::MAX, 2, Some("half")), &[x], "bf16[a, half = 2]").contains("slice C2"));
    assert!(op(slice("b", 0, 2, None), &[x], "bf16[a]").contains("slice C3"));
    assert!(op(slice("b", 0, 2, Some("half")), &[x], "bf16[a, half = 3]").contains("slice C4"));
}

#[test]
fn joins_run_along_the_innermost_axis() {
    let concat = || Op::Concat { into: "whole".into() };
    let a = "f32[T = 2, half = 2] 1 2 3 4";
    let b = "f32[half = 1] 9";
    assert_eq!(op(concat(), &[a, b], "f32[T, whole = 3]"), "f32[T = 2, whole = 3] 1 2 9 3 4 9");
    assert!(op(concat(), &[a, b], "f32[T, whole = 4]").contains("concat C2"));
    assert!(op(concat(), &["f32[] 1", b], "f32[whole = 2]").contains("concat C1"));
    assert!(op(concat(), &[a, "bf16[half = 1] 9"], "bf16[T, whole = 3]").contains("concat C4"));
}

#[test]
fn views_move_nothing() {
    let x = "f32[T = 1, ab = 4, c = 1] 1 2 3 4";
    let parts = "f32[T = 1, a = 2, b = 2, c = 1] 1 2 3 4";
    assert_eq!(op(Op::Split { axis: "ab".into() }, &[x], "f32[T, a = 2, b = 2, c = 1]"), parts);
    assert_eq!(op(Op::Merge { into: "ab".into() }, &[parts], "f32[T, ab = 4, c = 1]"), x);
    let rename = Op::Rename { from: "ab".into(), to: "n".into() };
    assert_eq!(op(rename, &[x], "f32[T, n = 4, c = 1]"), "f32[T = 1, n = 4, c = 1] 1 2 3 4");
    assert!(op(Op::Split { axis: "ab".into() }, &[x], "f32[T, a = 2, b = 3, c = 1]").contains("split C2"));
    assert!(op(Op::Split { axis: "ab".into() }, &[x], "f32[T]").contains("split C2"));
    assert!(op(Op::Merge { into: "x".into() }, &[x], "f32[T, ab = 4]").contains("merge C1"));
    assert!(op(Op::Merge { into: "ab".into() }, &[parts], "f32[T, ab = 5, c = 1]").contains("merge C2"));
}
