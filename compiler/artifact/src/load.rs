//! Loading an artifact: everything is verified before anything is used.

use crate::device_code::DEVICE;
use crate::drafter::path_of;
use crate::error::{malformed, shortened};
use crate::files::{self, COPIES, FileEntry, KERNELS, MANIFEST, MEMORY, PLAN, REPORT, WEIGHTS};
use crate::{
    Artifact, DRAFTER, DeviceCode, Drafter, DrafterBlock, FORMAT, LoadError, Manifest, VERSION, WeightMemory,
    WeightRecipe,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// The part of a manifest that every version has.
#[derive(Deserialize)]
#[serde(expecting = "a manifest")]
struct Head {
    format: Option<serde_json::Value>,
    version: Option<serde_json::Value>,
}

impl Artifact {
    /// Reads the artifact in `dir` and verifies version, completeness, paths, sizes, hashes and structure.
    pub fn load(dir: &Path) -> Result<Artifact, LoadError> {
        let artifact = Artifact::read(dir)?;
        if !artifact.manifest.complete || !artifact.manifest.missing.is_empty() {
            return Err(LoadError::Incomplete { missing: artifact.manifest.missing });
        }
        Ok(artifact)
    }

    /// The same for one that need not be complete: to be looked at, not to be run.
    pub fn read(dir: &Path) -> Result<Artifact, LoadError> {
        let manifest = load_manifest(dir)?;
        for path in files::REQUIRED {
            if !manifest.files.contains_key(path) {
                return Err(LoadError::FileMissing { file: path.to_owned(), expected: "part of every artifact" });
            }
        }
        for (path, entry) in &manifest.files {
            check_size(dir, path, entry)?;
        }
        for (path, entry) in manifest.files.iter().filter(|(path, _)| !files::REQUIRED.contains(&path.as_str())) {
            let found = File::open(dir.join(path)).and_then(files::hash_file).map_err(|e| unreadable(path, &e))?;
            check_hash(path, found, entry)?;
        }
        let artifact = Artifact {
            kernels: json(KERNELS, &read(dir, KERNELS, &manifest)?)?,
            plan: json(PLAN, &read(dir, PLAN, &manifest)?)?,
            recipes: json(WEIGHTS, &read(dir, WEIGHTS, &manifest)?)?,
            memory: json(MEMORY, &read(dir, MEMORY, &manifest)?)?,
            device: device(dir, &manifest)?,
            drafter: drafter(dir, &manifest)?,
            report: json(REPORT, &read(dir, REPORT, &manifest)?)?,
            manifest,
        };
        check_structure(&artifact)?;
        Ok(artifact)
    }
}

/// The kernels of a device with their files, if the artifact has any.
fn device(dir: &Path, manifest: &Manifest) -> Result<Option<DeviceCode>, LoadError> {
    if !manifest.files.contains_key(DEVICE) {
        return Ok(None);
    }
    let mut code: DeviceCode = json(DEVICE, &read(dir, DEVICE, manifest)?)?;
    code.check().map_err(|fact| structure(DEVICE, fact))?;
    for kernel in &code.kernels {
        for path in [kernel.cubin(), kernel.source()] {
            if !manifest.files.contains_key(&path) {
                return Err(LoadError::FileMissing { file: path, expected: "named in device.json" });
            }
            let bytes = read(dir, &path, manifest)?;
            code.files.insert(path, bytes);
        }
    }
    Ok(Some(code))
}

/// The drafter with its files, if the artifact has one.
fn drafter(dir: &Path, manifest: &Manifest) -> Result<Option<Drafter>, LoadError> {
    let Some(entry) = &manifest.drafter else { return Ok(None) };
    if entry.blocks.len() > MOST_BLOCKS {
        let (found, most) = (entry.blocks.len() as u64, MOST_BLOCKS as u64);
        return Err(LoadError::TooLarge { file: MANIFEST.to_owned(), found, unit: "lengths of block", most });
    }
    let own = |file: &str| read(dir, &format!("{DRAFTER}/{file}"), manifest);
    let mut blocks = Vec::new();
    for tokens in &entry.blocks {
        let of_block = |file: &str| read(dir, &path_of(*tokens, file), manifest);
        let (kernels, plan) = (json(KERNELS, &of_block(KERNELS)?)?, json(PLAN, &of_block(PLAN)?)?);
        blocks.push(DrafterBlock { tokens: *tokens, kernels, plan });
    }
    Ok(Some(Drafter {
        blocks,
        recipes: json(WEIGHTS, &own(WEIGHTS)?)?,
        copies: json(COPIES, &own(COPIES)?)?,
        memory: json(MEMORY, &own(MEMORY)?)?,
    }))
}

/// Checks a drafter by itself, as a model is checked, and against its model.
fn check_drafter(drafter: &Drafter, artifact: &Artifact) -> Result<(), LoadError> {
    let fault = |fact: String| structure(DRAFTER, shortened(&fact));
    for block in &drafter.blocks {
        verified_kernels(&block.kernels)?;
        verified_plan(&block.plan, &block.kernels)?;
    }
    if drafter.entry() != artifact.manifest.drafter {
        return Err(structure(MANIFEST, "it names another drafter than the files are of".to_owned()));
    }
    let placed: Vec<WeightRecipe> = drafter.recipes.iter().chain(&drafter.copies).cloned().collect();
    check_recipes(&placed)?;
    drafter.memory.check(&placed).map_err(fault)?;
    let mesh = |kernels: &ir::KernelModule| kernels.sharding.as_ref().map_or_else(ir::Mesh::single, |s| s.mesh.clone());
    let own = mesh(&artifact.kernels);
    if drafter.memory.mesh != own || drafter.blocks.iter().any(|b| mesh(&b.kernels) != own) {
        return Err(fault(format!("it is for another mesh than the model, which is for {own}")));
    }
    drafter.check(artifact).map_err(fault)
}

/// Reads bytes as one of the JSON files of an artifact and checks them as loading would; for the fuzzer. The first byte
/// says which file: manifest, recipes, kernels, or kernels and plan as a pair.
#[doc(hidden)]
pub fn fuzz_json(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else {
        return;
    };
    let _ = match which {
        b'm' => parse_manifest(bytes).map(|_| ()),
        b'w' => json::<Vec<WeightRecipe>>(WEIGHTS, bytes).and_then(|recipes| check_recipes(&recipes)),
        b'r' => json::<(Vec<WeightRecipe>, WeightMemory)>(MEMORY, bytes).and_then(|(recipes, memory)| {
            check_recipes(&recipes)?;
            memory.check(&recipes).map_err(|fact| structure(MEMORY, fact))
        }),
        b'k' => json::<ir::KernelModule>(KERNELS, bytes).and_then(|kernels| verified_kernels(&kernels)),
        _ => json::<(ir::KernelModule, ir::Plan)>(PLAN, bytes)
            .and_then(|(kernels, plan)| verified_kernels(&kernels).and_then(|()| verified_plan(&plan, &kernels))),
    };
}

fn load_manifest(dir: &Path) -> Result<Manifest, LoadError> {
    let no_manifest = || LoadError::NoManifest { dir: dir.to_path_buf() };
    match files::is_plain_file(dir, MANIFEST) {
        Ok(true) => {}
        Ok(false) => return Err(unsafe_path(MANIFEST, NOT_A_FILE)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(no_manifest());
        }
        Err(e) => return Err(unreadable(MANIFEST, &e)),
    }
    let bytes = read_at_most(&dir.join(MANIFEST), MANIFEST, files::MOST_MANIFEST_BYTES)?;
    parse_manifest(&bytes)
}

fn parse_manifest(bytes: &[u8]) -> Result<Manifest, LoadError> {
    let head: Head = json(MANIFEST, bytes)?;
    match head.format.as_ref().map(|f| f.as_str()) {
        Some(Some(FORMAT)) => {}
        found => {
            return Err(LoadError::Format { found: shortened(found.flatten().unwrap_or("nothing")) });
        }
    }
    // A version that is no small number is malformed; the full parse says where.
    if let Some(found) = head.version.as_ref().and_then(|v| v.as_u64())
        && found != u64::from(VERSION)
    {
        return Err(LoadError::Version { found });
    }
    let manifest: Manifest = json(MANIFEST, bytes)?;
    if manifest.files.len() > files::MOST_FILES {
        return Err(LoadError::TooLarge {
            file: MANIFEST.to_owned(),
            found: manifest.files.len() as u64,
            unit: "files",
            most: files::MOST_FILES as u64,
        });
    }
    for path in manifest.files.keys() {
        if !files::is_safe_path(path) || path == MANIFEST {
            return Err(unsafe_path(path, "is not a plain path inside the artifact"));
        }
    }
    Ok(manifest)
}

/// Most lengths of block that a drafter has programs for.
const MOST_BLOCKS: usize = 64;

const NOT_A_FILE: &str = "is a symbolic link or not a file";

/// Checks presence, kind and size without opening the file: opening a pipe would wait for ever.
fn check_size(dir: &Path, path: &str, entry: &FileEntry) -> Result<(), LoadError> {
    match files::is_plain_file(dir, path) {
        Ok(true) => {}
        Ok(false) => return Err(unsafe_path(path, NOT_A_FILE)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(LoadError::FileMissing { file: path.to_owned(), expected: "listed in the manifest" });
        }
        Err(e) => return Err(unreadable(path, &e)),
    }
    let found = fs::metadata(dir.join(path)).map_err(|e| unreadable(path, &e))?.len();
    if found != entry.bytes {
        return Err(LoadError::Size { file: path.to_owned(), found, expected: entry.bytes });
    }
    if found > files::MOST_FILE_BYTES {
        return Err(too_large(path, found, files::MOST_FILE_BYTES));
    }
    Ok(())
}

fn check_hash(path: &str, found: String, entry: &FileEntry) -> Result<(), LoadError> {
    if found != entry.sha256 {
        return Err(LoadError::Hash { file: path.to_owned(), found, expected: shortened(&entry.sha256) });
    }
    Ok(())
}

/// Content of a file whose bytes are exactly those that the manifest hashed.
fn read(dir: &Path, path: &str, manifest: &Manifest) -> Result<Vec<u8>, LoadError> {
    let bytes = read_at_most(&dir.join(path), path, files::MOST_FILE_BYTES)?;
    let Some(entry) = manifest.files.get(path) else {
        return Err(LoadError::FileMissing { file: path.to_owned(), expected: "part of every artifact" });
    };
    check_hash(path, FileEntry::of(&bytes).sha256, entry)?;
    Ok(bytes)
}

fn read_at_most(full: &Path, path: &str, most: u64) -> Result<Vec<u8>, LoadError> {
    let mut bytes = Vec::new();
    let file = File::open(full).map_err(|e| unreadable(path, &e))?;
    let read = file.take(most + 1).read_to_end(&mut bytes).map_err(|e| unreadable(path, &e))?;
    if read as u64 > most {
        return Err(too_large(path, read as u64, most));
    }
    Ok(bytes)
}

fn json<T: DeserializeOwned>(file: &str, bytes: &[u8]) -> Result<T, LoadError> {
    serde_json::from_slice(bytes).map_err(|e| malformed(file, &e))
}

fn check_structure(artifact: &Artifact) -> Result<(), LoadError> {
    let kernels: Vec<&str> = artifact.kernels.entries.iter().map(|e| e.name.as_str()).collect();
    let plan: Vec<&str> = artifact.plan.entries.iter().map(|e| e.name.as_str()).collect();
    let own: Vec<&str> = artifact.manifest.entries.iter().map(String::as_str).collect();
    if own != kernels {
        return Err(structure(
            MANIFEST,
            format!("it has entries {:?}, {KERNELS} has {kernels:?}", artifact.manifest.entries),
        ));
    }
    if plan != kernels {
        return Err(structure(PLAN, format!("it has entries {}, {KERNELS} has {}", names(&plan), names(&kernels))));
    }
    verified_kernels(&artifact.kernels)?;
    check_facts(&artifact.manifest, &artifact.kernels.facts)?;
    verified_plan(&artifact.plan, &artifact.kernels)?;
    check_mesh(artifact)?;
    check_recipes(&artifact.recipes)?;
    artifact.memory.check(&artifact.recipes).map_err(|fact| structure(MEMORY, shortened(&fact)))?;
    artifact.drafter.as_ref().map_or(Ok(()), |drafter| check_drafter(drafter, artifact))
}

/// Manifest, kernels and weight memory are for the same ranks, and the manifest names what the kernels relax.
fn check_mesh(artifact: &Artifact) -> Result<(), LoadError> {
    let own = artifact.kernels.sharding.as_ref().map_or_else(ir::Mesh::single, |s| s.mesh.clone());
    for (file, mesh) in [(MANIFEST, &artifact.manifest.mesh), (MEMORY, &artifact.memory.mesh)] {
        if *mesh != own {
            return Err(structure(file, format!("it is for {mesh}, {KERNELS} for {own}")));
        }
    }
    let (named, used) = (&artifact.manifest.relaxations, &artifact.kernels.relaxations);
    if named != used {
        let (named, used) = (shortened(&format!("{named:?}")), shortened(&format!("{used:?}")));
        return Err(structure(MANIFEST, format!("it has relaxations {named}, {KERNELS} has {used}")));
    }
    Ok(())
}

fn names(list: &[&str]) -> String {
    shortened(&format!("{list:?}"))
}

/// What the manifest says of the model is what the kernels say of it: people and programs read the manifest alone.
fn check_facts(manifest: &Manifest, facts: &ir::Facts) -> Result<(), LoadError> {
    let differs = |what: &str, own: String, other: String| {
        let (own, other) = (shortened(&own), shortened(&other));
        Err(structure(MANIFEST, format!("it has {what} {own}, {KERNELS} has {other}")))
    };
    if manifest.model != facts.name {
        return differs("model", format!("`{}`", manifest.model), format!("`{}`", facts.name));
    }
    if facts.parameters() != manifest.parameters {
        return differs("parameters", manifest.parameters.to_string(), facts.parameters().to_string());
    }
    if !manifest.options.iter().eq(&facts.options) {
        return differs("options", format!("{:?}", manifest.options), format!("{:?}", facts.options));
    }
    Ok(())
}

fn verified_kernels(kernels: &ir::KernelModule) -> Result<(), LoadError> {
    ir::verify_kernels(kernels).map_err(|faults| structure(KERNELS, told(&faults)))
}

fn verified_plan(plan: &ir::Plan, kernels: &ir::KernelModule) -> Result<(), LoadError> {
    ir::verify_plan(plan, kernels).map_err(|faults| structure(PLAN, told(&faults)))
}

/// The first faults of a verifier; the rest mostly follow from them.
fn told(faults: &[ir::VerifyError]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<String> =
        faults.iter().take(SHOWN).map(|f| shortened(&format!("{} at {}: {}", f.code, f.place, f.message))).collect();
    match faults.len().saturating_sub(SHOWN) {
        0 => shown.join("; "),
        more => format!("{}; and {more} more", shown.join("; ")),
    }
}

fn check_recipes(recipes: &[WeightRecipe]) -> Result<(), LoadError> {
    let mut seen = HashSet::new();
    for recipe in recipes {
        recipe.check().map_err(|fact| structure(WEIGHTS, shortened(&fact)))?;
        if !seen.insert((recipe.scope, recipe.layer, recipe.name.as_str())) {
            return Err(structure(WEIGHTS, format!("{} has two recipes", shortened(&recipe.title()))));
        }
    }
    Ok(())
}

fn structure(file: &'static str, fact: String) -> LoadError {
    LoadError::Structure { file, fact }
}

fn unsafe_path(path: &str, fact: &'static str) -> LoadError {
    LoadError::UnsafePath { file: shortened(path), fact }
}

fn unreadable(file: &str, error: &io::Error) -> LoadError {
    LoadError::Unreadable { file: file.to_owned(), fact: error.to_string() }
}

fn too_large(file: &str, found: u64, most: u64) -> LoadError {
    LoadError::TooLarge { file: file.to_owned(), found, unit: "bytes", most }
}
