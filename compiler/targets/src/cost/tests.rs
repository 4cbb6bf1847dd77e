//! Costs against figures worked out by hand, at the shapes of a large mixture-of-experts decoder on an H200.

use super::*;
use crate::Target;
use indexmap::IndexMap;
use ir::{
    Axis, ConstExpr, DType, Facts, Graph, GraphBuilder, Instance, KernelEntry, KernelGraph, KernelKind, KernelModule,
    KvKind, KvRef, Mask, Op, Order, Region, RuntimeFacts, Sharding, TensorType, Type, ValueId, WeightRef,
};

const HIDDEN: u64 = 5120;

fn facts() -> Facts {
    let rows = [("kv_heads", 8), ("head_dim", 128)].map(|(n, len)| Axis::fixed(n, len)).to_vec();
    let kv = |name: &str, window| KvKind {
        name: name.to_owned(),
        layers: vec![0],
        k: rows.clone(),
        v: rows.clone(),
        window,
        lives_in: None,
        shared_slots: 0,
    };
    Facts {
        name: "shapes".to_owned(),
        act: DType::Bf16,
        dims: IndexMap::new(),
        products: IndexMap::new(),
        shard: IndexMap::new(),
        options: IndexMap::new(),
        schedule: vec![IndexMap::new(); 3],
        weights: Vec::new(),
        kv: vec![kv("all", None), kv("near", Some(512))],
        stored: None,
        captures: Vec::new(),
        exports: Vec::new(),
        runtime: RuntimeFacts::default(),
        files: Vec::new(),
    }
}

fn tensor(dtype: DType, rows: &[&str], axes: &[(&str, u64)]) -> TensorType {
    let rows = rows.iter().map(|r| Axis::rows(*r));
    TensorType::new(dtype, rows.chain(axes.iter().map(|(n, len)| Axis::fixed(*n, *len))).collect())
}

/// A module whose one layer is `layer`, run three times, with one region per operation.
fn module(layer: Graph, mesh: &str) -> KernelModule {
    let kind = |op: &Op| match op {
        Op::Attend { .. } => KernelKind::Attend,
        op if op.exchanges().is_some() => KernelKind::Collective,
        Op::Linear { .. } => KernelKind::Matmul,
        _ => KernelKind::Rows,
    };
    let inner = layer.ids().filter(|v| !layer.node(*v).op.is_leaf());
    let region = |v: ValueId| Region { name: v.to_string(), kind: kind(&layer.node(v).op), values: vec![v] };
    let regions = inner.map(region).collect();
    let graph =
        |name: &str, graph, regions| KernelGraph { name: name.to_owned(), kinds: IndexMap::new(), graph, regions };
    let graphs = vec![
        graph("first", Graph::default(), Vec::new()),
        graph("layer", layer.clone(), regions),
        graph("last", Graph::default(), Vec::new()),
    ];
    let instances = (0..3).map(|layer| Instance { layer, class: 0 }).collect();
    let mesh = Mesh::parse(mesh).unwrap();
    KernelModule {
        facts: facts(),
        sharding: Some(Sharding { mesh, ..Sharding::default() }).filter(|s| !s.mesh.is_single()),
        relaxations: Vec::new(),
        layouts: Vec::new(),
        entries: vec![KernelEntry { name: "forward".to_owned(), graphs, instances }],
    }
}

fn cost(module: &KernelModule, tokens: u64, sequences: u64, context: u64) -> StepCost {
    let target = Target::load("h200-bf16").unwrap();
    step(module, &module.entries[0], &target, Load { tokens, sequences, wanted: sequences, context })
}

/// Floor of one layer in microseconds.
fn micros(module: &KernelModule, tokens: u64, sequences: u64, context: u64) -> f64 {
    let hardware = Target::load("h200-bf16").unwrap().hardware;
    cost(module, tokens, sequences, context).graphs[1].floor(&hardware).unwrap() * 1e6
}

fn close(found: f64, wanted: f64) {
    assert!((found / wanted - 1.0).abs() < 0.01, "{found} instead of {wanted}");
}

fn dense(outputs: u64, dtype: DType) -> KernelModule {
    product(DType::Bf16, dtype, outputs)
}

fn product(inputs: DType, dtype: DType, outputs: u64) -> KernelModule {
    let mut b = GraphBuilder::new();
    let x = b.input("x", Type::Tensor(tensor(inputs, &["T"], &[("hidden", HIDDEN)])));
    let ty = tensor(dtype, &[], &[("outputs", outputs), ("hidden", HIDDEN)]);
    let w = b.add(Op::Weight(WeightRef::Layer("w".to_owned())), &[], Type::Tensor(ty), None);
    let op = Op::Linear { contract: vec!["hidden".to_owned()], order: Order::Any };
    let y = b.add(op, &[x, w], Type::Tensor(tensor(DType::F32, &["T"], &[("outputs", outputs)])), None);
    b.output("y", y);
    module(b.finish(), "")
}

