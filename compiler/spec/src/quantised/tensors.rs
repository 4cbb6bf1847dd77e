//! What the files of a checkpoint say of its tensors: their formats, from the headers alone.
//!
//! A config is imported without them as well. Where they stand beside it, a matrix is what its tensors are: quantisers
//! leave out what is no linear module to them without listing it, and lists are edited by hand.

use ir::{DiskForm, StoredFormat, StoredNames, Weight};
use serde_json::{Map, Value};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

/// The file of a checkpoint that is in one.
const SINGLE: &str = "model.safetensors";
/// The list of files of one that is in several.
const INDEX: &str = "model.safetensors.index.json";
/// Longest header that is read, as safetensors has it, and longest index.
const MOST_BYTES: u64 = 100_000_000;
/// Bytes before a header: its length.
const HEADER_AT: u64 = 8;
/// Formats of what is not quantised.
const FLOATS: [&str; 3] = ["BF16", "F16", "F32"];

/// Formats of tensors by name.
pub(crate) struct Tensors(HashMap<String, String>);

impl Tensors {
    /// The tensors beside a config. None where there are no files, or where one cannot be read: loading tells what is wrong.
    pub fn beside(config: &Path) -> Option<Tensors> {
        let single = config.with_file_name(SINGLE);
        let files = if single.is_file() {
            vec![single]
        } else {
            let index: Value = serde_json::from_slice(&start(&config.with_file_name(INDEX), MOST_BYTES)?).ok()?;
            let files: BTreeSet<&str> =
                index.get("weight_map")?.as_object()?.values().filter_map(Value::as_str).collect();
            files.into_iter().map(|name| beside(config, name)).collect::<Option<_>>()?
        };
        let mut formats = HashMap::new();
        for file in files {
            for (name, entry) in header(&file)? {
                if let Some(format) = entry.get("dtype").and_then(Value::as_str) {
                    formats.insert(name, format.to_owned());
                }
            }
        }
        Some(Tensors(formats))
    }

    fn format(&self, module: &str, end: &str) -> Option<&str> {
        self.0.get(&format!("{module}.{end}")).map(String::as_str)
    }

    /// Whether a module's matrix is stored in the format; nothing where it is absent, or something else.
    pub fn narrow(&self, module: &str, format: StoredFormat, names: &StoredNames) -> Option<bool> {
        let codes = match format {
            StoredFormat::Fp8 => "F8_E4M3",
            StoredFormat::Nvfp4 => "U8",
        };
        let found = self.format(module, &names.codes)?;
        if FLOATS.contains(&found) {
            return Some(false);
        }
        (found == codes && self.format(module, &names.scale).is_some()).then_some(true)
    }

    /// Whether a weight lies in a form that is never quantised, such as many matrices in one tensor, and not in `form`.
    pub fn elsewhere(&self, weight: &Weight, form: &DiskForm, layer: Option<usize>) -> bool {
        let there = |other: &DiskForm| {
            let name = super::decide::named(&other.tensor, layer);
            other.spread.is_empty() && self.0.get(&name).is_some_and(|found| FLOATS.contains(&found.as_str()))
        };
        weight.disk.iter().any(|other| other != form && there(other))
    }
}

/// A file of the checkpoint's own directory; a name that leads elsewhere is none.
fn beside(config: &Path, name: &str) -> Option<PathBuf> {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)).then(|| config.with_file_name(name))
}

/// The header of a file of tensors.
fn header(path: &Path) -> Option<Map<String, Value>> {
    let length = start(path, HEADER_AT)?;
    let length = Some(u64::from_le_bytes(length.try_into().ok()?)).filter(|n| *n <= MOST_BYTES)?;
    serde_json::from_slice(start(path, HEADER_AT + length)?.get(HEADER_AT as usize..)?).ok()
}

/// The first bytes of a regular file: a pipe may never begin, and a device never ends.
fn start(path: &Path, most_bytes: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = path.is_file().then(|| File::open(path).ok()).flatten()?;
    file.take(most_bytes).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}
