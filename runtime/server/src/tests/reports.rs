//! What went wrong elsewhere, each kind as a whole: markup at limits and cuts, stop strings, characters in parts, calls
//! beside text, streams that say something else than the whole answer.

use super::blocks::MESSAGES;
use super::weave::RESPONSES;
use super::*;

/// Both forms of both protocols say the same, and none shows markup. Returns the whole answer of a chat.
async fn agree(app: &Arc<App>, body: Value) -> (Choice, Value) {
    let (choice, usage) = same(app, body.clone()).await;
    // Half of what ends reasoning is reasoning, until the other half comes.
    for text in [&*choice.content, choice.reasoning.trim_end_matches("<|end|>")] {
        for markup in ["<|", "|>", "to=f", "rfl:", "\u{FFFD}"] {
            assert!(!text.contains(markup), "{markup} in {text:?}: {body}");
        }
    }
    (choice, usage)
}

/// Both forms of both protocols say the same.
pub(super) async fn same(app: &Arc<App>, body: Value) -> (Choice, Value) {
    let (choice, usage) = same_pieces(app, body.clone()).await;
    let told = blocks::agree(app, as_messages(&body)).await;
    same_blocks(&choice, &usage, &told, &body);
    (choice, usage)
}

/// A chat says the same whole and in pieces.
pub(super) async fn same_pieces(app: &Arc<App>, body: Value) -> (Choice, Value) {
    let (mut choices, usage) = whole(app, body.clone()).await;
    let (mut pieces, said) = streamed(app, body.clone()).await;
    assert_eq!(said, usage, "{body}");
    let choice = choices.remove(0);
    same_stream(&choice, pieces.remove(0), &body);
    (choice, usage)
}

/// A stream says what the whole answer says.
pub(super) fn same_stream(choice: &Choice, mut stream: Choice, body: &Value) {
    // A call that was cut off has as much text in both; only the last can be one, and none where tools are to be called.
    let read = |choice: &Choice| -> Vec<Value> {
        choice.calls.iter().map(|(_, text)| so_far(text).unwrap_or_else(|text| json!(text))).collect()
    };
    assert_eq!(read(&stream), read(choice), "{body}");
    let cut = choice.calls.iter().filter(|(_, text)| so_far(text).is_err()).count();
    assert!(cut == 0 || cut == 1 && choice.finish != "tool_calls", "{choice:?}");
    assert!(choice.calls.split_last().is_none_or(|(_, before)| before.iter().all(|(_, text)| so_far(text).is_ok())));
    // An argument that is written twice stands twice in a stream, and the later one counts.
    stream.calls = choice.calls.clone();
    assert_eq!(&stream, choice, "{body}");
}

/// Arguments as a value, or the text of those that were cut off.
pub(super) fn so_far(text: &str) -> Result<Value, &str> {
    serde_json::from_str(text).map_err(|_| text)
}

/// Arguments as an object: of those that were cut off the complete ones.
pub(super) fn arguments(text: &str) -> Value {
    let cuts = (0..=text.len()).rev().filter_map(|at| text.get(..at));
    let mut objects = cuts.filter_map(|text| so_far(text).or_else(|_| serde_json::from_str(&format!("{text}}}"))).ok());
    objects.next().unwrap_or_else(|| json!({}))
}

/// A chat request as one of the Messages API.
pub(super) fn as_messages(body: &Value) -> Value {
    let tools = body["tools"].as_array().into_iter().flatten().map(|tool| &tool["function"]);
    let tools: Vec<Value> = tools.map(|f| json!({"name": f["name"], "input_schema": f["parameters"]})).collect();
    let choice = if body["tool_choice"] == "none" { json!({"type": "none"}) } else { Value::Null };
    blocks::body(json!({
        "max_tokens": body["max_tokens"].as_u64().unwrap_or(250),
        "temperature": body["temperature"],
        "stop_sequences": body["stop"].as_str().map(|stop| json!([stop])).unwrap_or_else(|| body["stop"].clone()),
        "tools": tools,
        "tool_choice": choice,
    }))
}

/// Blocks say what a chat's message says.
pub(super) fn same_blocks(choice: &Choice, usage: &Value, told: &blocks::Told, body: &Value) {
    assert_eq!(
        (told.text("thinking"), told.text("text")),
        (choice.reasoning.clone(), choice.content.clone()),
        "{body}"
    );
    let value = |text: &str| match choice.finish.as_str() {
        "tool_calls" => serde_json::from_str(text).unwrap(),
        _ => arguments(text),
    };
    let calls: Vec<(String, Value)> = choice.calls.iter().map(|(name, text)| (name.clone(), value(text))).collect();
    assert_eq!(told.calls(), calls, "{body}");
    let (reason, sequence) = match (choice.finish.as_str(), &choice.matched) {
        ("tool_calls", _) => ("tool_use", Value::Null),
        ("length", _) => ("max_tokens", Value::Null),
        ("stop", Value::String(text)) => ("stop_sequence", json!(text)),
        _ => ("end_turn", Value::Null),
    };
    assert_eq!((told.stop_reason.as_str(), &told.stop_sequence), (reason, &sequence), "{body}");
    assert_eq!(told.prompt_tokens(), usage["prompt_tokens"].as_u64().unwrap());
    assert_eq!(told.usage["output_tokens"], usage["completion_tokens"]);
}

