//! The whole server over a toy executor and the example checkpoint's text files.

mod errors;
mod hostile;
mod life;
mod routes;

use crate::{App, Service, router};
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
        let end = history.windows(marker.len()).rposition(|w| w == marker).map_or(1, |at| at + marker.len());
        Ok(certain(VOCAB, script.get(history.len() - end).copied().unwrap_or(RETURN)))
    })
}

fn app_with(model: engine::toy::Model) -> Arc<App> {
    let toy = Toy::new(facts(VOCAB, 16, 64, 64), model);
    let limits = Limits { context_tokens: Some(512), ..Limits::default() };
    let service = Service::start(Engine::new(toy, limits).unwrap()).unwrap();
    Arc::new(App::new(service, TEXT.clone(), "toy".into()))
}

fn app(script: &str) -> Arc<App> {
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

/// A model that fails, panics or talks on, by the length of the history.
fn failing_at(length: usize, how: fn() -> StepError) -> engine::toy::Model {
    Box::new(move |history| if history.len() >= length { Err(how()) } else { Ok(certain(VOCAB, 300)) })
}
