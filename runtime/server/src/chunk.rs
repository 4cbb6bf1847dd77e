//! JSON that is written as text: chunks of a stream differ in a few words, and to make values of them first costs more than all
//! else about them.

use std::io::{self, Write};

/// Bytes that a chunk needs besides the text that all its fellows begin with.
pub(crate) const CHUNK_BYTES: usize = 256;

/// Appends a text with its quotation marks.
pub(crate) fn quote(json: &mut String, text: &str) {
    // Writing to memory cannot fail.
    let _ = serde_json::to_writer(Into(json), text);
}

/// Takes the characters of a serialiser, which come whole.
struct Into<'a>(&'a mut String);

impl Write for Into<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        self.0.push_str(text);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_as_values_are() {
        for text in ["", "plain", "\"\\\n\u{0}\u{1f}\u{7f}", "é東👩\u{2028}", "a\tb</script>"] {
            let mut json = String::from("x:");
            quote(&mut json, text);
            assert_eq!(json, format!("x:{}", serde_json::json!(text)));
        }
    }
}
