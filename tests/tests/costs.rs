//! Costs of the full model's steps against figures worked out by hand, and how many kernels a layer takes.

mod compiled;

use compiled::compiled;
use ir::{KernelKind, KernelModule};
use passes::Stages;
use targets::cost::{Load, StepCost, Work, step};
use targets::{Target, cost};

const DEVICE: &str = "h200-bf16";

fn decode(kernels: &KernelModule, rows: u64, context: u64) -> StepCost {
    let load = Load { tokens: rows, sequences: rows, wanted: rows, context };
    step(kernels, &kernels.entries[0], &Target::load(DEVICE).expect("target"), load)
}

fn giga(bytes: f64, wanted: f64) {
    assert!((bytes / 1e9 - wanted).abs() < 0.0006, "{} GB instead of {wanted}", bytes / 1e9);
}

/// Sum over the kernels of a kind.
fn of_kind(step: &StepCost, kinds: &[KernelKind]) -> Work {
    let mut sum = Work::default();
    for graph in &step.graphs {
        for kernel in graph.kernels.iter().filter(|k| kinds.contains(&k.kind)) {
            (0..graph.times).for_each(|_| sum += kernel.work);
        }
    }
    sum
}

#[test]
fn one_of_eight_ranks_reads_what_it_must() {
    // One sequence of 1,024 positions on tp = 8: an eighth of the matrices that a token uses, the whole router in f32 on
    // every rank, and norms and cached rows.
    let step = decode(&compiled("beam.toml", DEVICE, "tp=8", false).kernels, 1, 1024);
    let matrices = of_kind(&step, &[KernelKind::Matmul, KernelKind::GroupedMatmul]);
    let router = of_kind(&step, &[KernelKind::Route]);
    giga(matrices.weight_bytes, 5.647);
    giga(router.weight_bytes, 0.257);
    let work = step.work();
    let rest = work.weight_bytes - matrices.weight_bytes - router.weight_bytes + work.kv_read_bytes;
    giga(rest, 0.018);
    let all = work.weight_bytes + work.kv_read_bytes;
    giga(all, 5.922);
    assert_eq!((all / 4.3e12 * 1e5).round(), 138.0, "1.38 ms at 4.3 TB/s");
    assert_eq!((all / 4.7e12 * 1e5).round(), 126.0, "1.26 ms at 4.7 TB/s");
    // 104 all-reduces: two a layer; one more for the embedding and a gather of the logits.
    assert_eq!(work.exchanges, 106.0);
}

#[test]
fn one_device_reads_the_active_parameters() {
    let step = decode(&compiled("beam.toml", DEVICE, "", false).kernels, 1, 4096);
    let work = step.work();
    // 22,653,604,288 active parameters; the router's 49 x 1,310,720 and its bias have four bytes each; one row of the
    // embedding.
    let router = 49.0 * (1_310_720.0 + 256.0);
    let wanted = 2.0 * (22_653_604_288.0 - 49.0 * 1_310_976.0) + 4.0 * router + 10_240.0;
    assert!((work.weight_bytes / wanted - 1.0).abs() < 1e-4, "{} instead of {wanted}", work.weight_bytes);
    // Nine full layers and 43 that see 512 positions, 4,096 bytes each.
    assert_eq!(work.kv_read_bytes, (9.0 * 4096.0 + 43.0 * 512.0) * 4096.0);
    // 45.31 GFLOP of products and 1.45 of attention; products with f32 count here too.
    let products = work.bf16_operations + work.mixed_operations;
    assert!((products / 46.76e9 - 1.0).abs() < 1e-3, "{products}");
    assert_eq!((work.sent_bytes, work.exchanges), (0.0, 0.0));
}

#[test]
fn ranks_share_the_work() {
    let target = Target::load(DEVICE).expect("target");
    let all = decode(&compiled("beam.toml", DEVICE, "", false).kernels, 32, 4096).work();
    for (mesh, ranks) in [("tp=4", 4.0), ("tp=8", 8.0)] {
        let work = decode(&compiled("beam.toml", DEVICE, mesh, false).kernels, 32, 4096).work();
        let router = 49.0 * 5_242_880.0;
        let share = (work.weight_bytes - router) * ranks / (all.weight_bytes - router);
        assert!((share - 1.0).abs() < 2e-3, "{mesh}: {share} of the weights");
        assert!(work.floor(&target.hardware).is_some());
    }
    // Whole experts on ranks: attention is everybody's, a quarter of the picked experts each.
    let work = decode(&compiled("beam.toml", DEVICE, "ep=4", false).kernels, 32, 4096);
    let experts = of_kind(&work, &[KernelKind::GroupedMatmul]).weight_bytes;
    let picked = cost::distinct(256.0, 8.0, 32.0) * 49.0 * 39_321_600.0 * 2.0;
    assert!((experts * 4.0 / picked - 1.0).abs() < 1e-9, "{experts}");
}

fn launches(stages: &Stages, graph: &str) -> usize {
    let graphs = &stages.kernels.entries[0].graphs;
    let graph = graphs.iter().find(|g| g.name == graph).expect("graph");
    graph.regions.iter().filter(|r| r.kind != KernelKind::View).count()
}

#[test]
fn a_layer_takes_few_kernels() {
    for mesh in ["", "tp=4", "tp=8", "ep=4"] {
        let stages = compiled("beam.toml", DEVICE, mesh, false);
        assert!(launches(&stages, "sliding.dense") <= 7, "dense on {mesh:?}");
        assert!(launches(&stages, "sliding.sparse") <= 8, "sparse on {mesh:?}");
        assert!(launches(&stages, "full.sparse") <= 8, "full on {mesh:?}");
    }
}
