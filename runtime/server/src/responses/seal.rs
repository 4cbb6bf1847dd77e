//! Reasoning that a client keeps for the next request: `encrypted_content` of a reasoning item.
//!
//! The item shows the same text in the open, so nothing is hidden here; a check tells what this server wrote from what
//! another one did, whose text nobody but it can read. There is no key, so that any copy of the server reads it, also after
//! a restart.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use sha2::{Digest, Sha256};

/// What a sealed text begins with.
const PREFIX: &str = "rs1.";
/// Bytes of the check.
const CHECK_BYTES: usize = 8;

/// A text in its seal.
pub(crate) fn seal(text: &str) -> String {
    let mut bytes = check(text.as_bytes()).to_vec();
    bytes.extend_from_slice(text.as_bytes());
    format!("{PREFIX}{}", BASE64_STANDARD.encode(bytes))
}

/// The text that was sealed; `None` if the seal is not of this server's making.
pub(crate) fn unseal(sealed: &str) -> Option<String> {
    let bytes = BASE64_STANDARD.decode(sealed.strip_prefix(PREFIX)?).ok()?;
    let (mark, text) = bytes.split_at_checked(CHECK_BYTES)?;
    if check(text) != *mark {
        return None;
    }
    String::from_utf8(text.to_vec()).ok()
}

fn check(text: &[u8]) -> [u8; CHECK_BYTES] {
    let digest = Sha256::digest(text);
    std::array::from_fn(|i| digest.get(i).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_is_read_and_nothing_else() {
        for text in ["", "a", "Think of 東京.\n"] {
            assert_eq!(unseal(&seal(text)).as_deref(), Some(text));
        }
        let sealed = seal("some reasoning");
        for end in 0..sealed.len() {
            assert_eq!(unseal(&sealed[..end]), None, "{end}");
        }
        assert_eq!(unseal("gAAAAABo"), None);
        for at in PREFIX.len()..sealed.len() {
            let other = if sealed.as_bytes()[at] == b'A' { "B" } else { "A" };
            assert_eq!(unseal(&format!("{}{other}{}", &sealed[..at], &sealed[at + 1..])), None, "{at}");
        }
    }
}
