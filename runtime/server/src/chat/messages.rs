//! The messages of a chat request, checked and brought into the form that chat templates read.

use crate::error::{ApiError, brief};
use crate::fields::{Fields, missing, wrong_type};
use crate::parts::text_of;
use serde_json::{Map, Value, json};
use std::collections::HashSet;

const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];
/// Names under which the reasoning of an earlier answer arrives; templates get it under the first.
const REASONING: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// Types of parts that are read.
const TEXTS: [&str; 2] = ["text", "refusal"];

/// The checked messages.
pub(crate) fn messages(fields: Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let list = fields.list("messages")?.ok_or_else(|| missing("messages"))?;
    if list.is_empty() {
        return Err(ApiError::field(
            "messages",
            "invalid_value",
            "`messages` is empty, at least one message is needed",
        ));
    }
    let mut calls = Calls::default();
    let read = |(i, value): (usize, &Value)| {
        let at = format!("messages[{i}]");
        let message = message(value, &at)?;
        calls.judge(&message, &at)?;
        Ok(message)
    };
    list.iter().enumerate().map(read).collect()
}

/// The calls so far, whose results may come.
#[derive(Default)]
struct Calls {
    ids: HashSet<String>,
    /// One had no id, so that any could be its own.
    is_open: bool,
}

impl Calls {
    /// Notes a message's calls, and refuses the result of one that nobody made.
    fn judge(&mut self, message: &Value, at: &str) -> Result<(), ApiError> {
        for call in message.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            match call.get("id").and_then(Value::as_str) {
                Some(id) => drop(self.ids.insert(id.to_owned())),
                None => self.is_open = true,
            }
        }
        let is_result = message.get("role").is_some_and(|role| role == "tool");
        let id = message.get("tool_call_id").and_then(Value::as_str).filter(|_| is_result && !self.is_open);
        match id {
            Some(id) if !self.ids.contains(id) => {
                let at = format!("{at}.tool_call_id");
                let message = format!(
                    "`{at}` is {}, and no earlier message has a call of that id; send the call before its result",
                    brief(&json!(id))
                );
                Err(ApiError::field(at, "invalid_value", message))
            }
            _ => Ok(()),
        }
    }
}

fn message(value: &Value, at: &str) -> Result<Value, ApiError> {
    let map = value.as_object().ok_or_else(|| wrong_type(at, value, "an object"))?;
    // Templates tend to print what is null.
    let mut map: Map<String, Value> =
        map.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect();
    let at_role = format!("{at}.role");
    let role = match map.get("role") {
        None => return Err(missing(&at_role)),
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => role.clone(),
        Some(other) => return Err(wrong_type(&at_role, other, &format!("one of {}", ROLES.join(", ")))),
    };
    let at_content = format!("{at}.content");
    match map.get("content") {
        Some(content) => {
            let content = text_of(content, &at_content, &TEXTS)?;
            map.insert("content".into(), Value::String(content));
        }
        None if role == "assistant" => {}
        None => return Err(missing(&at_content)),
    }
    if let Some(calls) = map.get("tool_calls") {
        let calls = tool_calls(calls, &format!("{at}.tool_calls"))?;
        map.insert("tool_calls".into(), calls);
    }
    for key in ["name", "tool_call_id"] {
        if let Some(other) = map.get(key).filter(|v| !v.is_string()) {
            return Err(wrong_type(&format!("{at}.{key}"), other, "a string"));
        }
    }
    if let Some(thought) = reasoning(&map, at)? {
        map.insert(REASONING[0].into(), Value::String(thought.clone()));
        map.insert("thinking".into(), Value::String(thought));
    }
    Ok(Value::Object(map))
}

fn reasoning(map: &Map<String, Value>, at: &str) -> Result<Option<String>, ApiError> {
    let Some((key, value)) = REASONING.iter().find_map(|key| map.get(*key).map(|value| (key, value))) else {
        return Ok(None);
    };
    text_of(value, &format!("{at}.{key}"), &TEXTS).map(Some)
}

/// Calls of an earlier answer, their arguments as objects.
fn tool_calls(value: &Value, at: &str) -> Result<Value, ApiError> {
    let calls = value.as_array().ok_or_else(|| wrong_type(at, value, "a list"))?;
    let call = |(i, call): (usize, &Value)| {
        let at = format!("{at}[{i}].function");
        let mut call = call.clone();
        let function = call.get_mut("function").and_then(Value::as_object_mut).ok_or_else(|| missing(&at))?;
        if !function.get("name").is_some_and(Value::is_string) {
            return Err(missing(&format!("{at}.name")));
        }
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(map)) => map.clone(),
            Some(Value::String(text)) if text.trim().is_empty() => Map::new(),
            Some(other) => {
                let parsed = other.as_str().and_then(|text| text::exact_json(text).ok());
                let parsed = parsed.and_then(|parsed| if let Value::Object(map) = parsed { Some(map) } else { None });
                parsed.ok_or_else(|| wrong_type(&format!("{at}.arguments"), other, "the text of a JSON object"))?
            }
        };
        function.insert("arguments".into(), Value::Object(arguments));
        Ok(call)
    };
    calls.iter().enumerate().map(call).collect()
}
