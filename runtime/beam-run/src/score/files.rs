//! Files of tokens, maps and tensors.

use crate::failure::Failure;
use device::{Tensor, TensorData};
use indexmap::IndexMap;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use std::path::Path;

#[derive(Deserialize)]
#[serde(expecting = "an object with the key `tokens`")]
struct Tokens {
    tokens: Vec<Vec<u32>>,
    /// Tokens of each sequence that are given and not scored.
    #[serde(default)]
    prompts: Vec<usize>,
}

/// A value of the map: one graph value, or several of which the first that exists is meant.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a graph value, or a list of graph values")]
enum Meant {
    One(String),
    FirstOf(Vec<String>),
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|e| Failure::input(format!("R0401: `{}` cannot be read: {e}", path.display())))
}

/// Token ids by sequence.
pub fn read_tokens(path: &Path) -> Result<Vec<Vec<i32>>, Failure> {
    read_prompted(path).map(|(tokens, _)| tokens)
}

/// Token ids by sequence, and how many of each are its prompt: 0 where the file does not say.
pub fn read_prompted(path: &Path) -> Result<(Vec<Vec<i32>>, Vec<usize>), Failure> {
    let tokens: Tokens = serde_json::from_slice(&read(path)?).map_err(|e| {
        Failure::input(format!("R0402: `{}` is not of the form {{\"tokens\": [[1, 2], …]}}: {e}", path.display()))
    })?;
    let narrow = |t: u32| {
        i32::try_from(t)
            .map_err(|_| Failure::input(format!("R0402: `{}` has token {t}, ids end at {}", path.display(), i32::MAX)))
    };
    let mut prompts = tokens.prompts;
    if !prompts.is_empty() && prompts.len() != tokens.tokens.len() {
        return Err(Failure::input(format!(
            "R0416: `{}` has {} sequences and the lengths of {} prompts; give one for each, or none",
            path.display(),
            tokens.tokens.len(),
            prompts.len()
        )));
    }
    prompts.resize(tokens.tokens.len(), 0);
    let sequences: Result<Vec<Vec<i32>>, Failure> =
        tokens.tokens.into_iter().map(|s| s.into_iter().map(narrow).collect()).collect();
    Ok((sequences?, prompts))
}

/// Name → graph values.
pub fn read_map(path: &Path) -> Result<IndexMap<String, Vec<String>>, Failure> {
    let map: IndexMap<String, Meant> = serde_json::from_slice(&read(path)?).map_err(|e| {
        Failure::input(format!(
            "R0403: `{}` is not of the form {{\"name\": \"layers.{{l}}.value\", …}}: {e}",
            path.display()
        ))
    })?;
    let list = |(name, meant)| match meant {
        Meant::One(value) => Ok((name, vec![value])),
        Meant::FirstOf(values) if values.is_empty() => Err(Failure::input(format!(
            "R0403: `{}` gives `{name}` an empty list, at least one graph value is needed; name one or remove `{name}`",
            path.display()
        ))),
        Meant::FirstOf(values) => Ok((name, values)),
    };
    map.into_iter().map(list).collect()
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

/// Refuses to replace what is no regular file, such as a device.
pub fn check_writable(path: &Path) -> Result<(), Failure> {
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            let kind = if found.is_dir() { "a directory" } else { "no regular file" };
            let shown = path.display();
            Err(Failure::output(format!("R0415: `{shown}` is {kind}, `--out` needs a file; choose another `--out`")))
        }
        _ => Ok(()),
    }
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
    check_writable(path)?;
    // A link stays a link: what it leads to is replaced.
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.new-{}", std::process::id()));
    let written =
        write_beside(&beside, views).and_then(|()| std::fs::rename(&beside, &path).map_err(|e| e.to_string()));
    if written.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&beside);
    }
    written.map_err(|e| told(&e))
}

/// Writes a new file with the permissions that any new file gets; the library's own are for its owner alone.
fn write_beside(beside: &Path, views: Vec<(&str, TensorView<'_>)>) -> Result<(), String> {
    let permissions =
        std::fs::File::create(beside).and_then(|f| f.metadata()).map_err(|e| e.to_string())?.permissions();
    safetensors::serialize_to_file(views, None, beside).map_err(|e| e.to_string())?;
    std::fs::set_permissions(beside, permissions).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(result: Result<impl Sized, Failure>) -> String {
        result.map(drop).unwrap_err().text
    }

    #[test]
    fn forms_are_told_in_words_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.json");
        let map = |content: &str| {
            std::fs::write(&file, content).unwrap();
            text(read_map(&file))
        };
        assert!(map(r#"{"a": 5}"#).contains("a graph value, or a list of graph values"));
        assert!(map(r#"{"a": []}"#).contains("`a` an empty list"));
        std::fs::write(&file, "5").unwrap();
        assert!(text(read_tokens(&file)).contains("an object with the key `tokens`"));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_is_written_like_any_other_and_a_device_never_replaced() {
        use std::os::unix::fs::{FileTypeExt, PermissionsExt};
        let dir = tempfile::tempdir().unwrap();
        let (file, plain) = (dir.path().join("out"), dir.path().join("plain"));
        std::fs::write(&plain, "").unwrap();
        let tensors = IndexMap::from([("x".to_owned(), Tensor { shape: vec![1], data: TensorData::I32(vec![7]) })]);
        for _ in 0..2 {
            write_tensors(&file, &tensors).unwrap();
            let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode(&file), mode(&plain));
            assert_eq!(read_tensors(&file).unwrap(), tensors);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left beside it");
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(text(write_tensors(&socket, &tensors)).starts_with("R0415"));
        assert!(std::fs::metadata(&socket).unwrap().file_type().is_socket());
        assert!(text(write_tensors(dir.path(), &tensors)).contains("a directory"));
    }
}
