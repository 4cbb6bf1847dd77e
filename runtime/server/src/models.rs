//! What is served, and whether it works.

use crate::app::App;
use crate::error::{ApiError, brief};
use crate::params::unknown_model;
use crate::payload::Name;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The description of all routes.
const OPENAPI: &str = include_str!("openapi.json");

/// Header that clients of the Messages API send with every request.
pub(crate) const ANTHROPIC_VERSION: &str = "anthropic-version";

/// Who asks, which decides about the form of the answer.
pub(crate) enum Asker {
    OpenAi,
    Anthropic,
}

impl Asker {
    /// Whoever sends these headers.
    pub fn of(headers: &HeaderMap) -> Asker {
        if headers.contains_key(ANTHROPIC_VERSION) { Asker::Anthropic } else { Asker::OpenAi }
    }

    fn card(&self, app: &App) -> Value {
        match self {
            Asker::OpenAi => openai_card(app),
            Asker::Anthropic => anthropic_card(app),
        }
    }
}

/// What clients of the Messages API are told of the model; `created_at` is when it was loaded. Prompt and answer share the context.
fn anthropic_card(app: &App) -> Value {
    let seconds = i64::try_from(app.created).unwrap_or(0);
    let created = jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    json!({
        "type": "model",
        "id": app.model,
        "display_name": app.model,
        "created_at": created.to_string(),
        "lifecycle": "active",
        "max_input_tokens": app.service.limit_tokens(),
        "max_tokens": app.service.limit_tokens(),
    })
}

fn openai_card(app: &App) -> Value {
    json!({
        "id": app.model,
        "object": "model",
        "created": app.created,
        "owned_by": "beam-run",
        "root": app.model,
        "parent": null,
        "max_model_len": app.service.limit_tokens(),
    })
}

/// Which part of a list is asked for.
#[derive(Deserialize)]
pub(crate) struct Page {
    limit: Option<String>,
    after_id: Option<String>,
    before_id: Option<String>,
}

/// Most models of a list, of which there is one.
const MOST_LISTED: u32 = 1000;

impl Page {
    /// Whether the only model is on it.
    fn has_model(&self, app: &App) -> Result<bool, ApiError> {
        let wrong = |param: &str, found: &str, expected: &str| {
            let message = format!("`{param}` is {}, it must be {expected}", brief(&found.into()));
            ApiError::field(param, "invalid_value", message)
        };
        if let Some(limit) = &self.limit
            && !limit.parse().is_ok_and(|n| (1..=MOST_LISTED).contains(&n))
        {
            return Err(wrong("limit", limit, &format!("a whole number from 1 to {MOST_LISTED}")));
        }
        for (param, id) in [("after_id", &self.after_id), ("before_id", &self.before_id)] {
            if let Some(id) = id.as_ref().filter(|id| **id != app.model) {
                return Err(wrong(param, id, &format!("the id of a listed model, `{}`", app.model)));
            }
        }
        Ok(self.after_id.is_none() && self.before_id.is_none())
    }
}

/// `GET /v1/models`
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let asker = Asker::of(&headers);
    let Asker::Anthropic = asker else { return Ok(Json(json!({"object": "list", "data": [asker.card(&app)]}))) };
    let Query(page) = page.map_err(|error| ApiError::bad("invalid_query", error.body_text()))?;
    let data: Vec<Value> = page.has_model(&app)?.then(|| asker.card(&app)).into_iter().collect();
    let id = data.first().map(|_| &app.model);
    Ok(Json(json!({"data": data, "has_more": false, "first_id": id, "last_id": id})))
}

/// `GET /v1/models/{id}`
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Name(id): Name,
) -> Result<Json<Value>, ApiError> {
    if id == app.model { Ok(Json(Asker::of(&headers).card(&app))) } else { Err(unknown_model(&app, &id)) }
}

/// Why the server does not work, if it does not.
fn ailment(app: &App) -> Option<&'static str> {
    if !app.service.is_alive() {
        Some("the engine has stopped")
    } else if app.service.is_stuck() {
        Some("the engine makes no progress")
    } else if app.is_draining.load(Ordering::Acquire) {
        Some("shutting down")
    } else {
        None
    }
}

/// `GET /health`, `GET /ping`: whether requests are answered.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    match ailment(&app) {
        None if app.options.drafts.is_null() => Json(json!({"status": "ok"})).into_response(),
        None => Json(json!({"status": "ok", "drafts": app.options.drafts})).into_response(),
        Some(status) => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": status}))).into_response(),
    }
}

/// `GET /ready`: whether more requests are welcome. A model that is loaded is ready, until the way down.
pub(crate) async fn ready(state: State<Arc<App>>) -> Response {
    health(state).await
}

/// `GET /metrics`
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let text = app.service.metrics().text(&app.options.metrics_prefix, &app.model);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// `GET /model_info`, `GET /get_model_info`
pub(crate) async fn model_info(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({
        "model_path": app.model,
        "tokenizer_path": app.model,
        "is_generation": true,
        "weight_version": "default",
        "max_model_len": app.service.limit_tokens(),
        "vocab_size": app.service.vocab(),
    }))
}

/// `GET /server_info`, `GET /get_server_info`
pub(crate) async fn server_info(State(app): State<Arc<App>>) -> Json<Value> {
    let metrics = app.service.metrics();
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "served_model_name": app.model,
        "context_length": app.service.limit_tokens(),
        "vocab_size": app.service.vocab(),
        "turn_grammar": app.options.turn_grammar,
        "has_chat_template": app.text.template.is_some(),
        "has_response_template": app.text.response.is_some(),
        "num_running_reqs": metrics.running(),
        "num_queue_reqs": metrics.queued(),
        "drafts": app.options.drafts,
        "internal_states": [],
    }))
}

/// `GET /openapi.json`
pub(crate) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}
