//! From units to an artifact's device code: cached, translated, read back.

use crate::cache::Cache;
use crate::cubin::{self, Resources};
use crate::generate::{Generated, Source};
use crate::pool::{Pool, PoolError};
use artifact::{DeviceCode, KernelCode};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Why units did not become machine code.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// Workers.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A folder for files on the way could not be made.
    #[error("K0003: {path} cannot be made: {source}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Machine code that does not hold what it should.
    #[error("K0004: the machine code of kernel `{name}` {fact}")]
    Cubin {
        /// The kernel.
        name: String,
        /// What is wrong.
        fact: String,
    },
}

/// Options of the CUDA compiler for an architecture. Products and sums round separately; division and roots are correctly
/// rounded; subnormals stay.
pub fn options(arch: &str) -> Vec<String> {
    let fixed = ["--std=c++17", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true", "--no-cache"];
    std::iter::once(format!("--gpu-architecture={arch}")).chain(fixed.map(str::to_owned)).collect()
}

/// Translates what is generated. `compiler` names the CUDA compiler and its version.
pub fn compile(
    generated: &Generated,
    arch: &str,
    compiler: &str,
    pool: &Pool,
    cache: &Cache,
) -> Result<DeviceCode, CompileError> {
    let options = options(arch);
    let mut made: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut open: Vec<&Source> = Vec::new();
    for source in &generated.sources {
        match cache.get(&Cache::key(source, &options, compiler)) {
            Some(cubin) => drop(made.insert(source.name.clone(), cubin)),
            None => open.push(source),
        }
    }
    if !open.is_empty() {
        let folder = std::env::temp_dir().join(format!("beamc-{}-{}", std::process::id(), open.len()));
        std::fs::create_dir_all(&folder).map_err(|source| CompileError::Folder { path: folder.clone(), source })?;
        let new = pool.translate(&open, &options, &folder);
        let _ = std::fs::remove_dir_all(&folder);
        let new = new?;
        for source in &open {
            if let Some(cubin) = new.get(&source.name) {
                cache.put(&Cache::key(source, &options, compiler), cubin);
            }
        }
        made.extend(new);
    }
    let mut code = DeviceCode {
        arch: arch.to_owned(),
        compiler: compiler.to_owned(),
        entries: generated.entries.clone(),
        choice: generated.choice.clone(),
        ..DeviceCode::default()
    };
    for source in &generated.sources {
        let cubin = made.remove(&source.name).unwrap_or_default();
        let found = resources_of(source, &cubin)?;
        let kernel = KernelCode {
            name: source.name.clone(),
            threads: source.threads,
            registers: found.registers,
            shared_bytes: found.shared_bytes,
            dynamic_bytes: source.dynamic_bytes,
            stack_bytes: found.stack_bytes,
        };
        code.files.insert(kernel.cubin(), cubin);
        code.files.insert(kernel.source(), source.text.clone().into_bytes());
        code.kernels.push(kernel);
    }
    Ok(code)
}

/// What the machine code says of itself.
fn resources_of(source: &Source, cubin: &[u8]) -> Result<Resources, CompileError> {
    let fault = |fact: &str| CompileError::Cubin { name: source.name.clone(), fact: fact.to_owned() };
    cubin::resources(cubin, &source.name).ok_or_else(|| fault("has no such entry"))
}

impl CompileError {
    /// What to do next.
    pub fn help(&self) -> &'static str {
        match self {
            CompileError::Pool(PoolError::Worker(_)) => "`beamc doctor` says which CUDA compiler was found",
            CompileError::Folder { .. } => "free disk space, or set TMPDIR to a folder that may be written to",
            CompileError::Pool(PoolError::Unit { .. }) | CompileError::Cubin { .. } => {
                "this is a defect of the compiler: report it with the spec and the text that `beamc dump --stage cuda` shows"
            }
        }
    }
}
