//! A response template, read and compiled: which text of an answer is reasoning, which is the answer, which calls a tool.
//!
//! Everything that a format is made of comes from here. A template that uses what this engine does not have is refused
//! when it is read, with the path of the key.

use super::ResponseError;
use super::pattern::{Pattern, PatternSet, halves};
use super::scan::Scan;
use super::tags::TagFormat;
use serde_json::{Map, Value};
use std::path::Path;

/// Most fields and closers of a template.
const MOST: usize = 64;

/// A compiled response template.
#[derive(Debug)]
pub struct ResponseTemplate {
    anchor: Option<PatternSet>,
    pub(crate) fields: Vec<Field>,
    /// Patterns that end text outside regions: openers, then closers of the field that owns such text.
    pub(crate) outside: PatternSet,
    /// The field that each of them opens.
    pub(crate) opens: Vec<Option<usize>>,
    /// The field that owns text outside regions.
    pub(crate) rest: Option<usize>,
    /// Closes nothing.
    pub(crate) never: PatternSet,
}

/// What the text of a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Reasoning,
    Content,
    Calls,
}

/// Patterns, and the literals among them that end with the start of a next message.
type Closers = (Vec<Pattern>, Vec<(String, usize)>);

#[derive(Debug)]
pub(crate) struct Field {
    pub role: Role,
    pub closers: PatternSet,
    /// Literal closers that end with the start of the next message, and the length of what stands before that.
    pub half_closers: Vec<(String, usize)>,
    pub strip: bool,
    pub join: Option<String>,
    pub call: Option<CallFormat>,
}

/// How the regions of a field become calls.
#[derive(Debug)]
pub(crate) struct CallFormat {
    pub content: CallContent,
    /// The call's shape; None if the content has that shape itself.
    pub transform: Option<Value>,
    pub transform_each: Option<Value>,
    /// The capture that is the tool's name, where arguments are the content, so that a call can go out while it is read.
    pub streamed_name: Option<String>,
}

#[derive(Debug)]
pub(crate) enum CallContent {
    Tags(Box<TagFormat>),
    Json,
}

impl ResponseTemplate {
    /// Reads a file that holds a template.
    pub fn from_file(file: &Path) -> Result<ResponseTemplate, ResponseError> {
        match std::fs::read_to_string(file) {
            Ok(text) => ResponseTemplate::from_json(&text),
            Err(error) => Err(ResponseError::Read { file: file.to_owned(), error: error.to_string() }),
        }
    }

