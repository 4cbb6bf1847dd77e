//! Where the keys of a `config.json` stand, and how errors about a spec made from it find back to them.

use crate::document::{Kind, Node};
use ir::Span;
use std::collections::HashMap;

/// Places of the keys of a JSON object, by dotted path.
#[derive(Debug)]
pub(crate) struct Places {
    file: u32,
    keys: HashMap<String, (Span, Span)>,
}

impl Places {
    /// Reads a text that is known to be JSON.
    pub fn read(text: &str, file: u32) -> Places {
        let mut scanner = Scanner { bytes: text.as_bytes(), at: 0, file, keys: HashMap::new() };
        scanner.value("");
        Places { file, keys: scanner.keys }
    }

    /// Place of a key; of the nearest one above it that exists, if it is absent itself; else the file's start.
    pub fn key(&self, path: &str) -> Span {
        self.find(path).map_or(Span { file: self.file, start: 0, end: 0 }, |(key, _)| key)
    }

    /// Place of a key's value, as [`Self::key`].
    pub fn value(&self, path: &str) -> Span {
        self.find(path).map_or(Span { file: self.file, start: 0, end: 0 }, |(_, value)| value)
    }

    fn find(&self, path: &str) -> Option<(Span, Span)> {
        let mut at = path;
        loop {
            if let Some(found) = self.keys.get(at) {
                return Some(*found);
            }
            at = at.rsplit_once('.')?.0;
        }
    }
}

/// A walk over JSON that keeps places. Its depth is that of a parser that refused what is nested too deep.
struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    file: u32,
    keys: HashMap<String, (Span, Span)>,
}

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn blanks(&mut self) {
        while self.peek().is_some_and(|b| b.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    /// Skips a string with its quotes.
    fn string(&mut self) -> Span {
        let start = self.at;
        self.at += 1;
        while let Some(b) = self.peek() {
            self.at += 1 + usize::from(b == b'\\');
            if b == b'"' {
                break;
            }
        }
        self.span(start)
    }

    fn span(&self, start: usize) -> Span {
        Span { file: self.file, start: start as u32, end: self.at.min(self.bytes.len()) as u32 }
    }

    fn value(&mut self, path: &str) {
        self.blanks();
        match self.peek() {
            Some(b'{') => self.object(path),
            Some(b'[') => {
                self.at += 1;
                self.items(|s| s.value("\0"));
            }
            Some(b'"') => drop(self.string()),
            _ => {
                while self.peek().is_some_and(|b| !b.is_ascii_whitespace() && !matches!(b, b',' | b']' | b'}')) {
                    self.at += 1;
                }
            }
        }
    }

    /// What stands between brackets, up to the closing one.
    fn items(&mut self, mut item: impl FnMut(&mut Self)) {
        loop {
            self.blanks();
            match self.peek() {
                None => return,
                Some(b']' | b'}') => {
                    self.at += 1;
                    return;
                }
                Some(b',') => self.at += 1,
                Some(_) => {
                    let before = self.at;
                    item(self);
                    // Text that is no JSON must not hold the walk.
                    self.at = self.at.max(before + 1);
                }
            }
        }
    }

    fn object(&mut self, path: &str) {
        self.at += 1;
        self.items(|s| {
            let key = s.string();
            let quoted = s.bytes.get(key.start as usize..key.end as usize).unwrap_or(b"");
            let name: String = serde_json::from_slice(quoted).unwrap_or_default();
            let inner = if path.is_empty() { name } else { format!("{path}.{name}") };
            s.blanks();
            s.at += usize::from(s.peek() == Some(b':'));
            s.blanks();
            let start = s.at;
            s.value(&inner);
            let value = s.span(start);
            s.keys.insert(inner, (key, value));
        });
    }
}

/// Lines of a made text and the places of a config that they come from.
#[derive(Clone, Debug)]
pub(crate) struct Origins {
    /// The config.
    pub file: u32,
    /// First byte of each line in the made text, ascending, with the places of key and value.
    lines: Vec<(u32, Span, Span)>,
}

impl Origins {
    /// None of this file yet.
    pub fn of(file: u32) -> Self {
        Origins { file, lines: Vec::new() }
    }

    /// Notes that the line which begins at byte `start` of the made text comes from these places.
    pub fn line(&mut self, start: usize, key: Span, value: Span) {
        self.lines.push((start as u32, key, value));
    }

    fn at(&self, span: Span) -> (Span, Span) {
        let behind = self.lines.partition_point(|(start, ..)| *start <= span.start);
        let none = Span { file: self.file, start: 0, end: 0 };
        behind.checked_sub(1).and_then(|i| self.lines.get(i)).map_or((none, none), |(_, key, value)| (*key, *value))
    }

    /// Lets every place of a parsed text be that of the config.
    pub fn map(&self, node: &mut Node) {
        node.span = self.at(node.span).1;
        match &mut node.kind {
            Kind::Table(table) => {
                for (key, value) in table.values_mut() {
                    *key = self.at(*key).0;
                    self.map(value);
                }
            }
            Kind::Array(items) => items.iter_mut().for_each(|n| self.map(n)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_where_they_stand() {
        let text = r#"{ "b": {"a\"x": [1, {"z": 2}], "c": true}, "a": "b" , "c":-1.5e3 }"#;
        let places = Places::read(text, 7);
        let shown = |s: Span| &text[s.start as usize..s.end as usize];
        let found = |path: &str| (shown(places.key(path)), shown(places.value(path)));
        assert_eq!(found("b.a\"x"), ("\"a\\\"x\"", r#"[1, {"z": 2}]"#));
        assert_eq!(found("b.c"), ("\"c\"", "true"));
        assert_eq!(found("c"), ("\"c\"", "-1.5e3"));
        assert_eq!(found("a"), ("\"a\"", "\"b\""));
        assert_eq!(found("b.nothing.at.all").0, "\"b\"");
        assert_eq!(places.key("nothing"), Span { file: 7, start: 0, end: 0 });
    }

    #[test]
    fn texts_that_are_no_json_end() {
        for text in ["", "{", "{\"", "{\"a", "[[[", "}{", "{:,]", "{\"a\":", "\\"] {
            Places::read(text, 0);
        }
    }
}
