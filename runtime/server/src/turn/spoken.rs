//! Which tokens the answer's text is made of, for protocols that report their log-probabilities beside the text.
//!
//! Text is held back by characters, stop strings and markup in turn, so a token's text may go out long after it, or in
//! parts; what stays the same is its place among all text. A token belongs to the answer if some of its place does, and
//! leaves with the first of it.

use engine::SampledToken;
use std::collections::VecDeque;
use std::ops::Range;

/// Tokens whose text is undecided, in order.
#[derive(Debug, Default)]
pub(super) struct Spoken {
    /// Bytes of text so far.
    bytes: usize,
    /// The places of tokens, and the tokens.
    tokens: VecDeque<(Range<usize>, SampledToken)>,
    /// How many of the last of them have only a part of a character, whose end is not known.
    open: usize,
    /// Tokens of text that was taken without going out, such as space that may yet be the last.
    waiting: Vec<SampledToken>,
}

impl Spoken {
    /// Takes a token and how many bytes of text came with it. One without a log-probability is only counted.
    pub fn push(&mut self, token: &SampledToken, bytes: usize) {
        let begin = self.bytes;
        self.bytes += bytes;
        if token.logprob.is_some() {
            self.tokens.push_back((begin..self.bytes, token.clone()));
            self.open += 1;
        }
        if bytes > 0 {
            let end = self.bytes;
            self.tokens.iter_mut().rev().take(self.open).for_each(|(place, _)| place.end = end);
            self.open = 0;
        }
    }

    /// Text that no token brought: the end of the answer completes what was a part of a character.
    pub fn end(&mut self, bytes: usize) {
        self.bytes += bytes;
        let end = self.bytes;
        self.tokens.iter_mut().rev().take(self.open).for_each(|(place, _)| place.end = end);
        self.open = 0;
    }

    /// The tokens of the answer's text at these places, which nothing has taken before. Everything before `decided` is
    /// decided: what of it is not the answer's never will be.
    pub fn take(&mut self, spans: &[Range<usize>], decided: usize, is_out: bool) -> Vec<SampledToken> {
        while self.tokens.len() > self.open {
            let Some((place, _)) = self.tokens.front() else { break };
            let is_spoken = spans.iter().any(|span| place.start < span.end && span.start < place.end);
            if !is_spoken && place.end > decided {
                break;
            }
            self.waiting.extend(self.tokens.pop_front().filter(|_| is_spoken).map(|(_, token)| token));
        }
        if is_out { std::mem::take(&mut self.waiting) } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spoken(texts: &[usize]) -> Spoken {
        let mut spoken = Spoken::default();
        for (id, bytes) in texts.iter().enumerate() {
            let token = SampledToken { id: id as u32, logprob: Some(0.0), top: Vec::new(), listed: Vec::new() };
            spoken.push(&token, *bytes);
        }
        spoken
    }

    fn ids(tokens: Vec<SampledToken>) -> Vec<u32> {
        tokens.iter().map(|token| token.id).collect()
    }

    #[test]
    fn tokens_leave_once_with_the_text_they_begin() {
        // <m> He "llo w" or ld</m>
        let mut spoken = spoken(&[3, 2, 5, 2, 6]);
        assert_eq!(ids(spoken.take(std::slice::from_ref(&(3..8)), 8, true)), [1, 2]);
        assert_eq!(ids(spoken.take(std::slice::from_ref(&(8..10)), 10, true)), [0; 0]);
        assert_eq!(ids(spoken.take(std::slice::from_ref(&(10..14)), 18, true)), [3, 4]);
        assert!(spoken.tokens.is_empty());
    }

    #[test]
    fn markup_between_and_behind_is_nobodys() {
        let mut spoken = spoken(&[1, 1, 1, 1, 1]);
        assert_eq!(ids(spoken.take(&[1..2, 3..4], 5, true)), [1, 3]);
        assert!(spoken.tokens.is_empty());
    }

    #[test]
    fn parts_of_a_character_leave_with_it_and_undecided_text_waits() {
        let mut spoken = spoken(&[0, 0, 4, 0]);
        assert_eq!(ids(spoken.take(&[], 0, true)), [0; 0]);
        assert_eq!(ids(spoken.take(std::slice::from_ref(&(0..4)), 4, false)), [0; 0]);
        spoken.end(3);
        assert_eq!(ids(spoken.take(std::slice::from_ref(&(4..7)), 7, true)), [0, 1, 2, 3]);
    }
}
