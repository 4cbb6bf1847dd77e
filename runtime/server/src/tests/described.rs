//! What is answered is what `openapi.json` says, to the last key: whole answers, events, errors; and requests are described.

use super::weave::{RESPONSES, ask, events, function};
use super::*;
use crate::known::{self, How, how};
use std::sync::LazyLock;

static DESCRIBED: LazyLock<Value> = LazyLock::new(|| serde_json::from_str(include_str!("../openapi.json")).unwrap());

/// The judge of everything that has this schema.
fn schema(name: &str) -> jsonschema::Validator {
    assert!(DESCRIBED["components"]["schemas"].get(name).is_some(), "no schema `{name}`");
    let reference = format!("#/components/schemas/{name}");
    jsonschema::validator_for(&json!({"$ref": reference, "components": DESCRIBED["components"]})).unwrap()
}

fn check(schema: &jsonschema::Validator, value: &Value) {
    let wrong: Vec<String> = schema.iter_errors(value).map(|error| error.to_string()).collect();
    assert!(wrong.is_empty(), "{wrong:?}: {value}");
}

/// Turns of all kinds, and what asks for them.
fn turns() -> Vec<(String, Value)> {
    let both = format!("{}<|end|><|start|>assistant{OPENER}<|call|>", ANSWER.replace(", done.", ""));
    vec![(ANSWER.to_owned(), json!({})), (call(&[("s", "a"), ("n", "1")]), json!({})), (both, json!({"limit": 9}))]
}

#[tokio::test]
async fn chats_and_texts_are_as_described() {
    let (whole, chunk) = (schema("ChatAnswer"), schema("ChatChunk"));
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    for (script, more) in turns() {
        let app = app(&script);
        let tools = json!([tool("f", json!({"s": {"type": "string"}}))]);
        let body = chat_body(
            json!({"temperature": 0, "logprobs": true, "top_logprobs": 1, "tools": tools, "n": 2, "max_tokens": more["limit"]}),
        );
        check(&whole, &post(&app, CHAT, body.clone()).await.json());
        let events = post(&app, CHAT, with(body, options.clone())).await.events();
        assert_eq!(events.last().unwrap(), "[DONE]");
        events[..events.len() - 1].iter().for_each(|event| check(&chunk, &serde_json::from_str(event).unwrap()));
        let body = json!({"prompt": "A", "temperature": 0, "logprobs": 1, "echo": true, "max_tokens": 4});
        check(&schema("TextAnswer"), &post(&app, TEXTS, body.clone()).await.json());
        let events = post(&app, TEXTS, with(body, options.clone())).await.events();
        let chunk = schema("TextChunk");
        events[..events.len() - 1].iter().for_each(|event| check(&chunk, &serde_json::from_str(event).unwrap()));
    }
}

#[tokio::test]
async fn messages_are_as_described() {
    let (whole, event) = (schema("Message"), schema("MessagesEvent"));
    for (script, more) in turns() {
        let app = app(&script);
        let tools = json!([{"name": "f", "input_schema": {"type": "object"}}]);
        let limit = more["limit"].as_u64().unwrap_or(250);
        let body = blocks::body(json!({"temperature": 0, "tools": tools, "max_tokens": limit}));
        check(&whole, &post(&app, blocks::MESSAGES, body.clone()).await.json());
        let reply = post(&app, blocks::MESSAGES, with(body.clone(), json!({"stream": true}))).await;
        blocks::events(&reply).iter().for_each(|one| check(&event, one));
        let counted = post(&app, "/v1/messages/count_tokens", body).await.json();
        check(&schema("Count"), &counted);
    }
    let failing = app_with(failing_behind("of"));
    let reply = post(&failing, blocks::MESSAGES, blocks::body(json!({"temperature": 0, "stream": true}))).await;
    blocks::events(&reply).iter().for_each(|one| check(&event, one));
}

#[tokio::test]
async fn responses_are_as_described() {
    let (whole, event) = (schema("Response"), schema("ResponseEvent"));
    let tools =
        json!([function("f", json!({"s": {"type": "string"}})), {"type": "custom", "name": "c"}, {"type": "shell"}]);
    let mut scripts = turns();
    for (name, key) in [("c", "input"), ("bash", "command")] {
        scripts.push((call(&[(key, "x")]).replace("to=f", &format!("to={name}")), json!({})));
    }
    for (script, more) in scripts {
        let app = app(&script);
        for summary in [Value::Null, json!("auto")] {
            let body = ask(json!({
                "tools": tools, "top_logprobs": 1, "max_output_tokens": more["limit"], "reasoning": {"summary": summary},
                "include": ["reasoning.encrypted_content"],
            }));
            let made = post(&app, RESPONSES, body.clone()).await.json();
            check(&whole, &made);
            events(&app, body).await.iter().for_each(|one| check(&event, one));
            let path = format!("{RESPONSES}/{}", made["id"].as_str().unwrap());
            check(&whole, &get(&app, &path).await.json());
            check(&schema("InputItems"), &get(&app, &format!("{path}/input_items")).await.json());
            let deleted = send(&app, Request::delete(&path).body(Body::empty()).unwrap()).await;
            check(&schema("DeletedResponse"), &deleted.json());
        }
    }
    events(&app_with(failing_behind("of")), ask(json!({}))).await.iter().for_each(|one| check(&event, one));
}

