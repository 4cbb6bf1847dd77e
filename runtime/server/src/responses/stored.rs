//! Stored responses: fetched, looked into, cancelled, deleted.

use super::request::no_response;
use crate::app::App;
use crate::error::ApiError;
use crate::fields::wrong_type;
use crate::payload::Name;
use crate::service::Whom;
use axum::Json;
use axum::extract::{RawQuery, State};
use serde_json::{Value, json};
use std::sync::Arc;

const NOT_FOUND: &str = "response_not_found";
/// Items of a page unless the query says otherwise, and most of them.
const PAGE: usize = 20;
const MOST_PAGE: usize = 100;

/// `GET /v1/responses/{id}`
pub(crate) async fn retrieve(
    State(app): State<Arc<App>>,
    Name(id): Name,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    for name in ["stream", "starting_after"] {
        if parameter(query.as_deref(), name).is_some_and(|value| value != "false") {
            let message =
                format!("`{name}` is set, and this server does not repeat the events of a response; fetch it without");
            return Err(ApiError::field(name, "unsupported_parameter", message));
        }
    }
    app.responses.get(&id).map(Json).ok_or_else(|| no_response(&id, NOT_FOUND, None))
}

/// `DELETE /v1/responses/{id}`; one that is being made is given up.
pub(crate) async fn delete(State(app): State<Arc<App>>, Name(id): Name) -> Result<Json<Value>, ApiError> {
    give_up(&app, &id).await;
    app.responses.delete(&id).ok_or_else(|| no_response(&id, NOT_FOUND, None))?;
    Ok(Json(json!({"id": id, "object": "response", "deleted": true})))
}

/// `POST /v1/responses/{id}/cancel`
pub(crate) async fn cancel(State(app): State<Arc<App>>, Name(id): Name) -> Result<Json<Value>, ApiError> {
    give_up(&app, &id).await;
    let response = app.responses.get(&id).ok_or_else(|| no_response(&id, NOT_FOUND, None))?;
    match response.get("status").and_then(Value::as_str) {
        Some("cancelled") => Ok(Json(response)),
        status => {
            let message = format!(
                "the response `{id}` is {}, only one that is being made can be cancelled",
                status.unwrap_or("over")
            );
            Err(ApiError::field("response_id", "response_finished", message))
        }
    }
}

/// Gives a response up that is being made, and nothing else, whatever names clients gave their requests.
async fn give_up(app: &App, id: &str) {
    for request in app.responses.cancel(id).map(|running| running.requests).unwrap_or_default() {
        app.service.abort(Whom::One(request)).await;
    }
}

/// `GET /v1/responses/{id}/input_items`: what a response was made from, page by page.
pub(crate) async fn input_items(
    State(app): State<Arc<App>>,
    Name(id): Name,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    let query = query.as_deref();
    let limit = match parameter(query, "limit") {
        None => PAGE,
        Some(text) => {
            let limit = text.parse::<usize>().ok().filter(|limit| (1..=MOST_PAGE).contains(limit));
            limit.ok_or_else(|| wrong_type("limit", &json!(text), &format!("a number from 1 to {MOST_PAGE}")))?
        }
    };
    let mut items = app.responses.input(&id).ok_or_else(|| no_response(&id, NOT_FOUND, None))?;
    match parameter(query, "order") {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(other) => return Err(wrong_type("order", &json!(other), "`asc` or `desc`")),
    }
    let item_id = |item: &Arc<Value>| item.get("id").and_then(Value::as_str).map(str::to_owned);
    if let Some(after) = parameter(query, "after") {
        let place = items.iter().position(|item| item_id(item).as_deref() == Some(after));
        let place = place.ok_or_else(|| wrong_type("after", &json!(after), "the id of an item of this response"))?;
        items.drain(..=place);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    Ok(Json(json!({
        "object": "list",
        "first_id": items.first().and_then(item_id),
        "last_id": items.last().and_then(item_id),
        "has_more": has_more,
        "data": items.iter().map(|item| Value::clone(item)).collect::<Vec<_>>(),
    })))
}

/// A parameter of a query; the values here need no decoding.
fn parameter<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    let pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next_back()
}
