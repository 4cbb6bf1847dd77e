//! Grammars over the example's vocabulary: recorded turns are admitted or refused as recorded, and whatever is drawn from
//! the masks follows its schema.

use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use text::Tokenizer;
use text::grammar::*;
use text::response::*;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn fixture(name: &str) -> String {
    std::fs::read_to_string(root().join("tests/fixtures/response-parse").join(name)).expect("fixture")
}

fn template(name: &str) -> Arc<ResponseTemplate> {
    Arc::new(ResponseTemplate::from_json(&fixture(name)).expect("template"))
}

/// One compiler serves all tests, as it serves all requests. It waits for as long as a busy machine takes.
static COMPILER: LazyLock<Compiler> = LazyLock::new(|| compiler(patient()));

fn patient() -> Limits {
    Limits { time: std::time::Duration::from_secs(600), ..Limits::default() }
}

fn compiler(limits: Limits) -> Compiler {
    let dir = root().join("examples/beam-nano");
    let tokenizer = Arc::new(Tokenizer::load(&dir.join("tokenizer.json")).expect("tokenizer"));
    let stop = text::stop_tokens(&dir, &[]).expect("stop tokens");
    Compiler::new(tokenizer, &stop, limits).expect("compiler")
}

/// The turn that a recorded case is about.
fn turn(template: &Arc<ResponseTemplate>, case: &Value) -> GrammarSpec {
    let answer = Some(&case["answer_schema"]).filter(|schema| !schema.is_null());
    GrammarSpec::Turn(Box::new(TurnSpec {
        template: Arc::clone(template),
        tools: ToolSpec::from_json(&case["tools"]).expect("tools"),
        choice: Choice::from_json(&case["tool_choice"]).expect("choice"),
        parallel: case["parallel_tool_calls"].as_bool().unwrap_or(true),
        answer: answer.map(|schema| GrammarSpec::JsonSchema { schema: schema.clone(), strict: false }),
        place: if case["starts_message"] == json!(false) { TurnPlace::AfterReasoning } else { TurnPlace::MessageStart },
        begun: String::new(),
        goes_on: false,
    }))
}

#[test]
fn recorded_turns_are_admitted_or_refused_as_recorded() {
    let template = template("beam-template.json");
    let cases = fixture("grammar.jsonl");
    assert_eq!(cases.lines().count(), 50);
    for line in cases.lines() {
        let case: Value = serde_json::from_str(line).expect("JSON");
        let grammar = COMPILER.compile(&turn(&template, &case)).unwrap_or_else(|e| panic!("{}: {e}", case["id"]));
        let admitted = COMPILER.admits(&grammar, case["text"].as_str().expect("text")).expect("matcher");
        assert_eq!(json!(admitted), case["accept"], "{}: {}", case["id"], case["text"]);
    }
}

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

static TOKENIZER: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::load(&root().join("examples/beam-nano/tokenizer.json")).expect("tokenizer"));

/// Draws an answer from the masks, every admitted token as likely as another, but for those that lead to an end, which
/// random text would never find; `None` if it gets too long.
fn drawn(grammar: &Arc<Grammar>, dice: &mut Dice) -> Option<String> {
    let closing = ["\"", "\"}", "}", "]", "\n</rfl:parameter>", "</rfl:parameter>", "<|end|>", ">", "\"}}"];
    let closing: Vec<u32> = closing.iter().flat_map(|text| TOKENIZER.encode(text, false).expect("ids")).collect();
    let (mut matcher, mut ids) = (grammar.matcher(), Vec::new());
    let mut mask = vec![0u32; 2048 / 32];
    for _ in 0..400 {
        matcher.mask(&mut mask).expect("mask");
        let of = |id: u32| mask[id as usize / 32] >> (id % 32) & 1 == 1;
        let admitted: Vec<u32> = (0..2048).filter(|id| of(*id)).collect();
        assert!(!admitted.is_empty(), "stuck behind {:?}", TOKENIZER.decode(&ids, false));
        let ends: Vec<u32> = closing.iter().chain(grammar.stop()).copied().filter(|id| of(*id)).collect();
        let from = if !ends.is_empty() && dice.below(3) == 0 { &ends } else { &admitted };
        let id = from[dice.below(from.len())];
        matcher.advance(id).unwrap_or_else(|e| panic!("{e} behind {:?}", TOKENIZER.decode(&ids, false)));
        if matcher.ended() {
            return Some(TOKENIZER.decode(&ids, false).expect("text"));
        }
        ids.push(id);
    }
    None
}

fn valid(schema: &Value, document: &Value) -> bool {
    jsonschema::validator_for(schema).expect("schema").is_valid(document)
}

