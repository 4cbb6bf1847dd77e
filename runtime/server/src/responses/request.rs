//! A request's JSON as a turn request, and what the response says again of it.

use super::fold::Fold;
use super::items::{Known, items, too_much};
use super::store::{Found, Items, Node, Store};
use super::tools::{Declared, Origin};
use crate::app::{App, now_seconds};
use crate::chat::{effort, thinking_off, verbosity};
use crate::error::ApiError;
use crate::fields::{Fields, missing, wrong_type};
use crate::format::{self, json_schema};
use crate::ids;
use crate::known::{self, RESPONSES};
use crate::params::{self, MOST_LOGPROBS, ParamNames};
use crate::turn::{FieldNames, Format, TurnRequest};
use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use text::grammar::GrammarSpec;

const PARAMS: ParamNames = ParamNames { max_tokens: &["max_output_tokens"], stop: "stop" };
const NAMES: FieldNames = FieldNames {
    prompt: "input",
    max_tokens: "max_output_tokens",
    format: "text.format",
    function: "",
    parameters: "parameters",
};
/// What `include` may ask for. What belongs to hosted tools never occurs.
const INCLUDED: [&str; 8] = [
    ENCRYPTED,
    LOGPROBS,
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
];
const ENCRYPTED: &str = "reasoning.encrypted_content";
const LOGPROBS: &str = "message.output_text.logprobs";

/// A request, read.
pub(super) struct Asked {
    pub turn: TurnRequest,
    /// Whether the oldest turns may be left out where the prompt is too long.
    pub truncates: bool,
    pub stream: bool,
    pub background: bool,
    pub store: bool,
    /// The items of this request alone.
    pub input: Arc<Items>,
    pub previous: Option<Arc<Node>>,
    pub shape: Shape,
    pub head: Map<String, Value>,
    declared: Declared,
}

/// What the items of a response look like.
#[derive(Clone, Debug, Default)]
pub(super) struct Shape {
    /// Reasoning is told as a summary.
    pub summary: bool,
    /// Reasoning items carry what a later request may bring back.
    pub encrypted: bool,
    pub origins: HashMap<String, Origin>,
}

impl Asked {
    /// Reads a whole request.
    pub fn read(app: &App, fields: Fields<'_>) -> Result<Asked, ApiError> {
        known::check(fields, RESPONSES)?;
        params::model(app, fields)?;
        let mut params = params::params(app, fields, PARAMS)?;
        let id = ids::name("resp_");
        params.rid.get_or_insert_with(|| id.clone());
        let store = fields.boolean("store")?;
        let background = fields.boolean("background")?.unwrap_or(false);
        let store = is_stored(&app.responses, store, background)?;
        let (input, previous) = given(&app.responses, fields, app.options.body_limit_bytes)?;
        let messages = messages(fields, &input, previous.as_ref())?;
        let declared = Declared::read(fields)?;
        let reasoning = Reasoning::read(app, fields, declared.tools.is_empty())?;
        let (encrypted, top) = included(fields)?;
        params.sampling.logprobs = top;
        let truncates = truncates(fields)?;
        let mut names = NAMES;
        let (format, text) = answer_format(fields, &mut names)?;
        let head = Head { app, fields, id: &id, store, background };
        let head = head.object(&params, &reasoning, &declared, text, top)?;
        let shape = Shape { summary: !reasoning.summary.is_null(), encrypted, origins: declared.origins.clone() };
        let mut variables = reasoning.variables;
        if let Some(verbosity) = fields.object("text")?.and_then(|text| text.get("verbosity")).filter(|v| !v.is_null())
        {
            variables.insert("verbosity".into(), verbosity.clone());
        }
        let turn = TurnRequest {
            continues: fields.boolean("continue_final_message")?.unwrap_or(false),
            tools: declared.tools.clone(),
            tool_choice: declared.choice.clone(),
            parallel_tool_calls: fields.boolean("parallel_tool_calls")?.unwrap_or(true),
            reasoning_effort: reasoning.effort,
            variables,
            format,
            ..TurnRequest::new(messages, params, names)
        };
        let stream = params::stream_options(fields)?.stream;
        Ok(Asked { turn, truncates, stream, background, store, input, previous, shape, head, declared })
    }

    /// An error in the words of the request: the model's functions are not always its tools.
    pub fn reword(&self, error: ApiError) -> ApiError {
        let Some(read) = error.param.clone() else { return error };
        match self.declared.place(&read) {
            Some(sent) => error.called(&sent, &read),
            None => error,
        }
    }
}

/// Whether the response is kept.
fn is_stored(responses: &Store, asked: Option<bool>, background: bool) -> Result<bool, ApiError> {
    let stored = asked.unwrap_or(true) && responses.is_on();
    if background && !stored {
        let what = if responses.is_on() { "`store` is false" } else { "this server stores no responses" };
        let message = format!("`background` is true, and {what}, so nobody could fetch the answer; leave it out");
        return Err(ApiError::field("background", "unsupported_parameter", message));
    }
    Ok(stored)
}