#[test]
fn dense_products_reach_the_table_of_floors() {
    // Packed projections, 147 MB of weights: bytes bind at one row, operations at 256.
    let qkvg = dense(14_336, DType::Bf16);
    close(micros(&qkvg, 1, 1, 1), 31.2);
    let work = cost(&qkvg, 256, 256, 1).graphs[1].work();
    assert_eq!((work.weight_bytes, work.bf16_operations), (14_336.0 * 5120.0 * 2.0, 2.0 * 256.0 * 14_336.0 * 5120.0));
    close(work.floor(&Target::load("h200-bf16").unwrap().hardware).unwrap().0 * 1e6, 47.6);
    // A router in f32: three products of bf16 each.
    let router = cost(&dense(256, DType::F32), 1, 1, 1).graphs[1].work();
    assert_eq!((router.weight_bytes, router.mixed_operations), (5_242_880.0, 2_621_440.0));
}

/// Codes times bf16 cost what bf16 does, at the bytes of codes; codes times codes have units of their own.
#[test]
fn products_of_codes_count_by_their_formats() {
    let (elements, operations) = (14_336.0 * 5120.0, 2.0 * 14_336.0 * 5120.0);
    for (inputs, weight, bytes, in_bf16, in_fp8, in_fp4) in [
        (DType::Bf16, DType::E4m3, elements, operations, 0.0, 0.0),
        (DType::Bf16, DType::Nvfp4, elements * 9.0 / 16.0, operations, 0.0, 0.0),
        (DType::E4m3, DType::E4m3, elements, 0.0, operations, 0.0),
        (DType::Nvfp4, DType::Nvfp4, elements * 9.0 / 16.0, 0.0, 0.0, operations),
    ] {
        let work = cost(&product(inputs, weight, 14_336), 1, 1, 1).graphs[1].work();
        assert_eq!(work.weight_bytes, bytes, "{inputs} {weight}");
        assert_eq!((work.bf16_operations, work.fp8_operations, work.fp4_operations), (in_bf16, in_fp8, in_fp4));
        assert_eq!(work.operations(), operations);
    }
    let busy = |module: &KernelModule, target: &str| {
        let hardware = Target::load(target).unwrap().hardware;
        cost(module, 8192, 1, 8192).graphs[1].work().floor(&hardware).unwrap()
    };
    let of = |dtype| product(dtype, dtype, 14_336);
    let (wide, narrow) = (busy(&of(DType::Bf16), "h200-bf16"), busy(&of(DType::E4m3), "h200-fp8"));
    assert_eq!((wide.1, narrow.1), (Limit::Arithmetic, Limit::Arithmetic));
    close(wide.0 / narrow.0, 1540.0 / 790.0);
    assert_eq!(cost(&of(DType::Nvfp4), 1, 1, 1).floor(&Target::load("h200-bf16").unwrap().hardware), None);
    assert!(busy(&of(DType::Nvfp4), "gb300-nvfp4").0 < busy(&of(DType::E4m3), "gb300-nvfp4").0);
}

fn experts(owned: bool) -> KernelModule {
    let experts = if owned { 64 } else { 256 };
    let mut b = GraphBuilder::new();
    let x = b.input("x", Type::Tensor(tensor(DType::Bf16, &["T"], &[("hidden", HIDDEN)])));
    let mut ids_type = tensor(DType::I32, &["T"], &[("picked", 8)]);
    ids_type.indexes = Some("experts".to_owned());
    let mut ids = b.input("ids", Type::Tensor(ids_type.clone()));
    if owned {
        let own = Op::Own { axis: "experts".to_owned(), over: vec!["ep".to_owned()] };
        ids = b.add(own, &[ids], Type::Tensor(ids_type), None);
    }
    for (name, outer, inner) in [("gate", 2560, HIDDEN), ("up", 2560, HIDDEN), ("down", HIDDEN, 2560)] {
        let ty = tensor(DType::Bf16, &[], &[("experts", experts), ("outer", outer), ("hidden", inner)]);
        let w = b.add(Op::Weight(WeightRef::Layer(name.to_owned())), &[], Type::Tensor(ty), None);
        let op = Op::Linear { contract: vec!["hidden".to_owned()], order: Order::Any };
        let y = tensor(DType::F32, &["T"], &[("picked", 8), ("outer", outer)]);
        let y = b.add(op, &[x, w, ids], Type::Tensor(y), None);
        b.output(name, y);
    }
    module(b.finish(), if owned { "ep=4" } else { "" })
}