    /// The template in a model directory's `tokenizer_config.json`, if it has one.
    pub fn from_dir(dir: &Path) -> Result<Option<ResponseTemplate>, ResponseError> {
        let file = dir.join("tokenizer_config.json");
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(ResponseError::Read { file, error: error.to_string() }),
        };
        let config: Value = serde_json::from_str(&text)
            .map_err(|e| ResponseError::Json { error: format!("{}: {e}", file.display()) })?;
        config.get("response_template").filter(|t| !t.is_null()).map(ResponseTemplate::from_value).transpose()
    }

    /// Reads a template's text.
    pub fn from_json(text: &str) -> Result<ResponseTemplate, ResponseError> {
        let value = serde_json::from_str(text).map_err(|e| ResponseError::Json { error: e.to_string() })?;
        ResponseTemplate::from_value(&value)
    }

    /// Compiles a template.
    pub fn from_value(value: &Value) -> Result<ResponseTemplate, ResponseError> {
        let top = Keys::of("(whole template)", value)?;
        top.only(&["version", "defaults", "start_anchor", "start_anchor_pattern", "fields"])?;
        if let Some(version) = top.get("version").filter(|v| v.as_u64() != Some(1)) {
            return Err(top.wrong("version", format!("is {version}, this engine runs version 1"), "use version 1"));
        }
        if let Some(defaults) = top.get("defaults") {
            Keys::of("defaults", defaults)?.only(&["role"])?;
        }
        let anchor = pattern_of(&top, "start_anchor", "start_anchor_pattern")?;
        let anchor = anchor.map(|pattern| PatternSet::new(vec![pattern]));
        let Some(given) = top.get("fields") else {
            return Err(top.wrong("fields", "is absent", "say which fields an answer has"));
        };
        let given = Keys::of("fields", given)?;
        let mut template = ResponseTemplate {
            anchor,
            fields: Vec::new(),
            outside: PatternSet::new(Vec::new()),
            opens: Vec::new(),
            rest: None,
            never: PatternSet::new(Vec::new()),
        };
        let (mut openers, mut enders) = (Vec::new(), Vec::new());
        given.only(&["thinking", "content", "tool_calls"])?;
        for (name, value) in given.map {
            let index = template.fields.len();
            let keys = Keys::of(&format!("fields.{name}"), value)?;
            let opener = pattern_of(&keys, "open", "open_pattern")?;
            let field = template.field(name, &keys, opener.as_ref())?;
            match opener {
                Some(opener) => openers.push((opener, Some(index))),
                None if template.rest.is_some() || field.role == Role::Calls => {
                    let problem = "has neither `open` nor `open_pattern`";
                    return Err(ResponseError::template(
                        &keys.place,
                        problem,
                        "give it one; one text field may have none",
                    ));
                }
                None => {
                    template.rest = Some(index);
                    enders.extend(template.closers(&keys)?.0.into_iter().map(|p| (p, None)));
                }
            }
            template.fields.push(field);
        }
        openers.extend(enders);
        let (patterns, opens) = openers.into_iter().unzip();
        (template.outside, template.opens) = (PatternSet::new(patterns), opens);
        Ok(template)
    }

    fn field(&self, name: &str, keys: &Keys, opener: Option<&Pattern>) -> Result<Field, ResponseError> {
        keys.only(&[
            "open",
            "open_pattern",
            "close",
            "close_pattern",
            "content",
            "content_args",
            "repeats",
            "join",
            "optional",
            "transform",
            "transform_each",
        ])?;
        for key in ["repeats", "optional"] {
            keys.flag(key)?;
        }
        let role = match name {
            "thinking" => Role::Reasoning,
            "content" => Role::Content,
            _ => Role::Calls,
        };
        let (closers, half_closers) = self.closers(keys)?;
        let content = keys.text("content")?.unwrap_or("text");
        let args = keys.get("content_args").map(|v| Keys::of(&keys.path("content_args"), v)).transpose()?;
        let (mut strip, mut call) = (false, None);
        if role == Role::Calls {
            call = Some(call_format(keys, content, args.as_ref(), opener)?);
        } else {
            if content != "text" {
                return Err(keys.wrong("content", format!("is `{content}`, the field is text"), "write `text`"));
            }
            for key in ["transform", "transform_each"] {
                if keys.get(key).is_some() {
                    return Err(keys.wrong(key, "stands in a field that is text", "leave it out"));
                }
            }
            if let Some(args) = &args {
                args.only(&["strip"])?;
                strip = args.flag("strip")?;
            }
        }
        let join = keys.text("join")?.map(str::to_owned);
        Ok(Field { role, closers: PatternSet::new(closers), half_closers, strip, join, call })
    }

    /// Patterns that close a field, and those that contain the start of the next message.
    fn closers(&self, keys: &Keys) -> Result<Closers, ResponseError> {
        let literals: Vec<&str> = match keys.get("close") {
            None => Vec::new(),
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(many)) if many.iter().all(Value::is_string) => {
                many.iter().filter_map(Value::as_str).collect()
            }
            Some(_) => return Err(keys.wrong("close", "is neither a string nor a list of them", "write one of these")),
        };
        if literals.len() > MOST {
            return Err(keys.wrong(
                "close",
                format!("has {} closers, the limit is {MOST}", literals.len()),
                "use fewer",
            ));
        }
        let place = keys.path("close");
        let mut patterns: Vec<Pattern> = Vec::new();
        let mut half = Vec::new();
        for literal in literals {
            patterns.push(Pattern::literal(&place, literal)?);
            if let Some(anchor) = self.last_anchor(literal).filter(|a| a.1 == literal.len() && a.0 > 0) {
                half.push((literal.to_owned(), anchor.0));
            }
        }
        if let Some(pattern) = keys.text("close_pattern")? {
            if keys.get("close").is_some() {
                return Err(keys.wrong("close_pattern", "stands beside `close`", "keep one of them"));
            }
            patterns.push(Pattern::regex(&keys.path("close_pattern"), pattern)?);
        }
        Ok((patterns, half))
    }

    /// Start and end of the last place where a message begins.
    fn last_anchor(&self, text: &str) -> Option<(usize, usize)> {
        let anchor = self.anchor.as_ref()?;
        let (mut last, mut from) = (None, 0);
        loop {
            let mut scan = Scan::new(anchor, from);
            let found = scan.feed(anchor, text.as_bytes(), 0).or_else(|| scan.at_end());
            let Some(found) = found else { return last };
            last = Some((found.start, found.end));
            from = found.end;
        }
    }

    /// The part of a prompt in which the message has begun already. Without an anchor in the template that is all of the
    /// text, so give only the last message then.
    pub fn begun<'a>(&self, prompt: &'a str) -> &'a str {
        if self.anchor.is_none() {
            return prompt;
        }
        self.last_anchor(prompt).and_then(|(_, end)| prompt.get(end..)).unwrap_or("")
    }

    /// What opens a field.
    pub(crate) fn opener(&self, field: usize) -> Option<&Pattern> {
        let at = self.opens.iter().position(|opens| *opens == Some(field))?;
        self.outside.patterns.get(at)
    }

    /// Where a message begins.
    pub(crate) fn anchor(&self) -> Option<&Pattern> {
        self.anchor.as_ref()?.patterns.first()
    }

    /// Whether a literal ends with the start of a message.
    pub(crate) fn ends_with_anchor(&self, text: &str) -> bool {
        self.last_anchor(text).is_some_and(|(_, end)| end == text.len())
    }

    /// Whether the text of the token that stopped generation closes a call by itself; then it is part of what is parsed,
    /// otherwise it is not.
    pub fn closes_call(&self, token: &str) -> bool {
        self.fields.iter().filter(|field| field.role == Role::Calls).any(|field| {
            let mut scan = Scan::at(&field.closers, 0);
            let found = scan.feed(&field.closers, token.as_bytes(), 0).or_else(|| scan.at_end());
            found.is_some_and(|found| found.end == token.len())
        })
    }
}

