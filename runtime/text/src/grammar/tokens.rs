//! The tokenizer as llguidance sees it: the bytes of every token, control tokens apart from text.

use super::GrammarError;
use crate::Tokenizer;
use aho_corasick::{AhoCorasick, Input, MatchKind};
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use std::sync::Arc;

/// Stands for "no token that ends an answer".
const NO_TOKEN: u32 = u32::MAX;
/// Bytes of forced text that are encoded: a mask needs only the first token of it, and each mask encodes anew what is left.
const FORCED_BYTES: usize = 512;
/// The same in the longest tokens: the last few of what is encoded may be taken back.
const FORCED_TOKENS: usize = 8;
/// Longest way of writing a control token behind its mark.
const MARKED_BYTES: usize = 100;

/// The vocabulary of one tokenizer.
pub(crate) struct Vocabulary {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
    /// Finds the texts of control tokens; of several at one place the longest.
    finder: AhoCorasick,
    /// The control token of each of these texts.
    control: Vec<u32>,
}

impl Vocabulary {
    /// `stop` are the tokens that end an answer.
    pub fn new(tokenizer: Arc<Tokenizer>, stop: &[u32]) -> Result<Arc<Vocabulary>, GrammarError> {
        let wrong = |problem: String| GrammarError::Tokenizer { problem };
        let tokens = tokenizer.token_bytes().map_err(wrong)?;
        let (mut control, mut texts) = (Vec::new(), Vec::new());
        let mut words = Vec::with_capacity(tokens.len());
        for (id, token) in tokens.into_iter().enumerate() {
            let mut word = token.bytes;
            if token.special {
                if !word.is_empty() && std::str::from_utf8(&word).is_ok() {
                    control.push(id as u32);
                    texts.push(word.clone());
                }
                word.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
            }
            words.push(word);
        }
        if words.is_empty() {
            return Err(wrong("it has no tokens".to_owned()));
        }
        let known: Vec<u32> = stop.iter().copied().filter(|id| (*id as usize) < words.len()).collect();
        let info = TokRxInfo::new(words.len() as u32, known.first().copied().unwrap_or(NO_TOKEN));
        let mut trie = TokTrie::from(&info, &words);
        if known.len() > 1 {
            trie = trie.with_eos_tokens(&known);
        }
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts);
        let finder = finder.map_err(|error| wrong(error.to_string()))?;
        Ok(Arc::new(Vocabulary { trie, tokenizer, finder, control }))
    }

    /// As llguidance wants it.
    pub fn env(self: &Arc<Self>) -> TokEnv {
        Arc::clone(self) as TokEnv
    }

    /// Tokens that end an answer.
    pub fn stop(&self) -> Vec<u32> {
        self.trie.eos_tokens().iter().copied().filter(|id| *id != NO_TOKEN).collect()
    }

    /// The control tokens.
    pub fn controls(&self) -> Vec<u32> {
        self.control.clone()
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.trie.vocab_size()
    }

    /// The first control token in a text: its offset, its length in bytes, its id; of several at one place the longest.
    pub fn first_control(&self, text: &str) -> Option<(usize, usize, u32)> {
        self.control_from(text, 0)
    }

    /// The first one that begins at an offset or behind it. What comes behind it is hardly looked at.
    fn control_from(&self, text: &str, from: usize) -> Option<(usize, usize, u32)> {
        let found = self.finder.find(Input::new(text).range(from.min(text.len())..))?;
        Some((found.start(), found.len(), *self.control.get(found.pattern().as_usize())?))
    }

    /// The tokens in which the tokenizer itself writes a text, none of them a control token, and together the text's bytes: what a
    /// grammar forces must be what it admits. A control token that the text spells is broken behind its first character.
    fn written(&self, text: &str) -> Vec<u32> {
        let exact = |text: &str| {
            let tokens = self.tokenizer.encode(text, false).ok()?;
            let is_control = tokens.iter().any(|id| self.trie.is_special_token(*id));
            (!is_control && self.trie.decode_raw(&tokens) == text.as_bytes()).then_some(tokens)
        };
        if let Some(tokens) = exact(text) {
            return tokens;
        }
        let (mut pieces, mut begin, mut from) = (Vec::new(), 0, 0);
        while let Some((at, _, _)) = self.control_from(text, from) {
            let first = text.get(at..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8);
            from = at + first;
            pieces.push(text.get(begin..from).unwrap_or(""));
            begin = from;
        }
        pieces.push(text.get(begin..).unwrap_or(""));
        // A tokenizer that changes texts, or writes a space before them, does not write this one.
        let tokens: Option<Vec<Vec<u32>>> = pieces.into_iter().map(exact).collect();
        tokens.map_or_else(|| self.spelt(text.as_bytes()), |tokens| tokens.concat())
    }

    /// Some tokens that spell the bytes, none of them a control token.
    pub fn spelt(&self, text: &[u8]) -> Vec<u32> {
        self.trie.greedy_tokenize(text)
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| self.written(text))
    }

    fn tokenize_bytes_marker(&self, bytes: &[u8]) -> (Vec<TokenId>, usize) {
        let most = FORCED_BYTES.max(FORCED_TOKENS * self.trie.max_token_len());
        Beginning(self).tokenize_bytes_marker(beginning(bytes, most))
    }
}

/// Encodes all that it is given, with the library's own reading of control tokens.
struct Beginning<'a>(&'a Vocabulary);

impl TokenizerEnv for Beginning<'_> {
    fn tok_trie(&self) -> &TokTrie {
        self.0.tok_trie()
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.tokenize_bytes(bytes)
    }
}

/// At most so many bytes, about, of forced text; neither a character nor a control token is cut.
fn beginning(bytes: &[u8], most: usize) -> &[u8] {
    let is_inside = |at: &usize| bytes.get(*at).is_some_and(|byte| byte & 0xC0 == 0x80);
    let Some(end) = (0..=most).rev().find(|at| !is_inside(at)).filter(|_| bytes.len() > most) else { return bytes };
    let marked = end.saturating_sub(MARKED_BYTES);
    let mark = bytes.get(marked..end).and_then(|last| last.iter().rposition(|b| *b == TokTrie::SPECIAL_TOKEN_MARKER));
    let end = mark.map_or(end, |at| marked + at);
    // A mark at the very beginning is kept with what it marks.
    bytes.get(..end).filter(|cut| !cut.is_empty()).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_is_encoded_and_nothing_in_it_is_cut() {
        assert_eq!(beginning(b"abc", 3), b"abc");
        assert_eq!(beginning(b"abcd", 3), b"abc");
        assert_eq!(beginning("abé".as_bytes(), 3), b"ab");
        assert_eq!(beginning(b"ab\xFF[12]c", 5), b"ab");
        let far = [b"ab\xFF[12]".as_slice(), &[b'c'; 200]].concat();
        assert_eq!(beginning(&far, 150).len(), 150);
    }
}
