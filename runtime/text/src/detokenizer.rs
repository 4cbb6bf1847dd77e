//! Token ids to text as they come: every character once, none before it is whole.
//!
//! A decoder may look at neighbours (bytes of one character spread over tokens, a space that belongs to the next word),
//! so a short window of the last tokens is decoded anew with each token and only what is new is given out. A tail
//! of U+FFFD may still become a character and waits.

use crate::{TextError, Tokenizer};

/// Tokens that are decoded again as context of the next one. An unfinished character spans at most three.
const CONTEXT_TOKENS: usize = 4;
/// The window is cut back to its context at this length, even if its tail never becomes whole.
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
        let settled = whole == text.len() && self.window.len() > CONTEXT_TOKENS;
        if settled || self.window.len() >= WINDOW_TOKENS {
            self.window.drain(..self.window.len() - CONTEXT_TOKENS);
            let context = tokenizer.decode(&self.window, self.skip_special)?;
            self.given = self::whole(&context);
        }
        Ok(new)
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
