//! What ranks exchange, and what they make of ids that others own.

use interp::{Ranks, Tensor, exchange};
use ir::{Axis, DType, Facts, Mesh, Op, Order, TensorType};
use std::sync::Arc;

fn facts() -> Facts {
    let text = "module m act f32 dim experts = 8 entry e { graph first () -> () { } graph last () -> () { } }";
    ir::parse_module(text).expect("a module").facts
}

fn over(axes: &[&str]) -> Vec<String> {
    axes.iter().map(|a| (*a).to_owned()).collect()
}

fn ty(dtype: DType, axes: &[Axis]) -> TensorType {
    TensorType::new(dtype, axes.to_vec())
}

fn run(op: &Op, mesh: &str, operands: Vec<Tensor>, ty: &TensorType) -> Result<Vec<Arc<Tensor>>, String> {
    let mesh = Mesh::parse(mesh).expect("a mesh");
    let rows = |rank: usize, axis: &str| (axis == "T").then_some(rank + 1);
    let operands: Vec<Arc<Tensor>> = operands.into_iter().map(Arc::new).collect();
    let facts = facts();
    exchange(op, &Ranks { mesh: &mesh, facts: &facts, own_rows: &rows }, &operands, ty).map_err(|e| e.to_string())
}

fn vectors(rows: &[&[f32]]) -> Vec<Tensor> {
    rows.iter().map(|r| Tensor::f32(&[("n", r.len())], r.to_vec()).expect("a vector")).collect()
}

#[test]
fn sums_are_added_by_ascending_rank_inside_a_group() {
    let op = Op::AllReduce { over: over(&["tp"]), order: Order::Serial };
    let wide = ty(DType::F32, &[Axis::fixed("n", 2)]);
    let found =
        run(&op, "dp=2,tp=2", vectors(&[&[1e8, 1.0], &[1.0, 2.0], &[-0.0, 5.0], &[-0.0, 6.0]]), &wide).expect("sums");
    let numbers: Vec<&[f32]> = found.iter().map(|t| t.floats().expect("floats")).collect();
    assert_eq!(numbers, [&[1e8f32, 3.0][..], &[1e8, 3.0], &[0.0, 11.0], &[0.0, 11.0]]);
    assert_eq!(numbers[2][0].to_bits(), 0x8000_0000);
    // 1e8 + 4 + 4 loses nothing at the end only if the small ones meet first.
    let three = vectors(&[&[1e8], &[3.0], &[3.0], &[-1e8]]);
    let serial = run(&op, "tp=4", three.clone(), &ty(DType::F32, &[Axis::fixed("n", 1)])).expect("sums");
    let inner = Box::new(Order::Serial);
    let op = Op::AllReduce { over: over(&["tp"]), order: Order::Split { parts: 2, inner } };
    let split = run(&op, "tp=4", three, &ty(DType::F32, &[Axis::fixed("n", 1)])).expect("sums");
    assert_eq!(serial[0].floats(), Some(&[((1e8f32 + 3.0) + 3.0) - 1e8][..]));
    assert_eq!(split[0].floats(), Some(&[(1e8f32 + 3.0) + (3.0 - 1e8)][..]));
    let error = run(&op, "tp=4", vectors(&[&[1.0], &[1.0], &[1.0], &[1.0, 2.0]]), &wide).unwrap_err();
    assert!(error.contains("all_reduce C2"), "{error}");
}

#[test]
fn parts_are_joined_and_shared_out_again() {
    let op = Op::AllGather { axis: "n".to_owned(), over: over(&["tp"]), into: "n".to_owned() };
    let part = |a: f32| Tensor::f32(&[("m", 2), ("n", 1)], vec![a, a + 10.0]).expect("a part");
    let whole = ty(DType::F32, &[Axis::fixed("m", 2), Axis::fixed("n", 2)]);
    let found = run(&op, "tp=2", vec![part(1.0), part(2.0)], &whole).expect("joined");
    assert!(found.iter().all(|t| t.floats() == Some(&[1.0, 2.0, 11.0, 12.0])));
    // Rank 0 has one row, rank 1 two.
    let rows = |n: usize| Tensor::i32(&[("T", n)], (0..n as i32).collect()).expect("rows");
    let op = Op::AllGather { axis: "T".to_owned(), over: over(&["dp"]), into: "T.all".to_owned() };
    let found = run(&op, "dp=2", vec![rows(1), rows(2)], &ty(DType::I32, &[Axis::rows("T.all")])).expect("joined");
    assert!(found.iter().all(|t| t.ints() == Some(&[0, 0, 1])));
    let op = Op::ReduceScatter { axis: "T.all".to_owned(), over: over(&["dp"]), into: "T".to_owned() };
    let all = |x: f32| Tensor::f32(&[("T.all", 3)], vec![x, x + 1.0, x + 2.0]).expect("rows");
    let found = run(&op, "dp=2", vec![all(1.0), all(10.0)], &ty(DType::F32, &[Axis::rows("T")])).expect("shared out");
    assert_eq!((found[0].floats(), found[1].floats()), (Some(&[11.0][..]), Some(&[13.0, 15.0][..])));
    let short = |x: f32| Tensor::f32(&[("T.all", 2)], vec![x; 2]).expect("rows");
    let error = run(&op, "dp=2", vec![short(1.0), short(2.0)], &ty(DType::F32, &[Axis::rows("T")])).unwrap_err();
    assert!(error.contains("elements 1 to 1 + 2") || error.contains("reduce_scatter C4"), "{error}");
}

#[test]
fn ids_of_other_ranks_are_nowhere() {
    let op = Op::Own { axis: "experts".to_owned(), over: over(&["ep"]) };
    let ids = || Tensor::i32(&[("T", 4)], vec![1, 6, 3, 4]).expect("ids");
    let wanted = ty(DType::I32, &[Axis::rows("T")]);
    let found = run(&op, "ep=2", vec![ids(), ids()], &wanted).expect("own ids");
    assert_eq!((found[0].ints(), found[1].ints()), (Some(&[1, -1, 3, -1][..]), Some(&[-1, 2, -1, 0][..])));
    let error = run(&op, "ep=3", vec![ids(), ids(), ids()], &wanted).unwrap_err();
    assert!(error.contains("own C2"), "{error}");
    let error = run(&op, "ep=2", vec![ids()], &wanted).unwrap_err();
    assert!(error.contains("1 ranks take part in an exchange of 2"), "{error}");
}
