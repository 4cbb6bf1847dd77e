//! What a tool's JSON Schema says about the text of an argument: text carries no types, the schema gives them.

use super::objects::variants;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Most pieces of a schema that are looked at for one parameter; a schema may refer to itself.
const SCHEMA_PIECES: usize = 1000;
/// Deepest nesting that is looked at.
const SCHEMA_DEPTH: usize = 32;
/// Most zeros that an exponent may add to a whole number.
const EXPONENT: i64 = 400;

/// A JSON type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    String,
    Integer,
    Number,
    Boolean,
    Null,
    Object,
    Array,
}

impl Type {
    fn named(name: &str) -> Option<Type> {
        Some(match name {
            "string" => Type::String,
            "integer" => Type::Integer,
            "number" => Type::Number,
            "boolean" => Type::Boolean,
            "null" => Type::Null,
            "object" => Type::Object,
            "array" => Type::Array,
            _ => return None,
        })
    }

    /// Its name in a schema.
    pub fn name(self) -> &'static str {
        match self {
            Type::String => "string",
            Type::Integer => "integer",
            Type::Number => "number",
            Type::Boolean => "boolean",
            Type::Null => "null",
            Type::Object => "object",
            Type::Array => "array",
        }
    }

    fn of(value: &Value) -> Type {
        match value {
            Value::Null => Type::Null,
            Value::Bool(_) => Type::Boolean,
            Value::Number(n) if n.is_f64() => Type::Number,
            Value::Number(_) => Type::Integer,
            Value::String(_) => Type::String,
            Value::Array(_) => Type::Array,
            Value::Object(_) => Type::Object,
        }
    }
}

/// Types of one parameter, in the order in which they are tried.
#[derive(Clone, Debug, Default)]
pub(crate) struct Types(Vec<Type>);

impl Types {
    /// Whether the text is the value, whatever it says.
    pub fn is_text(&self) -> bool {
        self.0.iter().all(|t| *t == Type::String)
    }

    /// Whether the text must be JSON, when a grammar holds it to the schema.
    pub fn is_json(&self) -> bool {
        !self.0.is_empty() && !self.0.contains(&Type::String)
    }

    /// Whether these are the same.
    pub fn same(&self, other: &Types) -> bool {
        self.0.len() == other.0.len() && self.0.iter().all(|kind| other.0.contains(kind))
    }

    /// The types besides text.
    pub fn others(&self) -> Vec<Type> {
        self.0.iter().copied().filter(|t| *t != Type::String).collect()
    }

    /// JSON of a value written as `text`.
    pub fn json(&self, text: &str) -> String {
        self.converted(text).unwrap_or_else(|| quoted(text))
    }

    fn converted(&self, text: &str) -> Option<String> {
        let trimmed = text.trim_matches([' ', '\t', '\n', '\r']);
        if self.0.contains(&Type::String) {
            let others = self.0.iter().filter(|t| **t != Type::String);
            let exact = text == trimmed;
            return others.filter(|_| exact).find_map(|t| strict(*t, text));
        }
        self.0.iter().find_map(|t| strict(*t, trimmed).or_else(|| lenient(*t, trimmed)))
    }

    fn add(&mut self, new: Type) {
        if !self.0.contains(&new) {
            self.0.push(new);
        }
    }
}

/// The text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// JSON text of that type, unpadded.
fn strict(kind: Type, text: &str) -> Option<String> {
    let same = || Some(text.to_owned());
    match kind {
        Type::String => None,
        Type::Integer => whole(text),
        Type::Number => whole(text).or_else(|| {
            Decimal::read(text)?;
            text.parse::<f64>().ok().filter(|x| x.is_finite()).and_then(|_| same())
        }),
        Type::Boolean => matches!(text, "true" | "false").then(same)?,
        Type::Null => (text == "null").then(same)?,
        Type::Object => (text.starts_with('{') && is_json(text)).then(same)?,
        Type::Array => (text.starts_with('[') && is_json(text)).then(same)?,
    }
}

