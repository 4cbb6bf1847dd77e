//! Every keyword of JSON Schema is held or refused by name, in answers and in arguments; nothing is held in part in silence.

mod compiled;
mod seen;

use compiled::judged;
use seen::template;
use serde_json::{Value, json};
use text::grammar::*;

/// All keywords of the drafts 3 to 2020-12 that say something about a value.
const KEYWORDS: &[&str] = &[
    "$dynamicRef",
    "$recursiveRef",
    "$ref",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "disallow",
    "divisibleBy",
    "else",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "extends",
    "format",
    "if",
    "items",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "required",
    "then",
    "type",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];

/// What a strict schema becomes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Strict {
    Held,
    /// At this place.
    Refused(&'static str),
}
use Strict::{Held, Refused};

/// A schema, a document of it, one that is not, and what is to become of it.
fn table() -> Vec<(Value, &'static str, &'static str, Strict)> {
    let closed = |properties: Value| json!({"type": "object", "properties": properties, "additionalProperties": false});
    let with = |mut schema: Value, more: Value| {
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    let two = json!({"a": {"type": "integer"}, "b": {"type": "integer"}});
    let kind = |kind: &str| json!({"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]});
    vec![
        (json!({"type": "integer"}), "1", "1.5", Held),
        (json!({"type": ["null", "boolean"]}), "null", "0", Held),
        (json!({"const": {"a": [1, "x"]}}), r#"{"a": [1, "x"]}"#, r#"{"a": [2, "x"]}"#, Held),
        (json!({"const": 9007199254740993i64}), "9007199254740993", "9007199254740992", Held),
        (json!({"enum": [u64::MAX, i64::MIN, "x"]}), "-9223372036854775808", "18446744073709551614", Held),
        (
            json!({"const": {"a": [i64::MAX, "x"]}}),
            r#"{"a": [9223372036854775807, "x"]}"#,
            r#"{"a": [9223372036854775806, "x"]}"#,
            Held,
        ),
        (
            json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MIN}),
            "-9223372036854775808",
            "-9223372036854775807",
            Held,
        ),
        (
            json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}),
            "-9223372036854775808",
            "-9223372036854775809",
            Held,
        ),
        (
            json!({"type": "integer", "minimum": 0, "maximum": u64::MAX}),
            "18446744073709551615",
            "18446744073709551616",
            Held,
        ),
        (
            json!({"type": "integer", "exclusiveMinimum": 9007199254740992i64}),
            "9007199254740993",
            "9007199254740992",
            Held,
        ),
        (
            json!({"type": ["integer", "null"], "maximum": -9007199254740995i64}),
            "-9007199254740995",
            "-9007199254740994",
            Held,
        ),
        (
            closed(
                json!({"a": {"type": "integer"}, "n": {"type": "integer", "minimum": i64::MIN}, "b": {"type": "null"}}),
            ),
            "{\n  \"n\": -9223372036854775808, \"b\" : null\n}",
            "{\"n\": -9223372036854775809}",
            Held,
        ),
        (
            with(closed(json!({"a": {"maximum": 3}, "n": {"const": i64::MAX}})), json!({"required": ["n"]})),
            "{\"n\":9223372036854775807}",
            "{\"a\": 3}",
            Held,
        ),
        (
            json!({"type": "object", "properties": {"n": {"const": i64::MAX}}}),
            r#"{"n": 9223372036854775807, "o": [1], "p": {}}"#,
            r#"{"n": 9223372036854775806}"#,
            Held,
        ),
        (
            json!({"type": "object", "properties": {"n": {"const": i64::MAX}}}),
            r#"{"o": true}"#,
            r#"{"o": true, "n": 1}"#,
            Held,
        ),
        (
            json!({"type": "array", "items": {"type": "integer", "maximum": i64::MIN}, "minItems": 1, "maxItems": 2}),
            "[ -9223372036854775808,-9223372036854775809 ]",
            "[-9223372036854775808, -9223372036854775808, -9223372036854775808]",
            Held,
        ),
        (
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {"type": "null"}]}, "b": {"type": "array", "items": {"const": i64::MAX}}}}),
            "[]",
            "[1]",
            Held,
        ),
        (
            json!({"allOf": [{"type": "integer"}, {"minimum": 9007199254740993i64}]}),
            "9007199254740993",
            "1",
            Refused("schema.allOf.1.minimum"),
        ),
        (json!({"type": "number", "minimum": 9007199254740993i64}), "9007199254740994", "1", Refused("schema.minimum")),
        (
            json!({"type": "integer", "minimum": 9223372036854775808u64, "multipleOf": 2}),
            "9223372036854775808",
            "9223372036854775807",
            Refused("schema.minimum"),
        ),
        (
            json!({"type": "integer", "maximum": u64::MAX, "multipleOf": 5}),
            "18446744073709551615",
            "1",
            Refused("schema.maximum"),
        ),
        (
            json!({"type": "integer", "minimum": 9223372036854775808u64, "multipleOf": 1}),
            "9223372036854775808",
            "9223372036854775807",
            Held,
        ),
        (
            json!({"type": "integer", "minimum": 0.5, "maximum": u64::MAX, "multipleOf": 0.1}),
            "18446744073709551615",
            "0",
            Held,
        ),
        (json!({"type": "integer", "minimum": 1e19}), "10000000000000000000", "9999999999999999999", Held),
        (json!({"type": "integer", "maximum": 1e20}), "100000000000000000000", "1.5", Refused("schema.maximum")),
        (json!({"type": "integer", "minimum": -1e20}), "1", "1.5", Refused("schema.minimum")),
        (
            json!({"type": "number", "minimum": 12000000000000000000u64}),
            "12000000000000000001",
            "1",
            Refused("schema.minimum"),
        ),
        (
            json!({"type": "number", "maximum": 4611686018427387904u64}),
            "1",
            "4611686018427387905",
            Refused("schema.maximum"),
        ),
        (json!({"minimum": 9223372036854775808u64}), "9223372036854775808", "1", Refused("schema.minimum")),
        (
            json!({"type": "object", "patternProperties": {"^a": {"const": 4611686018427387904u64}}}),
            "{}",
            "{\"a\": 4611686018427388000}",
            Refused("schema.patternProperties.^a.const"),
        ),
        (
            json!({"anyOf": [{"type": "integer", "minimum": u64::MAX, "maximum": i64::MAX}, {"type": "null"}]}),
            "null",
            "18446744073709551615",
            Held,
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "integer", "exclusiveMinimum": i64::MAX, "exclusiveMaximum": 9223372036854775808u64}, "b": {}}}),
            "{\"b\": 1}",
            "{\"a\": 9223372036854775807}",
            Held,
        ),
        (
            json!({"type": "array", "items": {"type": "integer", "minimum": i64::MAX, "exclusiveMaximum": i64::MAX}}),
            "[]",
            "[9223372036854775807]",
            Held,
        ),
        (json!({"enum": [1, "x", null]}), "\"x\"", "2", Held),
        (json!({"enum": [1e25]}), "10000000000000000000000000", "1", Refused("schema.enum")),
        (json!({"type": "integer", "minimum": 3}), "3", "2", Held),
        (
            json!({"type": "integer", "minimum": 9007199254740993i64, "maximum": 9007199254740999i64}),
            "9007199254740993",
            "9007199254740992",
            Held,
        ),
        (
            json!({"type": "integer", "minimum": 1e30}),
            "1000000000000000000000000000001",
            "9223372036854775807",
            Refused("schema.minimum"),
        ),
        (json!({"type": "integer", "maximum": 3}), "-5", "4", Held),
        (json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}), "-7", "7.5", Held),
        (json!({"type": "number", "exclusiveMinimum": 0}), "0.5", "0", Held),
        (json!({"type": "integer", "exclusiveMaximum": 10}), "9", "10", Held),
        (json!({"type": "integer", "multipleOf": 7}), "49", "48", Held),
        (json!({"type": "number", "multipleOf": 0.07}), "0.14", "0.15", Refused("schema.multipleOf")),
        (
            json!({"allOf": [{"type": "integer", "multipleOf": 100000}, {"multipleOf": 99999}]}),
            "9999900000",
            "100000",
            Refused("schema.allOf.0.multipleOf"),
        ),
        (json!({"divisibleBy": 3}), "3", "4", Refused("schema.divisibleBy")),
        (json!({"type": "string", "minLength": 2.0}), "\"ab\"", "\"a\"", Held),
        (json!({"type": "string", "maxLength": 2}), "\"ab\"", "\"abc\"", Held),
        (json!({"type": "string", "minLength": 2, "maxLength": u64::MAX}), "\"ab\"", "\"a\"", Held),
        (json!({"type": "array", "items": {"const": i64::MAX}, "maxItems": u64::MAX}), "[]", "[1]", Held),
        (
            json!({"type": "array", "items": {"const": i64::MAX}, "minItems": 1, "maxItems": 2}),
            "[9223372036854775807]",
            "[]",
            Held,
        ),
        (
            json!({"type": "array", "items": {"const": i64::MAX}, "maxItems": 1}),
            "[9223372036854775807]",
            "[9223372036854775807,9223372036854775807]",
            Held,
        ),
        (
            json!({"type": "array", "items": {"type": ["integer", "null"], "minimum": 1u64 << 60}, "minItems": 1, "maxItems": 1}),
            "[null]",
            "[]",
            Held,
        ),
        (json!({"type": "string", "pattern": "^[a-c]+$"}), "\"abc\"", "\"abd\"", Held),
        (json!({"type": "string", "pattern": "^[\\u0000-\\u001f]{3}$"}), "\"\\n\\t\\n\"", "\"\\n\\\"\\\"\"", Held),
        (json!({"type": "string", "pattern": "^[^\"]*$"}), "\"a\\n\\\\\"", "\"a\\\"\"", Held),
        (json!({"type": "string", "pattern": "^[^\\\\]{2}$"}), "\"a\\\"\"", "\"a\\\\\"", Held),
        (json!({"type": "string", "pattern": "^\\cA\\/[[&&]$"}), "\"\\u0001/&\"", "\"A/&\"", Held),
        (json!({"type": "string", "pattern": "^[^\\D]\\u{1F600}$"}), "\"1😀\"", "\"x😀\"", Held),
        (json!({"type": "string", "pattern": "^\\uD83D\\uDE00{$"}), "\"😀{\"", "\"😀\"", Held),
        (json!({"type": "string", "pattern": "^(a)\\1$"}), "\"aa\"", "\"a\"", Refused("schema.pattern")),
        (json!({"type": "string", "pattern": "\\a"}), "\"a\"", "\"b\"", Refused("schema.pattern")),
        (json!({"type": "string", "pattern": "^a.c$"}), "\"a\u{85}c\"", "\"a\u{2028}c\"", Held),
        (json!({"type": "string", "pattern": "\\Aa\\z"}), "\"a\"", "\"b\"", Refused("schema.pattern")),
        (json!({"type": "string", "pattern": "^\\x{41}$"}), "\"A\"", "\"b\"", Refused("schema.pattern")),
        (json!({"type": "string", "pattern": "^(?i:a)$"}), "\"A\"", "\"b\"", Refused("schema.pattern")),
        (json!({"type": "string", "pattern": "^(?!a)"}), "\"b\"", "\"a\"", Refused("schema.pattern")),
        (json!({"type": "string", "pattern": "a$b"}), "\"x\"", "\"ab\"", Refused("schema.pattern")),
        (json!({"type": "string", "format": "date"}), "\"2024-02-29\"", "\"2023-02-29\"", Held),
        (json!({"type": "string", "format": "date", "pattern": "^202"}), "\"2024-02-29\"", "\"2023-02-29\"", Held),
        (json!({"type": "string", "format": "duration"}), "\"PT5M\"", "\"P\"", Held),
        (json!({"type": "string", "format": "idn-email"}), "\"a@b\"", "\"a\"", Refused("schema.format")),
        (json!({"type": "array", "items": {"type": "integer"}}), "[1, 2]", "[\"x\"]", Held),
        (
            json!({"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "null"}}),
            "[1, null]",
            "[1, 2]",
            Held,
        ),
        (json!({"type": "array", "prefixItems": [{"type": "integer"}], "items": false}), "[1]", "[1, 2]", Held),
        (
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [{"type": "integer"}], "additionalItems": false}),
            "[1]",
            "[1, 2]",
            Held,
        ),
        (json!({"$schema": "http://json-schema.org/draft-04/schema#", "const": 1}), "1", "2", Held),
        (json!({"type": "array", "minItems": 2}), "[1, 2]", "[1]", Held),
        (json!({"type": "array", "maxItems": 1.0}), "[1]", "[1, 2]", Held),
        (json!({"type": "array", "uniqueItems": true}), "[1]", "[1, 1]", Refused("schema.uniqueItems")),
        (json!({"type": "array", "contains": {"const": 1}}), "[1]", "[2]", Refused("schema.contains")),
        (json!({"type": "array", "minContains": 2}), "[1]", "1", Refused("schema.minContains")),
        (json!({"type": "array", "maxContains": 2}), "[1]", "1", Refused("schema.maxContains")),
        (json!({"type": "array", "prefixItems": [true], "unevaluatedItems": false}), "[1]", "[1, 2]", Held),
        (
            json!({"type": "array", "allOf": [{"prefixItems": [true]}], "unevaluatedItems": false}),
            "[1]",
            "[1, 2]",
            Refused("schema.unevaluatedItems"),
        ),
        (closed(two.clone()), r#"{"a": 1}"#, r#"{"a": "x"}"#, Held),
        (with(closed(two.clone()), json!({"required": ["b"]})), r#"{"b": 1}"#, r#"{"a": 1}"#, Held),
        (json!({"type": "object", "additionalProperties": {"type": "integer"}}), r#"{"x": 1}"#, r#"{"x": "y"}"#, Held),
        (
            json!({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}),
            r#"{"a": 1, "b": "x"}"#,
            r#"{"\u0061": "x"}"#,
            Held,
        ),
        (
            json!({"type": "object", "patternProperties": {"^n_": {"type": "integer"}}, "additionalProperties": false}),
            r#"{"n_a": 1}"#,
            r#"{"n_a": "x"}"#,
            Held,
        ),
        (with(closed(two.clone()), json!({"minProperties": 2})), r#"{"a": 1, "b": 2}"#, r#"{"a": 1}"#, Held),
        (
            with(closed(json!({"a": {}, "b": {}, "c": {}})), json!({"minProperties": 2})),
            r#"{"a": 1, "b": 2}"#,
            r#"{"a": 1}"#,
            Refused("schema.minProperties"),
        ),
        (
            json!({"type": "object", "minProperties": 2}),
            r#"{"a": 1, "b": 2}"#,
            r#"{"a": 1, "a": 2}"#,
            Refused("schema.minProperties"),
        ),
        (with(closed(two.clone()), json!({"maxProperties": 1})), r#"{"a": 1}"#, r#"{"a": 1, "b": 2}"#, Held),
        (
            with(closed(json!({"a": {}, "b": {}, "c": {}})), json!({"maxProperties": 2})),
            r#"{"a": 1}"#,
            r#"{"a": 1, "b": 2, "c": 3}"#,
            Refused("schema.maxProperties"),
        ),
        (
            json!({"type": "object", "propertyNames": {"maxLength": 1}}),
            r#"{"a": 1}"#,
            r#"{"ab": 1}"#,
            Refused("schema.propertyNames"),
        ),
        (json!({"type": "object", "dependencies": {"a": ["b"]}}), "{}", r#"{"a": 1}"#, Refused("schema.dependencies")),
        (
            json!({"type": "object", "dependentRequired": {"a": ["b"]}}),
            "{}",
            r#"{"a": 1}"#,
            Refused("schema.dependentRequired"),
        ),
        (
            json!({"type": "object", "dependentSchemas": {"a": false}}),
            "{}",
            r#"{"a": 1}"#,
            Refused("schema.dependentSchemas"),
        ),
        (
            json!({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": false}),
            r#"{"a": 1}"#,
            r#"{"b": 1}"#,
            Held,
        ),
        (
            json!({"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": false}),
            r#"{"a": 1}"#,
            r#"{"b": 1}"#,
            Refused("schema.unevaluatedProperties"),
        ),
        (json!({"allOf": [{"type": "integer"}, {"minimum": 2}]}), "2", "1", Held),
        (json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}), "null", "\"x\"", Held),
        (json!({"oneOf": [{"type": "integer"}, {"type": "string"}]}), "1", "null", Held),
        (json!({"oneOf": [kind("a"), kind("b")]}), r#"{"kind": "a"}"#, r#"{"kind": "c"}"#, Held),
        (json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "1.5", "1", Refused("schema.oneOf")),
        (json!({"oneOf": [{"type": "string"}, {"minLength": 2}]}), "1", "\"ab\"", Refused("schema.oneOf")),
        (json!({"not": {"type": "integer"}}), "\"x\"", "1", Refused("schema.not")),
        (json!({"if": {"type": "integer"}, "then": {"minimum": 1}}), "1", "0", Refused("schema.if")),
        (json!({"then": false}), "1", "", Refused("schema.then")),
        (json!({"else": false}), "1", "", Refused("schema.else")),
        (json!({"extends": {"type": "integer"}}), "1", "", Refused("schema.extends")),
        (json!({"disallow": "integer"}), "\"x\"", "", Refused("schema.disallow")),
        (json!({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}}), "1", "\"x\"", Held),
        (json!({"$ref": "#/$defs/a%20b", "$defs": {"a b": {"type": "integer"}}}), "1", "\"x\"", Held),
        (json!({"$ref": "#foo", "$defs": {"x": {"$anchor": "foo", "type": "integer"}}}), "1", "\"x\"", Held),
        (
            json!({"$ref": "#/definitions/a", "definitions": {"a": {"type": "array", "items": {"$ref": "#/definitions/a"}}, "unused": {"not": {}}}}),
            "[[]]",
            "[1]",
            Held,
        ),
        (
            json!({"$id": "https://example.org/s", "$ref": "https://example.org/s#/$defs/a", "$defs": {"a": {"type": "integer"}}}),
            "1",
            "\"x\"",
            Held,
        ),
        (json!({"$ref": "other.json"}), "1", "", Refused("schema.$ref")),
        (json!({"properties": {"a": {"$ref": "#/$defs/none"}}}), "{}", "", Refused("schema.properties.a.$ref")),
        (json!({"$dynamicRef": "#a"}), "1", "", Refused("schema.$dynamicRef")),
        (json!({"$recursiveRef": "#"}), "1", "", Refused("schema.$recursiveRef")),
    ]
}

#[test]
fn every_keyword_is_held_or_refused_by_name() {
    let table = table();
    let is_in =
        |keyword: &str| table.iter().any(|(schema, ..)| schema.to_string().contains(&format!("\"{keyword}\":")));
    let missing: Vec<&&str> = KEYWORDS.iter().filter(|keyword| !is_in(keyword)).collect();
    assert!(missing.is_empty(), "no row has {missing:?}");
    let mut wrong = Vec::new();
    for (schema, valid, invalid, expected) in table {
        // What the table says is what the standard says, where a document shows it.
        if let Ok(validator) = jsonschema::validator_for(&schema) {
            let is = |text: &str| serde_json::from_str(text).ok().map(|document: Value| validator.is_valid(&document));
            let rounded = ["900719925474099", "92233720368547758", "184467440737095516", "e+"];
            let rounded = rounded.iter().any(|digits| schema.to_string().contains(digits));
            if (is(valid), is(invalid)) != (Some(true), Some(false)) && !invalid.is_empty() && !rounded {
                let is_old = [
                    "uD83D",
                    "cA",
                    r#"\\a""#,
                    "divisibleBy",
                    "a$b",
                    "minContains",
                    "maxContains",
                    "idn-email",
                    "duration",
                    "format",
                    "draft-04",
                    "\"items\":[",
                    "2.0",
                    "1.0",
                ];
                if !is_old.iter().any(|old| schema.to_string().contains(old)) {
                    wrong.push(format!("the table is wrong about {schema}"));
                }
            }
        }
        let spec = GrammarSpec::JsonSchema { schema: schema.clone(), strict: true };
        match (judged(&spec, valid), judged(&spec, invalid), expected) {
            (Ok(true), Ok(false), Held) => {}
            (Err((place, _)), Err(_), Refused(at)) if place == at => {}
            (one, other, expected) => wrong.push(format!("{schema}: {one:?} {other:?}, expected {expected:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn without_strict_what_cannot_be_held_is_left_out_and_no_value_is_changed() {
    let mut wrong = Vec::new();
    for (schema, valid, _, expected) in table() {
        let spec = GrammarSpec::JsonSchema { schema: schema.clone(), strict: false };
        let text = schema.to_string();
        // Steps that do not fit are refused, as the library does not know what it makes of them.
        let names_number = |at: &str| {
            let keywords = ["enum", "const", "minimum", "maximum"];
            keywords.iter().any(|key| at.ends_with(&format!(".{key}"))) || at == "schema.allOf.0.multipleOf"
        };
        let is_number = matches!(expected, Refused(at) if names_number(at));
        let is_broken = text.contains("other.json") || text.contains("/none");
        match (judged(&spec, valid), is_number || is_broken) {
            (Ok(true), false) | (Err(_), true) => {}
            (outcome, _) => wrong.push(format!("{schema}: {outcome:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let counted = json!({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {}}, "minProperties": 2, "additionalProperties": false});
    assert_eq!(judged(&GrammarSpec::JsonSchema { schema: counted, strict: false }, r#"{"a": 1, "b": 2}"#), Ok(true));
}

/// The arguments of one call of a tool of that schema.
fn of_tool(parameters: Value, strict: bool, arguments: &[(&str, &str)]) -> Result<bool, (String, String)> {
    let pairs: Vec<String> = arguments
        .iter()
        .map(|(name, value)| format!("<rfl:parameter name=\"{name}\">\n{value}\n</rfl:parameter>"))
        .collect();
    let text = format!(" to=f<|channel|>analysis <|constrain|>xml<|message|>{}<|call|>", pairs.join("\n"));
    let tool = ToolSpec { name: "f".into(), parameters, strict, held: Vec::new() };
    let spec = GrammarSpec::Turn(Box::new(TurnSpec {
        template: template("beam-template.json"),
        tools: vec![tool],
        choice: Choice::Required,
        parallel: true,
        answer: None,
        place: TurnPlace::AfterReasoning,
        begun: String::new(),
        goes_on: false,
    }));
    judged(&spec, &text)
}

#[test]
fn a_strict_tools_parameter_is_held_or_refused_by_name() {
    let mut wrong = Vec::new();
    for (schema, valid, invalid, expected) in table() {
        // Text stands in a call without quotes and escapes: strings that need none, and all that is no string.
        let bare = |text: &str| match serde_json::from_str(text) {
            Ok(Value::String(bare)) => bare,
            _ => text.to_owned(),
        };
        let (valid, invalid) = (bare(valid), bare(invalid));
        let parameters =
            json!({"type": "object", "properties": {"p": schema}, "required": ["p"], "additionalProperties": false});
        let refers = schema.to_string().contains("$ref") || schema.to_string().contains("$dynamicRef");
        let of = |value: &str| of_tool(parameters.clone(), true, &[("p", value)]);
        match (of(&valid), of(&invalid), expected) {
            (Ok(true), Ok(false), Held) => {}
            // What is any text beside other types is text.
            (Ok(true), _, Held) if schema.get("type").is_none() => {}
            (Err((place, _)), Err(_), Refused(at)) if place.ends_with(at.trim_start_matches("schema")) => {}
            _ if refers => {}
            // Text takes its type from a single member alone.
            (Err(_), Err(_), _) if schema["allOf"][1].is_object() => {}
            (one, other, expected) => wrong.push(format!("{schema}: {one:?} {other:?}, expected {expected:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn undeclared_parameters_are_of_their_type() {
    let open = |kind: &str| json!({"type": "object", "properties": {"city": {"type": "string"}}, "additionalProperties": {"type": kind}, "required": ["city"]});
    for strict in [true, false] {
        for (kind, value, expected) in [
            ("integer", "-4", true),
            ("integer", "x", false),
            ("boolean", "true", true),
            ("boolean", "yes", false),
            ("string", "x", true),
        ] {
            let judged = of_tool(open(kind), strict, &[("city", "Madrid"), ("unit", value)]);
            assert_eq!(judged, Ok(expected), "{kind} {value} {strict}");
        }
    }
}

#[test]
fn roots_of_tools_are_followed() {
    let plain = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    let kind = |kind: &str, of: &str| json!({"type": "object", "properties": {"kind": {"const": kind}, "v": {"type": of}}, "required": ["kind", "v"], "additionalProperties": false});
    for root in [
        json!({"allOf": [plain]}),
        json!({"$ref": "#/definitions/Args", "definitions": {"Args": plain}, "$schema": "http://json-schema.org/draft-07/schema#"}),
        json!({"$ref": "#/$defs/A%20B", "$defs": {"A B": {"allOf": [{"$ref": "#/$defs/c"}]}, "c": plain}}),
        json!({"type": "object", "properties": {"a": {"minimum": 0}}, "allOf": [plain]}),
        json!({"anyOf": [plain]}),
    ] {
        for strict in [true, false] {
            assert_eq!(of_tool(root.clone(), strict, &[("a", "1")]), Ok(true), "{root}");
            for arguments in [&[("a", "x")][..], &[("b", "1")], &[]] {
                assert_eq!(of_tool(root.clone(), strict, arguments), Ok(false), "{root} {arguments:?}");
            }
        }
    }
    let either = json!({"anyOf": [kind("x", "integer"), kind("y", "integer")]});
    assert_eq!(of_tool(either.clone(), true, &[("kind", "y"), ("v", "1")]), Ok(true));
    assert_eq!(of_tool(either.clone(), true, &[("kind", "z"), ("v", "1")]), Ok(false));
    assert_eq!(of_tool(either, true, &[("kind", "x")]), Ok(false));
    // Which type a text is read as would depend on the alternative.
    let mixed = json!({"anyOf": [kind("x", "integer"), kind("y", "string")]});
    assert_eq!(of_tool(mixed.clone(), true, &[("kind", "x"), ("v", "1")]).unwrap_err().0, "tools.0.parameters");
    assert_eq!(of_tool(mixed, false, &[("kind", "x"), ("v", "1")]), Ok(true));
    let circle = json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}});
    assert_eq!(of_tool(circle.clone(), true, &[]).unwrap_err().0, "tools.0.parameters");
    assert_eq!(of_tool(circle, false, &[("any", "x")]), Ok(true));
}

#[test]
fn what_is_free_has_its_types_all_the_same() {
    let free = json!({"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}, "patternProperties": {"^q": false}});
    assert_eq!(of_tool(free.clone(), false, &[("n", "1"), ("s", "any \" text"), ("x", "y")]), Ok(true));
    assert_eq!(of_tool(free.clone(), false, &[("n", "\"")]), Ok(false));
    assert_eq!(of_tool(free, true, &[]).unwrap_err().0, "tools.0.parameters");
    // A keyword that cannot be held is left out, and the rest is held.
    let rest = json!({"type": "object", "properties": {"n": {"type": "integer", "not": {"const": 3}}}, "not": {"required": ["q"]}});
    assert_eq!(of_tool(rest.clone(), false, &[("n", "1")]), Ok(true));
    assert_eq!(of_tool(rest.clone(), false, &[("n", "x")]), Ok(false));
    assert_eq!(of_tool(rest, true, &[]).unwrap_err().0, "tools.0.parameters.properties.n.not");
}

#[test]
fn white_space_between_parts_is_a_blank_or_an_indented_line() {
    // The second is written rule by rule.
    for number in [1, i64::MAX] {
        let schema = json!({
            "type": "object",
            "properties": {"a": {"const": number}, "b": {"type": "array", "items": {"const": 2}}},
            "required": ["a", "b"],
            "additionalProperties": false,
        });
        for (text, expected) in [
            ("{\"a\":N,\"b\":[2]}", true),
            ("{\"a\": N, \"b\": [2, 2]}", true),
            ("{ \"a\" : N , \"b\" : [ 2 ] }", true),
            ("{\n  \"a\": N,\n  \"b\": [\n    2\n  ]\n}", true),
            ("{\r\n\t\"a\": N,\r\n\t\"b\": [\r\n\t\t2\r\n\t]\r\n}", true),
            ("{\n        \"a\": N, \"b\": []}", true),
            ("{  \"a\": N, \"b\": []}", false),
            ("{\n\n\"a\": N, \"b\": []}", false),
            ("{ \n\"a\": N, \"b\": []}", false),
            ("{\n         \"a\": N, \"b\": []}", false),
            ("{\n\t\t\t\"a\": N, \"b\": []}", false),
            (" {\"a\": N, \"b\": []}", false),
        ] {
            let text = text.replace('N', &number.to_string());
            let parameters = json!({"type": "object", "properties": {"p": schema}, "additionalProperties": false});
            for strict in [true, false] {
                let spec = GrammarSpec::JsonSchema { schema: schema.clone(), strict };
                assert_eq!(judged(&spec, &text), Ok(expected), "{text:?} {strict}");
                assert_eq!(of_tool(parameters.clone(), strict, &[("p", &text)]), Ok(expected), "{text:?} {strict}");
            }
        }
    }
    for (blanks, expected) in [(0, true), (16, true), (17, false)] {
        let text = format!("{{\n{}\"x\": 1}}", " ".repeat(blanks));
        assert_eq!(judged(&GrammarSpec::JsonObject, &text), Ok(expected), "{blanks}");
    }
}

#[test]
fn a_tool_without_parameters_takes_none() {
    let silent =
        json!({"type": "object", "description": "d", "$schema": "https://json-schema.org/draft/2020-12/schema"});
    for (parameters, strict, takes_any) in [
        (Value::Null, false, false),
        (Value::Null, true, false),
        (json!({}), true, false),
        (json!({"type": "object"}), true, false),
        (silent.clone(), true, false),
        (json!({"type": "object", "properties": {}}), true, false),
        (json!({"type": "object", "properties": {}}), false, false),
        (json!({}), false, true),
        (json!({"type": "object"}), false, true),
        (silent, false, true),
        (json!({"type": "object", "additionalProperties": true}), true, true),
        (json!({"type": "object", "properties": {}, "additionalProperties": {}}), true, true),
    ] {
        assert_eq!(of_tool(parameters.clone(), strict, &[]), Ok(true), "{parameters} {strict}");
        let one = of_tool(parameters.clone(), strict, &[("x", "1")]);
        assert_eq!(one, Ok(takes_any), "{parameters} {strict}");
    }
}

#[test]
fn names_that_are_not_declared_are_read_as_they_are_written() {
    let open = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "integer"}});
    for strict in [true, false] {
        for name in ["b", "é 東京", "a.b-c_d", "<b>", "x=1", "a\u{a0}b"] {
            assert_eq!(of_tool(open.clone(), strict, &[(name, "1")]), Ok(true), "{name:?} {strict}");
        }
        for name in [
            "b\nc",
            "b\r",
            "\tb",
            "b\u{0}",
            "b<|call|>",
            "b<|end|><|start|>assistant",
            "b\n</rfl:parameter>",
            "b\"c",
            "",
        ] {
            assert_eq!(of_tool(open.clone(), strict, &[(name, "1")]), Ok(false), "{name:?} {strict}");
        }
        // One that is declared is written, or is left out, or cannot be held where it must be there.
        let declared = |name: &str, required: bool| {
            let required = if required { vec![name] } else { Vec::new() };
            let schema = json!({"type": "object", "properties": {name: {"type": "integer"}}, "required": required, "additionalProperties": false});
            of_tool(schema, strict, &[(name, "1")])
        };
        assert_eq!(declared("b\nc", false), Ok(true), "{strict}");
        assert_eq!(declared("b<|call|>", false), Ok(false), "{strict}");
        match declared("b<|call|>", true) {
            Err((place, _)) if strict => assert_eq!(place, "tools.0.parameters.properties.b<|call|>"),
            other => assert!(!strict && other.is_ok(), "{other:?}"),
        }
    }
}
