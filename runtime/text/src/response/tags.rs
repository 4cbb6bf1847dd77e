//! Arguments written as elements: reads `key` and `value` of each match of a template's `tag_pattern` as text comes in,
//! and writes the call's arguments as JSON, piece by piece.

use super::json_place::JsonPlace;
use super::pattern::{Halves, PatternSet};
use super::scan::{Found, Scan};
use super::strip::Strip;
use super::types::{Tools, Types, is_json, quoted};
use std::collections::{BTreeSet, HashMap};

/// How arguments are written.
#[derive(Debug)]
pub(crate) struct TagFormat {
    pub opener: PatternSet,
    pub terminator: PatternSet,
    pub strip: bool,
    /// Values are JSON in themselves, not text that a schema gives types.
    pub json_values: bool,
}

impl TagFormat {
    pub fn new(halves: Halves, strip: bool, json_values: bool) -> TagFormat {
        let [opener, terminator] = [halves.opener, halves.terminator].map(|p| PatternSet::new(vec![p]));
        TagFormat { opener, terminator, strip, json_values }
    }
}

/// What a call's arguments are read with.
#[derive(Clone, Copy)]
pub(crate) struct Around<'a> {
    pub format: &'a TagFormat,
    pub tools: &'a Tools,
    pub tool: &'a str,
    /// Text values go out before they end, and one that never ends is kept.
    pub early: bool,
    /// A grammar held the arguments to the schema.
    pub held: bool,
}

/// Reads the text of one call.
#[derive(Debug)]
pub(crate) struct TagReader {
    buf: String,
    /// Offset of the buffer's first byte in the call's text.
    base: usize,
    scan: Scan,
    value: Option<OpenValue>,
    /// Keys in the order of their first appearance, with JSON of their last value.
    pairs: Vec<(String, String)>,
    places: HashMap<String, usize>,
    /// How many keys were written out.
    written: usize,
    /// Whether pairs wait for the call's end: an undeclared one came, which no grammar keeps from coming again.
    withholds: bool,
    /// Places of pairs that wait.
    waiting: BTreeSet<usize>,
}

#[derive(Debug)]
struct OpenValue {
    key: String,
    types: Types,
    /// The text so far; JSON without its closing quote if it goes out early.
    text: String,
    early: bool,
    /// Whether it goes out at all before the call ends.
    shown: bool,
    strip: Strip,
    /// Offset of the text that was not taken yet.
    taken: usize,
    /// In a value that a grammar holds to JSON: where that stands.
    json: Option<JsonPlace>,
}

impl TagReader {
    pub fn new(format: &TagFormat) -> TagReader {
        TagReader {
            buf: String::new(),
            base: 0,
            scan: Scan::new(&format.opener, 0),
            value: None,
            pairs: Vec::new(),
            places: HashMap::new(),
            written: 0,
            withholds: false,
            waiting: BTreeSet::new(),
        }
    }

    /// Whether the text ended inside a JSON string that a grammar holds, where nothing is markup.
    pub fn in_json_string(&self) -> bool {
        self.value.as_ref().and_then(|v| v.json.as_ref()).is_some_and(|json| json.in_string)
    }

    /// Takes text; adds JSON that is certain to `out`.
    pub fn push(&mut self, around: Around, text: &str, out: &mut String) {
        self.buf.push_str(text);
        while self.advance(around, out) {}
        let taken = self.value.as_ref().map_or(usize::MAX, |v| v.taken);
        let cut = taken.min(self.scan.certain()).saturating_sub(self.base).min(self.buf.len());
        // Moving the rest to the front costs its length, so that what is cut pays for it.
        if cut >= self.buf.len() - cut {
            self.buf.drain(..cut);
            self.base += cut;
        }
    }

    /// One step; false when more text is needed.
    fn advance(&mut self, around: Around, out: &mut String) -> bool {
        let Some(value) = &mut self.value else {
            let found = self.scan.feed(&around.format.opener, self.buf.as_bytes(), self.base);
            return found.map(|found| self.open(around, found, out)).is_some();
        };
        let bytes = self.buf.as_bytes();
        let mut limit = self.buf.len();
        if let Some(json) = &mut value.json {
            if json.in_string {
                let rest = bytes.get(json.pos - self.base..).unwrap_or(&[]);
                for byte in rest {
                    json.read(*byte);
                    if !json.in_string {
                        break;
                    }
                }
                let (pos, closed) = (json.pos, !json.in_string);
                self.scan = Scan::new(&around.format.terminator, pos);
                value.take(&self.buf, self.base, pos, out);
                return closed;
            }
            // Not beyond a quote, behind which a string may be open.
            let from = self.scan.pos - self.base;
            let quote = bytes.get(from..).and_then(|rest| rest.iter().position(|b| *b == b'"'));
            limit = quote.map_or(limit, |n| from + n + 1);
        }
        let visible = bytes.get(..limit).unwrap_or(bytes);
        if let Some(found) = self.scan.feed(&around.format.terminator, visible, self.base) {
            self.end_value(around, found, out);
            return true;
        }
        let certain = self.scan.certain();
        let mut opened = false;
        if let Some(json) = &mut value.json {
            let piece = bytes.get(json.pos - self.base..certain - self.base).unwrap_or(&[]);
            for byte in piece {
                json.read(*byte);
                if json.in_string {
                    break;
                }
            }
            opened = json.in_string;
        }
        value.take(&self.buf, self.base, value.json.as_ref().map_or(certain, |json| json.pos), out);
        opened || limit < self.buf.len()
    }

