//! The Messages API: blocks of answers and of requests, headers, and the count of a prompt.

use super::blocks::{MESSAGES, Told, agree, body, events, fold_blocks, told};
use super::*;
use axum::http::header;

const COUNT: &str = "/v1/messages/count_tokens";

fn tools() -> Value {
    let properties = json!({"s": {"type": "string"}, "n": {"type": "integer"}});
    json!([{"name": "f", "description": "Does it.", "input_schema": {"type": "object", "properties": properties}}])
}

/// The prompt of a request, as the model reads it. It is as long as its count says.
async fn prompt(app: &Arc<App>, more: Value) -> String {
    let seen = post(app, COUNT, body(more.clone())).await;
    assert_eq!(seen.status, StatusCode::OK, "{more}: {}", String::from_utf8_lossy(&seen.body));
    let (spy, history) = spy();
    let told = told(&spy, body(more)).await;
    let ids = history.lock().unwrap().clone();
    assert_eq!((seen.json(), told.prompt_tokens()), (json!({"input_tokens": ids.len()}), ids.len() as u64));
    TEXT.tokenizer.decode(&ids, false).unwrap()
}

/// A model that ends at once and remembers what it was asked.
fn spy() -> (Arc<App>, Arc<std::sync::Mutex<Vec<u32>>>) {
    let history = Arc::new(std::sync::Mutex::new(Vec::new()));
    let kept = history.clone();
    let app = app_with(Box::new(move |history| {
        *kept.lock().unwrap() = history.to_vec();
        Ok(certain(VOCAB, RETURN))
    }));
    (app, history)
}

const SYSTEM: &str = "<|start|>system<|message|>You are Beam Nano, a small helpful assistant.<|end|>";

#[tokio::test]
async fn an_answer_is_thinking_and_text() {
    let app = app(ANSWER);
    let whole = agree(&app, body(json!({"temperature": 0}))).await;
    assert_eq!((whole.text("thinking").as_str(), whole.text("text").as_str()), ("Think of 東京.", "Größe 👩‍👩‍👧, done."));
    let kinds: Vec<&str> = whole.blocks.iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(
        (kinds, whole.stop_reason.as_str(), &whole.stop_sequence),
        (vec!["thinking", "text"], "end_turn", &Value::Null)
    );
    assert_eq!(whole.usage["output_tokens"], TEXT.tokenizer.encode(ANSWER, false).unwrap().len() + 1);
}

#[tokio::test]
async fn calls_are_blocks_whose_input_is_an_object() {
    let app = app(&call(&[("s", "a \"quoted\" line\nand 東京"), ("n", "123456789012345678901234567890")]));
    let body = body(json!({"temperature": 0, "tools": tools()}));
    let reply = post(&app, MESSAGES, body.clone()).await;
    assert!(String::from_utf8_lossy(&reply.body).contains("\"n\":123456789012345678901234567890"), "exact at any size");
    let whole = agree(&app, body).await;
    assert_eq!(whole.stop_reason, "tool_use");
    let [(name, input)] = &whole.calls()[..] else { panic!("{whole:?}") };
    assert_eq!((name.as_str(), &input["s"]), ("f", &json!("a \"quoted\" line\nand 東京")));
}

#[tokio::test]
async fn an_argument_that_is_written_twice_counts_once() {
    let app = app(&call(&[("n", "1"), ("s", "a"), ("n", "2")]));
    let body = body(json!({"temperature": 0, "tools": tools()}));
    let text = String::from_utf8(post(&app, MESSAGES, body.clone()).await.body).unwrap();
    assert_eq!(text.matches("\"n\":").count(), 1, "{text}");
    assert_eq!(agree(&app, body).await.calls()[0].1, json!({"n": 2, "s": "a"}));
}

