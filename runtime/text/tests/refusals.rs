//! Errors of grammars in the words of whoever wrote them, and closers that wait until an answer may end.

mod compiled;
mod seen;

use compiled::{COMPILER, TOKENIZER, judged};
use seen::template;
use serde_json::json;
use std::sync::Arc;
use text::grammar::*;
use text::response::ResponseTemplate;

fn turn(
    template: Arc<ResponseTemplate>,
    tools: Vec<ToolSpec>,
    answer: Option<GrammarSpec>,
    goes_on: bool,
) -> GrammarSpec {
    GrammarSpec::Turn(Box::new(TurnSpec {
        template,
        tools,
        choice: Choice::Auto,
        parallel: true,
        answer,
        place: TurnPlace::AfterReasoning,
        begun: String::new(),
        goes_on,
    }))
}

fn beam(answer: GrammarSpec) -> GrammarSpec {
    turn(template("beam-template.json"), Vec::new(), Some(answer), false)
}

fn text_of(spec: &GrammarSpec) -> (String, String) {
    judged(spec, "").expect_err("refused")
}

#[test]
fn a_grammar_of_a_turn_names_no_control_token() {
    for text in
        ["\"a\" <|call|> \"b\"", "\"a\" <|end|> \"b\"", "\"x\" <|message|> \"y\"", "<[2047]>", "<[*]>", "<[^5]>"]
    {
        let lark = GrammarSpec::Lark(format!("start: {text}"));
        let (place, message) = text_of(&beam(lark.clone()));
        assert!(place == "lark" && message.contains("names the token <"), "{message}");
        let held = vec![("a".to_owned(), lark)];
        let tool = ToolSpec {
            name: "f".into(),
            parameters: json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}),
            strict: false,
            held,
        };
        let (place, message) = text_of(&turn(template("beam-template.json"), vec![tool], None, false));
        assert!(place == "tools.0.held.a" && message.contains("names the token <"), "{message}");
    }
    // Elsewhere only those that end the answer are refused.
    assert!(judged(&GrammarSpec::Lark("start: \"x\" <|message|> \"y\"".into()), "x<|message|>y").expect("compiles"));
    assert_eq!(text_of(&GrammarSpec::Lark("start: <|call|>".into())).0, "lark");
    let tag = GrammarSpec::StructuralTag(json!({"type": "const_string", "value": "a<|call|>b"}));
    assert!(text_of(&tag).1.contains("names the token <|call|>"));
    // In quotes it is text, in tags of a turn as well.
    let text = "<|channel|>final<|message|>a<|call|>b";
    for spelt in [tag, GrammarSpec::Lark("start: \"a<|call|>b\"".into())] {
        assert_eq!(judged(&beam(spelt), text), Ok(true));
    }
}

