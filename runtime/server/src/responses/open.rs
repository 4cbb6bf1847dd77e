//! The item that is being written: what it looks like when it begins and when it is over.

use super::arguments::Arguments;
use super::request::Shape;
use super::seal::seal;
use super::tools::{COMMAND, INPUT, Kind, Origin};
use crate::ids;
use serde_json::{Map, Value, json};

/// How long the client's shell may take, as the protocol says where the model says nothing.
const SHELL_TIMEOUT_MS: u64 = 600_000;

/// An item's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    /// It was cut.
    Incomplete,
}

impl Status {
    pub fn word(self) -> &'static str {
        match self {
            Status::InProgress => "in_progress",
            Status::Completed => "completed",
            Status::Incomplete => "incomplete",
        }
    }
}

/// An item that has begun and is not over.
pub(super) struct Open {
    pub id: String,
    pub body: Body,
}

/// What it is.
pub(super) enum Body {
    Reasoning {
        text: String,
    },
    Message {
        text: String,
        logprobs: Vec<Value>,
        /// Whether calls follow; unknown while it goes on.
        is_commentary: bool,
    },
    Call(Box<Call>),
}

/// A call.
pub(super) struct Call {
    pub index: usize,
    pub call_id: String,
    pub origin: Origin,
    pub arguments: Arguments,
}

impl Open {
    pub fn reasoning() -> Open {
        Open { id: ids::name("rs_"), body: Body::Reasoning { text: String::new() } }
    }

    pub fn message() -> Open {
        let body = Body::Message { text: String::new(), logprobs: Vec::new(), is_commentary: false };
        Open { id: ids::name("msg_"), body }
    }

    pub fn call(index: usize, origin: Origin) -> Open {
        let prefix = match origin.kind {
            Kind::Function => "fc_",
            Kind::Custom => "ctc_",
            Kind::Shell => "sh_",
        };
        let call = Call { index, call_id: ids::name("call_"), origin, arguments: Arguments::default() };
        Open { id: ids::name(prefix), body: Body::Call(Box::new(call)) }
    }

    /// The item as it is told when it begins.
    pub fn begun(&self, shape: &Shape) -> Value {
        self.item(Status::InProgress, shape)
    }

    /// The item's JSON.
    pub fn item(&self, status: Status, shape: &Shape) -> Value {
        let is_over = status != Status::InProgress;
        let mut item = Map::new();
        item.insert("id".into(), json!(self.id));
        match &self.body {
            Body::Reasoning { text } => {
                let part = |kind: &str| if is_over { json!([{"type": kind, "text": text}]) } else { json!([]) };
                item.insert("type".into(), json!("reasoning"));
                item.insert("summary".into(), if shape.summary { part("summary_text") } else { json!([]) });
                if !shape.summary {
                    item.insert("content".into(), part("reasoning_text"));
                }
                if shape.encrypted && is_over {
                    item.insert("encrypted_content".into(), json!(seal(text)));
                }
            }
            Body::Message { text, logprobs, is_commentary } => {
                item.insert("type".into(), json!("message"));
                item.insert("role".into(), json!("assistant"));
                if is_over {
                    item.insert("phase".into(), json!(if *is_commentary { "commentary" } else { "final_answer" }));
                }
                let part = text_part(text, logprobs);
                item.insert("content".into(), if is_over { json!([part]) } else { json!([]) });
            }
            Body::Call(call) => call.write(status, &mut item),
        }
        item.insert("status".into(), json!(status.word()));
        Value::Object(item)
    }
}

/// A part of a message.
pub(super) fn text_part(text: &str, logprobs: &[Value]) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
}

impl Call {
    /// The arguments as they stand in the item: whole, or as far as they go.
    pub fn final_json(&self, status: Status) -> String {
        if status == Status::Completed { self.arguments.whole() } else { self.arguments.json() }.to_owned()
    }

    /// The text of a free-text tool, likewise.
    pub fn final_text(&self, status: Status) -> String {
        match status {
            Status::Completed => self.arguments.only_text(INPUT).unwrap_or_default(),
            _ => self.arguments.text().to_owned(),
        }
    }

    /// Why a complete call is none, if its arguments are not what its tool takes.
    pub fn misfit(&self) -> Option<String> {
        let key = match self.origin.kind {
            Kind::Function => return None,
            Kind::Custom => INPUT,
            Kind::Shell => COMMAND,
        };
        self.arguments.only_text(key).is_none().then(|| {
            format!(
                "the model called `{}` with other arguments than the one text that it takes; ask again",
                self.origin.name
            )
        })
    }

    fn write(&self, status: Status, item: &mut Map<String, Value>) {
        let is_over = status != Status::InProgress;
        let kind = match self.origin.kind {
            Kind::Function => "function_call",
            Kind::Custom => "custom_tool_call",
            Kind::Shell => "shell_call",
        };
        item.insert("type".into(), json!(kind));
        item.insert("call_id".into(), json!(self.call_id));
        if self.origin.kind != Kind::Shell {
            if let Some(namespace) = &self.origin.namespace {
                item.insert("namespace".into(), json!(namespace));
            }
            item.insert("name".into(), json!(self.origin.name));
        }
        match self.origin.kind {
            Kind::Function => {
                let arguments = if is_over { self.final_json(status) } else { String::new() };
                item.insert("arguments".into(), json!(arguments));
            }
            Kind::Custom => {
                let input = if is_over { self.final_text(status) } else { String::new() };
                item.insert("input".into(), json!(input));
            }
            Kind::Shell => {
                // Half a command must not look like one that can be run.
                let command = if status == Status::Completed { self.arguments.only_text(COMMAND) } else { None };
                let commands: Vec<String> = command.into_iter().collect();
                let action = json!({"commands": commands, "timeout_ms": SHELL_TIMEOUT_MS, "max_output_length": null});
                item.insert("action".into(), action);
            }
        }
    }
}