#[tokio::test]
async fn reasons_for_stopping() {
    let app = app("<|channel|>final<|message|>one two three");
    let ask = async |more: Value| {
        let Told { stop_reason, stop_sequence, .. } = agree(&app, body(with(json!({"temperature": 0}), more))).await;
        (stop_reason, stop_sequence)
    };
    assert_eq!(ask(json!({})).await, ("end_turn".into(), Value::Null));
    assert_eq!(ask(json!({"max_tokens": 5})).await, ("max_tokens".into(), Value::Null));
    assert_eq!(ask(json!({"stop_sequences": ["x", "two"]})).await, ("stop_sequence".into(), json!("two")));
}

#[tokio::test]
async fn what_is_shown_of_thinking() {
    let app = app(ANSWER);
    let kinds = |told: &Told| told.blocks.iter().map(|b| b["type"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    for thinking in [
        json!(null),
        json!({"type": "adaptive"}),
        json!({"type": "enabled", "budget_tokens": 100, "display": "summarized"}),
    ] {
        let whole = agree(&app, body(json!({"temperature": 0, "thinking": thinking}))).await;
        assert_eq!(
            (kinds(&whole), whole.text("thinking")),
            (vec!["thinking".into(), "text".into()], "Think of 東京.".into())
        );
    }
    let omitted = json!({"type": "enabled", "budget_tokens": 100, "display": "omitted"});
    let whole = agree(&app, body(json!({"temperature": 0, "thinking": omitted}))).await;
    assert_eq!((kinds(&whole), whole.text("thinking")), (vec!["thinking".into(), "text".into()], String::new()));
    // What is left out comes back with the block, under either name.
    let signed = &whole.blocks[0];
    for block in [signed.clone(), json!({"type": "redacted_thinking", "data": signed["signature"]})] {
        let call = json!({"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}});
        let messages = json!([
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [block, call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1"}]},
        ]);
        let said = prompt(&app, json!({"messages": messages, "tools": tools()})).await;
        assert!(said.contains("<|channel|>analysis<|message|>Think of 東京.<|end|>"), "{said}");
    }
    let hidden = app_with_options(scripted(ANSWER), Options { show_thinking: false, ..free() });
    assert_eq!(kinds(&agree(&hidden, body(json!({"temperature": 0}))).await), ["text"]);
    let asked = agree(&hidden, body(json!({"temperature": 0, "thinking": {"type": "adaptive"}}))).await;
    assert_eq!(kinds(&asked), ["thinking", "text"]);
}

#[tokio::test]
async fn blocks_of_a_request_reach_the_prompt() {
    let app = app("");
    let said = prompt(&app, json!({})).await;
    assert_eq!(said, format!("{SYSTEM}<|start|>user<|message|>Hi<|end|><|start|>assistant"));
    let cached = json!({"type": "ephemeral"});
    let system = json!([{"type": "text", "text": "Be ", "cache_control": cached}, {"type": "text", "text": "brief."}]);
    for system in [json!("Be brief."), system] {
        let said = prompt(&app, json!({"system": system})).await;
        assert!(said.starts_with("<|start|>system<|message|>Be brief.<|end|><|start|>user"), "{said}");
    }
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": cached}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "of another server"},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"s": "x", "n": 2}},
            {"type": "tool_use", "id": "toolu_2", "name": "f", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": "second"},
            {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": true, "content": [
                {"type": "text", "text": "fir"}, {"type": "text", "text": "st", "citations": null}]},
            {"type": "text", "text": "And?"},
        ]},
    ]);
    let said = prompt(&app, json!({"messages": messages, "tools": tools()})).await;
    let call = |inside: &str, end: &str| format!("<|start|>assistant{OPENER}{inside}<|{end}|>");
    let elements = "<rfl:parameter name=\"s\">\nx\n</rfl:parameter>\n<rfl:parameter name=\"n\">\n2\n</rfl:parameter>";
    let expected = [
        "<|start|>user<|message|>ab<|end|><|start|>assistant<|channel|>final<|message|>Let me see.<|end|>",
        &call(elements, "end"),
        &call("", "call"),
        "<|start|>tool f<|message|>second<|end|><|start|>tool f<|message|>first<|end|>",
        "<|start|>user<|message|>And?<|end|><|start|>assistant",
    ];
    assert!(said.ends_with(&expected.concat()), "{said}");
    assert!(said.contains("{\"name\":\"f\",\"description\":\"Does it.\",\"parameters\":{"), "{said}");
    let none = prompt(&app, json!({"tools": tools(), "tool_choice": {"type": "none"}})).await;
    assert_eq!(none, prompt(&app, json!({})).await);
    // What other servers run themselves is not shown.
    let more = json!([{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]);
    assert_eq!(prompt(&app, json!({"tools": more})).await, none);
}

#[tokio::test]
async fn an_answer_goes_on_where_the_assistant_stopped() {
    let (spy, history) = spy();
    for content in [json!("One, "), json!([{"type": "text", "text": "One, "}])] {
        let messages = json!([{"role": "user", "content": "Count"}, {"role": "assistant", "content": content}]);
        told(&spy, body(json!({"messages": messages}))).await;
        let said = TEXT.tokenizer.decode(&history.lock().unwrap(), false).unwrap();
        assert!(said.ends_with("<|start|>assistant<|channel|>final<|message|>One, "), "{said}");
    }
    let rest = app_with(Box::new(|history| {
        let said = TEXT.tokenizer.decode(history, false).unwrap();
        let rest = if said.ends_with("<|message|>One, ") { "t" } else { "<|return|>" };
        Ok(certain(VOCAB, TEXT.tokenizer.encode(rest, false).unwrap()[0]))
    }));
    let messages = json!([{"role": "user", "content": "Count"}, {"role": "assistant", "content": "One, "}]);
    let whole = agree(&rest, body(json!({"messages": messages, "temperature": 0}))).await;
    assert_eq!(whole.blocks, [json!({"type": "text", "text": "t"})]);
}

#[tokio::test]
async fn the_count_is_that_of_the_prompt_and_needs_no_limit() {
    let app = app(ANSWER);
    for more in [
        json!({}),
        json!({"system": "Be brief.", "tools": tools(), "tool_choice": {"type": "any"}, "thinking": {"type": "enabled", "budget_tokens": 9000}}),
        json!({"messages": [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "One, "}]}),
        json!({"messages": [{"role": "user", "content": "word ".repeat(600)}]}),
    ] {
        let mut count = body(more.clone());
        count.as_object_mut().unwrap().remove("max_tokens");
        let counted = post(&app, COUNT, count).await;
        assert_eq!(counted.status, StatusCode::OK, "{more}");
        let counted = counted.json()["input_tokens"].as_u64().unwrap();
        let mut asked = body(with(json!({"max_tokens": 1}), more));
        asked.as_object_mut().unwrap().remove("thinking");
        let reply = post(&app, MESSAGES, asked).await;
        if counted < 512 {
            let usage = reply.json()["usage"].clone();
            let sum = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
            assert_eq!(sum, counted);
        } else {
            // One that does not fit is counted all the same, so that a client learns by how much.
            assert_eq!(reply.status, StatusCode::BAD_REQUEST);
            assert!(reply.json()["error"]["message"].as_str().unwrap().contains(&counted.to_string()));
        }
    }
}

#[tokio::test]
async fn headers_of_the_protocol() {
    let app = app_with_options(scripted("one"), Options { api_key: Some("key".into()), ..free() });
    let ask = async |path: &str, name: &str, value: &str| {
        let request = Request::post(path)
            .header("content-type", "application/json")
            .header("anthropic-version", "2023-06-01")
            .header("anthropic-beta", "a-2025-01-01,b")
            .header(name, value);
        let response =
            router(app.clone()).oneshot(request.body(Body::from(body(json!({})).to_string())).unwrap()).await.unwrap();
        let id = response.headers()["request-id"].to_str().unwrap().to_owned();
        assert!(id.starts_with("req_"));
        let status = response.status();
        let reply = Reply { status, body: to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec() };
        (reply, id)
    };
    for path in [MESSAGES, COUNT, "/v1/messages?beta=true"] {
        assert_eq!(ask(path, "x-api-key", "key").await.0.status, StatusCode::OK);
        assert_eq!(ask(path, header::AUTHORIZATION.as_str(), "Bearer key").await.0.status, StatusCode::OK);
        let (reply, id) = ask(path, "x-api-key", "other").await;
        let error = reply.json();
        assert_eq!((reply.status.as_u16(), &error["request_id"]), (401, &json!(id)));
        assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("authentication_error")));
    }
}

