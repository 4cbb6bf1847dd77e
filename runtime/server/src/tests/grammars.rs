//! Grammars on every route: what nothing satisfies is refused and put down to its field, what shows late ends the answer as an
//! error of the request, and answers go on as long as they are asked to.

use super::blocks::MESSAGES;
use super::held::rambling;
use super::weave::RESPONSES;
use super::*;

fn app() -> Arc<App> {
    app_with_options(rambling(), Options::default())
}

fn strict(schema: Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": true}})
}

/// A schema with a property that has to have itself.
fn endless() -> Value {
    let node = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/node"}}, "required": ["a"]});
    json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/node"}}, "required": ["a"], "$defs": {"node": node}})
}

/// A grammar that compiles and forces more than can be followed once it is begun.
pub(super) const LATE: &str = "start: /[bc]/ (x | y){400}\nx: \"a\"\ny: \"a\" \"a\"";

fn messages(more: Value) -> Value {
    with(json!({"model": "toy", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}), more)
}

async fn refused(app: &Arc<App>, path: &str, body: Value) -> (u16, String, String) {
    let reply = post(app, path, body.clone()).await;
    let error = &reply.json()["error"];
    let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
    let param = if path == MESSAGES { text("message").split(':').next().unwrap().to_owned() } else { text("param") };
    (reply.status.as_u16(), param, if path == MESSAGES { text("type") } else { text("code") })
}

#[tokio::test]
async fn what_nothing_satisfies_is_refused_on_every_route_and_names_its_field() {
    let app = app();
    let fields = [
        (json!({"response_format": strict(json!({"$ref": "#"}))}), "response_format"),
        (json!({"response_format": strict(endless())}), "response_format"),
        (json!({"json_schema": {"anyOf": [{"$ref": "#"}]}}), "json_schema"),
        (json!({"guided_json": {"allOf": [{"$ref": "#"}]}}), "guided_json"),
        (json!({"regex": r"[^\s\S]"}), "regex"),
        (json!({"guided_regex": "("}), "guided_regex"),
        (json!({"ebnf": "root ::= root"}), "ebnf"),
        (json!({"ebnf": "root ::= \"a\" root"}), "ebnf"),
        (json!({"ebnf": "root ::= foo"}), "ebnf"),
        (json!({"guided_grammar": "start: start \"a\""}), "guided_grammar"),
        (json!({"guided_grammar": "root ::= \"a\" root"}), "guided_grammar"),
        (json!({"guided_grammar": "start: \"a\" <|call|> \"b\""}), "guided_grammar"),
        (json!({"guided_grammar": "start: \"a\" <[2047]>"}), "guided_grammar"),
        (json!({"structured_outputs": {"json": endless()}}), "structured_outputs.json"),
        (json!({"structured_outputs": {"regex": "("}}), "structured_outputs.regex"),
        (json!({"structured_outputs": {"grammar": "start: start \"a\""}}), "structured_outputs.grammar"),
        (json!({"structural_tag": {"type": "regex", "pattern": r"[^\s\S]"}}), "structural_tag"),
    ];
    let is = |param: &str| (400, param.to_owned(), "invalid_grammar".to_owned());
    for (more, param) in fields {
        assert_eq!(refused(&app, CHAT, chat_body(more.clone())).await, is(param), "{more}");
        let text = with(json!({"prompt": "A"}), more.clone());
        assert_eq!(refused(&app, TEXTS, text).await, is(param), "{more}");
        let native = json!({"text": "A", "sampling_params": more});
        assert_eq!(refused(&app, "/generate", native).await, is(&format!("sampling_params.{param}")), "{more}");
    }
    let format = json!({"format": {"type": "json_schema", "name": "x", "schema": endless(), "strict": true}});
    let ask = json!({"input": "Hi", "text": format});
    assert_eq!(refused(&app, RESPONSES, ask).await, is("text.format"));
    assert_eq!(refused(&app, RESPONSES, json!({"input": "Hi", "regex": "("})).await, is("regex"));
    for (syntax, definition) in [
        ("lark", "start: start \"a\""),
        ("regex", r"[^\s\S]"),
        ("regex", "("),
        ("lark", "start: x"),
        ("lark", "start: <|return|>"),
    ] {
        let format = json!({"type": "grammar", "syntax": syntax, "definition": definition});
        let tools = json!([{"type": "function", "name": "f"}, {"type": "custom", "name": "c", "format": format}]);
        let ask = json!({"input": "Hi", "tools": tools});
        assert_eq!(refused(&app, RESPONSES, ask).await, is("tools[1].format.definition"), "{definition}");
    }
    let is = |param: &str| (400, param.to_owned(), "invalid_request_error".to_owned());
    for key in ["output_config", "output_format"] {
        let format = json!({"type": "json_schema", "schema": endless()});
        let (ask, param) = match key {
            "output_config" => (json!({key: {"format": format}}), "output_config.format"),
            _ => (json!({key: format}), key),
        };
        assert_eq!(refused(&app, MESSAGES, messages(ask)).await, is(param));
    }
    let tool = json!({"name": "f", "strict": true, "input_schema": endless()});
    assert_eq!(refused(&app, MESSAGES, messages(json!({"tools": [tool]}))).await, is("tools[0].input_schema"));
    let function = json!({"name": "f", "strict": true, "parameters": endless()});
    let ask = chat_body(json!({"tools": [tool_free("g"), {"type": "function", "function": function}]}));
    let param = "tools[1].function.parameters".to_owned();
    assert_eq!(refused(&app, CHAT, ask).await, (400, param, "invalid_grammar".to_owned()));
}

