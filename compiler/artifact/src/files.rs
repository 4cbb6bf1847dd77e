//! Names, sizes and hashes of the files in an artifact.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Path of the manifest.
pub const MANIFEST: &str = "manifest.json";
/// Path of the kernel module.
pub(crate) const KERNELS: &str = "kernels.json";
/// Path of the plan.
pub(crate) const PLAN: &str = "plan.json";
/// Path of the weight recipes.
pub(crate) const WEIGHTS: &str = "weights.json";
/// Path of the weight memory.
pub(crate) const MEMORY: &str = "memory.json";
/// Path of the recipes of weights that a drafter keeps copies of, inside its folder.
pub(crate) const COPIES: &str = "copies.json";
/// Path of the report.
pub(crate) const REPORT: &str = "report.json";
/// Path of the model level as text.
pub const IR_MODEL: &str = "ir/model.txt";
/// Path of the graph level as text.
pub const IR_GRAPH: &str = "ir/graph.txt";
/// Path of the sharded level as text, where there are several ranks.
pub const IR_SHARDED: &str = "ir/sharded.txt";
/// Path of the kernel level as text.
pub const IR_KERNEL: &str = "ir/kernel.txt";
/// Path of the plan as text.
pub const IR_PLAN: &str = "ir/plan.txt";

/// Files without which an artifact cannot be loaded.
pub(crate) const REQUIRED: [&str; 5] = [KERNELS, PLAN, WEIGHTS, MEMORY, REPORT];

/// Most bytes of a manifest. One of a thousand files has about 150 kB.
pub(crate) const MOST_MANIFEST_BYTES: u64 = 16 << 20;
/// Most bytes of any other file. The kernel module of the largest model known has a few MB.
pub(crate) const MOST_FILE_BYTES: u64 = 1 << 30;
/// Most files.
pub(crate) const MOST_FILES: usize = 100_000;

/// What the manifest knows of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a file entry")]
pub struct FileEntry {
    /// Size.
    pub bytes: u64,
    /// SHA-256 of the content, 64 lower-case hexadecimal digits.
    pub sha256: String,
}

impl FileEntry {
    /// The entry of a file with this content.
    pub(crate) fn of(content: &[u8]) -> Self {
        FileEntry { bytes: content.len() as u64, sha256: hex(&Sha256::digest(content)) }
    }
}

/// Hash of a file that is not kept in memory.
pub(crate) fn hash_file(file: File) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut file = file;
    let mut block = vec![0u8; 1 << 16];
    loop {
        let n = file.read(&mut block)?;
        match block.get(..n) {
            None | Some([]) => return Ok(hex(&hasher.finalize())),
            Some(part) => hasher.update(part),
        }
    }
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a path may name a file of an artifact: relative, plain components of printable ASCII joined by `/`,
/// nothing that leads out of the directory.
pub(crate) fn is_safe_path(path: &str) -> bool {
    let plain = |part: &str| {
        !part.is_empty()
            && part.len() <= 128
            && !part.starts_with('.')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'+' | b'='))
    };
    path.len() <= 512 && path.split('/').all(plain)
}

/// Whether every step from `dir` to `path` inside it is what it seems: no symbolic link on the way, a regular file at the end.
pub(crate) fn is_plain_file(dir: &Path, path: &str) -> io::Result<bool> {
    let mut at = dir.to_path_buf();
    let mut kind = None;
    for part in path.split('/') {
        at.push(part);
        let found = std::fs::symlink_metadata(&at)?.file_type();
        if found.is_symlink() {
            return Ok(false);
        }
        kind = Some(found);
    }
    Ok(kind.is_some_and(|k| k.is_file()))
}
