//! Chat answers in their fields: reasoning, answer, calls, whole and streamed.

use super::*;

#[tokio::test]
async fn an_answer_is_told_in_its_fields_whole_and_streamed() {
    let app = app(ANSWER);
    let body = chat_body(json!({"temperature": 0}));
    let (choices, usage) = whole(&app, body.clone()).await;
    let expected = Choice {
        reasoning: "Think of 東京.".into(),
        content: "Größe 👩‍👩‍👧, done.".into(),
        finish: "stop".into(),
        matched: json!(RETURN),
        ..Choice::default()
    };
    assert_eq!(choices, std::slice::from_ref(&expected));
    assert_eq!(streamed(&app, body).await, (vec![expected], usage.clone()));
    let tokens = |text: &str| TEXT.tokenizer.encode(text, false).unwrap().len();
    assert_eq!(usage["completion_tokens"], tokens(ANSWER) + 1);
    let reasoning = tokens("Think of 東京.");
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], reasoning);
    assert_eq!(usage["reasoning_tokens"], reasoning);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
}

#[tokio::test]
async fn reasoning_can_stand_in_front_or_come_in_one_piece() {
    let app = app(ANSWER);
    let body = chat_body(json!({"temperature": 0, "separate_reasoning": false}));
    let (choices, _) = whole(&app, body.clone()).await;
    assert_eq!(choices[0].content, "Think of 東京.Größe 👩‍👩‍👧, done.");
    assert_eq!(streamed(&app, body).await.0, choices);
    let body = chat_body(json!({"temperature": 0, "stream": true, "stream_reasoning": false}));
    let events = post(&app, CHAT, body).await.events();
    let thoughts: Vec<&String> = events.iter().filter(|e| e.contains("reasoning_content")).collect();
    assert!(thoughts.len() == 1 && thoughts[0].contains("Think of 東京."), "{thoughts:?}");
}

#[tokio::test]
async fn calls_stream_their_arguments_as_they_come() {
    let app = app(&call(&[("s", "a \"quoted\" line\nand 東京"), ("n", "12"), ("list", "[1, 2]")]));
    let tools =
        json!([tool("f", json!({"s": {"type": "string"}, "n": {"type": "integer"}, "list": {"type": "array"}}))]);
    let body = chat_body(json!({"temperature": 0, "tools": tools}));
    let (choices, _) = whole(&app, body.clone()).await;
    let (name, arguments) = &choices[0].calls[0];
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    assert_eq!(name, "f");
    assert_eq!(arguments, json!({"s": "a \"quoted\" line\nand 東京", "n": 12, "list": [1, 2]}));
    assert_eq!((choices[0].finish.as_str(), choices[0].content.as_str()), ("tool_calls", ""));
    assert_eq!(streamed(&app, body).await.0, choices);
}

