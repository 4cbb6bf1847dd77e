//! What went wrong elsewhere, each kind as a whole: markup at limits and cuts, stop strings, characters in parts, calls
//! beside text, streams that say something else than the whole answer.

use super::*;

/// Both forms say the same, and neither shows markup. Returns the whole answer.
async fn agree(app: &Arc<App>, body: Value) -> (Choice, Value) {
    let (mut choices, usage) = whole(app, body.clone()).await;
    let (mut pieces, said) = streamed(app, body.clone()).await;
    assert_eq!(said, usage, "{body}");
    let (choice, mut stream) = (choices.remove(0), pieces.remove(0));
    // A call that is cut off may have been begun in a stream, and is no call in the end.
    let begun = stream.calls.len();
    stream.calls.truncate(choice.calls.len());
    assert!(begun <= choice.calls.len() + 1 && (begun == choice.calls.len() || choice.finish != "tool_calls"));
    assert_eq!(stream, choice, "{body}");
    // Half of what ends reasoning is reasoning, until the other half comes.
    for text in [&*choice.content, choice.reasoning.trim_end_matches("<|end|>")] {
        for markup in ["<|", "|>", "to=f", "rfl:", "\u{FFFD}"] {
            assert!(!text.contains(markup), "{markup} in {text:?}: {body}");
        }
    }
    (choice, usage)
}

fn tools() -> Value {
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
    for limit in 1..=tokens {
        let body = chat_body(json!({"temperature": 0, "tools": tools(), "max_tokens": limit}));
        let (choice, usage) = agree(&app, body).await;
        // The last token closes the call and ends the answer, which goes before the limit.
        let finish = if limit == tokens { "tool_calls" } else { "length" };
        assert_eq!((choice.finish.as_str(), usage["completion_tokens"].as_u64()), (finish, Some(limit as u64)));
        assert_eq!(choice.calls.is_empty(), limit < tokens);
    }
}

#[tokio::test]
async fn every_limit_around_an_answer_cuts_cleanly() {
    let app = app(ANSWER);
    let tokens = TEXT.tokenizer.encode(ANSWER, false).unwrap().len();
    let mut seen = (String::new(), String::new());
    for limit in 1..=tokens + 1 {
        let body = json!({"temperature": 0, "max_tokens": limit});
        let (mut choices, _) = whole(&app, chat_body(body.clone())).await;
        let choice = choices.remove(0);
        // At a cut inside a character its beginning shows as one mark, in both forms alike.
        let (content, reasoning) = (
            choice.content.trim_end_matches('\u{FFFD}'),
            choice.reasoning.trim_end_matches("<|end|>").trim_end_matches('\u{FFFD}'),
        );
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
        assert!(choice.calls.is_empty());
    }
}

#[tokio::test]
async fn stop_strings_over_token_borders_never_leak() {
    let app = app("<|channel|>final<|message|>one two three four");
    for (stop, left) in [
        (json!("two three"), "one "),
        (json!(["thr", "two threx"]), "one two "),
        (json!("e t"), "on"),
        (json!("four"), "one two three "),
    ] {
        let (choice, usage) = agree(&app, chat_body(json!({"temperature": 0, "stop": stop}))).await;
        assert_eq!((choice.content.as_str(), choice.finish.as_str()), (left, "stop"));
        // Tokens behind the stop are not counted, however far the engine has gone on.
        let all = TEXT.tokenizer.encode("<|channel|>final<|message|>one two three four", false).unwrap().len() as u64;
        assert!(usage["completion_tokens"].as_u64().unwrap() <= all);
    }
    // A beginning of a stop string that nothing completes comes out at the end.
    let (choice, _) = agree(&app, chat_body(json!({"temperature": 0, "stop": "four five"}))).await;
    assert_eq!(choice.content, "one two three four");
}

#[tokio::test]
async fn characters_in_parts_stream_whole() {
    for text in ["東京都は日本の首都です", "👩‍👩‍👧👍🏽🏳️‍🌈", "e\u{301}a\u{308}\u{323}", "a\u{200d}b", "नमस्ते", "\u{10FFFF}"]
    {
        let app = app(&format!("<|channel|>final<|message|>{text}"));
        assert_eq!(agree(&app, chat_body(json!({"temperature": 0}))).await.0.content, text);
    }
}

#[tokio::test]
async fn a_full_queue_is_a_status_in_both_forms() {
    let (entered, mut steps) = tokio::sync::mpsc::unbounded_channel();
    let (permit, permits) = std::sync::mpsc::channel::<()>();
    let model: engine::toy::Model = Box::new(move |_| {
        let _ = entered.send(());
        let _ = permits.recv();
        Ok(certain(VOCAB, 300))
    });
    let toy = Toy::new(facts(VOCAB, 16, 64, 64), model);
    let limits = Limits { context_tokens: Some(512), running: 1, ..Limits::default() };
    let service = Service::with_queue(Engine::new(toy, limits).unwrap(), 1).unwrap();
    let app = Arc::new(App::with_options(service, TEXT.clone(), "toy".into(), free()));
    let long = json!({"prompt": "A", "max_tokens": 3});
    let ask = |app: &Arc<App>| {
        let (app, body) = (app.clone(), long.clone());
        tokio::spawn(async move { post(&app, TEXTS, body).await })
    };
    let running = ask(&app);
    steps.recv().await.unwrap();
    let waiting = ask(&app);
    // Both are known to the engine once it has gone round.
    while app.service.metrics().text("", "").lines().all(|l| l != "num_queue_reqs{model_name=\"\"} 1") {
        permit.send(()).unwrap();
        tokio::task::yield_now().await;
        if running.is_finished() {
            break;
        }
    }
    if !running.is_finished() {
        for stream in [false, true] {
            let reply = post(&app, TEXTS, with(long.clone(), json!({"stream": stream}))).await;
            let body = reply.json();
            assert_eq!((reply.status, &body["error"]["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("queue_full")));
            assert_eq!(body["error"]["type"], "service_unavailable");
        }
    }
    drop(permit);
    assert_eq!((running.await.unwrap().status, waiting.await.unwrap().status), (StatusCode::OK, StatusCode::OK));
}

#[tokio::test]
async fn an_engine_failure_in_a_chat_stream_is_told_in_the_stream() {
    let app = app_with(Box::new(|history| {
        let text = TEXT.tokenizer.decode(history, false).unwrap();
        if text.ends_with("Think") { Err(StepError::Device("region 3".into())) } else { scripted(ANSWER)(history) }
    }));
    let events = post(&app, CHAT, chat_body(json!({"temperature": 0, "stream": true}))).await.events();
    let error: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert!(error["error"]["message"].as_str().unwrap().contains("region 3"));
    assert_eq!(events.last().unwrap(), "[DONE]");
}
