//! Parameters that protocols share: sampling, stopping, streaming. What is refused stands in [`crate::known`].

use crate::app::App;
use crate::error::{ApiError, brief};
use crate::fields::{Fields, token_id};
use crate::ids::random;
use crate::turn::Params;
use engine::Sampling;
use serde_json::Value;
use std::sync::Arc;

/// Below this a temperature is greedy: the quotient of two logits would leave the range of f32.
const GREEDY_BELOW: f32 = 1e-6;
const MOST_STOP_STRINGS: usize = 32;
/// Longest stop string.
const STOP_BYTES: usize = 1024;
/// Most stop tokens of a request, those of the model apart.
const MOST_STOP_TOKENS: usize = 256;
/// Most tokens with a bias: the list is gone through for every token of an answer.
const MOST_BIASED: usize = 1024;
/// Longest name of a request.
const RID_BYTES: usize = 256;
/// Longest salt.
const SALT_BYTES: usize = 256;
/// Most alternatives that are reported for a token.
pub(crate) const MOST_LOGPROBS: i64 = 20;
/// Most answers to one prompt.
const MOST_CHOICES: usize = 128;

/// What a protocol calls the parameters whose names differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParamNames {
    /// Names of the answer's limit, the first that is present counts.
    pub max_tokens: &'static [&'static str],
    /// Name of the stop strings.
    pub stop: &'static str,
}

/// Those of Chat Completions and Completions.
pub(crate) const OPENAI: ParamNames = ParamNames { max_tokens: &["max_completion_tokens", "max_tokens"], stop: "stop" };

/// Reads them.
pub(crate) fn params(app: &App, fields: Fields<'_>, names: ParamNames) -> Result<Params, ApiError> {
    let mut max_tokens = None;
    for name in names.max_tokens {
        max_tokens = max_tokens.or(fields.whole(name, 0)?.map(|n| (*name, n)));
    }
    Ok(Params {
        salt: salt(fields)?,
        priority: priority(fields)?,
        sampling: sampling(app, fields)?,
        max_tokens: max_tokens.map(|(_, n)| usize::try_from(n).unwrap_or(usize::MAX)),
        min_tokens: fields.whole("min_tokens", 0)?.map_or(0, |n| usize::try_from(n).unwrap_or(usize::MAX)),
        stop_tokens: stop_tokens(app, fields)?,
        stop_strings: stop_strings(fields, names.stop)?,
        keeps_stop: fields.boolean("no_stop_trim")?.or(fields.boolean("include_stop_str_in_output")?).unwrap_or(false),
        ignores_end: fields.boolean("ignore_eos")?.unwrap_or(false),
        skip_special: fields.boolean("skip_special_tokens")?,
        rid: rid(fields)?,
    })
}

/// The name that a client gives its request. No two requests that are not finished have the same.
pub(crate) fn rid(fields: Fields<'_>) -> Result<Option<String>, ApiError> {
    for name in ["rid", "request_id"] {
        let Some(rid) = fields.string(name)? else { continue };
        if rid.is_empty() || rid.len() > RID_BYTES {
            return Err(fields.outside(name, &format!("a name of 1 to {RID_BYTES} bytes")));
        }
        return Ok(Some(rid.to_owned()));
    }
    Ok(None)
}

/// Refuses a list that is too long.
pub(crate) fn at_most(name: &str, what: &str, found: usize, most: usize) -> Result<(), ApiError> {
    if found <= most {
        return Ok(());
    }
    let message = format!("`{name}` has {found} {what}, at most {most} are allowed; send fewer");
    Err(ApiError::field(name, "invalid_value", message))
}

/// Requests with different salts share no cached work, so that none can tell from its speed what another has asked.
pub(crate) fn salt(fields: Fields<'_>) -> Result<Option<Arc<str>>, ApiError> {
    let Some(salt) = fields.string("cache_salt")? else { return Ok(None) };
    match (1..=SALT_BYTES).contains(&salt.len()) {
        true => Ok(Some(salt.into())),
        false => Err(fields.outside("cache_salt", "a text of 1 to 256 bytes")),
    }
}

/// More goes first, where the server's policy looks at it.
pub(crate) fn priority(fields: Fields<'_>) -> Result<i32, ApiError> {
    let priority = fields.whole("priority", i64::from(i32::MIN))?.unwrap_or(0);
    i32::try_from(priority).map_err(|_| fields.outside("priority", "from -2147483648 to 2147483647"))
}

fn sampling(app: &App, fields: Fields<'_>) -> Result<Sampling, ApiError> {
    let none = text::GenerationDefaults::default();
    let defaults = if app.options.checkpoint_sampling { &app.text.defaults } else { &none };
    let or = |value: Option<f32>, recommended: Option<f32>, else_: f32| value.or(recommended).unwrap_or(else_);
    let temperature = fields.number("temperature", "0 or more", |x| x >= 0.0)?;
    let temperature = or(temperature, defaults.temperature, 1.0);
    let share = |x: f32| x > 0.0 && x <= 1.0;
    let penalty = |key| fields.number(key, "from -2 to 2", |x| (-2.0..=2.0).contains(&x));
    let repetition = fields.number("repetition_penalty", "more than 0 and at most 2", |x| x > 0.0 && x <= 2.0)?;
    let top_k = match fields.whole("top_k", -1)? {
        Some(0) => return Err(fields.outside("top_k", "-1 (all) or at least 1")),
        Some(k) => u32::try_from(k).unwrap_or(if k < 0 { 0 } else { u32::MAX }),
        None => defaults.top_k.unwrap_or(0),
    };
    Ok(Sampling {
        bias: logit_bias(app, fields)?,
        repetition_penalty: or(repetition, defaults.repetition_penalty, 1.0),
        frequency_penalty: penalty("frequency_penalty")?.unwrap_or(0.0),
        presence_penalty: penalty("presence_penalty")?.unwrap_or(0.0),
        temperature: if temperature < GREEDY_BELOW { 0.0 } else { temperature },
        top_k,
        top_p: or(fields.number("top_p", "more than 0 and at most 1", share)?, defaults.top_p, 1.0),
        min_p: or(fields.number("min_p", "from 0 to 1", |x| (0.0..=1.0).contains(&x))?, defaults.min_p, 0.0),
        seed: fields.whole("seed", i64::MIN)?.map_or_else(random, |seed| seed as u64),
        untouched_logprobs: app.options.untouched_logprobs,
        ..Sampling::default()
    })
}