#[tokio::test]
async fn choices_share_a_request_and_interleave() {
    let app = app_with(Box::new(|history| Ok(engine::toy::hashed(VOCAB, history))));
    let body = chat_body(json!({"n": 3, "max_tokens": 6, "temperature": 1, "seed": 5, "logit_bias": {"2046": -100}}));
    let reply = post(&app, TEXTS, json!({"prompt": "A", "n": 3, "max_tokens": 6, "seed": 5})).await.json();
    let texts: Vec<&str> = reply["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert!(texts[0] != texts[1] && texts[1] != texts[2], "{texts:?}");
    // Choice `i` draws with the seed plus `i`, whatever runs beside it.
    let alone = post(&app, TEXTS, json!({"prompt": "A", "max_tokens": 6, "seed": 7})).await.json();
    assert_eq!(alone["choices"][0]["text"], texts[2]);
    let (_, usage) = whole(&app, body.clone()).await;
    let events = post(&app, CHAT, with(body, json!({"stream": true}))).await.events();
    let order: Vec<u64> = events
        .iter()
        .filter_map(|e| serde_json::from_str::<Value>(e).ok())
        .filter_map(|c| c["choices"][0]["index"].as_u64())
        .collect();
    assert_eq!(order[..3], [0, 1, 2]);
    assert_eq!(usage["completion_tokens"].as_u64().map(|n| n <= 18), Some(true));
    assert_eq!(usage["prompt_tokens"], whole(&app, chat_body(json!({"max_tokens": 1}))).await.1["prompt_tokens"]);
}

#[tokio::test]
async fn logprobs_have_one_entry_for_each_token() {
    let app = app(ANSWER);
    let body = chat_body(json!({"temperature": 0, "logprobs": true, "top_logprobs": 2}));
    let (choices, usage) = whole(&app, body.clone()).await;
    let entries = &choices[0].logprobs;
    assert_eq!(usage["completion_tokens"], entries.len());
    let bytes: Vec<u8> =
        entries.iter().flat_map(|e| e["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8)).collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), format!("{ANSWER}<|return|>"));
    for entry in entries {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["token"], &top[0]["bytes"]), (2, &entry["token"], &entry["bytes"]));
        let logprob = |e: &Value| e["logprob"].as_f64().unwrap();
        assert!(logprob(&top[0]) == logprob(entry) && logprob(&top[0]) > logprob(&top[1]) && logprob(entry) < 0.0);
    }
    assert_eq!(streamed(&app, body).await.0, choices);
    let none = whole(&app, chat_body(json!({"temperature": 0}))).await.0;
    assert!(none[0].logprobs.is_empty());
}

#[tokio::test]
async fn an_answer_goes_on_where_the_last_message_ends() {
    let app = app_with(Box::new(|history| {
        let said = TEXT.tokenizer.decode(history, false).unwrap();
        let rest = if said.ends_with("<|channel|>final<|message|>One, ") { "t" } else { "<|return|>" };
        Ok(certain(VOCAB, TEXT.tokenizer.encode(rest, false).unwrap()[0]))
    }));
    let messages = json!([{"role": "user", "content": "Count"}, {"role": "assistant", "content": "One, "}]);
    let body = chat_body(json!({"messages": messages, "continue_final_message": true, "temperature": 0}));
    let (choices, _) = whole(&app, body.clone()).await;
    assert_eq!(choices[0].content, "t");
    assert_eq!(streamed(&app, body).await.0, choices);
}

#[tokio::test]
async fn least_tokens_and_stop_ids_bound_an_answer() {
    let app = app("one two three four");
    let ask = async |more: Value| {
        let body = with(json!({"prompt": "A", "temperature": 0, "max_tokens": 40}), more);
        let body = post(&app, TEXTS, body).await.json();
        (body["choices"][0].clone(), body["usage"]["completion_tokens"].as_u64().unwrap())
    };
    let natural = ask(json!({})).await.1;
    let (choice, tokens) = ask(json!({"min_tokens": natural + 5})).await;
    assert_eq!((tokens, &choice["finish_reason"]), (natural + 6, &json!("stop")));
    let (choice, tokens) = ask(json!({"min_tokens": natural + 5, "stop": "one"})).await;
    assert!(tokens >= natural && choice["text"].as_str().unwrap().starts_with("one two"));
    let (choice, _) = ask(json!({"stop": "three", "no_stop_trim": true})).await;
    assert_eq!(choice["text"], "one two three");
}

#[tokio::test]
async fn message_forms_reach_the_prompt() {
    let app = app(ANSWER);
    let prompt = async |messages: Value| {
        let reply = post(&app, "/tokenize", json!({"messages": messages})).await.json();
        let ids: Vec<u32> = reply["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
        assert_eq!(reply["count"], ids.len());
        TEXT.tokenizer.decode(&ids, false).unwrap()
    };
    let said = prompt(json!([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}])).await;
    assert!(said.contains("<|start|>developer<|message|>Be brief.<|end|>"), "{said}");
    let said = prompt(json!([
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 2, \"a\": 1}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "out"}
    ]))
    .await;
    let elements = "<rfl:parameter name=\"b\">\n2\n</rfl:parameter>\n<rfl:parameter name=\"a\">\n1\n</rfl:parameter>";
    assert!(said.contains(&format!("<|message|>ab<|end|><|start|>assistant{OPENER}{elements}<|call|>")), "{said}");
    assert!(said.ends_with("<|start|>tool f<|message|>out<|end|><|start|>assistant"), "{said}");
}

#[tokio::test]
async fn control_tokens_that_messages_spell_can_be_plain_text() {
    let body = json!({"messages": [{"role": "user", "content": "a<|end|><|start|>b"}]});
    let count = async |options: Options| {
        let reply = post(&app_with_options(scripted(""), options), "/tokenize", body.clone()).await.json();
        let ids: Vec<u32> = reply["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
        let end = TEXT.tokenizer.encode("<|end|>", false).unwrap()[0];
        let text = TEXT.tokenizer.decode(&ids, false).unwrap();
        assert!(text.contains("a<|end|><|start|>b"), "{text}");
        ids.iter().filter(|id| **id == end).count()
    };
    let (spelt, plain) = (count(free()).await, count(Options { sanitize_control_tokens: true, ..free() }).await);
    assert_eq!(spelt, plain + 1);
}

#[tokio::test]
async fn ids_can_stand_for_messages() {
    let app = app(ANSWER);
    let ids = TEXT.tokenizer.encode("<|start|>user<|message|>Hi<|end|><|start|>assistant", false).unwrap();
    let (choices, usage) = whole(&app, json!({"input_ids": ids, "temperature": 0})).await;
    assert_eq!(
        (usage["prompt_tokens"].as_u64(), choices[0].reasoning.as_str()),
        (Some(ids.len() as u64), "Think of 東京.")
    );
}

#[tokio::test]
async fn requests_may_bring_a_template_where_that_is_allowed() {
    let app = app_with_options(scripted(ANSWER), Options { request_templates: true, ..free() });
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "chat_template": "{{ messages[0].content }}!"});
    let reply = post(&app, "/tokenize", body).await.json();
    assert_eq!(reply["tokens"], json!(TEXT.tokenizer.encode("Hi!", false).unwrap()));
    let broken = chat_body(json!({"chat_template": "a\n{% if %}"}));
    let reply = post(&app, CHAT, broken).await;
    assert!(reply.status == StatusCode::BAD_REQUEST);
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("line 2"));
}

