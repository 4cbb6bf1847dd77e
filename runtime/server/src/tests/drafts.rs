//! Drafts under the whole server: several tokens a step reach clients as if they had come one after the other.

use super::held::rambling;
use super::reports::{same, same_pieces};
use super::*;
use engine::DraftLimits;

/// The same model without a drafter, and with one that is right in so many of a hundred slots.
fn apps(model: impl Fn() -> engine::toy::Model, right: usize, options: impl Fn() -> Options) -> [Arc<App>; 2] {
    [false, true].map(|drafts| {
        let facts = engine::ExecutorFacts { max_wanted: 64, ..facts(VOCAB, 16, 64, 64) };
        let toy = Toy::new(facts, model());
        let toy = if drafts { toy.with_drafter(model(), 8, right, 4) } else { toy };
        let draft = DraftLimits::default();
        let limits =
            Limits { keeps_prefixes: false, context_tokens: Some(512), running: 4, draft, ..Limits::default() };
        let service = Service::start(Engine::new(toy, limits).unwrap()).unwrap();
        Arc::new(App::with_options(service, TEXT.clone(), "toy".into(), options()))
    })
}

/// What both say to a chat, whole and in pieces, is the same; on the other protocol too, where it has all of the fields.
async fn both(apps: &[Arc<App>; 2], body: Value) -> (Choice, Value) {
    let [alone, with] = apps;
    let shared = ["model", "messages", "temperature", "max_tokens", "stop", "tools"];
    let told = if body.as_object().unwrap().keys().all(|key| shared.contains(&&**key)) {
        (same(alone, body.clone()).await, same(with, body.clone()).await)
    } else {
        (same_pieces(alone, body.clone()).await, same_pieces(with, body.clone()).await)
    };
    assert_eq!(told.0, told.1, "{body}");
    told.0
}

/// Whatever is said token by token: log-probabilities, stops over the borders of tokens, minimum and most tokens, penalties.
#[tokio::test]
async fn chats_are_told_the_same() {
    for right in [0, 70, 100] {
        let apps = apps(|| scripted(ANSWER), right, free);
        for more in [
            json!({}),
            json!({"logprobs": true, "top_logprobs": 3}),
            json!({"stop": ["done"]}),
            json!({"stop": ["👩‍👧, do"], "no_stop_trim": true}),
            json!({"max_tokens": 5}),
            json!({"max_tokens": 40, "min_tokens": 38}),
            json!({"frequency_penalty": 1.5, "presence_penalty": 0.5, "logit_bias": {"300": 5}, "max_tokens": 60}),
            json!({"ignore_eos": true, "max_tokens": 90}),
        ] {
            both(&apps, with(chat_body(json!({"temperature": 0})), more)).await;
        }
    }
    let apps = apps(|| scripted(&call(&[("s", "a \"quoted\" line\nand 東京"), ("n", "12")])), 90, free);
    let tools = json!([tool("f", json!({"s": {"type": "string"}, "n": {"type": "integer"}}))]);
    let (choice, _) = both(&apps, chat_body(json!({"temperature": 0, "tools": tools}))).await;
    assert_eq!((choice.calls.len(), choice.finish.as_str()), (1, "tool_calls"));
}

/// A grammar that is done inside a run, and one that refuses drafts.
#[tokio::test]
async fn grammars_hold_inside_runs() {
    let (schema, validator) = document();
    for right in [0, 60, 100] {
        let apps = apps(rambling, right, Options::default);
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": true}});
        let body = chat_body(json!({"temperature": 0, "max_tokens": 400, "response_format": format}));
        let (choice, _) = both(&apps, body).await;
        if choice.finish == "stop" {
            assert!(validator.is_valid(&serde_json::from_str(&choice.content).unwrap()), "{choice:?}");
        }
        both(&apps, chat_body(json!({"temperature": 0, "max_tokens": 120, "regex": "(ab|cd){3,9}"}))).await;
        // Drawn tokens are others, and no less legal.
        for seed in 0..5 {
            let body = chat_body(json!({"temperature": 1, "seed": seed, "max_tokens": 60, "regex": "[a-f]{1,6}x"}));
            let choice = whole(&apps[1], body).await.0.remove(0);
            let text = choice.content.trim_end_matches('x');
            assert!(
                choice.finish == "length" || text.len() + 1 == choice.content.len() && text.len() <= 6,
                "{choice:?}"
            );
        }
    }
}

