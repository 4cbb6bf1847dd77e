//! What the routes answer when something is wrong: status, field and word of every kind of error.

use super::*;

/// Status, `param` and `code` of an error, which must have a message and a type.
fn error(reply: &Reply) -> (u16, String, String) {
    let body = reply.json();
    let error = &body["error"];
    assert!(error["message"].as_str().is_some_and(|m| m.len() > 10) && error["type"].is_string(), "{body}");
    let word = |key: &str| error[key].as_str().unwrap_or("").to_owned();
    (reply.status.as_u16(), word("param"), word("code"))
}

fn expected(status: u16, param: &str, code: &str) -> (u16, String, String) {
    (status, param.to_owned(), code.to_owned())
}

#[tokio::test]
async fn a_body_that_is_no_request_is_refused() {
    let mut app = app("");
    Arc::get_mut(&mut app).unwrap().options.body_limit_bytes = 1000;
    for path in [CHAT, TEXTS] {
        for (body, want) in [
            ("", expected(400, "", "invalid_json")),
            ("{", expected(400, "", "invalid_json")),
            ("[]", expected(400, "", "invalid_json")),
            ("{\"a\": 1} x", expected(400, "", "invalid_json")),
            ("\u{7f}\u{0}", expected(400, "", "invalid_json")),
        ] {
            assert_eq!(error(&post_bytes(&app, path, body).await), want, "{body}");
        }
        assert_eq!(error(&post_bytes(&app, path, vec![0xff, 0xfe]).await), expected(400, "", "invalid_json"));
        assert_eq!(error(&post_bytes(&app, path, "[".repeat(900)).await), expected(400, "", "invalid_json"));
        assert_eq!(error(&post_bytes(&app, path, vec![b' '; 1001]).await), expected(413, "", "body_too_large"));
        let typed = Request::post(path).header("content-type", "text/plain").body(Body::from("{}")).unwrap();
        assert_eq!(error(&send(&app, typed).await), expected(400, "", "invalid_content_type"));
        assert_eq!(error(&get(&app, path).await), expected(405, "", "method_not_allowed"));
    }
    assert_eq!(error(&get(&app, "/v1/nowhere").await), expected(404, "", "unknown_route"));
    assert_eq!(error(&get(&app, "/v1/models/other").await), expected(404, "model", "model_not_found"));
    for (path, body) in [(CHAT, chat_body(json!({"model": "other"}))), (TEXTS, json!({"model": "other"}))] {
        assert_eq!(error(&post(&app, path, body).await), expected(404, "model", "model_not_found"));
    }
}

