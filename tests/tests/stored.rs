//! The full model for targets with narrow formats: plans that verify, the weight bytes of each rank, what is missing by
//! name, twice the same. The expected bytes are worked out from the dimensions, not by the compiler.

use artifact::Artifact;
use std::collections::BTreeMap;
use std::path::Path;
use suites::{Programs, root};

/// Elements of all matrices but embedding, head and router, every one of which a mesh of `tp` splits.
const NARROW: f64 = 52.0 * 104_857_600.0 + 3.0 * 314_572_800.0 + 49.0 * 10_066_329_600.0;
/// Elements of embedding and head.
const TABLES: f64 = 2.0 * 151_936.0 * 5120.0;
/// Elements of routers and their biases, which every rank holds.
const ROUTERS: f64 = 49.0 * (256.0 * 5120.0 + 256.0);
/// Rows whose scales are split, and rows that end a sum over ranks: their scales lie on each.
const SPLIT_ROWS: f64 = 52.0 * 14_336.0 + 3.0 * 40_960.0 + 49.0 * 256.0 * 5120.0;
const WHOLE_ROWS: f64 = (52.0 + 3.0 + 49.0 * 256.0) * 5120.0;

fn compiled(target: &str, mesh: &str, out: &Path, more: &[&str]) -> Artifact {
    let spec = root().join("model-spec/beam.toml");
    let path = |p: &Path| p.to_str().expect("UTF-8").to_owned();
    let (spec, to) = (path(&spec), path(out));
    let args = ["compile", &spec, "--target", target, "--mesh", mesh, "-o", &to];
    let done = Programs::built().beamc(&[&args, more].concat());
    assert_eq!(done.code, 0, "{}", done.err);
    // Reading verifies plan, memory and recipes.
    Artifact::read(out).unwrap_or_else(|e| panic!("{target} {mesh}: {e}"))
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).expect("folder").flatten() {
            if entry.path().is_dir() {
                open.push(entry.path());
            } else {
                let name = entry.path().strip_prefix(dir).expect("inside").display().to_string();
                found.insert(name, std::fs::read(entry.path()).expect("file"));
            }
        }
    }
    found
}

#[test]
fn ranks_hold_what_the_dimensions_say() {
    let folder = tempfile::tempdir().expect("folder");
    for (target, each, scales) in [
        ("gb300-bf16", 2.0, [0.0, 0.0]),
        ("gb300-fp8", 1.0, [4.0 * SPLIT_ROWS, 4.0 * WHOLE_ROWS]),
        ("gb300-nvfp4", 9.0 / 16.0, [0.0, 0.0]),
        ("h200-nvfp4", 9.0 / 16.0, [0.0, 0.0]),
    ] {
        for ranks in [4.0, 8.0] {
            let artifact = compiled(target, &format!("tp={ranks}"), &folder.path().join("out"), &[]);
            let split = NARROW * each + TABLES * 2.0 + scales[0];
            let wanted = split / ranks + ROUTERS * 4.0 + scales[1];
            let found = artifact.memory.bytes as f64;
            println!("{target} tp={ranks}: {found} bytes of weights a rank");
            assert!((found / wanted - 1.0).abs() < 5e-4, "{target} tp={ranks}: {found} bytes, {wanted} by hand");
            assert_eq!(artifact.manifest.parameters, 501_267_612_352, "scales are no parameters");
        }
    }
}

#[test]
fn an_artifact_without_all_kernels_names_each_and_keeps_the_sources_of_others() {
    let folder = tempfile::tempdir().expect("folder");
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    let artifact = compiled("gb300-nvfp4", "tp=4", &one, &[]);
    compiled("gb300-nvfp4", "tp=4", &two, &[]);
    let written = files(&one);
    assert!(written == files(&two), "two compilations differ");
    assert!(matches!(Artifact::load(&one), Err(artifact::LoadError::Incomplete { .. })), "it would be run");
    assert_eq!(artifact.manifest.relaxations, ["nvfp4"]);
    let missing = &artifact.manifest.missing;
    let known = |line: &String| line.ends_with("data exchanged between ranks") || line.ends_with("values in nvfp4");
    assert!(!missing.is_empty() && missing.iter().all(known), "{missing:#?}");
    // Every kernel that is launched is missing by name or has a source; several may share one.
    let graphs = artifact.kernels.entries.iter().flat_map(|e| &e.graphs);
    let launched = graphs.flat_map(|g| &g.regions).filter(|r| r.kind != ir::KernelKind::View).count();
    let sources = written.keys().filter(|f| f.starts_with("kernels/") && f.ends_with(".cu")).count();
    assert!(missing.len() < launched && sources > 0, "{} of {launched} missing, {sources} sources", missing.len());
    assert!(!written.keys().any(|f| f.ends_with(".cubin")), "nothing is translated for what cannot run");
    let floor = &artifact.report["entries"][0]["buckets"][0]["step"]["floor_us"];
    assert!(floor.as_f64().is_some_and(|us| us > 100.0), "{floor}");
}

/// A weight that `--unpack` names keeps a number for its inputs, and codes, of its own.
#[test]
fn unpacked_weights_have_codes_of_their_own() {
    let folder = tempfile::tempdir().expect("folder");
    let names = |more: &[&str]| -> Vec<String> {
        let artifact = compiled("gb300-nvfp4", "tp=4", &folder.path().join("out"), more);
        artifact.recipes.iter().filter(|r| r.layer == Some(0)).map(|r| r.name.clone()).collect()
    };
    let (joined, apart) = (names(&[]), names(&["--unpack", "gate"]));
    assert!(joined.contains(&"q.k.v.gate.input".to_owned()), "{joined:?}");
    assert!(apart.contains(&"q.k.v.input".to_owned()) && apart.contains(&"gate.input".to_owned()), "{apart:?}");
}
