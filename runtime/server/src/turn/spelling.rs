//! Which control tokens in an answer's text are tokens, and which are only spelt by others: a response template means the
//! tokens, and an answer may talk about them.

use crate::controls::Controls;
use std::collections::VecDeque;
use std::sync::Arc;

/// The state of one answer.
#[derive(Debug)]
pub(super) struct Spelling {
    controls: Arc<Controls>,
    /// Bytes of text that tokens have brought.
    brought: usize,
    /// Where control tokens end in it that have not been read.
    real: VecDeque<usize>,
    /// Bytes that have been read, and the last of them.
    read: usize,
    tail: String,
}

impl Spelling {
    pub fn new(controls: Arc<Controls>) -> Spelling {
        Spelling { controls, brought: 0, real: VecDeque::new(), read: 0, tail: String::new() }
    }

    /// A token brought text; absent: the end did.
    pub fn bring(&mut self, id: Option<u32>, text: &str) {
        self.brought += text.len();
        if id.and_then(|id| self.controls.text(id)).is_some_and(|control| text.ends_with(control)) {
            self.real.push_back(self.brought);
        }
    }

    /// The text is read next: the places in it of the last characters of control tokens that are only spelt.
    pub fn spelt(&mut self, text: &str) -> Vec<usize> {
        let mut spelt = Vec::new();
        for (at, c) in text.char_indices() {
            self.tail.push(c);
            self.read += c.len_utf8();
            if self.controls.at_end(&self.tail).is_none() {
                continue;
            }
            while self.real.front().is_some_and(|end| *end < self.read) {
                self.real.pop_front();
            }
            if self.real.front() != Some(&self.read) {
                spelt.push(at);
            }
        }
        let surplus = self.tail.len().saturating_sub(self.controls.longest());
        let cut = (surplus..=self.tail.len()).find(|at| self.tail.is_char_boundary(*at)).unwrap_or(0);
        self.tail.drain(..cut);
        spelt
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::TokenBytes;

    #[test]
    fn what_is_spelt_is_told_from_tokens_at_any_split() {
        let token = |text: &str, special| TokenBytes { bytes: text.as_bytes().to_vec(), special };
        let controls = Arc::new(Controls::of(&[token("<e>", true), token("é", false)]));
        let brought = [(None, "a <"), (None, "e> é<"), (Some(0), "<e>"), (None, "<e>")];
        let whole: String = brought.iter().map(|(_, text)| *text).collect();
        for split in (0..whole.len()).filter(|at| whole.is_char_boundary(*at)) {
            let mut spelling = Spelling::new(controls.clone());
            brought.iter().for_each(|(id, text)| spelling.bring(*id, text));
            let (a, b) = whole.split_at(split);
            let mut found = spelling.spelt(a);
            found.extend(spelling.spelt(b).into_iter().map(|at| at + split));
            assert_eq!(found, [4, whole.len() - 1], "{split}");
        }
    }
}