#[test]
fn experts_are_read_as_often_as_they_are_picked() {
    let expected = [(1, 8.0), (4, 31.0), (8, 57.0), (16, 102.0), (32, 163.0), (64, 222.0), (128, 252.0)];
    for (rows, wanted) in expected {
        assert_eq!(distinct(256.0, 8.0, rows as f64).round(), wanted);
    }
    // One token reads 8 experts of 78.6 MB: 134 us.
    let whole = experts(false);
    assert_eq!(cost(&whole, 1, 1, 1).graphs[1].work().weight_bytes, 8.0 * 3.0 * 2560.0 * 5120.0 * 2.0);
    close(cost(&whole, 1, 1, 1).graphs[1].work().weight_bytes / 4.70e12 * 1e6, 133.9);
    // With a quarter of the experts a rank has a quarter of the bytes and operations.
    for tokens in [1, 8, 256] {
        let (all, own) = (
            cost(&whole, tokens, tokens, 1).graphs[1].work(),
            cost(&experts(true), tokens, tokens, 1).graphs[1].work(),
        );
        close(own.weight_bytes * 4.0, all.weight_bytes);
        close(own.bf16_operations * 4.0, all.bf16_operations);
    }
}

fn attention(kind: &str) -> KernelModule {
    let mut b = GraphBuilder::new();
    let q_type = tensor(DType::Bf16, &["T"], &[("heads", 48), ("head_dim", 128)]);
    let q = b.input("q", Type::Tensor(q_type.clone()));
    let cache = b.input("cache", Type::Cache);
    let at = b.input("pos", Type::Tensor(tensor(DType::I32, &["T"], &[])));
    let op = Op::Attend {
        kv: KvRef::Kind(kind.to_owned()),
        mask: Mask::Causal,
        scale: ConstExpr::Num(0.1),
        order: Order::Any,
    };
    let a = b.add(op, &[q, cache, at], Type::Tensor(q_type.with_dtype(DType::F32)), None);
    b.output("a", a);
    module(b.finish(), "")
}

#[test]
fn attention_reads_what_is_visible() {
    // 4,096 bytes per token and layer; the rows of q and the result come on top.
    let (all, near) = (attention("all"), attention("near"));
    for (context, batch, wanted) in [(8192, 8, 57.1), (131_072, 128, 14_621.0), (8192, 128, 914.0)] {
        close(micros(&all, batch, batch, context), wanted);
    }
    assert_eq!(cost(&near, 1, 1, 8192).graphs[1].work().kv_read_bytes, 512.0 * 4096.0);
    assert_eq!(cost(&near, 8, 1, 8192).graphs[1].work().kv_read_bytes, 519.0 * 4096.0);
    assert_eq!(cost(&near, 8, 8, 100).graphs[1].work().kv_read_bytes, 8.0 * 100.0 * 4096.0);
    // Prompts are bound by arithmetic over the pairs that count.
    close(micros(&all, 4096, 1, 4096), 261.0);
    close(micros(&near, 4096, 1, 4096), 61.2);
    close(micros(&near, 16_384, 1, 16_384), 257.0);
}

#[test]
fn exchanges_count_their_bytes_and_latency() {
    let mut b = GraphBuilder::new();
    let ty = Type::Tensor(tensor(DType::F32, &["T"], &[("hidden", HIDDEN)]));
    let x = b.input("x", ty.clone());
    let y = b.add(Op::AllReduce { over: vec!["tp".to_owned()], order: Order::Serial }, &[x], ty, None);
    b.output("y", y);
    let module = module(b.finish(), "tp=8");
    let work = cost(&module, 16, 16, 1).graphs[1].work();
    assert_eq!(work.sent_bytes, 2.0 * 7.0 / 8.0 * 16.0 * 5120.0 * 4.0);
    assert_eq!((work.exchanges, work.launches), (1.0, 1.0));
    let hardware = Target::load("h200-bf16").unwrap().hardware;
    assert!(work.latency(&hardware) > 6e-6);
    let step = cost(&module, 16, 16, 1);
    close(step.work().sent_bytes, 3.0 * work.sent_bytes);
    assert!(step.estimate(&hardware).unwrap() > step.floor(&hardware).unwrap() + 18e-6);
    assert_eq!(step.floor(&crate::Hardware::default()), None, "a target without facts has no floors");
}

#[test]
fn loads_are_the_fullest_steps_of_buckets() {
    let bucket = |rows, tokens| Bucket { entry: "forward".to_owned(), rows, tokens, sequences: tokens, wanted: tokens };
    let load = |rows, tokens| Load::fullest(&bucket(rows, tokens), 4096);
    assert_eq!(load(RowsPerSequence::One, 8), Load { tokens: 8, sequences: 8, wanted: 8, context: 4096 });
    assert_eq!(load(RowsPerSequence::Block(8), 32), Load { tokens: 32, sequences: 4, wanted: 32, context: 4096 });
    assert_eq!(load(RowsPerSequence::Ragged, 512), Load { tokens: 512, sequences: 1, wanted: 1, context: 512 });
}
