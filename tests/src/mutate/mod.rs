//! Mutants of the engine, enumerated mechanically: one copy of its sources in which every place that could be wrong can be
//! switched to something wrong, and a number that says which.
//!
//! Places are the statements that lock, free and count (left out), comparisons (turned or made strict), window and page
//! arithmetic (`+` for `-`, no saturation, `max` for `min`). One build of the engine's unit tests holds all of them; the variable
//! `ENGINE_MUTANT` chooses. `cargo run --release -p suites --bin mutants` builds the copy and hunts; docs/engine.md says what came of it.

mod switch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use switch::Switch;
use syn::visit_mut::VisitMut;

/// Sources that have mutants: the books of pages, the tree, the host's copies, and who takes what when.
pub const MUTATED: [&str; 13] = [
    "kv/mod.rs",
    "kv/pages.rs",
    "kv/space.rs",
    "kv/ids.rs",
    "kv/tree.rs",
    "kv/host.rs",
    "scheduler/mod.rs",
    "scheduler/admit.rs",
    "scheduler/plan.rs",
    "scheduler/absorb.rs",
    "scheduler/arrive.rs",
    "arrivals.rs",
    "scheduler/draft.rs",
];

/// Development dependencies that the engine's unit tests do not use.
const UNUSED: [&str; 2] = ["criterion", "stats_alloc"];

/// One mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// File below the engine's sources.
    pub file: String,
    /// Function that it is in.
    pub function: String,
    /// What is changed, as text without spaces that matter.
    pub from: String,
    /// Into what.
    pub to: String,
    /// How many like it come before it in the function.
    pub nth: usize,
}

impl Mutant {
    /// A name that survives changes elsewhere in the file.
    pub fn name(&self) -> String {
        let nth = if self.nth == 0 { String::new() } else { format!(" #{}", self.nth + 1) };
        format!("{} {}{nth}: {} => {}", self.file, self.function, self.from, self.to)
    }
}

/// The engine's sources.
pub fn sources() -> PathBuf {
    crate::root().join("runtime/engine/src")
}

/// Files by name, with their text.
type Files = Vec<(String, String)>;

/// All mutants in order, and the files with switches in them.
pub fn mutants() -> Result<(Vec<Mutant>, Files), String> {
    let (mut all, mut files) = (Vec::new(), Vec::new());
    for file in MUTATED {
        let path = sources().join(file);
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut tree = syn::parse_file(&text).map_err(|e| format!("{file}: {e}"))?;
        let mut switch = Switch::new(file, &mut all);
        switch.visit_file_mut(&mut tree);
        files.push((file.to_owned(), quote::quote!(#tree).to_string()));
    }
    Ok((all, files))
}

/// Writes the copy with all switches as a package of its own to `folder`.
pub fn write(folder: &Path) -> Result<Vec<Mutant>, String> {
    let (all, files) = mutants()?;
    let say = |e: std::io::Error| format!("{}: {e}", folder.display());
    copy(&sources(), &folder.join("src")).map_err(say)?;
    for (file, text) in files {
        std::fs::write(folder.join("src").join(file), text).map_err(say)?;
    }
    let lib = folder.join("src/lib.rs");
    let text = std::fs::read_to_string(&lib).map_err(say)?;
    // Inner comments come first in a file; the switch is a module behind them all.
    let switch = include_str!("switched.rs.txt");
    std::fs::write(&lib, format!("{text}\n{switch}")).map_err(say)?;
    std::fs::write(folder.join("Cargo.toml"), manifest()?).map_err(say)?;
    std::fs::copy(crate::root().join("Cargo.lock"), folder.join("Cargo.lock")).map_err(say)?;
    Ok(all)
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to)?;
        } else {
            std::fs::copy(&from, &to)?;
        }
    }
    Ok(())
}

/// The engine's manifest outside the workspace: what it inherits is written out.
fn manifest() -> Result<String, String> {
    let read = |path: PathBuf| -> Result<toml::Table, String> {
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        text.parse().map_err(|e| format!("{}: {e}", path.display()))
    };
    let root = crate::root();
    let workspace = read(root.join("Cargo.toml"))?;
    let shared = workspace.get("workspace").and_then(|w| w.get("dependencies")).ok_or("no shared dependencies")?;
    let mut engine = read(root.join("runtime/engine/Cargo.toml"))?;
    let package = "name = \"engine\"\nversion = \"0.1.0\"\nedition = \"2024\"\n";
    engine.insert("package".into(), toml::Value::Table(package.parse().map_err(|e| format!("{e}"))?));
    ["lints", "bench", "test", "example"].iter().for_each(|part| drop(engine.remove(*part)));
    engine.insert("workspace".into(), toml::Value::Table(toml::Table::new()));
    engine
        .insert("profile".into(), workspace.get("profile").cloned().unwrap_or(toml::Value::Table(toml::Table::new())));
    let inherited = |name: &str| -> Result<toml::Value, String> {
        let mut value = shared.get(name).cloned().ok_or(format!("`{name}` is not shared"))?;
        if let Some(path) = value.get("path").and_then(|p| p.as_str()) {
            let path = root.join(path).canonicalize().map_err(|e| format!("{path}: {e}"))?;
            value = toml::Value::Table([("path".to_owned(), path.display().to_string().into())].into_iter().collect());
        }
        Ok(value)
    };
    for part in ["dependencies", "dev-dependencies"] {
        let own = engine.get(part).and_then(|d| d.as_table()).cloned().unwrap_or_default();
        // What only benchmarks and suites of their own use stays out.
        let names = own.keys().filter(|name| !UNUSED.contains(&name.as_str()));
        let inherited: Result<toml::Table, String> = names.map(|name| Ok((name.clone(), inherited(name)?))).collect();
        engine.insert(part.into(), toml::Value::Table(inherited?));
    }
    toml::to_string(&engine).map_err(|e| e.to_string())
}

/// Mutants that nobody could tell from the engine: name and reason. A line of the file is `name ~ reason`.
pub fn equivalent() -> Result<BTreeMap<String, String>, String> {
    let path = crate::root().join("tests/equivalent-mutants.txt");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let pair = |line: &str| match line.split_once(" ~ ") {
        Some((name, reason)) => Ok((name.trim().to_owned(), reason.trim().to_owned())),
        None => Err(format!("{}: a line without a reason: {line}", path.display())),
    };
    lines.map(pair).collect()
}