#[tokio::test]
async fn an_answer_that_fails_on_its_way_closes_what_is_open() {
    for (at, open) in [("Think", "thinking"), ("Größe", "text"), ("", "")] {
        let app = app_with(Box::new(move |history| {
            let text = TEXT.tokenizer.decode(history, false).unwrap();
            let is_near = text.ends_with(at) && (at.is_empty() || text.contains(ANSWER.split(at).next().unwrap()));
            if is_near { Err(StepError::Device("region 3".into())) } else { scripted(ANSWER)(history) }
        }));
        let all = events(&post(&app, MESSAGES, body(json!({"temperature": 0, "stream": true}))).await);
        let [start, blocks @ .., error] = &all[..] else { panic!("{all:?}") };
        assert_eq!(
            (&start["type"], &error["type"], &error["error"]["type"]),
            (&json!("message_start"), &json!("error"), &json!("api_error"))
        );
        assert!(error["request_id"].is_string() && !error.to_string().contains("region"), "no internals: {error}");
        let (blocks, is_open) = fold_blocks(blocks);
        assert!(!is_open && blocks.last().map_or(open.is_empty(), |block| block["type"] == open), "{blocks:?}");
        let reply = post(&app, MESSAGES, body(json!({"temperature": 0}))).await;
        assert_eq!((reply.status.as_u16(), &reply.json()["error"]["type"]), (500, &json!("api_error")));
    }
}

