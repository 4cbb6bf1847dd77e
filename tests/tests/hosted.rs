//! Generated kernels on this processor: `beam-run` runs them through the host model as it runs them on a device, and compares them with the
//! interpreter. A C++ compiler is needed: `c++`, or what `CXX` names.

#[path = "hosted/mod.rs"]
mod hosted;

use hosted::{Small, Verdict, Workshop, generated};
use ir::RowsPerSequence::{self, One, Ragged};
use std::collections::BTreeSet;

type Buckets = [(RowsPerSequence, u64); 2];

const NANO: Small<'_> = Small { spec: "beam-nano.toml", dims: &[], layers: &[] };
/// One layer of every class of the full model, heads as long as they are there.
const BEAM: Small<'_> = Small {
    spec: "beam.toml",
    dims: &[
        ("hidden", 256),
        ("heads", 12),
        ("kv_heads", 2),
        ("head_dim", 128),
        ("ffn", 256),
        ("experts", 16),
        ("groups", 4),
        ("expert_ffn", 64),
        ("picked", 4),
        ("vocab", 512),
    ],
    layers: &[2, 3, 5],
};
const ROWS: Small<'_> = Small { spec: "../benches/rows.toml", dims: &[], layers: &[] };
const FEWEST: Buckets = [(One, 16), (Ragged, 512)];
const MOST: Buckets = [(One, 256), (Ragged, 8192)];
/// Weights made up, few rows, a layer of every class.
const MADE_UP: &[&str] = &["--synthetic", "3", "--on-device"];

/// Asserts that every region was compared and is right.
fn right(what: &str, verdicts: &[Verdict]) {
    assert!(verdicts.len() > 15, "{what}: {} regions", verdicts.len());
    for v in verdicts {
        let Verdict { region, kernels, first, .. } = v;
        assert!(v.is_right && v.compared > 0 && v.no_numbers == 0, "{what}: {region} of {kernels:?}: {first} ({v:?})");
    }
}

/// Runs a model in each of these buckets; every kernel of them must have been started, and all that they compute be right.
fn runs(small: Small<'_>, mesh: &str, buckets: &[Buckets], arguments: &[&str]) -> BTreeSet<String> {
    let workshop = Workshop::new();
    let mut all = BTreeSet::new();
    for (number, buckets) in buckets.iter().enumerate() {
        let made = generated(small, mesh, buckets);
        let names: BTreeSet<String> = made.1.sources.iter().map(|s| s.name.clone()).collect();
        let artifact = workshop.artifact(&format!("artifact{number}"), made);
        let (verdicts, started) = workshop.selftest(&artifact, arguments);
        right(&format!("{} on {mesh}, {buckets:?}", small.spec), &verdicts);
        let idle: Vec<&String> = names.difference(&started).collect();
        assert!(idle.is_empty(), "{} on {mesh}, {buckets:?}: {idle:?} were not started", small.spec);
        all.extend(started);
    }
    all
}

/// What every run of the tests has time for.
#[test]
fn the_example_model_in_its_smallest_buckets() {
    runs(NANO, "", &[FEWEST], MADE_UP);
}

#[test]
#[ignore = "takes minutes: cargo test --release -p suites --test hosted -- --ignored"]
fn every_kernel_of_the_example_model() {
    let tiles = [1, 4, 32, 64, 128].map(|n| [(One, n), (Ragged, 2048)]);
    let buckets: Vec<Buckets> = [FEWEST, MOST].into_iter().chain(tiles).collect();
    let started = runs(NANO, "", &buckets, MADE_UP);
    // Blocks of drafts have buckets too, which no step reaches until drafters run on devices.
    let singles = [1, 2, 4, 8, 16, 32, 64, 128, 256].map(|n| (One, n));
    let every = [&singles[..], &[512, 2048, 8192].map(|n| (Ragged, n))].concat();
    let all: BTreeSet<String> = generated(NANO, "", &every).1.sources.into_iter().map(|s| s.name).collect();
    let idle: Vec<&String> = all.difference(&started).collect();
    assert!(idle.is_empty(), "{idle:?} were not started in any bucket");
}

#[test]
#[ignore = "takes minutes: cargo test --release -p suites --test hosted -- --ignored"]
fn kernels_of_the_full_model_made_small() {
    for (mesh, buckets) in [("", [FEWEST, MOST].as_slice()), ("tp=2", &[FEWEST])] {
        runs(BEAM, mesh, buckets, MADE_UP);
    }
}

/// Experts, rows and both spread over ranks.
#[test]
#[ignore = "takes minutes: cargo test --release -p suites --test hosted -- --ignored"]
fn ranks_exchange_rows() {
    for mesh in ["ep=2", "dp=2", "dp=2,tp=2"] {
        runs(ROWS, mesh, &[FEWEST], MADE_UP);
    }
    runs(ROWS, "dp=2", &[FEWEST], &["--synthetic", "3", "--on-device", "--rank-of", "dp=2"]);
}
