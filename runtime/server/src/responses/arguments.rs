//! Arguments of a call while they come: the JSON text as it was written, and the text inside that a free-text tool is for.

use serde_json::Value;

/// Arguments of one call.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    /// The JSON text so far.
    json: String,
    /// That of the complete object.
    whole: Option<String>,
    /// How far the only text inside has been read, in bytes of the JSON.
    read: usize,
    /// That text so far.
    text: String,
}

impl Arguments {
    /// Takes a piece of the JSON text.
    pub fn push(&mut self, json: &str) {
        self.json.push_str(json);
    }

    /// The JSON text as far as it goes.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// The call is complete, and these are all its arguments.
    pub fn finish(&mut self, whole: String) {
        self.whole = Some(whole);
    }

    /// The JSON text of the complete object, in which an argument that was written twice is there once.
    pub fn whole(&self) -> &str {
        self.whole.as_deref().unwrap_or(&self.json)
    }

    /// The text of a free-text tool as far as it goes.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What is new of the text of the argument `key`, as far as it is certain; nothing if another argument comes first.
    pub fn new_text(&mut self, key: &str) -> String {
        if self.read == 0 {
            let head = format!("{{\"{key}\":\"");
            if !self.json.starts_with(&head) {
                return String::new();
            }
            self.read = head.len();
        }
        let (mut new, mut rest) = (String::new(), self.json.get(self.read..).unwrap_or(""));
        while let Some((c, bytes)) = character(rest) {
            new.push(c);
            rest = rest.get(bytes..).unwrap_or("");
        }
        self.read = self.json.len() - rest.len();
        self.text.push_str(&new);
        new
    }

    /// The complete object's only argument, if it is a text under this name.
    pub fn only_text(&self, key: &str) -> Option<String> {
        match serde_json::from_str(self.whole()).ok()? {
            Value::Object(mut map) if map.len() == 1 => match map.remove(key)? {
                Value::String(text) => Some(text),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The next character of a JSON string and the bytes that spell it; `None` at its end, or where the rest has not come.
fn character(rest: &str) -> Option<(char, usize)> {
    let first = rest.chars().next()?;
    match first {
        '"' => None,
        '\\' => {
            let escape = |bytes: usize| {
                let spelt = format!("\"{}\"", rest.get(..bytes)?);
                let text: String = serde_json::from_str(&spelt).ok()?;
                Some((text.chars().next()?, bytes))
            };
            // A pair of surrogates is one character.
            escape(2).or_else(|| escape(6)).or_else(|| escape(12))
        }
        other => Some((other, other.len_utf8())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(json: &str) -> Arguments {
        Arguments { json: json.into(), ..Arguments::default() }
    }

    #[test]
    fn a_text_comes_piece_by_piece_however_it_is_cut() {
        let text = "a \"q\" \\ line\n東京 \u{1}\u{10FFFF} end\\";
        for json in [
            format!("{{\"input\":{}}}", serde_json::to_string(text).unwrap()),
            "{\"input\":\"a \\\"q\\\" \\\\ line\\n\\u6771京 \\u0001\\udbff\\udfff end\\\\\"}".to_owned(),
        ] {
            for cut in (0..json.len()).filter(|cut| json.is_char_boundary(*cut)) {
                let (mut arguments, mut whole) = (Arguments::default(), String::new());
                for piece in [&json[..cut], &json[cut..]] {
                    arguments.push(piece);
                    whole += &arguments.new_text("input");
                }
                assert_eq!((whole.as_str(), arguments.only_text("input").as_deref()), (text, Some(text)), "{cut}");
            }
        }
        let mut other = arguments(r#"{"other":"x"}"#);
        assert_eq!((other.new_text("input"), other.only_text("input")), (String::new(), None));
        assert_eq!(arguments(r#"{"input":1}"#).only_text("input"), None);
        assert_eq!(arguments(r#"{"input":"a","more":1}"#).only_text("input"), None);
        let mut twice = arguments(r#"{"input":"a","input":"b"}"#);
        twice.finish(r#"{"input":"b"}"#.to_owned());
        assert_eq!((twice.whole(), twice.only_text("input").as_deref()), (r#"{"input":"b"}"#, Some("b")));
    }
}
