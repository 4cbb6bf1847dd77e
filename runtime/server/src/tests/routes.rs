//! What the routes answer when all is well.

use super::*;

const SCRIPT: &str = "<|channel|>final<|message|>Größe 東京 👩‍👩‍👧, done.";

#[tokio::test]
async fn a_chat_answer_is_one_object() {
    let reply = post(&app(SCRIPT), CHAT, chat_body(json!({"temperature": 0}))).await;
    assert_eq!(reply.status, StatusCode::OK);
    let body = reply.json();
    let choice = &body["choices"][0];
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "toy");
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let content = "Größe 東京 👩‍👩‍👧, done.";
    assert_eq!(choice["message"], json!({"role": "assistant", "content": content, "reasoning_content": null}));
    assert_eq!((&choice["finish_reason"], &choice["matched_stop"]), (&json!("stop"), &json!(RETURN)));
    let answer_tokens = TEXT.tokenizer.encode(SCRIPT, false).unwrap().len() + 1;
    assert_eq!(body["usage"]["completion_tokens"], answer_tokens);
    let prompt = "<|start|>system<|message|>You are Beam Nano, a small helpful assistant.<|end|><|start|>user<|message|>Hi<|end|><|start|>assistant";
    let prompt_tokens = TEXT.tokenizer.encode(prompt, false).unwrap().len();
    assert_eq!(body["usage"]["prompt_tokens"], prompt_tokens);
    assert_eq!(body["usage"]["total_tokens"], prompt_tokens + answer_tokens);
}

#[tokio::test]
async fn length_and_stop_strings_end_an_answer() {
    let app = app("one two three four");
    let ask = async |more: Value| {
        let body = json!({"prompt": "A", "temperature": 0, "max_tokens": 100});
        let body = post(&app, TEXTS, with(body, more)).await.json();
        let choice = &body["choices"][0];
        let content = choice["text"].as_str().unwrap().to_owned();
        (content, choice["finish_reason"].as_str().unwrap().to_owned(), choice["matched_stop"].clone())
    };
    let end = |content: &str, reason: &str, stop: Value| (content.to_owned(), reason.to_owned(), stop);
    assert_eq!(ask(json!({"stop": "three"})).await, end("one two ", "stop", json!("three")));
    assert_eq!(ask(json!({"stop": ["x", " t"]})).await, end("one", "stop", json!(" t")));
    assert_eq!(ask(json!({"max_tokens": 1})).await.1, "length");
    assert_eq!(ask(json!({"max_completion_tokens": 1, "max_tokens": 50})).await.1, "length");
    let first = TEXT.tokenizer.encode("one", false).unwrap()[0];
    assert_eq!(ask(json!({"stop_token_ids": [first]})).await, end("", "stop", json!(first)));
    let keep = json!({"ignore_eos": true, "max_tokens": 30, "skip_special_tokens": false});
    let (content, reason, _) = ask(keep).await;
    assert!(content.ends_with("<|return|><|return|>") && reason == "length");
    let (content, ..) = ask(json!({"ignore_eos": true, "max_tokens": 30})).await;
    assert_eq!(content, "one two three four");
}

#[tokio::test]
async fn bias_and_penalties_reach_the_choice() {
    let app = app("a");
    let body = chat_body(json!({"temperature": 0, "logit_bias": {"2047": 100}}));
    assert_eq!(post(&app, CHAT, body).await.json()["choices"][0]["matched_stop"], 2047);
    let seeded = |seed: i64| json!({"prompt": "A", "temperature": 100, "seed": seed, "max_tokens": 8});
    let content = async |seed| post(&app, TEXTS, seeded(seed)).await.json()["choices"][0].clone();
    assert_eq!(content(-1).await, content(-1).await);
    assert_ne!(content(-1).await["text"], content(2).await["text"]);
}

#[tokio::test]
async fn tools_and_template_variables_reach_the_prompt() {
    let app = app("x");
    let tokens =
        async |more: Value| post(&app, CHAT, chat_body(more)).await.json()["usage"]["prompt_tokens"].as_u64().unwrap();
    let tool = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let plain = tokens(json!({})).await;
    assert!(tokens(json!({"tools": tool})).await > plain);
    assert_eq!(tokens(json!({"tools": tool, "tool_choice": "none"})).await, plain);
    let history = json!([
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": null, "reasoning": "Think.", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1, \"b\"]}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        {"role": "user", "content": "And?"}
    ]);
    let dropped = tokens(json!({"messages": history})).await;
    let kept = tokens(json!({"messages": history, "chat_template_kwargs": {"preserve_thinking": true}})).await;
    assert!(kept > dropped);
    assert!(tokens(json!({"add_generation_prompt": false})).await < plain);
}

