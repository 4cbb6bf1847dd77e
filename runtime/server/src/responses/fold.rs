//! Items become messages as chat templates read them: reasoning, text and calls of one turn fold back into one assistant
//! message, outputs of calls become messages of tools.

use super::seal::unseal;
use super::tools::{COMMAND, INPUT, SHELL, seen};
use crate::error::ApiError;
use crate::fields::{Fields, missing, wrong_type};
use crate::parts::{text_of, word};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Messages in the making.
#[derive(Default)]
pub(super) struct Fold {
    messages: Vec<Value>,
    turn: Turn,
    /// The tool, by the name that the model sees, of every call so far.
    calls: HashMap<String, String>,
}

/// An assistant's turn that may go on.
#[derive(Default)]
struct Turn {
    reasoning: Vec<String>,
    content: Option<String>,
    calls: Vec<Value>,
}

impl Fold {
    /// Takes an item in the form of [`super::items`]; `at` is its place in the request.
    pub fn add(&mut self, item: &Value, at: &str) -> Result<(), ApiError> {
        let kind = item.get("type").and_then(Value::as_str).unwrap_or_default();
        let is_cut = item.get("status").and_then(Value::as_str) == Some("incomplete");
        match kind {
            "message" => self.message(item, at),
            "reasoning" => self.reasoning(item, at),
            // A call that was cut off was never made.
            "function_call" | "custom_tool_call" | "shell_call" if is_cut => Ok(()),
            "function_call" => {
                let name = string(item, at, "name")?;
                let name = seen(item.get("namespace").and_then(Value::as_str), name);
                let arguments = arguments(item, at)?;
                self.call(item, at, &name, arguments)
            }
            "custom_tool_call" => {
                let name = seen(item.get("namespace").and_then(Value::as_str), string(item, at, "name")?);
                let input = string(item, at, "input")?;
                self.call(item, at, &name, json!({INPUT: input}))
            }
            "shell_call" => {
                let command = command(item, at)?;
                self.call(item, at, SHELL, json!({COMMAND: command}))
            }
            _ => self.output(item, at, kind),
        }
    }

    /// All messages.
    pub fn finish(mut self) -> Vec<Value> {
        self.end_turn();
        self.messages
    }

    fn end_turn(&mut self) {
        let turn = std::mem::take(&mut self.turn);
        if turn.reasoning.is_empty() && turn.content.is_none() && turn.calls.is_empty() {
            return;
        }
        let mut message = Map::new();
        message.insert("role".into(), json!("assistant"));
        if !turn.reasoning.is_empty() {
            let text = turn.reasoning.join("\n\n");
            message.insert("reasoning_content".into(), json!(text));
            message.insert("thinking".into(), json!(text));
        }
        if let Some(content) = turn.content {
            message.insert("content".into(), json!(content));
        }
        if !turn.calls.is_empty() {
            message.insert("tool_calls".into(), Value::Array(turn.calls));
        }
        self.messages.push(Value::Object(message));
    }

    fn message(&mut self, item: &Value, at: &str) -> Result<(), ApiError> {
        let role = string(item, at, "role")?;
        let at_content = format!("{at}.content");
        let content = item.get("content").ok_or_else(|| missing(&at_content))?;
        let text = text_of(content, &at_content, &["input_text", "output_text", "refusal", "text"])?;
        if role != "assistant" {
            self.end_turn();
            self.messages.push(json!({"role": role, "content": text}));
            return Ok(());
        }
        // A turn says its text once, before its calls.
        if self.turn.content.is_some() || !self.turn.calls.is_empty() {
            self.end_turn();
        }
        self.turn.content = Some(text);
        Ok(())
    }

    fn reasoning(&mut self, item: &Value, at: &str) -> Result<(), ApiError> {
        if self.turn.content.is_some() || !self.turn.calls.is_empty() {
            self.end_turn();
        }
        let text = reasoning_text(item, at)?;
        if !text.is_empty() {
            self.turn.reasoning.push(text);
        }
        Ok(())
    }

