//! From messages to token ids: the chat template writes the prompt, the tokenizer reads it.

use super::request::{ToolChoice, TurnRequest};
use super::work::Work;
use crate::app::{App, Gone};
use crate::controls::Controls;
use crate::error::ApiError;
use serde_json::{Map, Value, json};

/// Characters that no text contains by the rules of Unicode, so that one of them can mark a place in a prompt.
const MARKS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

/// What the model is given.
#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    pub ids: Vec<u32>,
    /// The text that they spell; empty where ids were given.
    pub text: String,
    /// Stands in the text where a control token is only spelt, so that nothing takes it for one.
    pub mark: Option<char>,
}

/// The prompt of a request. Rendering and encoding may take long: call it off the threads that serve connections.
pub(crate) fn prompt(app: &App, request: &TurnRequest, gone: &Gone) -> Result<Prompt, ApiError> {
    if let Some(ids) = &request.input_ids {
        return Ok(Prompt { ids: ids.clone(), text: String::new(), mark: None });
    }
    let work = Work::of(request);
    work.may_fit(app, request.names.prompt)?;
    let tools = shown_tools(request);
    let template = app.text.template_for(tools.is_some()).ok_or_else(|| {
        let message = "the model directory has no chat template; add `chat_template.jinja` or use `/v1/completions`";
        ApiError::field(request.names.prompt, "no_chat_template", message)
    })?;
    let own = request.template.as_ref().map(|source| template.with_source(source)).transpose();
    let own = own.map_err(|error| ApiError::field("chat_template", "template_error", error.to_string()))?;
    let template = own.as_ref().unwrap_or(template);
    let mut variables = request.variables.clone();
    if let Some(effort) = &request.reasoning_effort {
        variables.insert("reasoning_effort".into(), effort.clone());
    }
    variables.insert("add_generation_prompt".into(), json!(request.add_generation_prompt && !request.continues));
    variables.insert("messages".into(), Value::Array(request.messages.clone()));
    variables.insert("tools".into(), tools.unwrap_or(Value::Null));
    let protected = if app.options.sanitize_control_tokens { protect(app, &mut variables, request)? } else { None };
    let end = match variables.get_mut("messages") {
        Some(Value::Array(messages)) if request.continues => Some(mark_end(messages, protected, request)?),
        _ => None,
    };
    let mut text = work.rendered(app, template, variables, gone, request.names.prompt)?;
    if let Some(mark) = end {
        let at = text.rfind(mark).ok_or_else(|| {
            let message = "the chat template does not write the last message's content, so it cannot be continued; let the messages end with another's";
            ApiError::field(request.names.prompt, "template_error", message)
        })?;
        text.truncate(at);
    }
    encoded(app, text, protected, request.names.prompt)
}

/// Tools as the template shows them: all with a named choice too, so that the prompt's beginning stays the same.
fn shown_tools(request: &TurnRequest) -> Option<Value> {
    let hidden = request.tools.is_empty() || request.tool_choice == ToolChoice::None;
    (!hidden).then(|| request.tools.iter().map(super::Tool::json).collect())
}

/// Marks the end of the last message's content, behind which the template may close the message.
fn mark_end(messages: &mut [Value], taken: Option<char>, request: &TurnRequest) -> Result<char, ApiError> {
    let refused = |what: &str| {
        let message = format!("the last message {what}; an assistant's message with text can be continued");
        ApiError::field(request.names.prompt, "invalid_value", message)
    };
    let mark = MARKS
        .filter(|mark| Some(*mark) != taken)
        .find(|mark| !messages.iter().any(|message| contains(message, *mark)))
        .ok_or_else(|| refused("uses too many characters that are no characters"))?;
    let last = messages.last_mut().and_then(Value::as_object_mut).ok_or_else(|| refused("is missing"))?;
    if last.get("role").and_then(Value::as_str) != Some("assistant") {
        return Err(refused("is not an assistant's"));
    }
    if last.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty()) {
        return Err(refused("ends with calls"));
    }
    let content = last.get("content").and_then(Value::as_str).unwrap_or_default();
    let marked = format!("{content}{mark}");
    last.insert("content".into(), Value::String(marked));
    Ok(mark)
}

fn contains(value: &Value, mark: char) -> bool {
    any_text(value, &|text: &str| text.contains(mark))
}

/// Breaks control tokens that a request's texts spell with a mark, so that they are encoded as plain text: in messages, tools
/// and all else that the template may write. The mark, if any was needed.
fn protect(app: &App, variables: &mut Map<String, Value>, request: &TurnRequest) -> Result<Option<char>, ApiError> {
    let spells = |text: &str| !app.controls.seams(text).is_empty();
    if !variables.values().any(|value| any_text(value, &spells)) {
        return Ok(None);
    }
    let is_free = |mark: &char| !variables.values().any(|value| contains(value, *mark));
    let mark = MARKS.into_iter().find(is_free).ok_or_else(|| {
        let message = "the request uses every character that is none; remove some";
        ApiError::field(request.names.prompt, "invalid_value", message)
    })?;
    variables.values_mut().for_each(|value| break_up(value, &app.controls, mark));
    Ok(Some(mark))
}

fn any_text(value: &Value, is_meant: &impl Fn(&str) -> bool) -> bool {
    match value {
        Value::String(text) => is_meant(text),
        Value::Array(items) => items.iter().any(|item| any_text(item, is_meant)),
        Value::Object(map) => map.iter().any(|(key, item)| is_meant(key) || any_text(item, is_meant)),
        _ => false,
    }
}

fn break_up(value: &mut Value, controls: &Controls, mark: char) {
    match value {
        Value::String(text) => *text = broken_up(text, controls, mark),
        Value::Array(items) => items.iter_mut().for_each(|item| break_up(item, controls, mark)),
        Value::Object(map) => {
            map.values_mut().for_each(|item| break_up(item, controls, mark));
            if map.keys().any(|key| !controls.seams(key).is_empty()) {
                *map = std::mem::take(map).into_iter().map(|(k, v)| (broken_up(&k, controls, mark), v)).collect();
            }
        }
        _ => {}
    }
}

fn broken_up(text: &str, controls: &Controls, mark: char) -> String {
    let (mut broken, mut from) = (String::with_capacity(text.len()), 0);
    for seam in controls.seams(text) {
        broken.push_str(text.get(from..seam).unwrap_or_default());
        broken.push(mark);
        from = seam;
    }
    broken + text.get(from..).unwrap_or_default()
}

fn encoded(app: &App, text: String, mark: Option<char>, param: &str) -> Result<Prompt, ApiError> {
    let Some(of) = mark else { return Ok(Prompt { ids: app.encode(&text, false, param)?, text, mark }) };
    app.may_fit(text.len(), param)?;
    let mut ids = Vec::new();
    for piece in text.split(of) {
        ids.extend(app.encode(piece, false, param)?);
    }
    Ok(Prompt { ids, text, mark })
}
