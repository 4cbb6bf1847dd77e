//! Grammars that nothing satisfies, in whole or in a part, are refused when they are compiled; and text that merely spells a
//! control token is forced as text.

mod compiled;
mod seen;

use compiled::{COMPILER, TOKENIZER};
use seen::template;
use serde_json::{Value, json};
use text::grammar::*;

fn schema(schema: Value) -> GrammarSpec {
    GrammarSpec::JsonSchema { schema, strict: false }
}

/// An object that has to have this under `a`.
fn with_a(schema: Value) -> Value {
    json!({"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": false})
}

/// Two definitions that need each other.
fn circle() -> Value {
    json!({"x": with_a(json!({"$ref": "#/$defs/y"})), "y": with_a(json!({"$ref": "#/$defs/x"}))})
}

fn turn(tools: Vec<ToolSpec>, answer: Option<GrammarSpec>) -> GrammarSpec {
    GrammarSpec::Turn(Box::new(TurnSpec {
        template: template("beam-template.json"),
        choice: if tools.is_empty() { Choice::None } else { Choice::Required },
        tools,
        parallel: true,
        answer,
        place: TurnPlace::AfterReasoning,
        begun: String::new(),
        goes_on: false,
    }))
}

fn tool(parameters: Value, strict: bool, held: Option<GrammarSpec>) -> ToolSpec {
    ToolSpec {
        name: "f".into(),
        parameters,
        strict,
        held: held.map(|spec| ("a".to_owned(), spec)).into_iter().collect(),
    }
}

/// Each mask of forced text looks at its beginning, whatever comes behind it.
#[test]
fn long_forced_text_that_spells_control_tokens_is_no_more_work_than_short() {
    let spelt = "<|end|>".repeat(7000);
    let grammar = COMPILER.compile(&GrammarSpec::Lark(format!("start: /[bc]/ {spelt:?}"))).expect("grammar");
    let mut matcher = grammar.matcher();
    assert_eq!(matcher.advance_all(&TOKENIZER.encode("b", false).expect("ids")).expect("matcher"), 1);
    let mut written = Vec::new();
    for _ in 0..200 {
        let mut mask = vec![0; matcher_words()];
        matcher.mask(&mut mask).expect("mask");
        let next = (0..32 * mask.len() as u32).find(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).expect("token");
        matcher.advance(next).expect("admitted");
        written.push(next);
        // What is forced beyond the next token is the text's as well.
        let forced = matcher.forced();
        assert!(forced.len() < 1000, "{}", forced.len());
        assert_eq!(matcher.advance_all(&forced).expect("admitted"), forced.len());
        matcher.rollback(forced.len()).expect("back");
    }
    let text = TOKENIZER.decode(&written, true).expect("text");
    assert!(text.len() >= 200 && spelt.starts_with(&text), "{text}");
}

/// Words of a mask of the example's vocabulary.
fn matcher_words() -> usize {
    COMPILER.vocab().div_ceil(32)
}

fn refusal(spec: &GrammarSpec) -> Option<String> {
    COMPILER.compile(spec).err().filter(GrammarError::is_request).and_then(|error| error.place().map(str::to_owned))
}

