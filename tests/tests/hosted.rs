//! Generated kernels on this processor: `beam-run` runs them through the host model as it runs them on a device, and compares them with the
//! interpreter. A C++ compiler is needed: `c++`, or what `CXX` names.

#[path = "hosted/mod.rs"]
mod hosted;

use hosted::{Small, Verdict, Workshop, generated};
use ir::RowsPerSequence::{self, One, Ragged};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use suites::root;

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
        assert!(v.is_right && v.compared > 0 && v.no_numbers == 0, "{what}: {v:?}");
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

#[test]
fn every_kernel_of_the_example_model() {
    let tiles = [4, 32, 64, 128].map(|n| [(One, n), (Ragged, 2048)]);
    let buckets: Vec<Buckets> = [FEWEST, MOST].into_iter().chain(tiles).collect();
    let started = runs(NANO, "", &buckets, MADE_UP);
    let all: BTreeSet<String> = generated(NANO, "", &[]).1.sources.into_iter().map(|s| s.name).collect();
    let idle: Vec<&String> = all.difference(&started).collect();
    assert!(idle.is_empty(), "{idle:?} were not started in any bucket");
}

#[test]
fn kernels_of_the_full_model_made_small() {
    for (mesh, buckets) in [("", [FEWEST, MOST].as_slice()), ("tp=2", &[FEWEST])] {
        runs(BEAM, mesh, buckets, MADE_UP);
    }
}

/// Experts, rows and both spread over ranks.
#[test]
fn ranks_exchange_rows() {
    for mesh in ["ep=2", "dp=2", "dp=2,tp=2"] {
        runs(ROWS, mesh, &[FEWEST], MADE_UP);
    }
    runs(ROWS, "dp=2", &[FEWEST], &["--synthetic", "3", "--on-device", "--rank-of", "dp=2"]);
}

/// Sequences go to ranks of their own and stay there: tokens are those of the `cpu` executor.
#[test]
fn rows_of_their_own_give_the_same_tokens() {
    let workshop = Workshop::new();
    let artifact = workshop.artifact("ranks", generated(ROWS, "dp=2", &FEWEST));
    let prompts = workshop.at("prompts.json");
    std::fs::write(&prompts, r#"{"tokens": [[1, 2, 3, 4, 5], [700, 20, 9], [11, 12, 13, 14, 15, 16, 17]]}"#)
        .expect("prompts");
    let cpu = workshop.at("cpu");
    let made = suites::Programs::built().beamc(&["compile", "benches/rows.toml", "--target", "cpu", "-o", text(&cpu)]);
    assert_eq!(made.code, 0, "{}", made.err);
    let given = ["--model", "examples/beam-nano", "--tokens", text(&prompts), "--max-tokens", "4"];
    let wanted = workshop.beam_run("generate", &cpu, &[given.as_slice(), &["--executor", "cpu"]].concat());
    let found = workshop.beam_run("generate", &artifact, &[given.as_slice(), &["--executor", "cuda"]].concat());
    assert_eq!(found, wanted);
    assert!(wanted.contains("tokens"), "{wanted}");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

struct Bug {
    round: u32,
    kernel: String,
    missed: bool,
    from: String,
    to: String,
}

fn bugs() -> Vec<Bug> {
    let list = std::fs::read_to_string(root().join("tests/tests/hosted/bugs.txt")).expect("the list");
    let bug = |part: &str| {
        let (head, body) = part.split_once('\n').expect("a head");
        let (from, to) = body.split_once("\n---- in place of it\n").expect("two texts");
        let (names, missed) = head.split_once(" missed: ").map_or((head, false), |(names, _)| (names, true));
        let (round, kernel) = names.split_once(' ').expect("two names");
        let to = to.trim_end_matches('\n').to_owned();
        Bug { round: round.parse().expect("a round"), kernel: kernel.to_owned(), missed, from: from.to_owned(), to }
    };
    list.split("\n==== ").skip(1).map(bug).collect()
}

#[test]
fn bugs_in_generated_kernels_are_found() {
    let (bugs, workshop) = (bugs(), Workshop::new());
    let missed = bugs.iter().filter(|b| b.missed).count();
    assert!(bugs.len() >= 12 && missed * 10 <= bugs.len(), "{missed} of {} bugs are not shown", bugs.len());
    for round in bugs.iter().map(|b| b.round).collect::<BTreeSet<_>>() {
        let mut made = generated(NANO, "", &FEWEST);
        // Names of kernels and whether their bugs show.
        let mut planted: BTreeMap<String, bool> = BTreeMap::new();
        for bug in bugs.iter().filter(|b| b.round == round) {
            let of = |s: &&mut codegen::Source| s.name.starts_with(&bug.kernel) && s.text.contains(&bug.from);
            let source = made.1.sources.iter_mut().find(of);
            let source = source.unwrap_or_else(|| panic!("no kernel {} has `{}`", bug.kernel, bug.from));
            source.text = source.text.replacen(&bug.from, &bug.to, 1);
            assert!(planted.insert(source.name.clone(), !bug.missed).is_none(), "{} has two bugs", source.name);
        }
        let artifact = workshop.artifact(&format!("round{round}"), made);
        let (verdicts, _) = workshop.selftest(&artifact, &["--model", "examples/beam-nano"]);
        for (kernel, shows) in &planted {
            let of = verdicts.iter().filter(|v| v.kernels.contains(kernel));
            assert_eq!(of.clone().any(|v| !v.is_right), *shows, "{kernel}: {:?}", of.collect::<Vec<_>>());
        }
        for v in verdicts.iter().filter(|v| !v.is_right) {
            assert!(v.kernels.iter().any(|k| planted.get(k) == Some(&true)), "nothing was planted into {v:?}");
        }
    }
}
