//! Responses: answers as items, whole and streamed, and what a response says again of its request.

use super::weave::*;
use super::*;

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap().strip_prefix("response.").unwrap()).collect()
}

#[tokio::test]
async fn an_answer_is_reasoning_and_a_message() {
    let app = app(ANSWER);
    let whole = both(&app, ask(json!({}))).await;
    assert_eq!(types(&whole), ["reasoning", "message"]);
    let (thought, message) = (&whole["output"][0], &whole["output"][1]);
    assert_eq!(thought["content"], json!([{"type": "reasoning_text", "text": "Think of 東京."}]));
    assert_eq!((&thought["summary"], &thought["status"]), (&json!([]), &json!("completed")));
    assert_eq!(message["content"][0]["text"], "Größe 👩‍👩‍👧, done.");
    assert_eq!((&message["phase"], &message["role"]), (&json!("final_answer"), &json!("assistant")));
    for (key, value) in [
        ("object", json!("response")),
        ("status", json!("completed")),
        ("model", json!("toy")),
        ("error", Value::Null),
        ("incomplete_details", Value::Null),
        ("tools", json!([])),
        ("tool_choice", json!("auto")),
        ("text", json!({"format": {"type": "text"}})),
        ("truncation", json!("disabled")),
        ("store", json!(true)),
        ("temperature", json!(0.0)),
        ("metadata", json!({})),
    ] {
        assert_eq!(whole[key], value, "{key}");
    }
    assert!(whole["id"].as_str().unwrap().starts_with("resp_") && whole["completed_at"].is_u64());
    let tokens = |text: &str| TEXT.tokenizer.encode(text, false).unwrap().len();
    let usage = &whole["usage"];
    assert_eq!(usage["output_tokens"], tokens(ANSWER) + 1);
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], tokens("Think of 東京."));
    let input = post(&app, "/v1/responses/input_tokens", ask(json!({}))).await.json();
    assert_eq!((&input["object"], &input["input_tokens"]), (&json!("response.input_tokens"), &usage["input_tokens"]));
    let sum = usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], sum);
    assert_eq!(usage["input_tokens_details"]["cached_tokens"], 0);
}

#[tokio::test]
async fn events_come_in_their_order() {
    let app = app("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.");
    let told = events(&app, ask(json!({}))).await;
    let mut order = names(&told);
    order.dedup();
    assert_eq!(
        order,
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed"
        ]
    );
    let told = events(&app, ask(json!({"reasoning": {"summary": "auto"}}))).await;
    let mut order = names(&told);
    order.dedup();
    assert_eq!(
        order[2..8],
        [
            "output_item.added",
            "reasoning_summary_part.added",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.done",
            "reasoning_summary_part.done",
            "output_item.done"
        ]
    );
}

#[tokio::test]
async fn reasoning_is_told_as_asked_for() {
    let app = app(ANSWER);
    let whole = both(&app, ask(json!({"reasoning": {"effort": "low", "summary": "detailed"}}))).await;
    let thought = &whole["output"][0];
    assert_eq!(thought["summary"], json!([{"type": "summary_text", "text": "Think of 東京."}]));
    assert!(thought.get("content").is_none());
    assert_eq!(whole["reasoning"], json!({"effort": "low", "summary": "detailed"}));
    let whole = both(&app, ask(json!({"include": ["reasoning.encrypted_content"], "store": false}))).await;
    let sealed = whole["output"][0]["encrypted_content"].as_str().unwrap();
    assert!(!sealed.contains("Think") && whole["store"] == false);
}

#[tokio::test]
async fn a_response_says_its_request_again() {
    let app = app(ANSWER);
    let tool = function("f", json!({}));
    let more = json!({
        "instructions": "Be brief.",
        "max_output_tokens": 100,
        "max_tool_calls": 2,
        "metadata": {"a": "b"},
        "parallel_tool_calls": false,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "service_tier": "auto",
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "tool_choice": "none",
        "tools": [tool],
        "top_p": 0.9,
        "truncation": "auto",
        "user": "u",
    });
    let whole = both(&app, ask(more.clone())).await;
    for (key, value) in more.as_object().unwrap() {
        let expected = if key == "service_tier" { json!("default") } else { value.clone() };
        assert_eq!(whole[key], expected, "{key}");
    }
}