/// The metrics name what became of drafts, and are silent without a drafter.
#[tokio::test]
async fn metrics_count_drafts() {
    let [alone, with] = apps(|| scripted(ANSWER), 100, free);
    for app in [&alone, &with] {
        whole(app, chat_body(json!({"temperature": 0}))).await;
    }
    let page = |reply: Reply| String::from_utf8(reply.body).unwrap();
    assert!(!page(get(&alone, "/metrics").await).contains("spec_"));
    let page = page(get(&with, "/metrics").await);
    let value = |name: &str| -> f64 {
        let line = page.lines().find(|l| !l.starts_with('#') && l.split('{').next().is_some_and(|n| n.ends_with(name)));
        line.unwrap_or_else(|| panic!("{name} in {page}")).rsplit(' ').next().unwrap().parse().unwrap()
    };
    let (blocks, committed) = (value("spec_verify_calls_total"), value("spec_committed_tokens_total"));
    assert!(blocks > 0.0 && value("spec_draft_steps_total") >= blocks);
    assert_eq!(value("spec_accept_length"), committed / blocks);
    assert_eq!(value("spec_accept_rate"), value("spec_accepted_tokens_total") / value("spec_draft_tokens_total"));
    // The drafter is always right, so all that is reached stands.
    assert_eq!(value("spec_reached_drafts_total"), value("spec_accepted_drafts_total"));
    assert!(value("spec_reached_drafts_total") > 0.0);
}

/// A request that asks for it finds what became of its drafts, whole and in a stream, of all choices together; the protocols
/// whose usage has no place for it refuse.
#[tokio::test]
async fn usage_tells_drafts_on_request() {
    let [alone, with_drafts] = apps(|| scripted(ANSWER), 60, free);
    let asking = json!({"temperature": 0, "return_prediction_tokens": true});
    let told = |usage: &Value| {
        let number = |key: &str| usage["completion_tokens_details"][key].as_u64();
        (number("accepted_prediction_tokens"), number("rejected_prediction_tokens"))
    };
    let (_, usage) = whole(&with_drafts, chat_body(asking.clone())).await;
    let (accepted, rejected) = told(&usage);
    assert!(accepted > Some(0) && rejected > Some(0), "{usage}");
    let (_, streamed) = streamed(&with_drafts, chat_body(asking.clone())).await;
    assert_eq!(streamed, usage);
    let (_, twice) = whole(&with_drafts, with(chat_body(asking.clone()), json!({"n": 2}))).await;
    assert_eq!(told(&twice), (accepted.map(|n| 2 * n), rejected.map(|n| 2 * n)));
    let (_, usage) = whole(&alone, chat_body(asking.clone())).await;
    assert_eq!(told(&usage), (Some(0), Some(0)));
    let (_, usage) = whole(&with_drafts, chat_body(json!({"temperature": 0}))).await;
    assert_eq!(told(&usage), (None, None));

    let text = json!({"prompt": "Tell me", "temperature": 0, "max_tokens": 30, "return_prediction_tokens": true});
    let usage = post(&with_drafts, "/v1/completions", text).await.json()["usage"].clone();
    assert!(told(&usage).0 > Some(0), "{usage}");
    for (path, body) in [
        ("/v1/responses", json!({"input": "Tell me"})),
        ("/v1/messages", json!({"messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 9})),
    ] {
        let reply = post(&with_drafts, path, with(body, json!({"return_prediction_tokens": true}))).await;
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        assert!(reply.status == StatusCode::BAD_REQUEST && text.contains("return_prediction_tokens"), "{text}");
    }
}

/// `/health` and `/server_info` say what the drafter does, where the model has one.
#[tokio::test]
async fn health_tells_of_the_drafter() {
    let told = json!({"runs": true, "blocks": [4, 8]});
    let options = || Options { drafts: json!({"runs": true, "blocks": [4, 8]}), ..free() };
    let [_, app] = apps(|| scripted(ANSWER), 100, options);
    assert_eq!(get(&app, "/health").await.json(), json!({"status": "ok", "drafts": told}));
    assert_eq!(get(&app, "/server_info").await.json()["drafts"], told);
}
