//! What can be wrong with the text files of a model directory.

use crate::TemplateError;
use std::path::{Path, PathBuf};

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The file cannot be read.
    #[error("X0101: {}: {error}; it belongs to the model directory, copy it from where the weights came from", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The file is not JSON.
    #[error("X0102: {} is not JSON: {error}; the file is damaged or cut short, copy it again", .file.display())]
    Json {
        /// The file.
        file: PathBuf,
        /// Where and why.
        error: serde_json::Error,
    },
    /// A value in it has the wrong kind.
    #[error("X0103: `{key}` in {} is {found}, expected {expected}; correct the file or remove the key", .file.display())]
    Value {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
        /// What is there.
        found: String,
        /// What may be there.
        expected: &'static str,
    },
    /// The tokenizer's description does not describe one.
    #[error("X0104: {} describes no tokenizer: {error}; it must be a complete `tokenizer.json`", .file.display())]
    Tokenizer {
        /// The file.
        file: PathBuf,
        /// Why.
        error: String,
    },
    /// The chat template does not parse.
    #[error("X0105: {}: {error}", .file.display())]
    Template {
        /// The file that holds it.
        file: PathBuf,
        /// Why.
        error: TemplateError,
    },
    /// The response template in `tokenizer_config.json` cannot be run.
    #[error(transparent)]
    Response(#[from] crate::response::ResponseError),
    /// Text cannot be encoded, or ids cannot be decoded.
    #[error("X0106: the tokenizer cannot work on this input: {0}; send other text")]
    Input(String),
}

/// Reads a file of the directory; `None` if there is none.
pub(crate) fn read_if_present(file: &Path) -> Result<Option<String>, TextError> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(TextError::Read { file: file.to_owned(), error }),
    }
}
