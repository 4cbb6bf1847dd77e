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
/// Longest window: a decoder may tell a whole run of bytes anew with each one more, and then there is no place to cut.
const MOST_TOKENS: usize = 64;
/// A character of four bytes lacks at most its last one: so many U+FFFD can stand for its beginning.
const WAITING_CHARS: usize = 3;

/// The state of one answer.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    window: Vec<u32>,
    /// The window's text that is out.
    given: String,
    /// Tokens of the window whose text is out to its end.
    told: usize,
    skip_special: bool,
    /// Tokens decoded so far, each as often as it was.
    decoded: u64,
}

impl Detokenizer {
    /// An empty answer. With `skip_special`, special tokens have no text.
    pub fn new(skip_special: bool) -> Self {
        Detokenizer { skip_special, ..Detokenizer::default() }
    }

    /// How many tokens were decoded, each counted as often as it was: what the answer has cost.
    pub fn decoded_tokens(&self) -> u64 {
        self.decoded
    }

    /// Takes a token; returns the text that is now certain.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, TextError> {
        self.window.push(id);
        let len = self.window.len();
        let text = self.decode(tokenizer, 0, len)?;
        let whole = whole(&text);
        let (mut new, mut all_given) = (String::new(), false);
        if text.starts_with(&self.given) {
            if let Some(more) = text.get(self.given.len()..whole) {
                new.push_str(more);
                self.given.push_str(more);
            }
            all_given = whole == text.len();
        } else if whole == text.len() {
            // The decoder tells a run of bytes anew: it was no text after all. What is out stays; the rest is told alone.
            new = self.decode(tokenizer, self.told, len)?;
            all_given = true;
        }
        if all_given {
            self.told = len;
            if len > CONTEXT_TOKENS {
                self.keep_context(tokenizer, &text)?;
            } else {
                self.given = text;
            }
        } else if len >= WINDOW_TOKENS {
            self.cut_back(tokenizer, &text)?;
            if self.window.len() >= MOST_TOKENS {
                new.push_str(&self.rest(tokenizer, &text)?);
                self.keep_context(tokenizer, &text)?;
            }
        }
        Ok(new)
    }

    /// The rest, at the end of the answer: a character that was never finished comes out as U+FFFD.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, TextError> {
        let text = self.decode(tokenizer, 0, self.window.len())?;
        let rest = self.rest(tokenizer, &text)?;
        self.window.clear();
        self.given.clear();
        self.told = 0;
        Ok(rest)
    }

    /// The same of an answer that was cut: the beginning of a character whose end did not come is left out.
    pub fn cut(&mut self, tokenizer: &Tokenizer) -> Result<String, TextError> {
        let mut rest = self.finish(tokenizer)?;
        rest.truncate(whole(&rest));
        Ok(rest)
    }

    /// What of the window's text is not out.
    fn rest(&mut self, tokenizer: &Tokenizer, text: &str) -> Result<String, TextError> {
        match text.strip_prefix(&self.given) {
            Some(rest) => Ok(rest.to_owned()),
            None => self.decode(tokenizer, self.told, self.window.len()),
        }
    }

    fn decode(&mut self, tokenizer: &Tokenizer, from: usize, to: usize) -> Result<String, TextError> {
        let ids = self.window.get(from..to).unwrap_or_default();
        self.decoded += ids.len() as u64;
        tokenizer.decode(ids, self.skip_special)
    }

    /// All is given: only context stays, and its own text counts as given, whatever neighbours it has lost. It begins with
    /// a character, so that a decoder finds the characters behind it.
    fn keep_context(&mut self, tokenizer: &Tokenizer, text: &str) -> Result<(), TextError> {
        let len = self.window.len();
        for context in CONTEXT_TOKENS.min(len)..=len {
            let own = self.decode(tokenizer, len - context, len)?;
            if text.ends_with(&own) || context == len {
                self.window.drain(..len - context);
                (self.given, self.told) = (own, context);
                break;
            }
        }
        Ok(())
    }

    /// Shortens a window whose tail does not become whole, at a place where the two sides decode to the same text
    /// apart as together, so that no character spans it. If there is none, the window grows.
    fn cut_back(&mut self, tokenizer: &Tokenizer, text: &str) -> Result<(), TextError> {
        let len = self.window.len();
        for at in (1..=len - CONTEXT_TOKENS).rev() {
            let before = self.decode(tokenizer, 0, at)?;
            let Some(given) = self.given.strip_prefix(&before).map(str::to_owned) else { continue };
            let after = self.decode(tokenizer, at, len)?;
            if text.strip_prefix(&before) == Some(&after) {
                self.window.drain(..at);
                (self.given, self.told) = (given, self.told.saturating_sub(at));
                break;
            }
        }
        Ok(())
    }
}

/// Length of the text without the tail that may still become a character.
fn whole(text: &str) -> usize {
    let waiting = text.chars().rev().take(WAITING_CHARS).take_while(|c| *c == char::REPLACEMENT_CHARACTER).count();
    text.len() - waiting * char::REPLACEMENT_CHARACTER.len_utf8()
}
