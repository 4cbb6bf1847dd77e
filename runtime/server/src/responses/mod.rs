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
mod truncate;
mod weave;

use crate::app::App;
use crate::error::ApiError;
use crate::payload::Payload;
use crate::sse::{self, Frame, Spell};
use crate::turn::{Answers, Turn};
use axum::Json;
use axum::extract::State;
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
pub(crate) async fn create(State(app): State<Arc<App>>, payload: Payload) -> Result<Response, ApiError> {
    let mut asked = payload.read_apart(&app, Asked::read).await?;
    let mut turn = std::mem::take(&mut asked.turn);
    if asked.truncates {
        turn = truncate::fitting(&app, turn).await?;
    }
    let turn = Turn::start(&app, turn).await.map_err(|error| asked.reword(error))?;
    let mut answers = Answers::from(turn);
    let Asked { head, shape, stream, store, background, input, previous, .. } = asked;
    let mut weave = Weave::new(app.clone(), head, shape, stream, store);
    if store {
        let running = Running { requests: answers.ids().to_vec(), making: weave.making() };
        app.responses.begin(weave.id(), weave.response(), previous, input, running);
    }
    if background {
        return Ok(in_background(&app, answers, weave, stream));
    }
    if stream {
        return Ok(sse::events(answers, weave));
    }
    drive(&mut answers, &mut weave, None).await?;
    Ok(Json(Value::Object(weave.response())).into_response())
}

/// `POST /v1/responses/input_tokens`: what a request's prompt would cost.
pub(crate) async fn input_tokens(State(app): State<Arc<App>>, payload: Payload) -> Result<Json<Value>, ApiError> {
    let asked = payload.read_apart(&app, Asked::read).await?;
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
                tell(weave.failed(&error, answers.usage()));
                return Err(error);
            }
        }
    }
}

/// Answers at once and goes on in a task of its own.
fn in_background(app: &App, mut answers: Answers, mut weave: Weave, streams: bool) -> Response {
    let (listener, frames) = unbounded_channel();
    let begun = Value::Object(weave.response());
    let counted = app.background.subscribe();
    tokio::spawn(async move {
        let _counted = counted;
        // The error is in the stored response.
        let _ = drive(&mut answers, &mut weave, streams.then_some(listener)).await;
    });
    if streams { sse::frames(frames) } else { Json(begun).into_response() }
}
