//! An answer that is not the one hoped for: an HTTP status, a message, the field at fault and a word for programs.
//!
//! What it looks like on the wire depends on the route: [`crate::errors`].

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::{Refusal, SampleError};
use serde_json::{Value, json};

/// An error.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    pub message: String,
    /// Field of the request that is at fault.
    pub param: Option<String>,
    /// A word for programs.
    pub code: &'static str,
    /// When to try again; absent: after a second, where trying again helps at all.
    pub retry_after_seconds: Option<u64>,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        ApiError { status, message: message.into(), param: None, code, retry_after_seconds: None }
    }

    /// The request is at fault.
    pub fn bad(code: &'static str, message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// A field of the request is at fault.
    pub fn field(param: impl Into<String>, code: &'static str, message: impl Into<String>) -> Self {
        ApiError { param: Some(param.into()), ..ApiError::bad(code, message) }
    }

    /// A field that would change the answer in a way this server cannot.
    pub fn unsupported(param: &str, value: &Value, instead: &str) -> Self {
        let message = format!("`{param}` is {}, which this server does not support; {instead}", brief(value));
        ApiError::field(param, "unsupported_parameter", message)
    }

    /// This server is at fault.
    pub fn internal(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// Not now.
    pub fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
    }

    /// The same of a field that stands inside another; `within` is what comes before its name, such as `sampling_params.`.
    pub fn within(self, within: &str) -> Self {
        ApiError { param: self.param.map(|param| format!("{within}{param}")), ..self }
    }

    /// The same of a field inside this one, whose own name alone was known where it was read.
    pub fn inside(self, outer: &str) -> Self {
        let Some(inner) = self.param.clone() else { return self };
        self.called(&format!("{outer}.{inner}"), &inner)
    }

    /// The same of a field that the request calls otherwise.
    pub fn called(self, sent: &str, read: &str) -> Self {
        if self.param.as_deref() != Some(read) {
            return self;
        }
        let message = self.message.replace(&format!("`{read}`"), &format!("`{sent}`"));
        ApiError { param: Some(sent.to_owned()), message, ..self }
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The body of OpenAI's routes and of our own.
    pub fn body(&self) -> Value {
        let (message, param) = (shown(&self.message), self.param.as_deref().map(shown));
        json!({"error": {"message": message, "type": self.kind(), "param": param, "code": self.code}})
    }

    /// The body of Messages, without internals.
    pub fn messages_body(&self, request_id: &str) -> Value {
        let kind = match self.status {
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_server_error() => "api_error",
            _ => self.kind(),
        };
        let message = match self.status {
            StatusCode::INTERNAL_SERVER_ERROR => "the server hit a defect of its own; try again or report it",
            _ => self.message.as_str(),
        };
        let message = match &self.param {
            Some(param) if !message.contains(param.as_str()) => {
                // What clients of this protocol look for.
                let is_long = self.code == "context_length_exceeded" && param == "messages";
                let place = if is_long { "prompt is too long" } else { param.as_str() };
                format!("{place}: {}", without_code(message))
            }
            _ => message.to_owned(),
        };
        let mut error = json!({"type": kind, "message": shown(&message)});
        // By this word the official client knows to go on without a thread, with the whole conversation.
        if self.param.as_deref() == Some("thread") {
            error["details"] = json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
        }
        json!({"type": "error", "error": error, "request_id": request_id})
    }
}

impl IntoResponse for ApiError {
    /// In OpenAI's form; the error travels along, so that other routes can give it theirs.
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        if matches!(self.status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(self.retry_after_seconds.unwrap_or(1)));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// What the engine will not take, by the field that asked for it; `prompt` and `max_tokens` are the protocol's names.
pub(crate) fn refused(refusal: &Refusal, prompt: &str, max_tokens: &str) -> ApiError {
    // Where the limit stands inside another field, so do its neighbours.
    let beside = |name: &str| match max_tokens.split_once('.') {
        Some((outer, _)) => format!("{outer}.{name}"),
        None => name.to_owned(),
    };
    let min_tokens = if max_tokens.ends_with("max_new_tokens") { "min_new_tokens" } else { "min_tokens" };
    let (param, code) = match refusal {
        Refusal::EmptyPrompt | Refusal::UnknownToken { .. } => (prompt.to_owned(), "invalid_prompt"),
        Refusal::PromptTooLong { .. } => (prompt.to_owned(), "context_length_exceeded"),
        Refusal::AnswerTooLong { .. } => (max_tokens.to_owned(), "context_length_exceeded"),
        Refusal::NoAnswer => (max_tokens.to_owned(), "invalid_value"),
        Refusal::MinTokens { .. } => (beside(min_tokens), "invalid_value"),
        Refusal::Sampling(SampleError::Parameter { name, .. }) => (beside(name), "invalid_value"),
        Refusal::Sampling(SampleError::UnknownToken { .. }) => (beside("logit_bias"), "invalid_value"),
        Refusal::Sampling(_) => (beside("temperature"), "invalid_value"),
    };
    ApiError::field(&param, code, refusal.to_string())
}

/// The message of an error of the engine without its code, as it stands behind a place.
fn without_code(message: &str) -> &str {
    match message.split_once(": ") {
        Some((code, rest)) if code.len() == 5 && code.bytes().skip(1).all(|b| b.is_ascii_digit()) => rest,
        _ => message,
    }
}

/// Most characters of a message or of the name of a field: what they complain of may be a body's length.
pub(crate) const MOST_SHOWN_CHARS: usize = 2000;

/// A text, or its beginning.
fn shown(text: &str) -> String {
    match text.char_indices().nth(MOST_SHOWN_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
    }
}

/// A value as it can stand in a message.
pub(crate) fn brief(value: &Value) -> String {
    const MOST_CHARS: usize = 60;
    let text = match value {
        Value::Array(_) => return "a list".into(),
        Value::Object(_) => return "an object".into(),
        other => other.to_string(),
    };
    if text.chars().count() > MOST_CHARS { text.chars().take(MOST_CHARS).chain(['…']).collect() } else { text }
}
