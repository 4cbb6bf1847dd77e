//! HTTP: the wire formats of the model APIs over one engine.
//!
//! ```text
//!  router ─► guard: keys, origins ─► payload: one JSON object ─┬─ chat, messages, responses ─► turn: prompt, grammar ─┐
//!                                                              ├─ completions, generate ─► plain: prompts as they are ─┤
//!                                                              └─ tokens, models, control                              ▼
//!  errors: the route's form ◄─ one object, or sse ◄─ the protocol's words for steps ◄─ turn::Answers ◄─ service: engine's thread
//! ```
//!
//! A protocol's module reads its JSON into a request of `turn`, which renders the prompt, compiles the grammar and queues
//! it with the engine's thread ([`Service`]); steps come back as events that the module spells, at once or as server-sent
//! events (`sse`), from one and the same state. Whoever hangs up drops the answer, and a dropped answer aborts its request;
//! responses that are stored (`responses`) can be fetched, continued, cancelled and deleted, and go on in the background.
//! This is the only crate that knows HTTP or its JSON. Every public answer is described in `openapi.json`.

mod app;
mod body;
mod chat;
mod completions;
mod control;
mod controls;
mod door;
mod error;
mod errors;
mod fields;
mod format;
mod generate;
mod guard;
mod ids;
mod key;
mod listen;
mod log;
mod logprobs;
mod messages;
mod metrics;
mod models;
mod params;
mod parts;
mod payload;
mod plain;
mod rate;
mod refusals;
mod responses;
mod router;
mod service;
mod sse;
mod tokens;
mod turn;

pub use app::{App, Options};
pub use door::Door;
pub use key::Key;
pub use listen::serve;
pub use log::{Log, LogFormat};
pub use metrics::Metrics;
pub use router::router;
pub use service::Service;

#[cfg(test)]
mod tests;
