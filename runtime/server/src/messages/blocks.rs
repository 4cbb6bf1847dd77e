//! System text and messages of content blocks, brought into the form that chat templates read.

use super::thinking;
use crate::error::{ApiError, brief};
use crate::fields::{Fields, missing, wrong_type};
use crate::parts::{self, text_of, typed, word};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Calls so far by their ids: the name of the tool, until its result has come.
type Open = HashMap<String, Option<String>>;

/// The type of blocks that are text.
const TEXT: [&str; 1] = ["text"];

/// The messages, and whether the last is an assistant's that is to be continued.
pub(super) fn messages(fields: Fields<'_>) -> Result<(Vec<Value>, bool), ApiError> {
    let mut messages = Vec::new();
    if let Some(system) = fields.get("system") {
        let text = text_of(system, "system", &TEXT)?;
        messages.push(json!({"role": "system", "content": text}));
    }
    let list = fields.list("messages")?.ok_or_else(|| missing("messages"))?;
    if list.is_empty() {
        let message = "`messages` is empty, at least one message is needed";
        return Err(ApiError::field("messages", "invalid_value", message));
    }
    let mut open = Open::new();
    let mut continues = false;
    for (i, message) in list.iter().enumerate() {
        let at = format!("messages[{i}]");
        let map = message.as_object().ok_or_else(|| wrong_type(&at, message, "an object"))?;
        let map = Fields(map);
        let content = map.get("content").ok_or_else(|| missing(&format!("{at}.content")))?;
        let (at_role, at_content) = (format!("{at}.role"), format!("{at}.content"));
        continues = false;
        match map.get("role") {
            None => return Err(missing(&at_role)),
            Some(role) if role == "user" => user(content, &at_content, &mut open, &mut messages)?,
            Some(role) if role == "assistant" => {
                answered(&open, &at)?;
                messages.push(assistant(content, &at_content, &mut open)?);
                continues = true;
            }
            Some(other) => {
                return Err(wrong_type(&at_role, other, "`user` or `assistant`; put other text in `system`"));
            }
        }
    }
    if !continues {
        answered(&open, &format!("messages[{}]", list.len() - 1))?;
    }
    Ok((messages, continues))
}

/// Each call has its result by now, which a user's messages bring before the assistant's next.
fn answered(open: &Open, at: &str) -> Result<(), ApiError> {
    match open.iter().filter(|(_, name)| name.is_some()).map(|(id, _)| id).min() {
        None => Ok(()),
        Some(id) => {
            let message = format!(
                "`{at}` comes without a `tool_result` for {} before; send the result of each call behind it",
                brief(&json!(id))
            );
            Err(ApiError::field(at, "invalid_value", message))
        }
    }
}

/// A user's message: results of tools become messages of their own, in the order in which they stand among the text.
fn user(content: &Value, at: &str, open: &mut Open, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let Value::Array(blocks) = content else {
        messages.push(json!({"role": "user", "content": text_of(content, at, &TEXT)?}));
        return Ok(());
    };
    if blocks.is_empty() {
        let message = format!("`{at}` is an empty list, at least one block is needed");
        return Err(ApiError::field(at, "invalid_value", message));
    }
    let mut text: Option<String> = None;
    for (i, block) in blocks.iter().enumerate() {
        let at = format!("{at}[{i}]");
        let (kind, block) = typed(block, &at)?;
        match kind {
            "text" => text.get_or_insert_default().push_str(word(block, &at, "text")?),
            "tool_result" => {
                messages.extend(text.take().map(|text| json!({"role": "user", "content": text})));
                messages.push(result(block, &at, open)?);
            }
            kind => return Err(unread(kind, &at)),
        }
    }
    messages.extend(text.map(|text| json!({"role": "user", "content": text})));
    Ok(())
}

/// What a tool said.
fn result(block: Fields<'_>, at: &str, open: &mut Open) -> Result<Value, ApiError> {
    let id = word(block, at, "tool_use_id")?;
    let content = match block.get("content") {
        None => String::new(),
        Some(content) => text_of(content, &format!("{at}.content"), &TEXT)?,
    };
    let mut message = Map::new();
    message.insert("role".into(), json!("tool"));
    message.insert("tool_call_id".into(), json!(id));
    let failed = parts::switch(block, at, "is_error")?.unwrap_or(false);
    let at_id = format!("{at}.tool_use_id");
    let refused = |what: &str| {
        let message = format!("`{at_id}` is {}, {what}", brief(&json!(id)));
        Err(ApiError::field(&*at_id, "invalid_value", message))
    };
    match open.entry(id.to_owned()) {
        Entry::Vacant(_) => return refused("which no `tool_use` before it has; send the call with its result"),
        Entry::Occupied(mut call) => match call.get_mut().take() {
            None => return refused("whose result was sent already; send it once"),
            Some(name) => message.insert("name".into(), json!(name)),
        },
    };
    message.insert("content".into(), json!(content));
    if failed {
        message.insert("is_error".into(), json!(true));
    }
    Ok(Value::Object(message))
}

/// An assistant's message: its reasoning, its text and its calls, which wait for their results.
fn assistant(content: &Value, at: &str, open: &mut Open) -> Result<Value, ApiError> {
    let mut message = Map::new();
    message.insert("role".into(), json!("assistant"));
    let Value::Array(blocks) = content else {
        message.insert("content".into(), json!(text_of(content, at, &TEXT)?));
        return Ok(Value::Object(message));
    };
    let (mut text, mut thought, mut calls) = (None::<String>, None::<String>, Vec::new());
    for (i, block) in blocks.iter().enumerate() {
        let at = format!("{at}[{i}]");
        let (kind, block) = typed(block, &at)?;
        match kind {
            "text" => text.get_or_insert_default().push_str(word(block, &at, "text")?),
            "thinking" => thought.get_or_insert_default().push_str(&thinking::thought(block, &at)?),
            "redacted_thinking" => thought.get_or_insert_default().push_str(&thinking::redacted(block, &at)?),
            "tool_use" => {
                let (id, name) = (word(block, &at, "id")?, word(block, &at, "name")?);
                let at_input = format!("{at}.input");
                let input = block.get("input").ok_or_else(|| missing(&at_input))?;
                if !input.is_object() {
                    return Err(wrong_type(&at_input, input, "an object"));
                }
                if open.insert(id.to_owned(), Some(name.to_owned())).is_some() {
                    let at_id = format!("{at}.id");
                    let message = format!("`{at_id}` is {}, as a call before it; give each its own", brief(&json!(id)));
                    return Err(ApiError::field(at_id, "invalid_value", message));
                }
                calls.push(json!({"id": id, "type": "function", "function": {"name": name, "arguments": input}}));
            }
            kind => return Err(unread(kind, &at)),
        }
    }
    if let Some(text) = text {
        message.insert("content".into(), json!(text));
    }
    if let Some(thought) = thought.filter(|thought| !thought.is_empty()) {
        message.insert("reasoning_content".into(), json!(thought));
        message.insert("thinking".into(), json!(thought));
    }
    if !calls.is_empty() {
        message.insert("tool_calls".into(), Value::Array(calls));
    }
    Ok(Value::Object(message))
}

fn unread(kind: &str, at: &str) -> ApiError {
    parts::unread(kind, at, "which this model cannot read here")
}
