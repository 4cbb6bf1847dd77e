//! What errors look like on each route: handlers answer with an [`ApiError`], and the route's path decides about its body, on
//! routes of two protocols who asks.

use crate::error::ApiError;
use crate::ids;
use crate::models::Asker;
use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Paths whose errors have the form of the Messages API.
const MESSAGES: &str = "/v1/messages";

/// Paths that clients of OpenAI's and of Anthropic's APIs share.
const SHARED: &str = "/v1/models";

/// Whether a request is one of the Messages API.
fn is_messages(request: &Request) -> bool {
    let is_below = |path: &str| {
        let rest = request.uri().path().strip_prefix(path);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    is_below(MESSAGES) || (is_below(SHARED) && matches!(Asker::of(request.headers()), Asker::Anthropic))
}

/// Name of a request: in a header of every answer, and with Messages in the body of an error.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub String);

/// Header of the answer that has it: of the Messages API, and of all other routes.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Gives an error's answer the form that clients of its route read.
pub(crate) async fn in_the_routes_form(mut request: Request, next: Next) -> Response {
    let id = RequestId(ids::name("req_"));
    let is_messages = is_messages(&request);
    request.extensions_mut().insert(id.clone());
    let response = next.run(request).await;
    let (mut response, header) =
        if is_messages { (messages_form(response, &id), REQUEST_ID) } else { (response, X_REQUEST_ID) };
    if let Ok(value) = HeaderValue::from_str(&id.0) {
        response.headers_mut().insert(header, value);
    }
    response
}

fn messages_form(response: Response, id: &RequestId) -> Response {
    let Some(error) = response.extensions().get::<ApiError>() else { return response };
    let body = Json(error.messages_body(&id.0));
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
