//! HTTP: the wire formats of Chat Completions and Completions over one engine.
//!
//! A request's life: the body is read and checked (`fields`, `params`), its messages become a prompt (`messages`, the
//! chat template), the prompt goes to the engine's thread ([`Service`]), and its events come back as text (`answer`)
//! that `chat` or `completions` put into JSON, at once or as server-sent events. Whoever hangs up drops the answer, and
//! a dropped answer aborts its request. This is the only crate that knows HTTP or its JSON.

mod answer;
mod app;
mod chat;
mod completions;
mod error;
mod fields;
mod listen;
mod messages;
mod models;
mod params;
mod service;
mod stream;

pub use app::{App, router};
pub use listen::serve;
pub use service::{Generation, Service};

#[cfg(test)]
mod tests;
