//! The files a spec consists of, and where a byte of them stands.

use crate::Diagnostic;
use ir::Span;
use std::io::Read;
use std::path::Path;

/// No spec needs more; a larger file is refused before it is read.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// What some editors begin a file with.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Files by index; [`Span::file`] is an index into this list.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    files: Vec<(String, String)>,
}

impl Sources {
    /// Adds a file and returns its index.
    pub fn add(&mut self, name: String, text: String) -> u32 {
        self.files.push((name, text));
        (self.files.len() - 1) as u32
    }

    /// Name of a file as the user wrote it.
    pub fn name(&self, file: u32) -> &str {
        self.files.get(file as usize).map_or("?", |f| &f.0)
    }

    /// Text of a file.
    pub fn text(&self, file: u32) -> &str {
        self.files.get(file as usize).map_or("", |f| &f.1)
    }

    /// Names of all files in order.
    pub fn names(&self) -> Vec<String> {
        self.files.iter().map(|f| f.0.clone()).collect()
    }

    /// One-based line and column (in characters) of a span's start.
    pub fn line_column(&self, span: Span) -> (usize, usize) {
        let text = self.text(span.file);
        let start = (span.start as usize).min(text.len());
        let before = text.get(..start).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
        (line, column)
    }
}

/// Reads a file as UTF-8, refusing absurd sizes.
pub(crate) fn read_text(path: &Path) -> Result<String, Box<Diagnostic>> {
    let refuse = |what: String| {
        Err(Box::new(
            Diagnostic::error("B0001", format!("`{}` cannot be read: {what}", path.display()))
                .help("name a spec file (.toml) or a directory that holds a config.json"),
        ))
    };
    match std::fs::metadata(path) {
        Ok(meta) if meta.len() > MAX_FILE_BYTES => {
            return refuse(format!("it has {} bytes, more than the {MAX_FILE_BYTES} allowed", meta.len()));
        }
        // A pipe may never end, and a device has no end.
        Ok(meta) if !meta.is_file() => return refuse("it is no regular file".to_owned()),
        Ok(_) => {}
        Err(e) => return refuse(e.to_string()),
    }
    let mut bytes = Vec::new();
    // A file may grow while it is read, so the reading itself is bounded.
    let read = std::fs::File::open(path).and_then(|f| f.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
    match read {
        Ok(n) if n as u64 > MAX_FILE_BYTES => refuse(format!("it has more than the {MAX_FILE_BYTES} bytes allowed")),
        Ok(_) => match String::from_utf8(bytes) {
            Ok(text) if text.starts_with(BYTE_ORDER_MARK) => {
                let fact =
                    format!("`{}` begins with a byte order mark, and neither TOML nor JSON has one", path.display());
                Err(Box::new(Diagnostic::error("B0001", fact).help("save it as UTF-8 without a byte order mark")))
            }
            Ok(text) => Ok(text),
            Err(e) => refuse(format!("byte {} is not UTF-8", e.utf8_error().valid_up_to())),
        },
        Err(e) => refuse(e.to_string()),
    }
}
