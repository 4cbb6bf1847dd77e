//! The whole server over a toy executor and the example checkpoint's text files.

mod blocks;
mod bodies;
mod chat;
mod control;
mod described;
mod drafts;
mod errors;
mod forms;
mod generate;
mod grammars;
mod halves;
mod held;
mod holding;
mod hostile;
mod known;
mod life;
mod limits;
mod lines;
mod logs;
mod messages;
mod messages_errors;
mod pressure;
mod queues;
mod reports;
mod responses;
mod responses_calls;
mod responses_errors;
mod responses_history;
mod responses_reports;
mod responses_stored;
mod routes;
mod spelt;
mod texts;
mod weave;

use crate::{App, Door, Options, Service, router};
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use engine::toy::{Toy, certain, facts};
use engine::{Engine, Limits, StepError};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use text::Text;
use tower::ServiceExt;

const VOCAB: usize = 2048;
/// `<|return|>`, the first of the checkpoint's ending tokens.
const RETURN: u32 = 2046;

static TEXT: LazyLock<Arc<Text>> = LazyLock::new(|| {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/beam-nano");
    Arc::new(Text::load(&dir, &[]).unwrap())
});

/// Says the script after every prompt, then an ending token for ever. A prompt ends with `<|start|>assistant`
/// or is one token long.
fn scripted(script: &str) -> engine::toy::Model {
    let script = TEXT.tokenizer.encode(script, false).unwrap();
    let marker = TEXT.tokenizer.encode("<|start|>assistant", false).unwrap();
    Box::new(move |history| {
        // The script may spell the marker too: the prompt ends at the first one behind which all is script.
        let ends = (0..history.len()).filter(|at| history[*at..].starts_with(&marker)).map(|at| at + marker.len());
        let is_script = |end: &usize| history[*end..].iter().zip(&script).all(|(said, meant)| said == meant);
        let end = ends.chain([1]).find(is_script).unwrap_or(1);
        Ok(certain(VOCAB, script.get(history.len() - end).copied().unwrap_or(RETURN)))
    })
}

fn app_with_options(model: engine::toy::Model, options: Options) -> Arc<App> {
    let toy = Toy::new(facts(VOCAB, 16, 64, 64), model);
    let limits = Limits { keeps_prefixes: false, context_tokens: Some(512), running: 4, ..Limits::default() };
    let service = Service::start(Engine::new(toy, limits).unwrap()).unwrap();
    Arc::new(App::with_options(service, TEXT.clone(), "toy".into(), options))
}

/// What most tests need: no grammar where none is asked for, as the toys know none.
fn free() -> Options {
    Options { turn_grammar: false, ..Options::default() }
}

fn app_with(model: engine::toy::Model) -> Arc<App> {
    app_with_options(model, free())
}

pub(crate) fn app(script: &str) -> Arc<App> {
    app_with(scripted(script))
}

struct Reply {
    status: StatusCode,
    body: Vec<u8>,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The data of every server-sent event.
    fn events(&self) -> Vec<String> {
        let text = std::str::from_utf8(&self.body).unwrap();
        text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).map(str::to_owned).collect()
    }
}

async fn send(app: &Arc<App>, request: Request<Body>) -> Reply {
    let response = router(app.clone()).oneshot(request).await.unwrap();
    let status = response.status();
    Reply { status, body: to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec() }
}

async fn get(app: &Arc<App>, path: &str) -> Reply {
    send(app, Request::get(path).body(Body::empty()).unwrap()).await
}

/// As clients of the Messages API ask.
async fn get_as_anthropic(app: &Arc<App>, path: &str) -> Reply {
    send(app, Request::get(path).header("anthropic-version", "2023-06-01").body(Body::empty()).unwrap()).await
}

async fn post_bytes(app: &Arc<App>, path: &str, body: impl Into<Body>) -> Reply {
    let request = Request::post(path).header("content-type", "application/json");
    send(app, request.body(body.into()).unwrap()).await
}

async fn post(app: &Arc<App>, path: &str, body: Value) -> Reply {
    post_bytes(app, path, body.to_string()).await
}

const CHAT: &str = "/v1/chat/completions";
const TEXTS: &str = "/v1/completions";

