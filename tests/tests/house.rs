//! The rules of the house that a compiler does not check: who may depend on whom, where `unsafe` stands, that no
//! model is named in Rust, how long a file or a function may be.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use suites::root;
use suites::rust_source::RustSource;

/// Crate → crates of the workspace that it may use outside tests.
const MAY_USE: &[(&str, &[&str])] = &[
    ("ir", &[]),
    ("features", &[]),
    ("numerics", &[]),
    ("spec", &["ir", "numerics"]),
    ("interp", &["ir", "numerics"]),
    ("targets", &["ir"]),
    ("artifact", &["ir"]),
    ("passes", &["ir", "numerics", "interp", "targets"]),
    ("codegen", &["ir", "passes", "targets", "artifact"]),
    ("beamc", &["features", "ir", "spec", "passes", "targets", "artifact", "codegen"]),
    ("engine", &["ir", "numerics", "artifact", "targets"]),
    ("device", &["ir", "numerics", "artifact", "engine", "interp"]),
    ("text", &[]),
    ("server", &["engine", "text"]),
    ("beam-run", &["features", "ir", "artifact", "engine", "device", "text", "server"]),
];

/// The borders where `unsafe` may stand.
const UNSAFE_FILES: &[&str] =
    &["compiler/codegen/src/nvrtc.rs", "runtime/device/src/checkpoint/mmap.rs", "runtime/device/src/cuda/driver.rs"];

/// Words of disk names, imports and kinds that say nothing of a model where they stand in Rust.
const COMMON_WORDS: &[&str] = &[
    // Words of the spec language and of its IR.
    "act",
    "all",
    "default",
    "dtype",
    "experts",
    "false",
    "gate",
    "layers",
    "model",
    "norm",
    "null",
    "silu",
    "sinks",
    "strip",
    "true",
    "type",
    "weight",
    // Words of the field: what any tensor program has.
    "architectures",
    "bias",
    "dense",
    "factor",
    "full",
    "sliding",
    "sparse",
];

/// Keys of files that every Hugging Face checkpoint has beside its config, with the one place that reads them.
const RUNTIME_FILE_KEYS: &[(&str, &str)] = &[
    ("eos_token_id", "runtime/text/"),
    ("bos_token_id", "runtime/text/"),
    ("pad_token_id", "runtime/text/"),
    // A field of the library that holds grammars, and of a served answer.
    ("vocab_size", "runtime/text/src/grammar/"),
    ("vocab_size", "runtime/server/src/models.rs"),
];

fn files(folder: &Path, extension: &[&str], out: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() {
            if name != "target" && name != ".git" {
                files(&path, extension, out);
            }
        } else if path.extension().and_then(|e| e.to_str()).is_some_and(|e| extension.contains(&e)) {
            out.push(path);
        }
    }
}

fn sources(folders: &[&str], extension: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for folder in folders {
        files(&root().join(folder), extension, &mut found);
    }
    found.sort();
    let base = root();
    found
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            (path.strip_prefix(&base).unwrap_or(&path).display().to_string(), text)
        })
        .collect()
}

/// Code that ships: without comments and tests.
fn shipped(path: &str, text: &str) -> RustSource {
    let places = ["/tests/", "/testing.rs", "/tests.rs", "_tests.rs", "/examples/", "/benches/"];
    let test_file = places.iter().any(|t| path.contains(t));
    RustSource::new(if test_file { "" } else { text }).without_tests()
}

#[test]
fn dependencies_point_one_way() {
    let mut found = 0;
    for (folder, name) in members() {
        let text = std::fs::read_to_string(root().join(&folder).join("Cargo.toml")).expect("manifest");
        let manifest: toml::Table = text.parse().expect("TOML");
        let Some((_, allowed)) = MAY_USE.iter().find(|(n, _)| *n == name) else {
            assert_eq!(name, "suites", "{folder}: the crate has no row in the table of directions");
            continue;
        };
        found += 1;
        for (dependency, _) in manifest.get("dependencies").and_then(|d| d.as_table()).into_iter().flatten() {
            let ours = MAY_USE.iter().any(|(n, _)| n == dependency);
            assert!(!ours || allowed.contains(&dependency.as_str()), "`{name}` may not depend on `{dependency}`");
            assert_ne!(dependency, "suites", "`{name}` may not depend on the suites");
        }
    }
    assert!(found >= 13, "only {found} crates were looked at");
}

fn members() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(root().join("Cargo.toml")).expect("workspace manifest");
    let workspace: toml::Table = text.parse().expect("TOML");
    let members = workspace["workspace"]["members"].as_array().expect("members");
    members
        .iter()
        .filter_map(|m| m.as_str())
        .map(|folder| {
            let text = std::fs::read_to_string(root().join(folder).join("Cargo.toml")).expect("manifest");
            let manifest: toml::Table = text.parse().expect("TOML");
            assert_eq!(manifest["lints"]["workspace"].as_bool(), Some(true), "{folder} takes the workspace's lints");
            (folder.to_owned(), manifest["package"]["name"].as_str().expect("name").to_owned())
        })
        .collect()
}

