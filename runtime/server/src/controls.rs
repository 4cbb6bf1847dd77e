//! The control tokens by their texts, so that text which merely spells one is told from the token itself.

use std::collections::{HashMap, HashSet};
use text::TokenBytes;

/// The control tokens of a tokenizer.
#[derive(Debug)]
pub(crate) struct Controls {
    texts: HashSet<String>,
    by_id: HashMap<u32, String>,
    /// Lengths that occur, in bytes, the longest first.
    lengths: Vec<usize>,
    /// Bytes that a text begins and ends with.
    first: [bool; 256],
    last: [bool; 256],
}

impl Controls {
    /// Those among all tokens, by id.
    pub fn of(tokens: &[TokenBytes]) -> Controls {
        let special = tokens.iter().enumerate().filter(|(_, token)| token.special && !token.bytes.is_empty());
        let text = |(id, token): (usize, &TokenBytes)| {
            Some((u32::try_from(id).ok()?, String::from_utf8(token.bytes.clone()).ok()?))
        };
        let by_id: HashMap<u32, String> = special.filter_map(text).collect();
        let texts: HashSet<String> = by_id.values().cloned().collect();
        let mut lengths: Vec<usize> = texts.iter().map(String::len).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        let (mut first, mut last) = ([false; 256], [false; 256]);
        let mark = |set: &mut [bool; 256], byte: Option<&u8>| {
            if let Some(known) = byte.and_then(|byte| set.get_mut(usize::from(*byte))) {
                *known = true;
            }
        };
        for text in &texts {
            mark(&mut first, text.as_bytes().first());
            mark(&mut last, text.as_bytes().last());
        }
        Controls { texts, by_id, lengths, first, last }
    }

    /// The text of a control token.
    pub fn text(&self, id: u32) -> Option<&str> {
        self.by_id.get(&id).map(String::as_str)
    }

    /// Bytes of the longest.
    pub fn longest(&self) -> usize {
        self.lengths.first().copied().unwrap_or(0)
    }

    /// Where a text has to be parted so that it holds no control token and begins none that other text behind it could end.
    pub fn seams(&self, text: &str) -> Vec<usize> {
        let near_end = text.len().saturating_sub(self.longest());
        let begins = |rest: &str, at: usize| {
            let is_whole =
                self.lengths.iter().any(|len| rest.get(..*len).is_some_and(|part| self.texts.contains(part)));
            is_whole || at >= near_end && self.texts.iter().any(|token| token.starts_with(rest))
        };
        let is_first = |(at, _): &(usize, char)| {
            text.as_bytes().get(*at).is_some_and(|byte| self.first.get(usize::from(*byte)) == Some(&true))
        };
        let seam = |(at, c): (usize, char)| begins(text.get(at..)?, at).then(|| at + c.len_utf8());
        text.char_indices().filter(is_first).filter_map(seam).collect()
    }

    /// The length of a control token that a text ends with, in bytes.
    pub fn at_end(&self, text: &str) -> Option<usize> {
        let last = text.as_bytes().last()?;
        if self.last.get(usize::from(*last)) != Some(&true) {
            return None;
        }
        let ends = |len: &usize| {
            let at = text.len().checked_sub(*len);
            at.and_then(|at| text.get(at..)).is_some_and(|part| self.texts.contains(part))
        };
        self.lengths.iter().copied().find(ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controls(texts: &[&str]) -> Controls {
        let token = |text: &&str| TokenBytes { bytes: text.as_bytes().to_vec(), special: true };
        let plain = TokenBytes { bytes: b"<p>".to_vec(), special: false };
        Controls::of(&texts.iter().map(token).chain([plain]).collect::<Vec<_>>())
    }

    #[test]
    fn texts_are_parted_where_they_spell_or_begin_a_token() {
        let controls = controls(&["<|end|>", "<<a", "«s»"]);
        assert_eq!(controls.seams("plain <p> |end|>"), [0; 0]);
        assert_eq!(controls.seams("a<|end|>b<|end|>"), [2, 10]);
        assert_eq!(controls.seams("ends «"), ["ends «".len()]);
        // What follows may complete either.
        assert_eq!(controls.seams("x<<"), [2, 3]);
        assert_eq!(controls.seams("x<|en"), [2]);
        assert_eq!(controls.seams("<|en x"), [0; 0]);
        // Parted there, no neighbour makes a token of it.
        for (text, behind) in [("a<", "|end|>"), ("<|e", "nd|>"), ("<<", "<a"), ("«s", "»")] {
            let mut parts = Vec::new();
            let mut from = 0;
            for seam in controls.seams(text) {
                parts.push(text[from..seam].to_owned());
                from = seam;
            }
            parts.push(text[from..].to_owned() + behind);
            assert!(
                parts.iter().all(|part| controls.texts.iter().all(|token| !part.contains(token.as_str()))),
                "{parts:?}"
            );
        }
    }

    #[test]
    fn tokens_are_found_at_the_end() {
        let controls = controls(&["<|end|>", "nd|>"]);
        assert_eq!(controls.at_end("a<|end|>"), Some(7));
        assert_eq!(controls.at_end("and|>"), Some(4));
        assert_eq!(controls.at_end("<|end|> "), None);
        assert_eq!((controls.text(0), controls.text(2), controls.longest()), (Some("<|end|>"), None, 7));
    }
}
