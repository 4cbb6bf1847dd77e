//! What every pass says about itself.

use crate::PassError;
use ir::{KernelModule, Mesh, Model, Module, Plan};
use targets::Target;

/// What a compilation is for: all that target-dependent passes may ask.
#[derive(Clone, Copy, Debug)]
pub struct Compile<'a> {
    /// Hardware, formats, buckets.
    pub target: &'a Target,
    /// Ranks.
    pub mesh: &'a Mesh,
    /// Whether relaxations are forbidden, whatever the target allows.
    pub exact: bool,
    /// Matrices whose quantised inputs have a number of their own, which no other product shares.
    pub unpack: &'a [String],
}

static ONE_DEVICE: Mesh = Mesh::single();

impl<'a> Compile<'a> {
    /// For one device, with every relaxation that the target allows.
    pub fn one_device(target: &'a Target) -> Self {
        Compile { target, mesh: &ONE_DEVICE, exact: false, unpack: &[] }
    }
}

/// A level of the IR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Entries and blocks.
    Model,
    /// Flat graphs per layer class.
    Graph,
    /// The same on a mesh, collectives explicit.
    Sharded,
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
            Level::Sharded => "sharded",
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
    /// Level that it is listed under: the one that it leaves. On one device the sharded level is the graph level.
    pub level: Level,
    /// What it may do to bits.
    pub kind: Kind,
    /// One line: why it exists.
    pub why: &'static str,
}

/// What a refining pass leaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Refined {
    /// The new graphs.
    pub module: Module,
    /// Graphs for one device that must leave the bits of the new ones: the old graphs with open sums put into an order. With
    /// `None` it is the old graphs with the new graphs' orders, operation by operation.
    pub witness: Option<Module>,
}

/// How a pass is run.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    /// Model level to graph level.
    Flatten(fn(&Model) -> Result<Module, PassError>),
    /// Inside the graph level, for any target.
    Graph(fn(&Module, &mut Vec<Note>) -> Result<Module, PassError>),
    /// Inside the graph level or on a mesh, by what the target and the mesh state; exact or relaxed.
    Target(fn(&Module, &Compile<'_>) -> Result<Module, PassError>),
    /// The same for a pass that refines orders.
    Refine(fn(&Module, &Compile<'_>) -> Result<Refined, PassError>),
    /// Graph or sharded level to kernel level.
    Select(fn(&Module, &Compile<'_>) -> Result<KernelModule, PassError>),
    /// Inside the kernel level.
    Kernels(fn(&KernelModule, &Compile<'_>) -> Result<KernelModule, PassError>),
    /// Kernel level to plan.
    Plan(fn(&KernelModule, &Compile<'_>) -> Result<Plan, PassError>),
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
