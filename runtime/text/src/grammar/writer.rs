//! Writes the Lark text that llguidance compiles: rules, terminals, and pieces of text in which control tokens stand by id.

use super::GrammarError;
use super::formats::with_dates;
use super::guard::Left;
use super::prepared::{Fault, has_open_names, prepared};
use super::space::space;
use super::tokens::Vocabulary;
use super::wholes;
use llguidance::regex_to_lark;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Escapes of strings but for `\u0041`, by which an open name could spell one that is listed.
const ESCAPES: &str = "nrbtf\\\"";

/// Text or expression without control tokens, or a control token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A control token's id.
    Control(u32),
    /// A text.
    Text(String),
    /// A regular expression.
    Regex(String),
}

/// One grammar under construction.
pub(crate) struct Writer {
    vocabulary: Arc<Vocabulary>,
    lines: Vec<String>,
    names: HashMap<String, String>,
    /// Keys of `names` in the order in which they came.
    named: Vec<String>,
    bytes: usize,
    budget: Budget,
    /// What its schemas and expressions may still cost.
    pub left: Left,
    /// Whether it is the grammar of a turn.
    pub in_turn: bool,
}

/// What one wish may cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Most bytes of the grammar's text.
    pub bytes: usize,
    /// When work on it ends.
    pub until: Instant,
    /// How long that was when it began.
    pub time: Duration,
}

impl Budget {
    /// So many bytes, and so long from now on.
    pub fn new(bytes: usize, time: Duration) -> Budget {
        let now = Instant::now();
        Budget { bytes, until: now.checked_add(time).unwrap_or(now), time }
    }

    /// An error if the time is up.
    pub fn in_time(&self, place: &str) -> Result<(), GrammarError> {
        if Instant::now() < self.until {
            return Ok(());
        }
        Err(GrammarError::Slow { place: place.to_owned(), limit_ms: self.time.as_millis() as u64, times: 1 })
    }
}

/// How far a grammar was written at some time.
pub(crate) struct Mark {
    lines: usize,
    named: usize,
    bytes: usize,
}

impl Writer {
    /// An empty grammar.
    pub fn new(vocabulary: Arc<Vocabulary>, budget: Budget) -> Writer {
        let (lines, names, named) = (Vec::new(), HashMap::new(), Vec::new());
        Writer { vocabulary, lines, names, named, bytes: 0, budget, left: Left::default(), in_turn: false }
    }

    /// An error if the time is up.
    pub fn in_time(&self, place: &str) -> Result<(), GrammarError> {
        self.budget.in_time(place)
    }

    /// Where the grammar stands.
    pub fn mark(&self) -> Mark {
        Mark { lines: self.lines.len(), named: self.named.len(), bytes: self.bytes }
    }

    /// Forgets what was written since.
    pub fn back_to(&mut self, mark: Mark) {
        self.lines.truncate(mark.lines);
        self.named.drain(mark.named.min(self.named.len())..).for_each(|key| drop(self.names.remove(&key)));
        self.bytes = mark.bytes;
    }

    /// The vocabulary that the grammar is for.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// The whole text, which begins with `start`.
    pub fn finish(mut self, start: &str) -> Result<String, GrammarError> {
        self.bytes = self.bytes.saturating_add(start.len());
        if self.bytes > self.budget.bytes {
            return Err(GrammarError::TooLarge {
                place: "grammar".to_owned(),
                what: "the grammar has bytes:".to_owned(),
                found: self.bytes.to_string(),
                limit: self.budget.bytes.to_string(),
            });
        }
        Ok(format!("start: {start}\n{}\n", self.lines.join("\n")))
    }

    /// A rule of that content; its name. Equal content has one name.
    pub fn rule(&mut self, content: &str) -> String {
        self.named("r", content)
    }

    /// A terminal of that content; its name. Equal content has one name.
    pub fn terminal(&mut self, content: &str) -> String {
        self.named("T", content)
    }

