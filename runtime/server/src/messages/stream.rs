//! An answer as events: one block is open at a time, and every one that is opened is closed, however the answer ends.

use super::thinking::{self, Shown};
use super::{Head, stop, usage_json};
use crate::error::ApiError;
use crate::errors::RequestId;
use crate::ids;
use crate::sse::{Frame, Spell};
use crate::turn::{Finish, Step, TurnEvent, Usage};
use serde_json::{Value, json};

/// The block that is open.
enum Open {
    /// With what has been thought in it.
    Thinking(String),
    Text,
    Call,
}

/// The answer on its way.
pub(super) struct Blocks {
    head: Head,
    shown: Shown,
    request_id: RequestId,
    open: Option<Open>,
    /// Index of the block that is open, or will be next.
    index: usize,
    finish: Option<Finish>,
}

impl Blocks {
    pub fn new(head: Head, shown: Shown, request_id: RequestId) -> Blocks {
        Blocks { head, shown, request_id, open: None, index: 0, finish: None }
    }

    fn open(&mut self, block: Open, start: Value, frames: &mut Vec<Frame>) {
        self.close(frames);
        self.open = Some(block);
        frames.push(frame("content_block_start", json!({"index": self.index, "content_block": start})));
    }

    fn delta(&self, delta: Value) -> Frame {
        frame("content_block_delta", json!({"index": self.index, "delta": delta}))
    }

    fn close(&mut self, frames: &mut Vec<Frame>) {
        let Some(open) = self.open.take() else { return };
        if let Open::Thinking(thought) = open {
            let signature = thinking::signature(&thought, self.shown);
            frames.push(self.delta(json!({"type": "signature_delta", "signature": signature})));
        }
        frames.push(frame("content_block_stop", json!({"index": self.index})));
        self.index += 1;
    }

    fn reasoning(&mut self, text: &str, frames: &mut Vec<Frame>) {
        if self.shown == Shown::Nothing {
            return;
        }
        if !matches!(self.open, Some(Open::Thinking(_))) {
            let start = json!({"type": "thinking", "thinking": "", "signature": ""});
            self.open(Open::Thinking(String::new()), start, frames);
        }
        if let Some(Open::Thinking(thought)) = &mut self.open {
            thought.push_str(text);
        }
        if self.shown == Shown::Text {
            frames.push(self.delta(json!({"type": "thinking_delta", "thinking": text})));
        }
    }

    fn take(&mut self, event: TurnEvent, frames: &mut Vec<Frame>) {
        match event {
            TurnEvent::Reasoning(text) => self.reasoning(&text, frames),
            TurnEvent::Content(text) => {
                if !matches!(self.open, Some(Open::Text)) {
                    self.open(Open::Text, json!({"type": "text", "text": ""}), frames);
                }
                frames.push(self.delta(json!({"type": "text_delta", "text": text})));
            }
            TurnEvent::CallOpened { name, .. } => {
                let start = json!({"type": "tool_use", "id": ids::name("toolu_"), "name": name, "input": {}});
                self.open(Open::Call, start, frames);
            }
            TurnEvent::CallArguments { json, .. } => {
                frames.push(self.delta(json!({"type": "input_json_delta", "partial_json": json})));
            }
            TurnEvent::CallClosed { .. } => self.close(frames),
            TurnEvent::Finished(finish) => {
                self.close(frames);
                self.finish = Some(finish);
            }
        }
    }

    fn error(&self, error: &ApiError) -> Frame {
        Frame { event: Some("error"), data: error.messages_body(&self.request_id.0).to_string() }
    }
}

impl Spell for Blocks {
    fn begin(&mut self, usage: Usage) -> Vec<Frame> {
        let Head { id, model } = &self.head;
        let message = json!({
            "id": id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage_json(usage),
        });
        vec![frame("message_start", json!({"message": message}))]
    }

    fn step(&mut self, step: Step, _: Usage) -> Vec<Frame> {
        let mut frames = Vec::new();
        step.events.into_iter().for_each(|event| self.take(event, &mut frames));
        frames
    }

    fn end(&mut self, usage: Usage) -> Vec<Frame> {
        let (reason, sequence) = match stop(self.finish.as_ref()) {
            Ok(stop) => stop,
            Err(error) => return vec![self.error(&error)],
        };
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        vec![
            frame("message_delta", json!({"delta": delta, "usage": usage_json(usage)})),
            frame("message_stop", json!({})),
        ]
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.close(&mut frames);
        frames.push(self.error(error));
        frames
    }

    fn idle(&self) -> Option<Frame> {
        Some(frame("ping", json!({})))
    }
}

/// An event, whose data says its name once more.
fn frame(kind: &'static str, data: Value) -> Frame {
    let mut whole = json!({"type": kind});
    if let (Some(whole), Value::Object(data)) = (whole.as_object_mut(), data) {
        whole.extend(data);
    }
    Frame { event: Some(kind), data: whole.to_string() }
}
