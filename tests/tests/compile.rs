//! The compiler's command line: artifacts of the full model for meshes and devices, reports, accounts of edits, refusals.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use suites::{Programs, nano};

fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![dir.to_path_buf()];
    while let Some(at) = open.pop() {
        for entry in std::fs::read_dir(at).expect("a folder").flatten() {
            if entry.path().is_dir() {
                open.push(entry.path());
            } else {
                let bytes = std::fs::read(entry.path()).expect("a file");
                found.insert(entry.path().strip_prefix(dir).expect("inside").to_path_buf(), bytes);
            }
        }
    }
    found
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn the_full_model_compiles_for_a_mesh_twice_the_same() {
    let programs = Programs::built();
    let folder = tempfile::tempdir().expect("folder");
    let compile = |name: &str, more: &[&str]| {
        let dir = folder.path().join(name);
        let mut args = words("compile model-spec/beam.toml --target h200-bf16 --mesh tp=4,ep=1 -o");
        args.push(dir.to_str().expect("path"));
        args.extend(more);
        let done = programs.beamc(&args);
        assert_eq!(done.code, 0, "{}", done.err);
        assert!(done.out.contains("on tp=4"), "{}", done.out);
        dir
    };
    let (one, two) = (compile("one", &[]), compile("two", &[]));
    assert!(files(&one) == files(&two), "two compilations differ");
    // With one rounding per sum nothing is relaxed; what is, is said, and exactness forbids it.
    let relaxations = |dir: &Path| -> Vec<String> {
        let text = std::fs::read_to_string(dir.join("manifest.json")).expect("manifest");
        let manifest: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        serde_json::from_value(manifest["relaxations"].clone()).expect("names")
    };
    assert!(relaxations(&one).is_empty());
    let wire = compile("wire", &["--relax", "wire-bf16"]);
    assert_eq!(relaxations(&wire), ["wire-bf16"]);
    assert_eq!(relaxations(&compile("library", &["--option", "combine=library"])), ["rank-round"]);
    assert!(relaxations(&compile("exact", &["--option", "combine=library", "--exact"])).is_empty());
    assert!(files(&one).contains_key(Path::new("ir/sharded.txt")));

    let report = programs.beamc(&["report", one.to_str().expect("path"), "--bucket", "forward-one-t8"]);
    assert_eq!(report.code, 0, "{}", report.err);
    for wanted in [
        "on tp=4, 4 ranks",
        "combine = single",
        "do not fit",
        "launches per graph: first 3, sliding.dense 7, sliding.sparse 8, full.sparse 8, last 2",
        "kernels of forward-one-t8",
        "relaxations: none",
    ] {
        assert!(report.out.contains(wanted), "no `{wanted}` in\n{}", report.out);
    }
    let json = programs.beamc(&["report", one.to_str().expect("path"), "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).expect("JSON");
    let rank_bytes = json["weights"]["rank_bytes"].as_f64().expect("bytes");
    assert_eq!((rank_bytes / 1e8).round(), 2509.0, "250.9 GB a rank");
    let floor = json["entries"][0]["buckets"][0]["step"]["floor_us"].as_f64();
    assert!(floor.is_some_and(|us| us > 2400.0 && us < 2500.0), "{floor:?}");
}

#[test]
fn the_target_chooses_the_mesh_by_size() {
    let programs = Programs::built();
    let folder = tempfile::tempdir().expect("folder");
    for (spec, target, wanted) in [
        ("model-spec/beam.toml", "h200-bf16", "on tp=8"),
        ("model-spec/beam.toml", "gb300-bf16", "on tp=4"),
        ("model-spec/beam-nano.toml", "h200-bf16", "for h200-bf16,"),
    ] {
        let dir = folder.path().join("artifact");
        let done = programs.beamc(&["compile", spec, "--target", target, "-o", dir.to_str().expect("path")]);
        assert!(done.code == 0 && done.out.contains(wanted), "{}{}", done.out, done.err);
    }
}

#[test]
fn a_cpu_mesh_is_planned_and_not_run() {
    let programs = Programs::built();
    let folder = tempfile::tempdir().expect("folder");
    let dir = folder.path().join("artifact");
    let dir = dir.to_str().expect("path");
    let mut args = words("compile model-spec/beam-nano.toml --target cpu --mesh tp=2 -o");
    args.push(dir);
    let done = programs.beamc(&args);
    assert!(done.code == 0 && done.out.contains("for reading only"), "{}{}", done.out, done.err);
    let model = nano();
    let refused = programs.beam_run(&[
        "generate",
        dir,
        "--model",
        model.to_str().expect("path"),
        "--prompt",
        "x",
        "--max-tokens",
        "1",
    ]);
    assert!(refused.code == 1 && refused.err.contains("A0111"), "{}", refused.err);
}

#[test]
fn an_edit_is_told_in_words() {
    let programs = Programs::built();
    let mut args = words("diff model-spec/beam-nano.toml examples/one-window.toml --target cpu --brief");
    let done = programs.beamc(&args);
    assert_eq!(done.code, 0, "{}", done.err);
    for wanted in [
        "cache sliding: 6 layers, window 64 -> 8 layers, window 128",
        "layers forward full.sparse: 2 -> absent",
        "forward last, tanh: 1 -> 0 (-1)",
        "forward, cached rows read: ",
    ] {
        assert!(done.out.contains(wanted), "no `{wanted}` in\n{}", done.out);
    }
    assert!(!done.out.contains("@@"));
    args.pop();
    args.extend(["--stage", "kernel"]);
    assert!(programs.beamc(&args).out.contains("@@"));
    let same = programs
        .beamc(&words("diff model-spec/beam.toml model-spec/beam.toml --target h200-bf16 --mesh tp=4 --stage sharded"));
    assert!(
        same.out.contains("agree in facts") && same.out.contains("no difference at the sharded level"),
        "{}",
        same.out
    );
}

#[test]
fn what_cannot_be_asked_for_is_refused_with_both_facts() {
    let programs = Programs::built();
    for (args, wanted, exit) in [
        ("dump model-spec/beam.toml --target cpu --stage graph --mesh tp", "C0002", 2),
        ("dump model-spec/beam.toml --target cpu --stage graph --mesh tp=0", "has length 0", 2),
        ("dump model-spec/beam.toml --target cpu --stage sharded --mesh tp=5", "P0502", 1),
        ("verify model-spec/beam.toml --target cpu --mesh tp=5", "P0502", 1),
        ("dump model-spec/beam.toml --target cpu --stage sharded --mesh qp=2", "P0501", 1),
        ("dump model-spec/beam.toml --target cpu --stage graph --option combine=other", "does not offer `other`", 2),
        ("dump model-spec/beam.toml --target cpu --stage graph --option other=1", "its options are combine", 2),
        ("dump model-spec/beam.toml --target h200-bf61 --stage graph", "did you mean `h200-bf16`?", 1),
        ("dump model-spec/beam.toml --target cpu --stage graph --relax rank-rond", "did you mean `rank-round`?", 2),
        ("dump model-spec/beam.toml --target cpu --stage graph --exact --relax wire-bf16", "--relax", 2),
        ("verify model-spec/beam.toml --target cpu --exact --relax wire-bf16", "--relax", 2),
        ("compile model-spec/beam.toml --target cpu --exact --relax wire-bf16 -o no", "--relax", 2),
        ("diff model-spec/beam.toml model-spec/beam.toml --target cpu --brief --stage kernel", "--stage", 2),
    ] {
        let done = programs.beamc(&words(args));
        assert!(done.code == exit && done.err.contains(wanted), "{args}: {} {}{}", done.code, done.out, done.err);
    }
    // Every command's help has all exit codes.
    for command in ["check", "compile", "dump", "diff", "verify", "report", "import", "targets", "explain", "doctor"] {
        let help = programs.beamc(&[command, "--help"]).out;
        assert!([1, 2, 3, 4, 6].iter().all(|code| help.contains(&format!("\n  {code}  "))), "{help}");
    }
}

#[test]
fn targets_tell_their_facts_and_sources() {
    let programs = Programs::built();
    let list = programs.beamc(&["targets"]).out;
    assert!(list.contains("h200-bf16") && list.contains("gb300-bf16"), "{list}");
    let page = programs.beamc(&["targets", "h200-bf16"]).out;
    assert!(page.contains("read_bytes_per_second = 4.7e12 byte/s") && page.contains("measured"), "{page}");
    let json = programs.beamc(&["targets", "--json"]).out;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json.as_array().expect("list").len(), list.lines().count());
}

/// What is read stays as it is: an output over it, among it, or around it is refused before anything is written.
#[test]
fn outputs_are_apart_from_inputs() {
    let work = tempfile::tempdir().expect("folder");
    let path = |name: &str| work.path().join(name).to_str().expect("UTF-8").to_owned();
    std::fs::create_dir(path("model")).expect("folder");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(nano().join(name), path(&format!("model/{name}"))).expect("a file");
    }
    std::fs::write(path("spec.toml"), "extends = \"beam-nano\"\n").expect("spec");
    let before = files(work.path());
    for (command, input, out, place) in [
        ("import", "model/config.json", "model/config.json", "is"),
        ("import", "model/config.json", "model/model.safetensors", "is"),
        ("import", "model", "model/config.json", "lies in"),
        ("import", "model", "model/spec.toml", "lies in"),
        ("compile", "model", "model/sub", "lies in"),
        ("compile", "model", "model/deep/../sub", "lies in"),
        ("compile", "model", "model", "lies in"),
        ("compile", "spec.toml", "spec.toml", "is"),
        ("compile", "model", "", "holds"),
    ] {
        let (input, out) = (path(input), path(out));
        let mut args = vec![command, &input, "-o", &out];
        args.extend(["--target", "cpu"].iter().filter(|_| command == "compile"));
        let done = Programs::built().beamc(&args);
        let facts = format!("error[C0014]: `--output {out}` {place} `");
        assert!(done.code == 2 && done.err.starts_with(&facts) && done.err.contains("help: "), "{}", done.err);
        assert!(files(work.path()) == before, "{command} {out}");
    }
    let done = Programs::built().beamc(&["import", &path("model/config.json"), "-o", &path("model/spec.toml")]);
    assert_eq!(done.code, 0, "a new file beside a config that is named: {}", done.err);
}