#[tokio::test]
async fn an_answer_that_is_given_up_is_an_error() {
    let (entered, mut steps) = tokio::sync::mpsc::unbounded_channel();
    let opener = TEXT.tokenizer.encode("<|channel|>final<|message|>", false).unwrap();
    let app = app_with(Box::new(move |history| {
        let prompt = TEXT.tokenizer.encode("<|start|>assistant", false).unwrap();
        let end = history.windows(prompt.len()).position(|w| *w == prompt).unwrap() + prompt.len();
        if history.len() > end + opener.len() {
            let _ = entered.send(());
        }
        Ok(certain(VOCAB, opener.get(history.len() - end).copied().unwrap_or(300)))
    }));
    for stream in [false, true] {
        let asked = {
            let body = body(json!({"max_tokens": 400, "rid": "mine", "temperature": 0, "stream": stream}));
            let app = app.clone();
            tokio::spawn(async move { post(&app, MESSAGES, body).await })
        };
        steps.recv().await.unwrap();
        let ended = post(&app, "/abort_request", json!({"rid": "mine"})).await.json()["aborted"].as_u64().unwrap();
        let reply = asked.await.unwrap();
        while steps.try_recv().is_ok() {}
        // Whoever asks too late finds a finished request.
        match (ended, stream) {
            (0, _) => assert_eq!(reply.status, StatusCode::OK),
            (_, false) => {
                assert_eq!((reply.status.as_u16(), &reply.json()["error"]["type"]), (503, &json!("overloaded_error")));
            }
            (_, true) => {
                let all = events(&reply);
                let [_, blocks @ .., error] = &all[..] else { panic!("{all:?}") };
                assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("overloaded_error")));
                assert!(!fold_blocks(blocks).1);
            }
        }
    }
}