#[tokio::test]
async fn a_shared_parameter_out_of_its_range_is_named() {
    let app = app("");
    let cases = [
        (json!({"temperature": -0.1}), "temperature", "invalid_value"),
        (json!({"temperature": 1e300}), "temperature", "invalid_value"),
        (json!({"temperature": "hot"}), "temperature", "invalid_type"),
        (json!({"top_p": 0}), "top_p", "invalid_value"),
        (json!({"top_p": 1.1}), "top_p", "invalid_value"),
        (json!({"min_p": -1}), "min_p", "invalid_value"),
        (json!({"top_k": 0}), "top_k", "invalid_value"),
        (json!({"top_k": -2}), "top_k", "invalid_value"),
        (json!({"top_k": 1.5}), "top_k", "invalid_type"),
        (json!({"seed": 1e30}), "seed", "invalid_value"),
        (json!({"seed": u64::MAX}), "seed", "invalid_value"),
        (json!({"seed": 0.5}), "seed", "invalid_type"),
        (json!({"repetition_penalty": 0}), "repetition_penalty", "invalid_value"),
        (json!({"frequency_penalty": 3}), "frequency_penalty", "invalid_value"),
        (json!({"presence_penalty": [1]}), "presence_penalty", "invalid_type"),
        (json!({"logit_bias": {"2048": 1}}), "logit_bias", "invalid_value"),
        (json!({"logit_bias": {"a": 1}}), "logit_bias", "invalid_value"),
        (json!({"logit_bias": {"1": 101}}), "logit_bias", "invalid_value"),
        (json!({"logit_bias": {"1": "a"}}), "logit_bias", "invalid_type"),
        (json!({"logit_bias": [1]}), "logit_bias", "invalid_type"),
        (json!({"max_tokens": 0}), "max_tokens", "invalid_value"),
        (json!({"min_tokens": -1}), "min_tokens", "invalid_value"),
        (json!({"min_tokens": 5, "max_tokens": 4}), "min_tokens", "invalid_value"),
        (json!({"no_stop_trim": 1}), "no_stop_trim", "invalid_type"),
        (json!({"max_tokens": 513}), "max_tokens", "context_length_exceeded"),
        (json!({"max_tokens": i64::MAX}), "max_tokens", "context_length_exceeded"),
        (json!({"max_completion_tokens": -1}), "max_completion_tokens", "invalid_value"),
        (json!({"stop": ""}), "stop", "invalid_value"),
        (json!({"stop": ["a", 1]}), "stop", "invalid_type"),
        (json!({"stop": vec!["a"; 33]}), "stop", "invalid_value"),
        (json!({"stop_token_ids": [2048]}), "stop_token_ids", "invalid_value"),
        (json!({"stop_token_ids": [-1]}), "stop_token_ids", "invalid_value"),
        (json!({"stream": "yes"}), "stream", "invalid_type"),
        (json!({"stream_options": {"include_usage": 1}}), "stream_options.include_usage", "invalid_type"),
        (json!({"model": 5}), "model", "invalid_type"),
        (json!({"n": 0}), "n", "invalid_value"),
        (json!({"n": 129}), "n", "invalid_value"),
        (json!({"n": 1.5}), "n", "invalid_type"),
        (json!({"logprobs": "yes"}), "logprobs", "invalid_type"),
        (json!({"stop_regex": "a+"}), "stop_regex", "unsupported_parameter"),
        (json!({"response_format": {"type": "xml"}}), "response_format.type", "invalid_type"),
        (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema", "missing_parameter"),
        (json!({"regex": "a", "ebnf": "root ::= \"a\""}), "ebnf", "invalid_value"),
        (json!({"regex": "("}), "regex", "invalid_grammar"),
        (json!({"json_schema": "{\"type\": 5}"}), "json_schema", "invalid_schema"),
        (json!({"guided_choice": []}), "guided_choice", "invalid_value"),
        (json!({"use_beam_search": true}), "use_beam_search", "unsupported_parameter"),
        (json!({"length_penalty": 0.5}), "length_penalty", "unsupported_parameter"),
        (json!({"prompt_logprobs": 0}), "prompt_logprobs", "unsupported_parameter"),
    ];
    for (fields, param, code) in cases {
        let texts = with(json!({"prompt": "A"}), fields.clone());
        for reply in [post(&app, CHAT, chat_body(fields.clone())).await, post(&app, TEXTS, texts).await] {
            assert_eq!(error(&reply), expected(400, param, code), "{fields}");
        }
    }
    for (fields, says) in [
        (json!({"logit_bias": {"7": -100.5}}), "`logit_bias` is -100.5 for the token 7, it must be from -100 to 100"),
        (
            json!({"logit_bias": {"7": "x"}}),
            "`logit_bias` is \"x\" for the token 7, it must be a number from -100 to 100",
        ),
    ] {
        assert_eq!(post(&app, CHAT, chat_body(fields)).await.json()["error"]["message"], says);
    }
    let harmless = json!({"n": 1, "best_of": 1, "use_beam_search": false, "length_penalty": 1.0, "echo": false, "temperature": null, "unknown": {}, "logit_bias": {}, "stop": [], "user": "u", "max_tokens": 1});
    assert_eq!(post(&app, CHAT, chat_body(harmless)).await.status, StatusCode::OK);
}

#[tokio::test]
async fn messages_and_tools_are_checked_to_the_part() {
    let app = app("");
    let message = |message: Value| json!({"messages": [{"role": "user", "content": "Hi"}, message]});
    let tool = |tool: Value| json!({"tools": [tool]});
    let cases = [
        (json!({"messages": null}), "messages", "missing_parameter"),
        (json!({"messages": []}), "messages", "invalid_value"),
        (json!({"messages": "Hi"}), "messages", "invalid_type"),
        (message(json!("Hi")), "messages[1]", "invalid_type"),
        (message(json!({"content": "Hi"})), "messages[1].role", "missing_parameter"),
        (message(json!({"role": "king", "content": "Hi"})), "messages[1].role", "invalid_type"),
        (message(json!({"role": "user"})), "messages[1].content", "missing_parameter"),
        (message(json!({"role": "user", "content": 5})), "messages[1].content", "invalid_type"),
        (
            message(json!({"role": "user", "content": [{"type": "image_url"}]})),
            "messages[1].content[0]",
            "unsupported_content",
        ),
        (
            message(json!({"role": "user", "content": [{"type": "text"}]})),
            "messages[1].content[0].text",
            "missing_parameter",
        ),
        (message(json!({"role": "assistant", "tool_calls": {}})), "messages[1].tool_calls", "invalid_type"),
        (
            message(json!({"role": "assistant", "tool_calls": [{}]})),
            "messages[1].tool_calls[0].function",
            "missing_parameter",
        ),
        (
            message(json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]})),
            "messages[1].tool_calls[0].function.arguments",
            "invalid_type",
        ),
        (message(json!({"role": "assistant", "reasoning": 5})), "messages[1].reasoning", "invalid_type"),
        (
            message(json!({"role": "tool", "content": "x", "tool_call_id": 5})),
            "messages[1].tool_call_id",
            "invalid_type",
        ),
        (
            message(json!({"role": "tool", "content": "x", "tool_call_id": "nobody"})),
            "messages[1].tool_call_id",
            "invalid_value",
        ),
        (json!({"tools": {}}), "tools", "invalid_type"),
        (json!({"verbosity": "chatty"}), "verbosity", "invalid_type"),
        (tool(json!({"type": "web_search"})), "tools[0].type", "invalid_type"),
        (tool(json!({"type": "function"})), "tools[0].function", "missing_parameter"),
        (tool(json!({"function": {"name": ""}})), "tools[0].function.name", "invalid_type"),
        (tool(json!({"function": {"name": "f", "parameters": "x"}})), "tools[0].function.parameters", "invalid_type"),
        (
            tool(json!({"function": {"name": "f", "parameters": {"type": "thing"}}})),
            "tools[0].function.parameters",
            "invalid_schema",
        ),
        (json!({"tool_choice": "required"}), "tool_choice", "invalid_value"),
        (json!({"tool_choice": "sometimes"}), "tool_choice", "invalid_type"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "f"}}}), "tool_choice", "invalid_value"),
        (json!({"tool_choice": {"type": "shell"}}), "tool_choice.type", "unsupported_parameter"),
        (json!({"top_logprobs": 2}), "top_logprobs", "invalid_value"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs", "invalid_value"),
        (json!({"parallel_tool_calls": "no"}), "parallel_tool_calls", "invalid_type"),
        (json!({"continue_final_message": true}), "messages", "invalid_value"),
        (json!({"reasoning_effort": "huge"}), "reasoning_effort", "invalid_type"),
        (json!({"reasoning_effort": 1.0}), "reasoning_effort", "invalid_type"),
        (json!({"reasoning": {"enabled": false}}), "reasoning.enabled", "unsupported_parameter"),
        (json!({"chat_template": "x"}), "chat_template", "unsupported_parameter"),
        (json!({"echo": true}), "echo", "unsupported_parameter"),
        (json!({"input_ids": [2048]}), "input_ids", "invalid_value"),
        (json!({"chat_template_kwargs": []}), "chat_template_kwargs", "invalid_type"),
    ];
    for (fields, param, code) in cases {
        assert_eq!(error(&post(&app, CHAT, chat_body(fields.clone())).await), expected(400, param, code), "{fields}");
    }
    let twice = json!({"function": {"name": "f"}});
    let twice = chat_body(json!({"tools": [twice, twice]}));
    assert_eq!(error(&post(&app, CHAT, twice).await), expected(400, "tools[1].function.name", "invalid_value"));
}

