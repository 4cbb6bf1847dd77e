//! Input items in one form: every item has a type and an id, every message a list of parts, and nothing refers to anything.

use super::store::{Items, bytes};
use crate::error::ApiError;
use crate::fields::{missing, wrong_type};
use crate::ids;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// An item that stands for a stored one.
const REFERENCE: &str = "item_reference";

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

/// Items that requests refer to.
pub(super) struct Known<F> {
    /// Knows them by their ids.
    pub find: F,
    /// Most bytes of all items that are referred to.
    pub most_bytes: usize,
}

/// The items of `input`, which is a text or a list.
pub(super) fn items<F: Fn(&str) -> Option<Arc<Value>>>(input: &Value, known: Known<F>) -> Result<Items, ApiError> {
    let list = match input {
        Value::String(text) => {
            return Ok(vec![Arc::new(json!({
                "id": ids::name("msg_"),
                "type": "message",
                "role": "user",
                "status": "completed",
                "content": [{"type": "input_text", "text": text}],
            }))]);
        }
        Value::Array(list) => list,
        other => return Err(wrong_type("input", other, "a string or a list of items")),
    };
    let (mut items, mut referred_bytes) = (Items::with_capacity(list.len()), 0);
    for (i, value) in list.iter().enumerate() {
        let at = format!("input[{i}]");
        let map = value.as_object().ok_or_else(|| wrong_type(&at, value, "an object"))?;
        let kind = kind(map, &at)?;
        if kind != REFERENCE {
            items.push(Arc::new(item(map, kind, &at)?));
            continue;
        }
        let item = referred(map, &at, &known.find)?;
        referred_bytes += bytes(&item);
        too_much(referred_bytes, known.most_bytes, &format!("{at}.id"))?;
        items.push(item);
    }
    Ok(items)
}

/// Refuses to read more stored items than a request of its own could bring.
pub(super) fn too_much(bytes: usize, most: usize, param: &str) -> Result<(), ApiError> {
    if bytes <= most {
        return Ok(());
    }
    let message = format!(
        "`{param}` brings what the request refers to up to {bytes} bytes, at most {most} are read; refer to fewer items"
    );
    Err(ApiError::field(param, "context_length_exceeded", message))
}

/// The type of an item, which a message and a reference need not say.
fn kind<'a>(map: &'a Map<String, Value>, at: &str) -> Result<&'a str, ApiError> {
    let has = |key: &str| map.get(key).is_some_and(|value| !value.is_null());
    match map.get("type").filter(|kind| !kind.is_null()) {
        Some(Value::String(kind)) => Ok(kind),
        Some(other) => Err(wrong_type(&format!("{at}.type"), other, "a type of items")),
        None if has("role") => Ok("message"),
        None if has("id") => Ok(REFERENCE),
        None => Err(missing(&format!("{at}.type"))),
    }
}

fn item(map: &Map<String, Value>, kind: &str, at: &str) -> Result<Value, ApiError> {
    let map: Map<String, Value> =
        map.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect();
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

fn referred(
    map: &Map<String, Value>,
    at: &str,
    find: &impl Fn(&str) -> Option<Arc<Value>>,
) -> Result<Arc<Value>, ApiError> {
    let at = format!("{at}.id");
    let id = map.get("id").filter(|id| !id.is_null()).ok_or_else(|| missing(&at))?;
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
