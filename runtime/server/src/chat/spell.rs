//! Chat Completions' words for a turn: one object, or chunks.

use crate::app::{App, now_seconds};
use crate::chunk::{CHUNK_BYTES, quote};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::ids;
use crate::logprobs;
use crate::params::StreamOptions;
use crate::sse::{self, Frame, Spell};
use crate::turn::{Collected, Matched, Step, TurnEvent, Usage};
use engine::SampledToken;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::sync::Arc;

/// What all chunks of an answer, or its only object, begin with.
#[derive(Clone)]
pub(crate) struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    /// A new answer's; a request that names itself gives its name to the answer.
    pub fn new(app: &App, rid: Option<String>) -> Self {
        let id = rid.unwrap_or_else(|| ids::name("chatcmpl-"));
        Head { id, created: now_seconds(), model: app.model.clone() }
    }

    fn object(&self, kind: &str, choices: Vec<Value>) -> Map<String, Value> {
        let Head { id, created, model } = self;
        let whole = json!({"id": id, "object": kind, "created": created, "model": model, "choices": choices});
        if let Value::Object(map) = whole { map } else { Map::new() }
    }
}

/// How reasoning is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    /// In a field of its own, or in the content, where it was written: in front of the answer.
    separate_reasoning: bool,
    /// As it comes, or in one piece when it is over.
    stream_reasoning: bool,
}

impl Style {
    /// The field that reasoning is told in.
    fn reasoning_key(self) -> &'static str {
        if self.separate_reasoning { "reasoning_content" } else { "content" }
    }

    pub fn read(fields: Fields<'_>) -> Result<Style, ApiError> {
        Ok(Style {
            separate_reasoning: fields.boolean("separate_reasoning")?.unwrap_or(true),
            stream_reasoning: fields.boolean("stream_reasoning")?.unwrap_or(true),
        })
    }
}

/// Usage as the wire has it, with what became of drafts where that is asked for.
pub(crate) fn usage_json(usage: Usage, of_drafts: bool) -> Value {
    let mut details = json!({"reasoning_tokens": usage.reasoning_tokens});
    if of_drafts {
        details["accepted_prediction_tokens"] = usage.accepted_tokens.into();
        details["rejected_prediction_tokens"] = usage.drafted_tokens.saturating_sub(usage.accepted_tokens).into();
    }
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": details,
        "reasoning_tokens": usage.reasoning_tokens,
    })
}

/// What stopped an answer.
pub(crate) fn matched_json(matched: Option<&Matched>) -> Value {
    match matched {
        None => Value::Null,
        Some(Matched::Token(id)) => json!(id),
        Some(Matched::Text(text)) => json!(text),
    }
}

/// The whole answer as the text of one object. Log-probabilities are written one by one: as values they would take ten times
/// as much memory.
pub(crate) fn whole(app: &App, head: &Head, style: Style, choices: Vec<Collected>, usage: Value) -> String {
    let mut whole = head.object("chat.completion", Vec::new());
    whole.shift_remove("choices");
    whole.insert("usage".into(), usage);
    whole.insert("metadata".into(), json!({"weight_version": "default"}));
    let mut text = open(Value::Object(whole)) + ",\"choices\":[";
    for (index, choice) in choices.into_iter().enumerate() {
        text.push_str(if index > 0 { "," } else { "" });
        whole_choice(app, style, index, choice, &mut text);
    }
    text + "]}"
}

/// The text of an object, up to where another key can follow.
fn open(object: Value) -> String {
    let mut text = object.to_string();
    text.pop();
    text
}

fn whole_choice(app: &App, style: Style, index: usize, choice: Collected, text: &mut String) {
    let word = choice.word().word();
    let (content, reasoning) = match style.separate_reasoning {
        true => (choice.content, choice.reasoning),
        false => (choice.in_order(), String::new()),
    };
    let text_or_null = |text: String| if text.is_empty() { Value::Null } else { json!(text) };
    let mut message = Map::new();
    message.insert("role".into(), json!("assistant"));
    message.insert("content".into(), text_or_null(content));
    message.insert("reasoning_content".into(), text_or_null(reasoning));
    if !choice.calls.is_empty() {
        let calls = choice.calls.iter().enumerate().map(|(i, call)| {
            let function = json!({"name": call.name, "arguments": call.arguments});
            json!({"id": ids::name("call_"), "index": i, "type": "function", "function": function})
        });
        message.insert("tool_calls".into(), calls.collect());
    }
    let is_wanted = choice.tokens.iter().any(|token| token.logprob.is_some());
    text.push_str(&open(json!({
        "index": index,
        "message": message,
        "finish_reason": word,
        "matched_stop": matched_json(choice.finish.as_ref().and_then(|finish| finish.matched.as_ref())),
    })));
    text.push_str(",\"logprobs\":");
    if !is_wanted {
        text.push_str("null}");
        return;
    }
    text.push_str("{\"content\":[");
    for (index, token) in choice.tokens.iter().enumerate() {
        text.push_str(if index > 0 { "," } else { "" });
        text.push_str(&logprobs::chat(app, token).to_string());
    }
    text.push_str("]}}");
}

fn logprobs_json(app: &App, tokens: &[SampledToken]) -> Value {
    json!({"content": tokens.iter().map(|token| logprobs::chat(app, token)).collect::<Vec<_>>()})
}

/// A delta of one text.
fn said(key: &str, text: &str) -> String {
    let mut json = format!("{{\"{key}\":");
    quote(&mut json, text);
    json.push('}');
    json
}

