//! An answer as content blocks, in events or as one object. Both come from the same run through here, so that they cannot
//! say different things: one block is open at a time, and every one that is opened is closed, however the answer ends.

use super::thinking::{self, Shown};
use super::{Head, stop, usage_json};
use crate::error::ApiError;
use crate::errors::RequestId;
use crate::ids;
use crate::sse::{Frame, Spell};
use crate::turn::{Finish, Step, TurnEvent, Usage};
use serde_json::{Value, json};

/// A content block on its way, with what has been written in it.
enum Block {
    Thinking(String),
    Text(String),
    /// `json` is what has come of its arguments, `whole` all of them where it is complete.
    Call {
        index: usize,
        id: String,
        name: String,
        json: String,
        whole: Option<String>,
    },
}

/// The answer on its way.
pub(super) struct Blocks {
    head: Head,
    shown: Shown,
    request_id: RequestId,
    open: Option<Block>,
    /// Index of the block that is open, or will be next.
    index: usize,
    /// Blocks that are closed, where nothing is told before the end.
    closed: Vec<Block>,
    /// Whether events are made.
    tells: bool,
    frames: Vec<Frame>,
    finish: Option<Finish>,
}

impl Blocks {
    /// An answer that `tells` its events, or is one object in the end.
    pub fn new(head: Head, shown: Shown, request_id: RequestId, tells: bool) -> Blocks {
        let (open, index, closed, frames, finish) = (None, 0, Vec::new(), Vec::new(), None);
        Blocks { head, shown, request_id, open, index, closed, tells, frames, finish }
    }

    /// The text of the answer's object.
    pub fn whole(mut self, usage: Usage) -> Result<String, ApiError> {
        self.close();
        let finish = self.finish.as_ref();
        let (reason, sequence) = stop(finish)?;
        let blocks: Vec<String> = self.closed.iter().map(|block| block.json(self.shown)).collect();
        // Arguments are put in as they are written, since numbers of any size are to stay what they are.
        Ok(format!(
            "{{\"id\":{},\"type\":\"message\",\"role\":\"assistant\",\"model\":{},\"content\":[{}],\"stop_reason\":{},\"stop_sequence\":{},\"usage\":{}}}",
            json!(self.head.id),
            json!(self.head.model),
            blocks.join(","),
            json!(reason),
            json!(sequence),
            usage_json(usage),
        ))
    }

    fn tell(&mut self, kind: &'static str, data: impl FnOnce() -> Value) {
        if self.tells {
            self.frames.push(frame(kind, data()));
        }
    }

    fn delta(&mut self, delta: impl FnOnce() -> Value) {
        let index = self.index;
        self.tell("content_block_delta", || json!({"index": index, "delta": delta()}));
    }

    fn open(&mut self, block: Block) {
        self.close();
        let (index, start) = (self.index, block.start());
        self.open = Some(block);
        self.tell("content_block_start", || json!({"index": index, "content_block": start}));
    }

    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        if let Block::Thinking(thought) = &open {
            let shown = self.shown;
            self.delta(|| json!({"type": "signature_delta", "signature": thinking::signature(thought, shown)}));
        }
        let index = self.index;
        self.tell("content_block_stop", || json!({"index": index}));
        self.index += 1;
        if !self.tells {
            self.closed.push(open);
        }
    }

    fn reasoning(&mut self, more: &str) {
        if more.is_empty() || self.shown == Shown::Nothing {
            return;
        }
        if !matches!(self.open, Some(Block::Thinking(_))) {
            self.open(Block::Thinking(String::new()));
        }
        if let Some(Block::Thinking(thought)) = &mut self.open {
            thought.push_str(more);
        }
        if self.shown == Shown::Text {
            self.delta(|| json!({"type": "thinking_delta", "thinking": more}));
        }
    }

    fn content(&mut self, more: &str) {
        if more.is_empty() {
            return;
        }
        if !matches!(self.open, Some(Block::Text(_))) {
            self.open(Block::Text(String::new()));
        }
        if let Some(Block::Text(text)) = self.open.as_mut().filter(|_| !self.tells) {
            text.push_str(more);
        }
        self.delta(|| json!({"type": "text_delta", "text": more}));
    }

    fn arguments(&mut self, call: usize, more: &str) {
        match &mut self.open {
            Some(Block::Call { index, json, .. }) if *index == call && !more.is_empty() => {
                if !self.tells {
                    json.push_str(more);
                }
                self.delta(|| json!({"type": "input_json_delta", "partial_json": more}));
            }
            _ => {}
        }
    }

    fn take(&mut self, event: TurnEvent) {
        match event {
            TurnEvent::Reasoning(text) => self.reasoning(&text),
            TurnEvent::Content(text) => self.content(&text),
            TurnEvent::CallOpened { index, name } => {
                self.open(Block::Call { index, id: ids::name("toolu_"), name, json: String::new(), whole: None });
            }
            TurnEvent::CallArguments { index, json } => self.arguments(index, &json),
            TurnEvent::CallClosed { index: call, arguments } => {
                if let Some(Block::Call { index, whole, .. }) = &mut self.open
                    && *index == call
                {
                    *whole = Some(arguments);
                    self.close();
                }
            }
            TurnEvent::Finished(finish) => {
                self.close();
                self.finish = Some(finish);
            }
        }
    }

    fn error(&self, error: &ApiError) -> Frame {
        Frame { event: Some("error"), data: error.messages_body(&self.request_id.0).to_string() }
    }

    fn frames(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.frames)
    }
}

