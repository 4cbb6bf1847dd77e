//! Parts of requests that all protocols have: members of objects, and content as a text or as a list of parts.

use crate::error::ApiError;
use crate::fields::{Fields, missing, wrong_type};
use crate::format::check_schema;
use crate::turn::{Tool, ToolChoice};
use serde_json::{Value, json};

/// A string that the object at `at` must have.
pub(crate) fn word<'a>(map: Fields<'a>, at: &str, key: &str) -> Result<&'a str, ApiError> {
    let at = format!("{at}.{key}");
    let value = map.get(key).ok_or_else(|| missing(&at))?;
    value.as_str().ok_or_else(|| wrong_type(&at, value, "a string"))
}

/// A name that the object at `at` must have.
pub(crate) fn name<'a>(map: Fields<'a>, at: &str) -> Result<&'a str, ApiError> {
    match word(map, at, "name")? {
        "" => Err(wrong_type(&format!("{at}.name"), &json!(""), "a name")),
        name => Ok(name),
    }
}

/// A string that the object at `at` may have.
pub(crate) fn optional_word<'a>(map: Fields<'a>, at: &str, key: &str) -> Result<Option<&'a str>, ApiError> {
    map.get(key).map(|_| word(map, at, key)).transpose()
}

/// A switch that the object at `at` may have.
pub(crate) fn switch(map: Fields<'_>, at: &str, key: &str) -> Result<Option<bool>, ApiError> {
    let Some(value) = map.get(key) else { return Ok(None) };
    value.as_bool().map(Some).ok_or_else(|| wrong_type(&format!("{at}.{key}"), value, "true or false"))
}

/// A JSON Schema of an object that the object at `at` may have.
pub(crate) fn object_schema<'a>(map: Fields<'a>, at: &str, key: &str) -> Result<Option<&'a Value>, ApiError> {
    let Some(schema) = map.get(key) else { return Ok(None) };
    let at = format!("{at}.{key}");
    if !schema.is_object() {
        return Err(wrong_type(&at, schema, "a JSON Schema object"));
    }
    check_schema(&at, schema)?;
    Ok(Some(schema))
}

/// The object at `at`, and the type that it says.
pub(crate) fn typed<'a>(value: &'a Value, at: &str) -> Result<(&'a str, Fields<'a>), ApiError> {
    let map = value.as_object().map(Fields).ok_or_else(|| wrong_type(at, value, "an object"))?;
    Ok((word(map, at, "type")?, map))
}

/// The text of content: of a string, or of all parts of a list, which are of these types.
pub(crate) fn text_of(content: &Value, at: &str, kinds: &[&str]) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            parts.iter().enumerate().map(|(i, part)| part_text(part, &format!("{at}[{i}]"), kinds)).collect()
        }
        other => Err(wrong_type(at, other, "a string or a list of parts")),
    }
}

fn part_text<'a>(part: &'a Value, at: &str, kinds: &[&str]) -> Result<&'a str, ApiError> {
    let (kind, map) = typed(part, at)?;
    if !kinds.contains(&kind) {
        return Err(unread(kind, at, &format!("only parts of type `{}` are read here", kinds.join("` or `"))));
    }
    word(map, at, if kind == "refusal" { kind } else { "text" })
}

/// The error for a part that is not read.
pub(crate) fn unread(kind: &str, at: &str, why: &str) -> ApiError {
    ApiError::field(at, "unsupported_content", format!("`{at}` is a part of type `{kind}`, {why}; remove it"))
}

/// A choice of tools that the declared ones allow; `at_name` is where a tool is named.
pub(crate) fn allowed(choice: ToolChoice, at_name: &str, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
    if matches!(choice, ToolChoice::Required | ToolChoice::Named(_)) && tools.is_empty() {
        return Err(nothing_to_call());
    }
    match &choice {
        ToolChoice::Named(name) if !tools.iter().any(|tool| tool.name == *name) => {
            let message = format!("`{at_name}` is `{name}`, which `tools` does not declare; declare it");
            Err(ApiError::field(at_name, "invalid_value", message))
        }
        _ => Ok(choice),
    }
}

/// The error for a call that is asked for where nothing can be called.
pub(crate) fn nothing_to_call() -> ApiError {
    let message = "`tool_choice` asks for a call, and `tools` has none that this server can offer; declare some";
    ApiError::field("tool_choice", "invalid_value", message)
}
