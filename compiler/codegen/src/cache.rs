//! Machine code kept by content: the same text, headers, options, architecture and compiler give the same bytes.

use crate::generate::{HEADERS, Source};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// A folder of machine code.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// The folder that `BEAM_CACHE` names, or the user's own cache.
    pub fn of_user() -> Cache {
        let given = std::env::var_os("BEAM_CACHE").map(PathBuf::from);
        let common = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".cache"));
        Cache { folder: given.or_else(|| common.or(home).map(|f| f.join("beam"))).map(|f| f.join("kernels")) }
    }

    /// This folder.
    pub fn at(folder: &Path) -> Cache {
        Cache { folder: Some(folder.to_path_buf()) }
    }

    /// Keeps nothing.
    pub fn none() -> Cache {
        Cache { folder: None }
    }

    /// What a unit's machine code is kept under.
    pub fn key(source: &Source, options: &[String], compiler: &str) -> String {
        let mut hasher = Sha256::new();
        // Lengths keep one field from running into the next.
        let mut add = |text: &str| {
            hasher.update((text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        add(compiler);
        options.iter().for_each(|o| add(o));
        HEADERS.iter().for_each(|(name, text)| {
            add(name);
            add(text);
        });
        add(&source.name);
        add(&source.text);
        hasher.finalize().iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Machine code, if it is there.
    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        let bytes = std::fs::read(self.folder.as_ref()?.join(key)).ok()?;
        // A file that a full disk cut short is no machine code.
        crate::cubin::is_whole(&bytes).then_some(bytes)
    }

    /// Keeps machine code. What cannot be kept is made again next time.
    pub fn put(&self, key: &str, cubin: &[u8]) {
        let Some(folder) = &self.folder else { return };
        let new = folder.join(format!("{key}.{}", std::process::id()));
        let kept = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&new, cubin));
        if kept.and_then(|()| std::fs::rename(&new, folder.join(key))).is_err() {
            let _ = std::fs::remove_file(&new);
        }
    }
}
