//! What follows a core.
//!
//! ```text
//! core ─► round ─► … ─► round ─► store          forward: operations that read what is inside already
//!            ╲
//!  side ─► sigmoid ─► round ─► mul ─► round      backward: what only they need
//! ```
//!
//! (1) Forward, by ascending number: an operation that reads a value of the region joins while the region stays legal: a row
//! of a strand takes no more of the core's result than a tile holds (`fuse.epilogue_row_elements`), and combines cuts of it
//! only if a layout can interleave them (`fuse.interleave_granule`). (2) Of that, what makes more bytes leave than would
//! without it goes again, with all that follows it. (3) Backward: what only the region reads joins, unless more bytes then enter;
//! of what the core itself reads, only rows picked from a table.

use super::{Groups, Growth};
use ir::{Op, ValueId};
use std::collections::HashSet;
use targets::Fuse;

pub(super) fn attach(groups: &mut Groups<'_>, core: ValueId, fuse: &Fuse) {
    let Some(mut growth) = Growth::of(groups, core, fuse) else { return };
    let begin = growth.values.clone();
    for id in growth.graph.ids().skip(core.0 as usize + 1) {
        let reads = growth.graph.operands(id).iter().any(|v| growth.values.contains(v));
        if reads && growth.free(id) {
            growth.add(id);
        }
    }
    growth.prune(&begin, Growth::leaving, followers);
    let forward = growth.values.clone();
    let before = before(&growth, core);
    // What the core's operand is computed by is a prologue, which a target may not want; rows of a table it can read.
    let computes = |id: ValueId| {
        let op = &growth.graph.node(id).op;
        before.contains(&id) && !op.is_view() && !matches!(op, Op::Gather { .. })
    };
    for id in growth.graph.ids().rev() {
        let users = growth.graph.users(id);
        let output = growth.graph.outputs.iter().any(|(_, v)| *v == id);
        let needed_here_alone = !users.is_empty() && !output && users.iter().all(|u| growth.values.contains(u));
        if needed_here_alone && !computes(id) && growth.free(id) {
            growth.add(id);
        }
    }
    growth.prune(&forward, Growth::entering, sources);
    let (home, values) = (growth.home, growth.values);
    groups.set(home, &values);
}

/// All that a core depends on.
fn before(growth: &Growth<'_, '_>, core: ValueId) -> HashSet<ValueId> {
    let mut found = HashSet::from([core]);
    let mut open = vec![core];
    while let Some(value) = open.pop() {
        open.extend(growth.graph.operands(value).into_iter().filter(|v| found.insert(*v)));
    }
    found
}

/// A value and all inside that depends on it.
fn followers(growth: &Growth<'_, '_>, id: ValueId) -> HashSet<ValueId> {
    let mut found = HashSet::from([id]);
    for user in growth.graph.ids().skip(id.0 as usize + 1).filter(|v| growth.values.contains(v)) {
        if growth.graph.operands(user).iter().any(|v| found.contains(v)) {
            found.insert(user);
        }
    }
    found
}

/// A value and all inside that it depends on.
pub(super) fn sources(growth: &Growth<'_, '_>, id: ValueId) -> HashSet<ValueId> {
    let mut found = HashSet::from([id]);
    let mut open = vec![id];
    while let Some(value) = open.pop() {
        for operand in growth.graph.operands(value).into_iter().filter(|v| growth.values.contains(v)) {
            if found.insert(operand) {
                open.push(operand);
            }
        }
    }
    found
}
