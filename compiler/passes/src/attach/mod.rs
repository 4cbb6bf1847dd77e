//! **attach** (kernel level): what follows a core joins it, and what its operand is made by.
//!
//! ```text
//! region y matmul { linear }                region o matmul {
//! region g rows { round }                     linear
//! region u rows { round }          ─►         round, round, exp, …, round     (epilogue)
//! region o rows { exp, …, round }           }
//! ```
//!
//! Why: what a product or attention computes is on chip; row operations on it there save writing and reading it.
//! When: the target names the core's kind in `fuse.epilogue` or `fuse.prologue`; `epilogue.rs` and `prologue.rs` have the
//! rules. Cores are served from the last to the first, so what stands between two of them, and either could take, joins
//! the later one.
//! Kind: `Exact`: a region keeps its operations.
//! Tests: `tests.rs` here, random graphs in `tests/fusion.rs`, snapshots of the full model.

mod epilogue;
mod prologue;
#[cfg(test)]
mod tests;

use crate::choose_layouts::equal_cuts;
use crate::regions::{Groups, bytes_per_row, with_regions};
use crate::{Compile, Kind, Level, PassError, PassInfo};
use ir::{Anatomy, Graph, KernelGraph, KernelKind, KernelModule, Region, Strand, ValueId, core_kind};
use std::collections::HashSet;
use targets::Fuse;

/// What the pass says about itself.
pub const INFO: PassInfo = PassInfo {
    name: "attach",
    level: Level::Kernel,
    kind: Kind::Exact,
    why: "what a core computed is on chip when row operations follow",
};

/// Runs the pass.
pub fn run(kernels: &KernelModule, compile: &Compile<'_>) -> Result<KernelModule, PassError> {
    let fuse = &compile.target.fuse;
    if fuse.epilogue.is_empty() && fuse.prologue.is_empty() {
        return Ok(kernels.clone());
    }
    with_regions(kernels, |graph| graph_regions(graph, fuse))
}

/// The regions of one graph, with what joins its cores.
pub(crate) fn graph_regions(kernel_graph: &KernelGraph, fuse: &Fuse) -> Result<Vec<Region>, PassError> {
    let graph = &kernel_graph.graph;
    let mut groups = Groups::of(kernel_graph);
    let core = |v: &ValueId| core_kind(graph, *v).filter(|k| *k != KernelKind::Collective).map(|kind| (*v, kind));
    let cores: Vec<(ValueId, KernelKind)> = graph.ids().rev().filter_map(|v| core(&v)).collect();
    for (core, _) in cores.iter().filter(|(_, kind)| fuse.epilogue.contains(kind)) {
        epilogue::attach(&mut groups, *core, fuse);
    }
    for (core, _) in cores.iter().filter(|(_, kind)| fuse.prologue.contains(kind)) {
        prologue::attach(&mut groups, *core, fuse);
    }
    groups.regions()
}

/// A region being made around a core.
struct Growth<'a, 'g> {
    groups: &'a Groups<'g>,
    graph: &'g Graph,
    fuse: &'a Fuse,
    home: usize,
    values: HashSet<ValueId>,
}

impl<'a, 'g> Growth<'a, 'g> {
    /// The group of a core as it stands.
    fn of(groups: &'a Groups<'g>, core: ValueId, fuse: &'a Fuse) -> Option<Self> {
        let home = groups.group(core)?;
        let values = groups.values(home).iter().copied().collect();
        Some(Growth { groups, graph: groups.graph, fuse, home, values })
    }

    /// Whether an operation stands alone so far and is one that may join a core.
    fn free(&self, id: ValueId) -> bool {
        let alone = self.groups.group(id).is_some_and(|g| self.groups.values(g).len() == 1);
        let op = &self.graph.node(id).op;
        let allowed = match op {
            ir::Op::Gather { .. } => self.fuse.gather,
            ir::Op::Store { .. } => self.fuse.store,
            op => op.exchanges().is_none() && !op.is_of_block() && core_kind(self.graph, id).is_none(),
        };
        alone && allowed && !op.is_leaf() && !self.values.contains(&id)
    }

