//! HTTP: the wire formats of the model APIs over one engine.
//!
//! A request's life: a protocol's module (`chat`, `completions`, `generate`) reads its JSON into a request of `turn`, which
//! renders the prompt, compiles the grammar and queues it with the engine's thread ([`Service`]); steps come back as
//! events that the module spells, at once or as server-sent events (`sse`). Whoever hangs up drops the answer, and a
//! dropped answer aborts its request. This is the only crate that knows HTTP or its JSON.

mod app;
mod chat;
mod completions;
mod control;
mod error;
mod errors;
mod fields;
mod format;
mod generate;
mod guard;
mod ids;
mod listen;
mod logprobs;
mod messages;
mod metrics;
mod models;
mod params;
mod plain;
mod responses;
mod router;
mod service;
mod sse;
mod tokens;
mod turn;

pub use app::{App, Options};
pub use listen::serve;
pub use metrics::Metrics;
pub use router::router;
pub use service::{MOST_QUEUED, Service};

#[cfg(test)]
mod tests;
