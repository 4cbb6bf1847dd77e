//! One turn of the model, the same for every protocol: what a client asks for, and what it hears back.
//!
//! ```text
//!  protocol JSON ─► TurnRequest ─► Turn::start ─┬─ prompt     messages ─► chat template ─► token ids
//!                   one shape for all           ├─ grammar    tools, format ─► compiled constraint
//!                                               └─ Service    admission, all choices or none
//!  protocol JSON ◄─ Step ◄─────── Turn::next ◄─── Reader, one a choice:
//!   only spells it   TurnEvents,                  token ─► characters ─► stop strings ─► response template
//!                    tokens with log-probabilities
//! ```
//!
//! A protocol's module reads its own JSON into a [`TurnRequest`] and spells [`Step`]s in its own words; it never sees the
//! engine, a template or a grammar. A [`Turn`] is admitted as a whole before a response's head is written, so that a full
//! queue or a bad schema is a status and never part of a stream. Dropping a turn aborts what still runs of it.
//!
//! [`Answers`] alone, without messages and response template, serves the routes that continue plain prompts.

mod answers;
mod following;
mod grammar;
mod prompt;
mod reader;
mod request;
mod spelling;
mod spoken;
mod start;
mod work;

pub(crate) use answers::{Answers, Collected, Plan, Usage};
pub(crate) use following::{Following, Least};
pub(crate) use grammar::{ByGrammar, compiled};
pub(crate) use reader::{Finish, FinishWord, Matched, Reading, Step, TurnEvent};
pub(crate) use request::{FieldNames, Format, Params, Tool, ToolChoice, TurnRequest};
pub(crate) use start::Turn;
