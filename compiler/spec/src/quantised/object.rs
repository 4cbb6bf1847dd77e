//! An object of a quantisation config, read key by key, so that what is refused or left over is told at its place.

use crate::Diagnostic;
use crate::config::Places;
use ir::Span;
use serde_json::Value;
use std::collections::BTreeSet;

/// A JSON value with the dotted path that leads to it.
pub(super) struct Object<'a> {
    value: &'a Value,
    path: String,
    places: &'a Places,
    out: &'a mut Vec<Diagnostic>,
    errors_before: usize,
    used: BTreeSet<String>,
}

impl<'a> Object<'a> {
    pub fn new(value: &'a Value, path: &str, places: &'a Places, out: &'a mut Vec<Diagnostic>) -> Self {
        let errors_before = out.len();
        Object { value, path: path.to_owned(), places, out, errors_before, used: BTreeSet::new() }
    }

    /// The dotted path of a key, from the top of the file.
    pub fn path(&self, key: &str) -> String {
        [self.path.as_str(), key].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".")
    }

    /// What stands at a dotted path below the object; absent and null are the same.
    pub fn get(&mut self, key: &str) -> Option<&'a Value> {
        self.used.insert(key.to_owned());
        key.split('.').filter(|k| !k.is_empty()).try_fold(self.value, |at, k| at.get(k)).filter(|v| !v.is_null())
    }

    /// Keys of the object at a dotted path, in the order of the file.
    pub fn keys(&self, path: &str) -> Vec<String> {
        let at = path.split('.').try_fold(self.value, |at, k| at.get(k));
        at.and_then(Value::as_object).into_iter().flatten().map(|(key, _)| key.clone()).collect()
    }

    pub fn has(&self, key: &str) -> bool {
        self.value.get(key).is_some_and(|v| !v.is_null())
    }

    pub fn word(&mut self, key: &str) -> Option<&'a str> {
        self.get(key).and_then(Value::as_str)
    }

    /// Keys that change nothing.
    pub fn skip(&mut self, keys: &[&str]) {
        self.used.extend(keys.iter().map(|k| (*k).to_owned()));
    }

    /// What a key says, with the path that leads to it.
    pub fn said(&mut self, key: &str) -> String {
        let path = self.path(key);
        format!("`{path}` is {}", self.get(key).map_or_else(|| "absent".to_owned(), shortened))
    }

    pub fn span(&self, key: &str) -> Span {
        self.places.key(&self.path(key))
    }

    pub fn failed(&self) -> bool {
        self.out.len() > self.errors_before
    }

    /// Refuses what a key says (or that it is absent); `read` says what is read instead.
    pub fn refuse(&mut self, key: &str, read: &str) {
        let path = self.path(key);
        let found = self.get(key).map_or_else(|| "absent".to_owned(), shortened);
        let d = Diagnostic::error("B0403", format!("`{path}` is {found}, and {read}"));
        let d = d.at(self.places.key(&path), if found == "absent" { "has no such key".to_owned() } else { found });
        self.out.push(d.help("quantise the checkpoint anew in a format that is read, or use the unquantised one"));
    }

    /// Refuses a key unless it has one of these values; null stands for an absent one.
    pub fn demand(&mut self, key: &str, allowed: &[Value]) {
        let found = self.get(key).cloned().unwrap_or(Value::Null);
        if !allowed.contains(&found) {
            let word = |v: &Value| if v.is_null() { "no value".to_owned() } else { v.to_string() };
            let words: Vec<String> = allowed.iter().map(word).collect();
            self.refuse(key, &format!("only {} is read there", words.join(" or ")));
        }
    }

    /// An error of another kind at a key.
    pub fn error(&mut self, key: &str, d: Diagnostic, label: &str) {
        let span = self.span(key);
        self.out.push(d.at(span, label));
    }

    /// The texts of a list; nothing if it is no such list, which is told.
    pub fn texts(&mut self, key: &str) -> Option<Vec<String>> {
        let Some(value) = self.get(key) else { return Some(Vec::new()) };
        let texts = value.as_array().and_then(|a| a.iter().map(|v| v.as_str().map(str::to_owned)).collect());
        if texts.is_none() {
            self.refuse(key, "a list of module names or patterns is read there");
        }
        texts
    }

    /// Refuses every key that was not asked for, unless it says nothing.
    pub fn unread(&mut self) {
        let mut left = Vec::new();
        leaves(self.value, "", &mut left);
        for path in left {
            let used =
                |u: &String| path == *u || path.strip_prefix(u.as_str()).is_some_and(|rest| rest.starts_with('.'));
            if !self.used.iter().any(used) {
                self.refuse(&path, "no such key is read");
            }
        }
    }
}

/// Paths of values that say something.
fn leaves(value: &Value, path: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                leaves(inner, &if path.is_empty() { key.clone() } else { format!("{path}.{key}") }, out);
            }
        }
        Value::Null | Value::Bool(false) => {}
        Value::Array(items) if items.is_empty() => {}
        Value::String(text) if text.is_empty() => {}
        _ => out.push(path.to_owned()),
    }
}

/// A value as messages show it.
fn shortened(value: &Value) -> String {
    const MOST: usize = 60;
    let text = value.to_string();
    if text.chars().count() <= MOST {
        return text;
    }
    format!("{}…", text.chars().take(MOST).collect::<String>())
}
