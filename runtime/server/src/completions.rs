//! `POST /v1/completions`: prompts as text or token ids, continued as they stand.

use crate::answer::{Answer, Part, usage_json};
use crate::app::{App, json_body};
use crate::error::ApiError;
use crate::fields::{Fields, token_id, wrong_type};
use crate::params::{Common, LEAVE_OUT, Refused, common, is_false, never, refuse};
use crate::stream::{Chunks, Head, events, total};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use engine::Request;
use serde_json::{Map, Value, json};
use std::sync::Arc;

const DEFAULT_MAX_TOKENS: usize = 16;
const MOST_PROMPTS: usize = 128;

const REFUSED: [Refused; 3] = [
    ("logprobs", never, LEAVE_OUT),
    ("echo", is_false, "put the prompt in front of the answer yourself"),
    ("response_format", never, LEAVE_OUT),
];

/// The handler.
pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = json_body(&app, &headers, body).await?;
    let shared = app.clone();
    let (prompts, common) = App::off_thread(move || prepare(&shared, &body)).await?;
    let mut answers = Vec::new();
    for prompt in prompts {
        let prompt_tokens = prompt.len();
        let request = Request {
            prompt,
            max_tokens: Some(common.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS)),
            sampling: common.sampling.clone(),
            stop: common.stop_tokens.clone(),
        };
        let generation = app.submit(request, "prompt").await?;
        let skip_special = common.skip_special.unwrap_or(true);
        let stops = common.stop_strings.clone();
        answers.push(Answer::new(generation, app.text.clone(), stops, skip_special, prompt_tokens));
    }
    let head = Head::new("cmpl", "text_completion", &app.model);
    if common.stream {
        return Ok(events(head, TextChunks, answers, &common));
    }
    let mut choices = Vec::new();
    for (index, answer) in answers.iter_mut().enumerate() {
        let (text, ending) = answer.rest().await?;
        choices.push(choice(index, text, json!(ending.finish_reason), ending.stop_reason));
    }
    let mut whole = head.with(choices);
    whole.insert("usage".into(), usage_json(total(&answers)));
    Ok(Json(whole).into_response())
}

fn prepare(app: &App, body: &Map<String, Value>) -> Result<(Vec<Vec<u32>>, Common), ApiError> {
    let fields = Fields(body);
    refuse(fields, &REFUSED)?;
    let common = common(app, fields)?;
    let prompts = match fields.get("prompt") {
        None => return Err(ApiError::field("prompt", "missing_parameter", "`prompt` is missing, add it")),
        Some(Value::Array(list)) if list.first().is_some_and(|first| !first.is_number()) => {
            if list.len() > MOST_PROMPTS {
                let message = format!("`prompt` has {} prompts, at most {MOST_PROMPTS} are allowed", list.len());
                return Err(ApiError::field("prompt", "invalid_value", message));
            }
            list.iter().map(|one| prompt(app, one)).collect::<Result<_, _>>()?
        }
        Some(one) => vec![prompt(app, one)?],
    };
    Ok((prompts, common))
}

/// The ids of one prompt.
fn prompt(app: &App, value: &Value) -> Result<Vec<u32>, ApiError> {
    match value {
        Value::String(text) => app.encode(text, true, "prompt"),
        Value::Array(ids) => ids.iter().map(|id| token_id("prompt", id, app.service.vocab())).collect(),
        other => Err(wrong_type("prompt", other, "a string, a list of token ids, or a list of these")),
    }
}

fn choice(index: usize, text: String, finish_reason: Value, stop_reason: Value) -> Value {
    json!({
        "index": index,
        "text": text,
        "logprobs": null,
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
    })
}

struct TextChunks;

impl Chunks for TextChunks {
    fn first(&self, _: usize) -> Option<Value> {
        None
    }

    fn part(&self, index: usize, part: Part) -> Value {
        match part {
            Part::Text(text) => choice(index, text, Value::Null, Value::Null),
            Part::End(end) => choice(index, String::new(), json!(end.finish_reason), end.stop_reason),
        }
    }
}
