//! Which tokens a piece of text is made of, so that log-probabilities leave with it.
//!
//! Text of one field is one stretch of what was generated, markup lies between the stretches. A piece is looked for where
//! the last one ended; the first piece of a field is the last place where it occurs, behind its markup.

use engine::SampledToken;
use std::collections::VecDeque;

/// Tokens whose text has not been told yet.
#[derive(Default)]
pub(super) struct Trail {
    bytes: Vec<u8>,
    /// Each token, until it left, with the end of its bytes.
    tokens: VecDeque<(usize, Option<SampledToken>)>,
    /// Whether the next piece may go on right here.
    goes_on: bool,
}

impl Trail {
    /// Takes a token and its bytes.
    pub fn push(&mut self, token: SampledToken, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.tokens.push_back((self.bytes.len(), Some(token)));
    }

    /// The tokens of a piece of text that have not left before; what lies in front of it is dropped.
    pub fn take(&mut self, text: &str) -> Vec<SampledToken> {
        let text = text.as_bytes();
        if text.is_empty() {
            return Vec::new();
        }
        let begin = if self.goes_on && self.bytes.starts_with(text) {
            0
        } else {
            let mut places = self.bytes.windows(text.len()).enumerate();
            let Some((begin, _)) = places.rfind(|(_, window)| *window == text) else { return Vec::new() };
            begin
        };
        let end = begin + text.len();
        let (mut taken, mut token_begin) = (Vec::new(), 0);
        for (token_end, token) in &mut self.tokens {
            if *token_end > begin && token_begin < end {
                taken.extend(token.take());
            }
            token_begin = *token_end;
        }
        self.bytes.drain(..end);
        // A token that goes on behind the piece has left, and its bytes still count.
        self.tokens.retain(|(token_end, _)| *token_end > end);
        self.tokens.iter_mut().for_each(|(token_end, _)| *token_end -= end);
        self.goes_on = true;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(tokens: Vec<SampledToken>) -> Vec<u32> {
        tokens.iter().map(|token| token.id).collect()
    }

    fn trail(texts: &[&str]) -> Trail {
        let mut trail = Trail::default();
        for (id, text) in texts.iter().enumerate() {
            trail.push(
                SampledToken { id: id as u32, logprob: Some(0.0), top: Vec::new(), listed: Vec::new() },
                text.as_bytes(),
            );
        }
        trail
    }

    #[test]
    fn tokens_leave_once_with_the_text_they_begin() {
        let mut trail = trail(&["<m>", "He", "llo w", "or", "ld</m>"]);
        assert_eq!(ids(trail.take("Hello")), [1, 2]);
        assert_eq!(ids(trail.take(" wo")), [3]);
        assert_eq!(ids(trail.take("rld")), [4]);
        assert_eq!(ids(trail.take("more")), [0; 0]);
    }

    #[test]
    fn markup_lies_between_fields() {
        let mut trail = trail(&["<a>", "one", "<a>", "<b>", "a", "b"]);
        assert_eq!(ids(trail.take("one")), [1]);
        assert_eq!(ids(trail.take("ab")), [4, 5]);
        assert!(trail.bytes.is_empty() && trail.tokens.is_empty());
    }
}