fn pattern_of(keys: &Keys, literal: &str, regex: &str) -> Result<Option<Pattern>, ResponseError> {
    match (keys.text(literal)?, keys.text(regex)?) {
        (Some(_), Some(_)) => Err(keys.wrong(regex, format!("stands beside `{literal}`"), "keep one of them")),
        (Some(text), None) => Pattern::literal(&keys.path(literal), text).map(Some),
        (None, Some(text)) => Pattern::regex(&keys.path(regex), text).map(Some),
        (None, None) => Ok(None),
    }
}

fn call_format(
    keys: &Keys,
    content: &str,
    args: Option<&Keys>,
    opener: Option<&Pattern>,
) -> Result<CallFormat, ResponseError> {
    if keys.get("join").is_some() {
        return Err(keys.wrong("join", "stands in a field that is no text", "leave it out"));
    }
    let content = match content {
        "xml-inline" => CallContent::Tags(Box::new(tag_format(keys, args)?)),
        "json" => CallContent::Json,
        other => {
            let problem = format!("is `{other}`; calls can be read from `xml-inline` and `json`");
            return Err(keys.wrong("content", problem, "use one of them"));
        }
    };
    let transform = keys.get("transform").cloned();
    let transform_each = keys.get("transform_each").cloned();
    for (key, value) in [("transform", &transform), ("transform_each", &transform_each)] {
        if value.as_ref().is_some_and(|v| !v.is_object()) {
            return Err(keys.wrong(key, "is not an object", "write the shape of a call"));
        }
    }
    let leaf = |name: &str| {
        let shape = transform.as_ref()?;
        shape.get("function").unwrap_or(shape).get(name)?.as_str()?.strip_prefix('{')?.strip_suffix('}')
    };
    let captures = opener.map(Pattern::names).unwrap_or_default();
    let name = leaf("name").filter(|name| captures.iter().any(|c| c == name));
    let direct = matches!(content, CallContent::Tags(_)) && transform_each.is_none();
    let streamed_name = name.filter(|_| direct && leaf("arguments") == Some("content")).map(str::to_owned);
    if transform.is_none() && transform_each.is_none() && matches!(content, CallContent::Tags(_)) {
        return Err(keys.wrong("transform", "is absent, so a call has no name", "say where the name comes from"));
    }
    Ok(CallFormat { content, transform, transform_each, streamed_name })
}