impl Block {
    /// The block as it is told when it begins.
    fn start(&self) -> Value {
        match self {
            Block::Thinking(_) => json!({"type": "thinking", "thinking": "", "signature": ""}),
            Block::Text(_) => json!({"type": "text", "text": ""}),
            Block::Call { id, name, .. } => json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
        }
    }

    /// The JSON of the block. This protocol gives arguments as an object, so a call that was cut off has those that are complete.
    fn json(&self, shown: Shown) -> String {
        match self {
            Block::Thinking(text) => {
                let seen = if shown == Shown::Text { text.as_str() } else { "" };
                let signature = thinking::signature(text, shown);
                json!({"type": "thinking", "thinking": seen, "signature": signature}).to_string()
            }
            Block::Text(text) => json!({"type": "text", "text": text}).to_string(),
            Block::Call { id, name, json, whole, .. } => {
                let input = whole.clone().unwrap_or_else(|| complete_members(json));
                let (id, name) = (json!(id), json!(name));
                format!("{{\"type\":\"tool_use\",\"id\":{id},\"name\":{name},\"input\":{input}}}")
            }
        }
    }
}

/// The object that the beginning of an object's text tells of: its complete members. What has come of one that is no text is
/// all of it.
fn complete_members(json: &str) -> String {
    let closed = format!("{json}}}");
    if serde_json::from_str::<Value>(&closed).is_ok() {
        return closed;
    }
    let (mut depth, mut in_text, mut is_escaped, mut end) = (0usize, false, false, 1);
    for (at, byte) in json.bytes().enumerate() {
        if in_text {
            (in_text, is_escaped) = (byte != b'"' || is_escaped, byte == b'\\' && !is_escaped);
            continue;
        }
        match byte {
            b'"' => in_text = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' if depth == 1 => end = at,
            _ => {}
        }
    }
    json.get(..end).map_or_else(|| "{}".to_owned(), |members| format!("{members}}}"))
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
        self.tell("message_start", || json!({"message": message}));
        self.frames()
    }

    fn step(&mut self, step: Step, _: Usage) -> Vec<Frame> {
        step.events.into_iter().for_each(|event| self.take(event));
        self.frames()
    }

    fn end(&mut self, usage: Usage) -> Vec<Frame> {
        self.close();
        let mut frames = self.frames();
        match stop(self.finish.as_ref()) {
            Ok((reason, sequence)) => {
                let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
                frames.push(frame("message_delta", json!({"delta": delta, "usage": usage_json(usage)})));
                frames.push(frame("message_stop", json!({})));
            }
            Err(error) => frames.push(self.error(&error)),
        }
        frames
    }

    fn failed(&mut self, error: &ApiError, _: Usage) -> Vec<Frame> {
        self.close();
        let mut frames = self.frames();
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
