//! What a parameter's schema says about the text of its value: raw text of a language, or JSON.

use super::ecma::{Translated, translated};
use super::formats::format;
use super::region::{Text, either};
use super::writer::{quoted, slashed};
use crate::response::{Type, referred, types_of};
use regex_syntax::hir::{Hir, HirKind, Look};
use serde_json::{Map, Value, json};

/// Deepest nesting of references and alternatives that is followed.
const DEPTH: usize = 16;
/// Most literal alternatives.
const LITERALS: usize = 2000;
/// Longest length of a text that is counted out.
const LENGTH: u64 = 4096;

/// Keywords that only annotate, and those that name parts of the schema.
const SILENT: &[&str] = &[
    "title",
    "description",
    "default",
    "examples",
    "example",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$schema",
    "$id",
    "$anchor",
    "$defs",
    "definitions",
    "nullable",
    "contentEncoding",
    "contentMediaType",
];

/// Whether a keyword says nothing of a value.
pub(crate) fn is_silent(key: &str) -> bool {
    SILENT.contains(&key)
}

/// One way in which a value is written.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    /// Raw text.
    Text(Text),
    /// JSON of a schema that stands alone.
    Json(Value),
}

/// A tool's schema, in whose parts references are followed.
pub(crate) struct Reader<'a> {
    pub root: &'a Value,
    /// Whether keywords that cannot be held are errors.
    pub strict: bool,
    /// Whether a text can be written as a value at all.
    pub carries: &'a dyn Fn(&str) -> bool,
}

