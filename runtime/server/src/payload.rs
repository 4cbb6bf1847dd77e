//! What a request brings: one JSON object in its body.

use crate::app::{App, long_json_body};
use crate::error::ApiError;
use crate::fields::Fields;
use axum::extract::{FromRequest, Request};
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
        if !self.is_long {
            return read(app, Fields(&self.body));
        }
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
