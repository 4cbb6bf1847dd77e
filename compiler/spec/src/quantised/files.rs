//! The files of tensors beside a config: one, or those that an index lists.

use super::tensors::start;
use crate::config::Places;
use crate::{Diagnostic, Sources};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// The file of a checkpoint that is in one.
const SINGLE: &str = "model.safetensors";
/// The list of files of one that is in several.
const INDEX: &str = "model.safetensors.index.json";
/// Longest index.
const MOST_BYTES: u64 = 100_000_000;

/// The files of tensors beside a config; none where it stands alone, and nothing at all if an index says what cannot be, which is
/// told. A spec is compiled without weights, so that all files may be absent, but not some.
pub(crate) fn tensor_files(config: &Path, sources: &mut Sources, out: &mut Vec<Diagnostic>) -> Option<Vec<PathBuf>> {
    let single = config.with_file_name(SINGLE);
    let path = config.with_file_name(INDEX);
    if single.is_file() {
        return Some(vec![single]);
    }
    if !path.is_file() {
        return Some(Vec::new());
    }
    let Some(text) = start(&path, MOST_BYTES).and_then(|bytes| String::from_utf8(bytes).ok()) else {
        let d = Diagnostic::error("B0415", format!("`{INDEX}` beside the config cannot be read as text"));
        out.push(d.help("fetch it again, or compile a folder that has only the config"));
        return None;
    };
    let mut refuse = |message: String, key: &str, label: &str| {
        let file = sources.add(path.display().to_string(), text.clone());
        let d = Diagnostic::error("B0415", message).at(Places::read(&text, file).key(key), label);
        out.push(d.help("fetch the checkpoint again, or compile a folder that has only the config"));
        None
    };
    let index = serde_json::from_str::<Value>(&text);
    let map = index.as_ref().ok().and_then(|index| index.get("weight_map")).and_then(Value::as_object);
    let Some(map) = map else {
        let fact = index.as_ref().err().map_or_else(|| "it has no weight_map".to_owned(), ToString::to_string);
        return refuse(format!("`{INDEX}` is no index of files of tensors: {fact}"), "", "this file");
    };
    let mut files: BTreeMap<&str, (PathBuf, Vec<&str>)> = BTreeMap::new();
    for (tensor, file) in map {
        let Some(name) = file.as_str() else {
            let message = format!("`{INDEX}` is no index of files of tensors: `{tensor}` is in {file}");
            return refuse(message, &format!("weight_map.{tensor}"), "here");
        };
        if !is_plain_name(name) {
            let message = format!("`{INDEX}` puts tensor `{tensor}` into `{name}`, which is no file of its folder");
            return refuse(message, &format!("weight_map.{tensor}"), "here");
        }
        files.entry(name).or_insert_with(|| (config.with_file_name(name), Vec::new())).1.push(tensor);
    }
    let there = files.values().filter(|(path, _)| path.is_file()).count();
    let absent = files.iter().find(|(_, (path, _))| there > 0 && !path.is_file());
    if let Some((name, (_, tensors))) = absent {
        let first = tensors.first().copied().unwrap_or_default();
        let message = format!(
            "`{name}` is not there, and `{INDEX}` puts {} tensors into it, such as `{first}`; {there} of its {} files are there",
            tensors.len(),
            files.len()
        );
        return refuse(message, &format!("weight_map.{first}"), "here");
    }
    let files = files.into_values().map(|(path, _)| path);
    Some(files.filter(|_| there > 0).collect())
}

/// Whether a name stays in its folder: a single ordinary component on every system.
fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(only)), None) if only == name)
        && !name.contains(['/', '\\', ':', '\0'])
}