    /// A value ended at the match.
    fn end_value(&mut self, around: Around, found: Found, out: &mut String) {
        if let Some(value) = &mut self.value {
            value.take(&self.buf, self.base, found.start, out);
        }
        let text = self.buf.get(found.start - self.base..found.end - self.base).unwrap_or("");
        let len = around.format.terminator.patterns.first().map_or(text.len(), |p| p.caught(text).len);
        self.scan = Scan::new(&around.format.opener, found.start + len);
        self.close(around, out);
    }

    /// An element begins with the match.
    fn open(&mut self, around: Around, found: Found, out: &mut String) {
        let text = self.buf.get(found.start - self.base..found.end - self.base).unwrap_or("");
        let caught = around.format.opener.patterns.first().map(|p| p.caught(text));
        let key = caught.and_then(|c| c.groups.into_iter().find(|(name, _)| name == "key")).map(|(_, key)| key);
        let key = key.unwrap_or_default();
        let types = around.tools.types(around.tool, &key, around.held);
        let early = around.early && !around.format.json_values && types.is_text();
        let held = around.held && (types.is_json() || around.format.json_values);
        self.withholds |= !around.tools.names(around.tool, &key);
        let shown = !self.withholds;
        let mut text = String::new();
        if early {
            text.push('"');
        }
        if early && shown {
            self.write_key(&key, out);
            out.push('"');
        }
        self.value = Some(OpenValue {
            key,
            types,
            text,
            early,
            shown,
            strip: Strip::new(around.format.strip),
            taken: found.end,
            json: held.then(|| JsonPlace::at(found.end)),
        });
        self.scan = Scan::new(&around.format.terminator, found.end);
    }

    fn write_key(&mut self, key: &str, out: &mut String) {
        out.push(if self.written == 0 { '{' } else { ',' });
        self.written += 1;
        out.push_str(&quoted(key));
        out.push(':');
    }

    /// The value is complete.
    fn close(&mut self, around: Around, out: &mut String) {
        let Some(value) = self.value.take() else { return };
        let shown = value.shown;
        let json = if value.early {
            if shown {
                out.push('"');
            }
            value.text + "\""
        } else {
            let json = match around.format.json_values {
                true if is_json(&value.text) => value.text,
                true => quoted(&value.text),
                false => value.types.json(&value.text),
            };
            if shown {
                self.write_key(&value.key, out);
                out.push_str(&json);
            }
            json
        };
        let place = *self.places.entry(value.key.clone()).or_insert(self.pairs.len());
        match self.pairs.get_mut(place) {
            Some(pair) => pair.1 = json,
            None => self.pairs.push((value.key, json)),
        }
        if !shown {
            self.waiting.insert(place);
        }
    }

    /// Writes the pairs that waited.
    fn write_waiting(&mut self, out: &mut String) {
        for place in std::mem::take(&mut self.waiting) {
            if let Some((key, json)) = self.pairs.get(place).cloned() {
                self.write_key(&key, out);
                out.push_str(&json);
            }
        }
    }

    /// The call ends; undecided text belongs to it. Returns the arguments if the call is complete.
    pub fn finish(mut self, around: Around, complete: bool, out: &mut String) -> Option<String> {
        loop {
            while self.advance(around, out) {}
            match self.scan.at_end() {
                Some(found) if self.value.is_some() => self.end_value(around, found, out),
                Some(found) => self.open(around, found, out),
                None => break,
            }
        }
        let end = self.base + self.buf.len();
        if let Some(value) = &mut self.value {
            value.take(&self.buf, self.base, end, out);
        }
        if !complete {
            self.write_waiting(out);
            if let Some(value) = self.value.take().filter(|value| value.early && !value.shown) {
                self.write_key(&value.key, out);
                out.push_str(&value.text);
            }
            return None;
        }
        if around.early {
            self.close(around, out);
        }
        self.write_waiting(out);
        out.push_str(if self.written == 0 { "{}" } else { "}" });
        let pairs: Vec<String> = self.pairs.iter().map(|(key, json)| format!("{}:{json}", quoted(key))).collect();
        Some(format!("{{{}}}", pairs.join(",")))
    }
}

impl OpenValue {
    /// Takes the text up to the offset `end`.
    fn take(&mut self, buf: &str, base: usize, end: usize, out: &mut String) {
        let piece = buf.get(self.taken - base..end - base).unwrap_or("");
        self.taken = end;
        let piece = self.strip.push(piece);
        if self.early {
            let escaped = quoted(&piece);
            let inner = escaped.get(1..escaped.len() - 1).unwrap_or("");
            self.text.push_str(inner);
            if self.shown {
                out.push_str(inner);
            }
        } else {
            self.text.push_str(&piece);
        }
    }
}
