//! What an answer must look like, in the words of OpenAI's API and of the extensions of other servers.

use crate::error::ApiError;
use crate::fields::{Fields, missing, wrong_type};
use crate::turn::{FieldNames, Format};
use serde_json::{Map, Value};
use text::grammar::GrammarSpec;

/// Reads `response_format` and the fields that do the same elsewhere. At most one of them may be given, and it becomes the one that
/// errors name.
pub(crate) fn format(fields: Fields<'_>, names: &mut FieldNames) -> Result<Format, ApiError> {
    let mut found: Option<(&'static str, GrammarSpec)> = None;
    let mut add = |name: &'static str, spec: Option<GrammarSpec>| match (&found, spec) {
        (_, None) => Ok(()),
        (None, Some(spec)) => {
            found = Some((name, spec));
            Ok(())
        }
        (Some((other, _)), Some(_)) => {
            let message = format!("`{other}` and `{name}` both say what the answer looks like; leave one out");
            Err(ApiError::field(name, "invalid_value", message))
        }
    };
    add("response_format", response_format(fields)?)?;
    for name in ["regex", "guided_regex"] {
        add(name, fields.string(name)?.map(|text| GrammarSpec::Regex(text.to_owned())))?;
    }
    add("ebnf", fields.string("ebnf")?.map(|text| GrammarSpec::Ebnf(text.to_owned())))?;
    add("guided_grammar", fields.string("guided_grammar")?.map(grammar))?;
    for name in ["json_schema", "guided_json"] {
        add(name, fields.get(name).map(|value| schema(name, value)).transpose()?)?;
    }
    add("guided_choice", fields.get("guided_choice").map(|value| choice("guided_choice", value)).transpose()?)?;
    add("structural_tag", fields.get("structural_tag").map(|value| tag("structural_tag", value)).transpose()?)?;
    if let Some(map) = fields.object("structured_outputs")? {
        structured(Fields(map), &mut add)?;
    }
    let Some((name, spec)) = found else { return Ok(Format::Text) };
    names.format = name;
    Ok(Format::Held(spec))
}

fn response_format(fields: Fields<'_>) -> Result<Option<GrammarSpec>, ApiError> {
    let name = "response_format";
    let Some(map) = fields.object(name)? else { return Ok(None) };
    let at_type = format!("{name}.type");
    let kind = map.get("type").ok_or_else(|| missing(&at_type))?;
    match kind.as_str() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(GrammarSpec::JsonObject)),
        Some("json_schema") => {
            let at = format!("{name}.json_schema");
            let holder = map.get("json_schema").ok_or_else(|| missing(&at))?;
            let holder = holder.as_object().ok_or_else(|| wrong_type(&at, holder, "an object"))?;
            json_schema(&at, holder).map(Some)
        }
        Some("structural_tag") => Ok(Some(GrammarSpec::StructuralTag(Value::Object(map.clone())))),
        _ => Err(wrong_type(&at_type, kind, "`text`, `json_object` or `json_schema`")),
    }
}

/// A schema in its holder: `{"name", "schema", "strict"}`.
pub(crate) fn json_schema(at: &str, holder: &Map<String, Value>) -> Result<GrammarSpec, ApiError> {
    let at_schema = format!("{at}.schema");
    let schema = holder.get("schema").filter(|schema| !schema.is_null()).ok_or_else(|| missing(&at_schema))?;
    check_schema(&at_schema, schema)?;
    let strict = match holder.get("strict") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(strict)) => *strict,
        Some(other) => return Err(wrong_type(&format!("{at}.strict"), other, "true or false")),
    };
    Ok(GrammarSpec::JsonSchema { schema: schema.clone(), strict })
}

/// Refuses what is no JSON Schema.
pub(crate) fn check_schema(at: &str, schema: &Value) -> Result<(), ApiError> {
    if !schema.is_object() && !schema.is_boolean() {
        return Err(wrong_type(at, schema, "a JSON Schema object"));
    }
    jsonschema::meta::validate(schema).map_err(|error| {
        let place = error.instance_path().to_string();
        let message = format!("`{at}` is no JSON Schema: at `{place}`: {error}; correct it");
        ApiError::field(at, "invalid_schema", message)
    })
}

/// A schema as an object, or as the text of one.
fn schema(name: &str, value: &Value) -> Result<GrammarSpec, ApiError> {
    let schema = match value {
        Value::String(text) => serde_json::from_str(text)
            .map_err(|error| ApiError::field(name, "invalid_schema", format!("`{name}` is not JSON: {error}")))?,
        other => other.clone(),
    };
    check_schema(name, &schema)?;
    Ok(GrammarSpec::JsonSchema { schema, strict: false })
}

fn choice(name: &str, value: &Value) -> Result<GrammarSpec, ApiError> {
    let texts = value.as_array().and_then(|list| list.iter().map(|v| v.as_str().map(str::to_owned)).collect());
    let texts: Vec<String> = texts.ok_or_else(|| wrong_type(name, value, "a list of strings"))?;
    if texts.is_empty() {
        return Err(ApiError::field(name, "invalid_value", format!("`{name}` is empty, name at least one text")));
    }
    Ok(GrammarSpec::Choice(texts))
}

fn tag(name: &str, value: &Value) -> Result<GrammarSpec, ApiError> {
    let value = match value {
        Value::String(text) => serde_json::from_str(text)
            .map_err(|error| ApiError::field(name, "invalid_value", format!("`{name}` is not JSON: {error}")))?,
        other => other.clone(),
    };
    Ok(GrammarSpec::StructuralTag(value))
}

/// A grammar whose dialect shows: `name ::= …` is EBNF.
fn grammar(text: &str) -> GrammarSpec {
    if text.contains("::=") { GrammarSpec::Ebnf(text.to_owned()) } else { GrammarSpec::Lark(text.to_owned()) }
}

fn structured(
    fields: Fields<'_>,
    add: &mut impl FnMut(&'static str, Option<GrammarSpec>) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let json = "structured_outputs.json";
    add(json, fields.get("json").map(|value| schema(json, value)).transpose()?)?;
    let text = |key: &str, of: fn(String) -> GrammarSpec| Ok(fields.string(key)?.map(|text| of(text.to_owned())));
    add("structured_outputs.regex", text("regex", GrammarSpec::Regex)?)?;
    let listed = "structured_outputs.choice";
    add(listed, fields.get("choice").map(|value| choice(listed, value)).transpose()?)?;
    add("structured_outputs.grammar", text("grammar", |text| grammar(&text))?)?;
    let object = fields.boolean("json_object")?.filter(|yes| *yes).map(|_| GrammarSpec::JsonObject);
    add("structured_outputs.json_object", object)?;
    let tagged = "structured_outputs.structural_tag";
    add(tagged, fields.get("structural_tag").map(|value| tag(tagged, value)).transpose()?)
}