impl Reader<'_> {
    /// The ways in which a parameter's value is written; the problem if the schema cannot be held.
    pub fn forms(&self, schema: &Value) -> Result<Vec<Form>, String> {
        let types = types_of(self.root, schema);
        if types.is_json() {
            return Ok(vec![Form::Json(self.alone(schema))]);
        }
        let text = self.text(schema, DEPTH)?.ok_or("admits no text")?;
        let others = types.others();
        if others.is_empty() {
            return Ok(vec![Form::Text(text)]);
        }
        let bare = schema.as_object().is_some_and(|map| map.keys().all(|k| k == "type" || is_silent(k)));
        if bare {
            // Any text is a string or a value of one of the other types.
            return Ok(vec![Form::Text(text)]);
        }
        self.mixed(schema, text, &others)
    }

    /// Text beside other types: text that reads as a value of those is one, so it must follow their part of the schema.
    fn mixed(&self, schema: &Value, text: Text, others: &[Type]) -> Result<Vec<Form>, String> {
        let language = text.language.clone().unwrap_or_else(|| "/(?s:.*)/".to_owned());
        let taken: Vec<String> = others.iter().map(|t| reading(*t).to_owned()).collect();
        let kept = format!("({language}) & ~({})", either(&taken));
        let mut forms = vec![Form::Text(Text { language: Some(kept), may_be_empty: text.may_be_empty })];
        let mut scalars = Vec::new();
        for kind in others {
            match kind {
                Type::Object | Type::Array => {
                    let only = json!({"allOf": [self.alone(schema), {"type": kind.name()}]});
                    forms.push(Form::Json(hoisted(only)));
                }
                kind => scalars.extend(self.scalars(schema, *kind, DEPTH)?),
            }
        }
        if !scalars.is_empty() {
            scalars.dedup();
            forms.push(Form::Text(Text { language: Some(scalars.join(" | ")), may_be_empty: false }));
        }
        Ok(forms)
    }

    /// Expressions for the values of one scalar type that the schema admits. Bounds of numbers cannot be held there.
    fn scalars(&self, schema: &Value, kind: Type, depth: usize) -> Result<Vec<String>, String> {
        let (Some(schema), Some(depth)) = (schema.as_object(), depth.checked_sub(1)) else { return Ok(Vec::new()) };
        let listed = schema.get("enum").and_then(Value::as_array).map(Vec::as_slice);
        let listed = listed.or_else(|| schema.get("const").map(std::slice::from_ref));
        if let Some(values) = listed {
            let of = values.iter().filter(|value| matches_type(value, kind));
            return Ok(of.take(LITERALS).map(|value| quoted(&value.to_string())).collect());
        }
        let mut all = Vec::new();
        for member in ["anyOf", "oneOf", "allOf"].iter().filter_map(|key| schema.get(*key)?.as_array()).flatten() {
            all.extend(self.scalars(member, kind, depth)?);
        }
        if let Some(referred) = self.referred(schema) {
            all.extend(self.scalars(referred, kind, depth)?);
        }
        if names_type(schema, kind) || (kind == Type::Null && schema.get("nullable") == Some(&Value::Bool(true))) {
            let bounds = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
            if self.strict && bounds.iter().any(|key| schema.contains_key(*key)) {
                return Err("bounds a number beside text, which cannot be held".to_owned());
            }
            all.push(slashed(reading(kind)));
        }
        Ok(all)
    }

    fn referred(&self, schema: &Map<String, Value>) -> Option<&Value> {
        referred(self.root, schema.get("$ref")?.as_str()?)
    }

    /// The language of strings that the schema admits; `None` if it admits none.
    pub fn text(&self, schema: &Value, depth: usize) -> Result<Option<Text>, String> {
        let Some(depth) = depth.checked_sub(1) else { return Err("nests too deeply".to_owned()) };
        let map = match schema {
            Value::Bool(false) => return Ok(None),
            Value::Object(map) => map,
            _ => return Ok(Some(Text::any())),
        };
        if map.contains_key("type") && !names_type(map, Type::String) {
            return Ok(None);
        }
        let mut all = vec![Text::any()];
        for (key, value) in map {
            let one = match (key.as_str(), value) {
                ("type", _) => continue,
                (key, _) if is_silent(key) => continue,
                ("const", value) => self.literals(std::slice::from_ref(value))?,
                ("enum", Value::Array(values)) => self.literals(values)?,
                ("anyOf" | "oneOf", Value::Array(members)) => self.any_of(members, depth)?,
                ("allOf", Value::Array(members)) => {
                    let each = members.iter().map(|m| self.text(m, depth)).collect::<Result<Option<Vec<_>>, _>>()?;
                    each.map(|each| both(&each))
                }
                ("$ref", _) => match self.referred(map) {
                    Some(referred) => self.text(referred, depth)?,
                    None => return Err(format!("refers to {value}, which is not in the schema")),
                },
                ("pattern", Value::String(pattern)) => match searched(pattern) {
                    Ok(text) => Some(text),
                    Err(problem) if self.strict => return Err(format!("has the pattern `{pattern}`, which {problem}")),
                    Err(_) => continue,
                },
                ("format", Value::String(name)) => match format(name) {
                    Some(regex) => Some(Text { language: Some(slashed(&regex)), may_be_empty: false }),
                    None if self.strict => return Err(format!("has the format `{name}`, which cannot be held")),
                    None => continue,
                },
                ("minLength" | "maxLength", value) => match length(key, value, self.strict)? {
                    Some(text) => Some(text),
                    None => continue,
                },
                (key, _) if is_of_other_types(key) => continue,
                (key, _) if self.strict => return Err(format!("has `{key}`, which cannot be held")),
                _ => continue,
            };
            match one {
                Some(one) => all.push(one),
                None => return Ok(None),
            }
        }
        Ok(Some(both(&all)))
    }

    fn any_of(&self, members: &[Value], depth: usize) -> Result<Option<Text>, String> {
        let mut of = Vec::new();
        for member in members {
            of.extend(self.text(member, depth)?);
        }
        if of.is_empty() {
            return Ok(None);
        }
        let may_be_empty = of.iter().any(|text| text.may_be_empty);
        let languages: Option<Vec<String>> =
            of.into_iter().map(|text| text.language.map(|l| format!("({l})"))).collect();
        Ok(Some(Text { language: languages.map(|all| all.join(" | ")), may_be_empty }))
    }

    fn literals(&self, values: &[Value]) -> Result<Option<Text>, String> {
        let texts: Vec<&str> = values.iter().filter_map(Value::as_str).filter(|text| (self.carries)(text)).collect();
        if texts.len() > LITERALS {
            return Err(format!("lists {} texts, the limit is {LITERALS}", texts.len()));
        }
        let may_be_empty = texts.iter().any(|text| text.is_empty());
        let languages: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
        Ok((!texts.is_empty()).then(|| Text { language: Some(languages.join(" | ")), may_be_empty }))
    }

    /// A part of the tool's schema that stands alone: the whole schema moves under `$defs`, and references follow it.
    pub fn alone(&self, schema: &Value) -> Value {
        if !refers(schema) {
            return schema.clone();
        }
        let mut map = match moved(schema) {
            Value::Object(map) => map,
            other => return other,
        };
        map.insert("$defs".to_owned(), json!({"whole": moved(self.root)}));
        Value::Object(map)
    }
}

