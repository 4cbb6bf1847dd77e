//! Any level of a compilation as text, for `beamc dump`.

use crate::{PassError, lower, plan, refine, to_kernels};
use ir::{KernelModule, Model, Module, Plan};
use std::str::FromStr;
use targets::Target;

/// A level that can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Entries and blocks.
    Model,
    /// Flat graphs per layer class.
    Graph,
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
            "kernel" => Ok(Stage::Kernel),
            "plan" => Ok(Stage::Plan),
            other => Err(format!("`{other}` is not a stage; known are model, graph, kernel, plan")),
        }
    }
}

/// Every level of one compilation.
#[derive(Clone, Debug, PartialEq)]
pub struct Stages {
    /// Model level.
    pub model: Model,
    /// Graph level.
    pub module: Module,
    /// Kernel level.
    pub kernels: KernelModule,
    /// Plan.
    pub plan: Plan,
}

impl Stages {
    /// Compiles a model for a target and keeps every level.
    pub fn compile(model: Model, target: &Target) -> Result<Stages, PassError> {
        let module = refine(&lower(&model)?.module, target)?;
        let kernels = to_kernels(&module)?;
        let plan = plan(&kernels, target)?;
        Ok(Stages { model, module, kernels, plan })
    }

    /// One level as text; `spans` adds the places in the spec as comments.
    pub fn text(&self, stage: Stage, spans: bool) -> String {
        match stage {
            Stage::Model => ir::print_model(&self.model, spans),
            Stage::Graph => ir::print_module(&self.module, spans),
            Stage::Kernel => ir::print_kernels(&self.kernels, spans),
            Stage::Plan => ir::print_plan(&self.plan, &self.kernels),
        }
    }
}
