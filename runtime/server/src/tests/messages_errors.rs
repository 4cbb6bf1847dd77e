//! What the Messages API answers when something is wrong, in its own form.

use super::blocks::{MESSAGES, body};
use super::*;

/// Status, kind and message of an error.
fn error(reply: &Reply) -> (u16, String, String) {
    let body = reply.json();
    assert_eq!(body["type"], "error", "{body}");
    assert!(body["request_id"].as_str().unwrap().starts_with("req_"));
    let word = |key: &str| body["error"][key].as_str().unwrap().to_owned();
    (reply.status.as_u16(), word("type"), word("message"))
}

#[tokio::test]
async fn fields_of_other_servers_are_refused_by_name() {
    let app = app("one");
    for (name, value) in
        [("regex", json!("a")), ("guided_choice", json!(["a"])), ("stop", json!("a")), ("bad_words", json!(["a"]))]
    {
        let (status, _, message) = error(&post(&app, MESSAGES, body(json!({name: value}))).await);
        assert!(status == 400 && message.contains(name), "{message}");
    }
    let reply = post(&app, TEXTS, json!({"prompt": "A", "allowed_token_ids": [5]})).await;
    assert_eq!((reply.status.as_u16(), &reply.json()["error"]["param"]), (400, &json!("allowed_token_ids")));
}

#[tokio::test]
async fn every_status_has_its_kind() {
    let mut app = app("");
    Arc::get_mut(&mut app).unwrap().options.body_limit_bytes = 5000;
    for path in [MESSAGES, "/v1/messages/count_tokens"] {
        let kind = |reply: &Reply| (error(reply).0, error(reply).1);
        let bad = |status: u16, kind: &str| (status, kind.to_owned());
        for body in ["", "{", "[]", "{\"a\": 1} x"] {
            assert_eq!(kind(&post_bytes(&app, path, body).await), bad(400, "invalid_request_error"), "{body}");
        }
        let typed = Request::post(path).header("content-type", "text/plain").body(Body::from("{}")).unwrap();
        assert_eq!(kind(&send(&app, typed).await), bad(400, "invalid_request_error"));
        assert_eq!(kind(&post_bytes(&app, path, vec![b' '; 5001]).await), bad(413, "request_too_large"));
        assert_eq!(kind(&post(&app, path, body(json!({"model": "other"}))).await), bad(404, "not_found_error"));
        assert_eq!(kind(&get(&app, path).await).0, 405);
    }
    assert_eq!(error(&post(&app, "/v1/messages/batches", json!({})).await).1, "not_found_error");
    app.is_draining.store(true, std::sync::atomic::Ordering::SeqCst);
    let (status, kind, message) = error(&post(&app, MESSAGES, body(json!({}))).await);
    assert_eq!((status, kind.as_str()), (503, "overloaded_error"));
    assert!(message.contains("shutting down"));
}

