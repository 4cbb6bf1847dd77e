//! The form of a target file, and its reading: unknown keys first, so that a misspelt key is named as such.

use crate::error::{TargetError, nearest};
use crate::hardware;
use indexmap::IndexMap;
use serde::Deserialize;

/// No target needs more; a larger file is refused before it is read.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The text of a file, or why there is none. A pipe may never end and a device has no end, so both are refused.
pub(crate) fn text(path: &str) -> Result<String, String> {
    let meta = std::fs::metadata(path).map_err(|e| e.to_string())?;
    if !meta.is_file() {
        return Err("it is no regular file".to_owned());
    }
    if meta.len() > MAX_FILE_BYTES {
        return Err(format!("it has {} bytes, more than the {MAX_FILE_BYTES} allowed", meta.len()));
    }
    std::fs::read_to_string(path).map_err(|e| e.to_string())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TargetFile {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) arch: String,
    pub(crate) act: Option<String>,
    pub(crate) products: Option<String>,
    #[serde(default)]
    pub(crate) meshes: Vec<String>,
    #[serde(default)]
    pub(crate) relaxations: Vec<String>,
    #[serde(default)]
    pub(crate) options: IndexMap<String, toml::Value>,
    #[serde(default)]
    pub(crate) formats: FormatsFile,
    pub(crate) kv: KvFile,
    #[serde(default)]
    pub(crate) bucket: Vec<BucketFile>,
    #[serde(default)]
    pub(crate) limits: LimitsFile,
    #[serde(default)]
    pub(crate) fuse: crate::Fuse,
    #[serde(default)]
    pub(crate) hardware: IndexMap<String, FactFile>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FormatsFile {
    pub(crate) fp8: Option<String>,
    pub(crate) nvfp4: Option<String>,
    pub(crate) assume: Option<String>,
    #[serde(default)]
    pub(crate) convert: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KvFile {
    pub(crate) page_tokens: u64,
    pub(crate) dtype: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BucketFile {
    pub(crate) entry: Option<String>,
    pub(crate) rows: toml::Value,
    pub(crate) tokens: u64,
    pub(crate) sequences: Option<u64>,
    pub(crate) wanted: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitsFile {
    pub(crate) arena_bytes: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FactFile {
    pub(crate) value: f64,
    pub(crate) source: String,
}

/// Keys per table; `""` is the file itself. The list repeats the structures above because only it can suggest.
const KEYS: [(&str, &[&str]); 7] = [
    (
        "",
        &[
            "extends",
            "name",
            "description",
            "arch",
            "act",
            "products",
            "meshes",
            "relaxations",
            "options",
            "formats",
            "kv",
            "bucket",
            "limits",
            "fuse",
            "hardware",
        ],
    ),
    ("formats", &["fp8", "nvfp4", "assume", "convert"]),
    ("kv", &["page_tokens", "dtype"]),
    ("bucket", &["entry", "rows", "tokens", "sequences", "wanted"]),
    ("limits", &["arena_bytes"]),
    ("fuse", &crate::fuse::KEYS),
    ("fact", &["value", "source"]),
];

/// Chains of `extends` longer than this are taken for a circle.
const MAX_CHAIN: usize = 8;

/// Reads the text of a target file, laid over the one that it extends; `file` names it in errors, `depth` counts the files
/// that led here.
pub(crate) fn read(text: &str, file: &str, depth: usize) -> Result<TargetFile, TargetError> {
    let own: toml::Table = toml::from_str(text).map_err(|e| form_error(text, file, &e))?;
    if !own.contains_key("extends") {
        unknown_keys(&own, file)?;
        return toml::from_str(text).map_err(|e| form_error(text, file, &e));
    }
    let merged = merged(own, file, depth)?;
    TargetFile::deserialize(merged).map_err(|e| form_error("", file, &e))
}

/// A table with what it extends beneath it, without `extends`.
fn merged(mut own: toml::Table, file: &str, depth: usize) -> Result<toml::Table, TargetError> {
    unknown_keys(&own, file)?;
    let Some(base) = own.remove("extends") else { return Ok(own) };
    let wrong = |message: String, help: &str| TargetError {
        code: "T0107",
        place: file.to_owned(),
        message,
        help: help.to_owned(),
    };
    let Some(base) = base.as_str() else {
        return Err(wrong(format!("`extends` is {base}"), "name one target, or the path of a target file"));
    };
    if depth >= MAX_CHAIN {
        return Err(wrong(
            format!("{MAX_CHAIN} targets extend each other, and `{base}` is one more"),
            "let one of them stand alone",
        ));
    }
    // A path is meant from the file that names it.
    let beside =
        std::path::Path::new(file).parent().map(|folder| folder.join(base)).filter(|_| base.ends_with(".toml"));
    let place = beside.map_or_else(|| base.to_owned(), |path| path.display().to_string());
    let (text, base_file) = crate::target::text_of(&place)
        .map_err(|e| wrong(format!("`extends` names `{base}`, and {}", e.message), &e.help))?;
    let beneath: toml::Table = toml::from_str(&text).map_err(|e| form_error(&text, &base_file, &e))?;
    let mut all = merged(beneath, &base_file, depth + 1)?;
    for (key, value) in own {
        match (all.get_mut(&key), value) {
            (Some(toml::Value::Table(below)), toml::Value::Table(above)) => below.extend(above),
            (_, value) => drop(all.insert(key, value)),
        }
    }
    Ok(all)
}

fn unknown_keys(table: &toml::Table, file: &str) -> Result<(), TargetError> {
    let known = |name: &str| KEYS.iter().find(|(t, _)| *t == name).map_or(&[][..], |(_, keys)| keys);
    known_keys(table, "", known(""), file)?;
    for (key, value) in table {
        match value {
            toml::Value::Table(inner) if key == "hardware" => {
                known_keys(inner, key, &hardware::KEYS.map(|(key, ..)| key), file)?;
                for fact in inner.values().filter_map(toml::Value::as_table) {
                    known_keys(fact, key, known("fact"), file)?;
                }
            }
            // The keys are the spec's.
            _ if key == "options" => {}
            toml::Value::Table(inner) => known_keys(inner, key, known(key), file)?,
            toml::Value::Array(list) => {
                for inner in list.iter().filter_map(toml::Value::as_table) {
                    known_keys(inner, key, known(key), file)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Refuses the first key of a table that is not among the known ones, with the one that may have been meant.
pub(crate) fn known_keys(table: &toml::Table, name: &str, known: &[&str], file: &str) -> Result<(), TargetError> {
    let Some(key) = table.keys().find(|key| !known.contains(&key.as_str())) else { return Ok(()) };
    let shown = if name.is_empty() { format!("`{key}`") } else { format!("`{key}` in `{name}`") };
    let help = match nearest(key, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known keys are {}", known.join(", ")),
    };
    let message = format!("no key of a target file is called {shown}");
    Err(TargetError { code: "T0104", place: file.to_owned(), message, help })
}

fn form_error(text: &str, file: &str, error: &toml::de::Error) -> TargetError {
    let place = match error.span() {
        Some(span) => {
            let before = text.get(..span.start).unwrap_or("");
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
            format!("{file}:{line}:{column}")
        }
        None => file.to_owned(),
    };
    let help = "compare with a built-in target, listed by `beamc targets`".to_owned();
    TargetError { code: "T0103", place, message: error.message().to_owned(), help }
}
