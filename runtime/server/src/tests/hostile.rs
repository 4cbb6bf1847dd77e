//! Random bodies: whatever a client sends, it gets an answer, and never one that blames the server.

use super::blocks::MESSAGES;
use super::*;
use proptest::prelude::*;

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3i64..40).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z<|>{}%\\PC]{0,12}".prop_map(Value::from),
        prop_oneof![
            Just("user"),
            Just("assistant"),
            Just("tool"),
            Just("function"),
            Just("text"),
            Just("none"),
            Just("tool_use"),
            Just("tool_result"),
            Just("thinking"),
        ]
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((key(), inner), 0..5)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

fn key() -> impl Strategy<Value = String> {
    const KEYS: [&str; 61] = [
        "role",
        "content",
        "type",
        "text",
        "function",
        "name",
        "arguments",
        "tool_calls",
        "tool_call_id",
        "parameters",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "stop_token_ids",
        "logit_bias",
        "stream",
        "stream_options",
        "include_usage",
        "tools",
        "tool_choice",
        "chat_template_kwargs",
        "n",
        "ignore_eos",
        "frequency_penalty",
        "repetition_penalty",
        "reasoning_content",
        "documents",
        "max_tokens",
        "5",
        "messages",
        "system",
        "input_schema",
        "input",
        "id",
        "tool_use_id",
        "is_error",
        "thinking",
        "signature",
        "budget_tokens",
        "output_config",
        "format",
        "input",
        "text",
        "tokens",
        "instructions",
        "previous_response_id",
        "include",
        "truncation",
        "background",
        "store",
        "rid",
        "sampling_params",
        "response_format",
        "regex",
        "ebnf",
        "guided_choice",
        "json_schema",
        "structural_tag",
    ];
    prop_oneof![9 => (0..KEYS.len()).prop_map(|i| KEYS[i].to_owned()), 1 => "\\PC{0,8}"]
}

/// A body near enough to a request to get past the first check.
fn body() -> impl Strategy<Value = Value> {
    let messages = prop_oneof![
        3 => Just(json!([{"role": "user", "content": "Hi"}])),
        2 => proptest::collection::vec(value(), 0..3).prop_map(Value::from),
    ];
    let prompt = prop_oneof![Just(json!("Hi")), value()];
    (messages, prompt, proptest::collection::vec((key(), value()), 0..4)).prop_map(|(messages, prompt, more)| {
        let mut body = json!({"messages": messages, "prompt": prompt, "max_tokens": 3});
        body.as_object_mut().unwrap().extend(more);
        body
    })
}

/// A body that asks for an answer in a form, as each route says it.
fn held() -> impl Strategy<Value = Value> {
    (value(), value(), proptest::collection::vec((key(), value()), 0..2)).prop_map(|(spec, prompt, more)| {
        let mut body = json!({
            "messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "input": prompt, "max_tokens": 3,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": spec}},
            "tools": [{"type": "function", "name": "f", "function": {"name": "f", "parameters": spec}, "parameters": spec}],
        });
        body.as_object_mut().unwrap().extend(more);
        body
    })
}

fn check(app: &Arc<App>, runtime: &tokio::runtime::Runtime, body: &[u8]) {
    const PATHS: [&str; 10] = [
        CHAT,
        TEXTS,
        MESSAGES,
        "/v1/messages/count_tokens",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/generate",
        "/tokenize",
        "/detokenize",
        "/abort_request",
    ];
    for path in PATHS {
        let reply = runtime.block_on(post_bytes(app, path, body.to_vec()));
        let said = String::from_utf8_lossy(&reply.body);
        assert!(!reply.status.is_server_error(), "{path} {}: {said}", String::from_utf8_lossy(body));
        if !reply.status.is_success() {
            assert!(reply.json()["error"]["message"].is_string(), "{said}");
        }
    }
    assert_eq!(runtime.block_on(get(app, "/health")).status, StatusCode::OK);
}

#[test]
fn no_body_breaks_the_server() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let app = app("ok");
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(7),
        ..ProptestConfig::with_cases(400)
    });
    runner
        .run(&body(), |body| {
            check(&app, &runtime, body.to_string().as_bytes());
            Ok(())
        })
        .unwrap();
    let held_app = app_with_options(scripted("ok"), Options::default());
    let mut few = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(8),
        ..ProptestConfig::with_cases(60)
    });
    few.run(&prop_oneof![body(), held()], |body| {
        check(&held_app, &runtime, body.to_string().as_bytes());
        Ok(())
    })
    .unwrap();
    let bytes = proptest::collection::vec(any::<u8>(), 0..60);
    runner
        .run(&bytes, |bytes| {
            check(&app, &runtime, &bytes);
            Ok(())
        })
        .unwrap();
    // A request cut short anywhere, or with one byte changed.
    let whole = chat_body(json!({"max_tokens": 2, "stop": ["é"], "logit_bias": {"5": 1.5}})).to_string().into_bytes();
    runner
        .run(&(0..whole.len(), any::<u8>(), any::<bool>()), |(at, byte, cut)| {
            let mut bytes = whole.clone();
            if cut {
                bytes.truncate(at)
            } else {
                bytes[at] = byte
            }
            check(&app, &runtime, &bytes);
            Ok(())
        })
        .unwrap();
}
