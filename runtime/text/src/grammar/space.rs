//! White space between the parts of a JSON document, as documents have it: a blank, or the end of a line and how far the next one
//! is indented. Without a bound a model can write nothing else for ever.

use serde_json::Value;

/// How deep is indented what may be anything.
const OPEN_LEVELS: usize = 4;
/// Deepest indentation.
const MOST_LEVELS: usize = 16;
/// Blanks of a level at most; of tabs it is one.
const BLANKS: usize = 4;

/// An expression for the white space in documents of a prepared schema.
pub(crate) fn space(schema: &Value) -> String {
    let levels = levels(schema, MOST_LEVELS).min(MOST_LEVELS);
    format!(r"(?: |\r?\n(?: {{0,{}}}|\t{{0,{levels}}}))", BLANKS * levels)
}

/// How deep documents of a schema nest; `most` is when nobody asks further.
fn levels(schema: &Value, most: usize) -> usize {
    let Some(most) = most.checked_sub(1) else { return 0 };
    let map = match schema {
        Value::Object(map) => map,
        other => return if *other == Value::Bool(false) { 0 } else { OPEN_LEVELS },
    };
    let each = |value: &Value| match value {
        Value::Array(all) => all.iter().map(|one| levels(one, most)).max().unwrap_or(0),
        one => levels(one, most),
    };
    let deepest = map.iter().map(|(key, value)| match (key.as_str(), value) {
        ("properties" | "patternProperties", Value::Object(of)) => {
            1 + of.values().map(|one| levels(one, most)).max().unwrap_or(0)
        }
        ("items" | "prefixItems" | "additionalItems", value) => 1 + each(value),
        ("additionalProperties", Value::Object(_)) => 1 + each(value),
        ("anyOf" | "oneOf" | "allOf", value) => each(value),
        ("const" | "enum", value) => depth(value, most),
        ("$ref", _) => OPEN_LEVELS,
        _ => 0,
    });
    let deepest = deepest.max().unwrap_or(0);
    let names = |kind: &str| match map.get("type") {
        Some(Value::String(name)) => name == kind,
        Some(Value::Array(names)) => names.iter().any(|name| name == kind),
        _ => true,
    };
    let says = |keys: &[&str]| keys.iter().any(|key| map.contains_key(*key));
    let is_told = says(&["const", "enum", "anyOf", "oneOf", "allOf", "$ref"]);
    let has_more = (names("object") && !says(&["additionalProperties"])) || (names("array") && !says(&["items"]));
    if has_more && !is_told { deepest.max(OPEN_LEVELS) } else { deepest }
}

/// How deep a value nests.
fn depth(value: &Value, most: usize) -> usize {
    let Some(most) = most.checked_sub(1) else { return 0 };
    match value {
        Value::Array(all) => 1 + all.iter().map(|one| depth(one, most)).max().unwrap_or(0),
        Value::Object(of) => 1 + of.values().map(|one| depth(one, most)).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schemas_say_how_deep_their_documents_are() {
        let flat = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": false});
        let list = json!({"type": "array", "items": flat});
        for (schema, expected) in [
            (flat, 1),
            (list.clone(), 2),
            (json!({"type": "object", "properties": {"a": list}, "additionalProperties": false}), 3),
            (json!({"type": "object", "properties": {"a": {"type": "integer"}}}), OPEN_LEVELS),
            (json!({"const": {"a": [1]}}), 2),
            (json!({"type": "string"}), 0),
            (json!({"type": ["string", "null"]}), 0),
            (json!({"type": ["string", "array"]}), OPEN_LEVELS),
            (json!({}), OPEN_LEVELS),
            (json!({"type": "array"}), OPEN_LEVELS),
            (json!({"anyOf": [{"type": "array", "items": {"type": "null"}}, {"type": "string"}]}), 1),
        ] {
            assert_eq!(levels(&schema, MOST_LEVELS), expected, "{schema}");
        }
    }
}