/// Other ways in which models write these types.
fn lenient(kind: Type, text: &str) -> Option<String> {
    match kind {
        Type::Boolean if text == "1" || text.eq_ignore_ascii_case("true") => Some("true".into()),
        Type::Boolean if text == "0" || text.eq_ignore_ascii_case("false") => Some("false".into()),
        Type::Null if text == "None" => Some("null".into()),
        _ => None,
    }
}

pub(crate) fn is_json(text: &str) -> bool {
    // Numbers of any size are JSON, though not all fit a float.
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

/// A JSON number in parts.
struct Decimal<'a> {
    negative: bool,
    before: &'a str,
    after: &'a str,
    exponent: i64,
}

impl<'a> Decimal<'a> {
    fn read(text: &'a str) -> Option<Decimal<'a>> {
        let negative = text.starts_with('-');
        let text = text.strip_prefix('-').unwrap_or(text);
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, Some(exponent)),
            None => (text, None),
        };
        let (before, after) = match mantissa.split_once('.') {
            Some((_, "")) => return None,
            Some(parts) => parts,
            None => (mantissa, ""),
        };
        let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
        if before.is_empty() || !digits(before) || !digits(after) || (before.len() > 1 && before.starts_with('0')) {
            return None;
        }
        let exponent = match exponent {
            None => 0,
            Some(e) => {
                let bare = e.strip_prefix(['+', '-']).unwrap_or(e);
                if bare.is_empty() || !digits(bare) {
                    return None;
                }
                let size = bare.parse::<i64>().unwrap_or(i64::MAX / 4).min(i64::MAX / 4);
                if e.starts_with('-') { -size } else { size }
            }
        };
        Some(Decimal { negative, before, after, exponent })
    }
}

/// The digits of a JSON number without a fraction, exactly: `3.0` is 3, `1e3` is 1000.
fn whole(text: &str) -> Option<String> {
    let number = Decimal::read(text)?;
    let digits = format!("{}{}", number.before, number.after);
    let kept = digits.trim_end_matches('0');
    if kept.is_empty() {
        return Some("0".into());
    }
    let zeros = number.exponent - number.after.len() as i64 + (digits.len() - kept.len()) as i64;
    let written = digits.len() as i64;
    let zeros = usize::try_from(zeros).ok().filter(|z| *z as i64 <= EXPONENT.max(written))?;
    let kept = kept.trim_start_matches('0');
    Some(format!("{}{kept}{}", if number.negative { "-" } else { "" }, "0".repeat(zeros)))
}

/// Types of a parameter in a tool's schema `root`.
pub(crate) fn types_of(root: &Value, parameter: &Value) -> Types {
    let mut reading = Reading { root, left: SCHEMA_PIECES };
    let mut types = Types::default();
    reading.types(parameter, SCHEMA_DEPTH, &mut types);
    types
}

/// The tools that a request declares.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    tools: HashMap<String, Declared>,
}

/// What a tool's schema says of its parameters.
#[derive(Clone, Debug, Default)]
struct Declared {
    parameters: HashMap<String, Types>,
    /// Their names in order.
    order: Vec<String>,
    /// Types of all others.
    others: Types,
}

impl Tools {
    /// No tool: every call is dropped.
    pub fn none() -> Tools {
        Tools::default()
    }

    /// Reads tools as in a Chat Completions request, `[{"type": "function", "function": {"name", "parameters"}}]`, or
    /// with `name` and `parameters` or `input_schema` one level higher. What has no name is left out.
    pub fn declared(tools: &Value) -> Tools {
        let mut found = HashMap::new();
        for tool in tools.as_array().into_iter().flatten() {
            let tool = tool.get("function").unwrap_or(tool);
            let Some(name) = tool.get("name").and_then(Value::as_str) else { continue };
            let schema = tool.get("parameters").or_else(|| tool.get("input_schema")).unwrap_or(&Value::Null);
            found.insert(name.to_owned(), Declared::of(schema));
        }
        Tools { tools: found }
    }

    /// Whether the request declares a tool of that name.
    pub fn has(&self, name: &str) -> bool {
        self.tools.contains_key(name)
    }

    /// Whether a tool's schema names the parameter.
    pub(crate) fn names(&self, tool: &str, parameter: &str) -> bool {
        self.tools.get(tool).is_some_and(|tool| tool.parameters.contains_key(parameter))
    }

