//! A schema as the library is given it: written so that it holds what it says, or the problem and its place.
//!
//! References of all spellings become plain ones, keywords that say nothing go, and what the library would hold in part or read
//! otherwise is refused: with `strict` always, without it where leaving it out would change a value.

use super::disjoint::{Looking, disjoint};
use super::ecma::{Translated, translated};
use super::formats::is_format;
use super::numbers::{self, Long};
use super::patterns::quotable;
use super::schema::refers;
use super::wholes::{self, Part};
use crate::response::referred;
use llguidance::derivre::RegexBuilder;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Deepest nesting.
const DEPTH: usize = 128;
/// Most references.
const REFERENCES: usize = 10_000;

/// Keywords that say nothing about a value, or whose work is done here.
const DROPPED: &[&str] = &[
    "$schema",
    "$id",
    "id",
    "$anchor",
    "$dynamicAnchor",
    "$recursiveAnchor",
    "$vocabulary",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "example",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentMediaType",
    "contentEncoding",
    "contentSchema",
];
/// Keywords that the library does not hold.
const UNHELD: &[&str] = &[
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
    "extends",
    "disallow",
    "divisibleBy",
];

/// Why a schema cannot be given to the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Where, from the schema's root on, with dots; empty for the root.
    pub inside: String,
    /// What is wrong there.
    pub problem: String,
    pub fault: Fault,
}

/// Of what kind a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The schema is wrong whoever reads it.
    Wrong,
    /// Something cannot be held, and can be left out.
    Unheld,
    /// A number cannot be held; without it other values were meant.
    Number,
}

impl Problem {
    /// The place below another.
    pub fn below(&self, place: &str) -> String {
        if self.inside.is_empty() { place.to_owned() } else { format!("{place}.{}", self.inside) }
    }
}

/// The schema as the library holds it, but for whole numbers that [`wholes`] knows how to write. With `strict`, what cannot be held
/// is a problem, otherwise it is left out.
pub(crate) fn prepared(schema: &Value, strict: bool) -> Result<Value, Problem> {
    let (whole, emptiness) = prepared_with(schema, strict, Long::Written)?;
    if !wholes::are_needed(&whole) {
        return Ok(whole);
    }
    match wholes::parts(&whole) {
        None => prepared_with(schema, strict, Long::Refused).map(|(whole, _)| whole),
        Some(Part::Nothing) => {
            Err(emptiness.unwrap_or_else(|| wrong("", "", "says things that no value has together")))
        }
        Some(_) => Ok(whole),
    }
}

/// The first part of the schema that no value is of, as far as it shows there.
pub(crate) fn emptiness(schema: &Value) -> Option<Problem> {
    prepared_with(schema, false, Long::Written).ok()?.1
}

/// The schema, and where bounds leave no number or a pattern no text, if they do somewhere.
fn prepared_with(schema: &Value, strict: bool, long: Long) -> Result<(Value, Option<Problem>), Problem> {
    let mut preparing = Preparing {
        long,
        root: schema,
        looking: Looking::new(schema),
        strict,
        names: HashMap::new(),
        waiting: Vec::new(),
        merges: merges(schema),
        multiples: Vec::new(),
        emptiness: None,
    };
    let mut whole = preparing.schema(schema, "", DEPTH)?;
    let mut definitions = Map::new();
    while let Some((name, target, place)) = preparing.waiting.pop() {
        definitions.insert(name, preparing.schema(target, &place, DEPTH)?);
    }
    preparing.multiples_fit()?;
    if let (Some(map), false) = (whole.as_object_mut(), definitions.is_empty()) {
        map.insert("$defs".to_owned(), Value::Object(definitions));
    }
    Ok((whole, preparing.emptiness))
}

