//! Arguments of a call while they come: the JSON text as it was written, and the text inside that a free-text tool is for.

use serde_json::Value;
use std::collections::HashMap;

/// Arguments of one call.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    /// The JSON text so far.
    json: String,
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

    /// The JSON text of the complete object. An argument that was written twice counts once, where it stood first, with its
    /// last value.
    pub fn last_values(&self) -> String {
        let Some(pairs) = pairs(&self.json) else { return self.json.clone() };
        let mut kept: Vec<(&str, &str)> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (key, value) in &pairs {
            match places.get(&**key).and_then(|at| kept.get_mut(*at)) {
                Some(place) => place.1 = value,
                None => {
                    places.insert(key, kept.len());
                    kept.push((key, value));
                }
            }
        }
        if kept.len() == pairs.len() {
            return self.json.clone();
        }
        let kept: Vec<String> = kept.iter().map(|(key, value)| format!("{key}:{value}")).collect();
        format!("{{{}}}", kept.join(","))
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
        match serde_json::from_str(&self.last_values()).ok()? {
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

/// Keys and values of a JSON object's text, as they are spelt; `None` if it is not complete.
fn pairs(json: &str) -> Option<Vec<(&str, &str)>> {
    let inner = json.trim().strip_prefix('{')?.strip_suffix('}')?;
    let (mut pairs, mut depth, mut is_text, mut is_escaped) = (Vec::new(), 0_usize, false, false);
    let (mut begin, mut colon) = (0, None);
    for (at, byte) in inner.bytes().enumerate() {
        if is_text {
            (is_text, is_escaped) = (byte != b'"' || is_escaped, byte == b'\\' && !is_escaped);
            continue;
        }
        match byte {
            b'"' => is_text = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.checked_sub(1)?,
            b':' if depth == 0 && colon.is_none() => colon = Some(at),
            b',' if depth == 0 => {
                pairs.push(pair(inner, begin, colon.take()?, at)?);
                begin = at + 1;
            }
            _ => {}
        }
    }
    if is_text || depth > 0 {
        return None;
    }
    match colon {
        Some(colon) => pairs.push(pair(inner, begin, colon, inner.len())?),
        None if pairs.is_empty() && inner.trim().is_empty() => {}
        None => return None,
    }
    Some(pairs)
}

fn pair(inner: &str, begin: usize, colon: usize, end: usize) -> Option<(&str, &str)> {
    Some((inner.get(begin..colon)?.trim(), inner.get(colon + 1..end)?.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(json: &str) -> Arguments {
        Arguments { json: json.into(), ..Arguments::default() }
    }

    #[test]
    fn the_last_of_each_counts() {
        for (json, kept) in [
            ("{}", "{}"),
            (r#"{"a":1,"b":2}"#, r#"{"a":1,"b":2}"#),
            (r#"{"a":1,"b":[1,{"a":2}],"a":"x,\"}"}"#, r#"{"a":"x,\"}","b":[1,{"a":2}]}"#),
            (r#"{"a":123456789012345678901234567890,"a":3.0}"#, r#"{"a":3.0}"#),
            (r#"{"a":1,"a":"#, r#"{"a":1,"a":"#),
        ] {
            assert_eq!(arguments(json).last_values(), kept);
        }
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
    }
}
