//! Targets: what a model is compiled for, as TOML files. This crate reads and checks them; it compiles nothing.
//!
//! The files of `model-spec/targets` are part of the program; a path names any other file of the same form.

mod error;
mod file;
mod target;

pub use error::{CODES, TargetError, explain};
pub use target::{BucketRule, Kv, KvDtype, Limits, Peak, Target, names};
