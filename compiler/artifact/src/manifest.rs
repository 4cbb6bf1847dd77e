//! The manifest: what an artifact is, and the size and hash of each of its files.

use crate::drafter::DrafterEntry;
use crate::files::FileEntry;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What `format` says in every manifest of ours.
pub const FORMAT: &str = "beam-artifact";

/// Version of the schema that this crate writes and reads.
pub const VERSION: u32 = 2;

/// `manifest.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a manifest")]
pub struct Manifest {
    /// Always [`FORMAT`].
    pub format: String,
    /// Always [`VERSION`].
    pub version: u32,
    /// Version of the compiler that wrote it.
    pub compiler: String,
    /// What it runs on.
    pub target: Target,
    /// The ranks that run it together; empty for one device.
    pub mesh: ir::Mesh,
    /// Name of the model.
    pub model: String,
    /// Parameters of the model.
    pub parameters: u64,
    /// Entries in the order of the spec.
    pub entries: Vec<String>,
    /// Alternative chosen for each option of the spec.
    pub options: IndexMap<String, String>,
    /// Every pass that changed bits, by the name of what it changed.
    pub relaxations: Vec<String>,
    /// The drafter that was compiled with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drafter: Option<DrafterEntry>,
    /// Whether it can run: nothing is missing.
    pub complete: bool,
    /// What is missing, one line each.
    pub missing: Vec<String>,
    /// Every other file by its path inside the artifact; filled when the artifact is written.
    pub files: BTreeMap<String, FileEntry>,
}

/// What an artifact was compiled for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a target")]
pub struct Target {
    /// Name of the target file.
    pub name: String,
    /// Architecture.
    pub arch: String,
    /// Further facts that the runtime needs, by name.
    #[serde(default)]
    pub facts: BTreeMap<String, serde_json::Value>,
}

/// What the compiler adds to the facts of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Provenance {
    /// Version of the compiler.
    pub compiler: String,
    /// What it compiled for.
    pub target: Target,
    /// What could not be compiled, one line each; empty for an artifact that runs.
    pub missing: Vec<String>,
}

impl Manifest {
    /// The manifest of a compiled model, without its files.
    pub fn new(kernels: &ir::KernelModule, provenance: Provenance) -> Self {
        let facts = &kernels.facts;
        Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            compiler: provenance.compiler,
            target: provenance.target,
            mesh: kernels.sharding.as_ref().map_or_else(ir::Mesh::single, |s| s.mesh.clone()),
            model: facts.name.clone(),
            parameters: facts.parameters(),
            entries: kernels.entries.iter().map(|e| e.name.clone()).collect(),
            options: facts.options.clone(),
            relaxations: kernels.relaxations.clone(),
            drafter: None,
            complete: provenance.missing.is_empty(),
            missing: provenance.missing,
            files: BTreeMap::new(),
        }
    }
}
