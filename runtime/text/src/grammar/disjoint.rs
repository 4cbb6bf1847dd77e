//! Whether two schemas have no value in common, as far as their types, lists of values, bounds and named properties show it.

use crate::response::referred;
use serde_json::{Map, Value};
use std::cell::Cell;

/// Deepest nesting of references, members and properties that is looked at.
const DEPTH: usize = 12;

/// Most pairs of schemas, and of values that they list, that are looked at for one whole schema.
const PAIRS: usize = 100_000;

/// The schema that references are looked up in, and how many pairs may still be looked at.
pub(crate) struct Looking<'a> {
    root: &'a Value,
    left: Cell<usize>,
}

impl<'a> Looking<'a> {
    /// In a whole schema.
    pub fn new(root: &'a Value) -> Looking<'a> {
        Looking { root, left: Cell::new(PAIRS) }
    }

    /// Takes so much from what may still be looked at; false where there is less.
    fn goes_on(&self, much: usize) -> bool {
        let left = self.left.get().checked_sub(much);
        self.left.set(left.unwrap_or(0));
        left.is_some()
    }
}

/// Whether no value is of both; false where it does not show.
pub(crate) fn disjoint(looking: &Looking, one: &Value, other: &Value) -> bool {
    apart(looking, one, other, DEPTH)
}

fn apart(looking: &Looking, one: &Value, other: &Value, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else { return false };
    if !looking.goes_on(1) {
        return false;
    }
    let (first, second) = match (one, other) {
        (Value::Bool(false), _) | (_, Value::Bool(false)) => return true,
        (Value::Object(one), Value::Object(other)) => (one, other),
        _ => return false,
    };
    for (map, against) in [(first, other), (second, one)] {
        if let Some(target) = map.get("$ref").and_then(Value::as_str).and_then(|r| referred(looking.root, r))
            && apart(looking, target, against, depth)
        {
            return true;
        }
        let members = |key: &str| map.get(key).and_then(Value::as_array).filter(|all| !all.is_empty());
        if members("allOf").is_some_and(|all| all.iter().any(|member| apart(looking, member, against, depth))) {
            return true;
        }
        let all_are = |all: &Vec<Value>| all.iter().all(|member| apart(looking, member, against, depth));
        if members("anyOf").is_some_and(all_are) || members("oneOf").is_some_and(all_are) {
            return true;
        }
        if listed(map).is_some_and(|values| values.iter().all(|value| excludes(looking, against, value, depth))) {
            return true;
        }
    }
    kinds_are_apart(first, second)
        || (are_objects(first, second) && properties_are_apart(looking, first, second, depth))
}

/// The only values that a schema admits, where it lists them.
fn listed(map: &Map<String, Value>) -> Option<&[Value]> {
    map.get("const").map(std::slice::from_ref).or_else(|| map.get("enum")?.as_array().map(Vec::as_slice))
}

/// Whether the schema surely does not admit the value.
fn excludes(looking: &Looking, schema: &Value, value: &Value, depth: usize) -> bool {
    let Value::Object(map) = schema else { return *schema == Value::Bool(false) };
    if !looking.goes_on(1 + listed(map).map_or(0, <[Value]>::len)) {
        return false;
    }
    if listed(map).is_some_and(|values| !values.iter().any(|other| is_same(other, value))) {
        return true;
    }
    if types(map).is_some_and(|types| !types.iter().any(|kind| is_of(value, kind))) {
        return true;
    }
    if let Some(number) = value.as_f64() {
        let (least, most) = range(map);
        if number < least || most < number {
            return true;
        }
    }
    let Value::Object(value) = value else { return false };
    let Some(depth) = depth.checked_sub(1) else { return false };
    let required = names(map.get("required"));
    let of = map.get("properties").and_then(Value::as_object);
    required.iter().any(|name| !value.contains_key(*name))
        || of.is_some_and(|of| {
            of.iter().any(|(name, schema)| value.get(name).is_some_and(|value| excludes(looking, schema, value, depth)))
        })
}

fn is_same(one: &Value, other: &Value) -> bool {
    one == other || matches!((one.as_f64(), other.as_f64()), (Some(one), Some(other)) if one == other)
}

/// Whether a value is of a type.
pub(crate) fn is_of(value: &Value, kind: &str) -> bool {
    match value {
        Value::Null => kind == "null",
        Value::Bool(_) => kind == "boolean",
        Value::Number(number) => {
            kind == "number" || (kind == "integer" && number.as_f64().is_some_and(|float| float.fract() == 0.0))
        }
        Value::String(_) => kind == "string",
        Value::Array(_) => kind == "array",
        Value::Object(_) => kind == "object",
    }
}

/// The types that a schema names.
fn types(map: &Map<String, Value>) -> Option<Vec<&str>> {
    match map.get("type")? {
        Value::String(name) => Some(vec![name]),
        Value::Array(names) => Some(names.iter().filter_map(Value::as_str).collect()),
        _ => None,
    }
}

fn kinds_are_apart(one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    let (Some(first), Some(second)) = (types(one), types(other)) else { return false };
    let is_number = |kind: &str| matches!(kind, "number" | "integer");
    let shared: Vec<&str> = first
        .iter()
        .copied()
        .filter(|kind| second.iter().any(|other| kind == other || (is_number(kind) && is_number(other))))
        .collect();
    if shared.is_empty() {
        return true;
    }
    let all = |is: &dyn Fn(&str) -> bool| shared.iter().all(|kind| is(kind));
    if all(&is_number) {
        let ((least, most), (other_least, other_most)) = (range(one), range(other));
        return most < other_least || other_most < least;
    }
    let lengths = |map: &Map<String, Value>, least: &str, most: &str| {
        let number = |key: &str| map.get(key).and_then(Value::as_f64);
        (number(least).unwrap_or(0.0), number(most).unwrap_or(f64::INFINITY))
    };
    let are_apart = |least: &str, most: &str| {
        let ((a, b), (c, d)) = (lengths(one, least, most), lengths(other, least, most));
        b < c || d < a
    };
    (all(&|kind| kind == "string") && are_apart("minLength", "maxLength"))
        || (all(&|kind| kind == "array") && are_apart("minItems", "maxItems"))
}

/// Least and most of a number; an exclusive bound counts as if it were none.
fn range(map: &Map<String, Value>) -> (f64, f64) {
    let number = |key: &str| map.get(key).and_then(Value::as_f64);
    let least = number("minimum").into_iter().chain(number("exclusiveMinimum")).fold(f64::NEG_INFINITY, f64::max);
    let most = number("maximum").into_iter().chain(number("exclusiveMaximum")).fold(f64::INFINITY, f64::min);
    (least, most)
}

fn are_objects(one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    [one, other].iter().any(|map| types(map).is_some_and(|types| types == ["object"]))
}

fn names(list: Option<&Value>) -> Vec<&str> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Whether a property that one of them requires is of no value in both.
fn properties_are_apart(looking: &Looking, one: &Map<String, Value>, other: &Map<String, Value>, depth: usize) -> bool {
    const ANY: &Value = &Value::Bool(true);
    fn property<'a>(map: &'a Map<String, Value>, name: &str) -> &'a Value {
        let others = match map.contains_key("patternProperties") {
            true => ANY,
            false => map.get("additionalProperties").unwrap_or(ANY),
        };
        map.get("properties").and_then(|of| of.get(name)).unwrap_or(others)
    }
    let required = names(one.get("required")).into_iter().chain(names(other.get("required")));
    let mut required: Vec<&str> = required.collect();
    required.dedup();
    required.into_iter().any(|name| apart(looking, property(one, name), property(other, name), depth))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_no_value_is_of_shows() {
        let object =
            |kind: &str| json!({"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]});
        let root = json!({"$defs": {"a": object("a"), "b": object("b")}});
        for (one, other, expected) in [
            (json!({"type": "string"}), json!({"type": "integer"}), true),
            (json!({"type": "number"}), json!({"type": "integer"}), false),
            (json!({"const": 1}), json!({"const": 2}), true),
            (json!({"const": 1}), json!({"const": 1.0}), false),
            (json!({"enum": ["a", "b"]}), json!({"type": "string", "minLength": 1}), false),
            (json!({"type": "integer", "maximum": 3}), json!({"type": "number", "minimum": 4}), true),
            (json!({"type": "integer", "maximum": 3}), json!({"type": "number", "minimum": 3}), false),
            (json!({"$ref": "#/$defs/a"}), json!({"$ref": "#/$defs/b"}), true),
            (json!({"$ref": "#/$defs/a"}), json!({"$ref": "#/$defs/a"}), false),
            (json!({"type": "object", "required": ["x"]}), json!({"type": "object", "required": ["y"]}), false),
            (
                json!({"type": "object", "required": ["x"]}),
                json!({"type": "object", "properties": {"y": {}}, "additionalProperties": false}),
                true,
            ),
            (json!({"anyOf": [{"const": 1}, {"type": "null"}]}), json!({"type": "string"}), true),
            (json!({"type": "string", "maxLength": 2}), json!({"type": "string", "minLength": 3}), true),
            (json!({}), json!({"type": "string"}), false),
        ] {
            assert_eq!(disjoint(&Looking::new(&root), &one, &other), expected, "{one} {other}");
            assert_eq!(disjoint(&Looking::new(&root), &other, &one), expected, "{other} {one}");
        }
    }
}
