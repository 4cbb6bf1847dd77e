//! A new directory: tensors streamed file by file, one in memory at a time, everything else copied. Nothing stands under the
//! name asked for before it is whole.

use super::cached::Cached;
use super::config::{CONFIG, MODELOPT_CONFIG, Scheme};
use super::matrices::{Found, Matrix, WEIGHT};
use super::{bar, rows, shown};
use crate::failure::Failure;
use device::checkpoint::{Checkpoint, FileDType, Rows, ScaleFormat, TensorEntry};
use indicatif::ProgressBar;
use safetensors::{Dtype, View};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// End of the name of a file of tensors.
const TENSORS: &str = ".safetensors";
/// End of the name of an index of such files.
const INDEX: &str = ".safetensors.index.json";

/// What is written, and from what.
pub struct Writer<'a> {
    pub checkpoint: &'a Checkpoint,
    pub found: &'a Found,
    pub scheme: &'a Scheme,
    /// Numbers of cached rows.
    pub cached: &'a [Cached],
    /// The directory that the checkpoint came from.
    pub model: &'a Path,
}

/// What was written.
pub struct Written {
    pub bytes_before: u64,
    pub bytes_after: u64,
    /// What else stands in the directory and was left there.
    pub not_copied: Vec<String>,
}

/// What the bytes of a new tensor are made of.
enum Made<'a> {
    Copied(&'a [u8]),
    Codes(Rows<'a>, ScaleFormat),
    Scales(Rows<'a>, ScaleFormat),
    Nibbles(Rows<'a>, f32),
    BlockScales(Rows<'a>, f32),
    Number(f32),
    /// The same in bf16.
    Bf16Number(f32),
}

/// A tensor that is made when it is written.
struct Lazy<'a> {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: usize,
    made: Made<'a>,
    bar: &'a ProgressBar,
}

impl View for Lazy<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.bar.inc(1);
        match &self.made {
            Made::Copied(bytes) => Cow::Borrowed(bytes),
            Made::Codes(rows, scales) => Cow::Owned(rows.e4m3_codes(*scales)),
            Made::Scales(rows, scales) => Cow::Owned(rows.e4m3_scales(*scales)),
            Made::Nibbles(rows, number) => Cow::Owned(rows.nvfp4_codes(*number)),
            Made::BlockScales(rows, number) => Cow::Owned(rows.nvfp4_scales(*number)),
            Made::Number(x) => Cow::Owned(ScaleFormat::F32.stored(*x)),
            Made::Bf16Number(x) => Cow::Owned(ScaleFormat::Bf16.stored(*x)),
        }
    }

    fn data_len(&self) -> usize {
        self.bytes
    }
}

fn unwritten(path: &str, fact: impl Display) -> Failure {
    Failure::output(format!("R0712: `{path}` cannot be written: {fact}; choose another `--out`"))
}

/// Refuses a target that holds something.
pub fn check_target(out: &Path) -> Result<(), Failure> {
    match std::fs::read_dir(out).map(Iterator::count) {
        Ok(0) => Ok(()),
        Ok(_) => Err(unwritten(&out.display().to_string(), "it is a directory with files in it")),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(unwritten(&out.display().to_string(), e)),
    }
}

/// The format's own word for a format of a file.
fn word(dtype: &FileDType) -> Option<Dtype> {
    serde_json::from_value(Value::String(dtype.to_string())).ok()
}

impl<'a> Writer<'a> {
    /// Writes everything beside the target, then gives it its name. `configure` adds the configurations.
    pub fn write(&self, out: &Path, configure: impl FnOnce(&Path) -> Result<(), Failure>) -> Result<Written, Failure> {
        let name = out.file_name().ok_or_else(|| unwritten(&out.display().to_string(), "it has no name"))?;
        let beside: PathBuf = out.with_file_name(format!(".{}.new-{}", name.to_string_lossy(), std::process::id()));
        let done = std::fs::create_dir(&beside)
            .map_err(|e| unwritten(&beside.display().to_string(), e))
            .and_then(|()| self.fill(&beside))
            .and_then(|written| configure(&beside).map(|()| written))
            .and_then(|written| {
                std::fs::rename(&beside, out).map_err(|e| unwritten(&out.display().to_string(), e)).map(|()| written)
            });
        if done.is_err() {
            // The first error is the one to report.
            let _ = std::fs::remove_dir_all(&beside);
        }
        done
    }

    fn fill(&self, dir: &Path) -> Result<Written, Failure> {
        let mut files: BTreeMap<&str, Vec<&TensorEntry>> = BTreeMap::new();
        let mut bytes_before = 0;
        for (file, entry) in self.checkpoint.tensors() {
            files.entry(file).or_default().push(entry);
            bytes_before += entry.range.end - entry.range.start;
        }
        let mut of_tensor: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, matrix) in self.found.matrices.iter().enumerate() {
            of_tensor.entry(&matrix.tensor).or_default().push(at);
        }
        let bar = bar("quantising", files.values().map(Vec::len).sum::<usize>());
        let (mut homes, mut bytes_after) = (BTreeMap::new(), 0);
        for (file, entries) in &files {
            let mut tensors: Vec<(String, Lazy<'_>)> = Vec::new();
            for entry in entries {
                match of_tensor.get(entry.name.as_str()) {
                    Some(matrices) => {
                        for at in matrices {
                            tensors.extend(self.narrow(*at, &bar)?);
                        }
                    }
                    None => tensors.push((entry.name.clone(), self.copied(entry, &bar)?)),
                }
                tensors.extend(self.cached.iter().filter(|c| c.beside == entry.name).map(|c| self.number(c, &bar)));
            }
            bar.set_length(bar.length().unwrap_or(0) + (tensors.len() - entries.len()) as u64);
            for (name, tensor) in &tensors {
                bytes_after += tensor.bytes as u64;
                homes.insert(name.clone(), (*file).to_owned());
            }
            let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
            safetensors::serialize_to_file(tensors, Some(metadata), &dir.join(file))
                .map_err(|e| unwritten(&shown(dir, file), e))?;
        }
        bar.finish_and_clear();
        let not_copied = self.copy_others(dir, &homes, bytes_after)?;
        Ok(Written { bytes_before, bytes_after, not_copied })
    }

    fn copied(&self, entry: &'a TensorEntry, bar: &'a ProgressBar) -> Result<Lazy<'a>, Failure> {
        let found = self.checkpoint.tensor(&entry.name).zip(word(&entry.dtype));
        let ((_, bytes), dtype) = found.ok_or_else(|| {
            Failure::input(format!("R0713: `{}` is {}, which cannot be copied", entry.name, entry.dtype))
        })?;
        let shape = entry.shape.iter().map(|n| *n as usize).collect();
        Ok(Lazy { dtype, shape, bytes: bytes.len(), made: Made::Copied(bytes), bar })
    }

    /// The number of cached rows: of compressed-tensors in the model's format, of ModelOpt in binary32.
    fn number(&self, cached: &Cached, bar: &'a ProgressBar) -> (String, Lazy<'a>) {
        let (name, number) = (cached.tensor.clone(), cached.number);
        let lazy =
            |dtype, shape: &[usize], made| Lazy { dtype, shape: shape.to_vec(), bytes: dtype.bitsize() / 8, made, bar };
        let lazy = match self.scheme {
            Scheme::Rows(ScaleFormat::Bf16) => lazy(Dtype::BF16, &[1], Made::Bf16Number(number)),
            Scheme::Rows(ScaleFormat::F32) => lazy(Dtype::F32, &[1], Made::Number(number)),
            Scheme::Blocks { .. } => lazy(Dtype::F32, &[], Made::Number(number)),
        };
        (name, lazy)
    }

    /// The tensors of a matrix.
    fn narrow(&self, at: usize, bar: &'a ProgressBar) -> Result<Vec<(String, Lazy<'a>)>, Failure> {
        let Some(matrix) = self.found.matrices.get(at) else { return Ok(Vec::new()) };
        let Matrix { module, rows: out, columns, input, .. } = matrix;
        let (out, columns) = (*out as usize, *columns as usize);
        let rows = rows(self.checkpoint, matrix)?;
        let tensor = |end: &str, dtype: Dtype, shape: &[usize], made: Made<'a>| {
            let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            (format!("{module}{end}"), Lazy { dtype, shape: shape.to_vec(), bytes, made, bar })
        };
        Ok(match self.scheme {
            Scheme::Rows(scales) => {
                let dtype = if *scales == ScaleFormat::Bf16 { Dtype::BF16 } else { Dtype::F32 };
                vec![
                    tensor(WEIGHT, Dtype::F8_E4M3, &[out, columns], Made::Codes(rows, *scales)),
                    tensor(".weight_scale", dtype, &[out, 1], Made::Scales(rows, *scales)),
                ]
            }
            Scheme::Blocks { numbers, input_numbers } => {
                let number = numbers.get(at).copied().unwrap_or(1.0);
                let mut tensors = vec![
                    tensor(WEIGHT, Dtype::U8, &[out, columns / 2], Made::Nibbles(rows, number)),
                    tensor(".weight_scale", Dtype::F8_E4M3, &[out, columns / 16], Made::BlockScales(rows, number)),
                    tensor(".weight_scale_2", Dtype::F32, &[], Made::Number(number)),
                ];
                if let Some(number) = input.and_then(|input| input_numbers.get(input)) {
                    tensors.push(tensor(".input_scale", Dtype::F32, &[], Made::Number(*number)));
                }
                tensors
            }
        })
    }

    /// Copies what is neither tensors nor a configuration that is written anew, and the index with its new names.
    fn copy_others(&self, dir: &Path, homes: &BTreeMap<String, String>, bytes: u64) -> Result<Vec<String>, Failure> {
        let unread = |e: &dyn Display| Failure::input(format!("R0701: `{}` cannot be read: {e}", self.model.display()));
        let mut left = Vec::new();
        for entry in std::fs::read_dir(self.model).map_err(|e| unread(&e))? {
            let entry = entry.map_err(|e| unread(&e))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if [CONFIG, MODELOPT_CONFIG].contains(&name.as_str()) || homes.values().any(|home| *home == name) {
                continue;
            }
            let path = entry.path();
            if name.ends_with(INDEX) {
                let text = std::fs::read_to_string(&path).map_err(|e| unread(&e))?;
                let index = self.index(&text, homes, bytes).map_err(|e| unread(&e))?;
                std::fs::write(dir.join(&name), index).map_err(|e| unwritten(&shown(dir, &name), e))?;
            } else if path.is_file() && !name.ends_with(TENSORS) && !name.starts_with('.') {
                std::fs::copy(&path, dir.join(&name)).map_err(|e| unwritten(&shown(dir, &name), e))?;
            } else {
                left.push(name);
            }
        }
        left.sort();
        Ok(left)
    }

    /// The index with the new tensors; what else it says stays.
    fn index(&self, text: &str, homes: &BTreeMap<String, String>, bytes: u64) -> Result<String, serde_json::Error> {
        let mut index: Map<String, Value> = serde_json::from_str(text)?;
        let metadata = index.entry("metadata").or_insert_with(|| json!({}));
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("total_size".to_owned(), json!(bytes));
        }
        index.insert("weight_map".to_owned(), json!(homes));
        Ok(format!("{:#}\n", Value::Object(index)))
    }
}