#[test]
fn documents_drawn_from_a_schema_follow_it() {
    let schemas = [
        json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": -3, "maximum": 120}, "b": {"type": "string", "maxLength": 5},
            "c": {"type": "array", "items": {"enum": ["x", 1, null, true]}, "minItems": 1, "maxItems": 3}}, "required": ["a", "c"], "additionalProperties": false}),
        json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"v": {"type": "boolean"}, "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}},
            "required": ["v", "next"], "additionalProperties": false}}}),
        json!({"oneOf": [{"type": "string", "pattern": "^[a-c]{2,4}$"}, {"type": "number"}]}),
        json!({"type": "object", "additionalProperties": {"type": "integer"}}),
        json!({"allOf": [{"type": "object", "properties": {"k": {"const": "v"}}, "required": ["k"]}, {"properties": {"d": {"type": "string", "format": "date"}}}]}),
    ];
    let (mut dice, mut complete) = (Dice(0x5eed), 0);
    for schema in &schemas {
        let grammar =
            COMPILER.compile(&GrammarSpec::JsonSchema { schema: schema.clone(), strict: true }).expect("grammar");
        for _ in 0..12 {
            let Some(text) = drawn(&grammar, &mut dice) else { continue };
            let document: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
            assert!(valid(schema, &document), "{schema}: {text}");
            complete += 1;
        }
    }
    assert!(complete > 30, "only {complete} documents were completed");
}

#[test]
fn dates_in_documents_are_days_of_the_calendar() {
    let schema = json!({"type": "object", "properties": {
        "format": {"type": "string", "format": "date"}, "at": {"type": "array", "items": {"type": "string", "format": "date-time"}}, "is": {"enum": ["date", {"format": "date"}]}},
        "required": ["format"], "additionalProperties": false});
    let spec = GrammarSpec::JsonSchema { schema, strict: true };
    let texts = [
        r#"{"format": "2024-02-29", "at": ["2000-02-29T23:59:59Z"], "is": {"format": "date"}}"#,
        r#"{"format": "0001-01-01"}"#,
        r#"{"format": "2023-02-29"}"#,
        r#"{"format": "1900-02-29"}"#,
        r#"{"format": "0000-10-25"}"#,
        r#"{"format": "2024-01-01", "at": ["2023-02-29T00:00:00Z"]}"#,
        r#"{"format": "a 2024-01-01"}"#,
    ];
    assert_eq!(admitted(&spec, &texts), [true, true, false, false, false, false, false]);
}

/// Tools with all that parameters can be.
fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
        {"type": "function", "function": {"name": "none"}},
        {"type": "function", "function": {"name": "set", "strict": true, "parameters": {"type": "object", "properties": {
            "text": {"type": "string"}, "count": {"type": "integer"}, "flag": {"type": "boolean"},
            "mode": {"enum": ["fast", "slow"]}, "mixed": {"enum": ["auto", 3, null]}, "when": {"type": "string", "format": "date-time"},
            "code": {"type": "string", "pattern": "^[A-Z]{2}$"}, "maybe": {"type": ["string", "null"], "maxLength": 4},
            "items": {"type": "array", "items": {"$ref": "#/$defs/item"}}},
            "required": ["count", "mode"], "additionalProperties": false, "$defs": {"item": {"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"], "additionalProperties": false}}}}},
        {"type": "function", "function": {"name": "either", "parameters": {"type": "object", "properties": {
            "zeta": {"anyOf": [{"type": "string", "minLength": 2}, {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}]},
            "alpha": {"type": "number"}}, "required": ["zeta"], "additionalProperties": {"type": "string"}}}}
    ])
}

/// The turn as its parser reads it: the calls' schemas hold, and there are calls or an answer.
fn check_turn(template: &Arc<ResponseTemplate>, tools: &Value, text: &str, held: Held) -> Ended {
    let declared = Arc::new(Tools::declared(tools));
    let options = ParseOptions { held, ..ParseOptions::default() };
    let mut parser =
        ResponseParser::new(Arc::clone(template), declared, options, "<|start|>assistant").expect("parser");
    let events = parser.push(text).expect("events");
    let ended = parser.finish(Ending::StopToken).expect("end");
    assert!(ended.dropped_calls.is_empty() && ended.cut_off_calls.is_empty(), "{ended:?}: {text}");
    let answered = events.iter().chain(&ended.events).any(|event| matches!(event, Event::Content(_)));
    assert!(ended.tool_calls.is_empty() || !answered, "calls and an answer: {text}");
    for call in &ended.tool_calls {
        let arguments: Value =
            serde_json::from_str(&call.arguments).unwrap_or_else(|e| panic!("{e}: {}", call.arguments));
        let tool = tools.as_array().expect("tools").iter().find(|tool| tool["function"]["name"] == call.name.as_str());
        let schema = tool.expect("a declared tool")["function"].get("parameters").cloned().unwrap_or(json!({}));
        assert!(valid(&schema, &arguments), "{}: {} from {text}", call.name, call.arguments);
        let mut names = arguments.as_object().expect("an object").keys();
        assert!(!names.any(|name| name.contains(char::is_control)), "{} from {text}", call.arguments);
    }
    ended
}

