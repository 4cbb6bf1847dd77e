//! Log-probabilities as the wire has them.

use crate::app::App;
use engine::SampledToken;
use serde_json::{Map, Value, json};

/// Stands for minus infinity, which JSON does not have.
const LEAST: f32 = -9999.0;

/// A log-probability that JSON can hold.
pub(crate) fn number(logprob: Option<f32>) -> Value {
    logprob.map_or(Value::Null, |x| json!(if x.is_nan() { LEAST } else { x.max(LEAST) }))
}

/// A token's text; bytes of half a character become U+FFFD.
pub(crate) fn text(app: &App, id: u32) -> String {
    String::from_utf8_lossy(&app.token_bytes(id)).into_owned()
}

fn entry(app: &App, id: u32, logprob: Option<f32>) -> Map<String, Value> {
    let bytes = app.token_bytes(id);
    let mut entry = Map::new();
    entry.insert("token".into(), json!(String::from_utf8_lossy(&bytes)));
    entry.insert("bytes".into(), json!(bytes));
    entry.insert("logprob".into(), number(logprob));
    entry
}

/// `{token, bytes, logprob, top_logprobs}` of a chat answer.
pub(crate) fn chat(app: &App, token: &SampledToken) -> Value {
    let top: Vec<Value> = token.top.iter().map(|(id, logprob)| entry(app, *id, Some(*logprob)).into()).collect();
    let mut whole = entry(app, token.id, token.logprob);
    whole.insert("top_logprobs".into(), Value::Array(top));
    whole.into()
}

/// `{tokens, token_logprobs, top_logprobs, text_offset}` of a text completion, token by token.
#[derive(Clone, Debug, Default)]
pub(crate) struct Columns {
    tokens: Vec<Value>,
    logprobs: Vec<Value>,
    top: Vec<Value>,
    offsets: Vec<usize>,
}

/// Characters of a text before each token, counted by the bytes that begin one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Offset(usize);

impl Columns {
    /// Adds a token that stands at `offset`, and moves the offset behind it. `shown` says whether its text is part of the
    /// answer.
    pub fn add(&mut self, app: &App, token: &SampledToken, offset: &mut Offset, shown: bool) {
        let top: Map<String, Value> =
            token.top.iter().map(|(id, logprob)| (text(app, *id), number(Some(*logprob)))).collect();
        self.tokens.push(json!(text(app, token.id)));
        self.logprobs.push(number(token.logprob));
        self.top.push(if token.logprob.is_none() { Value::Null } else { top.into() });
        self.offsets.push(offset.0);
        if shown {
            let begins = |byte: &&u8| **byte & 0b1100_0000 != 0b1000_0000;
            offset.0 += app.token_bytes(token.id).iter().filter(begins).count();
        }
    }

    /// Adds another piece behind this one.
    pub fn append(&mut self, mut other: Columns) {
        self.tokens.append(&mut other.tokens);
        self.logprobs.append(&mut other.logprobs);
        self.top.append(&mut other.top);
        self.offsets.append(&mut other.offsets);
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub fn json(self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.logprobs,
            "top_logprobs": self.top,
            "text_offset": self.offsets,
        })
    }
}