/// Whether an object of the schema has names that it does not list, of which another spelling could be one that it lists.
pub(crate) fn has_open_names(schema: &Value) -> bool {
    match schema {
        Value::Object(map) => {
            let listed = ["properties", "required", "patternProperties"].iter().any(|key| map.contains_key(*key));
            (listed && map.get("additionalProperties") != Some(&Value::Bool(false))) || map.values().any(has_open_names)
        }
        Value::Array(items) => items.iter().any(has_open_names),
        _ => false,
    }
}

/// Whether parts of the schema are put together with others, so that no part shows the whole.
fn merges(schema: &Value) -> bool {
    match schema {
        Value::Object(map) => {
            let applied = ["$ref", "allOf", "anyOf", "oneOf"].iter().filter(|key| map.contains_key(**key)).count();
            let says_more = map.keys().any(|key| !DROPPED.contains(&key.as_str()) && !is_applied(key));
            let many = map.get("allOf").and_then(Value::as_array).is_some_and(|members| members.len() > 1);
            (applied > 0 && (says_more || applied > 1 || many)) || map.values().any(merges)
        }
        Value::Array(items) => items.iter().any(merges),
        _ => false,
    }
}

fn is_applied(key: &str) -> bool {
    matches!(key, "$ref" | "allOf" | "anyOf" | "oneOf")
}

struct Preparing<'a> {
    root: &'a Value,
    looking: Looking<'a>,
    strict: bool,
    long: Long,
    /// What references became.
    names: HashMap<String, String>,
    /// What they refer to, with its new name and place.
    waiting: Vec<(String, &'a Value, String)>,
    merges: bool,
    /// Steps of numbers, with where they stand.
    multiples: Vec<(numbers::Step, String)>,
    /// The first bounds between which there is no number, or pattern that finds nothing.
    emptiness: Option<Problem>,
}

type Outcome<T> = Result<T, Problem>;

impl<'a> Preparing<'a> {
    /// A problem, where it is one.
    fn unheld<T>(&self, place: &str, key: &str, problem: &str) -> Outcome<Option<T>> {
        if self.strict { Err(problem_at(place, key, problem, Fault::Unheld)) } else { Ok(None) }
    }

    fn schema(&mut self, schema: &'a Value, place: &str, depth: usize) -> Outcome<Value> {
        let Some(depth) = depth.checked_sub(1) else { return Err(wrong(place, "", "nests too deeply")) };
        let map = match schema {
            Value::Object(map) => map,
            Value::Bool(_) => return Ok(schema.clone()),
            other => return Err(wrong(place, "", &format!("is {other}, and no schema"))),
        };
        if self.strict && !place.is_empty() && has_own_base(map) {
            let problem = "begins a schema of its own with references, which cannot be held";
            return Err(problem_at(place, "$id", problem, Fault::Unheld));
        }
        let mut out = Map::new();
        for (key, value) in map {
            if DROPPED.contains(&key.as_str()) {
                continue;
            }
            if let Some((key, value)) = self.keyword(map, key, value, place, depth)? {
                out.insert(key, value);
            }
        }
        self.counts(map, &mut out, place)?;
        Ok(Value::Object(out))
    }

