//! Writing an artifact: all of it or nothing, and the same bytes every time.

use crate::device_code::DEVICE;
use crate::drafter::path_of;
use crate::files::{self, COPIES, FileEntry, KERNELS, MANIFEST, MEMORY, PLAN, REPORT, WEIGHTS};
use crate::{Artifact, DRAFTER, Drafter, FORMAT, Manifest, VERSION, WeightMemory, WriteError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

impl Artifact {
    /// Writes the artifact as directory `dir`, with `texts` (path inside the artifact, content) beside the data.
    ///
    /// It is built next to `dir`, flushed to disk and put in place by renaming, so `dir` is at every moment
    /// the old artifact or the new one. Only an artifact or an empty directory is replaced.
    /// Returns the manifest as written.
    pub fn write(&self, dir: &Path, texts: &[(String, String)]) -> Result<Manifest, WriteError> {
        let contents = self.contents(texts)?;
        let mut manifest = self.manifest.clone();
        manifest.format = FORMAT.to_owned();
        manifest.version = VERSION;
        manifest.drafter = self.drafter.as_ref().and_then(Drafter::entry);
        manifest.files = contents.iter().map(|(path, bytes)| (path.clone(), FileEntry::of(bytes))).collect();
        let manifest_bytes = pretty(MANIFEST, &manifest)?;

        let dir = resolve(dir)?;
        check_replaceable(&dir)?;
        let staging = Staging::create(&dir)?;
        for (path, bytes) in &contents {
            staging.file(path, bytes)?;
        }
        staging.file(MANIFEST, &manifest_bytes)?;
        staging.put_in_place(&dir)?;
        Ok(manifest)
    }

    /// Every file but the manifest. A sorted map, so that nothing depends on the order of the texts.
    fn contents(&self, texts: &[(String, String)]) -> Result<BTreeMap<String, Vec<u8>>, WriteError> {
        let mut contents = BTreeMap::from([
            (KERNELS.to_owned(), compact(KERNELS, &self.kernels)?),
            (PLAN.to_owned(), compact(PLAN, &self.plan)?),
            (WEIGHTS.to_owned(), lines(WEIGHTS, &self.recipes)?),
            (MEMORY.to_owned(), memory_lines(&self.memory)?),
            (REPORT.to_owned(), pretty(REPORT, &self.report)?),
        ]);
        if let Some(drafter) = &self.drafter {
            let file = |name: &str| format!("{DRAFTER}/{name}");
            contents.insert(file(WEIGHTS), lines(WEIGHTS, &drafter.recipes)?);
            contents.insert(file(COPIES), lines(COPIES, &drafter.copies)?);
            contents.insert(file(MEMORY), memory_lines(&drafter.memory)?);
            for block in &drafter.blocks {
                contents.insert(path_of(block.tokens, KERNELS), compact(KERNELS, &block.kernels)?);
                contents.insert(path_of(block.tokens, PLAN), compact(PLAN, &block.plan)?);
            }
        }
        if let Some(device) = &self.device {
            contents.insert(DEVICE.to_owned(), pretty(DEVICE, device)?);
            contents.extend(device.files.iter().map(|(path, bytes)| (path.clone(), bytes.clone())));
        }
        for (path, text) in texts {
            let fault = |fact| WriteError::TextPath { path: path.clone(), fact };
            if !files::is_safe_path(path) {
                return Err(fault("not a plain relative path"));
            }
            if path == MANIFEST || contents.insert(path.clone(), text.clone().into_bytes()).is_some() {
                return Err(fault("taken by another file"));
            }
        }
        Ok(contents)
    }
}

fn compact<T: Serialize + DeserializeOwned>(file: &'static str, value: &T) -> Result<Vec<u8>, WriteError> {
    let mut bytes = serde_json::to_vec(value).map_err(|e| unreadable(file, &e))?;
    let back: T = serde_json::from_slice(&bytes).map_err(|e| unreadable(file, &e))?;
    // Compared as bytes, because a NaN would differ from itself.
    let again = serde_json::to_vec(&back).map_err(|e| unreadable(file, &e))?;
    if bytes != again {
        return Err(WriteError::NotReadable { file, fact: "a value changes on the way".to_owned() });
    }
    bytes.push(b'\n');
    Ok(bytes)
}

fn pretty<T: Serialize>(file: &'static str, value: &T) -> Result<Vec<u8>, WriteError> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|e| unreadable(file, &e))?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// One item a line: thousands of them stay readable and comparable.
fn lines<T: Serialize>(file: &'static str, items: &[T]) -> Result<Vec<u8>, WriteError> {
    let mut bytes = b"[\n".to_vec();
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            bytes.extend_from_slice(b",\n");
        }
        serde_json::to_writer(&mut bytes, item).map_err(|e| unreadable(file, &e))?;
    }
    bytes.extend_from_slice(b"\n]\n");
    Ok(bytes)
}

/// The weight memory with one piece a line.
fn memory_lines(memory: &WeightMemory) -> Result<Vec<u8>, WriteError> {
    let mesh = serde_json::to_string(&memory.mesh).map_err(|e| unreadable(MEMORY, &e))?;
    let mut bytes = format!("{{\"mesh\":{mesh},\"bytes\":{},\"pieces\":", memory.bytes).into_bytes();
    bytes.extend_from_slice(lines(MEMORY, &memory.pieces)?.trim_ascii_end());
    bytes.extend_from_slice(b"}\n");
    Ok(bytes)
}

