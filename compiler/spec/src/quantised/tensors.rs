//! What the files of a checkpoint say of its tensors: their formats, from the headers alone.
//!
//! A config is imported without them as well. Where they stand beside it, a matrix is what its tensors are: quantisers
//! leave out what is no linear module to them without listing it, and lists are edited by hand.

use crate::Diagnostic;
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
/// Formats of codes, which mean nothing without scales.
const CODES: [&str; 6] = ["F4", "F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8"];

/// Formats of tensors by name.
pub(crate) struct Tensors(HashMap<String, String>);

impl Tensors {
    /// The tensors of files; none where there are no files, or where the header of one cannot be read, which is told.
    pub fn of(files: &[PathBuf], out: &mut Vec<Diagnostic>) -> Option<Tensors> {
        let mut formats = HashMap::new();
        for file in files {
            let header = header(file).map_err(|fact| {
                let name = file.file_name().unwrap_or_default().display();
                let message = format!("the header of `{name}` beside the config cannot be read: {fact}");
                let d = Diagnostic::warning("B0309", message);
                out.push(d.help(
                    "only the config counts now, and no checkpoint with this file can be loaded: fetch it again",
                ));
            });
            for (name, entry) in header.ok()? {
                if let Some(format) = entry.get("dtype").and_then(Value::as_str) {
                    formats.insert(name, format.to_owned());
                }
            }
        }
        (!files.is_empty()).then_some(Tensors(formats))
    }

    /// The format of a tensor that holds codes; nothing where it is absent, or holds numbers.
    pub fn codes(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|format| CODES.contains(format))
    }

    /// Whether there is a tensor of that name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Whether a matrix of codes has scales beside it, by the names that quantisers give them.
    pub fn has_scale(&self, tensor: &str) -> bool {
        tensor.strip_suffix(".weight").is_some_and(|module| self.has(&format!("{module}.weight_scale")))
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
        let found = self.format(module, &names.codes)?;
        if FLOATS.contains(&found) {
            return Some(false);
        }
        (found == codes_of(format) && self.format(module, &names.scale).is_some()).then_some(true)
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

/// How the codes of a format stand in a file.
pub(super) fn codes_of(format: StoredFormat) -> &'static str {
    match format {
        StoredFormat::Fp8 => "F8_E4M3",
        StoredFormat::Nvfp4 => "U8",
    }
}

/// The header of a file of tensors, or what is wrong with it.
fn header(path: &Path) -> Result<Map<String, Value>, String> {
    let first = start(path, HEADER_AT).ok_or("it is no file that can be read")?;
    let length = first.try_into().map(u64::from_le_bytes).map_err(|_| "the file ends before it")?;
    if length > MOST_BYTES {
        return Err(format!("its length is given as {length} bytes, and {MOST_BYTES} are allowed"));
    }
    let text = start(path, HEADER_AT + length).ok_or("it is no file that can be read")?;
    let text = text.get(HEADER_AT as usize..).unwrap_or_default();
    if (text.len() as u64) < length {
        return Err(format!("its length is given as {length} bytes, and the file ends after {} of them", text.len()));
    }
    serde_json::from_slice(text).map_err(|e| e.to_string())
}

/// The first bytes of a regular file: a pipe may never begin, and a device never ends.
pub(super) fn start(path: &Path, most_bytes: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = path.is_file().then(|| File::open(path).ok()).flatten()?;
    file.take(most_bytes).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}