    /// What one keyword becomes, and under which name; `None` leaves it out.
    fn keyword(
        &mut self,
        map: &'a Map<String, Value>,
        key: &str,
        value: &'a Value,
        place: &str,
        depth: usize,
    ) -> Outcome<Option<(String, Value)>> {
        let held = match key {
            "properties" | "patternProperties" => self.members(key, value, place, depth)?,
            "items" if value.is_array() => self.list(key, value, place, depth)?,
            "allOf" | "anyOf" | "prefixItems" => self.list(key, value, place, depth)?,
            "oneOf" => self.one_of(key, value, place, depth)?,
            "items" | "additionalItems" | "additionalProperties" => self.schema(value, &inside(place, key), depth)?,
            "$ref" => self.reference(value, place)?,
            "type" => {
                named(value).map_err(|problem| wrong(place, key, &problem))?;
                value.clone()
            }
            "enum" if value.as_array().is_some_and(Vec::is_empty) => {
                return Err(wrong(place, key, "is empty, so that nothing is of it"));
            }
            "const" | "enum" => {
                numbers::are_exact(value, self.long)
                    .map_err(|problem| problem_at(place, key, &problem, Fault::Number))?;
                value.clone()
            }
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                let emptiness = numbers::emptiness(map).map(|problem| wrong(place, key, &problem));
                let held = numbers::bound(map, key, value, self.long);
                let problem = |problem: String| problem_at(place, key, &problem, Fault::Number);
                let held = held.map_err(|inexact| emptiness.clone().unwrap_or_else(|| problem(inexact)))?;
                self.emptiness = self.emptiness.take().or(emptiness);
                held
            }
            "multipleOf" => match numbers::Step::of(value) {
                Ok(step) if numbers::bounds_wholes(map) && step.has_all_wholes() => return Ok(None),
                Ok(step) => {
                    self.multiples.push((step, inside(place, key)));
                    value.clone()
                }
                Err(problem) => return self.unheld(place, key, &problem),
            },
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
                match numbers::count(key, value).map_err(|problem| wrong(place, key, &problem))? {
                    Some(count) => count,
                    None => return Ok(None),
                }
            }
            "pattern" => match self.pattern(value, place, key)? {
                Some(pattern) => pattern,
                None => return Ok(None),
            },
            "format" if is_of(map, "string") && !value.as_str().is_some_and(is_format) => {
                return self.unheld(place, key, &format!("is {value}, which cannot be held"));
            }
            key if says_nothing(key, value) => return Ok(None),
            "unevaluatedProperties" if stands_alone(map, "additionalProperties") => {
                let value = self.schema(value, &inside(place, key), depth)?;
                return Ok(Some(("additionalProperties".to_owned(), value)));
            }
            "unevaluatedItems" if stands_alone(map, "items") => {
                let value = self.schema(value, &inside(place, key), depth)?;
                return Ok(Some(("items".to_owned(), value)));
            }
            key if UNHELD.contains(&key) => return self.unheld(place, key, "is a keyword that cannot be held"),
            _ => value.clone(),
        };
        Ok(Some((key.to_owned(), held)))
    }

    /// Schemas under names.
    fn members(&mut self, key: &str, value: &'a Value, place: &str, depth: usize) -> Outcome<Value> {
        let Value::Object(members) = value else { return Err(wrong(place, key, "is no object")) };
        let place = inside(place, key);
        let mut out = Map::new();
        for (name, member) in members {
            let mut name = name.clone();
            if key == "patternProperties" {
                let pattern = Value::String(name.clone());
                match self.pattern(&pattern, &place, &name)? {
                    Some(Value::String(pattern)) => name = pattern,
                    _ => continue,
                }
            }
            let member = self.schema(member, &inside(&place, &name), depth)?;
            out.insert(name, member);
        }
        Ok(Value::Object(out))
    }

    fn list(&mut self, key: &str, value: &'a Value, place: &str, depth: usize) -> Outcome<Value> {
        let Value::Array(members) = value else { return Err(wrong(place, key, "is no list")) };
        let place = inside(place, key);
        let of = |(i, member)| self.schema(member, &inside(&place, &format!("{i}")), depth);
        Ok(Value::Array(members.iter().enumerate().map(of).collect::<Result<_, _>>()?))
    }

    /// Alternatives of which exactly one holds: held where no value is of two.
    fn one_of(&mut self, key: &str, value: &'a Value, place: &str, depth: usize) -> Outcome<Value> {
        if let (true, Value::Array(members)) = (self.strict, value) {
            for (i, one) in members.iter().enumerate() {
                if let Some(j) =
                    (0..i).find(|j| members.get(*j).is_some_and(|other| !disjoint(&self.looking, one, other)))
                {
                    let problem = format!(
                        "has members {j} and {i} that one value could be of both, and exactly one cannot be held"
                    );
                    return Err(problem_at(place, key, &problem, Fault::Unheld));
                }
            }
        }
        self.list(key, value, place, depth)
    }

    /// A reference as the library follows it.
    fn reference(&mut self, value: &Value, place: &str) -> Outcome<Value> {
        let reference = value.as_str().unwrap_or_default();
        let own = self.root.get("$id").and_then(Value::as_str).filter(|id| !id.is_empty() && !id.starts_with('#'));
        let local = own
            .and_then(|id| reference.strip_prefix(id.trim_end_matches('#')))
            .filter(|rest| rest.is_empty() || rest.starts_with('#'));
        let local = local.unwrap_or(reference);
        if matches!(local, "#" | "#/") || (local.is_empty() && own.is_some()) {
            return Ok(json!("#"));
        }
        if let Some(name) = self.names.get(local) {
            return Ok(json!(format!("#/$defs/{name}")));
        }
        let Some(target) = referred(self.root, local) else {
            let problem = format!("is {value}, which is not in the schema");
            return Err(wrong(place, "$ref", &problem));
        };
        if std::ptr::eq(target, self.root) {
            return Ok(json!("#"));
        }
        if self.names.len() >= REFERENCES {
            return Err(wrong(place, "$ref", &format!("is one of more than {REFERENCES} references")));
        }
        let name = format!("referred-{}", self.names.len());
        self.names.insert(local.to_owned(), name.clone());
        let target_place = local.trim_start_matches('#').trim_start_matches('/').replace('/', ".");
        self.waiting.push((name.clone(), target, target_place));
        Ok(json!(format!("#/$defs/{name}")))
    }

    /// An expression as the library reads it; `None` leaves it out.
    fn pattern(&mut self, value: &Value, place: &str, key: &str) -> Outcome<Option<Value>> {
        let Some(pattern) = value.as_str() else { return Err(wrong(place, key, "is no text")) };
        let Translated { text, hir, unheld } =
            translated(pattern).map_err(|problem| wrong(place, key, &format!("is `{pattern}`: {problem}")))?;
        // A member that no name finds leaves its object as it is.
        if key == "pattern" && hir.properties().minimum_len().is_none() {
            let problem = format!("is `{pattern}`, which finds nothing in any text");
            self.emptiness.get_or_insert_with(|| wrong(place, key, &problem));
        }
        let is_held = || RegexBuilder::new().mk_regex_for_serach(&text).is_ok();
        match unheld.or_else(|| (!is_held()).then(|| "an assertion inside".to_owned())) {
            // It is not wrong, it only cannot be held.
            Some(what) => self.unheld(place, key, &format!("is `{pattern}`, with {what}, which cannot be held")),
            None => Ok(Some(Value::String(quotable(&hir).unwrap_or(text)))),
        }
    }

    /// How many properties there may be: the library counts them where all that it lists are required.
    fn counts(&self, map: &Map<String, Value>, out: &mut Map<String, Value>, place: &str) -> Outcome<()> {
        let most = out.get("maxProperties").and_then(Value::as_u64);
        let Some(least) = out.get("minProperties").and_then(Value::as_u64).or_else(|| most.map(|_| 0)) else {
            return Ok(());
        };
        let required: Vec<&str> =
            map.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        if !self.merges && most.is_none() && least as usize <= required.len() {
            out.remove("minProperties");
            return Ok(());
        }
        let none = Map::new();
        let properties = map.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let is_closed =
            map.get("additionalProperties") == Some(&Value::Bool(false)) && !map.contains_key("patternProperties");
        let optional = properties.keys().filter(|name| !required.contains(&name.as_str())).count();
        let left = least.saturating_sub(required.len() as u64);
        if !self.merges && is_closed && left == optional as u64 && left > 0 {
            // All of them are there, then.
            let all: Vec<Value> = properties
                .keys()
                .map(|name| json!(name))
                .chain(required.iter().filter(|name| !properties.contains_key(**name)).map(|name| json!(name)))
                .collect();
            out.insert("required".to_owned(), Value::Array(all));
            out.remove("minProperties");
            return Ok(());
        }
        let is_one = is_closed && left <= 1 && most.is_none_or(|most| most.saturating_sub(required.len() as u64) == 1);
        let is_held = !self.merges && (optional == 0 || is_one);
        let problem = match () {
            () if !is_held => "counts properties of which not all are required, which cannot be held",
            // Nothing keeps open names from coming twice.
            () if left > 1 && !is_closed => "counts names that are open, of which one may come twice",
            () => return Ok(()),
        };
        let key = if out.contains_key("minProperties") { "minProperties" } else { "maxProperties" };
        self.unheld::<()>(place, key, problem)?;
        if !is_held {
            out.remove("minProperties");
            out.remove("maxProperties");
        }
        Ok(())
    }

    /// Steps that the library may put together must fit it.
    fn multiples_fit(&self) -> Outcome<()> {
        let steps: Vec<&numbers::Step> = self.multiples.iter().map(|(step, _)| step).collect();
        match self.multiples.first() {
            Some((_, place)) if self.merges && !numbers::fit(&steps) => {
                Err(problem_at(place, "", "and others are too large to be held together", Fault::Number))
            }
            _ => Ok(()),
        }
    }
}

