//! Tokens by their bytes, where a tokenizer's decoder does nothing but put them in a row: then a token's text needs no
//! neighbours, and an answer is decoded without looking back.

use crate::tokenizer::byte_of;

/// What every token stands for, one behind the other.
#[derive(Debug, Default)]
pub(crate) struct Spelling {
    bytes: Vec<u8>,
    /// Where each token's bytes end, by id.
    ends: Vec<u32>,
    /// Whether a token is left out where special ones are, by id.
    special: Vec<bool>,
}

impl Spelling {
    /// Tokens in the order of their ids, as the vocabulary writes them; `None` has no text. Absent where they have more than
    /// 4 GiB.
    pub fn of(words: impl Iterator<Item = (Option<String>, bool)>) -> Option<Spelling> {
        let mut spelling = Spelling::default();
        for (word, is_special) in words {
            let word = word.unwrap_or_default();
            // A word with a character that stands for no byte is its own text.
            let bytes: Option<Vec<u8>> = word.chars().map(byte_of).collect();
            spelling.bytes.extend(bytes.unwrap_or_else(|| word.into_bytes()));
            spelling.ends.push(u32::try_from(spelling.bytes.len()).ok()?);
            spelling.special.push(is_special);
        }
        Some(spelling)
    }

    /// A token's bytes; none for an unknown one.
    pub fn bytes(&self, id: u32, skip_special: bool) -> &[u8] {
        let id = id as usize;
        if skip_special && self.special.get(id) == Some(&true) {
            return &[];
        }
        let begin = id.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied());
        let place = begin.zip(self.ends.get(id).copied());
        place.and_then(|(begin, end)| self.bytes.get(begin as usize..end as usize)).unwrap_or_default()
    }
}

/// Bytes that become characters as they come. What can be no character is U+FFFD; the beginning of one waits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Characters {
    waiting: Vec<u8>,
}

impl Characters {
    /// Takes bytes; appends what is certain.
    pub fn push(&mut self, bytes: &[u8], text: &mut String) {
        if self.waiting.is_empty() {
            let rest = certain(bytes, text);
            self.waiting.extend_from_slice(rest);
            return;
        }
        self.waiting.extend_from_slice(bytes);
        let left = certain(&self.waiting, text).len();
        self.waiting.drain(..self.waiting.len() - left);
    }

    /// What waits becomes a broken character, if anything does.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.waiting).into_owned();
        self.waiting.clear();
        rest
    }
}

/// Appends the characters of some bytes; returns the beginning of one at their end.
fn certain<'b>(mut bytes: &'b [u8], text: &mut String) -> &'b [u8] {
    loop {
        let error = match std::str::from_utf8(bytes) {
            Ok(all) => {
                text.push_str(all);
                return &[];
            }
            Err(error) => error,
        };
        let (whole, rest) = bytes.split_at_checked(error.valid_up_to()).unwrap_or((bytes, &[]));
        text.push_str(std::str::from_utf8(whole).unwrap_or_default());
        let Some(broken) = error.error_len() else { return rest };
        text.push(char::REPLACEMENT_CHARACTER);
        bytes = rest.get(broken..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_become_what_the_whole_is() {
        let wholes: [&[u8]; 6] = [
            "aé東👩".as_bytes(),
            b"\xff\x80a",
            b"\xf0\x9f\x91",
            b"\xe6\x9d\xc3\xa9",
            b"\xf0\x9f\xf0\x9f\x91\xa9",
            b"\xed\xa0\x80z",
        ];
        for whole in wholes {
            for first in 0..=whole.len() {
                for second in first..=whole.len() {
                    let (mut characters, mut text) = (Characters::default(), String::new());
                    for piece in [&whole[..first], &whole[first..second], &whole[second..]] {
                        characters.push(piece, &mut text);
                    }
                    text += &characters.finish();
                    assert_eq!(text, String::from_utf8_lossy(whole), "{first}, {second}");
                }
            }
        }
    }

    #[test]
    fn words_are_bytes_or_their_own_text() {
        let words = [(Some("Ġa"), false), (None, false), (Some("<e x>"), true), (Some("ðŁ"), false)];
        let spelling =
            Spelling::of(words.into_iter().map(|(word, special)| (word.map(str::to_owned), special))).unwrap();
        let all: Vec<&[u8]> = (0..5).map(|id| spelling.bytes(id, false)).collect();
        assert_eq!(all, [b" a".as_slice(), b"", b"<e x>", b"\xf0\x9f", b""]);
        assert_eq!((spelling.bytes(2, true), spelling.bytes(0, true)), (b"".as_slice(), b" a".as_slice()));
    }
}