#[test]
fn errors_are_in_the_words_of_the_grammar() {
    let lark = |text: &str| GrammarSpec::Lark(text.into());
    let schema = |schema| GrammarSpec::JsonSchema { schema, strict: false };
    let choice = GrammarSpec::Choice((0..20_000).map(|n| format!("choice {n}")).collect());
    for (spec, says) in [
        (lark("start: x\nx: \"a\" ) \"b\""), vec!["line 2, column "]),
        (lark("start: y"), vec!["line 1, column ", "unknown name"]),
        (lark("start: /a(/"), vec!["line 1, column ", "unclosed group"]),
        (GrammarSpec::Regex("a$b".into()), vec!["`regex`: ", "has an assertion (`^`, `$`, `\\b`)"]),
        (schema(json!({"items": {"enum": []}})), vec!["`schema.items.enum`: is empty"]),
        (schema(json!({"properties": {"a": {"type": []}}})), vec!["`schema.properties.a.type`: is empty"]),
        (schema(json!({"properties": {"a": {"type": "foo"}}})), vec!["`schema.properties.a.type`: is \"foo\""]),
        (schema(json!({"const": 1e29})), vec!["`schema.const`: has a number beyond 64 bits", "; choose a number"]),
        (
            schema(json!({"properties": {"a": {"pattern": "a("}}})),
            vec!["`schema.properties.a.pattern`", "unclosed group"],
        ),
        (
            schema(json!({"properties": {"a": {"pattern": "(?P<x>a)"}}})),
            vec!["`schema.properties.a.pattern`: is `(?P<x>a)`", "`(?P<` begins no group of ECMA 262"],
        ),
        (
            schema(json!({"items": {"type": "string", "pattern": "^[]$"}, "type": "array", "minItems": 1})),
            vec!["`schema.items.pattern`: is `^[]$`, which finds nothing in any text; correct it"],
        ),
        (
            schema(json!({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2})),
            vec!["`schema.exclusiveM", "leaves no whole number between `exclusiveMinimum` 1 and `exclusiveMaximum` 2"],
        ),
        (
            schema(json!({"type": "string", "minLength": 4294967296u64})),
            vec!["`schema.minLength`: is 4294967296, which no answer comes to; the limit is 2147483647; correct it"],
        ),
        (
            schema(json!({"type": "array", "items": {"const": i64::MAX}, "minItems": 1, "maxItems": 0})),
            vec!["`schema`: says things that no value has together; correct it"],
        ),
        (schema(json!({"pattern": "a++"})), vec!["`schema.pattern`", "`+` repeats what is repeated already"]),
        (schema(json!({"pattern": "\\u{110000}"})), vec!["`schema.pattern`", "beyond `\\u{10FFFF}`"]),
        (
            schema(json!({"type": "integer", "minimum": u64::MAX, "maximum": i64::MAX})),
            vec!["`schema.minimum`: leaves no whole number between `minimum` 18446744073709551615 and `maximum` 922"],
        ),
        (
            schema(json!({"type": "integer", "minimum": u64::MAX, "maximum": 9, "multipleOf": 2})),
            vec!["leaves no whole number between"],
        ),
        (
            schema(json!({"items": {"type": "number", "minimum": 1e30, "exclusiveMaximum": 1e30}})),
            vec!["`schema.items.minimum`: leaves no number between `minimum` 1e+30 and `exclusiveMaximum` 1e+30"],
        ),
        (
            schema(json!({"type": "integer", "maximum": u64::MAX, "multipleOf": 2})),
            vec!["`schema.maximum`: has the number 18446744073709551615", "beside `multipleOf`; choose a number"],
        ),
        (GrammarSpec::Ebnf("root ::= \"a\"{1000000}".into()), vec!["1000000 times", "10000"]),
        (GrammarSpec::Ebnf("root ::= \"a\"{2,1}".into()), vec!["{2,1}"]),
        (choice, vec!["20000", "4000"]),
    ] {
        for spec in [spec.clone(), beam(spec)] {
            let message = text_of(&spec).1;
            assert!(says.iter().all(|part| message.contains(part)), "{message}");
            assert!(
                !message.contains("at 2(") && !message.contains("parse error:;") && !message.contains("(5):"),
                "{message}"
            );
        }
    }
}

#[test]
fn a_closer_of_text_waits_until_the_answer_may_end() {
    let value = json!({"start_anchor": "<s>", "fields": {
        "thinking": {"open": "<think>", "close": "</think>"},
        "content": {"open": "<answer>", "close": "</answer>"},
    }});
    let template = Arc::new(ResponseTemplate::from_value(&value).expect("template"));
    let closer = "</answer>";
    for answer in [None, Some(GrammarSpec::Regex("[a-z<>/]{1,40}".into()))] {
        let grammar = COMPILER.compile(&turn(template.clone(), Vec::new(), answer, true)).expect("grammar");
        // Whole, letter by letter, and in two parts: the token that completes it is the one that waits.
        let letters: Vec<u32> =
            closer.chars().flat_map(|c| TOKENIZER.encode(&c.to_string(), false).expect("ids")).collect();
        for written in [letters, TOKENIZER.encode(closer, false).expect("ids")] {
            let mut matcher = grammar.matcher();
            let begun = TOKENIZER.encode("<answer>hello", false).expect("ids");
            assert_eq!(matcher.advance_all(&begun).expect("matcher"), begun.len());
            let (last, before) = written.split_last().expect("tokens");
            assert_eq!(matcher.advance_all(before).expect("matcher"), before.len());
            let mut mask = vec![0u32; COMPILER.vocab().div_ceil(32)];
            matcher.mask(&mut mask).expect("mask");
            let has = |mask: &[u32], id: u32| mask[id as usize / 32] >> (id % 32) & 1 == 1;
            assert!(has(&mask, *last), "the closer is in the grammar");
            let mut open = mask.clone();
            matcher.keep_open(&mut open, &[]).expect("mask");
            assert!(!has(&open, *last) && open.iter().any(|word| *word != 0), "it waits");
            assert!(grammar.stop().iter().all(|id| !has(&open, *id)));
            // Later it closes the answer.
            matcher.advance(*last).expect("admitted");
            matcher.mask(&mut mask).expect("mask");
            let ends: Vec<u32> = (0..COMPILER.vocab() as u32).filter(|id| has(&mask, *id)).collect();
            assert!(!ends.is_empty() && ends.iter().all(|id| grammar.stop().contains(id)), "{ends:?}");
        }
    }
}