#[tokio::test]
async fn results_follow_calls() {
    let app = app("done");
    let call = |id: Value| json!({"role": "assistant", "tool_calls": [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
    let result = |id: Value| json!({"role": "tool", "tool_call_id": id, "content": "x"});
    let user = json!({"role": "user", "content": "Hi"});
    for (messages, at) in [
        (json!([user, call(json!("a")), result(json!("a")), call(json!("a")), result(json!("a"))]), None),
        (json!([user, call(json!("a")), user]), None),
        (json!([user, call(json!("a")), result(Value::Null)]), None),
        // Who gives calls no ids can name none.
        (json!([user, call(Value::Null), result(json!("any"))]), None),
        (json!([user, result(json!("a")), call(json!("a"))]), Some("messages[1].tool_call_id")),
        (json!([user, call(json!("a")), result(json!("b"))]), Some("messages[2].tool_call_id")),
    ] {
        let reply = post(&app, CHAT, chat_body(json!({"messages": messages}))).await;
        match at {
            None => assert_eq!(reply.status, StatusCode::OK, "{messages}"),
            Some(at) => assert_eq!(error(&reply), expected(400, at, "invalid_value"), "{messages}"),
        }
    }
    let both = json!({"prompt": "Hi", "messages": [user]});
    let reply = post(&app, "/tokenize", both).await;
    assert_eq!(error(&reply), expected(400, "prompt", "invalid_value"));
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("are both given"));
}

#[tokio::test]
async fn a_prompt_over_the_context_is_refused_in_both_forms() {
    let app = app("");
    for stream in [false, true] {
        let body = chat_body(json!({"messages": [{"role": "user", "content": "word ".repeat(600)}], "stream": stream}));
        let reply = post(&app, CHAT, body).await;
        assert_eq!(error(&reply), expected(400, "messages", "context_length_exceeded"));
        assert!(String::from_utf8_lossy(&reply.body).contains("at most 512 tokens"));
        let body = blocks::body(
            json!({"messages": [{"role": "user", "content": "word ".repeat(600)}], "max_tokens": 1, "stream": stream}),
        );
        let message = post(&app, blocks::MESSAGES, body).await.json()["error"]["message"].clone();
        assert!(message.as_str().unwrap().starts_with("prompt is too long: the prompt has 6"), "{message}");
        let body = json!({"prompt": vec![1; 512], "stream": stream});
        assert_eq!(error(&post(&app, TEXTS, body).await), expected(400, "prompt", "context_length_exceeded"));
        let body = json!({"prompt": vec![1; 500], "max_tokens": 13, "stream": stream});
        assert_eq!(error(&post(&app, TEXTS, body).await), expected(400, "max_tokens", "context_length_exceeded"));
    }
}

#[tokio::test]
async fn a_text_that_cannot_fit_is_refused_before_it_is_encoded() {
    let app = app("");
    let most = 512 * TEXT.tokenizer.longest_token_bytes().expect("a tokenizer that keeps every byte");
    let text = "a".repeat(most + 1);
    let chat = chat_body(json!({"messages": [{"role": "user", "content": text}]}));
    for (path, body, param) in [(TEXTS, json!({"prompt": text}), "prompt"), (CHAT, chat, "messages")] {
        let reply = post(&app, path, body).await;
        assert_eq!(error(&reply), expected(400, param, "context_length_exceeded"));
        assert!(String::from_utf8_lossy(&reply.body).contains("bytes fit"), "{param}");
    }
}

#[tokio::test]
async fn prompts_of_completions_are_checked() {
    let app = app("");
    for (prompt, code) in [
        (json!(null), "missing_parameter"),
        (json!(""), "invalid_prompt"),
        (json!([]), "invalid_prompt"),
        (json!({}), "invalid_type"),
        (json!(5), "invalid_type"),
        (json!([2048]), "invalid_value"),
        (json!([-1]), "invalid_value"),
        (json!([1, "a"]), "invalid_value"),
        (json!(["a", 1]), "invalid_type"),
        (json!([[1], []]), "invalid_prompt"),
        (json!([[[1]]]), "invalid_value"),
        (json!(vec!["a"; 129]), "invalid_value"),
    ] {
        assert_eq!(
            error(&post(&app, TEXTS, json!({"prompt": prompt})).await),
            expected(400, "prompt", code),
            "{prompt}"
        );
    }
    for (fields, param) in
        [(json!({"best_of": 2}), "best_of"), (json!({"logprobs": 21}), "logprobs"), (json!({"echo": "x"}), "echo")]
    {
        let reply = post(&app, TEXTS, with(json!({"prompt": "A"}), fields)).await;
        assert_eq!((error(&reply).0, error(&reply).1), (400, param.to_owned()));
    }
}

#[tokio::test]
async fn a_template_that_refuses_is_the_clients_error() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/beam-nano");
    let mut text = Text::load(&dir, &[]).unwrap();
    let refuse = "{{ raise_exception('no ' ~ messages[0].role) }}";
    text.template = Some(text::ChatTemplate::new(refuse, Default::default()).unwrap());
    let mut app = app("");
    Arc::get_mut(&mut app).unwrap().text = Arc::new(text);
    let reply = post(&app, CHAT, chat_body(json!({}))).await;
    assert_eq!(error(&reply), expected(400, "messages", "template_error"));
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("line 1: no user"));
    let mut none = Text::load(&dir, &[]).unwrap();
    none.template = None;
    Arc::get_mut(&mut app).unwrap().text = Arc::new(none);
    assert_eq!(error(&post(&app, CHAT, chat_body(json!({}))).await), expected(400, "messages", "no_chat_template"));
}

