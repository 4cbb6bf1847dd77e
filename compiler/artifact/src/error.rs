//! What can be wrong with an artifact, as codes that `beamc explain` knows.

use std::path::PathBuf;

/// Why an artifact was not loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No manifest.
    #[error("A0101: `{}` holds no manifest.json, so it is not an artifact\n  help: name the directory that `beamc compile -o DIR` wrote", dir.display())]
    NoManifest {
        /// Directory.
        dir: PathBuf,
    },
    /// The system refused a read.
    #[error("A0102: `{file}` cannot be read: {fact}\n  help: check the permissions of the artifact directory")]
    Unreadable {
        /// File.
        file: String,
        /// The system's words.
        fact: String,
    },
    /// Not a manifest of ours.
    #[error(
        "A0103: manifest.json has format `{found}`, an artifact has `{}`\n  help: name the directory that `beamc compile -o DIR` wrote",
        crate::FORMAT
    )]
    Format {
        /// What it says.
        found: String,
    },
    /// Another version of the schema.
    #[error(
        "A0104: the artifact has version {found}, this build reads version {}\n  help: compile the spec again with the `beamc` of this build",
        crate::VERSION
    )]
    Version {
        /// Its version.
        found: u64,
    },
    /// Not the JSON that was expected.
    #[error(
        "A0105: `{file}` is malformed at line {line}, column {column}: {fact}\n  help: compile the spec again; if a fresh artifact says the same, the compiler is at fault"
    )]
    Malformed {
        /// File.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong.
        fact: String,
    },
    /// A listed file is absent.
    #[error(
        "A0106: `{file}` is {expected} but not in the artifact\n  help: copy the whole directory, or compile the spec again"
    )]
    FileMissing {
        /// File.
        file: String,
        /// Who expects it.
        expected: &'static str,
    },
    /// Another size than the manifest's.
    #[error(
        "A0107: `{file}` has {found} bytes, the manifest says {expected}\n  help: copy the whole directory again, or compile the spec again"
    )]
    Size {
        /// File.
        file: String,
        /// Bytes it has.
        found: u64,
        /// Bytes it should have.
        expected: u64,
    },
    /// Another content than the manifest's.
    #[error(
        "A0108: `{file}` has SHA-256 {found}, the manifest says {expected}\n  help: copy the whole directory again, or compile the spec again; artifacts are not edited by hand"
    )]
    Hash {
        /// File.
        file: String,
        /// Hash it has.
        found: String,
        /// Hash it should have.
        expected: String,
    },
    /// Larger than any artifact.
    #[error(
        "A0109: `{file}` has {found} {unit}, at most {most} are read\n  help: this is not an artifact of ours; compile the spec again"
    )]
    TooLarge {
        /// File.
        file: String,
        /// How much there is.
        found: u64,
        /// Of what.
        unit: &'static str,
        /// How much is read.
        most: u64,
    },
    /// A path that may lead out of the directory.
    #[error(
        "A0110: the manifest names `{file}`, which {fact}\n  help: do not use this artifact; compile the spec again"
    )]
    UnsafePath {
        /// Path as the manifest has it, shortened.
        file: String,
        /// What is wrong.
        fact: &'static str,
    },
    /// Parts are missing by the compiler's own word.
    #[error(
        "A0111: the artifact is incomplete: {}\n  help: it is for reading only; compile for a target that has every kernel",
        list(missing)
    )]
    Incomplete {
        /// What is missing.
        missing: Vec<String>,
    },
    /// The parts contradict each other or themselves.
    #[error(
        "A0112: `{file}` does not hold together: {fact}\n  help: compile the spec again; if a fresh artifact says the same, the compiler is at fault"
    )]
    Structure {
        /// File.
        file: &'static str,
        /// Both facts.
        fact: String,
    },
}

/// Why an artifact was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The place is taken by something else.
    #[error("A0201: `{}` {fact}, so it is not replaced\n  help: choose another `-o` directory, or move that one away", dir.display())]
    Occupied {
        /// Directory.
        dir: PathBuf,
        /// What stands there.
        fact: String,
    },
    /// The system refused.
    #[error("A0202: `{}` cannot be {action}: {source}\n  help: check space and permissions of the directory that holds it", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// A text with a name that no artifact may hold.
    #[error(
        "A0203: a text is named `{path}`, which is {fact}\n  help: this is a defect of the compiler, please report it"
    )]
    TextPath {
        /// Name.
        path: String,
        /// What is wrong with it.
        fact: &'static str,
    },
    /// Data that would not read back.
    #[error(
        "A0204: {file} would not read back as written: {fact}\n  help: this is a defect of the compiler, please report it"
    )]
    NotReadable {
        /// File.
        file: &'static str,
        /// What is wrong.
        fact: String,
    },
}