/// A chat request of one user message, with these fields added or replaced.
fn chat_body(more: Value) -> Value {
    with(json!({"model": "toy", "messages": [{"role": "user", "content": "Hi"}]}), more)
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A model that says [`ANSWER`] and fails behind a text.
fn failing_behind(at: &'static str) -> engine::toy::Model {
    Box::new(move |history| {
        let text = TEXT.tokenizer.decode(history, false).unwrap();
        if text.ends_with(at) { Err(StepError::Device("region 3".into())) } else { scripted(ANSWER)(history) }
    })
}

/// A model that fails, panics or talks on, by the length of the history.
fn failing_at(length: usize, how: fn() -> StepError) -> engine::toy::Model {
    Box::new(move |history| if history.len() >= length { Err(how()) } else { Ok(certain(VOCAB, 300)) })
}

/// One choice, whole or put together from a stream.
#[derive(Clone, Debug, Default, PartialEq)]
struct Choice {
    reasoning: String,
    content: String,
    /// Name and arguments of complete calls; in a stream of all.
    calls: Vec<(String, String)>,
    finish: String,
    matched: Value,
    logprobs: Vec<Value>,
}

/// A whole chat answer and its usage.
async fn whole(app: &Arc<App>, body: Value) -> (Vec<Choice>, Value) {
    let reply = post(app, CHAT, body).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", String::from_utf8_lossy(&reply.body));
    let body = reply.json();
    assert_eq!(body["object"], "chat.completion");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let choices = body["choices"].as_array().unwrap().iter().enumerate().map(|(i, choice)| {
        assert_eq!(choice["index"], i);
        let message = &choice["message"];
        assert_eq!(message["role"], "assistant");
        assert!(message.get("content").is_some(), "the key is always there");
        let calls = message.get("tool_calls").map_or(&[][..], |calls| calls.as_array().unwrap());
        for (i, call) in calls.iter().enumerate() {
            assert!(call["id"].as_str().unwrap().starts_with("call_") && call["type"] == "function");
            assert_eq!(call["index"], i);
        }
        Choice {
            reasoning: text(&message["reasoning_content"]),
            content: text(&message["content"]),
            calls: calls.iter().map(|c| (text(&c["function"]["name"]), text(&c["function"]["arguments"]))).collect(),
            finish: text(&choice["finish_reason"]),
            matched: choice["matched_stop"].clone(),
            logprobs: choice["logprobs"]["content"].as_array().cloned().unwrap_or_default(),
        }
    });
    (choices.collect(), body["usage"].clone())
}

/// The same from a stream, whose form is checked on the way.
async fn streamed(app: &Arc<App>, body: Value) -> (Vec<Choice>, Value) {
    let n = body["n"].as_u64().unwrap_or(1) as usize;
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    joined(&post(app, CHAT, with(body, options)).await, n)
}

/// What the chunks of a stream say together.
fn joined(reply: &Reply, n: usize) -> (Vec<Choice>, Value) {
    assert_eq!(reply.status, StatusCode::OK, "{}", String::from_utf8_lossy(&reply.body));
    let events = reply.events();
    assert_eq!(events.last().unwrap(), "[DONE]");
    let chunks: Vec<Value> = events[..events.len() - 1].iter().map(|e| serde_json::from_str(e).unwrap()).collect();
    let (usage, chunks) = chunks.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    let mut choices = vec![Choice::default(); n];
    let mut begun = vec![false; n];
    for chunk in chunks {
        assert!(chunk["object"] == "chat.completion.chunk" && chunk["id"] == chunks[0]["id"]);
        assert_eq!(chunk.get("usage"), Some(&Value::Null));
        let choice = &chunk["choices"][0];
        let index = choice["index"].as_u64().unwrap() as usize;
        let to = &mut choices[index];
        assert!(to.finish.is_empty(), "nothing comes after the end: {chunk}");
        to.logprobs.extend(choice["logprobs"]["content"].as_array().cloned().unwrap_or_default());
        let delta = choice["delta"].as_object().unwrap();
        if !std::mem::replace(&mut begun[index], true) {
            assert_eq!(choice["delta"], json!({"role": "assistant", "content": ""}));
            continue;
        }
        if let Some(finish) = choice["finish_reason"].as_str() {
            assert!(delta.is_empty());
            (to.finish, to.matched) = (finish.to_owned(), choice["matched_stop"].clone());
            continue;
        }
        assert_eq!(delta.len(), 1, "{chunk}");
        for (key, value) in delta {
            match key.as_str() {
                "reasoning_content" => to.reasoning += piece(value),
                "content" => to.content += piece(value),
                "tool_calls" => {
                    let call = &value[0];
                    let place = call["index"].as_u64().unwrap() as usize;
                    if call.get("id").is_some() {
                        assert_eq!((place, &call["function"]["arguments"]), (to.calls.len(), &json!("")));
                        to.calls.push((call["function"]["name"].as_str().unwrap().to_owned(), String::new()));
                    } else {
                        to.calls[place].1 += piece(&call["function"]["arguments"]);
                    }
                }
                other => panic!("a delta of `{other}`"),
            }
        }
    }
    (choices, usage["usage"].clone())
}

/// A piece of text that says something.
fn piece(value: &Value) -> &str {
    let text = value.as_str().unwrap();
    assert!(!text.is_empty() && !text.contains('\u{FFFD}'), "{text:?}");
    text
}

fn tool(name: &str, properties: Value) -> Value {
    let parameters = json!({"type": "object", "properties": properties});
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

/// A turn that reasons and answers.
const ANSWER: &str =
    "<|channel|>analysis<|message|>Think of 東京.<|end|><|start|>assistant<|channel|>final<|message|>Größe 👩‍👩‍👧, done.";
/// The opener of a call of `f`.
const OPENER: &str = " to=f<|channel|>analysis <|constrain|>xml<|message|>";

/// A turn that reasons and calls `f` with these arguments, each text in its element.
fn call(arguments: &[(&str, &str)]) -> String {
    let elements: Vec<String> =
        arguments.iter().map(|(k, v)| format!("<rfl:parameter name=\"{k}\">\n{v}\n</rfl:parameter>")).collect();
    format!("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{OPENER}{}<|call|>", elements.join("\n"))
}

/// Texts whose characters are of several tokens, or of several code points.
const PARTED: [&str; 6] =
    ["東京都は日本の首都です", "👩‍👩‍👧👍🏽🏳️‍🌈", "e\u{301}a\u{308}\u{323}", "a\u{200d}b", "नमस्ते", "\u{10FFFF}"];

/// A text, and what stop strings leave of it: over the borders of tokens, at its end, and begun but not completed.
const COUNTED: &str = "one two three four";
const STOPPED: [(&str, &str); 5] = [
    ("\"two three\"", "one "),
    ("[\"thr\", \"two threx\"]", "one two "),
    ("\"e t\"", "on"),
    ("\"four\"", "one two three "),
    ("\"four five\"", "one two three four"),
];

/// A schema of documents, and the documents' judge.
fn document() -> (Value, jsonschema::Validator) {
    let schema = json!({
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["kind", "n"],
        "additionalProperties": false,
    });
    let validator = jsonschema::validator_for(&schema).unwrap();
    (schema, validator)
}