    /// A rule that is filled later, so that it can refer to itself.
    pub fn forward(&mut self) -> String {
        let name = format!("f{}", self.names.len());
        self.named.push(name.clone());
        self.names.insert(name.clone(), name.clone());
        name
    }

    /// Fills such a rule.
    pub fn fill(&mut self, name: &str, content: &str) {
        self.push(name, content);
    }

    fn named(&mut self, prefix: &str, content: &str) -> String {
        let key = format!("{prefix}:{content}");
        if let Some(name) = self.names.get(&key) {
            return name.clone();
        }
        let name = format!("{prefix}{}", self.names.len());
        self.push(&name, content);
        self.named.push(key.clone());
        self.names.insert(key, name.clone());
        name
    }

    fn push(&mut self, name: &str, content: &str) {
        // Names are kept beside the lines; what is over the limit is only counted.
        self.bytes += 2 * (name.len() + content.len()) + 4;
        if self.bytes <= self.budget.bytes {
            self.lines.push(format!("{name}: {content}"));
        }
    }

    /// A text in pieces, control tokens by id.
    pub fn pieces(&self, text: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((at, len, id)) = self.vocabulary.first_control(rest) {
            let (before, after) = (rest.get(..at).unwrap_or(""), rest.get(at + len..).unwrap_or(""));
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            pieces.push(Piece::Control(id));
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        pieces
    }

    /// Pieces one after another, as content of a rule.
    pub fn sequence(&mut self, pieces: &[Piece]) -> String {
        let parts: Vec<String> = pieces
            .iter()
            .map(|piece| match piece {
                Piece::Control(id) => format!("<[{id}]>"),
                Piece::Text(text) => quoted(text),
                Piece::Regex(regex) => self.terminal(&slashed(regex)),
            })
            .collect();
        if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") }
    }

    /// A rule for JSON of a request's schema at that place.
    pub fn schema(&mut self, place: &str, schema: &Value, strict: bool) -> Result<String, GrammarError> {
        self.left.schema(place, schema)?;
        let prepared = prepared(schema, strict).map_err(|problem| {
            let next = match problem.fault {
                Fault::Number => "choose a number that is held",
                Fault::Unheld => "simplify it, or leave `strict` out",
                Fault::Wrong => "correct it",
            };
            GrammarError::bad(&problem.below(place), problem.problem, next)
        })?;
        Ok(self.json(&prepared, strict))
    }

    /// A rule for JSON of a prepared schema, without white space around it.
    pub fn json(&mut self, schema: &Value, strict: bool) -> String {
        if let Some(part) = wholes::are_needed(schema).then(|| wholes::parts(schema)).flatten() {
            return wholes::rule(self, schema, &part, strict);
        }
        self.json_spaced(schema, strict, &space(schema))
    }

    /// The same, with that white space between its parts.
    pub fn json_spaced(&mut self, schema: &Value, strict: bool, space: &str) -> String {
        let mut schema = match schema {
            Value::Object(map) => map.clone(),
            // Nothing satisfies it.
            Value::Bool(false) => serde_json::Map::from_iter([
                ("type".to_owned(), json!("integer")),
                ("minimum".to_owned(), json!(1)),
                ("maximum".to_owned(), json!(0)),
            ]),
            _ => serde_json::Map::new(),
        };
        let mut options = json!({"whitespace_pattern": space, "coerce_one_of": true, "lenient": !strict});
        if strict && has_open_names(&Value::Object(schema.clone())) {
            options["json_allowed_escapes"] = json!(ESCAPES);
        }
        schema.insert("x-guidance".to_owned(), options);
        let mut schema = Value::Object(schema);
        with_dates(&mut schema);
        self.rule(&format!("%json {schema}"))
    }
}

/// A text as a Lark string.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A regular expression as Lark writes one.
pub(crate) fn slashed(regex: &str) -> String {
    // Two slashes alone begin a comment.
    let regex = if regex.is_empty() { "(?:)" } else { regex };
    format!("/{}/", regex_to_lark(regex, ""))
}
