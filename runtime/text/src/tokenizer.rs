//! The tokenizer, as `tokenizer.json` describes it.

use crate::TextError;
use std::path::Path;

/// Characters to token ids and back.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    longest_token_bytes: Option<usize>,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    pub fn load(file: &Path) -> Result<Tokenizer, TextError> {
        let bytes = std::fs::read(file).map_err(|error| TextError::Read { file: file.to_owned(), error })?;
        Tokenizer::from_bytes(&bytes).map_err(|error| TextError::Tokenizer { file: file.to_owned(), error })
    }

    /// A tokenizer from the content of such a file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Tokenizer, String> {
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(|e| e.to_string())?;
        // A file may carry the limits of its training set-up. A prompt is never cut or filled up in silence.
        inner.with_truncation(None).map_err(|e| e.to_string())?;
        inner.with_padding(None);
        let longest_token_bytes = longest_token_bytes(&inner);
        Ok(Tokenizer { inner, longest_token_bytes })
    }

    /// Most bytes of text that one token stands for, so that a text too long for a context is known before it is encoded;
    /// `None` for a tokenizer that drops or shortens text.
    pub fn longest_token_bytes(&self) -> Option<usize> {
        self.longest_token_bytes
    }

    /// Token ids of a text. Special tokens that it spells are recognised; `add_special` lets the tokenizer put its
    /// own around it (a text has them already when a chat template wrote it).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
        let encoding = self.inner.encode_fast(text, add_special).map_err(|e| TextError::Input(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of some ids; incomplete characters become U+FFFD, unknown ids nothing.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TextError> {
        self.inner.decode(ids, skip_special).map_err(|e| TextError::Input(e.to_string()))
    }

    /// Number of ids, added tokens included.
    pub fn vocab(&self) -> usize {
        self.inner.get_vocab_size(true)
    }
}

fn longest_token_bytes(inner: &tokenizers::Tokenizer) -> Option<usize> {
    let added = inner.get_added_vocabulary().get_added_tokens_decoder();
    let splits = serde_json::to_string(inner.get_pre_tokenizer()?).ok()?;
    let keeps_every_byte = inner.get_normalizer().is_none()
        && splits.contains("\"ByteLevel\"")
        && !splits.contains("\"Removed\"")
        && !added.values().any(|token| token.lstrip || token.rstrip);
    // A byte-level vocabulary writes one character for each byte; added tokens are written as they are.
    let own = inner.get_vocab(false).keys().map(|token| token.chars().count()).max();
    let added = added.values().map(|token| token.content.len()).max();
    keeps_every_byte.then(|| own.max(added)).flatten()
}