#[test]
fn unsafe_stands_at_the_borders_only() {
    let mut seen = BTreeSet::new();
    for (path, text) in sources(&["compiler", "runtime", "tests"], &["rs"]) {
        let uses =
            RustSource::new(&text).bare.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe");
        if uses {
            assert!(UNSAFE_FILES.contains(&path.as_str()), "{path} uses unsafe code outside the borders");
            assert!(text.contains("SAFETY"), "{path} gives no reason for its unsafe code");
            seen.insert(path);
        }
    }
    assert_eq!(seen.len(), UNSAFE_FILES.len(), "a border in the list has no unsafe code any more");
}

/// Names that belong to models: architectures, tensor names, config keys.
fn model_words() -> BTreeMap<String, String> {
    let mut words = BTreeMap::new();
    let mut add = |word: &str, from: &str| {
        if !COMMON_WORDS.contains(&word) && word.len() > 3 && word.chars().any(|c| c.is_alphabetic()) {
            words.insert(word.to_owned(), from.to_owned());
        }
    };
    for (path, text) in sources(&["model-spec"], &["toml"]) {
        if path.contains("/targets/") {
            continue;
        }
        let spec: toml::Table = text.parse().expect("spec is TOML");
        for list in spec.get("model").and_then(|m| m.get("hf")).and_then(|h| h.get("architectures")).into_iter() {
            list.as_array().into_iter().flatten().filter_map(|a| a.as_str()).for_each(|a| add(a, &path));
        }
        let mut texts = Vec::new();
        for table in [spec.get("weights"), spec.get("layer").and_then(|l| l.get("weights"))].into_iter().flatten() {
            for (_, weight) in table.as_table().into_iter().flatten() {
                weight.get("disk").into_iter().for_each(|d| strings(d, &mut texts));
            }
        }
        spec.get("import").into_iter().for_each(|i| strings(i, &mut texts));
        for text in texts {
            text.split(|c: char| !c.is_alphanumeric() && c != '_').for_each(|w| add(w, &path));
        }
    }
    words
}

fn strings(value: &toml::Value, out: &mut Vec<String>) {
    match value {
        toml::Value::String(s) => out.push(s.clone()),
        toml::Value::Array(items) => items.iter().for_each(|v| strings(v, out)),
        toml::Value::Table(table) => table.iter().for_each(|(_, v)| strings(v, out)),
        _ => {}
    }
}

#[test]
fn no_model_is_named_in_code() {
    let words = model_words();
    assert!(
        words.contains_key("num_hidden_layers") && words.contains_key("q_proj"),
        "the word list is empty: {words:?}"
    );
    let mut errors = Vec::new();
    for (path, text) in sources(&["compiler", "runtime", "codegen-templates"], &["rs", "cu", "cuh"]) {
        for (i, line) in shipped(&path, &text).code.lines().enumerate() {
            for word in line.split(|c: char| !c.is_alphanumeric() && c != '_') {
                let runtime_key = RUNTIME_FILE_KEYS.iter().any(|(key, place)| *key == word && path.starts_with(place));
                if words.contains_key(word) && !runtime_key {
                    errors.push(format!("{path}:{} says `{word}`, a name of {}", i + 1, words[word]));
                }
            }
        }
    }
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

#[test]
fn files_are_short() {
    let long: Vec<String> = sources(&["compiler", "runtime", "tests", "codegen-templates"], &["rs", "cu", "cuh"])
        .into_iter()
        .filter(|(_, text)| text.lines().count() > 800)
        .map(|(path, text)| format!("{path}: {} lines", text.lines().count()))
        .collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn functions_are_short() {
    let mut count = 0;
    let mut long = Vec::new();
    for (path, text) in sources(&["compiler", "runtime"], &["rs"]) {
        for function in shipped(&path, &text).functions() {
            count += 1;
            if function.lines > 80 {
                long.push(format!("{path}:{} `{}` has {} lines", function.line, function.name, function.lines));
            }
        }
    }
    assert!(count > 1000, "only {count} functions were looked at");
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn every_source_file_says_what_it_is_for() {
    for (path, text) in sources(&["compiler", "runtime", "tests"], &["rs"]) {
        assert!(text.starts_with("//!"), "{path} does not begin with a `//!` comment");
    }
}

#[test]
fn the_model_spec_fits_its_page() {
    let text = std::fs::read_to_string(root().join("model-spec/beam.toml")).expect("spec");
    assert!(text.lines().count() <= 220, "{} lines", text.lines().count());
    assert!(text.lines().all(|l| l.chars().count() <= 110));
}

/// Libraries with their features, as a command translates them.
fn translated(of: &[&str]) -> BTreeSet<String> {
    let shown = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--prefix", "none", "--format", "{p} with {f}"])
        .args(of)
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    let text = String::from_utf8(shown.stdout).expect("text");
    // What was shown before has a mark behind it.
    text.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).filter(|line| line.contains(" with ")).collect()
}

/// What a program alone would translate otherwise than all tests together is translated twice, with all that stands on it: the crate
/// `features` asks for what is missing.
#[test]
fn programs_are_made_of_what_tests_are_made_of() {
    let all = translated(&["--workspace", "--edges", "all"]);
    assert!(all.len() > 100, "only {} libraries were looked at", all.len());
    for program in ["beamc", "beam-run", "suites"] {
        let alone: Vec<String> =
            translated(&["--package", program, "--edges", "normal,build"]).difference(&all).cloned().collect();
        assert!(alone.is_empty(), "`{program}` alone has other features than the workspace:\n{}", alone.join("\n"));
    }
}
