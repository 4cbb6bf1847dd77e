//! What a core's first operand is made by.
//!
//! ```text
//! table, rows ─► gather ─► core          the core reads the rows where they are
//! a, b ─► mul ─► core                    the core multiplies as it reads
//! ```
//!
//! Backward from the core: an operation that only the region reads joins, if it works element by element or picks rows of
//! a table, unless more bytes then enter than without it.

use super::{Groups, Growth, epilogue};
use ir::ValueId;
use targets::Fuse;

pub(super) fn attach(groups: &mut Groups<'_>, core: ValueId, fuse: &Fuse) {
    let Some(mut growth) = Growth::of(groups, core, fuse) else { return };
    let begin = growth.values.clone();
    for id in growth.graph.ids().rev().skip_while(|v| *v >= core) {
        let users = growth.graph.users(id);
        let output = growth.graph.outputs.iter().any(|(_, v)| *v == id);
        let needed_here_alone = !users.is_empty() && !output && users.iter().all(|u| growth.values.contains(u));
        if needed_here_alone && growth.free(id) {
            growth.add(id);
        }
    }
    growth.prune(&begin, Growth::entering, epilogue::sources);
    let (home, values) = (growth.home, growth.values);
    groups.set(home, &values);
}
