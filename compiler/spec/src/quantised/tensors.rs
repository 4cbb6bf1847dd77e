//! What the files of a checkpoint say of its tensors: their formats, from the headers alone.
//!
//! A config is imported without them as well. Where they stand beside it, a matrix is what its tensors are: quantisers
//! leave out what is no linear module to them without listing it, and lists are edited by hand.

use ir::{DiskForm, StoredFormat, StoredNames, Weight};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Longest header that is read, as safetensors has it.
const MOST_BYTES: u64 = 100_000_000;
/// Bytes before a header: its length.
const HEADER_AT: u64 = 8;
/// Formats of what is not quantised.
const FLOATS: [&str; 3] = ["BF16", "F16", "F32"];

/// Formats of tensors by name.
pub(crate) struct Tensors(HashMap<String, String>);

impl Tensors {
    /// The tensors of files; none where there are no files, or where one cannot be read: loading tells what is wrong.
    pub fn of(files: &[PathBuf]) -> Option<Tensors> {
        let mut formats = HashMap::new();
        for file in files {
            for (name, entry) in header(file)? {
                if let Some(format) = entry.get("dtype").and_then(Value::as_str) {
                    formats.insert(name, format.to_owned());
                }
            }
        }
        (!files.is_empty()).then_some(Tensors(formats))
    }

    /// Whether there is a tensor of that name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The tensor of the number of inputs, if a module has codes and not that.
    pub fn lacks_input(&self, module: &str, names: &StoredNames) -> Option<String> {
        let end = names.input.as_ref()?;
        let codes = self.format(module, &names.codes)?;
        (!FLOATS.contains(&codes) && self.format(module, end).is_none()).then(|| format!("{module}.{end}"))
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

/// The header of a file of tensors.
fn header(path: &Path) -> Option<Map<String, Value>> {
    let length = start(path, HEADER_AT)?;
    let length = Some(u64::from_le_bytes(length.try_into().ok()?)).filter(|n| *n <= MOST_BYTES)?;
    serde_json::from_slice(start(path, HEADER_AT + length)?.get(HEADER_AT as usize..)?).ok()
}

/// The first bytes of a regular file: a pipe may never begin, and a device never ends.
pub(super) fn start(path: &Path, most_bytes: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = path.is_file().then(|| File::open(path).ok()).flatten()?;
    file.take(most_bytes).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}