/// A whole schema as part of another: what goes there, and what goes under the other's `$defs`.
pub(crate) fn nested(schema: &Value) -> (Value, Option<Value>) {
    if refers(schema) { (moved(schema), Some(json!({"whole": moved(schema)}))) } else { (schema.clone(), None) }
}

/// `$defs` of the first member on the outside, where references look for them.
fn hoisted(mut schema: Value) -> Value {
    let defs = schema.pointer_mut("/allOf/0").and_then(Value::as_object_mut).and_then(|first| first.remove("$defs"));
    if let (Some(defs), Some(map)) = (defs, schema.as_object_mut()) {
        map.insert("$defs".to_owned(), defs);
    }
    schema
}

/// Whether a schema has references.
pub(crate) fn refers(schema: &Value) -> bool {
    refers_where(schema, &|_| true)
}

/// Whether a schema has references of some kind.
pub(crate) fn refers_where(schema: &Value, is_meant: &dyn Fn(&str) -> bool) -> bool {
    match schema {
        Value::Object(map) => map.iter().any(|(key, value)| {
            (key == "$ref" && value.as_str().is_some_and(is_meant)) || refers_where(value, is_meant)
        }),
        Value::Array(items) => items.iter().any(|item| refers_where(item, is_meant)),
        _ => false,
    }
}

/// With every local reference pointing below `$defs/whole`.
fn moved(schema: &Value) -> Value {
    match schema {
        Value::Object(map) => {
            let of = |(key, value): (&String, &Value)| {
                let local = value.as_str().filter(|_| key == "$ref").and_then(|v| v.strip_prefix('#'));
                (key.clone(), local.map_or_else(|| moved(value), |path| json!(format!("#/$defs/whole{path}"))))
            };
            Value::Object(map.iter().map(of).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(moved).collect()),
        other => other.clone(),
    }
}

/// How a value of the type is written, and what text beside it is read as one.
fn reading(kind: Type) -> &'static str {
    match kind {
        Type::Integer => r"-?(?:0|[1-9][0-9]{0,39})",
        Type::Number => r"-?(?:0|[1-9][0-9]{0,39})(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,2})?",
        Type::Boolean => "true|false",
        Type::Null => "null",
        Type::Object => r"\{(?s:.*)",
        Type::Array => r"\[(?s:.*)",
        Type::String => "(?s:.*)",
    }
}

fn matches_type(value: &Value, kind: Type) -> bool {
    match kind {
        Type::Null => value.is_null(),
        Type::Boolean => value.is_boolean(),
        Type::Integer => value.is_i64() || value.is_u64(),
        Type::Number => value.is_number(),
        Type::String => value.is_string(),
        Type::Object => value.is_object(),
        Type::Array => value.is_array(),
    }
}

