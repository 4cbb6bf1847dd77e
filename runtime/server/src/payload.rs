//! What a request brings: one JSON object in its body.

use crate::app::App;
use crate::body::long_json_body;
use crate::error::ApiError;
use crate::fields::Fields;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde_json::{Map, Value};
use std::sync::Arc;

/// The JSON object in a request's body.
pub(crate) struct Payload {
    body: Map<String, Value>,
    is_long: bool,
}

impl Payload {
    /// Reads the object's fields; those of a long one off the threads that serve connections, for schemas and the like take
    /// long to check.
    pub async fn read<T: Send + 'static>(
        self,
        app: &Arc<App>,
        read: impl FnOnce(&App, Fields<'_>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if self.is_long { self.read_apart(app, read).await } else { read(app, Fields(&self.body)) }
    }

    /// Reads the object's fields off those threads however short it is, for it may refer to much that is stored.
    pub async fn read_apart<T: Send + 'static>(
        self,
        app: &Arc<App>,
        read: impl FnOnce(&App, Fields<'_>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let app = app.clone();
        App::off_thread(move || read(&app, Fields(&self.body))).await
    }
}

impl FromRequest<Arc<App>> for Payload {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Payload, ApiError> {
        let (parts, body) = request.into_parts();
        let (body, is_long) = long_json_body(app, &parts.headers, body).await?;
        Ok(Payload { body, is_long })
    }
}

/// The name in a route's path.
pub(crate) struct Name(pub String);

impl FromRequestParts<Arc<App>> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Name, ApiError> {
        let path = Path::<String>::from_request_parts(parts, app).await;
        path.map(|Path(name)| Name(name)).map_err(|_| {
            let message = "the name in the path is not text, so nothing has it; spell it in percent-encoded UTF-8";
            ApiError::new(StatusCode::NOT_FOUND, "unknown_name", message)
        })
    }
}
