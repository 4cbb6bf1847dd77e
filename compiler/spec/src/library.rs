//! Specs and block text that travel inside the compiler.

use include_dir::{Dir, include_dir};

static EMBEDDED: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../model-spec");

/// Base specs by name, and the std text.
#[derive(Clone, Debug)]
pub struct Library {
    specs: Vec<(String, String)>,
    std: Vec<(String, String)>,
}

impl Library {
    /// What this build of the compiler carries: `model-spec/*.toml` and `model-spec/std/*.blocks`.
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
}