#[test]
fn turns_drawn_from_a_grammar_parse_back_to_valid_calls() {
    let mut dice = Dice(0xd1ce);
    for name in ["beam-template.json", "variant-template.json"] {
        let template = template(name);
        let mut called = std::collections::HashSet::new();
        let mut complete = 0;
        for choice in [json!("auto"), json!("required"), json!({"type": "function", "function": {"name": "set"}})] {
            let case = json!({"tools": tools(), "tool_choice": choice, "starts_message": false});
            let grammar = COMPILER.compile(&turn(&template, &case)).expect("grammar");
            for _ in 0..30 {
                let Some(text) = drawn(&grammar, &mut dice) else { continue };
                let ended = check_turn(&template, &tools(), &text, Held::Turn);
                assert!(choice == json!("auto") || !ended.tool_calls.is_empty(), "{text}");
                called.extend(ended.tool_calls.into_iter().map(|call| call.name));
                complete += 1;
            }
        }
        assert!(complete > 40 && called.len() == 4, "{name}: {complete} turns, calls of {called:?}");
    }
}

#[test]
fn a_json_answer_beside_tools_is_json_or_calls() {
    let template = template("beam-template.json");
    let schema = json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}, "required": ["a"], "additionalProperties": false});
    let case = json!({"tools": tools(), "answer_schema": schema, "starts_message": false});
    let grammar = COMPILER.compile(&turn(&template, &case)).expect("grammar");
    let (mut dice, mut answers) = (Dice(3), 0);
    for _ in 0..40 {
        let Some(text) = drawn(&grammar, &mut dice) else { continue };
        if !check_turn(&template, &tools(), &text, Held::JsonAnswer).tool_calls.is_empty() {
            continue;
        }
        let options = ParseOptions { held: Held::JsonAnswer, ..ParseOptions::default() };
        let mut parser =
            ResponseParser::new(Arc::clone(&template), Arc::new(Tools::none()), options, "").expect("parser");
        let mut content = String::new();
        let mut events = parser.push(&text).expect("events");
        events.extend(parser.finish(Ending::StopToken).expect("end").events);
        events.iter().for_each(|event| content += if let Event::Content(text) = event { text } else { "" });
        assert!(valid(&schema, &serde_json::from_str(&content).unwrap_or_else(|e| panic!("{e}: {text}"))), "{text}");
        answers += 1;
    }
    assert!(answers > 5, "only {answers} answers");
}

/// Whether each of the texts is admitted.
fn admitted(spec: &GrammarSpec, texts: &[&str]) -> Vec<bool> {
    let grammar = COMPILER.compile(spec).unwrap_or_else(|e| panic!("{e}"));
    texts.iter().map(|text| COMPILER.admits(&grammar, text).expect("matcher")).collect()
}

#[test]
fn arguments_follow_their_schemas() {
    let template = template("beam-template.json");
    let of = |schema: Value, value: &str| {
        let tools = json!([{"name": "f", "parameters": {"type": "object", "properties": {"p": schema}, "$defs": {"n": {"type": "integer"}}}}]);
        let case = json!({"tools": tools, "tool_choice": "required", "starts_message": false});
        let text = format!(
            " to=f<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name=\"p\">\n{value}\n</rfl:parameter><|call|>"
        );
        admitted(&turn(&template, &case), &[&text])[0]
    };
    for (schema, value, expected) in [
        (json!({"type": "string"}), "", true),
        (json!({"type": "string"}), "a\n\nb\n", true),
        (json!({"type": "string"}), "</rfl:parameter> <|message|> \"quoted\" é東京", true),
        (json!({"type": "string"}), "a<|call|>b", false),
        (json!({"type": "string"}), "a<|end|>b", true),
        (json!({"type": "string"}), "a<|end|><|start|>assistant", false),
        (json!({}), "anything", true),
        (json!({"type": "string", "minLength": 2, "maxLength": 3}), "a", false),
        (json!({"type": "string", "minLength": 2, "maxLength": 3}), "東京", true),
        (json!({"type": "string", "pattern": "^a+$"}), "aaa", true),
        (json!({"type": "string", "pattern": "^a+$"}), "aab", false),
        (json!({"type": "string", "pattern": "a"}), "bab", true),
        (json!({"type": "string", "format": "uuid"}), "123e4567-e89b-12d3-a456-426614174000", true),
        (json!({"type": "string", "format": "uuid"}), "123", false),
        (json!({"type": "string", "format": "unheard-of"}), "123", true),
        (json!({"const": "only"}), "only", true),
        (json!({"const": "only"}), "other", false),
        (json!({"type": "boolean"}), "true", true),
        (json!({"type": "boolean"}), "True", false),
        (json!({"type": "number"}), "-1.5e3", true),
        (json!({"type": "integer", "minimum": 3}), "2", false),
        (json!({"type": ["integer", "null"]}), "null", true),
        (json!({"type": ["string", "integer"]}), "x1", true),
        (json!({"enum": ["a", 1]}), "1", true),
        (json!({"enum": ["a", 1]}), "2", false),
        (json!({"$ref": "#/$defs/n"}), "7", true),
        (json!({"$ref": "#/$defs/n"}), "x", false),
        (json!({"type": "array", "items": {"$ref": "#/$defs/n"}}), "[1, 2]", true),
        (json!({"type": "array", "items": {"$ref": "#/$defs/n"}}), "[1, \"2\"]", false),
        (json!({"type": "object"}), "{\"a\": {\"b\": [1, null]}}", true),
        (json!({"type": "object"}), "{\"a\": }", false),
    ] {
        assert_eq!(of(schema.clone(), value), expected, "{schema} {value:?}");
    }
}

