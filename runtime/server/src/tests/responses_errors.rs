//! What Responses refuses, each with its field.

use super::weave::*;
use super::*;

async fn refused(app: &Arc<App>, more: Value, param: &str) {
    for stream in [false, true] {
        let reply = post(app, RESPONSES, ask(with(more.clone(), json!({"stream": stream})))).await;
        let body = reply.json();
        let error = &body["error"];
        assert!(reply.status == StatusCode::BAD_REQUEST || reply.status == StatusCode::NOT_FOUND, "{more}: {body}");
        assert_eq!(error["param"], param, "{more}: {body}");
        let is_word = |key: &str| error[key].as_str().is_some_and(|word| !word.is_empty());
        assert!(is_word("message") && is_word("type") && is_word("code"), "{body}");
    }
}

#[tokio::test]
async fn fields_that_are_wrong_are_named() {
    let app = app(ANSWER);
    for (more, param) in [
        (json!({"input": null}), "input"),
        (json!({"input": 5}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": ["x"]}), "input[0]"),
        (json!({"input": [{}]}), "input[0].type"),
        (json!({"input": [{"type": "web_search_call", "id": "ws_1"}]}), "input[0].type"),
        (json!({"input": [{"role": "tool", "content": "x"}]}), "input[0].role"),
        (json!({"input": [{"role": "user"}]}), "input[0].content"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
            "input[0].content[0]",
        ),
        (json!({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}), "input[0].call_id"),
        (
            json!({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "[1]"}]}),
            "input[0].arguments",
        ),
        (
            json!({"input": [{"type": "shell_call", "call_id": "c", "action": {"commands": ["a", "b"]}}]}),
            "input[0].action.commands",
        ),
        (json!({"input": [{"type": "item_reference", "id": "msg_none"}]}), "input[0].id"),
        (json!({"instructions": 1}), "instructions"),
        (json!({"previous_response_id": "resp_none"}), "previous_response_id"),
        (json!({"model": "other"}), "model"),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"max_output_tokens": 5000}), "max_output_tokens"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"top_p": 2}), "top_p"),
        (json!({"top_logprobs": 21}), "top_logprobs"),
        (json!({"include": ["everything"]}), "include[0]"),
        (json!({"truncation": "some"}), "truncation"),
        (json!({"reasoning": {"effort": "much"}}), "reasoning.effort"),
        (json!({"reasoning": {"summary": "long"}}), "reasoning.summary"),
        (json!({"text": {"format": {"type": "xml"}}}), "text.format.type"),
        (json!({"text": {"format": {"type": "json_schema", "name": "x"}}}), "text.format.schema"),
        (
            json!({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 5}}}}),
            "text.format.schema",
        ),
        (
            json!({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "integer", "minimum": 2, "maximum": 1}}}}),
            "text.format",
        ),
        (json!({"text": {"verbosity": "chatty"}}), "text.verbosity"),
        (json!({"text": {"format": {"type": "json_object"}}, "regex": "a"}), "text.format"),
        (json!({"metadata": {"a": 1}}), "metadata.a"),
        (json!({"metadata": {"a": "x".repeat(513)}}), "metadata"),
        (json!({"max_tokens": 5}), "max_tokens"),
        (json!({"messages": []}), "messages"),
        (json!({"response_format": {"type": "json_object"}}), "response_format"),
        (json!({"conversation": "conv_1"}), "conversation"),
        (json!({"prompt": {"id": "p"}}), "prompt"),
        (json!({"n": 2}), "n"),
        (json!({"background": true, "store": false}), "background"),
        (json!({"input": "word ".repeat(600)}), "input"),
    ] {
        refused(&app, more, param).await;
    }
}

