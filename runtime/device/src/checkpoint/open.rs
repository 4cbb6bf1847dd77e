//! Opening a checkpoint: one file, or an index and its shards.

use super::error::{LoadErrors, Problem, quoted};
use super::header::{Header, TensorEntry, parse_header};
use super::mmap::Map;
use indexmap::IndexMap;
use serde::Deserialize;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Component, Path, PathBuf};

/// A checkpoint in one file.
const SINGLE: &str = "model.safetensors";
/// The index of a sharded checkpoint.
const INDEX: &str = "model.safetensors.index.json";
/// Most bytes of an index. A hundred thousand tensors take about 15 MB.
const MOST_INDEX_BYTES: u64 = 1 << 28;

/// An open checkpoint: every tensor by name, none of them read yet.
#[derive(Debug)]
pub struct Checkpoint {
    shards: Vec<Shard>,
    /// Shard and position in its header.
    tensors: HashMap<String, (usize, usize)>,
    /// Tensors that the index promises in a shard that cannot be read: missing, but already accounted for.
    lost: HashSet<String>,
    problems: Vec<Problem>,
}

#[derive(Debug)]
struct Shard {
    file: String,
    map: Map,
    header: Header,
}

/// A tensor of an open checkpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'a> {
    /// Name of the file.
    pub(super) file: &'a str,
    /// What the header says.
    pub(super) entry: &'a TensorEntry,
    /// Its bytes; empty unless the entry is intact.
    pub(super) bytes: &'a [u8],
}

#[derive(Deserialize)]
#[serde(expecting = "an object with weight_map")]
struct Index {
    weight_map: IndexMap<String, String>,
}

impl Checkpoint {
    /// Opens a directory, or any one safetensors file.
    ///
    /// What is wrong with single tensors or shards does not stop it: [`Checkpoint::problems`] has it, and loading
    /// weights reports it together with what it finds itself.
    pub fn open(path: &Path) -> Result<Checkpoint, LoadErrors> {
        let mut checkpoint =
            Checkpoint { shards: Vec::new(), tensors: HashMap::new(), lost: HashSet::new(), problems: Vec::new() };
        if path.is_file() {
            checkpoint.open_single(path);
        } else if path.join(SINGLE).exists() {
            checkpoint.open_single(&path.join(SINGLE));
        } else if path.join(INDEX).exists() {
            checkpoint.open_sharded(path)?;
        } else if path.is_dir() {
            let dir = path.display().to_string();
            return Err(Problem::NoWeights { dir, single: SINGLE, index: INDEX }.into());
        } else {
            let fact = match std::fs::metadata(path) {
                Ok(_) => "it is neither a directory nor a file".to_owned(),
                Err(e) => e.to_string(),
            };
            return Err(Problem::Unreadable { file: path.display().to_string(), fact }.into());
        }
        if checkpoint.shards.is_empty() && !checkpoint.problems.is_empty() {
            return Err(LoadErrors::new(checkpoint.problems));
        }
        Ok(checkpoint)
    }

