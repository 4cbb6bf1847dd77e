//! One answer as text: the engine's events through detokeniser and stop strings.

use crate::error::ApiError;
use crate::service::Generation;
use engine::{Event, FinishReason, Usage};
use serde_json::{Value, json};
use std::sync::Arc;
use text::{OutputText, Text};

/// A piece of an answer.
#[derive(Debug, PartialEq)]
pub(crate) enum Part {
    Text(String),
    End(Ending),
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ending {
    /// `stop`, `length` or `abort`.
    pub finish_reason: &'static str,
    /// The token id or the string that stopped it, else null.
    pub stop_reason: Value,
}

/// An answer on its way.
pub(crate) struct Answer {
    /// `None` once it has ended; dropping it aborts what still runs.
    generation: Option<Generation>,
    output: OutputText,
    ending: Option<Ending>,
    usage: Usage,
}

impl Answer {
    pub fn new(
        generation: Generation,
        text: Arc<Text>,
        stops: Vec<String>,
        skip_special: bool,
        prompt_tokens: usize,
    ) -> Self {
        let output = OutputText::new(text, stops, skip_special);
        let usage = Usage { prompt_tokens, completion_tokens: 0 };
        Answer { generation: Some(generation), output, ending: None, usage }
    }

    /// Tokens so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// The next piece: text that is not empty, or the end; `None` after it.
    pub async fn next(&mut self) -> Result<Option<Part>, ApiError> {
        loop {
            if let Some(ending) = self.ending.take() {
                self.generation = None;
                return Ok(Some(Part::End(ending)));
            }
            let Some(generation) = &mut self.generation else { return Ok(None) };
            let text = match generation.next().await {
                Some(event) => self.take(event)?,
                None => return Err(ApiError::internal("the engine has stopped; restart the server")),
            };
            if !text.is_empty() {
                return Ok(Some(Part::Text(text)));
            }
        }
    }

    /// All that is left of it.
    pub async fn rest(&mut self) -> Result<(String, Ending), ApiError> {
        let mut text = String::new();
        while let Some(part) = self.next().await? {
            match part {
                Part::Text(piece) => text.push_str(&piece),
                Part::End(ending) => return Ok((text, ending)),
            }
        }
        Err(ApiError::internal("the answer has no end; this is a defect of the server"))
    }

    fn take(&mut self, event: Event) -> Result<String, ApiError> {
        let (piece, ending) = match event {
            Event::Token { token, stops, .. } => {
                self.usage.completion_tokens += 1;
                // The ending token's text is not part of the answer.
                if stops {
                    return Ok(String::new());
                }
                (self.output.push(token.id), None)
            }
            Event::Finished { reason, .. } => (self.output.finish(), Some(ending(reason)?)),
        };
        let piece = piece.map_err(|error| ApiError::internal(error.to_string()))?;
        let stopped = piece.stop.map(|stop| Ending { finish_reason: "stop", stop_reason: json!(stop) });
        self.ending = stopped.or(ending);
        Ok(piece.text)
    }
}

fn ending(reason: FinishReason) -> Result<Ending, ApiError> {
    let (finish_reason, stop_reason) = match reason {
        FinishReason::Stop(token) => ("stop", json!(token)),
        FinishReason::Length => ("length", Value::Null),
        FinishReason::Aborted => ("abort", Value::Null),
        FinishReason::Error(text) => return Err(ApiError::internal(text)),
    };
    Ok(Ending { finish_reason, stop_reason })
}

/// Usage as the wire has it.
pub(crate) fn usage_json(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
    })
}