#[tokio::test]
async fn models_and_errors_are_as_described() {
    let app = app_with_options(scripted("one"), Options { admin_key: Some("admin".into()), ..free() });
    check(&schema("Models"), &get(&app, "/v1/models").await.json());
    check(&schema("Model"), &get(&app, "/v1/models/toy").await.json());
    check(&schema("MessagesModels"), &get_as_anthropic(&app, "/v1/models").await.json());
    check(&schema("MessagesModels"), &get_as_anthropic(&app, "/v1/models?after_id=toy").await.json());
    check(&schema("MessagesModel"), &get_as_anthropic(&app, "/v1/models/toy").await.json());
    check(&schema("MessagesError"), &get_as_anthropic(&app, "/v1/models/other").await.json());
    check(&schema("Tokens"), &post(&app, "/tokenize", json!({"prompt": "a b"})).await.json());
    check(&schema("Text"), &post(&app, "/detokenize", json!({"tokens": [5]})).await.json());
    check(&schema("InputTokens"), &post(&app, "/v1/responses/input_tokens", ask(json!({}))).await.json());
    let native = schema("GenerateAnswer");
    let scored = json!({"text": "A", "return_logprob": true, "top_logprobs_num": 1, "sampling_params": {"n": 2}});
    check(&native, &post(&app, "/generate", json!({"text": "A"})).await.json());
    let several = post(&app, "/generate", scored.clone()).await.json();
    several.as_array().unwrap().iter().for_each(|one| check(&native, one));
    let events = post(&app, "/generate", with(scored, json!({"stream": true, "stream_output": true}))).await.events();
    assert!(events.len() > 2);
    events[..events.len() - 1].iter().for_each(|event| check(&native, &serde_json::from_str(event).unwrap()));
    check(&schema("GenerateAnswers"), &post(&app, "/generate", json!({"text": ["A"]})).await.json());
    for (name, paths) in [
        ("Health", &["/health", "/ping", "/ready"][..]),
        ("TokenHealth", &["/health_generate"]),
        ("ModelInfo", &["/model_info", "/get_model_info"]),
        ("ServerInfo", &["/server_info", "/get_server_info"]),
        ("Description", &["/openapi.json"]),
    ] {
        for path in paths {
            check(&schema(name), &get(&app, path).await.json());
        }
    }
    let admin = Request::post("/flush_cache").header("x-api-key", "admin").body(Body::empty()).unwrap();
    check(&schema("Flushed"), &send(&app, admin).await.json());
    let (error, own) = (schema("Error"), schema("MessagesError"));
    // Neither a name that is no text nor one as long as a body comes back as something else.
    for path in ["/v1/responses/%FF", "/v1/models/%FF", "/v1/responses/%FF/input_items"] {
        let reply = get(&app, path).await;
        assert_eq!(reply.status, StatusCode::NOT_FOUND);
        check(&error, &reply.json());
    }
    let long = "x".repeat(100_000);
    for (path, body) in [
        (CHAT, chat_body(json!({"model": long}))),
        (CHAT, chat_body(json!({"tools": [tool("f", json!({"a": {"type": vec![long.clone()]}}))]}))),
        (RESPONSES, ask(json!({"previous_response_id": long}))),
        (blocks::MESSAGES, blocks::body(json!({"model": long}))),
    ] {
        let reply = post(&app, path, body).await;
        assert!(reply.status.is_client_error() && reply.body.len() < 10_000, "{} bytes", reply.body.len());
    }
    for path in [
        CHAT,
        TEXTS,
        RESPONSES,
        blocks::MESSAGES,
        "/v1/messages/count_tokens",
        "/generate",
        "/tokenize",
        "/abort_request",
        "/no/such",
    ] {
        for body in [
            "{",
            "[]",
            "{\"model\":\"other\"}",
            "{\"messages\":5,\"input\":5,\"prompt\":5,\"text\":5,\"max_tokens\":0}",
        ] {
            let reply = post_bytes(&app, path, body).await;
            assert!(reply.status.is_client_error(), "{path} {body}");
            check(if path.starts_with(blocks::MESSAGES) { &own } else { &error }, &reply.json());
        }
    }
}

#[tokio::test]
async fn every_answer_has_a_name_of_its_own() {
    let app = app("one");
    let mut names = std::collections::HashSet::new();
    let paths = [CHAT, RESPONSES, blocks::MESSAGES, "/v1/models", "/health", "/no/such"];
    for path in paths {
        let request = Request::post(path).header("origin", "http://page.example").body(Body::from("{}")).unwrap();
        let response = router(app.clone()).oneshot(request).await.unwrap();
        let header = if path == blocks::MESSAGES { "request-id" } else { "x-request-id" };
        let name = response.headers()[header].to_str().unwrap().to_owned();
        assert!(name.starts_with("req_"), "{name}");
        // A page may read it.
        let exposed = response.headers()["access-control-expose-headers"].to_str().unwrap();
        assert!(exposed.split(',').any(|one| one.trim() == header), "{exposed}");
        names.insert(name);
    }
    assert_eq!(names.len(), paths.len());
}

