//! The memory map of a weight file: the one place of this crate that needs `unsafe`.

#![allow(unsafe_code)]

use memmap2::Mmap;
use std::fs::File;
use std::io;
use std::path::Path;

/// A file as bytes, read by the system when they are touched.
#[derive(Debug)]
pub(super) struct Map {
    map: Option<Mmap>,
}

impl Map {
    /// Maps a regular file, read-only.
    pub(super) fn open(path: &Path) -> io::Result<Map> {
        // Asked before opening: opening a pipe would wait for ever.
        let meta = std::fs::metadata(path)?;
        if !meta.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
        }
        let file = File::open(path)?;
        // An empty mapping is refused by some systems.
        if file.metadata()?.len() == 0 {
            return Ok(Map { map: None });
        }
        // SAFETY: the mapping is private and never written through, so this process cannot break the `&[u8]` it
        // gives out. Another process can: truncating the file while it is mapped ends this one with a bus error,
        // and overwriting it changes bytes under our eyes. Checkpoints are data at rest; the operations manual asks
        // for replacing them by renaming, which leaves the mapped file alive. Bytes are only ever read as plain
        // integers, for which every bit pattern is valid.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Map { map: Some(map) })
    }

    /// The content.
    pub(super) fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}