impl LoadError {
    /// The code, such as `A0104`.
    pub fn code(&self) -> &'static str {
        match self {
            LoadError::NoManifest { .. } => "A0101",
            LoadError::Unreadable { .. } => "A0102",
            LoadError::Format { .. } => "A0103",
            LoadError::Version { .. } => "A0104",
            LoadError::Malformed { .. } => "A0105",
            LoadError::FileMissing { .. } => "A0106",
            LoadError::Size { .. } => "A0107",
            LoadError::Hash { .. } => "A0108",
            LoadError::TooLarge { .. } => "A0109",
            LoadError::UnsafePath { .. } => "A0110",
            LoadError::Incomplete { .. } => "A0111",
            LoadError::Structure { .. } => "A0112",
        }
    }
}

impl WriteError {
    /// The code, such as `A0201`.
    pub fn code(&self) -> &'static str {
        match self {
            WriteError::Occupied { .. } => "A0201",
            WriteError::Io { .. } => "A0202",
            WriteError::TextPath { .. } => "A0203",
            WriteError::NotReadable { .. } => "A0204",
        }
    }
}

/// Every code of this crate with what it means, for `beamc explain`.
pub const ERRORS: [(&str, &str); 16] = [
    (
        "A0101",
        "A directory was named as an artifact, but it has no manifest.json. Artifacts are written by `beamc compile`.",
    ),
    ("A0102", "The operating system refused to read a file of the artifact."),
    ("A0103", "There is a manifest.json, but it describes something else than an artifact."),
    (
        "A0104",
        "The schema of artifacts has changed between the compiler that wrote it and this runtime. An artifact is cheap: compile the spec again.",
    ),
    ("A0105", "A JSON file of the artifact is damaged or was edited. Line and column say where."),
    (
        "A0106",
        "A file that the manifest lists, or that every artifact must have, is absent: the copy was incomplete or a file was deleted.",
    ),
    ("A0107", "A file is shorter or longer than the manifest says: the copy was cut off, or the file was edited."),
    (
        "A0108",
        "A file has the right size but another content than when it was written: it is damaged or was edited. Nothing of such an artifact is used.",
    ),
    ("A0109", "A file or list is larger than anything a compiler writes. It is refused before memory is taken for it."),
    (
        "A0110",
        "A path in the manifest leads out of the artifact's directory, through a symbolic link, or to something that is not a file. An artifact holds plain files only.",
    ),
    (
        "A0111",
        "The compiler wrote the artifact although some kernels could not be made, so that it can be read. It cannot run.",
    ),
    (
        "A0112",
        "Every file is intact, yet its parts contradict each other: an index points nowhere, a shape does not fit. The verifier names both facts.",
    ),
    (
        "A0201",
        "`-o` names something that is neither a new path, an empty directory nor an artifact with nothing else in it. Nothing was changed.",
    ),
    (
        "A0202",
        "The operating system refused to create, write or rename a file. The old artifact, if there was one, is still in place.",
    ),
    ("A0203", "The compiler tried to write a text under a name that an artifact cannot hold."),
    ("A0204", "The compiler checked its own output before writing and found data that would not read back equal."),
];

/// What a code of this crate means.
pub fn explain(code: &str) -> Option<&'static str> {
    ERRORS.iter().find(|(known, _)| *known == code).map(|(_, text)| *text)
}

/// The words of the JSON reader without the names of our types.
pub(crate) fn malformed(file: &str, error: &serde_json::Error) -> LoadError {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or(&text);
    let mut words = Vec::new();
    let mut skip = false;
    for word in text.split(' ') {
        if skip {
            skip = false;
            continue;
        }
        let plain = match word {
            "struct" | "newtype" | "tuple" | "unit" => Some("an object of the schema"),
            "enum" => Some("a word of the schema"),
            _ => None,
        };
        skip = plain.is_some();
        words.push(plain.unwrap_or(word));
    }
    LoadError::Malformed {
        file: file.to_owned(),
        line: error.line(),
        column: error.column(),
        fact: shortened(&words.join(" ")),
    }
}

/// Text from a file as messages quote it: one line, not endless.
pub(crate) fn shortened(text: &str) -> String {
    const MOST: usize = 200;
    let clean: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).take(MOST).collect();
    if text.chars().count() > MOST { format!("{clean}…") } else { clean }
}

fn list(items: &[String]) -> String {
    const SHOWN: usize = 20;
    let shown: Vec<String> = items.iter().take(SHOWN).map(|i| shortened(i)).collect();
    match items.len().saturating_sub(SHOWN) {
        0 if shown.is_empty() => "it says so without naming a part".to_owned(),
        0 => shown.join("; "),
        more => format!("{}; and {more} more", shown.join("; ")),
    }
}
