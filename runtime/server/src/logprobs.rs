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

/// Writes a JSON list, item by item: lists of log-probabilities are long, and as values they would take many times their text.
pub(crate) fn list<T>(text: &mut String, items: impl IntoIterator<Item = T>, mut item: impl FnMut(&mut String, T)) {
    text.push('[');
    for (index, one) in items.into_iter().enumerate() {
        text.push_str(if index > 0 { "," } else { "" });
        item(text, one);
    }
    text.push(']');
}

/// `{tokens, token_logprobs, top_logprobs, text_offset}` of a text completion, token by token: the items of its lists as they
/// are written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Columns {
    tokens: String,
    logprobs: String,
    top: String,
    offsets: String,
}

/// Characters of a text before each token, counted by the bytes that begin one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Offset(usize);

impl Columns {
    /// Adds a token that stands at `offset`, and moves the offset behind it. `shown` says whether its text is part of the
    /// answer.
    pub fn add(&mut self, app: &App, token: &SampledToken, offset: &mut Offset, shown: bool) {
        let top = if token.logprob.is_none() { "null".to_owned() } else { alternatives(app, &token.top) };
        self.push(
            &json!(text(app, token.id)).to_string(),
            &number(token.logprob).to_string(),
            &top,
            &offset.0.to_string(),
        );
        if shown {
            let begins = |byte: &&u8| **byte & 0b1100_0000 != 0b1000_0000;
            offset.0 += app.token_bytes(token.id).iter().filter(begins).count();
        }
    }

    fn push(&mut self, tokens: &str, logprobs: &str, top: &str, offsets: &str) {
        let is_first = self.is_empty();
        let columns = [&mut self.tokens, &mut self.logprobs, &mut self.top, &mut self.offsets];
        for (column, more) in columns.into_iter().zip([tokens, logprobs, top, offsets]) {
            column.push_str(if is_first { "" } else { "," });
            column.push_str(more);
        }
    }

    /// Adds another piece behind this one.
    pub fn append(&mut self, other: &Columns) {
        if !other.is_empty() {
            self.push(&other.tokens, &other.logprobs, &other.top, &other.offsets);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Writes them.
    pub fn write(&self, text: &mut String) {
        let Columns { tokens, logprobs, top, offsets } = self;
        text.push_str("{\"tokens\":[");
        text.push_str(tokens);
        for (name, items) in [("token_logprobs", logprobs), ("top_logprobs", top), ("text_offset", offsets)] {
            text.push_str("],\"");
            text.push_str(name);
            text.push_str("\":[");
            text.push_str(items);
        }
        text.push_str("]}");
    }
}

/// Alternatives of a token by their texts; of several with one text the most probable.
fn alternatives(app: &App, top: &[(u32, f32)]) -> String {
    let mut told: Vec<String> = Vec::new();
    let mut object = String::from("{");
    for (id, logprob) in top {
        let key = json!(text(app, *id)).to_string();
        if told.contains(&key) {
            continue;
        }
        object.push_str(if told.is_empty() { "" } else { "," });
        object.push_str(&key);
        object.push(':');
        object.push_str(&number(Some(*logprob)).to_string());
        told.push(key);
    }
    object.push('}');
    object
}
