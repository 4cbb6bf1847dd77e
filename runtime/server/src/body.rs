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
use tokio::time::Instant;

/// How long a client may take to send a body.
const BODY_TIME: Duration = Duration::from_secs(120);
/// In each such time a body brings so many bytes, or its end: one that comes slower holds room that others need.
const PACE_TIME: Duration = Duration::from_secs(15);
const PACE_BYTES: usize = 32 << 10;
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
    plain_encoding(headers)?;
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

/// Refuses a body that says it is compressed: its bytes would be taken for JSON.
fn plain_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let all = headers.get_all(header::CONTENT_ENCODING).iter().map(|value| value.to_str().unwrap_or("?"));
    let named = all.flat_map(|value| value.split(',')).map(str::trim).filter(|name| !name.is_empty());
    match named.into_iter().find(|name| !name.eq_ignore_ascii_case("identity")) {
        None => Ok(()),
        Some(name) => {
            let shown = error::brief(&Value::from(name));
            let message = format!(
                "the header `Content-Encoding` is {shown}, only `identity` is read; send the body uncompressed"
            );
            Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", message))
        }
    }
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
    tokio::time::timeout(BODY_TIME, arriving(app, body, PACE_TIME)).await.unwrap_or_else(|_| {
        Err(too_slow(format!("the body did not arrive within {} s; send it faster", BODY_TIME.as_secs())))
    })
}

fn too_slow(message: String) -> ApiError {
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", message)
}

/// How fast a body comes.
struct Pace {
    time: Duration,
    /// When the next bytes must have come, and how many of them have.
    until: Instant,
    bytes: usize,
}

impl Pace {
    fn new(time: Duration) -> Pace {
        Pace { time, until: Instant::now() + time, bytes: 0 }
    }

    /// More bytes have come: with enough of them, the time begins anew.
    fn brings(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes >= PACE_BYTES {
            *self = Pace::new(self.time);
        }
    }
}

async fn arriving(
    app: &App,
    mut body: Body,
    pace_time: Duration,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>), ApiError> {
    let limit = app.options.body_limit_bytes;
    let (mut bytes, mut held, mut pace) = (Vec::new(), None, Pace::new(pace_time));
    loop {
        let frame = tokio::time::timeout_at(pace.until, body.frame()).await.map_err(|_| {
            let (found, seconds) = (pace.bytes, pace_time.as_secs());
            too_slow(format!(
                "{found} bytes of the body came in {seconds} s, {PACE_BYTES} are the least; send it faster"
            ))
        })?;
        let Some(frame) = frame else { return Ok((bytes.into(), held)) };
        let frame = frame.map_err(|error| ApiError::bad("incomplete_body", format!("the body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        let length = bytes.len().saturating_add(data.len());
        if length > limit {
            let message = format!("the body is larger than {limit} bytes, the limit of this server; send less");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message));
        }
        app.room.grow(&mut held, length)?;
        bytes.extend_from_slice(&data);
        pace.brings(data.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream::{StreamExt, iter, pending};
    use std::convert::Infallible;

    /// A body whose pieces are there at once, and which then goes on without end or is over.
    fn pieces(count: usize, goes_on: bool) -> Body {
        let there = iter(vec![Ok::<_, Infallible>(vec![b'x'; 1000]); count]);
        if goes_on { Body::from_stream(there.chain(pending())) } else { Body::from_stream(there) }
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_on_is_given_up_and_its_room_is_free() {
        let app = crate::tests::app("");
        let (bytes, held) = arriving(&app, pieces(100, false), Duration::ZERO).await.unwrap();
        assert_eq!((bytes.len(), held.is_some()), (100_000, true));
        drop(held);
        let free = app.room.0.available_permits();
        let error = arriving(&app, pieces(100, true), Duration::ZERO).await.unwrap_err();
        assert_eq!((error.status, error.code), (StatusCode::REQUEST_TIMEOUT, "body_too_slow"));
        assert_eq!(app.room.0.available_permits(), free);
        let mut pace = Pace::new(PACE_TIME);
        let first = pace.until;
        pace.brings(PACE_BYTES - 1);
        assert_eq!((pace.until, pace.bytes), (first, PACE_BYTES - 1));
        pace.brings(1);
        assert!(pace.until >= first && pace.bytes == 0);
    }

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
