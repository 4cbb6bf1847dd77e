//! Who may call: keys, compared without telling by time how much of them was right, and origins of browsers.

use crate::app::{App, Options};
use crate::error::ApiError;
use crate::errors::{REQUEST_ID, X_REQUEST_ID};
use crate::key::Key;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use subtle::ConstantTimeEq;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// Lets through who brings the key, if there is one.
pub(crate) async fn user(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let keys = [&app.options.api_key, &app.options.admin_key];
    match checked(request.headers(), app.options.api_key.is_some(), &keys) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Lets through what can be taken now: others are turned away before their body is read.
pub(crate) async fn admitted(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match app.admits(None) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Lets through who brings the key of control routes. Without such a key the other one is asked for.
pub(crate) async fn admin(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let options = &app.options;
    let outcome = if options.admin_key.is_none() {
        checked(request.headers(), options.api_key.is_some(), &[&options.api_key])
    } else {
        checked(request.headers(), true, &[&options.admin_key]).map_err(|error| {
            if checked(request.headers(), true, &[&options.api_key]).is_err() {
                return error;
            }
            let message = "this key may ask the model, but not control the server; bring the admin key";
            ApiError::new(StatusCode::FORBIDDEN, "admin_key_needed", message)
        })
    };
    match outcome {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

fn checked(headers: &HeaderMap, is_needed: bool, keys: &[&Option<Key>]) -> Result<(), ApiError> {
    if !is_needed {
        return Ok(());
    }
    let denied = |code, message: &str| Err(ApiError::new(StatusCode::UNAUTHORIZED, code, message));
    let Some(given) = key(headers) else {
        return denied(
            "missing_api_key",
            "the request brings no key; send it as `Authorization: Bearer KEY` or as `x-api-key`",
        );
    };
    // Every key is looked at, so that the time says nothing about which.
    let is_right = keys.iter().filter_map(|key| key.as_ref()).fold(false, |right, key| same(given, key.text()) | right);
    if is_right { Ok(()) } else { denied("invalid_api_key", "the key is not one of this server's; check it") }
}

/// The key that a request brings.
fn key(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
    });
    bearer.or_else(|| headers.get("x-api-key").map(HeaderValue::as_bytes))
}

/// Whether two keys are the same. Digests have one length, so not even that of the right key shows.
fn same(given: &[u8], right: &str) -> bool {
    Sha256::digest(given).as_slice().ct_eq(Sha256::digest(right.as_bytes()).as_slice()).into()
}

/// What browsers are told about who may call.
pub(crate) fn origins(options: &Options) -> CorsLayer {
    let layer = CorsLayer::new()
        .allow_methods([Method::GET, Method::POST, Method::DELETE, Method::OPTIONS])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([header::RETRY_AFTER, REQUEST_ID, X_REQUEST_ID]);
    if options.origins.iter().any(|origin| origin == "*") {
        return layer.allow_origin(AllowOrigin::any());
    }
    let origins = options.origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok());
    layer.allow_origin(AllowOrigin::list(origins))
}

/// Counts a request and its answer.
pub(crate) async fn counted(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    /// Counts an answer that never came, because the client went away.
    struct Open<'a>(&'a App, u16);
    impl Drop for Open<'_> {
        fn drop(&mut self) {
            self.0.service.metrics().http_ends(self.1);
        }
    }
    app.service.metrics().http_begins();
    // What nginx calls a request whose client has gone.
    let mut open = Open(&app, 499);
    let response = next.run(request).await;
    open.1 = response.status().as_u16();
    drop(open);
    response
}