#[tokio::test]
async fn logprobs_belong_to_the_text() {
    let app = app(ANSWER);
    let text = "Größe 👩‍👩‍👧, done.";
    for more in [json!({"top_logprobs": 2}), json!({"include": ["message.output_text.logprobs"]})] {
        let whole = both(&app, ask(more.clone())).await;
        let entries = whole["output"][1]["content"][0]["logprobs"].as_array().unwrap();
        let bytes =
            entries.iter().flat_map(|e| e["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8));
        assert_eq!(String::from_utf8(bytes.collect()).unwrap(), text, "one entry for each token of the text");
        let top = more.get("top_logprobs").map_or(0, |n| n.as_u64().unwrap() as usize);
        assert!(entries.iter().all(|e| e["top_logprobs"].as_array().unwrap().len() == top && e["logprob"].is_number()));
        assert_eq!(whole["top_logprobs"], top);
    }
    let whole = both(&app, ask(json!({}))).await;
    assert_eq!(whole["output"][1]["content"][0]["logprobs"], json!([]));
}

#[tokio::test]
async fn an_answer_follows_its_format() {
    let app = held();
    let (schema, validator) = document();
    let format = json!({"type": "json_schema", "name": "t", "schema": schema, "strict": true});
    let mut complete = 0;
    for seed in 0..8 {
        let more = json!({"seed": seed, "temperature": 1, "max_output_tokens": 440, "text": {"format": format}});
        let whole = both(&app, ask(more)).await;
        assert_eq!(whole["text"]["format"], format);
        if whole["status"] == "completed" {
            let text = whole["output"].as_array().unwrap().last().unwrap()["content"][0]["text"].as_str().unwrap();
            assert!(validator.is_valid(&serde_json::from_str(text).unwrap()), "{text}");
            complete += 1;
        }
    }
    assert!(complete > 0, "no seed led to a document");
}

#[tokio::test]
async fn whatever_the_model_says_both_forms_agree() {
    let tools = json!([
        function("f", json!({"s": {"type": "string"}, "n": {"type": "integer"}})),
        {"type": "custom", "name": "c"},
        {"type": "shell", "environment": {"type": "local"}},
    ]);
    let fields = [json!({}), json!({"tools": tools}), json!({"tools": tools, "tool_choice": "required"})];
    for (app, seeds) in [(held(), 4), (free_rambling(), 12)] {
        for seed in 0..seeds {
            for more in &fields {
                let limit = 20 + seed * 7;
                let body = json!({"seed": seed, "temperature": 1, "max_output_tokens": limit, "top_logprobs": 1});
                let needs = more.get("tool_choice").is_some() && seed % 3 > 0;
                let more = if needs { &fields[1] } else { more };
                both(&app, ask(with(body, more.clone()))).await;
            }
        }
    }
}

/// Any token at random, with a liking for markup, and no grammar that holds it.
fn free_rambling() -> Arc<App> {
    app_with(super::held::rambling())
}

fn held() -> Arc<App> {
    app_with_options(super::held::rambling(), Options::default())
}

#[tokio::test]
async fn random_turns_fold_to_what_is_told_at_once() {
    let pieces = [
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant",
        "<|channel|>final<|message|>",
        OPENER,
        " to=c<|channel|>analysis <|constrain|>xml<|message|>",
        " to=bash<|channel|>analysis <|constrain|>xml<|message|>",
        " to=ns__g<|channel|>analysis <|constrain|>xml<|message|>",
        "<rfl:parameter name=\"s\">\n",
        "<rfl:parameter name=\"input\">\n",
        "<rfl:parameter name=\"command\">\n",
        "\n</rfl:parameter>",
        "<|call|>",
        "some \"text\"\n",
        "東京 👩‍👩‍👧",
        "17",
        "<",
        "|>",
    ];
    let tools = json!([
        function("f", json!({"s": {"type": "string"}})),
        {"type": "custom", "name": "c"},
        {"type": "shell"},
        {"type": "namespace", "name": "ns", "description": "n", "tools": [function("g", json!({}))]},
    ]);
    let mut state = 1_u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let mut seen = std::collections::HashSet::new();
    for _ in 0..70 {
        let mut script = if next(4) > 0 { pieces[0].to_owned() + "Hm." + pieces[1] } else { String::new() };
        script += pieces[2 + next(5)];
        (0..next(12)).for_each(|_| script += pieces[next(pieces.len())]);
        let more = json!({"tools": tools, "max_output_tokens": 1 + next(80)});
        let whole = both(&app(&script), ask(more)).await;
        seen.extend(types(&whole).iter().map(|kind| format!("{kind} {}", whole["status"])));
    }
    for kind in ["reasoning", "message", "function_call", "custom_tool_call", "shell_call"] {
        assert!(seen.iter().any(|one| one.starts_with(kind)), "no {kind} in {seen:?}");
    }
}
