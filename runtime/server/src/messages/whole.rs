//! An answer as one object.

use super::thinking::{self, Shown};
use super::{Head, stop, usage_json};
use crate::error::ApiError;
use crate::ids;
use crate::turn::{Answers, Finish, TurnEvent};
use serde_json::json;

/// A content block on its way.
enum Block {
    Thinking(String),
    Text(String),
    Call { index: usize, name: String, json: String, is_closed: bool },
}

/// Blocks in the order in which they were written, the same that a stream tells.
#[derive(Default)]
struct Message {
    blocks: Vec<Block>,
    finish: Option<Finish>,
}

/// The text of the answer's object, once it is complete.
pub(super) async fn whole(answers: &mut Answers, head: &Head, shown: Shown) -> Result<String, ApiError> {
    let mut message = Message::default();
    while let Some(step) = answers.next().await? {
        step.events.into_iter().for_each(|event| message.take(event));
    }
    let finish = message.finish.as_ref();
    let (reason, sequence) = stop(finish)?;
    let blocks: Vec<String> = message.blocks.iter().filter_map(|block| block.json(shown, finish)).collect();
    // Arguments are put in as they are written, since numbers of any size are to stay what they are.
    Ok(format!(
        "{{\"id\":{},\"type\":\"message\",\"role\":\"assistant\",\"model\":{},\"content\":[{}],\"stop_reason\":{},\"stop_sequence\":{},\"usage\":{}}}",
        json!(head.id),
        json!(head.model),
        blocks.join(","),
        json!(reason),
        json!(sequence),
        usage_json(answers.usage()),
    ))
}

impl Message {
    fn take(&mut self, event: TurnEvent) {
        match (self.blocks.last_mut(), event) {
            (Some(Block::Thinking(text)), TurnEvent::Reasoning(more)) => text.push_str(&more),
            (Some(Block::Text(text)), TurnEvent::Content(more)) => text.push_str(&more),
            (_, TurnEvent::Reasoning(text)) => self.blocks.push(Block::Thinking(text)),
            (_, TurnEvent::Content(text)) => self.blocks.push(Block::Text(text)),
            (_, TurnEvent::CallOpened { index, name }) => {
                self.blocks.push(Block::Call { index, name, json: String::new(), is_closed: false });
            }
            (Some(Block::Call { json, .. }), TurnEvent::CallArguments { json: more, .. }) => json.push_str(&more),
            (Some(Block::Call { is_closed, .. }), TurnEvent::CallClosed { .. }) => *is_closed = true,
            (_, TurnEvent::CallArguments { .. } | TurnEvent::CallClosed { .. }) => {}
            (_, TurnEvent::Finished(finish)) => self.finish = Some(finish),
        }
    }
}

impl Block {
    /// Its JSON; none of what is not shown, and of a call that was cut off.
    fn json(&self, shown: Shown, finish: Option<&Finish>) -> Option<String> {
        match self {
            Block::Thinking(_) if shown == Shown::Nothing => None,
            Block::Thinking(text) => {
                let seen = if shown == Shown::Text { text.as_str() } else { "" };
                let signature = thinking::signature(text, shown);
                Some(json!({"type": "thinking", "thinking": seen, "signature": signature}).to_string())
            }
            Block::Text(text) => Some(json!({"type": "text", "text": text}).to_string()),
            Block::Call { is_closed: false, .. } => None,
            Block::Call { index, name, json, .. } => {
                // At the end an argument that was written twice is there once.
                let arguments = finish.and_then(|finish| finish.calls.get(*index)).map_or(json, |call| &call.arguments);
                let (id, name) = (json!(ids::name("toolu_")), json!(name));
                Some(format!("{{\"type\":\"tool_use\",\"id\":{id},\"name\":{name},\"input\":{arguments}}}"))
            }
        }
    }
}
