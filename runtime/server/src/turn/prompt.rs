//! From messages to token ids: the chat template writes the prompt, the tokenizer reads it.

use super::request::{ToolChoice, TurnRequest};
use crate::app::App;
use crate::error::ApiError;
use serde_json::{Value, json};

/// Characters that no text contains by the rules of Unicode, so that one of them can mark a place in a prompt.
const MARKS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

/// What the model is given.
#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    pub ids: Vec<u32>,
    /// The text that they spell; empty where ids were given.
    pub text: String,
}

/// The prompt of a request. Rendering and encoding may take long: call it off the threads that serve connections.
pub(crate) fn prompt(app: &App, request: &TurnRequest) -> Result<Prompt, ApiError> {
    if let Some(ids) = &request.input_ids {
        return Ok(Prompt { ids: ids.clone(), text: String::new() });
    }
    let tools = shown_tools(request);
    let template = app.text.template_for(tools.is_some()).ok_or_else(|| {
        let message = "the model directory has no chat template; add `chat_template.jinja` or use `/v1/completions`";
        ApiError::field(request.names.prompt, "no_chat_template", message)
    })?;
    let own = request.template.as_ref().map(|source| template.with_source(source)).transpose();
    let own = own.map_err(|error| ApiError::field("chat_template", "template_error", error.to_string()))?;
    let template = own.as_ref().unwrap_or(template);
    let mut messages = request.messages.clone();
    let protected = if app.options.sanitize_control_tokens { protect(app, &mut messages)? } else { None };
    let end = if request.continues { Some(mark_end(&mut messages, protected, request)?) } else { None };
    let mut variables = request.variables.clone();
    if let Some(effort) = &request.reasoning_effort {
        variables.insert("reasoning_effort".into(), effort.clone());
    }
    variables.insert("add_generation_prompt".into(), json!(request.add_generation_prompt && !request.continues));
    variables.insert("messages".into(), Value::Array(messages));
    variables.insert("tools".into(), tools.unwrap_or(Value::Null));
    let mut text = template
        .render(variables)
        .map_err(|error| ApiError::field(request.names.prompt, "template_error", error.to_string()))?;
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
    match value {
        Value::String(text) => text.contains(mark),
        Value::Array(items) => items.iter().any(|item| contains(item, mark)),
        Value::Object(map) => map.iter().any(|(key, item)| key.contains(mark) || contains(item, mark)),
        _ => false,
    }
}

/// Breaks control tokens that messages spell with a mark, so that they are encoded as plain text; the mark, if any was
/// needed.
fn protect(app: &App, messages: &mut [Value]) -> Result<Option<char>, ApiError> {
    let spelt = |value: &Value| app.control_tokens.iter().any(|token| spells(value, token));
    if !messages.iter().any(spelt) {
        return Ok(None);
    }
    let mark = MARKS.into_iter().find(|mark| !messages.iter().any(|m| contains(m, *mark))).ok_or_else(|| {
        ApiError::field("messages", "invalid_value", "the messages use every character that is none; remove some")
    })?;
    messages.iter_mut().for_each(|message| break_up(message, &app.control_tokens, mark));
    Ok(Some(mark))
}

fn spells(value: &Value, token: &str) -> bool {
    match value {
        Value::String(text) => text.contains(token),
        Value::Array(items) => items.iter().any(|item| spells(item, token)),
        Value::Object(map) => map.values().any(|item| spells(item, token)),
        _ => false,
    }
}

fn break_up(value: &mut Value, tokens: &[String], mark: char) {
    match value {
        Value::String(text) => {
            for token in tokens.iter().filter(|token| text.contains(token.as_str())).cloned().collect::<Vec<_>>() {
                let first = token.chars().next().map_or(0, char::len_utf8);
                let (head, tail) = token.split_at(first);
                *text = text.replace(&token, &format!("{head}{mark}{tail}"));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| break_up(item, tokens, mark)),
        Value::Object(map) => map.values_mut().for_each(|item| break_up(item, tokens, mark)),
        _ => {}
    }
}

fn encoded(app: &App, text: String, mark: Option<char>, param: &str) -> Result<Prompt, ApiError> {
    let Some(mark) = mark else { return Ok(Prompt { ids: app.encode(&text, false, param)?, text }) };
    let mut ids = Vec::new();
    for piece in text.split(mark) {
        ids.extend(app.encode(piece, false, param)?);
    }
    Ok(Prompt { ids, text: text.replace(mark, "") })
}