    /// Types of a parameter. One that is not declared is mere text, unless a grammar `held` it to what the schema says of all
    /// others.
    pub(crate) fn types(&self, tool: &str, parameter: &str, held: bool) -> Types {
        let Some(tool) = self.tools.get(tool) else { return Types::default() };
        let others = held.then_some(&tool.others);
        tool.parameters.get(parameter).or(others).cloned().unwrap_or_default()
    }
}

impl Declared {
    fn of(schema: &Value) -> Declared {
        let mut declared = Declared::default();
        let types = |schema_of: &Value, into: &mut Types| {
            Reading { root: schema, left: SCHEMA_PIECES }.types(schema_of, SCHEMA_DEPTH, into);
        };
        let parts = match variants(schema) {
            Ok(variants) => variants.into_iter().map(Value::Object).collect(),
            Err(_) => parts_of(schema).into_iter().cloned().collect::<Vec<Value>>(),
        };
        for part in &parts {
            for (name, parameter) in part.get("properties").and_then(Value::as_object).into_iter().flatten() {
                if !declared.parameters.contains_key(name) {
                    declared.order.push(name.clone());
                }
                types(parameter, declared.parameters.entry(name.clone()).or_default());
            }
            part.get("additionalProperties").into_iter().for_each(|others| types(others, &mut declared.others));
        }
        declared
    }
}

/// A schema that says no more of a tool's parameters than their types, by which their text is read.
pub(crate) fn loosened(schema: &Value) -> Value {
    let of = |types: &Types| match types.0.as_slice() {
        [] => json!({}),
        types => json!({"type": types.iter().map(|kind| kind.name()).collect::<Vec<_>>()}),
    };
    let declared = Declared::of(schema);
    let parameters = declared.order.iter().filter_map(|name| Some((name.clone(), of(declared.parameters.get(name)?))));
    let properties: serde_json::Map<String, Value> = parameters.collect();
    json!({"type": "object", "properties": properties, "additionalProperties": of(&declared.others)})
}

/// A schema of an object with all that it is put together from: references, and members of `allOf`, `anyOf` and `oneOf`.
fn parts_of(root: &Value) -> Vec<&Value> {
    let mut parts = vec![root];
    let mut next = 0;
    while let Some(part) = parts.get(next).copied().filter(|_| next < SCHEMA_PIECES) {
        next += 1;
        let referred = part.get("$ref").and_then(Value::as_str).and_then(|reference| referred(root, reference));
        let members = ["allOf", "anyOf", "oneOf"].iter().filter_map(|key| part.get(*key)?.as_array()).flatten();
        for more in referred.into_iter().chain(members) {
            if !parts.iter().any(|known| std::ptr::eq(*known, more)) {
                parts.push(more);
            }
        }
    }
    parts
}

/// What a reference means inside its schema: a path as `#/$defs/a`, with `~1`, `~0` and `%20` in it, or `#name` of an anchor.
pub(crate) fn referred<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let fragment = unescaped(reference.strip_prefix('#')?)?;
    match fragment.as_str() {
        "" | "/" => Some(root),
        path if path.starts_with('/') => root.pointer(path),
        name => anchored(root, name),
    }
}

/// The text with `%41` and the like replaced.
fn unescaped(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, then)) = rest.split_first() {
        match then.split_at_checked(2).filter(|_| *first == b'%') {
            Some((digits, then)) => {
                bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
                rest = then;
            }
            None => {
                bytes.push(*first);
                rest = then;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// The schema that has the anchor: the whole, or one of its definitions.
fn anchored<'a>(root: &'a Value, name: &str) -> Option<&'a Value> {
    let definitions = ["$defs", "definitions"].iter().filter_map(|key| root.get(*key)?.as_object()).flatten();
    let has_it = |schema: &&Value| {
        [("$anchor", ""), ("$id", "#"), ("id", "#")].iter().any(|(key, sign)| {
            schema.get(*key).and_then(Value::as_str).and_then(|id| id.strip_prefix(*sign)) == Some(name)
        })
    };
    std::iter::once(root).chain(definitions.map(|(_, schema)| schema)).find(has_it)
}

struct Reading<'a> {
    root: &'a Value,
    left: usize,
}

