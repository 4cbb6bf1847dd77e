//! What can be wrong with a response template, and the one limit that an answer can hit.

use std::path::PathBuf;

/// A template that cannot be run, or an answer beyond the limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// The file cannot be read.
    #[error("X0201: {}: {error}; name a file that holds a response template", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system says.
        error: String,
    },
    /// The text is not JSON.
    #[error("X0202: the response template is not JSON: {error}; correct the text there")]
    Json {
        /// Where and why.
        error: String,
    },
    /// A key means something that this engine cannot run.
    #[error("X0203: response template, `{place}`: {problem}; {next}")]
    Template {
        /// Path of the key, with dots.
        place: String,
        /// Both facts.
        problem: String,
        /// What to do.
        next: String,
    },
    /// A pattern that cannot be run.
    #[error("X0204: response template, `{place}`: the pattern {problem}; {next}")]
    Pattern {
        /// Path of the key, with dots.
        place: String,
        /// What is wrong and where.
        problem: String,
        /// What to do.
        next: String,
    },
    /// One answer keeps more text undecided, or in one call, than is allowed.
    #[error("X0205: {what} holds {bytes} bytes, the limit is {limit}; only this answer ends, ask for a shorter one")]
    Limit {
        /// What grew.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The most that is allowed.
        limit: usize,
    },
}

impl ResponseError {
    pub(crate) fn template(place: &str, problem: impl Into<String>, next: impl Into<String>) -> Self {
        ResponseError::Template { place: place.to_owned(), problem: problem.into(), next: next.into() }
    }

    pub(crate) fn pattern(place: &str, problem: impl Into<String>, next: impl Into<String>) -> Self {
        ResponseError::Pattern { place: place.to_owned(), problem: problem.into(), next: next.into() }
    }
}
