//! Errors as clients of OpenAI-style routes read them: an HTTP status and `{"error": {…}}`.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::{Refusal, SampleError};
use serde_json::{Value, json};

/// An answer that is not the one hoped for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    pub message: String,
    /// Field of the request that is at fault.
    pub param: Option<String>,
    /// A word for programs.
    pub code: &'static str,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        ApiError { status, message: message.into(), param: None, code }
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
        let message = format!("`{param}` is {}, which this server does not support yet; {instead}", brief(value));
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

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    pub fn body(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind(), "param": self.param, "code": self.code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// What the engine will not take, by the field that asked for it; `prompt` is `messages` or `prompt`.
pub(crate) fn refused(refusal: &Refusal, prompt: &str) -> ApiError {
    let (param, code) = match refusal {
        Refusal::EmptyPrompt | Refusal::UnknownToken { .. } => (prompt, "invalid_prompt"),
        Refusal::PromptTooLong { .. } => (prompt, "context_length_exceeded"),
        Refusal::AnswerTooLong { .. } => ("max_tokens", "context_length_exceeded"),
        Refusal::NoAnswer => ("max_tokens", "invalid_value"),
        Refusal::Sampling(SampleError::Parameter { name, .. }) => (*name, "invalid_value"),
        Refusal::Sampling(SampleError::UnknownToken { .. }) => ("logit_bias", "invalid_value"),
        Refusal::Sampling(_) => ("temperature", "invalid_value"),
    };
    ApiError::field(param, code, refusal.to_string())
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
