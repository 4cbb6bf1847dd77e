//! The header of a safetensors file: eight bytes of length, JSON, then data without holes.
//!
//! Read here rather than by the `safetensors` crate, which stops at the first fault and names neither file nor
//! numbers. The rules are the same; the tests hold the two against each other.

use super::error::quoted;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

/// Most bytes of JSON: the limit that the format's own library sets.
const MOST_HEADER_BYTES: u64 = 100_000_000;

/// How numbers are stored in a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileDType {
    /// IEEE binary32.
    F32,
    /// The upper half of a binary32.
    Bf16,
    /// IEEE binary16.
    F16,
    /// Anything else, by the file's word.
    Other(String),
}

/// The format's other words with their bits per element.
const OTHER_BITS: [(&str, u64); 18] = [
    ("BOOL", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I16", 16),
    ("U16", 16),
    ("I32", 32),
    ("U32", 32),
    ("I64", 64),
    ("U64", 64),
    ("F64", 64),
];

impl FileDType {
    fn from_word(word: String) -> Self {
        match word.as_str() {
            "F32" => FileDType::F32,
            "BF16" => FileDType::Bf16,
            "F16" => FileDType::F16,
            _ => FileDType::Other(word),
        }
    }

    /// Whether it is the format with that word.
    pub(super) fn is(&self, word: &str) -> bool {
        matches!(self, FileDType::Other(own) if own == word)
    }

    /// Bits of one element, where the word is known.
    pub fn bits(&self) -> Option<u64> {
        match self {
            FileDType::F32 => Some(32),
            FileDType::Bf16 | FileDType::F16 => Some(16),
            FileDType::Other(word) if word == "C64" => Some(64),
            FileDType::Other(word) => OTHER_BITS.iter().find(|(w, _)| w == word).map(|(_, bits)| *bits),
        }
    }
}

impl fmt::Display for FileDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileDType::F32 => "F32",
            FileDType::Bf16 => "BF16",
            FileDType::F16 => "F16",
            FileDType::Other(word) => return f.write_str(&quoted(word)),
        })
    }
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Name.
    pub name: String,
    /// Format.
    pub dtype: FileDType,
    /// Shape.
    pub shape: Vec<u64>,
    /// Where its bytes lie, counted from the start of the file.
    pub range: Range<u64>,
    /// Whether its bytes are all there and as many as its shape needs.
    pub intact: bool,
}

/// What a header says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Tensors in the order of the header.
    pub tensors: Vec<TensorEntry>,
    /// What is wrong with single tensors or with the data; the others may still be read.
    pub faults: Vec<HeaderFault>,
}

/// One thing that is wrong with a header or with the data behind it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderFault {
    /// No room for the length.
    #[error("the file has {file_bytes} bytes, a safetensors file has at least 8")]
    NoLength {
        /// Size of the file.
        file_bytes: u64,
    },
    /// The header ends beyond the file.
    #[error("the header is said to have {header_bytes} bytes, the file has {file_bytes} in all")]
    HeaderTruncated {
        /// Length in the file's first eight bytes.
        header_bytes: u64,
        /// Size of the file.
        file_bytes: u64,
    },
    /// The header is absurdly long.
    #[error("the header is said to have {header_bytes} bytes, at most {MOST_HEADER_BYTES} are read")]
    HeaderTooLong {
        /// Length in the file's first eight bytes.
        header_bytes: u64,
    },
    /// The header is not the JSON it should be.
    #[error("the header is malformed at line {line}, column {column}: {fact}")]
    NotJson {
        /// Line of the header, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong.
        fact: String,
    },
    /// A name stands twice.
    #[error("tensor `{tensor}` is in the header twice")]
    Duplicate {
        /// Tensor.
        tensor: String,
    },
    /// The end lies before the start.
    #[error("tensor `{tensor}` starts at byte {start} of the data and ends at {end}")]
    Backwards {
        /// Tensor.
        tensor: String,
        /// Start.
        start: u64,
        /// End.
        end: u64,
    },
    /// The bytes are not as many as the shape needs.
    #[error("tensor `{tensor}` ({dtype} {shape:?}) has {found} bytes, its shape needs {needed}")]
    Size {
        /// Tensor.
        tensor: String,
        /// Format.
        dtype: String,
        /// Shape.
        shape: Vec<u64>,
        /// Bytes between start and end.
        found: u64,
        /// Bytes by the shape, in words where 64 bits cannot count them.
        needed: String,
    },
    /// The file ends too soon.
    #[error(
        "tensor `{tensor}` ({dtype} {shape:?}) ends at byte {end} of the data, the file has {have}: it is truncated"
    )]
    Truncated {
        /// Tensor.
        tensor: String,
        /// Format.
        dtype: String,
        /// Shape.
        shape: Vec<u64>,
        /// End of the tensor.
        end: u64,
        /// Bytes of data in the file.
        have: u64,
    },
    /// Two tensors share bytes.
    #[error("tensor `{tensor}` starts at byte {start} of the data, inside `{other}`, which ends at {end}")]
    Overlap {
        /// Later tensor.
        tensor: String,
        /// Its start.
        start: u64,
        /// Earlier tensor.
        other: String,
        /// Its end.
        end: u64,
    },
    /// Bytes that belong to no tensor.
    #[error("bytes {start} to {end} of the data belong to no tensor")]
    Hole {
        /// First byte.
        start: u64,
        /// One past the last.
        end: u64,
    },
}

