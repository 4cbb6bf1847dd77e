//! A whole artifact directory with changed files: loading may refuse it but never panic, never follow a link out of it,
//! and what it accepts is what was written.
//!
//! An input is a list of changes to a small artifact, five bytes each: what, which file, where (two), and with what.
//! Changes of values keep the files JSON, because damaged JSON is refused at the first byte. The first byte of the input
//! says whether sizes and hashes in the manifest are made to fit afterwards.
#![no_main]

use artifact::{Artifact, MANIFEST, Manifest, Provenance};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const TARGET: &str = "name = 'small'\ndescription = 'd'\narch = 'cpu'\nkv = { page_tokens = 4, dtype = 'act' }\n\
    [[bucket]]\nrows = 'one'\ntokens = 1\n[[bucket]]\nrows = 'ragged'\ntokens = 4\nsequences = 2\n";

type Files = BTreeMap<String, Vec<u8>>;

/// The same files read as JSON, and how many values each holds.
type Trees = BTreeMap<String, (Value, usize)>;

static BASE: OnceLock<(PathBuf, Files, Trees)> = OnceLock::new();

fuzz_target!(|bytes: &[u8]| {
    let (dir, base, trees) = BASE.get_or_init(base);
    let Some((forge, changes)) = bytes.split_first() else { return };
    let mut files = base.clone();
    let mut special = BTreeSet::new();
    // Values are changed first, in trees that are read once; then bytes.
    let mut grown: BTreeMap<&String, Value> = BTreeMap::new();
    for change in changes.chunks_exact(5).take(4) {
        alter_value(trees, &mut grown, change);
    }
    for (path, tree) in grown {
        files.insert(path.clone(), serde_json::to_vec(&tree).expect("JSON"));
    }
    for change in changes.chunks_exact(5).take(4) {
        alter_bytes(&mut files, &mut special, change);
    }
    if forge & 1 == 1 {
        fit(&mut files);
    }
    let changed: BTreeSet<&String> =
        base.keys().filter(|p| files.get(*p) != base.get(*p) || special.contains(*p)).collect();
    for path in &changed {
        put(dir, path, files.get(*path), special.contains(*path));
    }
    match Artifact::load(dir) {
        Ok(loaded) => accepted(&loaded, &files, &special),
        Err(error) => assert!(error.to_string().contains("help: "), "no next step: {error}"),
    }
    for path in changed {
        put(dir, path, base.get(path), false);
    }
});

/// What an artifact that loads must be: whole, of regular files, and fit to be printed, planned and written again.
fn accepted(loaded: &Artifact, files: &Files, special: &BTreeSet<String>) {
    for path in loaded.manifest.files.keys() {
        assert!(files.contains_key(path) && !special.contains(path), "{path} is absent and was loaded");
    }
    let _ = ir::print_kernels(&loaded.kernels, true);
    let _ = ir::print_plan(&loaded.plan, &loaded.kernels);
    let _ = loaded.kernels.facts.parameters();
    for recipe in &loaded.recipes {
        let _ = (recipe.elements(), recipe.title());
    }
}

/// The artifact that every input changes: small dims of a built-in spec, compiled anew at each start of the fuzzer.
fn base() -> (PathBuf, Files, Trees) {
    let target = targets::Target::from_text(TARGET, "fuzz.toml").expect("a target");
    let dims = [("hidden", 8), ("heads", 2), ("kv_heads", 1), ("head_dim", 4), ("ffn", 8), ("vocab", 8), ("expert_ffn", 4)];
    let choices = spec::Choices {
        dims: dims.map(|(name, n)| (name.to_owned(), n)).into(),
        layers: Some(vec![0, 5]),
        ..spec::Choices::default()
    };
    let text = "extends = \"beam-nano\"\n[options]\ncombine = [\"single\"]\n";
    let checked = spec::check_text("fuzz.toml", text, &spec::Library::embedded(), &choices);
    let mesh = ir::Mesh::parse("tp=2").expect("a mesh");
    let compile = passes::Compile { target: &target, mesh: &mesh, exact: false, unpack: &[] };
    let stages = passes::Stages::compile(checked.model.expect("a model"), &compile).expect("a plan");
    let provenance = Provenance {
        compiler: "0".to_owned(),
        target: artifact::Target { name: target.name.clone(), arch: target.arch.clone(), facts: BTreeMap::new() },
        missing: Vec::new(),
    };
    let recipes = artifact::recipes(&stages.kernels.facts);
    let artifact = Artifact {
        manifest: Manifest::new(&stages.kernels, provenance),
        memory: artifact::weight_memory(&stages.kernels, &recipes).expect("places"),
        recipes,
        kernels: stages.kernels,
        plan: stages.plan,
        device: None, drafter: None,
        report: Value::Null,
    };
    let root = Path::new("/dev/shm");
    let root = if root.is_dir() { root.to_owned() } else { std::env::temp_dir() };
    let dir = root.join(format!("artifact-fuzz-{}", std::process::id()));
    artifact.write(&dir, &[("ir/note.txt".to_owned(), "a text\n".to_owned())]).expect("written");
    let manifest: Value = serde_json::from_slice(&fs::read(dir.join(MANIFEST)).expect("manifest")).expect("JSON");
    let listed = manifest["files"].as_object().into_iter().flat_map(|f| f.keys().cloned());
    let paths: Vec<String> = listed.chain([MANIFEST.to_owned()]).collect();
    let files: Files = paths.into_iter().map(|p| (p.clone(), fs::read(dir.join(p)).expect("a file"))).collect();
    let mut trees = Trees::new();
    for (path, content) in &files {
        if let Ok(mut tree) = serde_json::from_slice::<Value>(content) {
            let mut count = 0;
            walk(&mut tree, &mut |_| count += 1);
            trees.insert(path.clone(), (tree, count));
        }
    }
    (dir, files, trees)
}

