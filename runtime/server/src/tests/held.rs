//! Answers that a grammar holds: whatever the model would rather say, calls are calls and documents follow their schema.

use super::reports::same_stream;
use super::*;

/// Any token at random, with a liking for control tokens, which end what is open.
pub(super) fn rambling() -> engine::toy::Model {
    let liked: Vec<u32> = ["<|end|>", "<|start|>", "<|channel|>", "<|message|>", "<|call|>", "<|return|>"]
        .iter()
        .map(|token| TEXT.tokenizer.encode(token, false).unwrap()[0])
        .collect();
    Box::new(move |history| {
        let mut logits = engine::toy::hashed(VOCAB, history);
        liked.iter().for_each(|id| logits[*id as usize] += 6.0);
        Ok(logits)
    })
}

fn app() -> Arc<App> {
    app_with_options(rambling(), Options::default())
}

#[tokio::test]
async fn every_turn_reasons_and_then_answers_or_calls() {
    let app = app();
    for seed in 0..20 {
        let (choices, _) = whole(&app, chat_body(json!({"seed": seed, "temperature": 1, "max_tokens": 400}))).await;
        let choice = &choices[0];
        assert!(!choice.reasoning.is_empty() && !choice.reasoning.starts_with('<') && choice.calls.is_empty());
    }
}

#[tokio::test]
async fn a_call_is_made_when_one_is_asked_for() {
    let app = app();
    let point = tool("f", json!({"n": {"type": "integer"}, "on": {"type": "boolean"}}));
    let point = with_required(point, json!(["n"]));
    let other = tool("g", json!({"word": {"enum": ["a", "b"]}}));
    for (choice, most) in [(json!("required"), usize::MAX), (json!({"type": "function", "function": {"name": "g"}}), 1)]
    {
        let mut complete = Vec::new();
        for seed in 0..10 {
            let body = chat_body(json!({
                "seed": seed, "temperature": 1, "max_tokens": 420, "tools": [point, other], "tool_choice": choice,
            }));
            let (choices, _) = whole(&app, body.clone()).await;
            let one = &choices[0];
            same_stream(one, streamed(&app, body.clone()).await.0.remove(0), &body);
            assert!(one.content.is_empty() && one.calls.len() <= most);
            let complete_calls = one.calls.len() - usize::from(one.finish == "length" && !one.calls.is_empty());
            for (name, arguments) in &one.calls[..complete_calls] {
                let tool = [&point, &other].into_iter().find(|tool| tool["function"]["name"] == **name).unwrap();
                let validator = jsonschema::validator_for(&tool["function"]["parameters"]).unwrap();
                let arguments: Value = serde_json::from_str(arguments).unwrap();
                assert!(validator.is_valid(&arguments), "{name}: {arguments}");
                assert!(most > 1 || name == "g");
            }
            if one.finish == "tool_calls" {
                complete.extend(one.calls.iter().map(|(name, _)| name.clone()));
            }
        }
        let seen = if most > 1 { ["f", "g"].as_slice() } else { &["g"] };
        assert!(
            seen.iter().all(|name| complete.iter().any(|other| other == name)),
            "no seed led to a call of each: {complete:?}"
        );
    }
}

fn with_required(mut tool: Value, required: Value) -> Value {
    tool["function"]["parameters"]["required"] = required;
    tool
}

#[tokio::test]
async fn a_document_follows_its_schema() {
    let app = app();
    let (schema, validator) = document();
    let format = json!({"type": "json_schema", "json_schema": {"name": "t", "schema": schema, "strict": true}});
    let mut complete = 0;
    for seed in 0..40 {
        let body = chat_body(json!({"seed": seed, "temperature": 1, "max_tokens": 450, "response_format": format}));
        let (choices, _) = whole(&app, body).await;
        if choices[0].finish == "stop" {
            let document: Value = serde_json::from_str(&choices[0].content).expect(&choices[0].content);
            assert!(validator.is_valid(&document), "{document}");
            complete += 1;
        }
    }
    assert!(complete > 0, "no seed led to a document");
}

#[tokio::test]
async fn texts_can_be_held_too() {
    let app = app();
    let ask = async |more: Value| {
        let body = with(json!({"prompt": "A", "temperature": 1, "seed": 1, "max_tokens": 60}), more);
        post(&app, TEXTS, body).await.json()["choices"][0].clone()
    };
    let choice = ask(json!({"regex": "[ab]{3}-[0-9]{2}"})).await;
    let text = choice["text"].as_str().unwrap();
    assert!(text.len() == 6 && text.as_bytes()[3] == b'-' && choice["finish_reason"] == "stop", "{choice}");
    let choice = ask(json!({"guided_choice": ["yes", "no"]})).await;
    assert!(["yes", "no"].contains(&choice["text"].as_str().unwrap()), "{choice}");
    // Neither ignoring ends nor a least length forces text past the grammar's own end.
    let choice = ask(json!({"regex": "[ab]{3}", "ignore_eos": true, "min_tokens": 40})).await;
    assert_eq!((choice["text"].as_str().map(str::len), &choice["finish_reason"]), (Some(3), &json!("stop")));
}

#[tokio::test]
async fn what_excludes_itself_is_refused() {
    let app = app();
    let tools = json!([tool("f", json!({}))]);
    for more in [
        json!({"tools": [tool("a b", json!({}))]}),
        json!({"regex": "a", "tools": tools, "tool_choice": "required"}),
        json!({"ebnf": "root ::= \"a\"", "tools": tools, "parallel_tool_calls": false}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "integer", "minimum": 2, "maximum": 1}}}}),
    ] {
        let reply = post(&app, CHAT, chat_body(more.clone())).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{more}: {}", String::from_utf8_lossy(&reply.body));
        assert_eq!(reply.json()["error"]["code"], "invalid_grammar", "{more}");
    }
}
