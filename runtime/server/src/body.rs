//! Bodies of requests: as long as one may be, as many bytes as all together may have, and JSON.

use crate::app::App;
use crate::error::{self, ApiError};
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long a client may take to send a body.
const BODY_TIME: Duration = Duration::from_secs(120);
/// Bodies up to this length are read where they arrive; longer ones must not hold up other connections.
const AT_ONCE_BYTES: usize = 32 << 10;
/// What room is counted in.
const UNIT_BYTES: usize = 32 << 10;
/// When to try again where there is no room.
const RETRY_SECONDS: u64 = 2;

/// Room for all bodies that are on their way. The first bytes of each are free, so that short ones always find some.
pub(crate) struct Room(Arc<Semaphore>);

impl Room {
    /// Room for so many bytes.
    pub fn new(bytes: usize) -> Room {
        Room(Arc::new(Semaphore::new((bytes / UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS))))
    }

    /// Takes what a body of so many bytes needs beyond what it holds already.
    fn grow(&self, held: &mut Option<OwnedSemaphorePermit>, bytes: usize) -> Result<(), ApiError> {
        let needed = bytes.saturating_sub(AT_ONCE_BYTES).div_ceil(UNIT_BYTES);
        let more = needed.saturating_sub(held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
        if more == 0 {
            return Ok(());
        }
        let taken = u32::try_from(more).ok().and_then(|more| self.0.clone().try_acquire_many_owned(more).ok());
        let Some(taken) = taken else {
            let message = "other requests' bodies fill the room there is for them; try again later, or send less";
            let error = ApiError::unavailable("bodies_full", message);
            return Err(ApiError { retry_after_seconds: Some(RETRY_SECONDS), ..error });
        };
        match held {
            Some(held) => held.merge(taken),
            None => *held = Some(taken),
        }
        Ok(())
    }
}

/// The JSON object in a request's body.
pub(crate) async fn json_body(app: &App, headers: &HeaderMap, body: Body) -> Result<Map<String, Value>, ApiError> {
    long_json_body(app, headers, body).await.map(|(map, _)| map)
}

/// The same, and whether it is long.
pub(crate) async fn long_json_body(
    app: &App,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Map<String, Value>, bool), ApiError> {
    let is_json =
        |kind: &str| kind.split(';').next().is_some_and(|k| k.trim().eq_ignore_ascii_case("application/json"));
    if let Some(kind) =
        headers.get(header::CONTENT_TYPE).map(|kind| kind.to_str().unwrap_or_default()).filter(|kind| !is_json(kind))
    {
        let message =
            format!("the content type is `{kind}`, it must be `application/json`; set the header `Content-Type`");
        return Err(ApiError::bad("invalid_content_type", message));
    }
    let (bytes, held) = read_body(app, body).await?;
    if bytes.len() <= AT_ONCE_BYTES {
        return Ok((object(&bytes)?, false));
    }
    let read = move || {
        let _held = held;
        object(&bytes)
    };
    Ok((App::off_thread(read).await?, true))
}

fn object(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(ApiError::bad(
            "invalid_json",
            format!("the body is {}, it must be a JSON object", error::brief(&other)),
        )),
        Err(error) => Err(ApiError::bad("invalid_json", format!("the body is not JSON: {error}"))),
    }
}

/// An answer whose JSON text is there already.
pub(crate) fn json_text(text: String) -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// The body's bytes, and the room that they take.
async fn read_body(app: &App, body: Body) -> Result<(Bytes, Option<OwnedSemaphorePermit>), ApiError> {
    tokio::time::timeout(BODY_TIME, arriving(app, body)).await.unwrap_or_else(|_| {
        let message = format!("the body did not arrive within {} s; send it faster", BODY_TIME.as_secs());
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", message))
    })
}

async fn arriving(app: &App, mut body: Body) -> Result<(Bytes, Option<OwnedSemaphorePermit>), ApiError> {
    let limit = app.options.body_limit_bytes;
    let (mut bytes, mut held) = (Vec::new(), None);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ApiError::bad("incomplete_body", format!("the body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        let length = bytes.len().saturating_add(data.len());
        if length > limit {
            let message = format!("the body is larger than {limit} bytes, the limit of this server; send less");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message));
        }
        app.room.grow(&mut held, length)?;
        bytes.extend_from_slice(&data);
    }
    Ok((bytes.into(), held))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_bodies_always_find_room_and_long_ones_share_it() {
        let room = Room::new(4 * UNIT_BYTES);
        let (mut first, mut second, mut short) = (None, None, None);
        // A body takes more as it grows.
        room.grow(&mut first, AT_ONCE_BYTES + 1).unwrap();
        room.grow(&mut first, AT_ONCE_BYTES + 3 * UNIT_BYTES).unwrap();
        room.grow(&mut second, AT_ONCE_BYTES + UNIT_BYTES).unwrap();
        let error = room.grow(&mut second, AT_ONCE_BYTES + UNIT_BYTES + 1).unwrap_err();
        assert_eq!((error.status, error.code), (StatusCode::SERVICE_UNAVAILABLE, "bodies_full"));
        room.grow(&mut short, AT_ONCE_BYTES).unwrap();
        assert!(short.is_none());
        drop(first);
        room.grow(&mut second, AT_ONCE_BYTES + 4 * UNIT_BYTES).unwrap();
    }
}
