//! Tools, and which of them are to be called.

use super::blocks::word;
use crate::error::ApiError;
use crate::fields::{Fields, missing, wrong_type};
use crate::format::check_schema;
use crate::turn::{Tool, ToolChoice};
use serde_json::{Value, json};

/// The tools that the model is shown, and where they stand in the request. Those that another server would run itself,
/// which their type says, are skipped.
pub(super) fn tools(fields: Fields<'_>) -> Result<(Vec<Tool>, Vec<usize>), ApiError> {
    let (mut tools, mut places) = (Vec::<Tool>::new(), Vec::new());
    for (i, value) in fields.list("tools")?.into_iter().flatten().enumerate() {
        let at = format!("tools[{i}]");
        let map = value.as_object().map(Fields).ok_or_else(|| wrong_type(&at, value, "an object"))?;
        match map.get("type") {
            None => {}
            Some(kind) if kind == "custom" => {}
            Some(Value::String(_)) => continue,
            Some(other) => return Err(wrong_type(&format!("{at}.type"), other, "a string")),
        }
        let tool = tool(map, &at)?;
        if tools.iter().any(|other| other.name == tool.name) {
            let message = format!("`{at}.name` is `{}`, which an earlier tool has; name each once", tool.name);
            return Err(ApiError::field(format!("{at}.name"), "invalid_value", message));
        }
        tools.push(tool);
        places.push(i);
    }
    Ok((tools, places))
}

fn tool(map: Fields<'_>, at: &str) -> Result<Tool, ApiError> {
    let name = word(map, "name", at)?;
    if name.is_empty() {
        return Err(wrong_type(&format!("{at}.name"), &json!(name), "a name"));
    }
    let description = match map.get("description") {
        None => None,
        Some(Value::String(text)) => Some(text.as_str()),
        Some(other) => return Err(wrong_type(&format!("{at}.description"), other, "a string")),
    };
    let at_schema = format!("{at}.input_schema");
    let schema = map.get("input_schema").ok_or_else(|| missing(&at_schema))?;
    if !schema.is_object() {
        return Err(wrong_type(&at_schema, schema, "a JSON Schema object"));
    }
    check_schema(&at_schema, schema)?;
    let strict = match map.get("strict") {
        None => None,
        Some(Value::Bool(strict)) => Some(*strict),
        Some(other) => return Err(wrong_type(&format!("{at}.strict"), other, "true or false")),
    };
    Ok(Tool::new(name, description, schema.clone(), strict))
}

/// Which tools are to be called, and whether there may be several calls.
pub(super) fn choice(fields: Fields<'_>, tools: &[Tool]) -> Result<(ToolChoice, bool), ApiError> {
    let param = "tool_choice";
    let Some(map) = fields.object(param)? else { return Ok((ToolChoice::Auto, true)) };
    let map = Fields(map);
    let is_parallel = match map.get("disable_parallel_tool_use") {
        None => true,
        Some(Value::Bool(disabled)) => !disabled,
        Some(other) => return Err(wrong_type(&format!("{param}.disable_parallel_tool_use"), other, "true or false")),
    };
    let choice = match word(map, "type", param)? {
        "auto" => return Ok((ToolChoice::Auto, is_parallel)),
        "none" => return Ok((ToolChoice::None, is_parallel)),
        "any" => ToolChoice::Required,
        "tool" => ToolChoice::Named(word(map, "name", param)?.to_owned()),
        other => {
            let expected = "`auto`, `any`, `tool` or `none`";
            return Err(wrong_type(&format!("{param}.type"), &json!(other), expected));
        }
    };
    if tools.is_empty() {
        let message =
            format!("`{param}` asks for a call, and `tools` has none that this server can offer; declare some");
        return Err(ApiError::field(param, "invalid_value", message));
    }
    if let ToolChoice::Named(name) = &choice
        && !tools.iter().any(|tool| tool.name == *name)
    {
        let message = format!("`{param}.name` is `{name}`, which `tools` does not declare; declare it");
        return Err(ApiError::field(format!("{param}.name"), "invalid_value", message));
    }
    Ok((choice, is_parallel))
}

/// An error about a tool that is shown, put down to its place in the request.
pub(super) fn at_place(mut error: ApiError, places: &[usize]) -> ApiError {
    let Some(param) = &error.param else { return error };
    let parts = param.strip_prefix("tools[").and_then(|rest| rest.split_once(']'));
    let place = parts.and_then(|(index, rest)| Some((places.get(index.parse::<usize>().ok()?)?, rest)));
    if let Some((place, rest)) = place {
        error.param = Some(format!("tools[{place}]{rest}"));
    }
    error
}