/// Items, and what they continue.
type Given = (Arc<Items>, Option<Arc<Node>>);

/// The items of the request, and the response that it continues.
fn given(responses: &Store, fields: Fields<'_>, most_bytes: usize) -> Result<Given, ApiError> {
    let param = "previous_response_id";
    let previous = match fields.string(param)? {
        None => None,
        Some(_) if !responses.is_on() => {
            let message = format!("`{param}` is given, and this server stores no responses; send the items again");
            return Err(ApiError::field(param, "unsupported_parameter", message));
        }
        Some(id) => match responses.find(id) {
            Found::Done(node) => Some(node),
            Found::Running => {
                let message = format!("the response `{id}` is not finished; wait for it, or cancel it");
                return Err(ApiError::field(param, "previous_response_unfinished", message));
            }
            Found::Missing => return Err(no_response(id, "previous_response_not_found", Some(param))),
        },
    };
    too_much(previous.as_ref().map_or(0, |node| node.bytes()), most_bytes, param)?;
    let items = match fields.get("input") {
        Some(input) => items(input, Known { find: |id: &str| responses.item(id), most_bytes })?,
        None if previous.is_some() => Vec::new(),
        None => return Err(missing("input")),
    };
    Ok((Arc::new(items), previous))
}

/// The error for a response that is not there, or not any more.
pub(super) fn no_response(id: &str, code: &'static str, param: Option<&str>) -> ApiError {
    let message = format!("there is no response `{id}`; it was never stored, or had to make room for later ones");
    ApiError { param: param.map(str::to_owned), ..ApiError::new(StatusCode::NOT_FOUND, code, message) }
}

/// All messages of the conversation. Instructions of earlier requests do not carry over.
fn messages(fields: Fields<'_>, input: &[Arc<Value>], previous: Option<&Arc<Node>>) -> Result<Vec<Value>, ApiError> {
    let mut messages = Vec::new();
    if let Some(text) = fields.string("instructions")? {
        messages.push(json!({"role": "system", "content": text}));
    }
    let mut fold = Fold::default();
    for item in previous.map(Node::items).unwrap_or_default() {
        fold.add(&item, "previous_response_id")?;
    }
    for (i, item) in input.iter().enumerate() {
        fold.add(item, &format!("input[{i}]"))?;
    }
    messages.extend(fold.finish());
    if messages.is_empty() {
        return Err(ApiError::field("input", "invalid_value", "`input` has no message; add at least one"));
    }
    Ok(messages)
}

/// How much to think, and how it is told.
struct Reasoning {
    effort: Option<Value>,
    summary: Value,
    variables: Map<String, Value>,
}

impl Reasoning {
    fn read(app: &App, fields: Fields<'_>, without_tools: bool) -> Result<Reasoning, ApiError> {
        let mut variables = fields.object("chat_template_kwargs")?.cloned().unwrap_or_default();
        let Some(map) = fields.object("reasoning")? else {
            return Ok(Reasoning { effort: None, summary: Value::Null, variables });
        };
        let settings = Fields(map);
        if settings.boolean("enabled").map_err(|error| error.inside("reasoning"))? == Some(false) {
            thinking_off(app, "reasoning.enabled", !without_tools, &mut variables)?;
        }
        let mut summary = Value::Null;
        for key in ["generate_summary", "summary"] {
            match settings.get(key) {
                None => {}
                Some(Value::String(word)) if ["auto", "concise", "detailed"].contains(&word.as_str()) => {
                    summary = json!(word);
                }
                Some(other) => {
                    let at = format!("reasoning.{key}");
                    return Err(wrong_type(&at, other, "`auto`, `concise` or `detailed`"));
                }
            }
        }
        Ok(Reasoning { effort: effort("reasoning.effort", settings.get("effort"))?, summary, variables })
    }
}

/// Whether reasoning comes with what can be brought back, and how many alternatives are reported of each token.
fn included(fields: Fields<'_>) -> Result<(bool, Option<u32>), ApiError> {
    let mut wanted = Vec::new();
    for (i, value) in fields.list("include")?.into_iter().flatten().enumerate() {
        let word = value.as_str().filter(|word| INCLUDED.contains(word));
        wanted.push(
            word.ok_or_else(|| {
                wrong_type(&format!("include[{i}]"), value, &format!("one of {}", INCLUDED.join(", ")))
            })?,
        );
    }
    let top = fields.whole("top_logprobs", 0)?;
    if top.is_some_and(|n| n > MOST_LOGPROBS) {
        return Err(fields.outside("top_logprobs", &format!("from 0 to {MOST_LOGPROBS}")));
    }
    let top = top.and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    Ok((wanted.contains(&ENCRYPTED), (top > 0 || wanted.contains(&LOGPROBS)).then_some(top)))
}

fn truncates(fields: Fields<'_>) -> Result<bool, ApiError> {
    match fields.string("truncation")? {
        None | Some("disabled") => Ok(false),
        Some("auto") => Ok(true),
        Some(other) => Err(wrong_type("truncation", &json!(other), "`auto` or `disabled`")),
    }
}

