//! Any level of a compilation as text, for `beamc dump`.

use crate::{Compile, Lowered, Note, PassError, lower, plan, refine, to_kernels};
use ir::{KernelModule, Model, Module, Plan};
use std::str::FromStr;

/// A level that can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Entries and blocks.
    Model,
    /// Flat graphs per layer class, as the spec has them.
    Graph,
    /// The same as one rank of the mesh runs them, orders fixed.
    Sharded,
    /// Operations in regions.
    Kernel,
    /// Launches and buffers.
    Plan,
}

impl FromStr for Stage {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "model" => Ok(Stage::Model),
            "graph" => Ok(Stage::Graph),
            "sharded" => Ok(Stage::Sharded),
            "kernel" => Ok(Stage::Kernel),
            "plan" => Ok(Stage::Plan),
            other => Err(format!("`{other}` is not a stage; known are model, graph, sharded, kernel, plan")),
        }
    }
}

/// Every level of one compilation.
#[derive(Clone, Debug, PartialEq)]
pub struct Stages {
    /// Model level.
    pub model: Model,
    /// Graph level, the same for every target and mesh.
    pub graph: Module,
    /// Graph or sharded level, after all that the target and the mesh decide about it.
    pub module: Module,
    /// Kernel level.
    pub kernels: KernelModule,
    /// Plan.
    pub plan: Plan,
    /// What passes left undone, and why.
    pub notes: Vec<Note>,
}

impl Stages {
    /// Compiles a model for a target and a mesh and keeps every level.
    pub fn compile(model: Model, compile: &Compile<'_>) -> Result<Stages, PassError> {
        let Lowered { module: graph, notes } = lower(&model)?;
        let module = refine(&graph, compile)?;
        let kernels = to_kernels(&module, compile)?;
        let plan = plan(&kernels, compile)?;
        Ok(Stages { model, graph, module, kernels, plan, notes })
    }

    /// One level as text; `spans` adds the places in the spec as comments.
    pub fn text(&self, stage: Stage, spans: bool) -> String {
        match stage {
            Stage::Model => ir::print_model(&self.model, spans),
            Stage::Graph => ir::print_module(&self.graph, spans),
            Stage::Sharded => ir::print_module(&self.module, spans),
            Stage::Kernel => ir::print_kernels(&self.kernels, spans),
            Stage::Plan => ir::print_plan(&self.plan, &self.kernels),
        }
    }
}
