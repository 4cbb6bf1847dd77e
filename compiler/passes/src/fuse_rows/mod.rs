//! **fuse rows** (kernel level)
//!
//! ```text
//! region a rows { mul }   ┐                       region x rows {
//! region b rows { sum }   │                         mul, sum, div, add, sqrt, div, mul, mul, round
//!   …                     ├─►                       … the residual, the next norm
//! region x rows { round } ┘                       }
//! ```
//!
//! Why: a chain of row operations reads each value once and writes what others need, in one launch.
//! When: the target says `fuse.rows`. Two regions of row operations join where one reads the other and (1) no third
//! region stands between them; (2) together they are a region by the rules of [`ir::Anatomy`]: strands of operations
//! whose rows run in step; (3) a table lookup, a store or an exchange between ranks among them is one that the target lets
//! join (`fuse.gather`, `fuse.store`, `fuse.collective`). Operands are tried from the last operation to the first, so what
//! several regions could compute stands with the last of them that may.
//! Kind: `Exact`: a region keeps its operations.
//! Tests: `tests.rs` here, random graphs in `tests/fusion.rs`, snapshots of the full model.

#[cfg(test)]
mod tests;

use crate::regions::{Groups, with_regions};
use crate::{Compile, Kind, Level, PassError, PassInfo};
use ir::{Anatomy, Graph, KernelGraph, KernelModule, Op, Region, ValueId, core_kind};
use std::collections::HashSet;
use targets::Fuse;

/// What the pass says about itself.
pub const INFO: PassInfo = PassInfo {
    name: "fuse rows",
    level: Level::Kernel,
    kind: Kind::Exact,
    why: "a chain of row operations is one pass over its rows",
};

/// Runs the pass.
pub fn run(kernels: &KernelModule, compile: &Compile<'_>) -> Result<KernelModule, PassError> {
    let fuse = &compile.target.fuse;
    if !fuse.rows {
        return Ok(kernels.clone());
    }
    with_regions(kernels, |graph| graph_regions(graph, fuse))
}

/// The regions of one graph, joined.
pub(crate) fn graph_regions(kernel_graph: &KernelGraph, fuse: &Fuse) -> Result<Vec<Region>, PassError> {
    let graph = &kernel_graph.graph;
    let mut groups = Groups::of(kernel_graph);
    let mut may_join = vec![true; graph.len()];
    for region in kernel_graph.regions.iter().filter(|r| !r.values.iter().all(|v| joins(graph, *v, fuse))) {
        region.values.iter().for_each(|v| may_join[v.0 as usize] = false);
    }
    loop {
        let mut joined = false;
        for id in graph.ids().rev().filter(|v| may_join[v.0 as usize]) {
            for operand in graph.operands(id).into_iter().filter(|v| may_join[v.0 as usize]) {
                joined |= join(&mut groups, operand, id);
            }
        }
        if !joined {
            return groups.regions();
        }
    }
}

/// Whether an operation is one that may stand in a region of row operations on this target.
fn joins(graph: &Graph, id: ValueId, fuse: &Fuse) -> bool {
    match &graph.node(id).op {
        Op::Gather { .. } => fuse.gather,
        Op::Store { .. } => fuse.store,
        op if op.exchanges().is_some() => fuse.collective,
        op if op.is_of_block() => false,
        op => !op.is_leaf() && core_kind(graph, id).is_none(),
    }
}

/// Joins the groups of two values, if that is a region and no third group stands between them.
fn join(groups: &mut Groups<'_>, operand: ValueId, user: ValueId) -> bool {
    let (Some(a), Some(b)) = (groups.group(operand), groups.group(user)) else { return false };
    if a == b {
        return false;
    }
    let both: HashSet<ValueId> = groups.values(a).iter().chain(groups.values(b)).copied().collect();
    let mut ascending: Vec<ValueId> = both.iter().copied().collect();
    ascending.sort_unstable();
    if Anatomy::of(groups.graph, &ascending).is_err() || groups.cyclic(&both) {
        return false;
    }
    groups.set(b, &both);
    true
}
