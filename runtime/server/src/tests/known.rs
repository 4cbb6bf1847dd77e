//! One rule for all routes: a field that would change the answer is applied or refused by its name. The table of all fields is
//! walked on every route, and is complete.

use super::weave::RESPONSES as RESPONSES_PATH;
use super::*;
use crate::known::{
    CHAT as CHATS, How, MESSAGES, NATIVE, RESPONSES, Routes, SAMPLING, TEXTS as COMPLETIONS, how, rows,
};
use std::collections::BTreeSet;

/// A place, its path, a request that is right there, and what describes it.
fn places() -> Vec<(Routes, &'static str, Value, &'static str)> {
    let one = json!({"temperature": 0});
    vec![
        (CHATS, CHAT, chat_body(json!({"max_tokens": 1})), "ChatRequest"),
        (COMPLETIONS, TEXTS, json!({"prompt": "A", "max_tokens": 1}), "TextRequest"),
        (MESSAGES, blocks::MESSAGES, blocks::body(json!({"max_tokens": 1})), "MessagesRequest"),
        (RESPONSES, RESPONSES_PATH, weave::ask(json!({"max_output_tokens": 1})), "ResponseRequest"),
        (NATIVE, "/generate", json!({"text": "A", "sampling_params": one}), "GenerateRequest"),
        (SAMPLING, "/generate", json!({"text": "A", "sampling_params": {"max_new_tokens": 1}}), "GenerateSampling"),
    ]
}

/// Values of which each field takes some amiss, and none is its usual one.
fn strange() -> [Value; 6] {
    [json!({"no": 1}), json!([{"no": 1}]), json!("\u{0}no"), json!(-7.5), json!(true), json!(false)]
}

fn names() -> BTreeSet<&'static str> {
    rows().map(|row| row.name).collect()
}

/// The request with a field set to a value, and what an error calls the field.
fn asking(on: Routes, body: &Value, name: &str, value: &Value) -> (Value, String) {
    let mut body = body.clone();
    let (within, called) = match on == SAMPLING {
        true => (&mut body["sampling_params"], format!("sampling_params.{name}")),
        false => (&mut body, name.to_owned()),
    };
    match name.split_once('.') {
        None => within[name] = value.clone(),
        Some((outer, inner)) => within[outer] = json!({inner: value}),
    }
    // One prompt comes in one way.
    if on == NATIVE && name == "input_ids" {
        body.as_object_mut().unwrap().remove("text");
    }
    (body, called)
}