#[tokio::test]
async fn an_engine_failure_is_a_500_and_the_next_request_is_served() {
    for (how, word) in [
        ((|| StepError::Device("region 3".into())) as fn() -> StepError, "region 3"),
        (|| panic!("a defect of the executor"), "defect"),
    ] {
        let app = app_with(failing_at(100, how));
        let long = json!({"prompt": vec![1; 98], "temperature": 0});
        let reply = post(&app, TEXTS, long.clone()).await;
        assert_eq!(error(&reply), expected(500, "", "internal_error"));
        assert!(reply.json()["error"]["message"].as_str().unwrap().contains(word));
        let events = post(&app, TEXTS, with(long, json!({"stream": true}))).await.events();
        assert!(events[events.len() - 2].contains(word), "{events:?}");
        assert_eq!(events.last().unwrap(), "[DONE]");
        assert_eq!(post(&app, TEXTS, json!({"prompt": "A", "max_tokens": 2})).await.status, StatusCode::OK);
        assert_eq!(get(&app, "/health").await.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_panic_in_a_handler_is_a_500() {
    let routes = axum::Router::new().route("/panic", axum::routing::get(async || panic!("a defect") as &'static str));
    let response =
        crate::router::guarded(routes).oneshot(Request::get("/panic").body(Body::empty()).unwrap()).await.unwrap();
    let reply = Reply { status: response.status(), body: to_bytes(response.into_body(), 1000).await.unwrap().to_vec() };
    assert_eq!(error(&reply), expected(500, "", "internal_error"));
}

#[tokio::test]
async fn numbers_beyond_64_bits_are_told_their_range_and_parts_what_is_read() {
    let app = app("");
    // One more than 64 bits hold, as a client would write it.
    let beyond = r#"{"messages": [{"role": "user", "content": "Hi"}], "seed": 18446744073709551616}"#;
    let message = post_bytes(&app, CHAT, beyond).await.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("from -9223372036854775808 to 9223372036854775807"), "{message}");
    let image = json!([{"type": "image_url", "image_url": {"url": "x"}}]);
    let reply = post(&app, CHAT, json!({"messages": [{"role": "user", "content": image}]})).await.json();
    let message = reply["error"]["message"].as_str().unwrap();
    assert!(message.contains("only parts of type `text` or `refusal` are read here"), "{message}");
}

#[tokio::test]
async fn a_compressed_body_is_refused_by_its_header() {
    let app = app("one");
    let ask = async |path: &str, encoding: &str| {
        let body = json!({"prompt": "A", "max_tokens": 1});
        let request =
            Request::post(path).header("content-type", "application/json").header("content-encoding", encoding);
        send(&app, request.body(Body::from(body.to_string())).unwrap()).await
    };
    for path in [CHAT, TEXTS, super::weave::RESPONSES, "/generate", "/tokenize", "/abort_request"] {
        for encoding in ["gzip", "identity, br", "DEFLATE"] {
            let reply = ask(path, encoding).await;
            assert_eq!(error(&reply), expected(415, "", "unsupported_encoding"), "{path}");
            assert!(reply.json()["error"]["message"].as_str().unwrap().contains("`Content-Encoding`"));
        }
    }
    let reply = ask(super::blocks::MESSAGES, "gzip").await;
    assert_eq!((reply.status.as_u16(), &reply.json()["type"]), (415, &json!("error")));
    for harmless in ["identity", "Identity", ""] {
        assert_eq!(ask(TEXTS, harmless).await.status, StatusCode::OK, "{harmless:?}");
    }
}
