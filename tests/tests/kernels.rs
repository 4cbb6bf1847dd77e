//! The full model's kernels: how many a layer launches, what is in them, and what their plan needs, on one device and meshes.

mod compiled;

use compiled::compiled;
use ir::{KernelGraph, KernelKind, KernelModule, Launch, Mesh, Model, Region, Variant};
use passes::validate::Small;
use passes::{Compile, Stages};
use spec::{Choices, Library, check_path};
use suites::root;
use targets::Target;

const DEVICE: &str = "h200-bf16";

fn launched(graph: &KernelGraph) -> Vec<KernelKind> {
    graph.regions.iter().map(|r| r.kind).filter(|k| *k != KernelKind::View).collect()
}

#[test]
fn a_layer_launches_seven_kernels_or_eight_with_experts() {
    use KernelKind::{Attend, Collective, GroupedMatmul, Matmul, Route, Rows};
    for mesh in ["tp=1", "tp=4", "tp=8", "ep=4"] {
        let stages = compiled("beam.toml", DEVICE, mesh, true);
        let parts = |axis: &str| stages.kernels.sharding.as_ref().map_or(1, |s| s.mesh.length(axis));
        let seam = |split: bool| if split { Collective } else { Rows };
        let (attention, experts) = (seam(parts("tp") > 1), seam(parts("tp") > 1 || parts("ep") > 1));
        for graph in &stages.kernels.entries[0].graphs {
            let kinds = launched(graph);
            let wanted = match graph.kinds.get("mlp").map(String::as_str) {
                None => continue,
                Some("dense") => vec![Matmul, Attend, Matmul, attention, Matmul, Matmul, attention],
                Some(_) => vec![Matmul, Attend, Matmul, attention, Route, GroupedMatmul, GroupedMatmul, experts],
            };
            assert_eq!(kinds, wanted, "{mesh} {}", graph.name);
        }
    }
}

#[test]
fn a_relaxed_layer_launches_no_more() {
    let stages = compiled("beam.toml", DEVICE, "tp=4", false);
    for graph in stages.kernels.entries[0].graphs.iter().filter(|g| !g.kinds.is_empty()) {
        let most = if graph.kinds.get("mlp").is_some_and(|k| k == "dense") { 7 } else { 8 };
        assert!(launched(graph).len() <= most, "{}: {:?}", graph.name, launched(graph));
    }
}

#[test]
fn what_belongs_together_is_one_kernel() {
    let stages = compiled("beam.toml", DEVICE, "tp=4", true);
    let graph = stages.kernels.entries[0].graphs.iter().find(|g| g.name == "sliding.sparse").expect("a class");
    let region_of = |name: &str| {
        let id = graph.graph.find(name).unwrap_or_else(|| panic!("no value {name}"));
        graph.regions.iter().position(|r| r.values.contains(&id)).expect("a region")
    };
    // Rotated queries and keys in the product that makes them, and the store with them.
    let store = graph.graph.ids().find(|v| matches!(graph.graph.node(*v).op, ir::Op::Store { .. })).expect("a store");
    let projected = region_of("attention.q");
    assert!(graph.regions[projected].values.contains(&store));
    for name in ["attention.k", "attention.v", "attention.g", "attention.q#3", "attention.k#3"] {
        assert_eq!(region_of(name), projected, "{name}");
    }
    // The gate's bias, its function and the product with it, after attention.
    for name in ["attention.a", "attention.g#2", "attention.g#3", "attention.o"] {
        assert_eq!(region_of(name), region_of("attention.o"), "{name}");
    }
    // Sum over ranks, the branch's norm, the scaled residual and the next norm.
    let seam = region_of("norm#2");
    for name in ["combine.bs", "combine.rs", "x#2", "h"] {
        assert_eq!(region_of(name), seam, "{name}");
    }
    let sums = |region: usize| {
        let ops = graph.regions[region].values.iter().map(|v| &graph.graph.node(*v).op);
        ops.filter(|op| matches!(op, ir::Op::AllReduce { .. })).count()
    };
    assert_eq!(sums(seam), 1);
    // The routed sum joins the last seam, which holds the successor's norm.
    let last = region_of("next.norm");
    assert_eq!(sums(last), 1);
    let picked =
        |id: &ir::ValueId| matches!(&graph.graph.node(*id).op, ir::Op::Reduce { axis, .. } if axis == "picked");
    assert!(graph.regions[last].values.iter().any(picked));
    // Scores, groups, selection and weights of experts.
    for name in ["sparse.route.score", "sparse.route.best", "sparse.route.ids", "sparse.w"] {
        assert_eq!(graph.regions[region_of(name)].kind, KernelKind::Route, "{name}");
    }
}

#[test]
fn buckets_choose_variants_and_every_kernel_may_start_early() {
    let stages = compiled("beam.toml", DEVICE, "tp=4", true);
    for bucket in &stages.plan.entries[0].buckets {
        let few = bucket.bucket.tokens <= 64;
        let ragged = bucket.bucket.rows == ir::RowsPerSequence::Ragged;
        for (index, program) in bucket.programs.iter().enumerate() {
            for (number, launch) in program.launches.iter().enumerate() {
                let Launch::Region { kernel, variant, dependent, .. } = launch else { panic!("a move") };
                assert_eq!(*dependent, index + number > 0, "{} {number}", program.graph);
                let of_rows = if few { Variant::FewRows } else { Variant::ManyRows };
                let wanted = match kernel {
                    KernelKind::Attend if ragged => Variant::Prefill,
                    KernelKind::Attend => Variant::Decode,
                    KernelKind::Matmul if program.graph == "last" => continue,
                    KernelKind::Matmul | KernelKind::Route | KernelKind::GroupedMatmul => of_rows,
                    _ => Variant::Only,
                };
                assert_eq!(*variant, wanted, "{} {} launch {number}", bucket.bucket, program.graph);
            }
        }
    }
}

/// The kernels of the full model made small, as validation runs them.
fn small(mesh: &str) -> KernelModule {
    let (target, mesh) = (Target::load(DEVICE).expect("a target"), Mesh::parse(mesh).expect("a mesh"));
    let path = root().join("model-spec/beam.toml");
    let mut read = |small: &Small| -> Result<Model, String> {
        let options = target.options_on(&mesh).into_iter().collect();
        let choices = Choices {
            act: target.act,
            options,
            dims: small.dims.clone(),
            layers: small.layers.clone(),
            ..Choices::default()
        };
        check_path(&path, &Library::embedded(), &choices).model.ok_or_else(|| "no model".to_owned())
    };
    let full = read(&Small::default()).expect("a model");
    let shrunk = passes::shrink(&full, &mesh, &mut read).expect("a small model");
    let target = shrunk.target(&full.facts, &target);
    let compile = Compile { target: &target, mesh: &mesh, exact: true, unpack: &[] };
    Stages::compile(shrunk.model, &compile).expect("a plan").kernels
}

#[test]
fn the_model_that_is_validated_has_the_kernels_of_the_full_one() {
    for mesh in ["tp=1", "tp=4", "tp=8", "ep=4"] {
        let (full, small) = (compiled("beam.toml", DEVICE, mesh, true).kernels, small(mesh));
        let regions = |module: &KernelModule| -> Vec<String> {
            let of = |g: &KernelGraph| {
                let region = |r: &Region| format!("{} {} {} {}", g.name, r.name, r.kind.word(), r.values.len());
                g.regions.iter().map(region).collect::<Vec<_>>()
            };
            module.entries[0].graphs.iter().flat_map(of).collect()
        };
        assert_eq!(regions(&small), regions(&full), "{mesh}");
    }
}