#[test]
fn what_nothing_satisfies_is_refused_wherever_it_stands() {
    let defs = circle();
    let with_defs = |mut schema: Value| {
        schema["$defs"] = defs.clone();
        schema
    };
    let mut wrong = Vec::new();
    for (spec, place) in [
        (schema(json!({"$ref": "#"})), "schema"),
        (schema(json!({"anyOf": [{"$ref": "#"}]})), "schema"),
        (schema(json!({"allOf": [{"$ref": "#"}]})), "schema"),
        (schema(with_defs(with_a(json!({"$ref": "#/$defs/x"})))), "schema"),
        (schema(with_defs(json!({"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/x"}]}))), "schema"),
        (schema(with_defs(json!({"type": "array", "items": {"$ref": "#/$defs/x"}}))), "schema"),
        (GrammarSpec::Regex(r"[^\s\S]".into()), "regex"),
        (GrammarSpec::Regex(r"a[^\s\S]".into()), "regex"),
        (GrammarSpec::Ebnf("root ::= root".into()), "ebnf"),
        (GrammarSpec::Ebnf("root ::= \"a\" root".into()), "ebnf"),
        (GrammarSpec::Ebnf("root ::= \"b\" | \"a\" other\nother ::= \"(\" other \")\"".into()), "ebnf"),
        (GrammarSpec::Lark("start: start \"a\"".into()), "lark"),
        (GrammarSpec::Lark("start: \"b\" | \"a\" x\nx: x \"a\"".into()), "lark"),
        (GrammarSpec::Lark("start: \"a\" X\nX: /b/ & /c/".into()), "lark"),
        // Something does, and its text is forced in more ways than can be followed.
        (GrammarSpec::Lark("start: (x | y){400}\nx: \"a\"\ny: \"a\" \"a\"".into()), "lark"),
    ] {
        for (how, spec) in [("alone", spec.clone()), ("as an answer", turn(Vec::new(), Some(spec.clone())))] {
            let found = refusal(&spec);
            if found.as_deref() != Some(place) {
                wrong.push(format!("{how}: {found:?}, {spec:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let error =
        COMPILER.compile(&schema(json!({"type": "integer", "minimum": 3, "maximum": 2}))).err().expect("refused");
    let own = "X0301: `schema.minimum`: leaves no whole number between `minimum` 3 and `maximum` 2; correct it";
    assert_eq!(error.to_string(), own);
}

#[test]
fn a_tool_that_nothing_satisfies_is_refused_if_it_is_strict() {
    let mut parameters = with_a(json!({"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1}));
    parameters["$defs"] = circle();
    let strict = turn(
        vec![tool(json!({}), false, None), ToolSpec { name: "g".into(), ..tool(parameters.clone(), true, None) }],
        None,
    );
    assert_eq!(refusal(&strict).as_deref(), Some("tools.1.parameters"));
    let call =
        " to=f<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name=\"b\">\n7\n</rfl:parameter><|call|>";
    let free = COMPILER.compile(&turn(vec![tool(parameters, false, None)], None)).expect("free");
    assert!(COMPILER.admits(&free, call).expect("matcher"));
    for held in
        [GrammarSpec::Lark("start: start \"a\"".into()), GrammarSpec::Regex("(".into()), GrammarSpec::Ebnf("x".into())]
    {
        let parameters = with_a(json!({"type": "string"}));
        assert_eq!(refusal(&turn(vec![tool(parameters, true, Some(held))], None)).as_deref(), Some("tools.0.held.a"));
    }
}

#[test]
fn what_something_satisfies_is_not_refused() {
    let list = json!({"anyOf": [{"type": "null"}, with_a(json!({"$ref": "#"}))]});
    let texts = |spec: &GrammarSpec, texts: [&str; 2]| {
        for spec in [spec.clone(), turn(Vec::new(), Some(spec.clone()))] {
            let grammar = COMPILER.compile(&spec).unwrap_or_else(|error| panic!("{error}: {spec:?}"));
            let head = if matches!(spec, GrammarSpec::Turn(_)) { "<|channel|>final<|message|>" } else { "" };
            let admits = |text: &str| COMPILER.admits(&grammar, &format!("{head}{text}")).expect("matcher");
            assert_eq!(texts.map(admits), [true, false], "{spec:?} {texts:?}");
        }
    };
    texts(&schema(list), [r#"{"a": {"a": null}}"#, r#"{"a": 1}"#]);
    texts(&schema(json!({"anyOf": [{"$ref": "#"}, {"type": "integer"}]})), ["7", "x"]);
    texts(
        &schema(
            json!({"type": "object", "properties": {"a": false, "b": {"type": "integer"}}, "additionalProperties": false}),
        ),
        [r#"{"b": 1}"#, r#"{"a": 1}"#],
    );
    texts(&schema(json!({"anyOf": [{"type": "integer", "minimum": 2, "maximum": 1}, {"const": 3}]})), ["3", "1"]);
    texts(
        &schema(json!({"type": "array", "prefixItems": [{"const": 1}], "items": false, "minItems": 1})),
        ["[1]", "[1,1]"],
    );
    texts(&schema(json!({"enum": ["", "a"]})), ["\"\"", "\"b\""]);
    texts(&GrammarSpec::Lark("start: start \"a\" | \"b\"".into()), ["baa", "a"]);
    texts(&GrammarSpec::Ebnf("root ::= \"(\" root \")\" | \"\"".into()), ["(())", "(()"]);
    texts(&GrammarSpec::Ebnf("root ::= root root | \"a\"".into()), ["aaa", "b"]);
    for nothing in [
        GrammarSpec::Regex(String::new()),
        GrammarSpec::Regex("(?:)".into()),
        GrammarSpec::Regex("a{0}".into()),
        GrammarSpec::Ebnf("root ::= \"\"".into()),
        GrammarSpec::Ebnf("root ::=".into()),
        GrammarSpec::Choice(vec![String::new()]),
    ] {
        texts(&nothing, ["", "a"]);
        let call = " to=f<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name=\"a\">\n\n</rfl:parameter><|call|>";
        let grammar = COMPILER
            .compile(&turn(vec![tool(with_a(json!({"type": "string"})), true, Some(nothing))], None))
            .expect("a custom tool");
        assert!(COMPILER.admits(&grammar, call).expect("matcher"));
    }
}

/// Follows what a grammar forces, or else the first token that its mask admits, to its end.
fn followed(spec: &GrammarSpec, begin: &str) -> Result<String, String> {
    let grammar = COMPILER.compile(spec).map_err(|error| error.to_string())?;
    let (mut matcher, mut ids) = (grammar.matcher(), Vec::new());
    let head = TOKENIZER.encode(begin, false).expect("ids");
    assert_eq!(matcher.advance_all(&head).expect("admitted"), head.len());
    while !matcher.accepting() {
        let mut mask = vec![0u32; 64];
        matcher.mask(&mut mask).map_err(|error| error.to_string())?;
        let id = (0..2048).find(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).expect("something");
        let forced = matcher.forced();
        assert!(forced.first().is_none_or(|first| *first == id), "{forced:?}, {id}");
        matcher.advance(id).map_err(|error| format!("{error} behind {ids:?}"))?;
        ids.push(id);
    }
    let special = TOKENIZER.token_bytes().expect("bytes");
    assert!(!ids.iter().any(|id| special[*id as usize].special), "control tokens: {ids:?}");
    Ok(TOKENIZER.decode(&ids, false).expect("text"))
}

#[test]
fn text_that_spells_a_control_token_is_forced_as_text() {
    let property = |name: &str| json!({"type": "object", "properties": {name: {"const": 1}}, "required": [name], "additionalProperties": false});
    for (spec, text) in [
        (schema(json!({"enum": ["<|end|>"]})), "\"<|end|>\""),
        (schema(json!({"const": {"a": "<|end|><|start|>x"}})), r#"{"a":"<|end|><|start|>x"}"#),
        (schema(property("<|call|>")), r#"{"<|call|>":1}"#),
        (GrammarSpec::Choice(vec!["<|end|>".into()]), "<|end|>"),
        (GrammarSpec::Choice(vec!["a <|return|> b<|end|>".into()]), "a <|return|> b<|end|>"),
        (GrammarSpec::Regex(r"<\|end\|>".into()), "<|end|>"),
        (GrammarSpec::Ebnf("root ::= \"<|start|>\"".into()), "<|start|>"),
        (GrammarSpec::Lark("start: \"<|end|>\" \"<|end|>\"".into()), "<|end|><|end|>"),
        (GrammarSpec::Lark("start: \"<|\" \"end|>\"".into()), "<|end|>"),
    ] {
        assert_eq!(followed(&spec, "").as_deref(), Ok(text), "{spec:?}");
        let answer = turn(Vec::new(), Some(spec.clone()));
        assert_eq!(followed(&answer, "<|channel|>final<|message|>").as_deref(), Ok(text), "{spec:?}");
    }
    let open = " to=f<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name=\"a\">\n";
    let only = |parameter: Value| turn(vec![tool(with_a(parameter), true, None)], None);
    for (parameter, text) in [
        (json!({"const": "a<|end|>b"}), "a<|end|>b"),
        (
            json!({"type": "array", "prefixItems": [{"const": "<|call|>"}], "minItems": 1, "items": false}),
            "[\"<|call|>\"]",
        ),
    ] {
        let written = followed(&only(parameter), open);
        assert!(written.as_ref().is_ok_and(|all| all.starts_with(text)), "{written:?}");
    }
    // It would close the call for whoever reads its text.
    assert!(refusal(&only(json!({"const": "<|call|>"}))).is_some_and(|place| place.starts_with("tools.0.parameters")));
}