/// Text, finish reason and completion tokens of plain text, the same whole and streamed.
async fn texts_agree(script: &str, more: Value) -> (String, Value, u64) {
    let body = with(json!({"prompt": "A", "temperature": 0, "max_tokens": 100}), more);
    let app = app(script);
    let whole = post(&app, TEXTS, body.clone()).await.json();
    let choice = &whole["choices"][0];
    let whole = (
        choice["text"].as_str().unwrap().to_owned(),
        choice["finish_reason"].clone(),
        whole["usage"]["completion_tokens"].as_u64().unwrap(),
    );
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let body = with(body, options);
    assert_eq!(texts_joined(&post(&app, TEXTS, body.clone()).await), whole, "{body}");
    assert_eq!(texts_joined(&burst(script, TEXTS, body.clone()).await), whole, "{body}");
    whole
}

/// The same from the chunks of a stream, none of which says nothing.
fn texts_joined(reply: &Reply) -> (String, Value, u64) {
    let events = reply.events();
    let chunks: Vec<Value> = events[..events.len() - 1].iter().map(|e| serde_json::from_str(e).unwrap()).collect();
    let (usage, chunks) = chunks.split_last().unwrap();
    let (mut text, mut finish) = (String::new(), Value::Null);
    for choice in chunks.iter().map(|chunk| &chunk["choices"][0]) {
        assert_eq!(finish, Value::Null, "nothing comes after the end: {choice}");
        finish = choice["finish_reason"].clone();
        let more = choice["text"].as_str().unwrap();
        assert!((!more.is_empty() || !finish.is_null()) && !more.contains('\u{FFFD}'), "{choice}");
        text.push_str(more);
    }
    (text, finish, usage["usage"]["completion_tokens"].as_u64().unwrap())
}

/// A stream that is read when all of it is there: what the engine made in many steps comes at once.
async fn burst(script: &str, path: &str, body: Value) -> Reply {
    let app = app(script);
    let request = Request::post(path).header("content-type", "application/json");
    let response = router(app.clone()).oneshot(request.body(Body::from(body.to_string())).unwrap()).await.unwrap();
    let status = response.status();
    while !app.service.metrics().text("", "").lines().any(|line| line == "num_requests_total{model_name=\"\"} 1") {
        tokio::task::yield_now().await;
    }
    Reply { status, body: to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec() }
}

pub(super) fn tools() -> Value {
    json!([tool("f", json!({"s": {"type": "string"}, "n": {"type": "integer"}}))])
}

#[tokio::test]
async fn a_call_without_arguments_and_one_with_a_number() {
    let ask = async |script: String| {
        agree(&app(&script), chat_body(json!({"temperature": 0, "tools": tools()}))).await.0.calls
    };
    assert_eq!(ask(call(&[])).await, [("f".to_owned(), "{}".to_owned())]);
    let calls = ask(call(&[("n", "7")])).await;
    assert_eq!(serde_json::from_str::<Value>(&calls[0].1).unwrap(), json!({"n": 7}));
    let two = call(&[("n", "7")]).replace("<|call|>", &format!("<|end|><|start|>assistant{OPENER}<|call|>"));
    assert_eq!(ask(two).await.len(), 2);
}