#[test]
fn a_tool_whose_schema_cannot_be_held_is_free_or_refused() {
    let template = template("beam-template.json");
    let case = |strict: bool| {
        let schema = json!({"type": "object", "properties": {"p": {"type": "array", "uniqueItems": true, "contains": {"type": "integer"}}}, "patternProperties": {"^q": false}});
        let tools = json!([{"type": "function", "function": {"name": "f", "strict": strict, "parameters": schema}}]);
        turn(&template, &json!({"tools": tools, "starts_message": false}))
    };
    let text =
        " to=f<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name=\"x\">\nany\n</rfl:parameter><|call|>";
    assert_eq!(admitted(&case(false), &[text]), [true]);
    let error = COMPILER.compile(&case(true)).err().expect("refused");
    assert_eq!(
        (error.code().as_str(), error.place(), error.is_request()),
        ("X0301", Some("tools.0.parameters.properties.p.uniqueItems"), true),
        "{error}"
    );
    let named = |name: &str| {
        let tools = json!([{"name": name}]);
        COMPILER.compile(&turn(&template, &json!({"tools": tools}))).err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert_eq!(named("fine-1.x"), "");
    for name in ["a b", "a<b", ""] {
        assert!(named(name).starts_with("X0301: `tools.0.name`"), "{name}: {}", named(name));
    }
}

#[test]
fn wishes_that_exclude_each_other_are_refused() {
    let template = template("beam-template.json");
    let spec = |choice: Choice, parallel: bool, strict: bool| {
        let tools = vec![ToolSpec {
            name: "f".into(),
            parameters: json!({"type": "object", "properties": {}}),
            strict,
            held: Vec::new(),
        }];
        let answer = Some(GrammarSpec::Regex("[ab]+".into()));
        let (place, begun) = (TurnPlace::AfterReasoning, String::new());
        GrammarSpec::Turn(Box::new(TurnSpec {
            template: Arc::clone(&template),
            tools,
            choice,
            parallel,
            answer,
            place,
            begun,
            goes_on: false,
        }))
    };
    let answers =
        ["<|channel|>final<|message|>abba", "<|channel|>final<|message|>abc", "<|channel|>final<|message|>ab<|end|>"];
    assert_eq!(admitted(&spec(Choice::Auto, true, false), &answers), [true, false, true]);
    for refused in [
        spec(Choice::Required, true, false),
        spec(Choice::Named("f".into()), true, false),
        spec(Choice::Auto, false, false),
        spec(Choice::Auto, true, true),
    ] {
        assert_eq!(COMPILER.compile(&refused).err().expect("refused").code(), "X0302");
    }
    assert_eq!(
        COMPILER.compile(&spec(Choice::Named("g".into()), true, false)).err().expect("refused").place(),
        Some("tool_choice")
    );
}

#[test]
fn an_answer_that_the_prompt_began_goes_on() {
    let template = template("beam-template.json");
    let of = |prompt: &str, answer: Option<GrammarSpec>| {
        let (place, begun) = TurnPlace::of(&template, prompt);
        let (tools, choice) = (Vec::new(), Choice::Auto);
        GrammarSpec::Turn(Box::new(TurnSpec {
            template: Arc::clone(&template),
            tools,
            choice,
            parallel: true,
            answer,
            place,
            begun,
            goes_on: false,
        }))
    };
    let open = "<|start|>user<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>";
    let schema = || {
        Some(GrammarSpec::JsonSchema { schema: json!({"type": "array", "items": {"type": "integer"}}), strict: true })
    };
    assert_eq!(admitted(&of(&format!("{open}[1,"), schema()), &["2]", "[2]", "2"]), [true, false, false]);
    assert_eq!(admitted(&of(&format!("{open}Hel"), None), &["lo<|return|>", "lo<|end|><|start|>"]), [true, false]);
    let error = COMPILER.compile(&of(&format!("{open}x"), schema())).err().expect("refused");
    assert_eq!(error.place(), Some("messages"));
    let thinking = "<|start|>assistant<|channel|>analysis<|message|>so";
    let rest = [
        "<|end|><|start|>assistant<|channel|>final<|message|>a",
        " then<|end|><|start|>assistant<|channel|>final<|message|>a",
        "x",
    ];
    assert_eq!(admitted(&of(thinking, None), &rest), [true, true, false]);
}

#[test]
fn templates_with_plain_markup_have_turns_too() {
    let value = json!({"fields": {
        "thinking": {"open": "<think>", "close": "</think>"},
        "content": {},
        "tool_calls": {"open": "<tool_call>", "close": "</tool_call>", "content": "json", "repeats": true,
            "transform": {"type": "function", "function": {"name": "{content.name}", "arguments": "{content.arguments}"}}}
    }});
    let template = Arc::new(ResponseTemplate::from_value(&value).expect("template"));
    let tools = json!([{"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}}]);
    let spec = turn(&template, &json!({"tools": tools}));
    let texts = [
        "<think>hm < 3</think>\n\nHello <b>",
        "<think>hm</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
        "<think>hm</think><tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>\n<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 2}}</tool_call>",
        "<think>hm</think><tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x\"}}</tool_call>",
        "<think>hm</think><tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>",
        "<think></think>x",
        "Hello",
    ];
    assert_eq!(admitted(&spec, &texts), [true, true, true, false, false, false, false]);
}

#[test]
fn rule_grammars_mean_characters() {
    let ebnf = |text: &str, texts: &[&str]| admitted(&GrammarSpec::Ebnf(text.into()), texts);
    // No recursion: one expression. With a lexer of words, "ab" would hide the second alternative.
    assert_eq!(
        ebnf("root ::= (\"ab\" \"c\" | [a-z] [a-z] \"d\") # note\n", &["abc", "abd", "ab"]),
        [true, true, false]
    );
    // Recursion: brackets that match.
    let nested = "root ::= \"(\" root \")\"\n  | item\nitem ::= [^()\\n]{1,3} (\",\" item)?";
    assert_eq!(ebnf(nested, &["((a,bc))", "(a", "a,b,c", "(a))", "abcd"]), [true, false, true, false, false]);
    assert_eq!(ebnf("root ::= \"\\u00e9\\x41\" 'b'*", &["éA", "éAbb", "e"]), [true, true, false]);
    for (text, says) in [
        ("root ::= missing", "no rule `missing`"),
        ("rule ::= \"a\"", "no rule `root`"),
        ("root ::= (\"a\"", "line 1: `)` is missing"),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2: `root` is defined twice"),
        ("root ::= \"a", "is not closed"),
        ("root = \"a\"", "`::=` is missing"),
        ("root ::= [z-a]", "class"),
        ("root ::= \"a\"{3,1}", "repetition"),
    ] {
        let error = COMPILER.compile(&GrammarSpec::Ebnf(text.into())).err().expect("refused").to_string();
        assert!(error.starts_with("X0301") && error.contains(says), "{text}: {error}");
    }
}

#[test]
fn structural_tags_hold_their_parts() {
    let tag = |value: Value, texts: &[&str]| admitted(&GrammarSpec::StructuralTag(value), texts);
    let older = json!({"type": "structural_tag", "triggers": ["<f"], "structures": [{"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"}]});
    assert_eq!(
        tag(older, &["text only <b>", "so: <f=a>1</f> and <f=a>2</f>.", "<f=a>x</f>", "<f=b>1</f>", ""]),
        [true, true, false, false, true]
    );
    let format = json!({"type": "structural_tag", "format": {"type": "sequence", "elements": [
        {"type": "const_string", "value": "A:"}, {"type": "any_text"}, {"type": "tag", "begin": "<x>", "content": {"type": "regex", "pattern": "[0-9]+"}, "end": "</x>"},
        {"type": "or", "elements": [{"type": "grammar", "grammar": "root ::= \"!\" | \"?\""}, {"type": "json_schema", "json_schema": {"type": "null"}}]}]}});
    assert_eq!(
        tag(format, &["A: any <x>12</x>!", "A:<x>1</x>null", "A: <x>a</x>!", "any <x>1</x>!"]),
        [true, true, false, false]
    );
    let error = COMPILER.compile(&GrammarSpec::StructuralTag(
        json!({"format": {"type": "tag", "begin": "a", "end": "b", "content": {"type": "colour"}}}),
    ));
    assert_eq!(error.err().expect("refused").place(), Some("structural_tag.format.content"));
}

/// A grammar whose rules name each other one after the other.
fn chain(start: &str, is: &str) -> String {
    const LENGTH: usize = 9_000;
    let rules = (0..LENGTH).map(|i| format!("r{i} {is} r{}\n", i + 1));
    start.to_owned() + &rules.collect::<String>() + &format!("r{LENGTH} {is} \"a\"\n")
}

#[test]
fn bad_and_hostile_grammars_are_refused_in_bounded_time() {
    // Twice the work with every step.
    let steps = (1..60).map(|i| {
        let before = json!({"$ref": format!("#/$defs/{}", i - 1)});
        (i.to_string(), json!({"anyOf": [{"allOf": [before, before]}, {"allOf": [before, {"type": "object"}]}]}))
    });
    let steps: serde_json::Map<String, Value> =
        steps.chain([("0".to_owned(), json!({"type": "object", "minProperties": 1}))]).collect();
    let deep = json!({"$ref": "#/$defs/59", "$defs": steps});
    let wide: serde_json::Map<String, Value> =
        (0..20_000).map(|i| (format!("property number {i}"), json!({"enum": [i, i + 1]}))).collect();
    let mut wrong = Vec::new();
    let bounded = compiler(Limits::default());
    for (spec, code) in [
        (GrammarSpec::Regex("(a{1000}){1000}".into()), "X0303"),
        (GrammarSpec::Ebnf("root ::= ([a-z]{999}){999}".into()), "X0303"),
        // All expressions of a wish together, and all of its text.
        (
            GrammarSpec::StructuralTag(json!({"format": {"type": "sequence", "elements":
                (0..200).map(|i| json!({"type": "regex", "pattern": format!("\\w{{20}}{i}")})).collect::<Vec<_>>()}})),
            "X0303",
        ),
        (GrammarSpec::Choice((0..200_000).map(|i| format!("a{i:07}")).collect()), "X0303"),
        (GrammarSpec::Regex("(?=a)b".into()), "X0301"),
        (GrammarSpec::Regex("[".into()), "X0301"),
        (GrammarSpec::Lark("start: nosuch".into()), "X0301"),
        (GrammarSpec::Ebnf(format!("root ::= \"a\"{}", "*".repeat(200_000))), "X0301"),
        (GrammarSpec::Ebnf(chain("root ::= r0\n", "::=")), "X0303"),
        (GrammarSpec::Lark(chain("start: r0\n", ":")), "X0303"),
        (GrammarSpec::Lark(chain("start: R0\n", ":").replace('r', "R").replace("staRt", "start")), "X0303"),
        (GrammarSpec::Lark(format!("start: {}\"a\"{}", "(".repeat(50_000), ")".repeat(50_000))), "X0303"),
        (GrammarSpec::Choice(Vec::new()), "X0301"),
        (GrammarSpec::JsonSchema { schema: json!({"type": "colour"}), strict: false }, "X0301"),
        (GrammarSpec::JsonSchema { schema: json!(false), strict: false }, "X0301"),
        (
            GrammarSpec::JsonSchema { schema: json!({"type": "integer", "minimum": 5, "maximum": 4}), strict: false },
            "X0301",
        ),
        (GrammarSpec::JsonSchema { schema: json!({"type": "string", "not": {"const": "a"}}), strict: true }, "X0301"),
        (GrammarSpec::JsonSchema { schema: json!({"$ref": "#/$defs/none"}), strict: false }, "X0301"),
        (
            GrammarSpec::JsonSchema {
                schema: json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
                strict: false,
            },
            "X0301",
        ),
        (GrammarSpec::JsonSchema { schema: deep, strict: false }, "X030"),
        (GrammarSpec::JsonSchema { schema: json!({"type": "object", "properties": wide}), strict: false }, "X0303"),
    ] {
        let shown: String = format!("{spec:?}").chars().take(100).collect();
        match bounded.compile(&spec).err() {
            Some(error) if error.code().starts_with(code) && error.is_request() => {}
            Some(error) => wrong.push(format!("{shown}: {error}")),
            None => wrong.push(format!("{shown} was not refused")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Others are served all the same, as soon as there is a place.
    let spec = GrammarSpec::Choice(vec!["yes".into(), "no".into()]);
    let grammar = loop {
        match bounded.compile(&spec) {
            Err(GrammarError::Busy { .. } | GrammarError::Slow { .. }) => std::thread::yield_now(),
            other => break other.expect("grammar"),
        }
    };
    assert_eq!(["yes", "maybe"].map(|text| bounded.admits(&grammar, text).expect("matcher")), [true, false]);
}

#[test]
fn kept_grammars_are_bounded_in_number_and_bytes() {
    let choice = |n: usize| GrammarSpec::Choice(vec![format!("answer {n}")]);
    let few = compiler(Limits { kept: 3, ..patient() });
    let mut all: Vec<Arc<Grammar>> = (0..5).map(|n| few.compile(&choice(n)).expect("grammar")).collect();
    assert!(Arc::ptr_eq(&all[4], &few.compile(&choice(4)).expect("grammar")), "found again");
    assert!(Arc::ptr_eq(&all[0], &few.compile(&choice(0)).expect("grammar")), "made room, and is still in use");
    all.clear();
    assert_eq!([0, 1, 2, 3, 4].map(|n| few.kept(&choice(n)).is_some()), [false, false, true, true, true]);
    let each = few.kept_bytes() / 3;
    assert!(each > 1000, "{each} bytes");
    let small = compiler(Limits { kept_bytes: 2 * each + each / 2, ..patient() });
    (0..5).for_each(|n| drop(small.compile(&choice(n)).expect("grammar")));
    let kept = small.kept_bytes();
    assert!(kept > 0 && kept <= 2 * each + each / 2, "{kept} bytes of {each} each");
    few.forget();
    assert_eq!(few.kept_bytes(), 0);
}

#[test]
fn what_is_known_needs_no_place_among_those_who_compile() {
    let choice = |n: usize| Arc::new(GrammarSpec::Choice(vec![format!("answer {n}")]));
    let full = compiler(Limits { running: 0, ..patient() });
    assert!(matches!(full.compile(&choice(0)), Err(GrammarError::Busy { limit: 0, .. })));
    let usual = full.compile(&GrammarSpec::JsonObject).expect("has places of its own");
    assert!(full.admits(&usual, "{}").expect("matcher"));
    let one = compiler(Limits { running: 1, ..patient() });
    let known = one.compile(&choice(0)).expect("grammar");
    assert!(matches!(one.kept(&choice(0)), Some(Ok(kept)) if Arc::ptr_eq(&kept, &known)));
    // What took too long takes no second place, until it is there after all.
    let error = one.give_up(&choice(1));
    assert_eq!((error.code().as_str(), one.kept(&choice(1)).expect("known").err()), ("X0304", Some(error)));
    assert!(one.kept(&choice(2)).is_none());
    one.begin(&choice(1), (), |_| ()).expect("a place");
    while !matches!(one.kept(&choice(1)), Some(Ok(_))) {
        std::thread::yield_now();
    }
    one.give_up(&choice(1));
    assert!(matches!(one.kept(&choice(1)), Some(Ok(_))), "it was in time");
    one.forget();
    assert!(one.kept(&choice(1)).is_none());
}

#[test]
fn wishes_that_differ_in_anything_are_told_apart() {
    let base = || TurnSpec {
        template: template("beam-template.json"),
        tools: vec![ToolSpec { name: "f".into(), parameters: json!({"type": "object"}), ..ToolSpec::default() }],
        choice: Choice::Auto,
        parallel: true,
        answer: None,
        place: TurnPlace::MessageStart,
        begun: String::new(),
        goes_on: false,
    };
    let turn = |change: &dyn Fn(&mut TurnSpec)| {
        let mut spec = base();
        change(&mut spec);
        GrammarSpec::Turn(Box::new(spec))
    };
    let compiler = compiler(patient());
    let shared = base().template;
    let of = |change: &dyn Fn(&mut TurnSpec)| {
        turn(&|spec| {
            spec.template = Arc::clone(&shared);
            change(spec);
        })
    };
    compiler.compile(&of(&|_| ())).expect("grammar");
    assert!(compiler.kept(&of(&|_| ())).is_some());
    let strict = |strict| Some(GrammarSpec::JsonSchema { schema: json!({"type": "object"}), strict });
    let changes: [&dyn Fn(&mut TurnSpec); 9] = [
        &|spec| spec.choice = Choice::Required,
        &|spec| spec.parallel = false,
        &|spec| spec.place = TurnPlace::Answer,
        &|spec| spec.begun = "x".into(),
        &|spec| spec.answer = strict(true),
        &|spec| spec.tools[0].strict = true,
        &|spec| spec.tools[0].name = "g".into(),
        &|spec| spec.tools[0].parameters = json!({"type": "object", "properties": {}}),
        &|spec| spec.tools[0].held = vec![("a".into(), GrammarSpec::Regex("b".into()))],
    ];
    for (i, change) in changes.iter().enumerate() {
        assert!(compiler.kept(&of(*change)).is_none(), "change {i}");
    }
    assert!(compiler.kept(&turn(&|_| ())).is_none(), "another template");
    assert_eq!(of(&|spec| spec.tools.clear()).lane(), Lane::Usual);
    let begun = of(&|spec| (spec.tools, spec.place, spec.begun) = (Vec::new(), TurnPlace::Answer, "x".into()));
    assert_eq!(begun.lane(), Lane::Short);
    let long = json!({"type": "object", "description": "x".repeat(70_000)});
    assert_eq!(of(&|_| ()).lane(), Lane::Short);
    assert_eq!(of(&|spec| spec.tools[0].parameters = long.clone()).lane(), Lane::Long);
}

#[test]
fn many_tools_that_cannot_be_held_are_lowered_once_each() {
    let unheld = json!({"type": "object", "properties": {"a": {"type": "string"}}, "patternProperties": {"^b": {}}});
    let spec = |tools: usize, parameters: &Value, strict: bool| {
        let tool = |i: usize| ToolSpec {
            name: format!("t{i}"),
            parameters: parameters.clone(),
            strict,
            ..ToolSpec::default()
        };
        GrammarSpec::Turn(Box::new(TurnSpec {
            template: template("beam-template.json"),
            tools: (0..tools).map(tool).collect(),
            choice: Choice::Auto,
            parallel: true,
            answer: None,
            place: TurnPlace::MessageStart,
            begun: String::new(),
            goes_on: false,
        }))
    };
    let bytes = |tools| COMPILER.text(&spec(tools, &unheld, false)).expect("text").len();
    // All share the rule of free arguments: what each adds is its opener.
    let (few, more, many) = (bytes(100), bytes(200), bytes(2000));
    assert!(many - more <= 20 * (more - few), "{few}, {more}, {many}");
    assert!(COMPILER.compile(&spec(200, &unheld, false)).is_ok());
    let error = COMPILER.text(&spec(3, &unheld, true)).expect_err("strict");
    assert_eq!(error.place(), Some("tools.0.parameters"));
    // Patterns of all schemas together have one budget.
    let heavy =
        json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]{400}[0-9a-f]{400}$"}}});
    let code = |tools| COMPILER.compile(&spec(tools, &heavy, false)).err().map(|error| error.code());
    assert_eq!(code(300).as_deref(), Some("X0303"));
    // Time has an end, too.
    let hasty = compiler(Limits { time: std::time::Duration::ZERO, ..Limits::default() });
    assert_eq!(hasty.text(&spec(3, &unheld, false)).expect_err("no time").code(), "X0304");
}

#[test]
fn matchers_go_back_fork_and_look_ahead() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    let grammar = COMPILER.compile(&GrammarSpec::JsonSchema { schema, strict: true }).expect("grammar");
    let ids = TOKENIZER.encode("{\"a\": 12}", false).expect("ids");
    let mut matcher = grammar.matcher();
    let mut mask = vec![u32::MAX; 3000 / 32];
    matcher.mask(&mut mask).expect("mask");
    assert!(mask[64..].iter().all(|word| *word == 0), "nothing beyond the vocabulary is admitted");
    let masks = matcher.masks_with(&ids, 64, |_, _, _| Ok(true)).expect("masks");
    assert_eq!(masks.len(), ids.len() + 1);
    for (i, id) in ids.iter().enumerate() {
        let mut other = matcher.clone();
        let mut mask = vec![0; 64];
        other.mask(&mut mask).expect("mask");
        assert_eq!(mask, masks[i], "token {i}");
        assert!(!matcher.accepting(), "token {i}");
        let refused = TOKENIZER.encode("x", false).expect("ids")[0];
        assert_eq!(matcher.advance(refused), Err(GrammarError::Refused { token: refused }));
        matcher.advance(*id).expect("admitted");
    }
    assert!(matcher.accepting() && matcher.finished() && matcher.forced().is_empty());
    let stops: u32 = masks[ids.len()].iter().map(|word| word.count_ones()).sum();
    assert_eq!(stops as usize, grammar.stop().len(), "only what ends the answer is left");
    matcher.advance(grammar.stop()[0]).expect("end");
    assert!(matcher.ended() && matcher.advance(ids[0]).is_err());
    matcher.rollback(ids.len() + 1).expect("back");
    assert!(!matcher.accepting());
    assert_eq!(matcher.advance_all(&[&ids[..3], &[0]].concat()).expect("some"), 3);
    let mut short = vec![0; 3];
    assert!(matches!(matcher.mask(&mut short), Err(GrammarError::MaskSize { needed: 64, .. })));
}

#[test]
fn forced_text_has_the_tokens_of_its_text() {
    let grammar = COMPILER.compile(&GrammarSpec::Choice(vec!["The whole answer".into()])).expect("grammar");
    let (mut matcher, mut ids) = (grammar.matcher(), Vec::new());
    while !matcher.finished() {
        let forced = matcher.forced();
        let next = if forced.is_empty() {
            let mut mask = vec![0; 64];
            matcher.mask(&mut mask).expect("mask");
            let only: Vec<u32> = (0..2048).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).collect();
            vec![only[0]]
        } else {
            forced
        };
        assert_eq!(matcher.advance_all(&next).expect("admitted"), next.len());
        ids.extend(next);
    }
    assert_eq!(ids, TOKENIZER.encode("The whole answer", false).expect("ids"));
}
