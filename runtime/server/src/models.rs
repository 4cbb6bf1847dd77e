//! What is served, and whether it works.

use crate::app::App;
use crate::error::ApiError;
use crate::params::unknown_model;
use crate::payload::Name;
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The description of all routes.
const OPENAPI: &str = include_str!("openapi.json");

fn card(app: &App) -> Value {
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

/// `GET /v1/models`
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [card(&app)]}))
}

/// `GET /v1/models/{id}`
pub(crate) async fn one(State(app): State<Arc<App>>, Name(id): Name) -> Result<Json<Value>, ApiError> {
    if id == app.model { Ok(Json(card(&app))) } else { Err(unknown_model(&app, &id)) }
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
