//! What went wrong elsewhere, in Responses: items left open, markup at cuts, stop strings, characters in parts, failures
//! in the middle.

use super::weave::*;
use super::*;

/// Both forms say the same, and neither shows markup.
async fn agree(app: &Arc<App>, more: Value) -> Value {
    let whole = both(app, ask(more)).await;
    for item in whole["output"].as_array().unwrap() {
        let text = item["content"][0]["text"].as_str().unwrap_or_default();
        // Half of what ends reasoning is reasoning, until the other half comes.
        let text = text.trim_end_matches("<|end|>");
        for markup in ["<|", "|>", "to=f", "rfl:"] {
            assert!(!text.contains(markup), "{markup} in {text:?}");
        }
        assert!(
            item["content"].is_null() || !text.is_empty() || item["content"][0]["text"] == "<|end|>",
            "an empty item"
        );
    }
    whole
}

fn text(response: &Value) -> &str {
    let items = response["output"].as_array().unwrap();
    items.iter().find(|item| item["type"] == "message").map_or("", |item| item["content"][0]["text"].as_str().unwrap())
}

#[tokio::test]
async fn every_limit_around_an_answer_cuts_cleanly() {
    let app = app(ANSWER);
    let tokens = TEXT.tokenizer.encode(ANSWER, false).unwrap().len();
    for limit in 1..=tokens + 1 {
        let whole = agree(&app, json!({"max_output_tokens": limit})).await;
        assert_eq!(whole["status"], if limit > tokens { "completed" } else { "incomplete" });
        // Only what was being written is cut, and no more than one item is.
        let items = whole["output"].as_array().unwrap();
        let cut = items.iter().filter(|item| item["status"] == "incomplete").count();
        let is_last = items.last().is_some_and(|item| item["status"] == "incomplete");
        assert_eq!(cut, usize::from(is_last), "{whole}");
        assert!(limit <= tokens || cut == 0, "{whole}");
    }
}

#[tokio::test]
async fn an_answer_of_nothing_has_no_items() {
    for script in ["", "<|channel|>final<|message|>", "<|channel|>analysis<|message|>"] {
        let whole = agree(&app(script), json!({})).await;
        assert_eq!((&whole["output"], &whole["status"]), (&json!([]), &json!("completed")), "{script}");
    }
}

#[tokio::test]
async fn text_beside_calls_is_never_shown() {
    let tools = json!([function("f", json!({"n": {"type": "integer"}}))]);
    let after = call(&[("n", "1")]).replace("<|call|>", "<|end|><|start|>assistant stray text");
    assert_eq!(types(&agree(&app(&after), json!({"tools": tools})).await), ["reasoning", "function_call"]);
    let undeclared = call(&[("n", "1")]).replace("to=f", "to=g");
    assert_eq!(types(&agree(&app(&undeclared), json!({"tools": tools})).await), ["reasoning"]);
    let app = app(&call(&[("n", "1")]));
    for more in [json!({}), json!({"tools": tools, "tool_choice": "none"})] {
        assert_eq!(types(&agree(&app, more).await), ["reasoning"]);
    }
}

#[tokio::test]
async fn a_stop_string_in_a_call_leaves_it_incomplete() {
    let app = app(&call(&[("s", "one END two"), ("n", "1")]));
    let tools = json!([function("f", json!({"s": {"type": "string"}, "n": {"type": "integer"}}))]);
    for stop in ["END", "\n</rfl", "E", "one END two\n"] {
        let whole = agree(&app, json!({"tools": tools, "stop": stop})).await;
        let last = whole["output"].as_array().unwrap().last().unwrap();
        assert_eq!((&last["type"], &last["status"]), (&json!("function_call"), &json!("incomplete")));
        assert_eq!(whole["status"], "completed");
    }
}

#[tokio::test]
async fn stop_strings_and_characters_in_parts_never_leak() {
    let app = app(&format!("<|channel|>final<|message|>{COUNTED}"));
    for (stop, left) in STOPPED {
        let stop: Value = serde_json::from_str(stop).unwrap();
        assert_eq!(text(&agree(&app, json!({"stop": stop})).await), left);
    }
    for said in PARTED {
        let app = self::app(&format!("<|channel|>final<|message|>{said}"));
        assert_eq!(text(&agree(&app, json!({"top_logprobs": 1})).await), said);
    }
}

#[tokio::test]
async fn a_failure_closes_what_is_open() {
    for (at, open) in [("Think", "reasoning"), ("Größe", "message")] {
        let app = app_with(failing_behind(at));
        let stream = folded(&app, ask(json!({}))).await;
        assert_eq!((&stream["status"], &stream["error"]["code"]), (&json!("failed"), &json!("server_error")));
        assert!(stream["error"]["message"].as_str().unwrap().contains("region 3"));
        let last = stream["output"].as_array().unwrap().last().unwrap();
        assert_eq!((&last["type"], &last["status"]), (&json!(open), &json!("incomplete")));
        assert_eq!(get(&app, &format!("{RESPONSES}/{}", stream["id"].as_str().unwrap())).await.json(), stream);
        let reply = post(&app, RESPONSES, ask(json!({}))).await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["type"]),
            (StatusCode::INTERNAL_SERVER_ERROR, &json!("server_error"))
        );
    }
}

#[tokio::test]
async fn an_abort_ends_the_stream_in_its_form() {
    let (permit, permits) = std::sync::mpsc::channel::<()>();
    let app = app_with(Box::new(move |_| {
        let _ = permits.recv();
        Ok(certain(VOCAB, TEXT.tokenizer.encode("a", false).unwrap()[0]))
    }));
    let asking = tokio::spawn({
        let app = app.clone();
        async move { folded(&app, ask(json!({"rid": "mine", "max_output_tokens": 400}))).await }
    });
    let aborting = tokio::spawn({
        let app = app.clone();
        async move {
            // Until the request is there.
            while post(&app, "/abort_request", json!({"rid": "mine"})).await.json()["aborted"] == 0 {
                tokio::task::yield_now().await;
            }
        }
    });
    while !aborting.is_finished() {
        let _ = permit.send(());
        tokio::task::yield_now().await;
    }
    let stream = asking.await.unwrap();
    assert_eq!((&stream["status"], &stream["error"]["code"]), (&json!("failed"), &json!("server_error")));
}

#[tokio::test]
async fn a_client_that_hangs_up_leaves_a_cancelled_response() {
    let (permit, permits) = std::sync::mpsc::channel::<()>();
    let mut inner = scripted(ANSWER);
    let app = app_with(Box::new(move |history| {
        let _ = permits.recv();
        inner(history)
    }));
    let body = ask(json!({"stream": true})).to_string();
    let request = Request::post(RESPONSES).header("content-type", "application/json").body(Body::from(body)).unwrap();
    let mut frames = router(app.clone()).oneshot(request).await.unwrap().into_body().into_data_stream();
    let first = futures_util::StreamExt::next(&mut frames).await.unwrap().unwrap();
    let (_, data) = std::str::from_utf8(&first).unwrap().split_once("data: ").unwrap();
    // More may have come with it.
    let data = data.split_once("\n\n").unwrap().0;
    let created: Value = serde_json::from_str(data).unwrap();
    let path = format!("{RESPONSES}/{}", created["response"]["id"].as_str().unwrap());
    assert_eq!(get(&app, &path).await.json()["status"], "in_progress");
    drop(frames);
    assert_eq!(get(&app, &path).await.json()["status"], "cancelled");
    drop(permit);
}
