//! Reading and writing small safetensors files in tests: every float format as f32.

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::collections::BTreeMap;
use std::path::Path;

/// A tensor as numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbers {
    /// Shape.
    pub shape: Vec<usize>,
    /// Row-major values; integers as floats.
    pub data: Vec<f32>,
}

/// Reads every tensor of a file.
///
/// # Panics
/// If the file is not a safetensors file of known formats: tests have no other use for it.
pub fn read(path: &Path) -> BTreeMap<String, Numbers> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = SafeTensors::deserialize(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    file.iter()
        .map(|(name, view)| (name.to_owned(), Numbers { shape: view.shape().to_vec(), data: numbers(&view) }))
        .collect()
}

fn numbers(view: &TensorView<'_>) -> Vec<f32> {
    let data = view.data();
    let four = |c: &[u8]| [c[0], c[1], c[2], c[3]];
    match view.dtype() {
        Dtype::F32 => data.chunks_exact(4).map(|c| f32::from_le_bytes(four(c))).collect(),
        Dtype::BF16 => {
            data.chunks_exact(2).map(|c| f32::from_bits(u32::from(c[0]) << 16 | u32::from(c[1]) << 24)).collect()
        }
        Dtype::I32 => data.chunks_exact(4).map(|c| i32::from_le_bytes(four(c)) as f32).collect(),
        Dtype::I64 => data.chunks_exact(8).map(|c| i64::from_le_bytes(c.try_into().unwrap_or([0; 8])) as f32).collect(),
        Dtype::U8 => data.iter().map(|b| f32::from(*b)).collect(),
        Dtype::F8_E4M3 => data.iter().map(|b| numerics::e4m3_value(*b)).collect(),
        other => panic!("format {other:?} is not used in tests"),
    }
}

/// Writes f32 tensors.
///
/// # Panics
/// If the file cannot be written.
pub fn write(path: &Path, tensors: &BTreeMap<String, Numbers>) {
    let bytes: Vec<(String, Vec<u8>, Vec<usize>)> = tensors
        .iter()
        .map(|(name, t)| (name.clone(), t.data.iter().flat_map(|x| x.to_le_bytes()).collect(), t.shape.clone()))
        .collect();
    let views: Vec<(String, TensorView<'_>)> = bytes
        .iter()
        .map(|(name, data, shape)| {
            let view = TensorView::new(Dtype::F32, shape.clone(), data).unwrap_or_else(|e| panic!("{name}: {e}"));
            (name.clone(), view)
        })
        .collect();
    let file = safetensors::serialize(views, None).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    std::fs::write(path, file).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