/// Every field that a protocol reads from the top of its request is described there.
#[test]
fn what_requests_may_say_is_described() {
    let (params, format) = (include_str!("../params.rs"), include_str!("../format.rs"));
    for (name, on, sources) in [
        (
            "ChatRequest",
            known::CHAT,
            &[include_str!("../chat/request.rs"), include_str!("../chat/spell.rs"), params, format][..],
        ),
        (
            "MessagesRequest",
            known::MESSAGES,
            &[include_str!("../messages/request.rs"), include_str!("../messages/thinking.rs"), params],
        ),
        ("ResponseRequest", known::RESPONSES, &[include_str!("../responses/request.rs"), params, format]),
        ("TextRequest", known::TEXTS, &[include_str!("../completions.rs"), params, format]),
    ] {
        let described = DESCRIBED["components"]["schemas"][name]["properties"].as_object().unwrap();
        let mut count = 0;
        for source in sources {
            // What is read of an object inside, and what only one route asks the shared readers for.
            let source = source.split("fn structured(").next().unwrap();
            for rest in ["boolean", "string", "object", "list", "number", "whole", "strings", "get"]
                .iter()
                .flat_map(|kind| source.split(&format!("fields.{kind}(\"")).skip(1).collect::<Vec<_>>())
            {
                let field = rest.split('"').next().unwrap();
                // What a reader that is shared would read, and this route refuses or passes over, needs no description.
                let how = how(field, on).unwrap_or_else(|| panic!("{name} reads `{field}`, which has no row"));
                let elsewhere = !matches!(how, How::Applied);
                assert!(described.contains_key(field) || elsewhere, "{name} reads `{field}`");
                count += 1;
            }
        }
        assert!(count > 15, "{name}: {count} fields found");
    }
}

/// Whatever is answered in JSON has a schema of its own that admits no key besides.
/// Parts of answers that may be anything: what the model or a request has said, items that are one of many, and this description.
const ANYTHING: [&str; 8] = [
    "ContentBlock.input",
    "Description.components",
    "Description.info",
    "Description.paths",
    "InputItems.data[]",
    "OutputText.annotations[]",
    "Response.text",
    "Response.tools[]",
];

/// Places in a schema that may be anything.
fn open(schema: &Value, at: &str, found: &mut Vec<String>) {
    if schema == &json!({}) || schema["type"] == "object" && schema.get("additionalProperties").is_none() {
        found.push(at.to_owned());
    }
    for (name, inside) in schema["properties"].as_object().into_iter().flatten() {
        open(inside, &format!("{at}.{name}"), found);
    }
    for key in ["items", "additionalProperties"] {
        if schema[key].is_object() {
            open(&schema[key], &format!("{at}[]"), found);
        }
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        schema[key].as_array().into_iter().flatten().for_each(|one| open(one, at, found));
    }
}

/// Names of the schemas that a schema refers to, with those that they refer to.
fn referred(schema: &Value, names: &mut std::collections::BTreeSet<String>) {
    match schema {
        Value::Object(map) => {
            if let Some(name) = map.get("$ref").and_then(Value::as_str) {
                let name = name.strip_prefix("#/components/schemas/").unwrap_or(name);
                if names.insert(name.to_owned()) {
                    referred(&DESCRIBED["components"]["schemas"][name], names);
                }
            }
            map.values().for_each(|inside| referred(inside, names));
        }
        Value::Array(all) => all.iter().for_each(|inside| referred(inside, names)),
        _ => {}
    }
}

#[test]
fn no_answer_is_left_open() {
    let (mut count, mut names) = (0, std::collections::BTreeSet::new());
    for (path, operations) in DESCRIBED["paths"].as_object().unwrap() {
        let operations = operations.as_object().unwrap().values();
        for response in operations.flat_map(|one| one["responses"].as_object().unwrap().values()) {
            let Some(json) = response["content"].get("application/json") else { continue };
            let is_named = |schema: &Value| schema["$ref"].is_string();
            let either = json["schema"]["anyOf"].as_array();
            let all_are = either.is_some_and(|either| either.iter().all(is_named));
            assert!(is_named(&json["schema"]) || all_are, "{path}: {json}");
            referred(&json["schema"], &mut names);
            count += 1;
        }
    }
    assert!(count > 50, "{count}");
    let mut found = Vec::new();
    for name in &names {
        let schema = DESCRIBED["components"]["schemas"].get(name).unwrap_or_else(|| panic!("no schema `{name}`"));
        open(schema, name, &mut found);
    }
    found.sort();
    assert_eq!(found, ANYTHING);
}
