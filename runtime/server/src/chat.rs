//! `POST /v1/chat/completions`. Until responses are parsed into fields, `content` is the raw continuation, special
//! tokens included.

use crate::answer::{Answer, Part, usage_json};
use crate::app::{App, json_body};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::messages;
use crate::params::{Common, LEAVE_OUT, Refused, common, is_false, is_true, never, refuse};
use crate::stream::{Chunks, Head, events};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use engine::Request;
use serde_json::{Map, Value, json};
use std::sync::Arc;

const RAW: &str = "read the raw answer in `content`";

/// Parameters of this route that would change the answer.
const REFUSED: [Refused; 18] = [
    ("logprobs", is_false, LEAVE_OUT),
    ("top_logprobs", never, LEAVE_OUT),
    ("response_format", is_text, "ask for the format in the messages"),
    ("functions", never, "use `tools`"),
    ("function_call", never, "use `tool_choice`"),
    ("parallel_tool_calls", is_true, LEAVE_OUT),
    ("modalities", is_text_only, "this model writes text"),
    ("audio", never, "this model writes text"),
    ("prediction", never, LEAVE_OUT),
    ("web_search_options", never, "declare a tool for it"),
    ("verbosity", never, "ask for it in the messages"),
    ("echo", is_false, "put the last message in front of the answer yourself"),
    ("continue_final_message", is_false, "use `/v1/completions` with the rendered prompt"),
    ("chat_template", never, "put the template into the model directory"),
    ("input_ids", never, "use `/v1/completions` with token ids as `prompt`"),
    ("separate_reasoning", is_false, RAW),
    ("stream_reasoning", is_true, RAW),
    ("reasoning", never, "use `reasoning_effort`"),
];

fn is_text(value: &Value) -> bool {
    value.get("type").and_then(Value::as_str) == Some("text")
}

fn is_text_only(value: &Value) -> bool {
    value == &json!(["text"])
}

/// The handler.
pub(crate) async fn chat(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    let body = json_body(&app, &headers, body).await?;
    let shared = app.clone();
    let (prompt, common) = App::off_thread(move || prepare(&shared, &body)).await?;
    let prompt_tokens = prompt.len();
    let request = Request {
        prompt,
        max_tokens: common.max_tokens,
        sampling: common.sampling.clone(),
        stop: common.stop_tokens.clone(),
    };
    let generation = app.submit(request, "messages").await?;
    let skip_special = common.skip_special.unwrap_or(false);
    let mut answer =
        Answer::new(generation, app.text.clone(), common.stop_strings.clone(), skip_special, prompt_tokens);
    if common.stream {
        let head = Head::new("chatcmpl", "chat.completion.chunk", &app.model);
        return Ok(events(head, ChatChunks, vec![answer], &common));
    }
    let (content, ending) = answer.rest().await?;
    let choice = json!({
        "index": 0,
        "message": {"role": "assistant", "content": content},
        "logprobs": null,
        "finish_reason": ending.finish_reason,
        "stop_reason": ending.stop_reason,
    });
    let mut whole = Head::new("chatcmpl", "chat.completion", &app.model).with(vec![choice]);
    whole.insert("usage".into(), usage_json(answer.usage()));
    Ok(Json(whole).into_response())
}

/// The prompt's ids, and everything else the request says.
fn prepare(app: &App, body: &Map<String, Value>) -> Result<(Vec<u32>, Common), ApiError> {
    let fields = Fields(body);
    refuse(fields, &REFUSED)?;
    let common = common(app, fields)?;
    let messages = messages::messages(fields)?;
    let tools = messages::tools(fields)?;
    let template = app.text.template_for(tools.is_some()).ok_or_else(|| {
        let message = "the model directory has no chat template; add `chat_template.jinja` or use `/v1/completions`";
        ApiError::field("messages", "no_chat_template", message)
    })?;
    let mut variables = fields.object("chat_template_kwargs")?.cloned().unwrap_or_default();
    if let Some(effort) = fields.get("reasoning_effort") {
        variables.insert("reasoning_effort".into(), effort.clone());
    }
    if let Some(documents) = fields.list("documents")? {
        variables.insert("documents".into(), Value::Array(documents.clone()));
    }
    let add_prompt = fields.boolean("add_generation_prompt")?;
    if let Some(add_prompt) = add_prompt.or_else(|| (!variables.contains_key("add_generation_prompt")).then_some(true))
    {
        variables.insert("add_generation_prompt".into(), Value::Bool(add_prompt));
    }
    variables.insert("messages".into(), messages);
    variables.insert("tools".into(), tools.unwrap_or(Value::Null));
    let prompt =
        template.render(variables).map_err(|error| ApiError::field("messages", "template_error", error.to_string()))?;
    Ok((app.encode(&prompt, false, "messages")?, common))
}

struct ChatChunks;

impl ChatChunks {
    fn choice(index: usize, delta: Value, finish_reason: Value, stop_reason: Value) -> Value {
        json!({
            "index": index,
            "delta": delta,
            "logprobs": null,
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
        })
    }
}

impl Chunks for ChatChunks {
    fn first(&self, index: usize) -> Option<Value> {
        Some(Self::choice(index, json!({"role": "assistant", "content": ""}), Value::Null, Value::Null))
    }

    fn part(&self, index: usize, part: Part) -> Value {
        match part {
            Part::Text(text) => Self::choice(index, json!({"content": text}), Value::Null, Value::Null),
            Part::End(end) => Self::choice(index, json!({}), json!(end.finish_reason), end.stop_reason),
        }
    }
}