fn names_type(schema: &Map<String, Value>, kind: Type) -> bool {
    match schema.get("type") {
        Some(Value::String(name)) => name == kind.name(),
        Some(Value::Array(names)) => names.iter().any(|name| name.as_str() == Some(kind.name())),
        _ => false,
    }
}

/// Keywords that say nothing about a string.
fn is_of_other_types(key: &str) -> bool {
    matches!(
        key,
        "minimum"
            | "maximum"
            | "exclusiveMinimum"
            | "exclusiveMaximum"
            | "multipleOf"
            | "items"
            | "prefixItems"
            | "minItems"
            | "maxItems"
            | "uniqueItems"
            | "properties"
            | "required"
            | "additionalProperties"
            | "patternProperties"
            | "minProperties"
            | "maxProperties"
            | "contains"
            | "propertyNames"
            | "additionalItems"
    )
}

fn both(all: &[Text]) -> Text {
    let languages: Vec<String> =
        all.iter().filter_map(|text| text.language.as_ref()).map(|l| format!("({l})")).collect();
    let may_be_empty = all.iter().all(|text| text.may_be_empty);
    let language = match languages.as_slice() {
        [] => None,
        many => Some(many.join(" & ")),
    };
    Text { language, may_be_empty }
}

fn length(key: &str, value: &Value, strict: bool) -> Result<Option<Text>, String> {
    let Some(n) = value.as_u64() else { return Err(format!("has `{key}`: {value}, which is no length")) };
    if n > LENGTH {
        return match strict {
            true => Err(format!("has `{key}`: {n}, the limit is {LENGTH}")),
            false => Ok(None),
        };
    }
    let regex = if key == "minLength" { format!("(?s:.{{{n},}})") } else { format!("(?s:.{{0,{n}}})") };
    Ok(Some(Text { language: Some(slashed(&regex)), may_be_empty: key == "maxLength" || n == 0 }))
}

/// Texts in which a pattern of a schema finds something.
pub(crate) fn searched(pattern: &str) -> Result<Text, String> {
    let Translated { hir, unheld, .. } = translated(pattern).map_err(|problem| format!("cannot be read: {problem}"))?;
    if let Some(what) = unheld {
        return Err(format!("has {what}, which cannot be held"));
    }
    let whole = anchored(&hir)?;
    let may_be_empty = whole.properties().minimum_len() == Some(0);
    Ok(Text { language: Some(slashed(&super::pieces::spelt(&whole))), may_be_empty })
}

/// The same with `^` and `$` left out at its ends, and any text where they are missing.
fn anchored(hir: &Hir) -> Result<Hir, String> {
    let any = || regex_syntax::parse("(?s:.*)").map_err(|_| "cannot be read".to_owned());
    let parts = match hir.kind() {
        HirKind::Capture(capture) => return anchored(&capture.sub),
        HirKind::Alternation(all) => return Ok(Hir::alternation(all.iter().map(anchored).collect::<Result<_, _>>()?)),
        HirKind::Concat(all) => all.clone(),
        _ => vec![hir.clone()],
    };
    let look = |part: Option<&Hir>, wanted: Look| matches!(part.map(Hir::kind), Some(HirKind::Look(l)) if *l == wanted);
    let (begins, ends) = (look(parts.first(), Look::Start), look(parts.last(), Look::End));
    let inner = parts.get(usize::from(begins)..parts.len() - usize::from(ends && parts.len() > usize::from(begins)));
    let inner = inner.unwrap_or_default();
    if inner.iter().any(|part| !part.properties().look_set().is_empty()) {
        return Err("has an assertion inside".to_owned());
    }
    let mut whole = Vec::new();
    if !begins {
        whole.push(any()?);
    }
    whole.extend(inner.iter().cloned());
    if !ends {
        whole.push(any()?);
    }
    Ok(Hir::concat(whole))
}
