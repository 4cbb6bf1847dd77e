//! Which tools are to be called: `tool_choice`.

use super::tools::{Kind, Origin, SHELL, seen};
use crate::error::ApiError;
use crate::fields::{Fields, missing, wrong_type};
use crate::parts::nothing_to_call;
use crate::turn::ToolChoice;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

const PARAM: &str = "tool_choice";

/// What is to be called.
#[derive(Default)]
pub(super) struct Chosen {
    pub choice: ToolChoice,
    /// The only tools that may be, by the names that the model sees.
    pub only: Option<Vec<String>>,
}

/// Reads `tool_choice` for tools that come from `origins`.
pub(super) fn chosen(fields: Fields<'_>, origins: &HashMap<String, Origin>) -> Result<Chosen, ApiError> {
    let expected = "`none`, `auto`, `required` or an object that names a tool";
    let chosen = match fields.get(PARAM) {
        None => return Ok(Chosen::default()),
        Some(Value::String(word)) => match word.as_str() {
            "none" => return Ok(Chosen { choice: ToolChoice::None, only: None }),
            "auto" => return Ok(Chosen::default()),
            "required" => Chosen { choice: ToolChoice::Required, only: None },
            _ => return Err(wrong_type(PARAM, &json!(word), expected)),
        },
        Some(Value::Object(map)) if map.get("type").and_then(Value::as_str) == Some("allowed_tools") => {
            allowed(map, origins)?
        }
        Some(Value::Object(map)) => Chosen { choice: ToolChoice::Named(named(map, PARAM, origins)?), only: None },
        Some(other) => return Err(wrong_type(PARAM, other, expected)),
    };
    if origins.is_empty() {
        return Err(nothing_to_call());
    }
    Ok(chosen)
}

/// Only some of the tools.
fn allowed(map: &Map<String, Value>, origins: &HashMap<String, Origin>) -> Result<Chosen, ApiError> {
    let at = format!("{PARAM}.tools");
    let tools = map.get("tools").ok_or_else(|| missing(&at))?;
    let tools = tools.as_array().ok_or_else(|| wrong_type(&at, tools, "a list"))?;
    let name = |(i, tool): (usize, &Value)| {
        let at = format!("{at}[{i}]");
        named(tool.as_object().ok_or_else(|| wrong_type(&at, tool, "an object"))?, &at, origins)
    };
    let only = tools.iter().enumerate().map(name).collect::<Result<Vec<_>, _>>()?;
    if only.is_empty() {
        let message = format!("`{at}` is empty, name at least one tool, or set `{PARAM}` to `none`");
        return Err(ApiError::field(at, "invalid_value", message));
    }
    let choice = match map.get("mode").and_then(Value::as_str) {
        None | Some("auto") => ToolChoice::Auto,
        Some("required") => ToolChoice::Required,
        Some(other) => return Err(wrong_type(&format!("{PARAM}.mode"), &json!(other), "`auto` or `required`")),
    };
    Ok(Chosen { choice, only: Some(only) })
}

/// The name, as the model sees it, of the tool that an object means.
fn named(map: &Map<String, Value>, at: &str, origins: &HashMap<String, Origin>) -> Result<String, ApiError> {
    let kind = map.get("type").and_then(Value::as_str).unwrap_or("function");
    let (wanted, name) = match kind {
        "shell" => (Kind::Shell, SHELL.to_owned()),
        "function" | "custom" => {
            let name = map.get("name").or_else(|| map.get("function")?.get("name")).and_then(Value::as_str);
            let name = name.ok_or_else(|| missing(&format!("{at}.name")))?;
            let wanted = if kind == "custom" { Kind::Custom } else { Kind::Function };
            (wanted, seen(map.get("namespace").and_then(Value::as_str), name))
        }
        other => {
            let message = format!("`{at}.type` is `{other}`, it must be `function`, `custom` or `shell`; choose one");
            return Err(ApiError::field(format!("{at}.type"), "unsupported_parameter", message));
        }
    };
    if origins.get(&name).is_none_or(|origin| origin.kind != wanted) {
        let message = format!("`{at}` names the {kind} `{name}`, which `tools` does not declare; declare it");
        return Err(ApiError::field(at, "invalid_value", message));
    }
    Ok(name)
}
