//! Input items in one form: every item has a type and an id, every message a list of parts, and nothing refers to anything.

use crate::error::ApiError;
use crate::fields::{missing, wrong_type};
use crate::ids;
use serde_json::{Map, Value, json};

/// Types of items that this server reads, with what their ids begin with.
const TYPES: [(&str, &str); 8] = [
    ("message", "msg_"),
    ("reasoning", "rs_"),
    ("function_call", "fc_"),
    ("function_call_output", "fco_"),
    ("custom_tool_call", "ctc_"),
    ("custom_tool_call_output", "cto_"),
    ("shell_call", "sh_"),
    ("shell_call_output", "sho_"),
];

/// The items of `input`, which is a text or a list; `find` knows the items that ids refer to.
pub(super) fn items(input: &Value, find: impl Fn(&str) -> Option<Value>) -> Result<Vec<Value>, ApiError> {
    match input {
        Value::String(text) => Ok(vec![json!({
            "id": ids::name("msg_"),
            "type": "message",
            "role": "user",
            "status": "completed",
            "content": [{"type": "input_text", "text": text}],
        })]),
        Value::Array(list) => {
            list.iter().enumerate().map(|(i, value)| item(value, &format!("input[{i}]"), &find)).collect()
        }
        other => Err(wrong_type("input", other, "a string or a list of items")),
    }
}

fn item(value: &Value, at: &str, find: &impl Fn(&str) -> Option<Value>) -> Result<Value, ApiError> {
    let map = value.as_object().ok_or_else(|| wrong_type(at, value, "an object"))?;
    let map: Map<String, Value> =
        map.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect();
    let kind = match map.get("type") {
        Some(Value::String(kind)) => kind.clone(),
        Some(other) => return Err(wrong_type(&format!("{at}.type"), other, "a type of items")),
        None if map.contains_key("role") => "message".to_owned(),
        None if map.contains_key("id") => "item_reference".to_owned(),
        None => return Err(missing(&format!("{at}.type"))),
    };
    if kind == "item_reference" {
        return referred(&map, at, find);
    }
    let Some((_, prefix)) = TYPES.iter().find(|(known, _)| *known == kind) else {
        let known: Vec<&str> = TYPES.iter().map(|(known, _)| *known).collect();
        let message = format!(
            "`{at}` is an item of type `{kind}`, which this server does not read; it reads {} and item_reference",
            known.join(", ")
        );
        return Err(ApiError::field(format!("{at}.type"), "unsupported_item", message));
    };
    let id = match map.get("id") {
        None => json!(ids::name(prefix)),
        Some(id @ Value::String(_)) => id.clone(),
        Some(other) => return Err(wrong_type(&format!("{at}.id"), other, "a string")),
    };
    let mut whole = Map::new();
    whole.insert("id".into(), id);
    whole.insert("type".into(), json!(kind));
    whole.extend(map);
    if kind == "message" {
        message(&mut whole, at)?;
    }
    Ok(Value::Object(whole))
}

fn referred(map: &Map<String, Value>, at: &str, find: &impl Fn(&str) -> Option<Value>) -> Result<Value, ApiError> {
    let at = format!("{at}.id");
    let id = map.get("id").ok_or_else(|| missing(&at))?;
    let id = id.as_str().ok_or_else(|| wrong_type(&at, id, "a string"))?;
    find(id).ok_or_else(|| {
        let message = format!("there is no item `{id}` in the stored responses; send the item itself");
        let error = ApiError::new(axum::http::StatusCode::NOT_FOUND, "item_not_found", message);
        ApiError { param: Some(at), ..error }
    })
}

/// A message whose content is a text gets it as one part.
fn message(map: &mut Map<String, Value>, at: &str) -> Result<(), ApiError> {
    const ROLES: [&str; 4] = ["user", "system", "developer", "assistant"];
    let at_role = format!("{at}.role");
    let role = map.get("role").ok_or_else(|| missing(&at_role))?;
    let role = role.as_str().filter(|role| ROLES.contains(role));
    let role = role.ok_or_else(|| {
        wrong_type(&at_role, map.get("role").unwrap_or(&Value::Null), &format!("one of {}", ROLES.join(", ")))
    })?;
    let kind = if role == "assistant" { "output_text" } else { "input_text" };
    let content = map.get_mut("content").ok_or_else(|| missing(&format!("{at}.content")))?;
    if let Value::String(text) = content {
        let mut part = json!({"type": kind, "text": text});
        if kind == "output_text" {
            part = json!({"type": kind, "text": text, "annotations": []});
        }
        *content = json!([part]);
    }
    map.entry("status").or_insert_with(|| json!("completed"));
    Ok(())
}
