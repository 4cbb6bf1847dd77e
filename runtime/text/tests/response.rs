//! Recorded outputs give the recorded message however they are cut; random outputs give one message however they are cut;
//! nothing panics.

mod seen;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use seen::{Case, Dice, Seen, fixture, template};
use serde_json::{Value, json};
use std::sync::Arc;
use text::response::*;

const SPLITS: usize = 1000;

fn vectors(template_name: &str, cases: &str, count: usize) {
    let template = template(template_name);
    let mut dice = Dice(0x5eed_0001);
    let text = fixture(cases);
    assert_eq!(text.lines().count(), count);
    for line in text.lines() {
        let case: Value = serde_json::from_str(line).expect("case");
        let id = case["id"].as_str().expect("id");
        let token = case["finish"]["token"].as_str().unwrap_or("");
        let mut output = case["output"].as_str().expect("output");
        if !token.is_empty() && !template.closes_call(token) {
            output = output.strip_suffix(token).expect("the output ends with its stop token");
        }
        let held = match case["grammar"].as_str() {
            Some("calls_or_answer") => Held::Turn,
            Some("json_answer") => Held::JsonAnswer,
            _ => Held::Free,
        };
        let ending = if case["finish"]["kind"] == "length" { Ending::Length } else { Ending::StopToken };
        for early_values in [false, true] {
            let run = Case {
                template: &template,
                tools: Arc::new(Tools::declared(&case["tools"])),
                options: ParseOptions { held, early_values, ..ParseOptions::default() },
                prompt: case["prefix_tail"].as_str().expect("prefix"),
                ending,
            };
            let whole = run.read(&[output]).0;
            let ended = whole.ended.as_ref().expect("ended");
            let calls: Vec<Value> = ended
                .tool_calls
                .iter()
                .map(|c| json!({"name": c.name, "arguments": serde_json::from_str::<Value>(&c.arguments).expect("JSON")}))
                .collect();
            let found = json!({
                "reasoning": whole.reasoning, "content": whole.content, "tool_calls": calls,
                "cut_off_calls": ended.cut_off_calls, "dropped_calls": ended.dropped_calls,
                "finish_reason": ended.reason.word(),
            });
            assert_eq!(found.to_string(), case["expect"].to_string(), "{id}");
            let chars: Vec<&str> = output.char_indices().map(|(i, c)| &output[i..i + c.len_utf8()]).collect();
            assert_eq!(run.read(&chars).0, whole, "{id} per character");
            as_recorded(&run, &case, output, &whole, id);
            for _ in 0..SPLITS {
                let pieces = dice.pieces(output);
                assert_eq!(run.read(&pieces).0, whole, "{id} as {pieces:?}");
            }
        }
    }
}

/// At the recorded places, with the recorded text behind each.
fn as_recorded(run: &Case, case: &Value, output: &str, whole: &Seen, id: &str) {
    let mut rest = output;
    let mut pieces = Vec::new();
    for chunk in case["chunks"].as_array().expect("chunks") {
        let len = chunk.as_str().expect("chunk").len().min(rest.len());
        pieces.push(&rest[..len]);
        rest = &rest[len..];
    }
    let (seen, released, last) = run.read(&pieces);
    assert_eq!(&seen, whole, "{id} as recorded");
    assert_eq!(json!(released), case["released"], "{id}");
    assert_eq!(json!(last), case["released_at_end"], "{id}");
}

#[test]
fn recorded_outputs_give_the_recorded_message() {
    vectors("beam-template.json", "cases.jsonl", 55);
}

#[test]
fn another_template_gives_its_own_messages() {
    vectors("variant-template.json", "variant-cases.jsonl", 7);
}