fn logit_bias(app: &App, fields: Fields<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(map) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    at_most("logit_bias", "tokens", map.len(), MOST_BIASED)?;
    let entry = |(key, value): (&String, &Value)| {
        let id = key.parse::<u32>().ok().filter(|id| (*id as usize) < app.service.vocab());
        // One id has one spelling, so that none is there twice.
        let id = id.filter(|id| id.to_string() == *key).ok_or_else(|| {
            let most = app.service.vocab().saturating_sub(1);
            let shown = brief(&Value::from(key.as_str()));
            let message = format!("`logit_bias` names {shown}, token ids go from 0 to {most}, in digits alone");
            ApiError::field("logit_bias", "invalid_value", message)
        })?;
        let bias = value.as_f64().ok_or_else(|| {
            let message =
                format!("`logit_bias` is {} for the token {id}, it must be a number from -100 to 100", brief(value));
            ApiError::field("logit_bias", "invalid_type", message)
        })?;
        match (-100.0..=100.0).contains(&bias) {
            true => Ok((id, bias as f32)),
            false => {
                let message =
                    format!("`logit_bias` is {} for the token {id}, it must be from -100 to 100", brief(value));
                Err(ApiError::field("logit_bias", "invalid_value", message))
            }
        }
    };
    map.iter().map(entry).collect()
}

fn stop_tokens(app: &App, fields: Fields<'_>) -> Result<Vec<u32>, ApiError> {
    let mut tokens = if fields.boolean("ignore_eos")?.unwrap_or(false) { Vec::new() } else { app.text.stop.clone() };
    let name = "stop_token_ids";
    let given = fields.list(name)?.map_or(&[][..], Vec::as_slice);
    at_most(name, "ids", given.len(), MOST_STOP_TOKENS)?;
    for id in given {
        let id = token_id(name, id, app.service.vocab())?;
        if !tokens.contains(&id) {
            tokens.push(id);
        }
    }
    Ok(tokens)
}

fn stop_strings(fields: Fields<'_>, name: &str) -> Result<Vec<String>, ApiError> {
    let strings = fields.strings(name)?;
    at_most(name, "strings", strings.len(), MOST_STOP_STRINGS)?;
    if let Some(long) = strings.iter().find(|string| string.len() > STOP_BYTES) {
        let message = format!("`{name}` has a string of {} bytes, at most {STOP_BYTES} are allowed", long.len());
        return Err(ApiError::field(name, "invalid_value", message));
    }
    if strings.iter().any(String::is_empty) {
        let message = format!("`{name}` has an empty string, which would end every answer at once; remove it");
        return Err(ApiError::field(name, "invalid_value", message));
    }
    Ok(strings)
}

/// How many answers are wanted.
pub(crate) fn choices(fields: Fields<'_>) -> Result<usize, ApiError> {
    let n = fields.whole("n", 1)?.map_or(1, |n| usize::try_from(n).unwrap_or(usize::MAX));
    if n > MOST_CHOICES { Err(fields.outside("n", &format!("at most {MOST_CHOICES}"))) } else { Ok(n) }
}

/// How a stream reports what it costs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamOptions {
    /// Whether there is a stream at all.
    pub stream: bool,
    /// Whether the last chunk has the usage.
    pub usage_at_end: bool,
    /// Whether every chunk has it.
    pub usage_always: bool,
    /// Whether it says what became of drafts, with a stream or without.
    pub usage_of_drafts: bool,
}

/// Reads `stream`, `stream_options` and what usage has besides.
pub(crate) fn stream_options(fields: Fields<'_>) -> Result<StreamOptions, ApiError> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let options = fields.object("stream_options")?;
    let option = |key| options.map_or(Ok(None), |o| Fields(o).boolean(key).map_err(|e| e.inside("stream_options")));
    Ok(StreamOptions {
        stream,
        usage_at_end: option("include_usage")?.unwrap_or(false),
        usage_always: option("continuous_usage_stats")?.unwrap_or(false),
        usage_of_drafts: fields.boolean("return_prediction_tokens")?.unwrap_or(false),
    })
}

/// Refuses a model that this server does not have. A request that names none means the one there is.
pub(crate) fn model(app: &App, fields: Fields<'_>) -> Result<(), ApiError> {
    match fields.string("model")? {
        Some(model) if model != app.model && model != "default" => Err(unknown_model(app, model)),
        _ => Ok(()),
    }
}

/// The error for a model that this server does not have.
pub(crate) fn unknown_model(app: &App, model: &str) -> ApiError {
    let message = format!("there is no model `{model}`, this server has `{}`", app.model);
    let error = ApiError::new(axum::http::StatusCode::NOT_FOUND, "model_not_found", message);
    ApiError { param: Some("model".into()), ..error }
}
