//! Token ids to text as they come: every character once, none before it is whole.
//!
//! A decoder may look at neighbours (bytes of one character spread over tokens, a space that belongs to the next word),
//! so a short window of the last tokens is decoded anew with each token and only what is new is given out. A tail
//! of U+FFFD may still become a character and waits.

use crate::{TextError, Tokenizer};

/// Tokens that are decoded again as context of the next one. An unfinished character spans at most three.
const CONTEXT_TOKENS: usize = 4;
/// From this length on the window is cut back even if its tail never becomes whole.
const WINDOW_TOKENS: usize = 16;
/// A character of four bytes lacks at most its last one: so many U+FFFD can stand for its beginning.
const WAITING_CHARS: usize = 3;

/// The state of one answer.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    window: Vec<u32>,
    /// Bytes of the window's text that are out.
    given: usize,
    skip_special: bool,
}

impl Detokenizer {
    /// An empty answer. With `skip_special`, special tokens have no text.
    pub fn new(skip_special: bool) -> Self {
        Detokenizer { skip_special, ..Detokenizer::default() }
    }

    /// Takes a token; returns the text that is now certain.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, TextError> {
        self.window.push(id);
        let text = tokenizer.decode(&self.window, self.skip_special)?;
        let whole = whole(&text);
        let new = text.get(self.given..whole).unwrap_or_default().to_owned();
        self.given = self.given.max(whole);
        if whole == text.len() && self.window.len() > CONTEXT_TOKENS {
            // All is given: the context's own text counts as given, whatever neighbours it has lost.
            self.window.drain(..self.window.len() - CONTEXT_TOKENS);
            self.given = tokenizer.decode(&self.window, self.skip_special)?.len();
        } else if self.window.len() >= WINDOW_TOKENS {
            self.cut(tokenizer, &text)?;
        }
        Ok(new)
    }

    /// Shortens a window whose tail does not become whole, at a place where the two sides decode to the same text
    /// apart as together, so that no character spans it. If there is none, the window grows.
    fn cut(&mut self, tokenizer: &Tokenizer, text: &str) -> Result<(), TextError> {
        for at in (1..=self.window.len() - CONTEXT_TOKENS).rev() {
            let (before, after) = self.window.split_at(at);
            let before = tokenizer.decode(before, self.skip_special)?;
            if before.len() <= self.given
                && text.strip_prefix(&before) == Some(&tokenizer.decode(after, self.skip_special)?)
            {
                self.window.drain(..at);
                self.given -= before.len();
                break;
            }
        }
        Ok(())
    }

    /// The rest, at the end of the answer: a character that was never finished comes out as U+FFFD.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, TextError> {
        let text = tokenizer.decode(&self.window, self.skip_special)?;
        let rest = text.get(self.given..).unwrap_or_default().to_owned();
        self.window.clear();
        self.given = 0;
        Ok(rest)
    }
}

/// Length of the text without the tail that may still become a character.
fn whole(text: &str) -> usize {
    let waiting = text.chars().rev().take(WAITING_CHARS).take_while(|c| *c == char::REPLACEMENT_CHARACTER).count();
    text.len() - waiting * char::REPLACEMENT_CHARACTER.len_utf8()
}
