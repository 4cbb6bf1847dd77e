//! A model small enough to read: an embedding and its transpose-free head, no layers' mathematics, one expert weight.

use artifact::{Artifact, Manifest, Provenance, Target};
use indexmap::IndexMap;
use ir::{
    Axis, Bucket, BucketPlan, Buffer, DType, DiskForm, Facts, Graph, GraphBuilder, KernelEntry, KernelGraph,
    KernelKind, KernelModule, Launch, Op, Place, Plan, PlanEntry, Program, Region, RowsPerSequence, RuntimeFacts,
    Scope, TensorType, Type, ValueId, Weight, WeightRef, When,
};
use std::collections::BTreeMap;

pub fn weight(name: &str, scope: Scope, axes: &[&[(&str, u64)]], when: Option<&str>, disk: Vec<DiskForm>) -> Weight {
    Weight {
        name: name.to_owned(),
        scope,
        axes: axes.iter().map(|group| group.iter().map(|(n, len)| Axis::fixed(*n, *len)).collect()).collect(),
        dtype: DType::Bf16,
        pinned: false,
        when: when.map(|kind| When { column: "mlp".to_owned(), kind: kind.to_owned() }),
        only: None,
        absent: None,
        borrowed: false,
        disk,
        quant: false,
        span: None,
    }
}

pub fn form(tensor: &str, spread: &[&str], shape: &[u64], slice: Option<Vec<[u64; 2]>>) -> DiskForm {
    DiskForm {
        tensor: tensor.to_owned(),
        spread: spread.iter().map(|s| (*s).to_owned()).collect(),
        slice,
        shape: shape.to_vec(),
        layout: ir::DiskLayout::Plain,
    }
}

pub fn facts() -> Facts {
    let dims = [("vocab", 10), ("hidden", 4), ("experts", 3), ("part", 2)];
    let kinds = |mlp: &str| IndexMap::from([("mlp".to_owned(), mlp.to_owned())]);
    Facts {
        name: "small".to_owned(),
        act: DType::Bf16,
        dims: dims.iter().map(|(n, len)| ((*n).to_owned(), *len)).collect(),
        products: IndexMap::new(),
        shard: IndexMap::from([("ffn".to_owned(), vec!["tp".to_owned()])]),
        options: IndexMap::from([("combine".to_owned(), "plain".to_owned())]),
        schedule: vec![kinds("plain"), kinds("picked")],
        weights: vec![
            weight(
                "table",
                Scope::Model,
                &[&[("vocab", 10)], &[("hidden", 4)]],
                None,
                vec![form("t.w", &[], &[10, 4], None)],
            ),
            weight("scale", Scope::Layer, &[&[("hidden", 4)]], None, vec![form("b.{l}.scale", &[], &[4], None)]),
            weight(
                "many",
                Scope::Layer,
                &[&[("experts", 3)], &[("part", 2)], &[("hidden", 4)]],
                Some("picked"),
                vec![
                    form("b.{l}.e.{experts}.w", &["experts"], &[2, 4], None),
                    form("b.{l}.packed", &[], &[3, 4, 4], Some(vec![[0, 3], [2, 2], [0, 4]])),
                ],
            ),
        ],
        kv: Vec::new(),
        stored: None,
        captures: Vec::new(),
        exports: Vec::new(),
        runtime: RuntimeFacts::default(),
        files: vec!["small.toml".to_owned()],
    }
}

fn region(name: &str, kind: KernelKind, value: ValueId) -> Region {
    Region { name: name.to_owned(), kind, values: vec![value] }
}

fn kernel_graph(name: &str, graph: Graph, regions: Vec<Region>) -> KernelGraph {
    KernelGraph { name: name.to_owned(), kinds: IndexMap::new(), graph, regions }
}

fn rows_of(dtype: DType) -> Type {
    Type::Tensor(TensorType::new(dtype, vec![Axis::rows("T"), Axis::fixed("hidden", 4)]))
}