/// What the answer must look like, and what the response says of it.
fn answer_format(fields: Fields<'_>, names: &mut FieldNames) -> Result<(Format, Value), ApiError> {
    let mut said = fields.object("text")?.cloned().unwrap_or_default();
    said.retain(|_, value| !value.is_null());
    let held = match said.get("format") {
        None => None,
        Some(Value::Object(map)) => match map.get("type").and_then(Value::as_str) {
            Some("text") => None,
            Some("json_object") => Some(GrammarSpec::JsonObject),
            Some("json_schema") => Some(json_schema("text.format", map)?),
            _ => {
                let kind = map.get("type").unwrap_or(&Value::Null);
                return Err(wrong_type("text.format.type", kind, "`text`, `json_object` or `json_schema`"));
            }
        },
        Some(other) => return Err(wrong_type("text.format", other, "an object")),
    };
    verbosity("text.verbosity", said.get("verbosity"))?;
    said.entry("format").or_insert_with(|| json!({"type": "text"}));
    let extension = format::format(fields, names)?;
    let format = match (held, extension) {
        (None, extension) => extension,
        (Some(spec), Format::Text) => Format::Held(spec),
        (Some(_), Format::Held(_)) => {
            let message = "`text.format` and another field both say what the answer looks like; leave one out";
            return Err(ApiError::field("text.format", "invalid_value", message));
        }
    };
    Ok((format, Value::Object(said)))
}

/// What a response says again of its request.
struct Head<'a> {
    app: &'a App,
    fields: Fields<'a>,
    id: &'a str,
    store: bool,
    background: bool,
}

impl Head<'_> {
    fn object(
        &self,
        params: &crate::turn::Params,
        reasoning: &Reasoning,
        declared: &Declared,
        text: Value,
        top: Option<u32>,
    ) -> Result<Map<String, Value>, ApiError> {
        let Head { fields, .. } = self;
        let metadata = metadata(*fields)?;
        let words = ["user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier"];
        let mut said = Map::new();
        for key in words {
            said.insert(key.into(), fields.string(key)?.map_or(Value::Null, |word| json!(word)));
        }
        let tools = if declared.tools.is_empty() { json!([]) } else { self.raw("tools", json!([])) };
        let whole = json!({
            "id": self.id,
            "object": "response",
            "created_at": now_seconds(),
            "completed_at": null,
            "status": "in_progress",
            "background": self.background,
            "error": null,
            "incomplete_details": null,
            "instructions": self.raw("instructions", Value::Null),
            "max_output_tokens": self.raw("max_output_tokens", Value::Null),
            "max_tool_calls": fields.whole("max_tool_calls", 1)?,
            "model": self.app.model,
            "output": [],
            "parallel_tool_calls": self.raw("parallel_tool_calls", json!(true)),
            "previous_response_id": self.raw("previous_response_id", Value::Null),
            "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
            "store": self.store,
            "temperature": tidy(params.sampling.temperature),
            "text": text,
            "tool_choice": self.raw("tool_choice", json!("auto")),
            "tools": tools,
            "top_logprobs": top.unwrap_or(0),
            "top_p": tidy(params.sampling.top_p),
            "truncation": self.raw("truncation", json!("disabled")),
            "usage": null,
            "metadata": metadata,
        });
        let Value::Object(mut whole) = whole else { return Ok(said) };
        whole.extend(said);
        if whole.get("service_tier").is_none_or(|tier| tier.is_null() || tier == "auto") {
            whole.insert("service_tier".into(), json!("default"));
        }
        Ok(whole)
    }

    fn raw(&self, key: &str, otherwise: Value) -> Value {
        self.fields.get(key).cloned().unwrap_or(otherwise)
    }
}

/// A number as it was written, not as the binary fraction next to it.
fn tidy(x: f32) -> Value {
    x.to_string().parse::<f64>().map_or(Value::Null, |x| json!(x))
}

/// What a client notes on its response: texts by name.
fn metadata(fields: Fields<'_>) -> Result<Value, ApiError> {
    const MOST: usize = 16;
    const KEY_CHARS: usize = 64;
    const VALUE_CHARS: usize = 512;
    let Some(map) = fields.object("metadata")? else { return Ok(json!({})) };
    if map.len() > MOST {
        let message = format!("`metadata` has {} entries, at most {MOST} are allowed; send fewer", map.len());
        return Err(ApiError::field("metadata", "invalid_value", message));
    }
    for (key, value) in map {
        let at = format!("metadata.{key}");
        let text = value.as_str().ok_or_else(|| wrong_type(&at, value, "a string"))?;
        let (key_chars, chars) = (key.chars().count(), text.chars().count());
        if key_chars > KEY_CHARS || chars > VALUE_CHARS {
            let message = format!(
                "an entry of `metadata` has {key_chars} characters in its name and {chars} in its text, at most \
                 {KEY_CHARS} and {VALUE_CHARS} are allowed; shorten it"
            );
            return Err(ApiError::field("metadata", "invalid_value", message));
        }
    }
    Ok(Value::Object(map.clone()))
}
