//! `POST /v1/messages` and `/v1/messages/count_tokens`: content blocks in, content blocks out.
//!
//! ```text
//!  request ── request, blocks, tools, thinking ─► TurnRequest ─► Turn ─┬─ whole   blocks in one object
//!                                                    │                  └─ stream  one open block at a time
//!                                                    └─► prompt ─► count_tokens
//! ```

mod blocks;
mod request;
mod stream;
mod thinking;
mod tools;
mod whole;

use crate::app::{App, json_body};
use crate::error::ApiError;
use crate::errors::RequestId;
use crate::fields::Fields;
use crate::ids;
use crate::sse;
use crate::turn::{Answers, Finish, FinishWord, Matched, Turn, Usage};
use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use request::Asked;
use serde_json::{Value, json};
use std::sync::Arc;

/// `POST /v1/messages`
pub(crate) async fn messages(
    State(app): State<Arc<App>>,
    Extension(request_id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = json_body(&app, &headers, body).await?;
    let Asked { turn, places, shown, stream } = request::asked(&app, Fields(&body), false)?;
    let head = Head { id: ids::name("msg_"), model: app.model.clone() };
    let turn = Turn::start(&app, turn).await.map_err(|error| tools::at_place(error, &places))?;
    let mut answers = Answers::from(turn);
    if stream {
        return Ok(sse::events(answers, stream::Blocks::new(head, shown, request_id)));
    }
    let whole = whole::whole(&mut answers, &head, shown).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], whole).into_response())
}

/// `POST /v1/messages/count_tokens`: how long the prompt of this request is.
pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let body = json_body(&app, &headers, body).await?;
    let asked = request::asked(&app, Fields(&body), true)?;
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
