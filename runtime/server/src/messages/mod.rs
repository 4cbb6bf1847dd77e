//! `POST /v1/messages` and `/v1/messages/count_tokens`: content blocks in, content blocks out.
//!
//! ```text
//!  request ── request, blocks, tools, thinking ─► TurnRequest ─► Turn ─► spell: blocks, in events or one object
//!                                                    └─► prompt ─► count_tokens
//! ```

mod blocks;
mod request;
mod spell;
mod thinking;
mod tools;

use crate::app::App;
use crate::error::ApiError;
use crate::errors::RequestId;
use crate::ids;
use crate::payload::Payload;
use crate::sse::{self, Spell};
use crate::turn::{Answers, Finish, FinishWord, Matched, Turn, Usage};
use axum::Json;
use axum::extract::{Extension, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use request::Asked;
use serde_json::{Value, json};
use std::sync::Arc;

/// `POST /v1/messages`
pub(crate) async fn messages(
    State(app): State<Arc<App>>,
    Extension(request_id): Extension<RequestId>,
    payload: Payload,
) -> Result<Response, ApiError> {
    let asked = payload.read(&app, |app, fields| request::asked(app, fields, false)).await?;
    let Asked { turn, places, shown, stream } = asked;
    let head = Head { id: ids::name("msg_"), model: app.model.clone() };
    let turn = Turn::start(&app, turn).await.map_err(|error| tools::at_place(error, &places))?;
    let mut answers = Answers::from(turn);
    let mut blocks = spell::Blocks::new(head, shown, request_id, stream);
    if stream {
        return Ok(sse::events(answers, blocks));
    }
    while let Some(step) = answers.next().await? {
        blocks.step(step, answers.usage());
    }
    let whole = blocks.whole(answers.usage())?;
    Ok(([(header::CONTENT_TYPE, "application/json")], whole).into_response())
}

/// `POST /v1/messages/count_tokens`: how long the prompt of this request is.
pub(crate) async fn count_tokens(State(app): State<Arc<App>>, payload: Payload) -> Result<Json<Value>, ApiError> {
    let asked = payload.read(&app, |app, fields| request::asked(app, fields, true)).await?;
    let ids = Turn::ids(&app, asked.turn).await?;
    Ok(Json(json!({"input_tokens": ids.len()})))
}

/// What an answer begins with.
struct Head {
    id: String,
    model: String,
}

/// What an answer cost. Tokens that were in the cache are counted apart from the others of the prompt.
fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(usage.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    })
}

/// `stop_reason` and `stop_sequence`. An answer that was given up has no reason in this protocol: it is an error.
fn stop(finish: Option<&Finish>) -> Result<(&'static str, Option<&str>), ApiError> {
    let (word, matched) = finish.map_or((FinishWord::Abort, None), |finish| (finish.word, finish.matched.as_ref()));
    match (word, matched) {
        (FinishWord::ToolCalls, _) => Ok(("tool_use", None)),
        (FinishWord::Length, _) => Ok(("max_tokens", None)),
        (FinishWord::Stop, Some(Matched::Text(text))) => Ok(("stop_sequence", Some(text))),
        (FinishWord::Stop, _) => Ok(("end_turn", None)),
        (FinishWord::Abort, _) => {
            let message = "the request was given up by an operator or by the server on its way down; ask again";
            Err(ApiError::unavailable("aborted", message))
        }
    }
}
