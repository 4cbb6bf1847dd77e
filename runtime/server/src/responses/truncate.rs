//! `truncation: "auto"`: where a conversation is too long, its oldest turns are left out of the prompt.

use crate::app::App;
use crate::error::ApiError;
use crate::turn::{Turn, TurnRequest};
use serde_json::Value;
use std::sync::Arc;

/// The request with as few of its oldest turns left out as make it fit; the last stays, whatever it costs.
pub(super) async fn fitting(app: &Arc<App>, request: TurnRequest) -> Result<TurnRequest, ApiError> {
    if fits(app, &request).await? {
        return Ok(request);
    }
    let begins = turns(&request.messages);
    // The fewest turns to leave out, between one that is too few and all but the last.
    let (mut few, mut enough) = (0, begins.len().saturating_sub(1));
    while few + 1 < enough {
        let middle = few + (enough - few) / 2;
        if fits(app, &without(&request, &begins, middle)).await? { enough = middle } else { few = middle }
    }
    Ok(without(&request, &begins, enough))
}

/// Where turns begin: at every message of a user, and where what precedes them ends.
fn turns(messages: &[Value]) -> Vec<usize> {
    let role = |message: &Value| message.get("role").and_then(Value::as_str).unwrap_or_default().to_owned();
    let first = messages.iter().position(|m| !matches!(role(m).as_str(), "system" | "developer")).unwrap_or(0);
    let is_begin = |(i, message): (usize, &Value)| (i == first || (i > first && role(message) == "user")).then_some(i);
    messages.iter().enumerate().filter_map(is_begin).collect()
}

fn without(request: &TurnRequest, begins: &[usize], count: usize) -> TurnRequest {
    let mut shorter = request.clone();
    if let (Some(first), Some(kept)) = (begins.first(), begins.get(count)) {
        shorter.messages.drain(*first..*kept);
    }
    shorter
}

async fn fits(app: &Arc<App>, request: &TurnRequest) -> Result<bool, ApiError> {
    let answer_tokens = request.params.max_tokens.unwrap_or(1).max(1);
    match Turn::ids(app, request.clone()).await {
        Ok(ids) => Ok(ids.len().saturating_add(answer_tokens) <= app.service.limit_tokens()),
        Err(error) if matches!(error.code, "context_length_exceeded" | "request_too_large") => Ok(false),
        Err(error) => Err(error),
    }
}