#[tokio::test]
async fn a_field_that_is_wrong_is_named() {
    let app = app("");
    let block = |role: &str, block: Value| json!({"messages": [{"role": role, "content": [block]}]});
    let user = |value: Value| block("user", value);
    let said = |value: Value| block("assistant", value);
    let message = |message: Value| json!({"messages": [message]});
    let tool = |tool: Value| json!({"tools": [tool]});
    let f = json!([{"name": "f", "input_schema": {"type": "object"}}]);
    let with_f = |more: Value| with(json!({"tools": f}), more);
    let result = |more: Value| user(with(json!({"type": "tool_result", "tool_use_id": "a"}), more));
    let at = "messages[0].content[0]";
    let cases = [
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"max_tokens": 600}), "max_tokens"),
        (json!({"temperature": 1.1}), "temperature"),
        (json!({"top_p": 2}), "top_p"),
        (json!({"top_k": 0}), "top_k"),
        (json!({"stop_sequences": [""]}), "stop_sequences"),
        (json!({"stop_sequences": [5]}), "stop_sequences"),
        (json!({"stop_sequences": "x"}), "stop_sequences"),
        (json!({"metadata": {"user_id": 5}}), "metadata.user_id"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"metadata": "me"}), "metadata"),
        (json!({"system": 5}), "system"),
        (json!({"system": [{"type": "image", "source": {}}]}), "system[0]"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (message(json!("Hi")), "messages[0]"),
        (message(json!({"content": "Hi"})), "messages[0].role"),
        (message(json!({"role": "system", "content": "Hi"})), "messages[0].role"),
        (message(json!({"role": "user"})), "messages[0].content"),
        (message(json!({"role": "user", "content": []})), "messages[0].content"),
        (message(json!({"role": "user", "content": 5})), "messages[0].content"),
        (user(json!("Hi")), at),
        (user(json!({"text": "Hi"})), "messages[0].content[0].type"),
        (user(json!({"type": "text"})), "messages[0].content[0].text"),
        (user(json!({"type": "image", "source": {}})), "`image`"),
        (user(json!({"type": "document", "source": {}})), "`document`"),
        (user(json!({"type": "thinking", "thinking": "x"})), at),
        (user(json!({"type": "tool_result"})), "messages[0].content[0].tool_use_id"),
        (result(json!({"is_error": 1})), "messages[0].content[0].is_error"),
        (result(json!({"content": [{"type": "image", "source": {}}]})), "messages[0].content[0].content[0]"),
        (said(json!({"type": "thinking"})), "messages[0].content[0].thinking"),
        (said(json!({"type": "thinking", "thinking": "", "signature": "t1.??"})), "messages[0].content[0].signature"),
        (said(json!({"type": "redacted_thinking", "data": "abc"})), "messages[0].content[0].data"),
        (said(json!({"type": "server_tool_use", "id": "a", "name": "b", "input": {}})), "`server_tool_use`"),
        (said(json!({"type": "tool_use", "name": "f", "input": {}})), "messages[0].content[0].id"),
        (said(json!({"type": "tool_use", "id": "a", "name": "f", "input": "{}"})), "messages[0].content[0].input"),
        (said(json!({"type": "tool_use", "id": "a", "name": "f", "input": {}})), "ends with calls"),
        (json!({"tools": {}}), "tools"),
        (tool(json!({"type": 5, "name": "f"})), "tools[0].type"),
        (tool(json!({"name": "", "input_schema": {}})), "tools[0].name"),
        (tool(json!({"name": "f"})), "tools[0].input_schema"),
        (tool(json!({"name": "f", "input_schema": {"type": "thing"}})), "tools[0].input_schema"),
        (tool(json!({"name": "f", "input_schema": {}, "strict": 1})), "tools[0].strict"),
        (json!({"tools": [f[0], f[0]]}), "tools[1].name"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (
            json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}], "tool_choice": {"type": "any"}}),
            "tool_choice",
        ),
        (with_f(json!({"tool_choice": "auto"})), "tool_choice"),
        (with_f(json!({"tool_choice": {"type": "required"}})), "tool_choice.type"),
        (with_f(json!({"tool_choice": {"type": "tool"}})), "tool_choice.name"),
        (with_f(json!({"tool_choice": {"type": "tool", "name": "g"}})), "tool_choice.name"),
        (with_f(json!({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}})), "disable_parallel_tool_use"),
        (json!({"thinking": {"type": "disabled"}}), "thinking.type"),
        (json!({"thinking": {"type": "some"}}), "thinking.type"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 0}}), "thinking.budget_tokens"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 250}}), "thinking.budget_tokens"),
        (json!({"thinking": {"type": "enabled", "display": "all"}}), "thinking.display"),
        (json!({"output_config": {"effort": "huge"}}), "output_config.effort"),
        (json!({"output_config": {"format": {"type": "text"}}}), "output_config.format.type"),
        (json!({"output_config": {"format": {"type": "json_schema"}}}), "output_config.format.schema"),
        (json!({"output_format": {"type": "json_schema", "schema": {"type": 5}}}), "output_format.schema"),
        (json!({"mcp_servers": [{"url": "x"}]}), "mcp_servers"),
        (json!({"container": "x"}), "container"),
        (json!({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}), "context_management"),
    ];
    for (fields, named) in cases {
        for stream in [false, true] {
            let reply = post(&app, MESSAGES, body(with(json!({"stream": stream}), fields.clone()))).await;
            let (status, kind, message) = error(&reply);
            assert_eq!((status, kind.as_str()), (400, "invalid_request_error"), "{fields}: {message}");
            assert!(message.contains(named), "{fields}: {message}");
        }
    }
}