fn tool_free(name: &str) -> Value {
    tool(name, json!({}))
}

#[tokio::test]
async fn a_grammar_of_nothing_is_one() {
    let app = app();
    for more in [json!({"regex": ""}), json!({"ebnf": "root ::= \"\""}), json!({"guided_choice": [""]})] {
        let (choices, _) = whole(&app, chat_body(with(json!({"seed": 1, "max_tokens": 400}), more.clone()))).await;
        assert_eq!(choices[0].content, "", "{more}");
        let text = post(&app, TEXTS, with(json!({"prompt": "A"}), more.clone())).await.json();
        assert_eq!((&text["choices"][0]["text"], &text["choices"][0]["finish_reason"]), (&json!(""), &json!("stop")));
    }
    let format = json!({"type": "grammar", "syntax": "regex", "definition": ""});
    let tools = json!([{"type": "custom", "name": "c", "format": format}]);
    let reply = post(&app, RESPONSES, json!({"input": "Hi", "tools": tools, "max_output_tokens": 5})).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", String::from_utf8_lossy(&reply.body));
}

#[tokio::test]
async fn what_shows_late_is_the_requests_and_told_in_its_form() {
    let app = app();
    let late = json!({"guided_grammar": LATE, "max_tokens": 400, "temperature": 1, "seed": 2});
    let chat = chat_body(late.clone());
    let is = |param: &str| (400, param.to_owned(), "invalid_grammar".to_owned());
    assert_eq!(refused(&app, CHAT, chat.clone()).await, is("guided_grammar"));
    let text = with(json!({"prompt": "A"}), late.clone());
    assert_eq!(refused(&app, TEXTS, text.clone()).await, is("guided_grammar"));
    let native = json!({"text": "A", "sampling_params": late});
    assert_eq!(refused(&app, "/generate", native).await, is("sampling_params.guided_grammar"));
    for (path, body) in [(CHAT, chat), (TEXTS, text)] {
        let reply = post(&app, path, with(body, json!({"stream": true}))).await;
        assert_eq!(reply.status, StatusCode::OK);
        let events = reply.events();
        let [.., error, done] = &events[..] else { panic!("{events:?}") };
        let error: Value = serde_json::from_str(error).unwrap();
        assert_eq!((done.as_str(), &error["error"]["code"]), ("[DONE]", &json!("invalid_grammar")));
        assert_eq!(error["error"]["type"], "invalid_request_error");
    }
    let format = json!({"type": "grammar", "syntax": "lark", "definition": LATE});
    let tools = json!([{"type": "custom", "name": "c", "format": format}]);
    let ask = json!({"input": "Hi", "tools": tools, "tool_choice": "required", "temperature": 1, "stream": true});
    let reply = post(&app, RESPONSES, ask).await;
    let last: Value = String::from_utf8_lossy(&reply.body)
        .split("\n\n")
        .filter_map(|event| serde_json::from_str(event.split_once("data: ")?.1).ok())
        .last()
        .unwrap();
    assert_eq!(
        (&last["type"], &last["response"]["error"]["code"]),
        (&json!("response.failed"), &json!("invalid_prompt"))
    );
}

