//! What every pass says about itself.

use crate::PassError;
use ir::{KernelModule, Model, Module, Plan};
use targets::Target;

/// A level of the IR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Entries and blocks.
    Model,
    /// Flat graphs per layer class.
    Graph,
    /// Operations in regions.
    Kernel,
    /// Launches and buffers.
    Plan,
}

impl Level {
    /// The word that `--stage` takes.
    pub fn word(self) -> &'static str {
        match self {
            Level::Model => "model",
            Level::Graph => "graph",
            Level::Kernel => "kernel",
            Level::Plan => "plan",
        }
    }
}

/// What a pass may do to the bits of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Exact,
    /// It fixes an order that was left `any`.
    Refines(&'static str),
    /// It changes them in this named way.
    Relaxed(&'static str),
}

/// A pass as reports and lists show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassInfo {
    /// A verb phrase, such as `rotate the seam`.
    pub name: &'static str,
    /// Level that it leaves.
    pub level: Level,
    /// What it may do to bits.
    pub kind: Kind,
    /// One line: why it exists.
    pub why: &'static str,
}

/// How a pass is run.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    /// Model level to graph level.
    Flatten(fn(&Model) -> Result<Module, PassError>),
    /// Inside the graph level.
    Graph(fn(&Module, &mut Vec<Note>) -> Result<Module, PassError>),
    /// Inside the graph level, by what the target states.
    Refine(fn(&Module, &Target) -> Result<Module, PassError>),
    /// Graph level to kernel level.
    Select(fn(&Module) -> Result<KernelModule, PassError>),
    /// Kernel level to plan.
    Plan(fn(&KernelModule, &Target) -> Result<Plan, PassError>),
}

/// A pass in the pipeline.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// What it says about itself.
    pub info: PassInfo,
    /// What it does.
    pub run: Run,
}

/// Something a pass did not do, and why; the result is right without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Name of the pass.
    pub pass: &'static str,
    /// Entry concerned.
    pub entry: String,
    /// What was not done and which condition was missing.
    pub message: String,
}