#[tokio::test]
async fn every_limit_around_a_call_cuts_cleanly() {
    let script = call(&[("s", "a value"), ("n", "-3")]);
    let app = app(&script);
    let tokens = TEXT.tokenizer.encode(&script, false).unwrap().len();
    let (all, mut longest) = (r#"{"s":"a value","n":-3}"#, 0);
    for limit in 1..=tokens {
        // Just before the end all but the last bracket has come.
        assert!(limit < tokens || longest == all.len() - 1, "{longest}");
        let body = chat_body(json!({"temperature": 0, "tools": tools(), "max_tokens": limit}));
        let (choice, usage) = agree(&app, body).await;
        // The last token closes the call and ends the answer, which goes before the limit.
        let finish = if limit == tokens { "tool_calls" } else { "length" };
        assert_eq!((choice.finish.as_str(), usage["completion_tokens"].as_u64()), (finish, Some(limit as u64)));
        for (_, text) in &choice.calls {
            assert!(all.starts_with(text.as_str()) && (limit < tokens || *text == all), "{text}");
            longest = longest.max(text.len());
        }
    }
}

#[tokio::test]
async fn every_limit_around_an_answer_cuts_cleanly() {
    let app = app(ANSWER);
    let tokens = TEXT.tokenizer.encode(ANSWER, false).unwrap().len();
    let mut seen = (String::new(), String::new());
    for limit in 1..=tokens + 1 {
        let body = json!({"temperature": 0, "max_tokens": limit});
        let (mut choices, usage) = whole(&app, chat_body(body.clone())).await;
        let choice = choices.remove(0);
        same_blocks(&choice, &usage, &blocks::told(&app, as_messages(&body)).await, &body);
        // A character that is cut does not show.
        let (content, reasoning) = (choice.content.as_str(), choice.reasoning.trim_end_matches("<|end|>"));
        assert!(!content.contains('\u{FFFD}') && !reasoning.contains('\u{FFFD}'), "{choice:?}");
        assert!(!content.contains("<|") && !reasoning.contains("<|"), "{choice:?}");
        assert!(content.starts_with(&seen.0) && reasoning.starts_with(&seen.1), "{choice:?} after {seen:?}");
        seen = (content.to_owned(), reasoning.to_owned());
    }
    assert_eq!(seen, ("Größe 👩‍👩‍👧, done.".to_owned(), "Think of 東京.".to_owned()));
}

#[tokio::test]
async fn text_beside_calls_is_never_shown() {
    let after = call(&[("n", "1")]).replace("<|call|>", "<|end|><|start|>assistant stray text");
    let (choice, _) = agree(&app(&after), chat_body(json!({"temperature": 0, "tools": tools()}))).await;
    assert_eq!((choice.content.as_str(), choice.calls.len()), ("", 1));
    let undeclared = call(&[("n", "1")]).replace("to=f", "to=g");
    let (choice, _) = agree(&app(&undeclared), chat_body(json!({"temperature": 0, "tools": tools()}))).await;
    assert_eq!((choice.content.as_str(), choice.calls.len(), choice.finish.as_str()), ("", 0, "stop"));
    // Without tools, and with none chosen, the raw call is not the answer.
    let app = app(&call(&[("n", "1")]));
    for more in [json!({}), json!({"tools": tools(), "tool_choice": "none"})] {
        let (choice, _) = agree(&app, chat_body(with(json!({"temperature": 0}), more))).await;
        assert_eq!((choice.content.as_str(), choice.calls.len(), choice.finish.as_str()), ("", 0, "stop"));
    }
}

#[tokio::test]
async fn a_stop_string_in_a_call_ends_it_unfinished() {
    let app = app(&call(&[("s", "one END two"), ("n", "1")]));
    for stop in ["END", "to=f", "\n</rfl", "E", "one END two\n"] {
        let body = chat_body(json!({"temperature": 0, "tools": tools(), "stop": stop}));
        let (choice, _) = agree(&app, body).await;
        assert_eq!((choice.finish.as_str(), &choice.matched), ("stop", &json!(stop)));
        // What came before the stop string is there, and is no complete call.
        assert!(choice.calls.iter().all(|(_, text)| so_far(text).is_err()), "{choice:?}");
        assert_eq!(choice.calls.is_empty(), stop == "to=f");
    }
}

#[tokio::test]
async fn stop_strings_over_token_borders_never_leak() {
    let script = format!("<|channel|>final<|message|>{COUNTED}");
    let app = app(&script);
    for (stop, left) in STOPPED {
        let stop: Value = serde_json::from_str(stop).unwrap();
        let (choice, usage) = agree(&app, chat_body(json!({"temperature": 0, "stop": stop}))).await;
        assert_eq!((choice.content.as_str(), choice.finish.as_str()), (left, "stop"));
        // Tokens behind the stop are not counted, however far the engine has gone on.
        assert_eq!(usage["completion_tokens"], tokens_until(&script, &stop), "{stop}");
    }
}

/// Tokens of a script up to the one that completes a stop string; without any, one more ends the answer.
fn tokens_until(script: &str, stop: &Value) -> usize {
    let stops = stop.as_array().cloned().unwrap_or_else(|| vec![stop.clone()]);
    let ids = TEXT.tokenizer.encode(script, false).unwrap();
    let is_complete = |count: &usize| {
        let text = TEXT.tokenizer.decode(&ids[..*count], false).unwrap();
        stops.iter().any(|stop| text.contains(stop.as_str().unwrap()))
    };
    (1..=ids.len()).find(is_complete).unwrap_or(ids.len() + 1)
}

#[tokio::test]
async fn characters_in_parts_stream_whole() {
    for text in PARTED {
        let app = app(&format!("<|channel|>final<|message|>{text}"));
        assert_eq!(agree(&app, chat_body(json!({"temperature": 0}))).await.0.content, text);
    }
}

#[tokio::test]
async fn several_tokens_at_once_change_nothing() {
    let long = call(&[("s", "one END two 東京 👩‍👩‍👧"), ("n", "-12")]);
    for (script, stop) in
        [(ANSWER, json!(null)), (ANSWER, json!("done")), (long.as_str(), json!(null)), (&long, json!("END"))]
    {
        let app = app(script);
        let body = chat_body(json!({"temperature": 0, "tools": tools(), "stop": stop}));
        let (choice, usage) = agree(&app, body.clone()).await;
        let options = json!({"stream": true, "stream_options": {"include_usage": true}});
        let reply = burst(script, CHAT, with(body.clone(), options)).await;
        let (mut pieces, said) = joined(&reply, 1);
        assert_eq!(said, usage, "{body}");
        same_stream(&choice, pieces.remove(0), &body);
        let deltas = reply.events().iter().filter(|event| event.contains("reasoning_content")).count();
        assert_eq!(deltas, 1, "all of it came at once");
        let reply = burst(script, MESSAGES, with(as_messages(&body), json!({"stream": true}))).await;
        same_blocks(&choice, &usage, &blocks::folded(&blocks::events(&reply)), &body);
    }
}

#[tokio::test]
async fn plain_text_streams_what_it_says_whole() {
    for (stop, left) in STOPPED.into_iter().chain([("\"one\"", "")]) {
        let stop: Value = serde_json::from_str(stop).unwrap();
        let (text, finish, tokens) = texts_agree(COUNTED, json!({"stop": stop})).await;
        assert_eq!((text.as_str(), &finish), (left, &json!("stop")), "{stop}");
        assert_eq!(tokens, tokens_until(COUNTED, &stop) as u64, "{stop}");
    }
    let all = TEXT.tokenizer.encode(COUNTED, false).unwrap().len() as u64;
    for limit in 1..=all {
        let (_, finish, tokens) = texts_agree(COUNTED, json!({"max_tokens": limit})).await;
        assert_eq!((finish, tokens), (json!("length"), limit));
    }
    for text in PARTED {
        assert_eq!(texts_agree(text, json!({})).await.0, text);
    }
}

#[tokio::test]
async fn a_full_queue_is_a_status_in_both_forms_of_every_protocol() {
    // One runs for a long time, one waits.
    let toy = Toy::new(facts(VOCAB, 16, 1 << 16, 64), Box::new(|_| Ok(certain(VOCAB, 300))));
    let limits = Limits { running: 1, ..Limits::default() };
    let service =
        Service::behind(Engine::new(toy, limits).unwrap(), crate::Door { queued: 1, ..crate::Door::default() })
            .unwrap();
    let app = Arc::new(App::with_options(service, TEXT.clone(), "toy".into(), free()));
    let long = || engine::Request { prompt: vec![1], max_tokens: Some(1 << 19), ..engine::Request::default() };
    let mut taken = Vec::new();
    for rid in ["a", "b"] {
        taken.push(app.submit(vec![long()], rid.into(), "prompt", "max_tokens").await.unwrap());
        // Its first token is out before the next one asks.
        if taken.len() == 1 {
            taken[0].next().await.unwrap();
        }
    }
    let plain = json!({"prompt": "A", "max_tokens": 3});
    for (path, body) in [
        (TEXTS, plain),
        (CHAT, chat_body(json!({}))),
        (RESPONSES, weave::ask(json!({}))),
        (MESSAGES, blocks::body(json!({}))),
    ] {
        for stream in [false, true] {
            let request = Request::post(path).header("content-type", "application/json");
            let body = with(body.clone(), json!({"stream": stream})).to_string();
            let response = router(app.clone()).oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
            assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "{path}");
            assert!(response.headers()["retry-after"].to_str().unwrap().parse::<u64>().unwrap() >= 1);
            let said = to_bytes(response.into_body(), usize::MAX).await.unwrap();
            let error = serde_json::from_slice::<Value>(&said).unwrap()["error"].clone();
            assert_eq!(error["type"], "rate_limit_error");
            assert!(error["message"].as_str().unwrap().contains("queue is full"), "{error}");
        }
    }
    assert_eq!(app.responses.load(), (0, 0), "what was not taken is not stored");
}

#[tokio::test]
async fn an_engine_failure_in_a_chat_stream_is_told_in_the_stream() {
    let app = app_with(failing_behind("Think"));
    let events = post(&app, CHAT, chat_body(json!({"temperature": 0, "stream": true}))).await.events();
    let error: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert!(error["error"]["message"].as_str().unwrap().contains("region 3"));
    assert_eq!(events.last().unwrap(), "[DONE]");
}