fn first() -> KernelGraph {
    let table_type = TensorType::new(DType::Bf16, vec![Axis::fixed("vocab", 10), Axis::fixed("hidden", 4)]);
    let mut b = GraphBuilder::new();
    let tokens = b.input("tokens", Type::Tensor(TensorType::new(DType::I32, vec![Axis::rows("T")])));
    let table = b.add(Op::Weight(WeightRef::Model("table".to_owned())), &[], Type::Tensor(table_type), None);
    let x = b.add(Op::Gather { axis: "vocab".to_owned() }, &[table, tokens], rows_of(DType::Bf16), None);
    b.name(x, "x");
    b.output("x", x);
    kernel_graph("first", b.finish(), vec![region("x", KernelKind::Gather, x)])
}

fn last() -> KernelGraph {
    let mut b = GraphBuilder::new();
    let x = b.input("x", rows_of(DType::Bf16));
    let low = b.add(Op::Literal(vec![f32::NEG_INFINITY]), &[], Type::Tensor(TensorType::scalar(DType::F32)), None);
    let result = b.add(Op::Binary(ir::Binary::Max), &[x, low], rows_of(DType::F32), None);
    b.name(result, "result");
    b.output("result", result);
    kernel_graph("last", b.finish(), vec![region("result", KernelKind::Rows, result)])
}

pub fn kernels() -> KernelModule {
    let entry = KernelEntry { name: "forward".to_owned(), graphs: vec![first(), last()], instances: Vec::new() };
    KernelModule { facts: facts(), sharding: None, relaxations: Vec::new(), layouts: Vec::new(), entries: vec![entry] }
}

pub fn plan() -> Plan {
    let buffer = |offset_bytes, bytes, dtype| Buffer { offset_bytes, bytes, dtype };
    let x = buffer(64, 8 * 4 * 2, DType::Bf16);
    let result = buffer(128, 8 * 4 * 4, DType::F32);
    let tokens = buffer(0, 8 * 4, DType::I32);
    let program = |graph: &str, places, kernel| Program {
        graph: graph.to_owned(),
        places,
        launches: vec![Launch::Region {
            region: 0,
            kernel,
            variant: Default::default(),
            reads: Vec::new(),
            dependent: false,
        }],
    };
    let bucket =
        Bucket { entry: "forward".to_owned(), rows: RowsPerSequence::Ragged, tokens: 8, sequences: 1, wanted: 8 };
    let bucket = BucketPlan {
        bucket,
        arena_bytes: 256,
        shared: IndexMap::from([("tokens".to_owned(), tokens), ("x".to_owned(), x), ("result".to_owned(), result)]),
        programs: vec![
            program("first", vec![Place::Arena(tokens), Place::Elsewhere, Place::Arena(x)], KernelKind::Gather),
            program("last", vec![Place::Arena(x), Place::Elsewhere, Place::Arena(result)], KernelKind::Rows),
        ],
    };
    let entry =
        PlanEntry { name: "forward".to_owned(), instances: Vec::new(), captures: Vec::new(), buckets: vec![bucket] };
    Plan { kv: Vec::new(), entries: vec![entry], arena_bytes: 256 }
}

pub fn artifact() -> Artifact {
    let kernels = kernels();
    let target = Target {
        name: "plain".to_owned(),
        arch: "cpu".to_owned(),
        facts: BTreeMap::from([("kv_dtype".to_owned(), "bf16".into())]),
    };
    let provenance = Provenance { compiler: "0.0.0".to_owned(), target, missing: Vec::new() };
    let recipes = artifact::recipes(&kernels.facts);
    Artifact {
        manifest: Manifest::new(&kernels, provenance),
        memory: artifact::weight_memory(&kernels, &recipes).expect("places"),
        recipes,
        kernels,
        plan: plan(),
        device: None,
        drafter: None,
        report: serde_json::json!({"kernels": 2, "arena_bytes": 256}),
    }
}

pub fn texts() -> Vec<(String, String)> {
    [artifact::IR_MODEL, artifact::IR_GRAPH, artifact::IR_KERNEL, artifact::IR_PLAN]
        .map(|path| (path.to_owned(), format!("; {path}\n")))
        .to_vec()
}
