//! Which tensors are matrices of products, seen from the checkpoint alone.
//!
//! A matrix is a tensor of two dimensions whose name ends in [`WEIGHT`], in the format that most of the checkpoint has, in a layer:
//! somewhere in its name stands a number. It is none if its module has other tensors than a weight and a bias, or as many rows as
//! there are numbered modules beside it: then it picks among them (a router), and public quantisers leave it.

use crate::failure::Failure;
use device::checkpoint::{Checkpoint, FileDType, TensorEntry};
use std::collections::{BTreeMap, BTreeSet};

/// End of the names of matrices.
pub const WEIGHT: &str = ".weight";
/// The only other tensor that a module with a matrix has.
const BIAS: &str = ".bias";

/// A matrix to be made narrow.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Name of the module: that of its tensors without their last part.
    pub module: String,
    /// Tensor that holds it now, and its first element there.
    pub tensor: String,
    pub first: u64,
    pub rows: u64,
    pub columns: u64,
    /// Matrices of one unit have one number: they take the same input.
    pub unit: usize,
    /// Place in [`Found::inputs`], where inputs are known.
    pub input: Option<usize>,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// Matrices, in the order of their modules' names.
    pub matrices: Vec<Matrix>,
    /// Modules whose matrix stays as it is.
    pub plain: Vec<String>,
    /// Values that matrices take in, by full name.
    pub inputs: Vec<String>,
    /// Whether most of the checkpoint is bf16.
    pub in_bf16: bool,
    /// What the configuration says of modules that stay, where it may be said shorter than by their names.
    pub said: Vec<String>,
}

/// The format that most bytes of the checkpoint have. A checkpoint that is narrow already is refused.
pub fn main_dtype(checkpoint: &Checkpoint) -> Result<FileDType, Failure> {
    let mut bytes: BTreeMap<FileDType, u64> = BTreeMap::new();
    for (_, entry) in checkpoint.tensors() {
        *bytes.entry(entry.dtype.clone()).or_default() += entry.range.end - entry.range.start;
    }
    match bytes.into_iter().max_by_key(|(_, bytes)| *bytes) {
        Some((dtype @ (FileDType::F32 | FileDType::Bf16 | FileDType::F16), _)) => Ok(dtype),
        Some((other, bytes)) => Err(Failure::input(format!(
            "R0703: most of the checkpoint, {bytes} bytes, is {other}, and quantising starts from BF16, F16 or F32; use the unquantised checkpoint"
        ))),
        None => Err(Failure::input(
            "R0703: the checkpoint has no tensor, and quantising needs some; use another checkpoint",
        )),
    }
}

fn is_number(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit())
}

/// A name without its last part.
fn parent(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(parent, _)| parent)
}

/// How many numbered modules, or slices of one tensor, stand beside a module: lists by their parent.
fn lists(checkpoint: &Checkpoint) -> BTreeMap<String, BTreeSet<u64>> {
    let mut numbered: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut lengths: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for (_, entry) in checkpoint.tensors() {
        for (at, part) in parts(&entry.name) {
            if is_number(part) && at > 0 {
                numbered.entry(&entry.name[..at - 1]).or_default().insert(part);
            }
        }
        if let [slices, _, _] = entry.shape[..] {
            let module = if entry.name.ends_with(WEIGHT) { parent(&entry.name) } else { &entry.name };
            lengths.entry(parent(parent(module)).to_owned()).or_default().insert(slices);
        }
    }
    for (list, numbers) in numbered {
        lengths.entry(parent(list).to_owned()).or_default().insert(numbers.len() as u64);
    }
    lengths
}

/// Parts of a name with their places.
fn parts(name: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    name.split('.').map(move |part| {
        let place = at;
        at += part.len() + 1;
        (place, part)
    })
}

/// Finds the matrices.
pub fn find(checkpoint: &Checkpoint) -> Result<Found, Failure> {
    let main = main_dtype(checkpoint)?;
    let mut modules: BTreeMap<&str, Vec<&TensorEntry>> = BTreeMap::new();
    for (_, entry) in checkpoint.tensors() {
        modules.entry(parent(&entry.name)).or_default().push(entry);
    }
    let lists = lists(checkpoint);
    let mut found = Found { in_bf16: main == FileDType::Bf16, ..Found::default() };
    let mut units: BTreeMap<(String, u64), usize> = BTreeMap::new();
    for (module, entries) in &modules {
        if let Some(whole) =
            entries.iter().find(|e| e.shape.len() == 3 && e.dtype == main && e.shape.iter().all(|n| *n > 1))
        {
            return Err(Failure::input(format!(
                "R0709: `{}` holds {} matrices in one tensor, and public quantisers write one by one; pass `--artifact`, which knows their names",
                whole.name, whole.shape[0]
            )));
        }
        let Some(entry) = entries.iter().find(|e| e.shape.len() == 2 && e.name.ends_with(WEIGHT)) else { continue };
        let only = entries.iter().all(|e| e.name.ends_with(WEIGHT) || e.name.ends_with(BIAS));
        let beside = lists.get(parent(module));
        let picks = beside.is_some_and(|lengths| lengths.contains(&entry.shape[0]));
        let in_layer = module.split('.').any(is_number);
        if !only || picks || !in_layer || entry.dtype != main || entry.shape.contains(&0) {
            found.plain.push((*module).to_owned());
            continue;
        }
        let next = units.len();
        found.matrices.push(Matrix {
            module: (*module).to_owned(),
            tensor: entry.name.clone(),
            first: 0,
            rows: entry.shape[0],
            columns: entry.shape[1],
            unit: *units.entry((parent(module).to_owned(), entry.shape[1])).or_insert(next),
            input: None,
        });
    }
    found.said = found.plain.clone();
    Ok(found)
}