/// Whether an error names a field: Messages does so in its message alone.
fn names_it(reply: &Reply, called: &str) -> bool {
    let body = reply.json();
    let said = body["error"]["message"].as_str().unwrap();
    body["error"]["param"].as_str().map_or(said.contains(called), |param| param.starts_with(called))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_is_applied_idle_or_refused_on_every_route() {
    let app = app("");
    let (mut walked, mut wrong) = ([0; 3], Vec::new());
    for (on, path, body, _) in places() {
        let usual = post(&app, path, body.clone()).await;
        assert_eq!(usual.status, StatusCode::OK, "{path} {}", String::from_utf8_lossy(&usual.body));
        for name in names() {
            let Some(how) = how(name, on) else {
                // A field inside another may be known where that one is.
                assert!(name.contains('.'), "{name} has no row for {path}");
                continue;
            };
            let (mut refused, mut taken) = (0, 0);
            for value in strange() {
                // That one asks for another message.
                let is_other = name == "continue_final_message" && value == true;
                if is_other || matches!(how, How::Refused(is_harmless, _) if is_harmless(&value)) {
                    continue;
                }
                let (asked, called) = asking(on, &body, name, &value);
                let reply = post(&app, path, asked).await;
                if reply.status == StatusCode::OK {
                    taken += 1;
                    continue;
                }
                let said = String::from_utf8_lossy(&reply.body).into_owned();
                let is_unsupported = said.contains("which this server does not support");
                let is_right = is_unsupported || !matches!(how, How::Refused(..));
                if !(reply.status.is_client_error() && names_it(&reply, &called) && is_right) {
                    wrong.push(format!("{path} {called} {value}: {said}"));
                }
                refused += 1;
            }
            let (kind, is_so) = match how {
                How::Applied => (0, refused > 0),
                How::Idle => (1, taken > 0),
                How::Refused(..) => (2, refused > 0 && taken == 0),
            };
            if !is_so {
                wrong.push(format!("{path}: `{name}` is {how:?}: {refused} values were refused and {taken} taken"));
            }
            walked[kind] += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // So many pairs of a field and a place at least, of each kind.
    let least = [150, 40, 400];
    assert!(walked.iter().zip(least).all(|(found, least)| *found >= least), "{walked:?}");
}

/// What one protocol describes, all others know; and what is applied is described.
#[test]
fn the_table_is_complete() {
    let described: Value = serde_json::from_str(include_str!("../openapi.json")).unwrap();
    let properties = |schema: &str| {
        let properties = described["components"]["schemas"][schema]["properties"].as_object().unwrap();
        properties.keys().cloned().collect::<BTreeSet<String>>()
    };
    let all: Vec<(Routes, &str, BTreeSet<String>)> =
        places().into_iter().map(|(on, _, _, schema)| (on, schema, properties(schema))).collect();
    for (_, schema, fields) in &all {
        for field in fields {
            assert!(names().contains(field.as_str()), "{schema} describes `{field}`, which has no row");
        }
    }
    for (on, schema, fields) in &all {
        let applied = names().into_iter().filter(|name| matches!(how(name, *on), Some(How::Applied)));
        let applied: BTreeSet<String> = applied.map(str::to_owned).collect();
        assert_eq!(&applied, fields, "{schema}");
    }
}

#[tokio::test]
async fn values_that_change_nothing_are_taken_everywhere() {
    let app = app("");
    let usual = json!({
        "n": 1, "best_of": 1, "echo": false, "logprobs": null, "stop_regex": [], "use_beam_search": false, "bad_words": [],
        "length_penalty": 1.0, "thinking": {"type": "enabled"}, "include_reasoning": true, "suffix": "", "tools": [],
        "function_call": "none", "modalities": ["text"], "return_token_ids": false, "extra_body": {}, "vllm_xargs": {},
        "spaces_between_special_tokens": true, "guided_decoding_backend": "xgrammar", "unknown": {"a": 1},
    });
    for (_, path, body, _) in places() {
        let body = match path == blocks::MESSAGES {
            // There it says how much.
            true => with(with(body, usual.clone()), json!({"thinking": null})),
            false => with(body, usual.clone()),
        };
        let reply = post(&app, path, body).await;
        assert_eq!(reply.status, StatusCode::OK, "{path} {}", String::from_utf8_lossy(&reply.body));
    }
}

/// What stands inside a field that says what an answer looks like is held or refused as well.
#[tokio::test]
async fn nothing_inside_a_format_is_passed_over() {
    let app = app_with_options(scripted("5"), Options::default());
    let body = |more: Value| with(json!({"prompt": "A", "max_tokens": 20, "temperature": 0}), more);
    for (format, param) in [
        (json!({"structured_outputs": {"foo": 1}}), "structured_outputs.foo"),
        (
            json!({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}),
            "structured_outputs.whitespace_pattern",
        ),
        (json!({"structured_outputs": {"regex": 5}}), "structured_outputs.regex"),
        (json!({"structured_outputs": {"json_object": "yes"}}), "structured_outputs.json_object"),
        (json!({"response_format": {"type": "text", "schema": {}}}), "response_format.schema"),
        (json!({"response_format": {"type": "json_object", "schema": {"type": 5}}}), "response_format.schema"),
        (json!({"stream_options": {"include_usage": "x"}}), "stream_options.include_usage"),
    ] {
        let reply = post(&app, TEXTS, body(format.clone())).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{format}");
        assert_eq!(reply.json()["error"]["param"], param, "{format}");
        assert!(reply.json()["error"]["message"].as_str().unwrap().contains(param), "{format}");
    }
    // Other servers hold a schema beside `json_object`.
    let schema = json!({"response_format": {"type": "json_object", "schema": {"const": 1}}});
    let held = post(&app, TEXTS, body(schema)).await.json();
    assert_eq!(held["choices"][0]["text"], "1", "{held}");
    let reply = post(&app, CHAT, chat_body(json!({"reasoning": {"enabled": "x"}}))).await.json();
    assert_eq!(reply["error"]["param"], "reasoning.enabled");
}

#[tokio::test]
async fn a_whole_number_may_be_written_as_any_number_can() {
    let app = app("");
    for text in ["3", "3.0", "3e0", "0.3e1"] {
        let body = format!("{{\"prompt\": [7.0, 8], \"max_tokens\": {text}, \"ignore_eos\": true, \"top_k\": 1e0}}");
        let reply = post_bytes(&app, TEXTS, body).await.json();
        assert_eq!(reply["usage"]["completion_tokens"], 3, "{text}: {reply}");
    }
    let reply = post_bytes(&app, TEXTS, "{\"prompt\": \"A\", \"max_tokens\": 3.5}").await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("max_tokens")));
}

#[tokio::test]
async fn what_generate_says_beside_its_sampling_counts() {
    let app = app("");
    for (body, param) in [
        (json!({"text": "A", "priority": "high"}), "priority"),
        (json!({"text": "A", "cache_salt": ""}), "cache_salt"),
        (json!({"text": "A", "sampling_params": {"min_new_tokens": "x"}}), "sampling_params.min_new_tokens"),
        (
            json!({"text": "A", "sampling_params": {"max_new_tokens": 5, "min_new_tokens": 6}}),
            "sampling_params.min_new_tokens",
        ),
        (json!({"text": "A", "temperature": 0}), "temperature"),
    ] {
        let reply = post(&app, "/generate", body.clone()).await.json();
        assert_eq!(reply["error"]["param"], param, "{body}: {reply}");
    }
    let keeping = {
        let toy = Toy::new(facts(VOCAB, 16, 64, 64), Box::new(|_| Ok(certain(VOCAB, 300))));
        let limits = Limits { context_tokens: Some(512), running: 4, ..Limits::default() };
        let service = Service::start(Engine::new(toy, limits).unwrap()).unwrap();
        Arc::new(App::with_options(service, TEXT.clone(), "toy".into(), free()))
    };
    let ids: Vec<usize> = (0..40).collect();
    for (salt, cached) in [("a", 0), ("b", 0), ("a", 32)] {
        let body = json!({"input_ids": ids, "cache_salt": salt, "sampling_params": {"max_new_tokens": 1}});
        let reply = post(&keeping, "/generate", body).await.json();
        assert_eq!(reply["meta_info"]["cached_tokens"], cached, "{salt}: {reply}");
    }
}