    fn call(&mut self, item: &Value, at: &str, name: &str, arguments: Value) -> Result<(), ApiError> {
        let id = string(item, at, "call_id")?;
        if self.calls.insert(id.to_owned(), name.to_owned()).is_some() {
            let at = format!("{at}.call_id");
            let message = format!("`{at}` is `{id}`, which an earlier call has; name each once");
            return Err(ApiError::field(at, "invalid_value", message));
        }
        let function = json!({"name": name, "arguments": arguments});
        self.turn.calls.push(json!({"id": id, "type": "function", "function": function}));
        Ok(())
    }

    fn output(&mut self, item: &Value, at: &str, kind: &str) -> Result<(), ApiError> {
        let id = string(item, at, "call_id")?;
        let Some(name) = self.calls.get(id) else {
            let at = format!("{at}.call_id");
            let message =
                format!("`{at}` is `{id}`, and no earlier item is a call of that id; send the call before it");
            return Err(ApiError::field(at, "invalid_value", message));
        };
        let at_output = format!("{at}.output");
        let output = item.get("output").ok_or_else(|| missing(&at_output))?;
        let text = match output {
            Value::String(text) => text.clone(),
            // The model reads what the shell wrote as the tool's JSON.
            other if kind == "shell_call_output" => other.to_string(),
            other => text_of(other, &at_output, &["input_text", "output_text", "text"])?,
        };
        let message = json!({"role": "tool", "tool_call_id": id, "name": name, "content": text});
        self.end_turn();
        self.messages.push(message);
        Ok(())
    }
}

fn string<'a>(item: &'a Value, at: &str, key: &str) -> Result<&'a str, ApiError> {
    let map = item.as_object().ok_or_else(|| wrong_type(at, item, "an object"))?;
    word(Fields(map), at, key)
}

/// The text of a reasoning item, wherever it stands.
fn reasoning_text(item: &Value, at: &str) -> Result<String, ApiError> {
    let has = |key: &str| item.get(key).and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    let sealed = item.get("encrypted_content").and_then(Value::as_str);
    if let Some(text) = sealed.and_then(unseal) {
        return Ok(text);
    }
    if has("content") {
        let content = item.get("content").unwrap_or(&Value::Null);
        return text_of(content, &format!("{at}.content"), &["reasoning_text", "text"]);
    }
    if has("summary") {
        let texts = item.get("summary").and_then(Value::as_array).into_iter().flatten().enumerate();
        let at = format!("{at}.summary");
        let texts = texts.map(|(i, part)| string(part, &format!("{at}[{i}]"), "text"));
        return Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n\n"));
    }
    if sealed.is_some() {
        let at = format!("{at}.encrypted_content");
        let message = format!("`{at}` was not written by this server, so it cannot be read; leave the item out");
        return Err(ApiError::field(at, "invalid_encrypted_content", message));
    }
    Ok(String::new())
}

/// A call's arguments as an object.
fn arguments(item: &Value, at: &str) -> Result<Value, ApiError> {
    let at = format!("{at}.arguments");
    let given = item.get("arguments").ok_or_else(|| missing(&at))?;
    let text = given.as_str().ok_or_else(|| wrong_type(&at, given, "the text of a JSON object"))?;
    if text.trim().is_empty() {
        return Ok(json!({}));
    }
    let parsed = text::exact_json(text).ok().filter(Value::is_object);
    parsed.ok_or_else(|| wrong_type(&at, given, "the text of a JSON object"))
}

/// A shell call's only command.
fn command<'a>(item: &'a Value, at: &str) -> Result<&'a str, ApiError> {
    let at = format!("{at}.action.commands");
    let commands = item.get("action").and_then(|action| action.get("commands")).ok_or_else(|| missing(&at))?;
    match commands.as_array().map(Vec::as_slice) {
        Some([Value::String(command)]) => Ok(command),
        _ => Err(wrong_type(&at, commands, "a list of exactly one command")),
    }
}
