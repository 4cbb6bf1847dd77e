//! A key that clients must bring. It is compared and never printed.

use std::fmt;

/// A key. Its debug form says only that there is one.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(String);

impl Key {
    /// The key itself, to compare another one with.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Key {
        Key(text.to_owned())
    }
}

impl From<String> for Key {
    fn from(text: String) -> Key {
        Key(text)
    }
}