/// One choice in a stream.
#[derive(Default)]
struct Progress {
    /// Tokens whose log-probabilities have not left yet.
    tokens: Vec<SampledToken>,
    /// Reasoning that waits until it is complete.
    reasoning: String,
}

/// The answer as chunks.
pub(crate) struct Chunks {
    app: Arc<App>,
    /// What all chunks begin with, up to the first choice.
    begin: String,
    style: Style,
    options: StreamOptions,
    choices: Vec<Progress>,
}

impl Chunks {
    pub fn new(app: Arc<App>, head: Head, style: Style, options: StreamOptions, choices: usize) -> Chunks {
        let chunk = head.object("chat.completion.chunk", Vec::new());
        let mut begin = open(Value::Object(chunk));
        // The list of choices is its last member, and empty.
        begin.pop();
        Chunks { app, begin, style, options, choices: (0..choices).map(|_| Progress::default()).collect() }
    }

    /// A chunk; `choice` writes its only choice, if it has one.
    fn chunk(&self, choice: impl FnOnce(&mut String), usage: Option<Usage>) -> Frame {
        let mut json = String::with_capacity(self.begin.len() + CHUNK_BYTES);
        json.push_str(&self.begin);
        choice(&mut json);
        json.push(']');
        if let Some(usage) = usage {
            json.push_str(",\"usage\":");
            json.push_str(&usage_json(usage, self.options.usage_of_drafts).to_string());
        } else if self.options.usage_at_end {
            json.push_str(",\"usage\":null");
        }
        json.push('}');
        Frame { event: None, data: json }
    }

    /// A chunk of one choice, with the log-probabilities of the tokens since its last one. The delta is JSON.
    fn delta(&mut self, index: usize, delta: &str, end: Option<(&str, Value)>, usage: Usage) -> Frame {
        let tokens = self.choices.get_mut(index).map(|choice| std::mem::take(&mut choice.tokens)).unwrap_or_default();
        let choice = |json: &mut String| {
            // Writing to memory cannot fail.
            let _ = write!(json, "{{\"index\":{index},\"delta\":{delta},\"logprobs\":");
            if tokens.is_empty() {
                json.push_str("null");
            } else {
                json.push_str(&logprobs_json(&self.app, &tokens).to_string());
            }
            let _ = match end {
                None => write!(json, ",\"finish_reason\":null,\"matched_stop\":null}}"),
                Some((word, matched)) => {
                    write!(json, ",\"finish_reason\":{},\"matched_stop\":{matched}}}", json!(word))
                }
            };
        };
        self.chunk(choice, self.options.usage_always.then_some(usage))
    }

    /// Reasoning of a choice that was kept until it is over, if there is any.
    fn waited(&mut self, index: usize, usage: Usage) -> Option<Frame> {
        let waited = std::mem::take(&mut self.choices.get_mut(index)?.reasoning);
        let delta = said(self.style.reasoning_key(), &waited);
        (!waited.is_empty()).then(|| self.delta(index, &delta, None, usage))
    }

    /// The delta of an event; `None` if it says nothing now.
    fn delta_of(&mut self, index: usize, event: &TurnEvent) -> Option<String> {
        let choice = self.choices.get_mut(index)?;
        match event {
            TurnEvent::Reasoning(text) if !self.style.stream_reasoning => {
                choice.reasoning.push_str(text);
                None
            }
            TurnEvent::Reasoning(text) => Some(said(self.style.reasoning_key(), text)),
            TurnEvent::Content(text) => Some(said("content", text)),
            TurnEvent::CallOpened { index, name } => {
                let function = json!({"name": name, "arguments": ""});
                let call = json!({"index": index, "id": ids::name("call_"), "type": "function", "function": function});
                Some(json!({"tool_calls": [call]}).to_string())
            }
            TurnEvent::CallArguments { index, json } => {
                Some(json!({"tool_calls": [{"index": index, "function": {"arguments": json}}]}).to_string())
            }
            TurnEvent::CallClosed { .. } | TurnEvent::Finished(_) => None,
        }
    }
}

impl Spell for Chunks {
    fn begin(&mut self, usage: Usage) -> Vec<Frame> {
        let delta = json!({"role": "assistant", "content": ""}).to_string();
        (0..self.choices.len()).map(|i| self.delta(i, &delta, None, usage)).collect()
    }

    fn step(&mut self, step: Step, usage: Usage) -> Vec<Frame> {
        let (index, mut frames) = (step.choice, Vec::new());
        if let Some(choice) = self.choices.get_mut(index) {
            choice.tokens.extend(step.tokens.into_iter().filter(|token| token.logprob.is_some()));
        }
        for event in &step.events {
            if !matches!(event, TurnEvent::Reasoning(_)) {
                frames.extend(self.waited(index, usage));
            }
            if let Some(delta) = self.delta_of(index, event) {
                frames.push(self.delta(index, &delta, None, usage));
            }
            if let TurnEvent::Finished(finish) = event {
                let end = (finish.word.word(), matched_json(finish.matched.as_ref()));
                frames.push(self.delta(index, "{}", Some(end), usage));
            }
        }
        frames
    }

    fn failed(&mut self, error: &ApiError, usage: Usage) -> Vec<Frame> {
        let waited: Vec<Frame> = (0..self.choices.len()).filter_map(|index| self.waited(index, usage)).collect();
        waited.into_iter().chain(sse::failed(error)).collect()
    }

    fn end(&mut self, usage: Usage) -> Vec<Frame> {
        sse::done(self.options.usage_at_end.then(|| self.chunk(|_| {}, Some(usage))))
    }
}
