//! `/v1/responses`: reads the request, lets a turn be made, tells it at once, in events or later.
//!
//! ```text
//!  JSON ─► request ─► items, fold ─► messages ─┐
//!                  └► tools, choice ─► functions┴─► Turn ─► Step ─► weave ─► events, response ─► store
//! ```
//!
//! A response is stored unless its request says no, up to the limits of the [`Store`]; then it can be fetched, continued
//! (`previous_response_id`), cancelled and deleted. With `background` it is made whether or not anybody listens.

mod arguments;
mod choice;
mod fold;
mod items;
mod open;
mod request;
mod seal;
mod store;
mod stored;
mod tools;
mod trail;
mod truncate;
mod weave;

use crate::app::{App, json_body};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::sse::{self, Frame, Spell};
use crate::turn::{Answers, Turn};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use request::Asked;
use serde_json::{Value, json};
use std::sync::Arc;
use store::Running;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use weave::Weave;

pub(crate) use store::Store;
pub(crate) use stored::{cancel, delete, input_items, retrieve};

/// `POST /v1/responses`
pub(crate) async fn create(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    let body = json_body(&app, &headers, body).await?;
    let mut asked = Asked::read(&app, Fields(&body))?;
    drop(body);
    let mut turn = std::mem::take(&mut asked.turn);
    if asked.truncates {
        turn = truncate::fitting(&app, turn).await?;
    }
    let rid = turn.params.rid.clone().unwrap_or_default();
    let turn = Turn::start(&app, turn).await.map_err(|error| asked.reword(error))?;
    let weave = Weave::new(app.clone(), asked.head.clone(), asked.shape.clone(), asked.stream, asked.store);
    if asked.store {
        let running = Running { rid, is_cancelled: weave.cancel_flag() };
        app.responses.begin(weave.id(), weave.response(), asked.previous.clone(), asked.input.clone(), running);
    }
    if asked.background {
        return Ok(in_background(turn.into(), weave, asked.stream));
    }
    if asked.stream {
        return Ok(sse::events(turn.into(), weave));
    }
    let mut weave = weave;
    drive(&mut turn.into(), &mut weave, None).await?;
    Ok(Json(Value::Object(weave.response())).into_response())
}

/// `POST /v1/responses/input_tokens`: what a request's prompt would cost.
pub(crate) async fn input_tokens(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let body = json_body(&app, &headers, body).await?;
    let asked = Asked::read(&app, Fields(&body))?;
    let ids = Turn::ids(&app, asked.turn).await?;
    Ok(Json(json!({"object": "response.input_tokens", "input_tokens": ids.len()})))
}

/// Makes a whole response, and tells its events to who listens, if anybody does.
async fn drive(
    answers: &mut Answers,
    weave: &mut Weave,
    listener: Option<UnboundedSender<Frame>>,
) -> Result<(), ApiError> {
    let tell = |frames: Vec<Frame>| {
        for frame in frames {
            // Who went away misses the rest.
            let _ = listener.as_ref().map(|listener| listener.send(frame));
        }
    };
    tell(weave.begin(answers.usage()));
    loop {
        match answers.next().await {
            Ok(Some(step)) => tell(weave.step(step, answers.usage())),
            Ok(None) => {
                tell(weave.end(answers.usage()));
                return Ok(());
            }
            Err(error) => {
                tell(weave.failed(&error));
                return Err(error);
            }
        }
    }
}

/// Answers at once and goes on in a task of its own.
fn in_background(mut answers: Answers, mut weave: Weave, streams: bool) -> Response {
    let (listener, frames) = unbounded_channel();
    let begun = Value::Object(weave.response());
    tokio::spawn(async move {
        // The error is in the stored response.
        let _ = drive(&mut answers, &mut weave, streams.then_some(listener)).await;
    });
    if streams { sse::frames(frames) } else { Json(begun).into_response() }
}
