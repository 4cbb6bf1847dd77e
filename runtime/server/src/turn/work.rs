//! What a prompt costs to write, judged by what the request brings before the chat template runs: whoever asks for too much is
//! told the size of the request, and a template that loops over all messages for each of them has an end.

use super::request::TurnRequest;
use crate::app::{App, Gone};
use crate::error::ApiError;
use serde_json::{Map, Value};
use text::{Allowance, ChatTemplate, NoPrompt};

/// Steps of the template that every request may take.
const STEPS: u64 = 1_000_000;
/// Steps that each message, tool and other member of the request adds: a template may look through some hundred others for it.
const STEPS_A_PART: u64 = 1_500;
/// Bytes of text that add a step: a template copies them a few times.
const BYTES_A_STEP: u64 = 4;
/// Most steps, some seconds of work; conversations that fill a context of a million tokens take fewer where a template goes through
/// them once.
const MOST_STEPS: u64 = 25_000_000;

/// What a request brings to its template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    messages: usize,
    /// Bytes of what messages say; a prompt is no shorter.
    said_bytes: usize,
    /// Messages and tools with all that is in them.
    parts: usize,
    /// Bytes of all their texts.
    bytes: usize,
}

impl Work {
    pub fn of(request: &TurnRequest) -> Work {
        let said = |message: &Value| message.get("content").and_then(Value::as_str).map_or(0, str::len);
        let messages = request.messages.len();
        let said_bytes = request.messages.iter().map(said).sum();
        let mut work = Work { messages, said_bytes, parts: 0, bytes: 0 };
        request.messages.iter().for_each(|message| work.count(message));
        for tool in &request.tools {
            tool.shown.iter().for_each(|(key, value)| work.member(key, value));
        }
        request.variables.iter().for_each(|(key, value)| work.member(key, value));
        work
    }

    fn member(&mut self, key: &str, value: &Value) {
        self.bytes += key.len();
        self.count(value);
    }

    fn count(&mut self, value: &Value) {
        self.parts += 1;
        match value {
            Value::String(text) => self.bytes += text.len(),
            Value::Array(items) => items.iter().for_each(|item| self.count(item)),
            Value::Object(map) => map.iter().for_each(|(key, value)| self.member(key, value)),
            _ => {}
        }
    }

    /// Refuses what no template writes into the context: each message is a token or more, and none is shorter than what it says.
    pub fn may_fit(self, app: &App, param: &str) -> Result<(), ApiError> {
        app.may_fit(self.said_bytes, param)?;
        let (messages, limit) = (self.messages, app.service.limit_tokens());
        if messages <= limit {
            return Ok(());
        }
        let message = format!("the request has {messages} messages, at most {limit} tokens fit; send fewer messages");
        Err(ApiError::field(param, "context_length_exceeded", message))
    }

    fn steps(self) -> u64 {
        let (parts, bytes) = (self.parts as u64, self.bytes as u64);
        let steps = STEPS.saturating_add(parts.saturating_mul(STEPS_A_PART)).saturating_add(bytes / BYTES_A_STEP);
        steps.min(MOST_STEPS)
    }

    /// The prompt that the template writes.
    pub fn rendered(
        self,
        app: &App,
        template: &ChatTemplate,
        variables: Map<String, Value>,
        gone: &Gone,
        param: &str,
    ) -> Result<String, ApiError> {
        let is_gone = || gone.is_so();
        let allowance = Allowance { steps: self.steps(), bytes: app.most_prompt_bytes(), is_gone: &is_gone };
        template.render_within(variables, &allowance).map_err(|why| match why {
            NoPrompt::Template(error) => ApiError::field(param, "template_error", error.to_string()),
            NoPrompt::Steps(steps) => {
                let Work { messages, parts, bytes, .. } = self;
                let message = format!(
                    "the {messages} messages with {parts} parts of {bytes} bytes take more than the {steps} steps of the chat template that a request of this size may take; send fewer messages"
                );
                ApiError::field(param, "request_too_large", message)
            }
            NoPrompt::Bytes(bytes) => {
                let limit = app.service.limit_tokens();
                let message = format!("the prompt has more than {bytes} bytes, {limit} tokens fit; send a shorter one");
                ApiError::field(param, "context_length_exceeded", message)
            }
            NoPrompt::Gone => ApiError::internal("the client has gone"),
        })
    }
}