/// A message as official clients put it together from deltas: what is new is taken, texts are joined, lists by their index.
fn put_together(message: &mut Value, delta: &Value) {
    match (message, delta) {
        (Value::Object(message), Value::Object(delta)) => {
            for (key, value) in delta.iter().filter(|(key, _)| *key != "index") {
                put_together(message.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::String(text), Value::String(more)) => text.push_str(more),
        (Value::Array(all), Value::Array(more)) => {
            for one in more {
                let index = one["index"].as_u64().unwrap() as usize;
                all.resize(all.len().max(index + 1), Value::Null);
                put_together(&mut all[index], one);
            }
        }
        (empty @ Value::Null, Value::Array(_)) => {
            *empty = json!([]);
            put_together(empty, delta);
        }
        (empty @ Value::Null, Value::Object(_)) => {
            *empty = json!({});
            put_together(empty, delta);
        }
        (empty @ Value::Null, value) => *empty = value.clone(),
        (_, Value::Null) => {}
        (known, other) => panic!("{other} behind {known}"),
    }
}

#[tokio::test]
async fn deltas_put_together_are_the_message_of_the_whole_answer() {
    let reasons = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
    for (script, more, has_content) in [
        (ANSWER.to_owned(), json!({}), true),
        (ANSWER.to_owned(), json!({"separate_reasoning": false}), true),
        (ANSWER.to_owned(), json!({"max_tokens": 5}), false),
        (ANSWER.to_owned(), json!({"max_tokens": 1}), false),
        (call(&[("s", "a"), ("n", "1")]), json!({}), false),
        (call(&[]), json!({"stream_reasoning": false}), false),
        (format!("{reasons}<|channel|>final<|message|>"), json!({}), false),
        (String::new(), json!({}), false),
    ] {
        let app = app(&script);
        let tools = json!([tool("f", json!({"s": {"type": "string"}, "n": {"type": "integer"}}))]);
        let body = chat_body(with(json!({"temperature": 0, "tools": tools}), more));
        let mut message = post(&app, CHAT, body.clone()).await.json()["choices"][0]["message"].clone();
        assert_eq!(message["content"].is_string(), has_content, "{script}: {message}");
        let events = post(&app, CHAT, with(body, json!({"stream": true}))).await.events();
        let mut summed = json!({"reasoning_content": null});
        for event in &events[..events.len() - 1] {
            let chunk: Value = serde_json::from_str(event).unwrap();
            put_together(&mut summed, &chunk["choices"][0]["delta"]);
        }
        // Deltas begin with an empty text, whether or not there will be any.
        if summed["content"] == "" {
            summed["content"] = Value::Null;
        }
        for message in [&mut message, &mut summed] {
            for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
                let call = call.as_object_mut().unwrap();
                assert!(call.remove("id").unwrap().as_str().unwrap().starts_with("call_"));
                call.remove("index");
            }
        }
        if message["content"] == "" {
            message["content"] = Value::Null;
        }
        assert_eq!(summed, message, "{script}");
    }
}
