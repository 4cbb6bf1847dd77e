//! The tokenizer, as `tokenizer.json` describes it.

use crate::TextError;
use crate::spelling::Spelling;
use crate::splits::Splits;
use serde_json::Value;
use std::path::Path;
use tokenizers::{
    DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, TokenizerBuilder, TokenizerImpl,
};

type Inner = TokenizerImpl<ModelWrapper, NormalizerWrapper, Splits, PostProcessorWrapper, DecoderWrapper>;

/// Characters to token ids and back.
pub struct Tokenizer {
    inner: Inner,
    longest_token_bytes: Option<usize>,
    /// Tokens' own bytes, where the decoder puts them in a row and does nothing else.
    spelling: Option<Spelling>,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    pub fn load(file: &Path) -> Result<Tokenizer, TextError> {
        let bytes = std::fs::read(file).map_err(|error| TextError::Read { file: file.to_owned(), error })?;
        Tokenizer::from_bytes(&bytes).map_err(|error| TextError::Tokenizer { file: file.to_owned(), error })
    }

    /// A tokenizer from the content of such a file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Tokenizer, String> {
        let own = tokenizers::Tokenizer::from_bytes(bytes).map_err(|e| e.to_string())?;
        let splits = own.get_pre_tokenizer().map(Splits::of).transpose().map_err(|e| e.to_string())?;
        let longest_token_bytes = longest_token_bytes(&own);
        // A file may carry the limits of its training set-up. A prompt is never cut or filled up in silence, so neither
        // truncation nor padding is taken over.
        let inner = TokenizerBuilder::new()
            .with_model(own.get_model().clone())
            .with_normalizer(own.get_normalizer().cloned())
            .with_pre_tokenizer(splits)
            .with_post_processor(own.get_post_processor().cloned())
            .with_decoder(own.get_decoder().cloned())
            .with_added_vocabulary(own.get_added_vocabulary().clone())
            .build()
            .map_err(|e| e.to_string())?;
        let spelling = spelling(&own)?;
        Ok(Tokenizer { inner, longest_token_bytes, spelling })
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

    /// Tokens' own bytes, where text is nothing but them in a row.
    pub(crate) fn spelling(&self) -> Option<&Spelling> {
        self.spelling.as_ref()
    }

    /// What every token stands for, by id; ids without a token stand for nothing. Known for tokenizers that write bytes as
    /// characters, or that fall back to bytes.
    pub fn token_bytes(&self) -> Result<Vec<TokenBytes>, String> {
        let decoder = serde_json::to_value(self.inner.get_decoder()).map_err(|e| e.to_string())?;
        let kind = writing(&decoder).ok_or("its decoder is neither byte-level nor one with byte fallback")?;
        let size = self.inner.get_vocab(true).values().max().map_or(0, |id| *id as usize + 1);
        let mut tokens = vec![TokenBytes::default(); size];
        for (word, id) in self.inner.get_vocab(false) {
            if let Some(token) = tokens.get_mut(id as usize) {
                token.bytes = kind.bytes(&word).ok_or_else(|| format!("token {id}, {word:?}, stands for no bytes"))?;
            }
        }
        for (id, added) in self.inner.get_added_vocabulary().get_added_tokens_decoder() {
            if let Some(token) = tokens.get_mut(*id as usize) {
                *token = TokenBytes { bytes: added.content.clone().into_bytes(), special: added.special };
            }
        }
        Ok(tokens)
    }

    /// Number of ids, added tokens included.
    pub fn vocab(&self) -> usize {
        self.inner.get_vocab_size(true)
    }
}

/// More ids than any vocabulary has: with such ids, tokens are decoded one by one.
const MOST_IDS: u32 = 1 << 24;

fn spelling(own: &tokenizers::Tokenizer) -> Result<Option<Spelling>, String> {
    let decoder = serde_json::to_value(own.get_decoder()).map_err(|e| e.to_string())?;
    let only = match decoder.get("decoders").and_then(Value::as_array).map(Vec::as_slice) {
        Some([only]) => only,
        _ => &decoder,
    };
    if only.get("type").and_then(Value::as_str) != Some("ByteLevel") {
        return Ok(None);
    }
    let added = own.get_added_vocabulary();
    let size = own.get_vocab(true).values().max().map_or(0, |id| id.saturating_add(1));
    if size > MOST_IDS {
        return Ok(None);
    }
    let word = |id| {
        let word = own.id_to_token(id);
        let is_special = word.as_deref().is_some_and(|word| added.is_special_token(word));
        (word, is_special)
    };
    Ok(Spelling::of((0..size).map(word)))
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

/// What a token stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenBytes {
    /// The bytes of its text.
    pub bytes: Vec<u8>,
    /// Whether it is a control token, which no text spells.
    pub special: bool,
}

/// How a vocabulary writes bytes.
#[derive(Clone, Copy)]
enum Writing {
    /// One character stands for each byte.
    Characters,
    /// As text, with a mark for spaces; single bytes as `<0x00>`.
    Fallback(char),
}

impl Writing {
    fn bytes(self, word: &str) -> Option<Vec<u8>> {
        match self {
            Writing::Characters => word.chars().map(byte_of).collect(),
            Writing::Fallback(space) => {
                let byte = word.strip_prefix("<0x").and_then(|w| w.strip_suffix('>')).filter(|w| w.len() == 2);
                match byte.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                    Some(byte) => Some(vec![byte]),
                    None => Some(word.replace(space, " ").into_bytes()),
                }
            }
        }
    }
}

/// The byte that a character of a byte-level vocabulary stands for: printable Latin ones for themselves, the others for
/// the remaining bytes in order.
pub(crate) fn byte_of(c: char) -> Option<u8> {
    let is_shown = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match u32::from(c) {
        code @ 0..=0xff => u8::try_from(code).ok().filter(|byte| is_shown(*byte)),
        code => (0..=255u8).filter(|byte| !is_shown(*byte)).nth(code as usize - 0x100),
    }
}

fn writing(decoder: &Value) -> Option<Writing> {
    let parts = match decoder.get("decoders").and_then(Value::as_array) {
        Some(parts) => parts.as_slice(),
        None => std::slice::from_ref(decoder),
    };
    let of = |kind: &str| parts.iter().any(|part| part.get("type").and_then(Value::as_str) == Some(kind));
    if of("ByteLevel") {
        return Some(Writing::Characters);
    }
    let space = parts.iter().find_map(|part| part.pointer("/pattern/String")?.as_str()?.chars().next());
    of("ByteFallback").then(|| Writing::Fallback(space.unwrap_or('\u{2581}')))
}
