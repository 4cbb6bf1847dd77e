//! `POST /v1/chat/completions`: reads the request, lets a turn be made, spells it at once or in chunks.

mod messages;
mod request;
mod spell;

use crate::app::App;
use crate::body;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::params;
use crate::payload::Payload;
use crate::sse;
use crate::turn::Turn;
use axum::extract::State;
use axum::response::Response;
use spell::{Head, Style};
use std::sync::Arc;

pub(crate) use request::{Tools, effort, thinking_off, tool_of, turn_request, verbosity};
pub(crate) use spell::{matched_json, usage_json};

/// The handler.
pub(crate) async fn chat(State(app): State<Arc<App>>, payload: Payload) -> Result<Response, ApiError> {
    let read = |app: &App, fields: Fields<'_>| {
        params::model(app, fields)?;
        Ok((params::stream_options(fields)?, Style::read(fields)?, turn_request(app, fields)?))
    };
    let (streaming, style, request) = payload.read(&app, read).await?;
    let head = Head::new(&app, request.params.rid.clone());
    let mut turn = Turn::start(&app, request).await?;
    if streaming.stream {
        let choices = turn.len();
        return Ok(sse::events(turn.into(), spell::Chunks::new(app, head, style, streaming, choices)));
    }
    let collected = turn.collect().await?;
    let usage = usage_json(turn.usage(), streaming.usage_of_drafts);
    // Log-probabilities can make it long.
    let text = App::off_thread(move || Ok(spell::whole(&app, &head, style, collected, usage)));
    Ok(body::json_text(text.await?))
}