#[tokio::test]
async fn text_that_spells_a_control_token_can_be_asked_for() {
    let app = app();
    let ask = |more: Value| chat_body(with(json!({"seed": 3, "temperature": 1, "max_tokens": 340}), more));
    for (more, content) in [
        (json!({"response_format": strict(json!({"enum": ["<|end|>"]}))}), "\"<|end|>\""),
        (json!({"structured_outputs": {"choice": ["<|end|>"]}}), "<|end|>"),
        (json!({"regex": r"<\|end\|>"}), "<|end|>"),
        (json!({"guided_grammar": "start: \"<|start|>\" \"<|return|>\""}), "<|start|><|return|>"),
    ] {
        let (choices, _) = whole(&app, ask(more.clone())).await;
        assert_eq!((choices[0].content.as_str(), choices[0].finish.as_str()), (content, "stop"), "{more}");
        reports::same_stream(&choices[0], streamed(&app, ask(more.clone())).await.0.remove(0), &more);
    }
    let parameters = json!({"type": "object", "properties": {"a": {"enum": ["a<|end|>"]}}, "required": ["a"]});
    let function = json!({"name": "f", "strict": true, "parameters": parameters});
    let more = json!({"tools": [{"type": "function", "function": function}], "tool_choice": "required", "parallel_tool_calls": false});
    let (choices, _) = whole(&app, ask(more)).await;
    assert_eq!(choices[0].calls, [("f".to_owned(), r#"{"a":"a<|end|>"}"#.to_owned())]);
}

#[tokio::test]
async fn an_answer_goes_on_as_long_as_it_is_asked_to() {
    let app = app();
    let ask = |more: Value| chat_body(with(json!({"temperature": 1, "max_tokens": 300}), more));
    for seed in 0..4 {
        let (plain, usage) = whole(&app, ask(json!({"seed": seed}))).await;
        let natural = usage["completion_tokens"].as_u64().unwrap();
        assert!(natural < 250 && plain[0].finish == "stop", "the plain answer is short: {natural}");
        for endless in [json!({"ignore_eos": true}), json!({"ignore_eos": true, "regex": "[a-z]*"})] {
            let (choices, usage) = whole(&app, ask(with(json!({"seed": seed}), endless))).await;
            assert_eq!((&usage["completion_tokens"], choices[0].finish.as_str()), (&json!(300), "length"));
        }
        let (choices, usage) = whole(&app, ask(json!({"seed": seed, "min_tokens": 280}))).await;
        assert!(usage["completion_tokens"].as_u64().unwrap() >= 280, "{usage}");
        assert!(!choices[0].content.is_empty() && !choices[0].content.contains("<|"), "{choices:?}");
    }
    // An end that the client names counts.
    let (choices, _) = whole(&app, ask(json!({"seed": 1, "ignore_eos": true, "stop_token_ids": [RETURN]}))).await;
    assert_eq!((choices[0].finish.as_str(), &choices[0].matched), ("stop", &json!(RETURN)));
    let tools = json!([tool_free("f")]);
    for (more, what) in [
        (json!({"response_format": {"type": "json_object"}}), "response_format"),
        (json!({"regex": "[ab]"}), "regex"),
        (json!({"structured_outputs": {"choice": ["a"]}}), "structured_outputs.choice"),
        (json!({"tools": tools, "tool_choice": "required", "parallel_tool_calls": false}), "tool_choice"),
    ] {
        let reply = post(&app, CHAT, ask(with(json!({"ignore_eos": true}), more))).await;
        let error = &reply.json()["error"];
        assert_eq!((reply.status, &error["param"]), (StatusCode::BAD_REQUEST, &json!("ignore_eos")));
        assert!(error["message"].as_str().unwrap().contains(what), "{error}");
    }
}

#[tokio::test]
async fn a_character_that_is_cut_does_not_show() {
    for text in PARTED {
        let app = super::app(text);
        let tokens = TEXT.tokenizer.encode(text, false).unwrap().len();
        let mut before = String::new();
        for limit in 1..=tokens {
            let body = json!({"prompt": "A", "temperature": 0, "max_tokens": limit});
            let reply = post(&app, TEXTS, body.clone()).await.json();
            let whole = reply["choices"][0]["text"].as_str().unwrap().to_owned();
            assert!(text.starts_with(&whole) && whole.starts_with(&before), "{whole:?} of {text:?}");
            let reply = post(&app, TEXTS, with(body, json!({"stream": true}))).await;
            let pieces = reply.events().into_iter().filter_map(|event| serde_json::from_str::<Value>(&event).ok());
            let pieces: String = pieces.map(|chunk| chunk["choices"][0]["text"].as_str().unwrap().to_owned()).collect();
            assert_eq!(pieces, whole);
            before = whole;
        }
        assert_eq!(before, text);
    }
    // Bytes that the model itself ends with are told: they are no character, and nothing was cut.
    let stray = (0..VOCAB as u32).find(|id| TEXT.tokenizer.decode(&[*id], false).unwrap() == "\u{FFFD}").unwrap();
    let app = app_with(Box::new(move |history| Ok(certain(VOCAB, if history.len() < 3 { stray } else { RETURN }))));
    let reply = post(&app, TEXTS, json!({"prompt": "A", "temperature": 0, "max_tokens": 9})).await.json();
    assert!(reply["choices"][0]["text"].as_str().unwrap().contains('\u{FFFD}'), "{reply}");
}