fn tag_format(keys: &Keys, args: Option<&Keys>) -> Result<TagFormat, ResponseError> {
    let absent = || keys.wrong("content_args", "has no `tag_pattern`", "give one with groups `key` and `value`");
    let args = args.ok_or_else(absent)?;
    args.only(&["tag_pattern", "value_parser"])?;
    let halves = halves(&args.path("tag_pattern"), args.text("tag_pattern")?.ok_or_else(absent)?)?;
    let (mut strip, mut json) = (false, false);
    if let Some(parser) = args.get("value_parser").filter(|p| p.as_str() != Some("text")) {
        let parser = Keys::of(&args.path("value_parser"), parser)?;
        parser.only(&["name", "args"])?;
        json = match parser.text("name")?.unwrap_or("text") {
            "text" => false,
            "json" => true,
            other => return Err(parser.wrong("name", format!("is `{other}`"), "use `text` or `json`")),
        };
        if let Some(args) = parser.get("args") {
            let args = Keys::of(&parser.path("args"), args)?;
            args.only(&["strip"])?;
            strip = args.flag("strip")?;
        }
    }
    Ok(TagFormat::new(halves, strip, json))
}

/// An object of the template with its path.
struct Keys<'a> {
    place: String,
    map: &'a Map<String, Value>,
}

impl<'a> Keys<'a> {
    fn of(place: &str, value: &'a Value) -> Result<Keys<'a>, ResponseError> {
        match value.as_object() {
            Some(map) if map.len() <= MOST => Ok(Keys { place: place.to_owned(), map }),
            Some(map) => {
                let problem = format!("has {} keys, the limit is {MOST}", map.len());
                Err(ResponseError::template(place, problem, "use fewer"))
            }
            None => Err(ResponseError::template(place, "is not an object", "write an object there")),
        }
    }

    fn path(&self, key: &str) -> String {
        if self.place.starts_with('(') { key.to_owned() } else { format!("{}.{key}", self.place) }
    }

    fn wrong(&self, key: &str, problem: impl Into<String>, next: &str) -> ResponseError {
        ResponseError::template(&self.path(key), problem, next)
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, ResponseError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(key, "is not a string", "write a string"))
    }

    fn flag(&self, key: &str) -> Result<bool, ResponseError> {
        let Some(value) = self.get(key) else { return Ok(false) };
        value.as_bool().ok_or_else(|| self.wrong(key, "is not true or false", "write one of them"))
    }

    fn only(&self, known: &[&str]) -> Result<(), ResponseError> {
        match self.map.keys().find(|key| !known.contains(&key.as_str())) {
            Some(key) => {
                let next = format!("known here: {}", known.join(", "));
                Err(self.wrong(key, "is not a key that this engine knows", &next))
            }
            None => Ok(()),
        }
    }
}
