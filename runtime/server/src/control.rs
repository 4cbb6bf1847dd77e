//! Routes for operators: giving requests up, forgetting what is cached.

use crate::app::{App, stuck};
use crate::body::json_body;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::service::Whom;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::{Value, json};
use std::sync::Arc;

/// `POST /abort_request {rid | abort_all}`
pub(crate) async fn abort_request(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let body = json_body(&app, &headers, body).await?;
    let fields = Fields(&body);
    let rid = fields.string("rid")?.filter(|rid| !rid.is_empty());
    let whom = match (rid, fields.boolean("abort_all")?.unwrap_or(false)) {
        (_, true) => Whom::All,
        (Some(rid), false) => Whom::Named(rid.to_owned()),
        (None, false) => {
            let message = "neither `rid` nor `abort_all` is given; name a request or set `abort_all` to true";
            return Err(ApiError::field("rid", "missing_parameter", message));
        }
    };
    let aborted = app.service.abort(whom).await.ok_or_else(stuck)?;
    Ok(Json(json!({"aborted": aborted})))
}

/// `POST /flush_cache`
pub(crate) async fn flush_cache(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    if app.service.flush().await.ok_or_else(stuck)? {
        return Ok(Json(json!({"success": true, "message": "the cache is empty"})));
    }
    let message = "requests are running or waiting, so the cache was not flushed; wait for them or abort them";
    Err(ApiError::bad("requests_unfinished", message))
}