#[tokio::test]
async fn tools_that_are_wrong_are_named() {
    let app = app(ANSWER);
    let f = || function("f", json!({}));
    for (tools, param) in [
        (json!(["f"]), "tools[0]"),
        (json!([{"name": "f"}]), "tools[0].type"),
        (json!([{"type": "function"}]), "tools[0].name"),
        (json!([{"type": "function", "name": "f", "parameters": {"type": 5}}]), "tools[0].parameters"),
        (json!([f(), f()]), "tools[1].name"),
        (json!([{"type": "web_search"}]), "tools[0].type"),
        (json!([f(), {"type": "mcp", "server_label": "x"}]), "tools[1].type"),
        (json!([{"type": "unheard_of"}]), "tools[0].type"),
        (json!([{"type": "shell", "environment": {"type": "container_auto"}}]), "tools[0].environment"),
        (json!([function("bash", json!({})), {"type": "shell"}]), "tools"),
        (json!([{"type": "shell"}, function("bash", json!({}))]), "tools"),
        (json!([{"type": "namespace", "name": "a", "description": "", "tools": []}]), "tools[0].tools"),
        (json!([{"type": "namespace", "description": "", "tools": [f()]}]), "tools[0].name"),
        (json!([{"type": "namespace", "name": "a", "tools": [f(), f()]}]), "tools[0].tools[1].name"),
        (json!([{"type": "namespace", "name": "a", "tools": [{"type": "shell"}]}]), "tools[0].tools[0].type"),
        (
            json!([function("a__f", json!({})), {"type": "namespace", "name": "a", "tools": [f()]}]),
            "tools[1].tools[0].name",
        ),
        (
            json!([{"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "bnf", "definition": "x"}}]),
            "tools[0].format.syntax",
        ),
        (
            json!([{"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "regex", "definition": "("}}]),
            "tools[0].format.definition",
        ),
        (
            json!([f(), {"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "g", "strict": true, "parameters": {"type": "object", "not": {}}}]}]),
            "tools[1].tools[0].parameters.not",
        ),
    ] {
        refused(&app, json!({"tools": tools}), param).await;
    }
    for (choice, param) in [
        (json!("sometimes"), "tool_choice"),
        (json!({"type": "function"}), "tool_choice.name"),
        (json!({"type": "function", "name": "g"}), "tool_choice"),
        (json!({"type": "custom", "name": "f"}), "tool_choice"),
        (json!({"type": "shell"}), "tool_choice"),
        (json!({"type": "web_search_preview"}), "tool_choice.type"),
        (json!({"type": "allowed_tools", "tools": []}), "tool_choice.tools"),
        (json!({"type": "allowed_tools", "tools": [{"type": "function", "name": "g"}]}), "tool_choice.tools[0]"),
    ] {
        refused(&app, json!({"tools": [f()], "tool_choice": choice}), param).await;
    }
    refused(&app, json!({"tool_choice": "required"}), "tool_choice").await;
}

#[tokio::test]
async fn statuses_are_those_of_the_case() {
    let app = app(ANSWER);
    let status = async |more: Value| post(&app, RESPONSES, ask(more)).await.status;
    assert_eq!(status(json!({"model": "other"})).await, StatusCode::NOT_FOUND);
    assert_eq!(status(json!({"previous_response_id": "resp_x"})).await, StatusCode::NOT_FOUND);
    assert_eq!(status(json!({"temperature": "warm"})).await, StatusCode::BAD_REQUEST);
    let reply = post_bytes(&app, RESPONSES, "{").await;
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_json")));
    assert_eq!(get(&app, RESPONSES).await.status, StatusCode::METHOD_NOT_ALLOWED);
}

/// Every place in a value, as JSON pointers.
fn places(value: &Value, at: &str, out: &mut Vec<String>) {
    out.push(at.to_owned());
    match value {
        Value::Array(list) => list.iter().enumerate().for_each(|(i, value)| places(value, &format!("{at}/{i}"), out)),
        Value::Object(map) => map.iter().for_each(|(key, value)| places(value, &format!("{at}/{key}"), out)),
        _ => {}
    }
}

#[tokio::test]
async fn nothing_in_a_request_breaks_the_server() {
    let app = app(ANSWER);
    let whole = ask(json!({
        "max_output_tokens": 9,
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "content": [{"type": "reasoning_text", "text": "r"}], "encrypted_content": "x"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes"}], "status": "completed"},
            {"type": "function_call", "call_id": "a", "name": "f", "namespace": "n", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "x"}]},
            {"type": "shell_call", "call_id": "b", "action": {"commands": ["ls"]}},
            {"type": "shell_call_output", "call_id": "b", "output": [{"stdout": "", "stderr": ""}]},
            {"type": "custom_tool_call", "call_id": "c", "name": "c", "input": "x"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "x"},
        ],
        "instructions": "i",
        "tools": [
            function("f", json!({"n": {"type": "integer"}})),
            {"type": "custom", "name": "c", "description": "d", "format": {"type": "text"}},
            {"type": "shell", "environment": {"type": "local"}},
            {"type": "namespace", "name": "n", "description": "d", "tools": [function("f", json!({}))]},
        ],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "include": ["reasoning.encrypted_content"],
        "metadata": {"k": "v"},
    }));
    assert_eq!(post(&app, RESPONSES, whole.clone()).await.status, StatusCode::OK);
    let mut all = Vec::new();
    places(&whole, "", &mut all);
    assert!(all.len() > 100, "{}", all.len());
    let mut refused = 0;
    for (i, place) in all.iter().filter(|place| !place.is_empty()).enumerate() {
        for junk in [json!(null), json!(-1), json!("\u{0}<|end|>"), json!([[]]), json!({"type": {}})] {
            let mut body = whole.clone();
            *body.pointer_mut(place).unwrap() = junk.clone();
            body["stream"] = json!(i % 2 == 0);
            let reply = post(&app, RESPONSES, body).await;
            assert!(!reply.status.is_server_error(), "{place} is {junk}: {}", String::from_utf8_lossy(&reply.body));
            if reply.status != StatusCode::OK {
                assert!(reply.json()["error"]["message"].as_str().unwrap().len() > 10);
                refused += 1;
            }
        }
    }
    assert!(refused > 200, "{refused}");
}