#[tokio::test]
async fn completions_continue_every_form_of_prompt() {
    let app = app("<|channel|>one two");
    let id = |text: &str| TEXT.tokenizer.encode(text, false).unwrap();
    assert_eq!(id("A").len(), 1);
    for (prompt, n) in [(json!("A"), 1), (json!(["A", "B"]), 2), (json!(id("A")), 1), (json!([id("A"), id("B")]), 2)] {
        let body = json!({"model": "toy", "prompt": prompt, "temperature": 0});
        let reply = post(&app, TEXTS, body.clone()).await.json();
        assert_eq!(reply["object"], "text_completion");
        let choices = reply["choices"].as_array().unwrap();
        assert_eq!(choices.len(), n, "{prompt}");
        for (i, choice) in choices.iter().enumerate() {
            assert_eq!(
                (&choice["index"], &choice["text"], &choice["matched_stop"]),
                (&json!(i), &json!("one two"), &json!(RETURN))
            );
        }
        assert_eq!(reply["usage"]["prompt_tokens"], n);
        let kept = post(&app, TEXTS, with(body.clone(), json!({"skip_special_tokens": false}))).await.json();
        assert_eq!(kept["choices"][0]["text"], "<|channel|>one two");
        let options =
            json!({"stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true}});
        let events = post(&app, TEXTS, with(body, options)).await.events();
        let mut texts = vec![String::new(); n];
        for chunk in events[..events.len() - 1].iter().map(|e| serde_json::from_str::<Value>(e).unwrap()) {
            assert!(chunk["usage"]["prompt_tokens"].is_u64());
            if let Some(choice) = chunk["choices"].get(0) {
                texts[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
            }
        }
        assert_eq!(texts, vec!["one two"; n]);
    }
    let long = post(&app, TEXTS, json!({"prompt": "A", "temperature": 0, "ignore_eos": true})).await.json();
    assert_eq!(
        (&long["usage"]["completion_tokens"], &long["choices"][0]["finish_reason"]),
        (&json!(16), &json!("length"))
    );
}

#[tokio::test]
async fn models_and_health_tell_what_is_served() {
    let app = app("");
    let models = get(&app, "/v1/models").await.json();
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["max_model_len"]), (&json!("toy"), &json!(512)));
    assert_eq!(get(&app, "/v1/models/toy").await.json()["object"], "model");
    assert_eq!(get(&app, "/v1/models/other/x").await.status, StatusCode::NOT_FOUND);
    assert_eq!(get(&app, "/health").await.json(), json!({"status": "ok"}));
}

#[tokio::test]
async fn models_are_told_in_the_words_of_who_asks() {
    let app = app("");
    let card = get_as_anthropic(&app, "/v1/models/toy").await.json();
    let created = card["created_at"].as_str().unwrap();
    assert_eq!(created.parse::<jiff::Timestamp>().unwrap().as_second(), app.created as i64);
    assert!(created.ends_with('Z') && created.contains('T'), "{created}");
    let told = json!({"type": "model", "id": "toy", "display_name": "toy", "created_at": created, "lifecycle": "active", "max_input_tokens": 512, "max_tokens": 512});
    assert_eq!(card, told);
    let list = |data: Value, id: Value| json!({"data": data, "has_more": false, "first_id": id, "last_id": id});
    for query in ["", "?limit=1", "?limit=1000"] {
        let found = get_as_anthropic(&app, &format!("/v1/models{query}")).await.json();
        assert_eq!(found, list(json!([card]), json!("toy")), "{query}");
    }
    for query in ["?after_id=toy", "?limit=20&before_id=toy"] {
        let found = get_as_anthropic(&app, &format!("/v1/models{query}")).await.json();
        assert_eq!(found, list(json!([]), Value::Null), "{query}");
    }
    for (query, says) in [
        ("limit=0", "`limit` is \"0\", it must be a whole number from 1 to 1000"),
        ("limit=x", "\"x\""),
        ("after_id=other", "`after_id` is \"other\", it must be the id of a listed model, `toy`"),
        ("limit=1&limit=2", "duplicate"),
    ] {
        let reply = get_as_anthropic(&app, &format!("/v1/models?{query}")).await;
        let error = &reply.json()["error"];
        assert_eq!(
            (reply.status, &error["type"]),
            (StatusCode::BAD_REQUEST, &json!("invalid_request_error")),
            "{query}"
        );
        assert!(error["message"].as_str().unwrap().contains(says), "{query}: {error}");
    }
    let unknown = get_as_anthropic(&app, "/v1/models/other").await;
    assert_eq!((unknown.status, &unknown.json()["type"]), (StatusCode::NOT_FOUND, &json!("error")));
    assert_eq!(unknown.json()["error"]["type"], "not_found_error");
    // The others are told as ever, whatever they ask.
    let models = get(&app, "/v1/models?limit=x").await.json();
    assert_eq!((&models["object"], &models["data"][0]["object"]), (&json!("list"), &json!("model")));
}
