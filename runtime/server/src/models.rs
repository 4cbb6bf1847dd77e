//! What is served, and whether it works.

use crate::app::App;
use crate::error::ApiError;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
pub(crate) async fn one(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    if id == app.model {
        return Ok(Json(card(&app)));
    }
    let message = format!("there is no model `{id}`, this server has `{}`", app.model);
    Err(ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message))
}

/// `GET /health`
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    let status = match (app.service.is_alive(), app.is_draining.load(Ordering::Acquire)) {
        (true, false) => return Json(json!({"status": "ok"})).into_response(),
        (true, true) => "shutting down",
        (false, _) => "the engine has stopped",
    };
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": status}))).into_response()
}
