//! The list of passes, and the functions that run it.

use crate::error::{defect, unverified};
use crate::relax::{rank_round, rank_scale, wire_bf16};
use crate::{Compile, Note, Pass, PassError, PassInfo, Run};
use crate::{attach, choose_layouts, fuse_rows, order_launches, pack_projections};
use crate::{canonicalise, flatten, plan_memory, quantise, refine_orders, rotate_seam, select_kernels, shard};
use ir::{KernelModule, Model, Module, Plan};

/// Every pass, in the order in which they run.
pub static PASSES: [Pass; 17] = [
    Pass { info: flatten::INFO, run: Run::Flatten(flatten::run) },
    Pass { info: canonicalise::INFO, run: Run::Graph(canonicalise::run) },
    Pass { info: rotate_seam::INFO, run: Run::Graph(rotate_seam::run) },
    Pass { info: canonicalise::INFO, run: Run::Graph(canonicalise::run) },
    Pass { info: quantise::INFO, run: Run::Target(quantise::run) },
    Pass { info: shard::INFO, run: Run::Refine(shard::run) },
    Pass { info: rank_scale::INFO, run: Run::Target(rank_scale::run) },
    Pass { info: rank_round::INFO, run: Run::Target(rank_round::run) },
    Pass { info: wire_bf16::INFO, run: Run::Target(wire_bf16::run) },
    Pass { info: refine_orders::INFO, run: Run::Refine(refine_orders::run) },
    Pass { info: pack_projections::INFO, run: Run::Target(pack_projections::run) },
    Pass { info: select_kernels::INFO, run: Run::Select(select_kernels::run) },
    Pass { info: attach::INFO, run: Run::Kernels(attach::run) },
    Pass { info: fuse_rows::INFO, run: Run::Kernels(fuse_rows::run) },
    Pass { info: choose_layouts::INFO, run: Run::Kernels(choose_layouts::run) },
    Pass { info: order_launches::INFO, run: Run::Kernels(order_launches::run) },
    Pass { info: plan_memory::INFO, run: Run::Plan(plan_memory::run) },
];

/// The graph level of a model, and what was left undone on the way.
#[derive(Clone, Debug, PartialEq)]
pub struct Lowered {
    /// The graph level.
    pub module: Module,
    /// Remarks of passes.
    pub notes: Vec<Note>,
}

/// The graph level as one pass left it.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The pass.
    pub pass: PassInfo,
    /// What it left.
    pub module: Module,
}

/// The graph level of a model.
pub fn to_module(model: &Model) -> Result<Module, PassError> {
    Ok(lower(model)?.module)
}

/// The graph level of a model, with the passes' notes.
pub fn lower(model: &Model) -> Result<Lowered, PassError> {
    let mut notes = Vec::new();
    let module = lower_with(model, &mut notes, &mut |_, _| {})?;
    Ok(Lowered { module, notes })
}

/// The graph level after each pass that leaves one, in order: what validation compares step by step.
pub fn lower_step_by_step(model: &Model) -> Result<Vec<Snapshot>, PassError> {
    let mut snapshots = Vec::new();
    lower_with(model, &mut Vec::new(), &mut |pass, module| {
        snapshots.push(Snapshot { pass, module: module.clone() });
    })?;
    Ok(snapshots)
}

fn lower_with(
    model: &Model,
    notes: &mut Vec<Note>,
    seen: &mut dyn FnMut(PassInfo, &Module),
) -> Result<Module, PassError> {
    ir::verify_model(model).map_err(|e| unverified("the front end", &e))?;
    let mut current: Option<Module> = None;
    for pass in &PASSES {
        let next = match (pass.run, &current) {
            (Run::Flatten(run), _) => run(model)?,
            (Run::Graph(run), Some(module)) => run(module, notes)?,
            _ => break,
        };
        ir::verify_module(&next).map_err(|e| unverified(pass.info.name, &e))?;
        seen(pass.info, &next);
        current = Some(next);
    }
    current.ok_or_else(|| defect("no pass leaves a graph level"))
}

/// The graph level with what a target and a mesh decide about it: sharded, relaxed, orders fixed, packed.
pub fn refine(module: &Module, compile: &Compile<'_>) -> Result<Module, PassError> {
    let mut current = module.clone();
    for pass in &PASSES {
        current = match pass.run {
            Run::Target(run) => run(&current, compile)?,
            Run::Refine(run) => run(&current, compile)?.module,
            _ => continue,
        };
        ir::verify_module(&current).map_err(|e| unverified(pass.info.name, &e))?;
    }
    Ok(current)
}

/// The kernel level of a module.
pub fn to_kernels(module: &Module, compile: &Compile<'_>) -> Result<KernelModule, PassError> {
    let mut current: Option<KernelModule> = None;
    for pass in &PASSES {
        let next = match (pass.run, &current) {
            (Run::Select(run), _) => run(module, compile)?,
            (Run::Kernels(run), Some(kernels)) => run(kernels, compile)?,
            _ => continue,
        };
        ir::verify_kernels(&next).map_err(|e| unverified(pass.info.name, &e))?;
        current = Some(next);
    }
    current.ok_or_else(|| defect("no pass leaves a kernel level"))
}

/// The plan of a kernel module on a target.
pub fn plan(kernels: &KernelModule, compile: &Compile<'_>) -> Result<Plan, PassError> {
    for pass in &PASSES {
        if let Run::Plan(run) = pass.run {
            let plan = run(kernels, compile)?;
            ir::verify_plan(&plan, kernels).map_err(|e| unverified(pass.info.name, &e))?;
            return Ok(plan);
        }
    }
    Err(defect("no pass leaves a plan"))
}
