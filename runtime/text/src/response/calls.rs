//! One call of a tool: its name from the opener or from its content, its arguments from its content, in the shape that the
//! template's `transform` says.

use super::tags::{Around, TagReader};
use super::template::{CallContent, CallFormat, ResponseTemplate};
use super::types::Tools;
use super::{Event, Held, ParseOptions};
use serde_json::{Map, Value};
use std::sync::Arc;

/// A call whose region is open.
#[derive(Debug)]
pub(crate) struct OpenCall {
    pub field: usize,
    /// The tool, where the opener says it.
    pub name: Option<String>,
    /// Number among the calls of declared tools, once it went out.
    pub index: Option<usize>,
    /// Whether a call may stand here at all.
    pub usable: bool,
    /// Offset of its text.
    pub begins: usize,
    captures: Vec<(String, String)>,
    streamed: bool,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Tags(Box<TagReader>),
    Text(String),
}

/// What a call became.
pub(crate) enum Call {
    Complete {
        name: String,
        /// A JSON object.
        arguments: String,
        /// Nothing of it went out before.
        new: bool,
    },
    /// The tool is not declared, or has no name.
    Dropped(Option<String>),
    /// A declared tool's call that never ended.
    Cut,
}

/// What all calls of an answer are read with.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub template: &'a Arc<ResponseTemplate>,
    pub tools: &'a Tools,
    pub options: &'a ParseOptions,
}

impl Source<'_> {
    fn format(&self, field: usize) -> Option<&CallFormat> {
        self.template.fields.get(field)?.call.as_ref()
    }

    fn around<'b>(&'b self, format: &'b CallFormat, tool: &'b str) -> Option<Around<'b>> {
        let CallContent::Tags(tags) = &format.content else { return None };
        let held = self.options.held != Held::Free;
        // What goes out only at the call's end has no reason to go out early.
        let early = self.options.early_values && format.streamed_name.is_some();
        Some(Around { format: tags, tools: self.tools, tool, early, held })
    }
}

impl OpenCall {
    pub fn new(field: usize, format: &CallFormat, captures: Vec<(String, String)>, begins: usize) -> OpenCall {
        let named = format.streamed_name.as_ref();
        let name = named.and_then(|n| captures.iter().find(|(key, _)| key == n)).map(|(_, name)| name.clone());
        let content = match &format.content {
            CallContent::Tags(tags) => Content::Tags(Box::new(TagReader::new(tags))),
            CallContent::Json => Content::Text(String::new()),
        };
        OpenCall { field, name, index: None, usable: true, begins, captures, streamed: named.is_some(), content }
    }

    /// Whether the opener says which tool it is.
    pub fn known(&self) -> bool {
        self.streamed
    }

    /// Whether its text ended inside a JSON string that a grammar holds.
    pub fn in_json_string(&self) -> bool {
        matches!(&self.content, Content::Tags(reader) if reader.in_json_string())
    }

    /// Takes text.
    pub fn push(&mut self, source: Source, text: &str, events: &mut Vec<Event>) {
        let Some(format) = source.format(self.field) else { return };
        // Nobody sees a call of an unknown tool.
        if !self.usable || (self.streamed && self.index.is_none()) {
            return;
        }
        match &mut self.content {
            Content::Text(all) => all.push_str(text),
            Content::Tags(reader) => {
                let tool = self.name.clone().unwrap_or_default();
                let Some(around) = source.around(format, &tool) else { return };
                let mut json = String::new();
                reader.push(around, text, &mut json);
                if let Some(index) = self.index.filter(|_| !json.is_empty()) {
                    events.push(Event::Arguments { index, json });
                }
            }
        }
    }

    /// The region ends.
    pub fn finish(self, source: Source, complete: bool, events: &mut Vec<Event>) -> Vec<Call> {
        let Some(format) = source.format(self.field).filter(|_| self.usable) else { return Vec::new() };
        if self.streamed && self.index.is_none() {
            return Vec::new();
        }
        let tool = self.name.clone().unwrap_or_default();
        let content = match self.content {
            Content::Text(text) => serde_json::from_str(&text).ok(),
            Content::Tags(reader) => {
                let Some(around) = source.around(format, &tool) else { return Vec::new() };
                let mut json = String::new();
                let arguments = reader.finish(around, complete, &mut json);
                if let Some(index) = self.index {
                    if !json.is_empty() {
                        events.push(Event::Arguments { index, json });
                    }
                    return match arguments {
                        Some(arguments) => vec![Call::Complete { name: tool, arguments, new: false }],
                        None => vec![Call::Cut],
                    };
                }
                arguments.and_then(|text| serde_json::from_str(&text).ok())
            }
        };
        if !complete {
            return Vec::new();
        }
        let Some(content) = content else { return vec![Call::Dropped(None)] };
        shaped(format, &self.captures, content).into_iter().map(|shape| call(&shape, source.tools)).collect()
    }
}

/// The content in the template's shape: one call, or several.
fn shaped(format: &CallFormat, captures: &[(String, String)], content: Value) -> Vec<Value> {
    let with = |content: Value| {
        let mut values: Map<String, Value> = captures.iter().map(|(k, v)| (k.clone(), v.clone().into())).collect();
        values.insert("content".into(), content);
        Value::Object(values)
    };
    let content = match &format.transform {
        Some(shape) => filled(shape, &with(content)),
        None => content,
    };
    let items = match content {
        Value::Array(items) => items,
        one => vec![one],
    };
    match &format.transform_each {
        Some(shape) => items.into_iter().map(|item| filled(shape, &with(item))).collect(),
        None => items,
    }
}

/// The shape with its placeholders replaced.
fn filled(shape: &Value, values: &Value) -> Value {
    match shape {
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), filled(value, values))).collect(),
        Value::Array(items) => items.iter().map(|item| filled(item, values)).collect(),
        Value::String(text) => {
            let path = text.strip_prefix('{').and_then(|t| t.strip_suffix('}'));
            let path = path.filter(|p| !p.is_empty() && !p.contains(['{', '}']));
            let Some(path) = path else { return shape.clone() };
            path.split('.').try_fold(values, |value, key| value.get(key)).cloned().unwrap_or(Value::Null)
        }
        other => other.clone(),
    }
}

/// Reads a call in its shape.
fn call(shape: &Value, tools: &Tools) -> Call {
    let shape = shape.get("function").unwrap_or(shape);
    let Some(name) = shape.get("name").and_then(Value::as_str) else { return Call::Dropped(None) };
    if !tools.has(name) {
        return Call::Dropped(Some(name.to_owned()));
    }
    let arguments = match shape.get("arguments") {
        Some(Value::String(text)) if matches!(serde_json::from_str(text), Ok(Value::Object(_))) => text.clone(),
        None | Some(Value::Null) => "{}".to_owned(),
        Some(other) => other.to_string(),
    };
    Call::Complete { name: name.to_owned(), arguments, new: true }
}
