//! What errors look like on each route: handlers answer with an [`ApiError`], and the route's path decides about its body.

use crate::error::ApiError;
use crate::ids;
use axum::Json;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Paths whose errors have the form of the Messages API.
const MESSAGES: &str = "/v1/messages";

/// Whether a path belongs to the Messages API.
fn is_messages(path: &str) -> bool {
    path.strip_prefix(MESSAGES).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Gives an error's answer the form that clients of its route read.
pub(crate) async fn in_the_routes_form(request: Request, next: Next) -> Response {
    let is_messages = is_messages(request.uri().path());
    let response = next.run(request).await;
    if !is_messages {
        return response;
    }
    let Some(error) = response.extensions().get::<ApiError>() else { return response };
    let body = Json(error.messages_body(&ids::name("req_")));
    let mut own = (response.status(), body).into_response();
    for (name, value) in response.headers() {
        if !own.headers().contains_key(name) {
            own.headers_mut().insert(name.clone(), value.clone());
        }
    }
    // The new body has its own length.
    own.headers_mut().remove(axum::http::header::CONTENT_LENGTH);
    own
}