#[tokio::test]
async fn what_changes_nothing_is_accepted() {
    let app = app("<|channel|>final<|message|>one");
    let harmless = json!({
        "metadata": {"user_id": "u"}, "service_tier": "auto", "mcp_servers": [], "container": null, "unknown": {},
        "cache_control": {"type": "ephemeral"}, "stop_sequences": [], "temperature": 0, "top_k": 5, "top_p": 1,
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "thinking": null, "tools": [], "tool_choice": {"type": "auto", "disable_parallel_tool_use": false},
        "output_config": {"effort": "low"},
    });
    assert_eq!(post(&app, MESSAGES, body(harmless)).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_schema_that_cannot_be_held_is_put_down_to_its_place() {
    let app = app_with_options(scripted(ANSWER), Options::default());
    let never = json!({"type": "integer", "minimum": 2, "maximum": 1});
    let nothing = json!({"output_config": {"format": {"type": "json_schema", "schema": never}}});
    let (status, _, message) = error(&post(&app, MESSAGES, body(nothing)).await);
    assert!(status == 400 && message.contains("output_config.format"), "{message}");
    // Skipped tools count in the place of those behind them.
    let held = json!({"type": "object", "properties": {"a": never}, "required": ["a"]});
    let strict = json!({"name": "f", "input_schema": held, "strict": true});
    let tools = json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}, strict]});
    let (status, _, message) = error(&post(&app, MESSAGES, body(tools)).await);
    assert!(status == 400 && message.contains("tools[1].input_schema"), "{message}");
}

#[tokio::test]
async fn tools_that_a_client_runs_are_never_dropped_unseen() {
    let app = app("<|channel|>final<|message|>one");
    let f = json!({"name": "f", "input_schema": {"type": "object"}});
    for kind in [
        "bash_20250124",
        "text_editor_20250728",
        "computer_20250124",
        "memory_20250818",
        "foo_tool",
        "web_searching",
        "",
        "function",
    ] {
        for path in [MESSAGES, "/v1/messages/count_tokens"] {
            let reply = post(&app, path, body(json!({"tools": [f, {"type": kind, "name": "bash"}]}))).await;
            let (status, kind_of, message) = error(&reply);
            assert_eq!((status, kind_of.as_str()), (400, "invalid_request_error"), "{kind}: {message}");
            assert!(message.contains("tools[1].type") && message.contains(&format!("\"{kind}\"")), "{message}");
        }
    }
    // What another server runs itself is nothing that the client waits for.
    for kind in
        ["web_search_20250305", "web_fetch_20250910", "code_execution_20250825", "tool_search_tool_regex_20251119"]
    {
        let skipped =
            json!({"tools": [{"type": kind, "name": "x"}, {"type": "custom", "name": "f", "input_schema": {}}]});
        let reply = post(&app, MESSAGES, body(skipped)).await;
        assert_eq!(reply.status, StatusCode::OK, "{kind}: {}", String::from_utf8_lossy(&reply.body));
    }
}

#[tokio::test]
async fn a_budget_of_thinking_is_as_large_as_the_protocol_says() {
    let toy = Toy::new(facts(VOCAB, 16, 1024, 64), Box::new(|_| Ok(certain(VOCAB, RETURN))));
    let service =
        Service::start(Engine::new(toy, Limits { context_tokens: Some(4096), ..Limits::default() }).unwrap()).unwrap();
    let app = Arc::new(App::with_options(service, TEXT.clone(), "toy".into(), free()));
    for (budget, status) in [(1, 400), (1023, 400), (1024, 200)] {
        let thinking = json!({"max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": budget}});
        let reply = post(&app, MESSAGES, body(thinking)).await;
        assert_eq!(reply.status.as_u16(), status, "{budget}: {}", String::from_utf8_lossy(&reply.body));
        assert!(status == 200 || error(&reply).2.contains("at least 1024"));
    }
}
