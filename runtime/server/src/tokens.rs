//! `/tokenize` and `/detokenize`: what the tokenizer and the chat template make of texts and ids.

use crate::app::App;
use crate::chat::turn_request;
use crate::error::ApiError;
use crate::fields::{Fields, token_id, wrong_type};
use crate::params::at_most;
use crate::payload::Payload;
use crate::turn::{Turn, TurnRequest};
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use std::sync::Arc;

/// Most texts that are encoded for one request.
const MOST_TEXTS: usize = 1024;

/// What is to be encoded.
enum Asked {
    Turn(Box<TurnRequest>),
    Texts { texts: Vec<String>, is_list: bool, add_special: bool },
}

fn asked(app: &App, fields: Fields<'_>) -> Result<Asked, ApiError> {
    if fields.get("messages").is_some() {
        if fields.get("prompt").is_some() {
            let message = "`prompt` and `messages` are both given, and only one of them is encoded; leave one out";
            return Err(ApiError::field("prompt", "invalid_value", message));
        }
        return Ok(Asked::Turn(Box::new(turn_request(app, fields)?)));
    }
    let add_special = fields.boolean("add_special_tokens")?.unwrap_or(true);
    match fields.get("prompt") {
        None => {
            let message = "neither `prompt` nor `messages` is given; send one of them";
            Err(ApiError::field("prompt", "missing_parameter", message))
        }
        Some(prompt) => {
            at_most("prompt", "texts", prompt.as_array().map_or(1, Vec::len), MOST_TEXTS)?;
            Ok(Asked::Texts { texts: fields.strings("prompt")?, is_list: prompt.is_array(), add_special })
        }
    }
}

/// `POST /tokenize {prompt | messages, add_special_tokens}`
pub(crate) async fn tokenize(State(app): State<Arc<App>>, payload: Payload) -> Result<Json<Value>, ApiError> {
    let answer = |tokens: Value, count: Value| json!({"tokens": tokens, "count": count, "max_model_len": app.service.limit_tokens()});
    let (texts, is_list, add_special) = match payload.read(&app, asked).await? {
        Asked::Texts { texts, is_list, add_special } => (texts, is_list, add_special),
        Asked::Turn(request) => {
            let ids = Turn::ids(&app, *request).await?;
            return Ok(Json(answer(json!(ids), json!(ids.len()))));
        }
    };
    let shared = app.clone();
    let encoded = app.encoding(move |_| {
        texts.iter().map(|text| shared.encode(text, add_special, "prompt")).collect::<Result<Vec<Vec<u32>>, _>>()
    });
    let encoded = encoded.await?;
    if is_list {
        let counts: Vec<usize> = encoded.iter().map(Vec::len).collect();
        return Ok(Json(answer(json!(encoded), json!(counts))));
    }
    let ids = encoded.into_iter().next().unwrap_or_default();
    Ok(Json(answer(json!(ids), json!(ids.len()))))
}

/// `POST /detokenize {tokens, skip_special_tokens}`
pub(crate) async fn detokenize(State(app): State<Arc<App>>, payload: Payload) -> Result<Json<Value>, ApiError> {
    payload.read(&app, texts).await.map(Json)
}

/// The text of ids, or of each list of them.
fn texts(app: &App, fields: Fields<'_>) -> Result<Value, ApiError> {
    let skip_special = fields.boolean("skip_special_tokens")?.unwrap_or(true);
    let list = fields.list("tokens")?.ok_or_else(|| {
        ApiError::field("tokens", "missing_parameter", "`tokens` is missing, send a list of token ids")
    })?;
    let decode = |ids: &[Value]| {
        let ids: Result<Vec<u32>, _> = ids.iter().map(|id| token_id("tokens", id, app.service.vocab())).collect();
        let text = app.text.tokenizer.decode(&ids?, skip_special);
        text.map_err(|error| ApiError::field("tokens", "invalid_value", error.to_string()))
    };
    if list.first().is_some_and(Value::is_array) {
        let texts: Result<Vec<String>, ApiError> = list
            .iter()
            .map(|ids| ids.as_array().ok_or_else(|| wrong_type("tokens", ids, "a list of token ids")))
            .map(|ids| ids.and_then(|ids| decode(ids)))
            .collect();
        return Ok(json!({"text": texts?}));
    }
    Ok(json!({"text": decode(list)?}))
}
