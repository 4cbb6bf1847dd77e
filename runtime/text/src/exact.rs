//! Whole numbers that no machine number holds, kept digit by digit from a history's arguments to the prompt, as Python's
//! integers are. All other numbers are binary64, in Python as here.

use minijinja::Value;
use minijinja::value::{Object, ObjectRepr, Serde};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// Begins the text that stands for such a number among JSON values. No text has it by the rules of Unicode.
const MARK: char = '\u{FDD1}';
/// Longest number: Python reads no longer ones either.
const MOST_DIGITS: usize = 4300;

/// Reads JSON for a chat template: what [`crate::ChatTemplate::render`] is given of it prints as Python prints it.
pub fn exact_json(text: &str) -> serde_json::Result<Json> {
    serde_json::from_str(&marked(text))
}

/// The text with long whole numbers as marked texts.
fn marked(text: &str) -> Cow<'_, str> {
    let (mut out, mut copied, mut at, mut in_string) = (String::new(), 0, 0, false);
    let bytes = text.as_bytes();
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' if in_string => at += 1,
            b'"' => in_string = !in_string,
            b'-' | b'0'..=b'9' if !in_string => {
                let is_number = |b: &u8| matches!(b, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
                let end = bytes.get(at..).and_then(|rest| rest.iter().position(|b| !is_number(b)));
                let end = end.map_or(bytes.len(), |n| at + n);
                let number = text.get(at..end).unwrap_or_default();
                if is_long(number) {
                    out.push_str(text.get(copied..at).unwrap_or_default());
                    out.extend(['"', MARK]);
                    out.push_str(number);
                    out.push('"');
                    copied = end;
                }
                at = end - 1;
            }
            _ => {}
        }
        at += 1;
    }
    if copied == 0 { Cow::Borrowed(text) } else { Cow::Owned(out + text.get(copied..).unwrap_or_default()) }
}

/// Whether it is a whole number that no machine number holds.
fn is_long(number: &str) -> bool {
    let digits = number.strip_prefix('-').unwrap_or(number);
    let is_whole = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
    is_whole && digits.len() <= MOST_DIGITS && number.parse::<i64>().is_err() && number.parse::<u64>().is_err()
}

/// A variable of a template.
pub(crate) fn variable(json: Json) -> Value {
    if has_marked(&json) { exact(json) } else { Value::from(Serde(json)) }
}

fn has_marked(json: &Json) -> bool {
    match json {
        Json::String(text) => text.starts_with(MARK),
        Json::Array(items) => items.iter().any(has_marked),
        Json::Object(map) => map.values().any(has_marked),
        _ => false,
    }
}

fn exact(json: Json) -> Value {
    match json {
        Json::String(text) => match text.strip_prefix(MARK).filter(|digits| is_long(digits)) {
            Some(digits) => match digits.parse::<i128>() {
                Ok(number) => Value::from(number),
                Err(_) => Value::from_object(Digits(digits.to_owned())),
            },
            None => Value::from(text),
        },
        Json::Array(items) => items.into_iter().map(exact).collect(),
        Json::Object(map) => Value::from_pairs(map.into_iter().map(|(key, item)| (key, exact(item)))),
        other => Value::from(Serde(other)),
    }
}

/// A whole number, digit by digit.
pub(crate) struct Digits(pub String);

impl fmt::Debug for Digits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Object for Digits {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use crate::ChatTemplate;
    use serde_json::{Map, Value, json};

    /// What Python writes for the arguments `text`, by `json.dumps(json.loads(text))` and by `str` of its members.
    fn prints(text: &str) -> (String, String) {
        let mut variables = Map::new();
        variables.insert("v".into(), json!([{"arguments": super::exact_json(text).unwrap()}]));
        let source = "{{ v[0].arguments | tojson }}\n{% for k, x in v[0].arguments.items() %}{{ k }}={{ x if k == 'a' }};{% endfor %}";
        let all = ChatTemplate::new(source, Map::new()).unwrap().render(variables).unwrap();
        let (json, items) = all.split_once('\n').unwrap();
        (json.to_owned(), items.to_owned())
    }

    #[test]
    fn numbers_print_as_python_prints_them() {
        let long = "7".repeat(60);
        for (given, shown) in [
            ("12345678901234567890.123", "1.2345678901234567e+19"),
            ("18446744073709551616", "18446744073709551616"),
            ("-9223372036854775809", "-9223372036854775809"),
            ("18446744073709551615", "18446744073709551615"),
            ("1e3", "1000.0"),
            ("0.1", "0.1"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            (&long, &long),
        ] {
            let expected = (format!("{{\"a\": {shown}, \"b\": [{shown}]}}"), format!("a={shown};b=;"));
            assert_eq!(prints(&format!("{{\"a\": {given}, \"b\":[{given}]}}")), expected);
        }
    }

    #[test]
    fn digits_in_texts_stay_texts() {
        let digits = "123456789012345678901234567890";
        let (json, _) = prints(&format!(r#"{{"a\"{digits}": "{digits}", "b": {digits}, "c": "\\{digits}"}}"#));
        assert_eq!(json, format!(r#"{{"a\"{digits}": "{digits}", "b": {digits}, "c": "\\{digits}"}}"#));
        assert!(super::exact_json("{\"a\": 00123456789012345678901234}").is_err());
        assert_eq!(super::exact_json("[1, 2.5]").unwrap(), json!([1, 2.5]));
        assert!(matches!(super::exact_json(&"9".repeat(5000)), Err(_) | Ok(Value::Number(_))));
    }
}