#[test]
fn integers_keep_all_digits() {
    let template = template("beam-template.json");
    let tools = json!([{"name": "f", "parameters": {"properties": {"i": {"type": "integer"}}}}]);
    let run = Case {
        template: &template,
        tools: Arc::new(Tools::declared(&tools)),
        options: ParseOptions::default(),
        prompt: "",
        ending: Ending::StopToken,
    };
    let opener = " to=f<|channel|>analysis <|constrain|>xml<|message|>";
    let output = format!("{opener}<rfl:parameter name=\"i\">\n12345678901234567890123\n</rfl:parameter><|call|>");
    let ended = run.read(&[&output]).0.ended.expect("ended");
    assert_eq!(ended.tool_calls[0].arguments, r#"{"i":12345678901234567890123}"#);
}

#[test]
fn text_arguments_go_out_while_they_are_written() {
    let template = template("beam-template.json");
    let tools =
        Arc::new(Tools::declared(&json!([{"name": "f", "parameters": {"properties": {"s": {"type": "string"}}}}])));
    let mut parser = ResponseParser::new(template, tools, ParseOptions::default(), "").expect("parser");
    let mut deltas = |text: &str| -> Vec<Event> { parser.push(text).expect("in limits") };
    let json = |json: &str| vec![Event::Arguments { index: 0, json: json.into() }];
    let opener = " to=f<|channel|>analysis <|constrain|>xml<|message|>";
    assert_eq!(deltas(opener), vec![Event::Call { index: 0, name: "f".into() }]);
    assert_eq!(deltas("<rfl:parameter name=\"s\">"), vec![]);
    assert_eq!(deltas("\n"), json(r#"{"s":""#));
    assert_eq!(deltas("say \"hé"), json(r#"say \"hé"#));
    assert_eq!(deltas("\n"), vec![]);
    assert_eq!(deltas("</rfl:"), vec![]);
    assert_eq!(deltas("x"), json(r"\n</rfl:x"));
    assert_eq!(deltas("<|call"), vec![]);
    assert_eq!(deltas("!"), json("<|call!"));
    // The value ends; the object does with the call.
    assert_eq!(deltas("\n</rfl:parameter>"), json("\""));
    let whole = r#"{"s":"say \"hé\n</rfl:x<|call!"}"#;
    assert_eq!(deltas("<|call|>"), [json("}"), vec![Event::CallDone { index: 0, arguments: whole.into() }]].concat());
}

#[test]
fn an_argument_that_never_ends() {
    let template = template("beam-template.json");
    let tools = json!([{"name": "f", "parameters": {"properties": {"s": {"type": "string"}}}}]);
    let output = " to=f<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name=\"s\">\nab\n<|call|>";
    for (early_values, expected) in [(true, r#"{"s":"ab\n"}"#), (false, "{}")] {
        let run = Case {
            template: &template,
            tools: Arc::new(Tools::declared(&tools)),
            options: ParseOptions { early_values, ..ParseOptions::default() },
            prompt: "",
            ending: Ending::StopToken,
        };
        assert_eq!(run.read(&[output]).0.ended.expect("ended").tool_calls[0].arguments, expected);
    }
}

#[test]
fn a_call_that_the_prompt_opened_goes_on() {
    let template = template("beam-template.json");
    let tools = json!([{"name": "f", "parameters": {"properties": {"s": {"type": "string"}}}}]);
    let opener = "<|start|>assistant to=f<|channel|>analysis <|constrain|>xml<|message|>";
    let prompt = format!("<|start|>assistant{opener}<|call|>{opener}<rfl:parameter name=\"s\">\na");
    let run = Case {
        template: &template,
        tools: Arc::new(Tools::declared(&tools)),
        options: ParseOptions::default(),
        prompt: &prompt,
        ending: Ending::StopToken,
    };
    let seen = run.read(&["b\n</rfl:param", "eter><|call|>"]).0;
    assert_eq!(seen.streamed, vec![("f".to_owned(), r#"{"s":"ab"}"#.to_owned(), Some(r#"{"s":"ab"}"#.to_owned()))]);
}

#[test]
fn other_shapes_of_templates_run() {
    let value = json!({
        "start_anchor": "A:",
        "fields": {
            "thinking": {"open": "<t>", "close_pattern": "</t>\\s?", "join": "\n", "content_args": {"strip": true}},
            "content": {},
            "tool_calls": {
                "open": "<c>", "close": "</c>", "content": "json", "repeats": true,
                "transform_each": {"function": {"name": "{content.n}", "arguments": "{content.a}"}}
            }
        }
    });
    let template = Arc::new(ResponseTemplate::from_value(&value).expect("template"));
    let run = Case {
        template: &template,
        tools: Arc::new(Tools::declared(&json!([{"name": "f"}, {"name": "g"}]))),
        options: ParseOptions::default(),
        prompt: "A:x A:",
        ending: Ending::StopToken,
    };
    let output =
        "hi <t> a b </t> you<t>c</t><c>[{\"n\":\"f\",\"a\":{\"x\":1}},{\"n\":\"q\"},{\"n\":\"g\"}]</c>!<c>{</c> <t>d";
    let whole = run.read(&[output]).0;
    assert_eq!((whole.content.as_str(), whole.reasoning.as_str()), ("hi you! ", "a b\nc\nd"));
    let calls = [("f", r#"{"x":1}"#), ("g", "{}")].map(|(n, a)| (n.to_owned(), a.to_owned(), Some(a.to_owned())));
    assert_eq!(whole.streamed, calls);
    assert_eq!(whole.ended.as_ref().expect("ended").dropped_calls, vec![Some("q".to_owned()), None]);
    let mut dice = Dice(0x5eed_0002);
    for _ in 0..SPLITS {
        assert_eq!(run.read(&dice.pieces(output)).0, whole);
    }
}

#[test]
fn what_cannot_be_run_is_refused_with_its_place() {
    let beam: Value = serde_json::from_str(&fixture("beam-template.json")).expect("JSON");
    for (place, value, code, says) in [
        ("/fields/thinking/open", json!(3), "X0203", "`fields.thinking.open`: is not a string"),
        ("/fields/thinking/open", json!(""), "X0204", "`fields.thinking.open`: the pattern can match empty text"),
        ("/fields/content/close/1", json!(null), "X0203", "`fields.content.close`"),
        ("/fields/content/content", json!("int"), "X0203", "`fields.content.content`: is `int`"),
        ("/fields/tool_calls/content", json!("kv-lines"), "X0203", "`fields.tool_calls.content`"),
        ("/fields/tool_calls/open_pattern", json!("a(?P<n>b"), "X0204", "near byte 1: unclosed group"),
        ("/fields/tool_calls/open_pattern", json!("^a"), "X0204", "assertion"),
        ("/fields/tool_calls/open_pattern", json!("a(?=b)c"), "X0204", "look-ahead at byte 1 with more behind it"),
        ("/fields/tool_calls/open_pattern", json!("(?:a(?=b))+"), "X0204", "look-ahead at byte 4 with more behind it"),
        ("/fields/tool_calls/open_pattern", json!("(?<!x)a"), "X0204", "does not parse near byte 0"),
        ("/fields/tool_calls/open_pattern", json!("(a{1000}){1000}"), "X0204", "is too large"),
        ("/fields/tool_calls/open_pattern", json!("a*"), "X0204", "can match empty text"),
        ("/fields/tool_calls/content_args/tag_pattern", json!("<(?P<key>a)>"), "X0204", "group `value`"),
        (
            "/fields/tool_calls/content_args/tag_pattern",
            json!("<(?P<key>a)>(?P<value>.*)<"),
            "X0204",
            "other than `.*?`",
        ),
        ("/fields/tool_calls/content_args/tag_pattern", json!("<a>(?P<value>.*?)<"), "X0204", "no group `key`"),
        ("/fields/tool_calls/content_args/value_parser/name", json!("int"), "X0203", "is `int`"),
        ("/fields/tool_calls/transform", json!("x"), "X0203", "`fields.tool_calls.transform`"),
        ("/defaults", json!({"content": "x"}), "X0203", "`defaults.content`"),
        ("/fields", json!({"images": {}}), "X0203", "`fields.images`"),
        ("/fields", json!({"thinking": {}, "content": {}}), "X0203", "`fields.content`: has neither"),
        ("", json!([]), "X0203", "is not an object"),
        ("", json!({"version": 2, "fields": {}}), "X0203", "`version`: is 2"),
    ] {
        let mut template = beam.clone();
        *template.pointer_mut(place).expect("place") = value.clone();
        let error = ResponseTemplate::from_value(&template).expect_err(&format!("{place} = {value}")).to_string();
        assert!(error.starts_with(code) && error.contains(says), "{place} = {value}: {error}");
    }
    assert!(ResponseTemplate::from_json("{\"fields\"").expect_err("cut").to_string().starts_with("X0202"));
}

#[test]
fn control_tokens_that_are_only_spelt_are_text() {
    let template = template("beam-template.json");
    let closer = "<|end|><|start|>assistant";
    let begin = "<|channel|>analysis<|message|>a ";
    let text = format!("{begin}{closer} b{closer}<|channel|>final<|message|>c<|end|>d");
    let last = text.rfind('>').expect("one");
    let ends = text.match_indices('>').map(|(at, _)| at);
    let spelt: Vec<usize> =
        ends.filter(|at| (begin.len()..begin.len() + closer.len()).contains(at) || *at == last).collect();
    assert_eq!(spelt.len(), 3);
    for split in 0..=text.len() {
        let tools = Arc::new(Tools::none());
        let mut parser = ResponseParser::new(template.clone(), tools, ParseOptions::default(), "<|start|>assistant")
            .expect("parser");
        let (a, b) = text.split_at(split);
        let before: Vec<usize> = spelt.iter().copied().filter(|at| *at < split).collect();
        let behind: Vec<usize> = spelt.iter().filter_map(|at| at.checked_sub(split)).collect();
        let mut events = parser.push_spelt(a, &before).expect("text");
        events.extend(parser.push_spelt(b, &behind).expect("text"));
        events.extend(parser.finish(Ending::Length).expect("end").events);
        let (mut reasoning, mut content) = (String::new(), String::new());
        for event in events {
            match event {
                Event::Reasoning(text) => reasoning += &text,
                Event::Content(text) => content += &text,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((reasoning, content), (format!("a {closer} b"), "c<|end|>d".to_owned()), "{split}");
    }
}

#[test]
fn limits_end_one_answer() {
    let template = template("variant-template.json");
    let options = ParseOptions { limit_bytes: 100, ..ParseOptions::default() };
    let mut parser = ResponseParser::new(template, Arc::new(Tools::none()), options, "").expect("parser");
    // A call may begin here, and no line end says otherwise.
    assert_eq!(parser.push("to=").expect("in limits"), vec![]);
    let error = parser.push(&"x".repeat(200)).expect_err("too long").to_string();
    assert!(error.starts_with("X0205"), "{error}");
    assert_eq!(parser.push("\n").expect_err("over").to_string(), error);
}

#[test]
fn long_outputs_take_linear_work() {
    // Each would take hours if work grew with the square of the length.
    let n = 1 << 20;
    for (name, unit) in [
        ("beam-template.json", "<|end|><|start|>assistan"),
        ("beam-template.json", " to=f<|channel|>analysis "),
        ("variant-template.json", "to="),
        ("variant-template.json", "to=a\n"),
    ] {
        let template = template(name);
        let text = unit.repeat(n / unit.len());
        let run = Case {
            template: &template,
            tools: Arc::new(Tools::none()),
            options: ParseOptions::default(),
            prompt: "",
            ending: Ending::Length,
        };
        run.read(&[&text]);
        let pieces: Vec<&str> = (0..text.len() / 3).map(|i| &text[3 * i..3 * i + 3]).collect();
        run.read(&pieces);
        let opened = format!("<|channel|>final<|message|>{text}");
        run.read(&[&opened]);
        let call = " to=f<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name=\"s\">\n";
        let run = Case { tools: Arc::new(Tools::declared(&json!([{"name": "f"}]))), ..run };
        run.read(&[call, &"\n<rfl:parameter name=\"".repeat(n / 22), &"\n</rfl:paramete".repeat(n / 15)]);
    }
}

/// Pieces that outputs are made of, markup broken in every way.
fn fragment() -> impl Strategy<Value = String> {
    let beam: Vec<&'static str> = vec![
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
        "<|end|><|start|>assistant",
        "<|start|>assistant ",
        "<|end|>",
        "<|call|>",
        "<|return|>",
        " to=f<|channel|>analysis <|constrain|>xml<|message|>",
        "to=g<|channel|>analysis<|message|>",
        " to=nope<|channel|>analysis <|constrain|>xml<|message|>",
        "<rfl:parameter name=\"s\">\n",
        "<rfl:parameter name=\"i\">\n",
        "<rfl:parameter name=\"o\">\n",
        "<rfl:parameter name=\"u\">",
        "\n</rfl:parameter>",
        "</rfl:parameter>",
        "\n",
        " 42",
        "{\"a\": [1, \"<|call|>\\\"\"]}",
        "\"",
        "\\",
        "é🦀",
    ];
    prop_oneof![
        4 => proptest::sample::select(beam.clone()).prop_map(str::to_owned),
        1 => (proptest::sample::select(beam), 1usize..40).prop_map(|(text, n)| text.chars().take(n).collect()),
        1 => "[a-z <|>\"\\n]{0,8}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, rng_seed: RngSeed::Fixed(11), ..Default::default() })]

    #[test]
    fn cuts_do_not_matter(
        fragments in proptest::collection::vec(fragment(), 0..24),
        prompt in proptest::collection::vec(fragment(), 0..4),
        variant: bool, early_values: bool, held in 0..3usize, ending in 0..3usize, seed in 1u64..u64::MAX,
    ) {
        let template = template(if variant { "variant-template.json" } else { "beam-template.json" });
        let tools = json!([
            {"name": "f", "parameters": {"properties": {
                "s": {"type": "string"}, "i": {"type": "integer"}, "o": {"type": "object"}, "u": {"type": ["string", "integer"]}}}},
            {"name": "g"}
        ]);
        let prompt = format!("<|start|>assistant{}", prompt.concat());
        let run = Case {
            template: &template,
            tools: Arc::new(Tools::declared(&tools)),
            options: ParseOptions {
                held: [Held::Free, Held::Turn, Held::JsonAnswer][held], early_values, ..ParseOptions::default()
            },
            prompt: &prompt,
            ending: [Ending::StopToken, Ending::StopString, Ending::Length][ending],
        };
        let output = fragments.concat();
        let whole = run.read(&[&output]).0;
        let mut dice = Dice(seed);
        for _ in 0..4 {
            let pieces = dice.pieces(&output);
            prop_assert_eq!(&run.read(&pieces).0, &whole, "{:?}", pieces);
        }
        let chars: Vec<&str> = output.char_indices().map(|(i, c)| &output[i..i + c.len_utf8()]).collect();
        prop_assert_eq!(&run.read(&chars).0, &whole);
    }

    #[test]
    fn an_open_answer_loses_no_text(text in "[a-z<|>é\\n]{0,40}", cut in 0..10usize) {
        // No closer is complete, so all of it is the answer.
        let template = template("beam-template.json");
        let run = Case {
            template: &template,
            tools: Arc::new(Tools::none()),
            options: ParseOptions::default(),
            prompt: "<|start|>assistant<|channel|>final<|message|>",
            ending: Ending::Length,
        };
        let text = format!("{text}{}", &"<|return|>"[..cut]);
        prop_assume!(!["<|return|>", "<|end|>", "<|call|>"].iter().any(|c| text.contains(c)));
        prop_assert_eq!(&run.read(&[&text]).0.content, &text);
    }

    #[test]
    fn any_template_is_read_or_refused(place in 0..6usize, pattern in ".{0,20}|[a-z(?=<)|P\\[\\]{}*+.:]{0,24}", output in "[a-z<>()\\n]{0,30}") {
        let places = [
            "/fields/tool_calls/open_pattern", "/fields/tool_calls/content_args/tag_pattern", "/fields/thinking/open",
            "/fields/content/close", "/start_anchor_pattern", "/fields/tool_calls/transform/function/name",
        ];
        let mut value: Value = serde_json::from_str(&fixture("beam-template.json")).expect("JSON");
        let pattern = if place == 1 { format!("<(?P<key>a){pattern}(?P<value>.*?){pattern}b") } else { pattern };
        *value.pointer_mut(places[place]).expect("place") = json!(pattern);
        if let Ok(template) = ResponseTemplate::from_value(&value) {
            let template = Arc::new(template);
            let run = Case {
                template: &template,
                tools: Arc::new(Tools::declared(&json!([{"name": "a"}]))),
                options: ParseOptions::default(),
                prompt: "",
                ending: Ending::Length,
            };
            let whole = run.read(&[&output]).0;
            let chars: Vec<&str> = output.char_indices().map(|(i, c)| &output[i..i + c.len_utf8()]).collect();
            prop_assert_eq!(run.read(&chars).0, whole);
        }
    }

    #[test]
    fn any_text_is_a_template_or_an_error(text in "[\\[{\"a-z_,:}\\]]{0,60}|.{0,60}") {
        let _ = ResponseTemplate::from_json(&text);
    }
}
