//! Constrained decoding: which tokens may come next, so that an answer follows a schema, an expression, a grammar, or the
//! turn that a response template and a request's tools allow.
//!
//! ```text
//!  GrammarSpec ─► Compiler (bound to a tokenizer) ─► Grammar ─► Matcher, one a sequence
//!    what a request asks for   limits, time, cache      shared      mask · advance · rollback · forced
//! ```
//!
//! The automata are llguidance's. What is here says what is to be matched: nothing about a format or a model is built in.

mod admits;
mod arguments;
mod compiler;
mod disjoint;
mod ebnf;
mod ecma;
mod endless;
mod error;
mod formats;
mod guard;
mod lower;
mod masks;
mod matcher;
mod numbers;
mod patterns;
mod pieces;
mod prepared;
mod region;
mod schema;
mod space;
mod spec;
mod structural;
mod tokens;
mod turn;
mod wholes;
mod wishes;
mod writer;

pub use compiler::{Compiler, Grammar, Limits};
pub use error::GrammarError;
pub use matcher::Matcher;
pub use spec::{Choice, GrammarSpec, Lane, ToolSpec, TurnPlace, TurnSpec};
