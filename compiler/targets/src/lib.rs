//! Targets: what a model is compiled for, as TOML files, and what a plan costs there. This crate compiles nothing.
//!
//! The files of `model-spec/targets` are part of the program; a path names any other file of the same form.
//! [`cost`] computes bytes, operations and floors of kernels from the kernel level and a target's hardware facts.

pub mod cost;
mod error;
mod file;
mod fuse;
mod hardware;
mod reader;
mod target;
#[cfg(test)]
mod tests;

pub use error::{CODES, TargetError, explain};
pub use fuse::Fuse;
pub use hardware::{Fact, Hardware};
pub use target::{
    BF16_TO_FP8, BucketRule, CONVERSIONS, FormatUse, Formats, Kv, KvDtype, Limits, OptionRule, Target, names,
};
