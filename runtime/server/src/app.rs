//! The application: what all routes share, the routes themselves, and what holds for every one of them.

use crate::error::ApiError;
use crate::service::{Service, Turned};
use crate::{chat, completions, error, models};
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use engine::Request;
use serde_json::{Map, Value};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use text::Text;
use tower_http::catch_panic::CatchPanicLayer;

/// What every route needs.
pub struct App {
    /// The engine.
    pub service: Service,
    /// Tokenizer and templates.
    pub text: Arc<Text>,
    /// Name under which the model is served.
    pub model: String,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    /// Largest request body.
    pub body_limit_bytes: usize,
    /// Set on the way down: running requests finish, new ones are turned away.
    pub is_draining: AtomicBool,
}

impl App {
    /// An application with a body limit of 32 MiB.
    pub fn new(service: Service, text: Arc<Text>, model: String) -> App {
        let (created, body_limit_bytes) = (now_seconds(), 32 << 20);
        App { service, text, model, created, body_limit_bytes, is_draining: AtomicBool::new(false) }
    }

    /// Token ids of a prompt's text. A text that no encoding fits into the context is refused before it costs anything.
    pub(crate) fn encode(&self, text: &str, add_special: bool, param: &str) -> Result<Vec<u32>, ApiError> {
        let limit_tokens = self.service.limit_tokens();
        if let Some(longest) = self.text.tokenizer.longest_token_bytes()
            && text.len() > limit_tokens.saturating_mul(longest)
        {
            let message = format!(
                "the prompt has {} bytes, {limit_tokens} tokens of at most {longest} bytes fit; send a shorter one",
                text.len()
            );
            return Err(ApiError::field(param, "context_length_exceeded", message));
        }
        let ids = self.text.tokenizer.encode(text, add_special);
        ids.map_err(|error| ApiError::field(param, "invalid_prompt", error.to_string()))
    }

    /// Queues a request; `prompt` is the field that a refusal of the prompt is put down to.
    pub(crate) async fn submit(&self, request: Request, prompt: &str) -> Result<crate::Generation, ApiError> {
        if self.is_draining.load(Ordering::Acquire) {
            return Err(ApiError::unavailable("shutting_down", "the server is shutting down; ask another one"));
        }
        self.service.submit(request).await.map_err(|turned| match turned {
            Turned::Refused(refusal) => error::refused(&refusal, prompt),
            Turned::Full(unfinished) => ApiError::unavailable(
                "queue_full",
                format!("{unfinished} requests are waiting or running; try again later"),
            ),
            Turned::Stopped => ApiError::internal("the engine has stopped; restart the server"),
        })
    }

    /// Runs work that may take long outside the threads that serve connections.
    pub(crate) async fn off_thread<T: Send + 'static>(
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let broken = |_| ApiError::internal("this request hit a defect of the server; report it with the request");
        tokio::task::spawn_blocking(work).await.map_err(broken)?
    }
}

/// Seconds since 1970.
pub(crate) fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    let routes = Router::new()
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/health", get(models::health))
        .with_state(app);
    guarded(routes)
}

/// What holds for every route: unknown ones answer in JSON, and a panic is an answer too.
pub(crate) fn guarded(routes: Router) -> Router {
    routes.fallback(no_route).method_not_allowed_fallback(no_method).layer(CatchPanicLayer::custom(panicked))
}

async fn no_route(uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "unknown_route", format!("there is no route `{}`", uri.path()))
}

async fn no_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("`{}` does not answer {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

fn panicked(_: Box<dyn Any + Send + 'static>) -> Response {
    ApiError::internal("this request hit a defect of the server; report it with the request").into_response()
}

/// The JSON object in a request's body.
pub(crate) async fn json_body(app: &App, headers: &HeaderMap, body: Body) -> Result<Map<String, Value>, ApiError> {
    let is_json =
        |kind: &str| kind.split(';').next().is_some_and(|k| k.trim().eq_ignore_ascii_case("application/json"));
    if let Some(kind) =
        headers.get(header::CONTENT_TYPE).map(|kind| kind.to_str().unwrap_or_default()).filter(|kind| !is_json(kind))
    {
        let message =
            format!("the content type is `{kind}`, it must be `application/json`; set the header `Content-Type`");
        return Err(ApiError::bad("invalid_content_type", message));
    }
    let bytes = read_body(app, body).await?;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(ApiError::bad(
            "invalid_json",
            format!("the body is {}, it must be a JSON object", error::brief(&other)),
        )),
        Err(error) => Err(ApiError::bad("invalid_json", format!("the body is not JSON: {error}"))),
    }
}

async fn read_body(app: &App, body: Body) -> Result<Bytes, ApiError> {
    let limit = app.body_limit_bytes;
    to_bytes(body, limit).await.map_err(|error| {
        let inner = std::error::Error::source(&error);
        if inner.is_some_and(|e| e.is::<http_body_util::LengthLimitError>()) {
            let message = format!("the body is larger than {limit} bytes, the limit of this server; send less");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
        } else {
            ApiError::bad("incomplete_body", format!("the body broke off: {error}"))
        }
    })
}