    /// Whether these operations are a region within the target's limits that waits for nobody who waits for it.
    fn legal(&self, values: &HashSet<ValueId>) -> bool {
        let mut ascending: Vec<ValueId> = values.iter().copied().collect();
        ascending.sort_unstable();
        let Ok(anatomy) = Anatomy::of(self.graph, &ascending) else { return false };
        let together = || self.fuse.interleave_granule > 0 && equal_cuts(self.graph, &anatomy).is_some();
        let fits =
            |s: &Strand| s.row_elements <= self.fuse.epilogue_row_elements.max(1) && (s.reads.len() < 2 || together());
        let within = anatomy.strands.iter().all(fits);
        within && !self.groups.cyclic(values)
    }

    /// Adds an operation if the result is legal.
    fn add(&mut self, id: ValueId) -> bool {
        let mut more = self.values.clone();
        more.insert(id);
        let legal = self.legal(&more);
        if legal {
            self.values = more;
        }
        legal
    }

    /// Bytes per row of what other regions read of these operations, and of what would leave another kernel if it had the
    /// rest: row operations that follow the rest are taken to join it.
    fn leaving(&self, values: &HashSet<ValueId>) -> u64 {
        let leaves = |id: &ValueId| self.read_outside(*id, values) && !self.graph.node(*id).op.is_view();
        let bytes = |id: &ValueId| bytes_per_row(self.graph, *id);
        let own = values.iter().filter(|v| leaves(v)).map(bytes).fold(0, u64::saturating_add);
        let rest = self.values.difference(values).filter(|v| self.read_by_cores(**v));
        rest.map(bytes).fold(own, u64::saturating_add)
    }

    /// Whether a value is a result, or an operand of what no row operation joins, itself or viewed.
    fn read_by_cores(&self, id: ValueId) -> bool {
        self.graph.outputs.iter().any(|(_, v)| *v == id)
            || self.graph.users(id).into_iter().any(|u| {
                let op = &self.graph.node(u).op;
                core_kind(self.graph, u).is_some() || (op.is_view() && self.read_by_cores(u))
            })
    }

    /// Whether something outside reads the value or a view of it.
    fn read_outside(&self, id: ValueId, values: &HashSet<ValueId>) -> bool {
        let output = self.graph.outputs.iter().any(|(_, v)| *v == id);
        output
            || self
                .graph
                .users(id)
                .into_iter()
                .any(|u| !values.contains(&u) || (self.graph.node(u).op.is_view() && self.read_outside(u, values)))
    }

    /// Bytes per row of what these operations read that operations outside compute.
    fn entering(&self, values: &HashSet<ValueId>) -> u64 {
        let mut read: Vec<ValueId> = values.iter().flat_map(|v| self.graph.operands(*v)).collect();
        read.sort_unstable();
        read.dedup();
        let computed = |id: &ValueId| !values.contains(id) && !self.graph.node(*id).op.is_leaf();
        read.iter().filter(|v| computed(v)).map(|v| bytes_per_row(self.graph, *v)).fold(0, u64::saturating_add)
    }

    /// Takes away what makes `cost` smaller when it goes, each time with all that `with` names: what saves most, and of
    /// that the fewest operations.
    fn prune(
        &mut self,
        keep: &HashSet<ValueId>,
        cost: impl Fn(&Self, &HashSet<ValueId>) -> u64,
        with: impl Fn(&Self, ValueId) -> HashSet<ValueId>,
    ) {
        loop {
            let now = cost(self, &self.values);
            let mut candidates: Vec<ValueId> = self.values.difference(keep).copied().collect();
            candidates.sort_unstable();
            let mut best: Option<(u64, usize, HashSet<ValueId>)> = None;
            for id in candidates {
                let gone = with(self, id);
                if !gone.is_disjoint(keep) {
                    continue;
                }
                let rest: HashSet<ValueId> = self.values.difference(&gone).copied().collect();
                let found = (cost(self, &rest), gone.len());
                let better = best.as_ref().is_none_or(|(cost, size, _)| found < (*cost, *size));
                if found.0 < now && better && self.legal(&rest) {
                    best = Some((found.0, found.1, rest));
                }
            }
            match best {
                Some((.., rest)) => self.values = rest,
                None => return,
            }
        }
    }
}