fn unreadable(file: &'static str, error: &serde_json::Error) -> WriteError {
    WriteError::NotReadable { file, fact: error.to_string() }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> WriteError {
    move |source| WriteError::Io { action, path: path.to_path_buf(), source }
}

/// The directory itself where `dir` is a symbolic link to one, so that the link survives.
fn resolve(dir: &Path) -> Result<PathBuf, WriteError> {
    let is_link = fs::symlink_metadata(dir).is_ok_and(|m| m.file_type().is_symlink());
    if is_link {
        return fs::canonicalize(dir).map_err(io_error("resolved", dir));
    }
    if dir.file_name().is_none() {
        // `.` or `..`: renaming needs the real name.
        return fs::canonicalize(dir).map_err(io_error("resolved", dir));
    }
    Ok(dir.to_path_buf())
}

/// Refuses everything that would be lost by replacing `dir`.
fn check_replaceable(dir: &Path) -> Result<(), WriteError> {
    let occupied = |fact: String| Err(WriteError::Occupied { dir: dir.to_path_buf(), fact });
    match fs::metadata(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(io_error("examined", dir)(e)),
        Ok(meta) if !meta.is_dir() => return occupied("is a file".to_owned()),
        Ok(_) => {}
    }
    let mut top = BTreeSet::new();
    for entry in fs::read_dir(dir).map_err(io_error("listed", dir))? {
        top.insert(entry.map_err(io_error("listed", dir))?.file_name().to_string_lossy().into_owned());
    }
    let Some(first) = top.first() else {
        return Ok(());
    };
    let Some(known) = listed_files(&dir.join(MANIFEST)) else {
        return occupied(format!("holds `{first}` and no manifest of an artifact"));
    };
    let mut found = BTreeSet::new();
    list(dir, "", &mut found).map_err(io_error("listed", dir))?;
    match found.iter().find(|path| path.as_str() != MANIFEST && !known.contains(*path)) {
        Some(stranger) => occupied(format!("holds `{stranger}`, which the artifact there does not list")),
        None => Ok(()),
    }
}

/// Paths of all files below `dir`.
fn list(dir: &Path, prefix: &str, found: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            list(&entry.path(), &format!("{path}/"), found)?;
        } else {
            found.insert(path);
        }
    }
    Ok(())
}

/// The files that an existing manifest lists, of whatever version; `None` if it is not ours.
fn listed_files(manifest: &Path) -> Option<BTreeSet<String>> {
    let meta = fs::symlink_metadata(manifest).ok()?;
    if !meta.is_file() || meta.len() > files::MOST_MANIFEST_BYTES {
        return None;
    }
    let manifest: serde_json::Value = serde_json::from_slice(&fs::read(manifest).ok()?).ok()?;
    if manifest.get("format")?.as_str()? != FORMAT {
        return None;
    }
    Some(manifest.get("files")?.as_object()?.keys().cloned().collect())
}

/// A directory beside the final one. Removed when dropped, so that a fault leaves nothing behind.
struct Staging {
    path: PathBuf,
}

impl Staging {
    fn create(dir: &Path) -> Result<Self, WriteError> {
        let parent = parent_of(dir);
        fs::create_dir_all(parent).map_err(io_error("created", parent))?;
        for attempt in 0..u32::MAX {
            let path = sibling(dir, "new", attempt);
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Staging { path }),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(io_error("created", &path)(e)),
            }
        }
        Err(io_error("created", parent)(io::ErrorKind::AlreadyExists.into()))
    }

    fn file(&self, path: &str, bytes: &[u8]) -> Result<(), WriteError> {
        let full = self.path.join(path);
        let parent = parent_of(&full);
        fs::create_dir_all(parent).map_err(io_error("created", parent))?;
        let mut file = File::create(&full).map_err(io_error("created", &full))?;
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(io_error("written", &full))?;
        sync_dir(parent)
    }

    fn put_in_place(self, dir: &Path) -> Result<(), WriteError> {
        sync_dir(&self.path)?;
        let old = match fs::symlink_metadata(dir) {
            Ok(_) => Some(move_aside(dir)?),
            Err(_) => None,
        };
        if let Err(e) = fs::rename(&self.path, dir) {
            if let Some(old) = &old {
                // The old artifact goes back where it was; the error to report is the first one.
                let _ = fs::rename(old, dir);
            }
            return Err(io_error("renamed", dir)(e));
        }
        sync_dir(parent_of(dir))?;
        match old {
            Some(old) => fs::remove_dir_all(&old).map_err(io_error("removed", &old)),
            None => Ok(()),
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // After a successful rename there is nothing here any more.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn move_aside(dir: &Path) -> Result<PathBuf, WriteError> {
    for attempt in 0..u32::MAX {
        let old = sibling(dir, "old", attempt);
        if fs::symlink_metadata(&old).is_ok() {
            continue;
        }
        fs::rename(dir, &old).map_err(io_error("renamed", dir))?;
        return Ok(old);
    }
    Err(io_error("renamed", dir)(io::ErrorKind::AlreadyExists.into()))
}

fn sibling(dir: &Path, word: &str, attempt: u32) -> PathBuf {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    dir.with_file_name(format!(".{name}.{word}-{}-{attempt}", std::process::id()))
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn sync_dir(dir: &Path) -> Result<(), WriteError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(io_error("flushed", dir))
}