impl HeaderFault {
    /// The code, such as `W0208`.
    pub fn code(&self) -> &'static str {
        match self {
            HeaderFault::NoLength { .. } => "W0201",
            HeaderFault::HeaderTruncated { .. } => "W0202",
            HeaderFault::HeaderTooLong { .. } => "W0203",
            HeaderFault::NotJson { .. } => "W0204",
            HeaderFault::Duplicate { .. } => "W0205",
            HeaderFault::Backwards { .. } => "W0206",
            HeaderFault::Size { .. } => "W0207",
            HeaderFault::Truncated { .. } => "W0208",
            HeaderFault::Overlap { .. } => "W0209",
            HeaderFault::Hole { .. } => "W0210",
        }
    }
}

/// Reads the header of a file given as a whole. An error means that nothing of the file can be used.
pub fn parse_header(file: &[u8]) -> Result<Header, HeaderFault> {
    let file_bytes = file.len() as u64;
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(HeaderFault::NoLength { file_bytes });
    };
    let header_bytes = u64::from_le_bytes(*length);
    if header_bytes > MOST_HEADER_BYTES {
        return Err(HeaderFault::HeaderTooLong { header_bytes });
    }
    let Some((json, data)) = rest.split_at_checked(header_bytes as usize) else {
        return Err(HeaderFault::HeaderTruncated { header_bytes, file_bytes });
    };
    let raw: RawHeader = serde_json::from_slice(json).map_err(|e| {
        let text = e.to_string();
        let fact = quoted(text.split(" at line ").next().unwrap_or(&text));
        HeaderFault::NotJson { line: e.line(), column: e.column(), fact }
    })?;
    Ok(check(raw, 8 + header_bytes, data.len() as u64))
}

fn check(raw: RawHeader, data_start: u64, data_bytes: u64) -> Header {
    let mut faults: Vec<HeaderFault> =
        raw.duplicates.into_iter().map(|name| HeaderFault::Duplicate { tensor: quoted(&name) }).collect();
    let tensors: Vec<TensorEntry> = raw
        .tensors
        .into_iter()
        .map(|(name, raw)| {
            let fault = tensor_fault(&name, &raw, data_bytes);
            let intact = fault.is_none();
            faults.extend(fault);
            let [start, end] = raw.data_offsets;
            let range = data_start.saturating_add(start)..data_start.saturating_add(end);
            TensorEntry { name, dtype: FileDType::from_word(raw.dtype), shape: raw.shape, range, intact }
        })
        .collect();
    faults.extend(layout_faults(&tensors, data_start, data_bytes));
    Header { tensors, faults }
}

fn tensor_fault(name: &str, raw: &RawTensor, data_bytes: u64) -> Option<HeaderFault> {
    let [start, end] = raw.data_offsets;
    let tensor = quoted(name);
    if start > end {
        return Some(HeaderFault::Backwards { tensor, start, end });
    }
    let dtype = FileDType::from_word(raw.dtype.clone());
    let found = end - start;
    // A format we do not know cannot be measured; whoever wants the tensor refuses it.
    if let Some(bits) = dtype.bits() {
        let needed = raw.shape.iter().try_fold(bits, |n, dim| n.checked_mul(*dim));
        let found_bits = found.checked_mul(8);
        if needed.is_none() || needed != found_bits {
            let needed = needed.map_or("more than 2^64 bits".to_owned(), |bits| match bits % 8 {
                0 => (bits / 8).to_string(),
                part => format!("{} and {part} bits", bits / 8),
            });
            return Some(HeaderFault::Size {
                tensor,
                dtype: dtype.to_string(),
                shape: shape_shown(raw),
                found,
                needed,
            });
        }
    }
    (end > data_bytes).then(|| HeaderFault::Truncated {
        tensor,
        dtype: dtype.to_string(),
        shape: shape_shown(raw),
        end,
        have: data_bytes,
    })
}

/// A hostile shape may have a million dimensions; a message needs the first few.
fn shape_shown(raw: &RawTensor) -> Vec<u64> {
    raw.shape.iter().take(16).copied().collect()
}

/// Overlaps and holes, by walking the tensors in the order of their bytes.
fn layout_faults(tensors: &[TensorEntry], data_start: u64, data_bytes: u64) -> Vec<HeaderFault> {
    let mut order: Vec<&TensorEntry> = tensors.iter().filter(|t| t.range.start <= t.range.end).collect();
    order.sort_by_key(|t| (t.range.start, t.range.end));
    let mut faults = Vec::new();
    let mut covered = data_start;
    let mut last: Option<&TensorEntry> = None;
    for tensor in order {
        let (start, end) = (tensor.range.start, tensor.range.end);
        match last {
            Some(other) if start < covered && start < end => faults.push(HeaderFault::Overlap {
                tensor: quoted(&tensor.name),
                start: start - data_start,
                other: quoted(&other.name),
                end: covered - data_start,
            }),
            _ if start > covered => {
                faults.push(HeaderFault::Hole { start: covered - data_start, end: start - data_start });
            }
            _ => {}
        }
        if end > covered {
            covered = end;
            last = Some(tensor);
        }
    }
    let covered = covered - data_start;
    if covered < data_bytes {
        faults.push(HeaderFault::Hole { start: covered, end: data_bytes });
    }
    faults
}

#[derive(Deserialize)]
#[serde(expecting = "an object with dtype, shape and data_offsets")]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The header as it stands, with names that occur twice.
struct RawHeader {
    tensors: Vec<(String, RawTensor)>,
    duplicates: Vec<String>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

/// Key under which a file keeps remarks for people.
const REMARKS: &str = "__metadata__";

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut header = RawHeader { tensors: Vec::new(), duplicates: Vec::new() };
        let mut seen: HashMap<String, u32> = HashMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == REMARKS {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let tensor = map.next_value::<RawTensor>()?;
            let count = seen.entry(name.clone()).or_insert(0);
            *count += 1;
            match *count {
                1 => header.tensors.push((name, tensor)),
                2 => header.duplicates.push(name),
                _ => {}
            }
        }
        Ok(header)
    }
}