    /// What is wrong with the files.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Every tensor with its file, in the order of files and headers.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &TensorEntry)> {
        self.shards.iter().flat_map(|s| s.header.tensors.iter().map(|t| (s.file.as_str(), t)))
    }

    /// What the header says of a tensor, and its bytes; `None` unless it is there and whole.
    pub fn tensor(&self, name: &str) -> Option<(&TensorEntry, &[u8])> {
        self.find(name).filter(|found| found.entry.intact).map(|found| (found.entry, found.bytes))
    }

    pub(super) fn find(&self, name: &str) -> Option<Found<'_>> {
        let (shard, entry) = self.tensors.get(name)?;
        let shard = self.shards.get(*shard)?;
        let entry = shard.header.tensors.get(*entry)?;
        let bytes = match entry.intact {
            true => shard.map.bytes().get(entry.range.start as usize..entry.range.end as usize).unwrap_or_default(),
            false => &[],
        };
        Some(Found { file: &shard.file, entry, bytes })
    }

    /// Whether the tensor is missing for a reason already told.
    pub(super) fn is_lost(&self, name: &str) -> bool {
        self.lost.contains(name)
    }

    fn open_single(&mut self, path: &Path) {
        let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        match Map::open(path) {
            Ok(map) => {
                self.add_shard(file, map);
            }
            Err(e) => self.problems.push(Problem::Unreadable { file, fact: e.to_string() }),
        }
    }

    /// Adds a mapped file and its tensors; `false` if its header cannot be read.
    fn add_shard(&mut self, file: String, map: Map) -> bool {
        let mut header = match parse_header(map.bytes()) {
            Ok(header) => header,
            Err(fault) => {
                self.problems.push(Problem::Header { file, fault });
                return false;
            }
        };
        let faults = std::mem::take(&mut header.faults);
        self.problems.extend(faults.into_iter().map(|fault| Problem::Header { file: file.clone(), fault }));
        let shard = self.shards.len();
        for (at, entry) in header.tensors.iter().enumerate() {
            self.tensors.entry(entry.name.clone()).or_insert((shard, at));
        }
        self.shards.push(Shard { file, map, header });
        true
    }

    fn open_sharded(&mut self, dir: &Path) -> Result<(), LoadErrors> {
        let index = read_index(&dir.join(INDEX))?;
        let mut names_by_shard: IndexMap<&str, Vec<&str>> = IndexMap::new();
        for (tensor, shard) in &index.weight_map {
            if is_plain_name(shard) {
                names_by_shard.entry(shard).or_default().push(tensor);
            } else {
                let (tensor_shown, shard) = (quoted(tensor), quoted(shard));
                self.problems.push(Problem::ShardName { file: INDEX.to_owned(), tensor: tensor_shown, shard });
                self.lost.insert(tensor.clone());
            }
        }
        for (shard, names) in &names_by_shard {
            if !self.open_shard(dir, shard, names) {
                self.lost.extend(names.iter().map(|name| (*name).to_owned()));
            }
        }
        self.compare_with_index(&index);
        Ok(())
    }

    fn open_shard(&mut self, dir: &Path, shard: &str, names: &[&str]) -> bool {
        match Map::open(&dir.join(shard)) {
            Ok(map) => self.add_shard(shard.to_owned(), map),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.problems.push(Problem::ShardMissing {
                    file: INDEX.to_owned(),
                    shard: quoted(shard),
                    tensors: names.len(),
                    example: quoted(names.first().unwrap_or(&"")),
                });
                false
            }
            Err(e) => {
                self.problems.push(Problem::Unreadable { file: quoted(shard), fact: e.to_string() });
                false
            }
        }
    }

    /// Index and shards must name the same tensors in the same places.
    fn compare_with_index(&mut self, index: &Index) {
        let mut problems = Vec::new();
        let mut homes: HashMap<&str, Vec<(usize, usize)>> = HashMap::new();
        for (s, shard) in self.shards.iter().enumerate() {
            for (at, entry) in shard.header.tensors.iter().enumerate() {
                homes.entry(&entry.name).or_default().push((s, at));
                let fact = match index.weight_map.get(&entry.name) {
                    Some(home) if *home == shard.file => continue,
                    Some(home) => format!("puts it into `{}`", quoted(home)),
                    None => "does not list it".to_owned(),
                };
                let (tensor, shard) = (quoted(&entry.name), quoted(&shard.file));
                problems.push(Problem::NotInIndex { file: INDEX.to_owned(), tensor, shard, fact });
            }
        }
        let mut corrected = Vec::new();
        for (tensor, file) in index.weight_map.iter().filter(|(t, _)| !self.lost.contains(*t)) {
            let found = homes.get(tensor.as_str()).map(Vec::as_slice).unwrap_or_default();
            let shard_file = |place: &(usize, usize)| self.shards.get(place.0).map(|s| s.file.as_str());
            if let Some(place) = found.iter().find(|place| shard_file(place) == Some(file)) {
                // A tensor in two shards is the one that the index means.
                corrected.push((tensor.clone(), *place));
                continue;
            }
            let fact = match found.first().and_then(shard_file) {
                Some(elsewhere) => format!("it is in `{}`", quoted(elsewhere)),
                None => "no shard has it".to_owned(),
            };
            let (tensor, shard) = (quoted(tensor), quoted(file));
            problems.push(Problem::NotInShard { file: INDEX.to_owned(), tensor, shard, fact });
        }
        self.lost.extend(index.weight_map.keys().filter(|t| !homes.contains_key(t.as_str())).cloned());
        self.tensors.extend(corrected);
        self.problems.extend(problems);
    }
}

fn read_index(path: &PathBuf) -> Result<Index, LoadErrors> {
    let unreadable = |fact: String| Problem::Unreadable { file: INDEX.to_owned(), fact };
    let meta = std::fs::metadata(path).map_err(|e| unreadable(e.to_string()))?;
    if !meta.is_file() || meta.len() > MOST_INDEX_BYTES {
        let fact = format!("it has {} bytes, an index is a file of at most {MOST_INDEX_BYTES}", meta.len());
        return Err(Problem::Index { file: INDEX.to_owned(), fact }.into());
    }
    let bytes = std::fs::read(path).map_err(|e| unreadable(e.to_string()))?;
    serde_json::from_slice(&bytes)
        .map_err(|e| Problem::Index { file: INDEX.to_owned(), fact: quoted(&e.to_string()) }.into())
}

/// Whether a shard's name stays in the directory: a single ordinary component on every system.
fn is_plain_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(only)), None) if only == name)
        && !name.contains(['/', '\\', ':', '\0'])
}
