//! A tool's schema as objects with properties: references and `allOf` followed, each way through `anyOf` and `oneOf` one object.

use super::types::referred;
use serde_json::{Map, Value};

/// Most alternatives.
const VARIANTS: usize = 16;
/// Most pieces that are put together.
const PIECES: usize = 200;
/// Deepest nesting of references and members.
const DEPTH: usize = 16;
/// What is put together elsewhere, or says nothing about a value.
const PASSED: &[&str] = &["$ref", "allOf", "anyOf", "oneOf", "$defs", "definitions"];
/// Words about a schema that two schemas of one value may say differently.
const WORDS: &[&str] = &["title", "description", "default", "examples", "$comment", "$schema", "$id", "$anchor"];

/// Keywords whose meaning depends on others of the same schema.
const BESIDE: &[&str] =
    &["additionalProperties", "unevaluatedProperties", "items", "additionalItems", "unevaluatedItems", "then", "else"];

/// The objects that a schema is the alternatives of, as members of a schema without references at its root. The problem where they
/// cannot be put together.
pub(crate) fn variants(root: &Value) -> Result<Vec<Map<String, Value>>, String> {
    expanded(root, root, DEPTH, &mut { PIECES })
}

fn expanded(root: &Value, schema: &Value, depth: usize, left: &mut usize) -> Result<Vec<Map<String, Value>>, String> {
    let depth = depth.checked_sub(1).ok_or("leads back to itself, or nests too deeply")?;
    *left = left.checked_sub(1).ok_or_else(|| format!("is put together from more than {PIECES} pieces"))?;
    let map = match schema {
        Value::Null | Value::Bool(true) => return Ok(vec![Map::new()]),
        Value::Object(map) => map,
        _ => return Err("is not a schema of an object".to_owned()),
    };
    let own = map.iter().filter(|(key, _)| !PASSED.contains(&key.as_str()));
    let mut all = vec![own.map(|(key, value)| (key.clone(), value.clone())).collect()];
    if let Some(reference) = map.get("$ref") {
        let target = reference.as_str().and_then(|reference| referred(root, reference));
        let target = target.ok_or_else(|| format!("refers to {reference}, which is not in the schema"))?;
        all = product(&all, &expanded(root, target, depth, left)?)?;
    }
    for member in map.get("allOf").and_then(Value::as_array).into_iter().flatten() {
        all = product(&all, &expanded(root, member, depth, left)?)?;
    }
    for members in ["anyOf", "oneOf"].iter().filter_map(|key| map.get(*key)?.as_array()) {
        let mut ways = Vec::new();
        for member in members {
            ways.extend(expanded(root, member, depth, left)?);
            if ways.len() > VARIANTS {
                break;
            }
        }
        all = product(&all, &ways)?;
    }
    Ok(all)
}

fn product(some: &[Map<String, Value>], more: &[Map<String, Value>]) -> Result<Vec<Map<String, Value>>, String> {
    if some.len() * more.len() > VARIANTS {
        return Err(format!("has more than {VARIANTS} alternatives"));
    }
    some.iter().flat_map(|one| more.iter().map(|other| both(one, other))).collect()
}

/// An object that is of both.
fn both(one: &Map<String, Value>, other: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    let mut merged = Map::new();
    for (key, value) in one.iter().chain(other.iter().filter(|(key, _)| !one.contains_key(*key))) {
        let value = match (key.as_str(), other.get(key).filter(|_| one.contains_key(key))) {
            ("properties", _) => continue,
            (_, None) => value.clone(),
            ("required", Some(more)) => union(value, more),
            ("additionalProperties", Some(more)) => of_both(value, more).ok_or("types other parameters twice")?,
            (word, Some(_)) if WORDS.contains(&word) => value.clone(),
            (_, Some(same)) if same == value => value.clone(),
            (key, Some(_)) => return Err(format!("says `{key}` twice")),
        };
        merged.insert(key.clone(), value);
    }
    let named = |map: &Map<String, Value>, name: &str| map.get("properties").and_then(|of| of.get(name)).cloned();
    let others = |map: &Map<String, Value>| map.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    let names = [one, other].into_iter().filter_map(|map| map.get("properties")?.as_object()).flatten();
    let mut properties = Map::new();
    for (name, _) in names {
        if !properties.contains_key(name) {
            let [first, second] = [one, other].map(|map| named(map, name).unwrap_or_else(|| others(map)));
            let schema = of_both(&first, &second).ok_or_else(|| format!("describes `{name}` in two ways"))?;
            properties.insert(name.clone(), schema);
        }
    }
    if one.contains_key("properties") || other.contains_key("properties") {
        merged.insert("properties".to_owned(), Value::Object(properties));
    }
    Ok(merged)
}

fn union(one: &Value, other: &Value) -> Value {
    let mut all: Vec<Value> = Vec::new();
    for name in [one, other].into_iter().filter_map(Value::as_array).flatten() {
        if !all.contains(name) {
            all.push(name.clone());
        }
    }
    Value::Array(all)
}

/// A schema that says what both say, if that can be said side by side.
fn of_both(one: &Value, other: &Value) -> Option<Value> {
    match (one, other) {
        (Value::Bool(false), _) | (_, Value::Bool(false)) => Some(Value::Bool(false)),
        (Value::Bool(true), schema) | (schema, Value::Bool(true)) => Some(schema.clone()),
        (one, other) if one == other => Some(one.clone()),
        (Value::Object(one), Value::Object(other)) => {
            let mut all = one.clone();
            for (key, value) in other {
                let is_said = all.get(key).is_some_and(|known| known != value) && !WORDS.contains(&key.as_str());
                if is_said {
                    return None;
                }
                all.entry(key.clone()).or_insert_with(|| value.clone());
            }
            // What these mean depends on what stands beside them.
            let depends = |map: &Map<String, Value>| BESIDE.iter().any(|key| map.contains_key(*key));
            let is_mere = |map: &Map<String, Value>| map.keys().all(|key| WORDS.contains(&key.as_str()));
            (is_mere(one) || is_mere(other) || !(depends(one) || depends(other))).then_some(Value::Object(all))
        }
        _ => None,
    }
}
