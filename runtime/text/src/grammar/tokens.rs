//! The tokenizer as llguidance sees it: the bytes of every token, control tokens apart from text.

use super::GrammarError;
use crate::Tokenizer;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use std::collections::HashMap;
use std::sync::Arc;

/// Stands for "no token that ends an answer".
const NO_TOKEN: u32 = u32::MAX;

/// The vocabulary of one tokenizer.
pub(crate) struct Vocabulary {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
    /// Control tokens by their text.
    control: HashMap<String, u32>,
}

impl Vocabulary {
    /// `stop` are the tokens that end an answer.
    pub fn new(tokenizer: Arc<Tokenizer>, stop: &[u32]) -> Result<Arc<Vocabulary>, GrammarError> {
        let wrong = |problem: String| GrammarError::Tokenizer { problem };
        let tokens = tokenizer.token_bytes().map_err(wrong)?;
        let mut control = HashMap::new();
        let mut words = Vec::with_capacity(tokens.len());
        for (id, token) in tokens.into_iter().enumerate() {
            let mut word = token.bytes;
            if token.special {
                if let Ok(text) = String::from_utf8(word.clone()) {
                    control.insert(text, id as u32);
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
        Ok(Arc::new(Vocabulary { trie, tokenizer, control }))
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
        self.control.values().copied().collect()
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.trie.vocab_size()
    }

    /// The first control token in a text: its offset, its length in bytes, its id; of several at one place the longest.
    pub fn first_control(&self, text: &str) -> Option<(usize, usize, u32)> {
        let found =
            self.control.iter().filter_map(|(word, id)| text.find(word.as_str()).map(|at| (at, word.len(), *id)));
        found.min_by_key(|(at, len, _)| (*at, std::cmp::Reverse(*len)))
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
        while let Some((at, _, _)) = self.first_control(text.get(from..).unwrap_or("")) {
            let first = text.get(from + at..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8);
            from += at + first;
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
}