fn wrong(place: &str, key: &str, problem: &str) -> Problem {
    problem_at(place, key, problem, Fault::Wrong)
}

fn problem_at(place: &str, key: &str, problem: &str, fault: Fault) -> Problem {
    let inside = if key.is_empty() { place.to_owned() } else { inside(place, key) };
    Problem { inside, problem: problem.to_owned(), fault }
}

fn inside(place: &str, key: &str) -> String {
    if place.is_empty() { key.to_owned() } else { format!("{place}.{key}") }
}

/// Whether references inside of it would be its own.
fn has_own_base(map: &Map<String, Value>) -> bool {
    let is_base = map.get("$id").and_then(Value::as_str).is_some_and(|id| !id.starts_with('#'));
    is_base && map.values().any(refers)
}

/// Whether a value names types.
fn named(value: &Value) -> Result<(), String> {
    const TYPES: [&str; 7] = ["null", "boolean", "object", "array", "number", "string", "integer"];
    match value {
        Value::String(name) if TYPES.contains(&name.as_str()) => Ok(()),
        Value::Array(all) if all.is_empty() => Err("is empty, so that nothing is of it".to_owned()),
        Value::Array(all) => all.iter().filter(|one| !one.is_array()).try_for_each(named),
        other => Err(format!("is {other}, which is none of {}", TYPES.join(", "))),
    }
}

