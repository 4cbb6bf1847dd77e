//! Specs and block text that travel inside the compiler.

use include_dir::{Dir, include_dir};
use ir::{StoredFormat, StoredInputs, StoredNames};

static EMBEDDED: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../model-spec");

/// Base specs by name, and the std text.
#[derive(Clone, Debug)]
pub struct Library {
    specs: Vec<(String, String)>,
    std: Vec<(String, String)>,
    stored: String,
}

/// What quantisers write for a format, where a spec says nothing else.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Written {
    /// What products take in.
    pub inputs: StoredInputs,
    /// Ends of tensor names.
    pub names: StoredNames,
}

impl Library {
    /// What this build of the compiler carries: `model-spec/*.toml`, `model-spec/std/*.blocks` and `std/stored.toml`.
    pub fn embedded() -> Self {
        let texts = |dir: &Dir<'_>, extension: &str| {
            let mut found: Vec<(String, String)> = dir
                .files()
                .filter(|f| f.path().extension().is_some_and(|e| e == extension))
                .filter_map(|f| {
                    let stem = f.path().file_stem()?.to_str()?.to_owned();
                    Some((stem, f.contents_utf8()?.to_owned()))
                })
                .collect();
            found.sort();
            found
        };
        Library {
            specs: texts(&EMBEDDED, "toml"),
            std: EMBEDDED.get_dir("std").map(|d| texts(d, "blocks")).unwrap_or_default(),
            stored: EMBEDDED.get_file("std/stored.toml").and_then(|f| f.contents_utf8()).unwrap_or_default().to_owned(),
        }
    }

    /// A base spec by name.
    pub fn spec(&self, name: &str) -> Option<&str> {
        self.specs.iter().find(|(n, _)| n == name).map(|(_, t)| t.as_str())
    }

    /// Base specs: name and text.
    pub fn specs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.specs.iter().map(|(n, t)| (n.as_str(), t.as_str()))
    }

    /// Std block texts: file stem and text.
    pub fn std(&self) -> impl Iterator<Item = (&str, &str)> {
        self.std.iter().map(|(n, t)| (n.as_str(), t.as_str()))
    }

    /// A table of what quantisers write.
    fn quantisers(&self, name: &str) -> Option<toml::Table> {
        let mut all: toml::Table = toml::from_str(&self.stored).ok()?;
        match all.remove(name)? {
            toml::Value::Table(table) => Some(table),
            _ => None,
        }
    }

    /// Ends of the names of scales of cached rows: `k` or `v`.
    pub(crate) fn cached(&self, of: &str) -> Vec<String> {
        let table = self.quantisers("kv").unwrap_or_default();
        let names = table.get(of).and_then(toml::Value::as_array).into_iter().flatten();
        names.filter_map(|n| n.as_str().map(str::to_owned)).collect()
    }

    /// What quantisers write for a format.
    pub(crate) fn written(&self, format: StoredFormat) -> Option<Written> {
        let table = self.quantisers(format.word())?;
        let text = |key: &str| table.get(key).and_then(toml::Value::as_str).map(str::to_owned);
        let names =
            StoredNames { codes: text("codes")?, scale: text("scale")?, global: text("global"), input: text("input") };
        Some(Written { inputs: inputs(&text("inputs")?)?, names })
    }
}

/// The inputs that a word of a spec means.
pub(crate) fn inputs(word: &str) -> Option<StoredInputs> {
    match word {
        "plain" => Some(StoredInputs::Plain),
        "token" => Some(StoredInputs::Token),
        "block" => Some(StoredInputs::Block),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_what_quantisers_write() {
        for format in StoredFormat::ALL {
            let written = Library::embedded().written(format).unwrap_or_else(|| panic!("{}", format.word()));
            assert_eq!(written.names.input.is_some(), written.inputs == StoredInputs::Block);
            assert_eq!(written.names.global.is_some(), format == StoredFormat::Nvfp4);
        }
        assert!(["k", "v"].iter().all(|of| Library::embedded().cached(of).len() == 2));
    }
}