fn put(dir: &Path, path: &str, content: Option<&Vec<u8>>, link: bool) {
    let full = dir.join(path);
    let _ = fs::remove_file(&full);
    let _ = fs::remove_dir(&full);
    match content {
        Some(_) if link => std::os::unix::fs::symlink("/etc/hostname", &full).expect("a link"),
        Some(content) => fs::write(&full, content).expect("a file"),
        None if link => fs::create_dir(&full).expect("a directory"),
        None => {}
    }
}

/// A change of one value of one file, if that is what the change is.
fn alter_value<'t>(trees: &'t Trees, grown: &mut BTreeMap<&'t String, Value>, change: &[u8]) {
    let &[what, file, high, low, with] = change else { return };
    let Some((path, (tree, count))) = trees.iter().nth(usize::from(file) % trees.len().max(1)) else { return };
    if what % 16 < 6 {
        return;
    }
    let at = usize::from(u16::from_be_bytes([high, low]));
    let json = grown.entry(path).or_insert_with(|| tree.clone());
    let (wanted, donor) = (at % count, (at * 31 + usize::from(with)) % count);
    let other = nth(json, donor);
    let mut index = 0;
    walk(json, &mut |value| {
        if index == wanted {
            alter(value, with, &other);
        }
        index += 1;
    });
}

/// A change of bytes, or of what the file is.
fn alter_bytes(files: &mut Files, special: &mut BTreeSet<String>, change: &[u8]) {
    let &[what, file, high, low, with] = change else { return };
    let Some(name) = files.keys().nth(usize::from(file) % files.len().max(1)).cloned() else { return };
    let at = usize::from(u16::from_be_bytes([high, low]));
    let Some(content) = files.get_mut(&name) else { return };
    match what % 16 {
        0 => content.truncate(at.min(content.len())),
        1 => content.insert(at % (content.len() + 1), with),
        2 => {
            if let Some(byte) = content.get_mut(at) {
                *byte = with;
            }
        }
        3 => content.extend(vec![with; at]),
        4 => drop(files.remove(&name)),
        5 => {
            // A link in place of the file, or a directory.
            special.insert(name.clone());
            if with & 1 == 1 {
                files.remove(&name);
            }
        }
        _ => {}
    }
}

fn nth(json: &mut Value, wanted: usize) -> Value {
    let (mut index, mut found) = (0, Value::Null);
    walk(json, &mut |value| {
        if index == wanted {
            found = value.clone();
        }
        index += 1;
    });
    found
}

/// Every value of a document, parents after their children, so that a changed parent is not walked again.
fn walk(value: &mut Value, seen: &mut dyn FnMut(&mut Value)) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|v| walk(v, seen)),
        Value::Object(map) => map.values_mut().for_each(|v| walk(v, seen)),
        _ => {}
    }
    seen(value);
}

fn alter(value: &mut Value, with: u8, other: &Value) {
    *value = match (with % 16, &mut *value) {
        (0, _) => Value::from(0),
        (1, _) => Value::from(u64::MAX),
        (2, _) => Value::from(-1),
        (3, _) => Value::from(1e308),
        (4, _) => Value::Null,
        (5, _) => Value::from(""),
        (6, _) => Value::Array(Vec::new()),
        (7, Value::Number(n)) => n.as_u64().map_or(Value::Null, |n| Value::from(n.wrapping_add(1))),
        (8, Value::Number(n)) => n.as_u64().map_or(Value::Null, |n| Value::from(n.wrapping_mul(2))),
        (9, Value::Number(n)) => n.as_u64().map_or(Value::Null, |n| Value::from(n.wrapping_sub(1))),
        (7, Value::Array(items)) => Value::Array(items.iter().chain(items.iter()).take(1000).cloned().collect()),
        (8, Value::Array(items)) => Value::Array(items.iter().skip(1).cloned().collect()),
        (9, Value::Array(items)) => Value::Array(items.iter().rev().cloned().collect()),
        (10, Value::Object(map)) => Value::Object(map.clone().into_iter().skip(1).collect()),
        (11, Value::Object(map)) => {
            let mut map = map.clone();
            map.insert("more".to_owned(), Value::from(1));
            Value::Object(map)
        }
        (12, Value::String(text)) => Value::from(text.chars().rev().collect::<String>()),
        (13, Value::Bool(b)) => Value::from(!*b),
        _ => other.clone(),
    };
}

/// Sizes and hashes of the manifest made to fit the files, as one who means harm would.
fn fit(files: &mut Files) {
    let Some(mut manifest) = files.get(MANIFEST).and_then(|b| serde_json::from_slice::<Value>(b).ok()) else { return };
    let Some(listed) = manifest.get_mut("files").and_then(Value::as_object_mut) else { return };
    for (path, entry) in listed.iter_mut() {
        let (Some(content), Some(entry)) = (files.get(path), entry.as_object_mut()) else { continue };
        let digest: String = Sha256::digest(content).iter().map(|b| format!("{b:02x}")).collect();
        entry.insert("bytes".to_owned(), Value::from(content.len()));
        entry.insert("sha256".to_owned(), Value::from(digest));
    }
    if let Ok(bytes) = serde_json::to_vec(&manifest) {
        files.insert(MANIFEST.to_owned(), bytes);
    }
}
