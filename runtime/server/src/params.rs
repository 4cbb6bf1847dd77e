//! Parameters that Chat Completions and Completions share: sampling, stopping, streaming, and what is refused.
//!
//! A parameter known here or from other servers that would change the answer is applied or refused, never passed over;
//! names that nobody knows are ignored.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Fields, token_id, wrong_type};
use engine::Sampling;
use serde_json::Value;
use std::hash::{BuildHasher, RandomState};

/// Below this a temperature is greedy: the quotient of two logits would leave the range of f32.
const GREEDY_BELOW: f32 = 1e-6;
const MOST_STOP_STRINGS: usize = 32;

/// What both routes read.
pub(crate) struct Common {
    pub sampling: Sampling,
    /// Token ids that end the answer.
    pub stop_tokens: Vec<u32>,
    pub stop_strings: Vec<String>,
    pub max_tokens: Option<usize>,
    pub skip_special: Option<bool>,
    pub stream: bool,
    pub usage_at_end: bool,
    pub usage_always: bool,
}

/// Reads them.
pub(crate) fn common(app: &App, fields: Fields<'_>) -> Result<Common, ApiError> {
    refuse(fields, &SHARED)?;
    fields.string("model")?;
    let options = fields.object("stream_options")?;
    let option = |key| options.map_or(Ok(None), |o| Fields(o).boolean(key));
    Ok(Common {
        sampling: sampling(app, fields)?,
        stop_tokens: stop_tokens(app, fields)?,
        stop_strings: stop_strings(fields)?,
        max_tokens: max_tokens(fields)?,
        skip_special: fields.boolean("skip_special_tokens")?,
        stream: fields.boolean("stream")?.unwrap_or(false),
        usage_at_end: option("include_usage")?.unwrap_or(false),
        usage_always: option("continuous_usage_stats")?.unwrap_or(false),
    })
}

fn sampling(app: &App, fields: Fields<'_>) -> Result<Sampling, ApiError> {
    let defaults = &app.text.defaults;
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
        seed: fields.whole("seed", i64::MIN)?.map_or_else(random_word, |seed| seed as u64),
        ..Sampling::default()
    })
}

/// A word that nobody can foresee, for seeds and ids.
pub(crate) fn random_word() -> u64 {
    RandomState::new().hash_one(0u8)
}

fn logit_bias(app: &App, fields: Fields<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(map) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let entry = |(key, value): (&String, &Value)| {
        let id = key.parse::<u32>().ok().filter(|id| (*id as usize) < app.service.vocab()).ok_or_else(|| {
            let message =
                format!("`logit_bias` names `{key}`, token ids go from 0 to {}", app.service.vocab().saturating_sub(1));
            ApiError::field("logit_bias", "invalid_value", message)
        })?;
        let bias = value.as_f64().filter(|x| (-100.0..=100.0).contains(x));
        bias.map(|x| (id, x as f32))
            .ok_or_else(|| wrong_type("logit_bias", value, "a number from -100 to 100 for each token"))
    };
    map.iter().map(entry).collect()
}

fn stop_tokens(app: &App, fields: Fields<'_>) -> Result<Vec<u32>, ApiError> {
    let mut tokens = if fields.boolean("ignore_eos")?.unwrap_or(false) { Vec::new() } else { app.text.stop.clone() };
    for id in fields.list("stop_token_ids")?.into_iter().flatten() {
        tokens.push(token_id("stop_token_ids", id, app.service.vocab())?);
    }
    Ok(tokens)
}

fn stop_strings(fields: Fields<'_>) -> Result<Vec<String>, ApiError> {
    let strings = fields.strings("stop")?;
    if strings.len() > MOST_STOP_STRINGS {
        let message = format!("`stop` has {} strings, at most {MOST_STOP_STRINGS} are allowed", strings.len());
        return Err(ApiError::field("stop", "invalid_value", message));
    }
    if strings.iter().any(String::is_empty) {
        return Err(ApiError::field(
            "stop",
            "invalid_value",
            "`stop` has an empty string, which would end every answer at once; remove it",
        ));
    }
    Ok(strings)
}

fn max_tokens(fields: Fields<'_>) -> Result<Option<usize>, ApiError> {
    let newer = fields.whole("max_completion_tokens", 1)?;
    let older = fields.whole("max_tokens", 1)?;
    Ok(newer.or(older).map(|n| usize::try_from(n).unwrap_or(usize::MAX)))
}

/// A parameter, the values that change nothing, and what to do instead.
pub(crate) type Refused = (&'static str, fn(&Value) -> bool, &'static str);

pub(crate) const LEAVE_OUT: &str = "leave it out";

pub(crate) fn never(_: &Value) -> bool {
    false
}

pub(crate) fn is_false(value: &Value) -> bool {
    value == &Value::Bool(false)
}

pub(crate) fn is_true(value: &Value) -> bool {
    value == &Value::Bool(true)
}

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

pub(crate) fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

const SHARED: [Refused; 19] = [
    ("n", is_one, "send one request for each answer"),
    ("best_of", is_one, LEAVE_OUT),
    ("use_beam_search", is_false, LEAVE_OUT),
    ("length_penalty", is_one, LEAVE_OUT),
    ("prompt_logprobs", never, LEAVE_OUT),
    ("min_tokens", is_zero, LEAVE_OUT),
    ("stop_regex", never, "use `stop` with plain strings"),
    ("regex", never, LEAVE_OUT),
    ("ebnf", never, LEAVE_OUT),
    ("json_schema", never, LEAVE_OUT),
    ("structural_tag", never, LEAVE_OUT),
    ("structured_outputs", never, LEAVE_OUT),
    ("guided_json", never, LEAVE_OUT),
    ("guided_regex", never, LEAVE_OUT),
    ("guided_choice", never, LEAVE_OUT),
    ("guided_grammar", never, LEAVE_OUT),
    ("lora_path", never, LEAVE_OUT),
    ("no_stop_trim", is_false, LEAVE_OUT),
    ("suffix", never, LEAVE_OUT),
];

/// Refuses the parameters of a table.
pub(crate) fn refuse(fields: Fields<'_>, table: &[Refused]) -> Result<(), ApiError> {
    for (key, is_harmless, instead) in table {
        if let Some(value) = fields.get(key).filter(|value| !is_harmless(value)) {
            return Err(ApiError::unsupported(key, value, instead));
        }
    }
    Ok(())
}
