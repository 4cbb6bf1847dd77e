//! Answers read with a checkpoint's response template: reasoning, answer text and calls of tools, in one pass, as the text
//! comes.
//!
//! ```text
//!  text ─► Scan: who ends or begins a region? ─► ResponseParser: regions ─┬─► Reasoning, Content
//!          patterns of the template, all at once  held back: what may      └─► OpenCall ─► TagReader ─► JSON deltas
//!                                                 still become markup                      types by the tool's schema
//! ```
//!
//! No format is built in: all of it is in the [`ResponseTemplate`], which is data of the checkpoint.

mod calls;
mod error;
mod json_place;
mod parser;
mod pattern;
mod scan;
mod strip;
mod tags;
mod template;
mod types;

pub use error::ResponseError;
pub use parser::ResponseParser;
pub(crate) use pattern::Pattern;
pub(crate) use tags::TagFormat;
pub use template::ResponseTemplate;
pub(crate) use template::{CallContent, CallFormat, Field, Role};
pub use types::Tools;
pub(crate) use types::{Type, types_of};

/// What was held to a grammar when the answer was generated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Held {
    /// Nothing.
    #[default]
    Free,
    /// The turn: calls or an answer, and arguments that follow their schemas.
    Turn,
    /// The turn, and the answer is a JSON document.
    JsonAnswer,
}

/// How an answer is read.
#[derive(Clone, Debug)]
pub struct ParseOptions {
    /// What was held to a grammar.
    pub held: Held,
    /// Whether a text argument goes out while it is written. If the call then ends before its argument does, the argument
    /// is kept as far as it goes; otherwise an argument that never ends is none.
    pub early_values: bool,
    /// Most bytes of undecided text, and of one call.
    pub limit_bytes: usize,
}

impl Default for ParseOptions {
    fn default() -> Self {
        ParseOptions { held: Held::Free, early_values: true, limit_bytes: 4 << 20 }
    }
}

/// Something certain about an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// More reasoning.
    Reasoning(String),
    /// More of the answer.
    Content(String),
    /// A call of a declared tool begins.
    Call {
        /// Its number among them.
        index: usize,
        /// The tool.
        name: String,
    },
    /// More of the call's arguments, text of one JSON object. An argument that is written twice appears twice; the later
    /// one counts.
    Arguments {
        /// Number of the call.
        index: usize,
        /// A piece of JSON text.
        json: String,
    },
    /// The call is complete.
    CallDone {
        /// Number of the call.
        index: usize,
        /// All its arguments: text of a JSON object in which each is there once, with its last value.
        arguments: String,
    },
}

impl Event {
    /// The event of call `old` as one of call `new`; none if it belongs to something else.
    fn renumbered(self, old: usize, new: usize) -> Option<Event> {
        match self {
            Event::Call { index, name } if index == old => Some(Event::Call { index: new, name }),
            Event::Arguments { index, json } if index == old => Some(Event::Arguments { index: new, json }),
            _ => None,
        }
    }
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A token that ends an answer.
    StopToken,
    /// A stop string.
    StopString,
    /// The limit of tokens.
    Length,
}

/// What a client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The answer is complete.
    Stop,
    /// The answer was cut.
    Length,
    /// Tools are to be called.
    ToolCalls,
}

impl FinishReason {
    /// The word of the Chat Completions API.
    pub fn word(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::ToolCalls => "tool_calls",
        }
    }
}

/// A complete call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// A declared tool.
    pub name: String,
    /// Text of a JSON object, its keys in the order written.
    pub arguments: String,
}

/// The end of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// What became certain at the end.
    pub events: Vec<Event>,
    /// Where the answer's text among them stands in what was pushed, in bytes.
    pub spans: Vec<std::ops::Range<usize>>,
    /// All complete calls of declared tools, in order.
    pub tool_calls: Vec<ToolCall>,
    /// Names of declared tools whose call began and never ended.
    pub cut_off_calls: Vec<String>,
    /// Names of undeclared tools that were called; none where no name can be read.
    pub dropped_calls: Vec<Option<String>>,
    /// Why it ended.
    pub reason: FinishReason,
}
