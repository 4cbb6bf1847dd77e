//! How a step of the front end ends without a result: with a finding, or because of one that was told already.
//!
//! A name whose statement was refused stays known and has no meaning; what reads it stops in silence. So one mistake is
//! one error, and everything that does not depend on it is still checked.

use crate::Diagnostic;

/// Why there is no result.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A finding that nobody was told yet.
    New(Box<Diagnostic>),
    /// It follows from something told already.
    Told,
}

impl From<Diagnostic> for Stop {
    fn from(d: Diagnostic) -> Self {
        Stop::New(Box::new(d))
    }
}

/// The result of a step.
pub(crate) type Res<T> = Result<T, Stop>;

/// Ends a step with a finding.
pub(crate) fn refuse<T>(d: Diagnostic) -> Res<T> {
    Err(d.into())
}
