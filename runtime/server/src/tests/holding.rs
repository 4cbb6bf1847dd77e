//! What a grammar may say on each route, what it is called in errors, and calls that are the same whole and streamed.

use super::blocks::MESSAGES;
use super::held::rambling;
use super::weave::RESPONSES;
use super::*;

fn rambler() -> Arc<App> {
    app_with_options(rambling(), Options::default())
}

async fn error(app: &Arc<App>, path: &str, body: Value) -> (u16, Value) {
    let reply = post(app, path, body).await;
    (reply.status.as_u16(), reply.json()["error"].clone())
}

#[tokio::test]
async fn a_grammar_of_a_turn_names_no_control_token_on_any_route() {
    let app = rambler();
    for named in ["<|call|>", "<|end|>", "<|message|>", "<[2047]>", "<[*]>"] {
        let grammar = format!("start: \"a\" {named} \"b\"");
        let (status, told) = error(&app, CHAT, chat_body(json!({"structured_outputs": {"grammar": grammar}}))).await;
        assert_eq!(
            (status, &told["code"], &told["param"]),
            (400, &json!("invalid_grammar"), &json!("structured_outputs.grammar"))
        );
        assert!(
            told["message"].as_str().unwrap().contains("`structured_outputs.grammar`: names the token <"),
            "{told}"
        );
        let format = json!({"type": "grammar", "syntax": "lark", "definition": grammar});
        let tools = json!([{"type": "custom", "name": "c", "format": format}]);
        let (status, told) = error(&app, RESPONSES, json!({"input": "Hi", "tools": tools})).await;
        assert_eq!((status, &told["param"]), (400, &json!("tools[0].format.definition")), "{told}");
        assert!(told["message"].as_str().unwrap().contains("`tools[0].format"), "{told}");
    }
    // A bare continuation has no parts to be told by them.
    let ask =
        |named: &str| json!({"prompt": "A", "max_tokens": 8, "guided_grammar": format!("start: \"a\" {named} \"b\"")});
    assert_eq!(post(&app, TEXTS, ask("<|message|>")).await.status, StatusCode::OK);
    for ends in ["<|call|>", "<[2047]>"] {
        assert_eq!(error(&app, TEXTS, ask(ends)).await.0, 400);
    }
}

#[tokio::test]
async fn errors_of_formats_and_tools_are_in_the_requests_words() {
    let app = rambler();
    let large: Value = serde_json::from_str(
        r#"{"type": "object", "properties": {"n": {"const": 123456789012345678901234567890}}, "required": ["n"]}"#,
    )
    .unwrap();
    for strict in [true, false] {
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": large, "strict": strict}});
        let (status, told) = error(&app, CHAT, chat_body(json!({"response_format": format}))).await;
        assert_eq!((status, &told["param"]), (400, &json!("response_format")));
        assert!(told["message"].as_str().unwrap().contains("`response_format.properties.n.const`"), "{told}");
        let function = json!({"name": "f", "strict": strict, "parameters": large});
        let ask = chat_body(json!({"tools": [{"type": "function", "function": function}], "tool_choice": "required"}));
        let (status, told) = error(&app, CHAT, ask).await;
        assert_eq!(
            (status, &told["param"]),
            (400, &json!("tools[0].function.parameters.properties.n.const")),
            "{told}"
        );
        assert!(
            told["message"].as_str().unwrap().contains("`tools[0].function.parameters.properties.n.const`"),
            "{told}"
        );
    }
    let (_, told) = error(&app, CHAT, chat_body(json!({"guided_grammar": "start: x\nx: \"a\" )"}))).await;
    assert!(told["message"].as_str().unwrap().contains("`guided_grammar`: line 2, column "), "{told}");
}

#[tokio::test]
async fn arguments_are_an_object() {
    let app = rambler();
    for parameters in [json!({"type": "string"}), json!({"type": ["array", "null"]}), json!([])] {
        let function = json!({"name": "f", "parameters": parameters});
        let ask = chat_body(json!({"tools": [{"type": "function", "function": function}]}));
        let (status, told) = error(&app, CHAT, ask).await;
        assert_eq!((status, &told["param"]), (400, &json!("tools[0].function.parameters")), "{told}");
    }
    let (status, _) = error(
        &app,
        RESPONSES,
        json!({"input": "Hi", "tools": [{"type": "function", "name": "f", "parameters": {"type": "array"}}]}),
    )
    .await;
    assert_eq!(status, 400);
    let tools = json!([{"name": "f", "input_schema": {"type": "string"}}]);
    let ask = json!({"model": "toy", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "tools": tools});
    assert_eq!(error(&app, MESSAGES, ask).await.0, 400);
}

