//! Files of tokens, maps and tensors.

use crate::failure::Failure;
use device::{Tensor, TensorData};
use indexmap::IndexMap;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use std::path::Path;

#[derive(Deserialize)]
struct Tokens {
    tokens: Vec<Vec<u32>>,
}

/// A value of the map: one graph value, or several of which the first that exists is meant.
#[derive(Deserialize)]
#[serde(untagged)]
enum Meant {
    One(String),
    FirstOf(Vec<String>),
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|e| Failure::input(format!("R0401: `{}` cannot be read: {e}", path.display())))
}

/// Token ids by sequence.
pub fn read_tokens(path: &Path) -> Result<Vec<Vec<i32>>, Failure> {
    let tokens: Tokens = serde_json::from_slice(&read(path)?).map_err(|e| {
        Failure::input(format!("R0402: `{}` is not of the form {{\"tokens\": [[1, 2], …]}}: {e}", path.display()))
    })?;
    let narrow = |t: u32| {
        i32::try_from(t)
            .map_err(|_| Failure::input(format!("R0402: `{}` has token {t}, ids end at {}", path.display(), i32::MAX)))
    };
    tokens.tokens.into_iter().map(|s| s.into_iter().map(narrow).collect()).collect()
}

/// Name → graph values.
pub fn read_map(path: &Path) -> Result<IndexMap<String, Vec<String>>, Failure> {
    let map: IndexMap<String, Meant> = serde_json::from_slice(&read(path)?).map_err(|e| {
        Failure::input(format!(
            "R0403: `{}` is not of the form {{\"name\": \"layers.{{l}}.value\", …}}: {e}",
            path.display()
        ))
    })?;
    let list = |meant| match meant {
        Meant::One(value) => vec![value],
        Meant::FirstOf(values) => values,
    };
    Ok(map.into_iter().map(|(name, meant)| (name, list(meant))).collect())
}

/// All tensors of a safetensors file.
pub fn read_tensors(path: &Path) -> Result<IndexMap<String, Tensor>, Failure> {
    let bytes = read(path)?;
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|e| Failure::input(format!("R0410: `{}` is not a safetensors file: {e}", path.display())))?;
    let mut out = IndexMap::new();
    for (name, view) in file.iter() {
        let data = elements(&view).ok_or_else(|| {
            Failure::input(format!(
                "R0411: tensor `{name}` of `{}` is {:?}; convert it to F32, BF16 or I32",
                path.display(),
                view.dtype()
            ))
        })?;
        out.insert(name.to_owned(), Tensor { shape: view.shape().to_vec(), data });
    }
    Ok(out)
}

fn elements(view: &TensorView<'_>) -> Option<TensorData> {
    let bytes = view.data();
    Some(match view.dtype() {
        Dtype::F32 => TensorData::F32(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()),
        Dtype::BF16 => {
            let widen = |b: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
            TensorData::F32(bytes.as_chunks::<2>().0.iter().map(widen).collect())
        }
        Dtype::I32 => TensorData::I32(bytes.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect()),
        _ => return None,
    })
}

/// Writes tensors in the order of their names.
pub fn write_tensors(path: &Path, tensors: &IndexMap<String, Tensor>) -> Result<(), Failure> {
    let told = |e: &dyn std::fmt::Display| {
        Failure::output(format!("R0412: `{}` cannot be written: {e}; choose another `--out`", path.display()))
    };
    let encoded: Vec<(&String, Dtype, &[usize], Vec<u8>)> = tensors
        .iter()
        .map(|(name, tensor)| match &tensor.data {
            TensorData::F32(x) => {
                (name, Dtype::F32, &tensor.shape[..], x.iter().flat_map(|x| x.to_le_bytes()).collect())
            }
            TensorData::I32(x) => {
                (name, Dtype::I32, &tensor.shape[..], x.iter().flat_map(|x| x.to_le_bytes()).collect())
            }
        })
        .collect();
    let mut views = Vec::new();
    for (name, dtype, shape, bytes) in &encoded {
        views.push((name.as_str(), TensorView::new(*dtype, shape.to_vec(), bytes).map_err(|e| told(&e))?));
    }
    safetensors::serialize_to_file(views, None, path).map_err(|e| told(&e))
}