/// Whether a value of that type could be meant.
fn is_of(map: &Map<String, Value>, kind: &str) -> bool {
    match map.get("type") {
        Some(Value::String(name)) => name == kind,
        Some(Value::Array(names)) => names.iter().any(|name| name == kind),
        _ => true,
    }
}

/// Whether a keyword with that value holds for all.
fn says_nothing(key: &str, value: &Value) -> bool {
    let is_any = *value == Value::Bool(true) || value.as_object().is_some_and(Map::is_empty);
    match key {
        "uniqueItems" => *value == Value::Bool(false),
        "unevaluatedItems" | "unevaluatedProperties" => is_any,
        "propertyNames" => is_any || *value == json!({"type": "string"}),
        "dependencies" | "dependentRequired" | "dependentSchemas" => value.as_object().is_some_and(Map::is_empty),
        "not" => *value == Value::Bool(false),
        _ => false,
    }
}

/// Whether what is not evaluated is just what the schema does not list itself.
fn stands_alone(map: &Map<String, Value>, other: &str) -> bool {
    let others = [
        "$ref",
        "allOf",
        "anyOf",
        "oneOf",
        "if",
        "then",
        "else",
        "dependentSchemas",
        "dependencies",
        "contains",
        "$dynamicRef",
        "$recursiveRef",
    ];
    !map.contains_key(other) && !others.iter().any(|key| map.contains_key(*key))
}