#[tokio::test]
async fn a_parameter_written_twice_is_the_same_whole_and_streamed() {
    let script = call(&[("n", "5"), ("pattern", "5"), ("other", "x"), ("pattern", "[\"sure")]);
    let properties = json!({"n": {"type": "integer"}});
    for parameters in [json!({}), json!({"type": "object", "properties": properties, "additionalProperties": true})] {
        for is_held in [true, false] {
            let options = if is_held { Options::default() } else { free() };
            let is_typed = parameters.get("properties").is_some();
            let app = app_with_options(scripted(&script), options);
            let function = json!({"name": "f", "strict": is_held && is_typed, "parameters": parameters});
            let choice = if is_held { "required" } else { "auto" };
            let tools = json!([{"type": "function", "function": function}]);
            let ask = chat_body(json!({"tools": tools, "tool_choice": choice, "temperature": 0}));
            let (choices, _) = whole(&app, ask.clone()).await;
            let n = if is_typed { json!(5) } else { json!("5") };
            let read: Value = serde_json::from_str(&choices[0].calls[0].1).unwrap();
            assert_eq!(read, json!({"n": n, "pattern": "[\"sure", "other": "x"}));
            assert_eq!(streamed(&app, ask).await.0[0].calls, choices[0].calls);
        }
    }
}

#[tokio::test]
async fn undeclared_parameters_are_of_the_type_that_the_schema_gives_them() {
    for (kind, written, value) in
        [("integer", "-4", json!(-4)), ("boolean", "true", json!(true)), ("string", "-4", json!("-4"))]
    {
        let app = app_with_options(scripted(&call(&[("city", "Madrid"), ("unit", written)])), Options::default());
        let parameters = json!({
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
            "additionalProperties": {"type": kind},
        });
        for strict in [true, false] {
            let tools =
                json!([{"type": "function", "function": {"name": "f", "strict": strict, "parameters": parameters}}]);
            let ask = chat_body(json!({"tools": tools, "tool_choice": "required", "temperature": 0}));
            let (choices, _) = whole(&app, ask.clone()).await;
            let read: Value = serde_json::from_str(&choices[0].calls[0].1).unwrap();
            assert_eq!(read, json!({"city": "Madrid", "unit": value}));
            assert_eq!(streamed(&app, ask).await.0[0].calls, choices[0].calls);
        }
    }
}

#[tokio::test]
async fn a_tool_without_parameters_is_called_with_an_empty_object() {
    // The model would write one.
    let invents = app_with_options(scripted(&call(&[("city", "Madrid")])), Options::default());
    // It would not.
    let plain = app_with_options(scripted(&call(&[])), Options::default());
    let function = |more: Value| with(json!({"name": "f"}), more);
    let (bare, listed) = (json!({"type": "object"}), json!({"type": "object", "properties": {}}));
    let city = "{\"city\":\"Madrid\"}";
    for (function, invented) in [
        (function(json!({})), "{}"),
        (function(json!({"parameters": null})), "{}"),
        (function(json!({"strict": true})), "{}"),
        (function(json!({"parameters": {}, "strict": true})), "{}"),
        (function(json!({"parameters": bare, "strict": true})), "{}"),
        (function(json!({"parameters": listed})), "{}"),
        (function(json!({"parameters": {}})), city),
        (function(json!({"parameters": bare})), city),
    ] {
        for (app, expected) in [(&invents, invented), (&plain, "{}")] {
            for choice in ["required", "auto"] {
                let tools = json!([{"type": "function", "function": function}]);
                let ask = chat_body(
                    json!({"tools": tools, "tool_choice": choice, "parallel_tool_calls": false, "temperature": 0}),
                );
                let (choices, _) = whole(app, ask.clone()).await;
                assert_eq!(choices[0].calls, [("f".to_owned(), expected.to_owned())], "{function} {choice}");
                assert_eq!(streamed(app, ask).await.0[0].calls, choices[0].calls, "{function} {choice}");
            }
        }
    }
    // The model is shown that there are none, in the form that all know.
    let text = async |function: Value| {
        let ask = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": [{"type": "function", "function": function}]});
        let tokens = post(&plain, "/tokenize", ask).await.json()["tokens"].clone();
        post(&plain, "/detokenize", json!({"tokens": tokens, "skip_special_tokens": false})).await.json()["text"]
            .to_string()
    };
    let shown = text(function(json!({"parameters": listed}))).await;
    assert!(shown.contains(r#"\"parameters\":{\"type\":\"object\",\"properties\":{}}"#), "{shown}");
    for more in [json!({}), json!({"parameters": null}), json!({"parameters": {}}), json!({"parameters": bare})] {
        assert_eq!(text(function(more.clone())).await, shown, "{more}");
    }
    let open = json!({"type": "object", "additionalProperties": {"type": "integer"}});
    assert!(
        text(function(json!({"parameters": open}))).await.contains(r#"{\"type\":\"object\",\"additionalProperties\""#)
    );
}