impl Reading<'_> {
    fn types(&mut self, schema: &Value, depth: usize, out: &mut Types) {
        let Some(left) = self.left.checked_sub(1) else { return };
        self.left = left;
        let (Some(schema), Some(depth)) = (schema.as_object(), depth.checked_sub(1)) else { return };
        let before = out.0.len();
        match schema.get("type") {
            Some(Value::String(name)) => Type::named(name).into_iter().for_each(|t| out.add(t)),
            Some(Value::Array(names)) => {
                names.iter().filter_map(Value::as_str).filter_map(Type::named).for_each(|t| out.add(t));
            }
            _ => {}
        }
        for member in ["anyOf", "oneOf"].iter().filter_map(|k| schema.get(*k)?.as_array()).flatten() {
            self.types(member, depth, out);
        }
        if out.0.len() == before {
            schema.get("enum").and_then(Value::as_array).into_iter().flatten().for_each(|v| out.add(Type::of(v)));
            schema.get("const").into_iter().for_each(|v| out.add(Type::of(v)));
            let root = self.root;
            let referred = schema.get("$ref").and_then(Value::as_str).and_then(|r| referred(root, r));
            if let Some(referred) = referred {
                self.types(referred, depth, out);
            }
            if let Some([only]) = schema.get("allOf").and_then(Value::as_array).map(Vec::as_slice) {
                self.types(only, depth, out);
            }
        }
        if out.0.len() > before && schema.get("nullable") == Some(&Value::Bool(true)) {
            out.add(Type::Null);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(schema: Value, text: &str) -> String {
        let parameters = json!({"properties": {"p": schema}, "$defs": {"loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/loop"}]}, "n": {"type": "number"}}});
        Tools::declared(&json!([{"name": "t", "parameters": parameters}])).types("t", "p", false).json(text)
    }

    #[test]
    fn text_becomes_what_the_schema_says() {
        for (schema, text, expected) in [
            (json!({"type": "string"}), "007", r#""007""#),
            (json!({}), "null", r#""null""#),
            (json!(true), "1", r#""1""#),
            (json!({"type": "integer"}), "3.0", "3"),
            (json!({"type": "integer"}), "-0", "0"),
            (json!({"type": "integer"}), " 7", "7"),
            (json!({"type": "integer"}), "007", r#""007""#),
            (json!({"type": "integer"}), "1.50e1", "15"),
            (json!({"type": "integer"}), "1.5", r#""1.5""#),
            (json!({"type": "integer"}), "1e999999999999999999999", r#""1e999999999999999999999""#),
            (json!({"type": "integer"}), "12345678901234567890123", "12345678901234567890123"),
            (json!({"type": "number"}), "1e3", "1000"),
            (json!({"type": "number"}), "2.50", "2.50"),
            (json!({"type": "number"}), "1.5e999", r#""1.5e999""#),
            (json!({"type": "number"}), "Infinity", r#""Infinity""#),
            (json!({"type": "number"}), "1.", r#""1.""#),
            (json!({"type": "boolean"}), "TRUE", "true"),
            (json!({"type": "boolean"}), "0", "false"),
            (json!({"type": ["string", "boolean"]}), "1", r#""1""#),
            (json!({"type": ["string", "boolean"]}), "true", "true"),
            (json!({"type": "null"}), "None", "null"),
            (json!({"type": "integer", "nullable": true}), "null", "null"),
            (json!({"nullable": true}), "null", r#""null""#),
            (json!({"type": "array"}), "{}", r#""{}""#),
            (json!({"type": "object"}), "{\"a\": 1}\n", "{\"a\": 1}"),
            (json!({"allOf": [{"type": "integer"}]}), "1", "1"),
            (json!({"allOf": [{"type": "integer"}, {}]}), "1", r#""1""#),
            (json!({"enum": ["1", "2"]}), "1", r#""1""#),
            (json!({"$ref": "#/$defs/n"}), "1", "1"),
            (json!({"$ref": "#/$defs/loop"}), "1", r#""1""#),
            (json!({"oneOf": [{"const": 1}, {"const": null}]}), "null", "null"),
        ] {
            assert_eq!(typed(schema.clone(), text), expected, "{schema} {text}");
        }
    }
}
