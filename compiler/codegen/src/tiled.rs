//! Which strands stand in the tiles of their core: what is computed from a row, or from an element, lies where the row or the
//! element does.

use crate::region::Ending;
use crate::rows::Tile;
use ir::{Extent, Graph, Op, ValueId};

/// The tiles of a core.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// How many axes of the core count lines of tiles.
    pub line_axes: usize,
    /// Columns of a tile.
    pub width: u64,
    /// Whether each line has columns of its own, all of one width, and the tile every one that it begins.
    pub is_own: bool,
    /// How columns alternate.
    pub cuts: u64,
    /// Columns that stay together there.
    pub granule: u64,
    /// Threads that have a tile.
    pub threads: u64,
    /// Most threads that meet beside others.
    pub most_lanes: u64,
    /// Whether the result goes to memory as well.
    pub is_kept: bool,
}

impl Default for Form {
    fn default() -> Form {
        let (line_axes, width, is_own, cuts, granule, threads) = (1, 0, false, 1, 1, 256);
        Form { line_axes, width, is_own, cuts, granule, threads, most_lanes: 32, is_kept: false }
    }
}

/// The tile of a strand, where its rows stand in one.
pub fn tile(graph: &Graph, core: ValueId, form: &Form, ending: &Ending) -> Option<Tile> {
    if ending.copies {
        return None;
    }
    let axes = &graph.tensor(core)?.axes;
    let (lines, columns) = axes.split_at_checked(form.line_axes)?;
    let columns = columns.iter().map(|a| if let Extent::Fixed(n) = a.extent { Some(n) } else { None });
    let columns = columns.product::<Option<u64>>()?;
    // Rows are those of the core, and some of what its columns begin with.
    let names = |axes: &[ir::Axis]| axes.iter().map(|a| a.name.clone()).collect::<Vec<_>>();
    let (outer, inner) = ending.rows.split_at_checked(lines.len())?;
    if names(outer) != names(lines) || inner.iter().any(|a| a.is_rows()) {
        return None;
    }
    let within: u64 = inner.iter().map(|a| if let Extent::Fixed(n) = a.extent { n } else { 1 }).product();
    let cuts = cuts(graph, core, columns, &ending.values)?;
    let (start, length) = *cuts.first()?;
    let row = length / within.max(1);
    if row == 0 || row * within != length || cuts.iter().any(|(_, n)| *n != length) {
        return None;
    }
    let alternate = form.cuts > 1;
    let is_whole = cuts.len() == 1
        && !alternate
        && row <= form.width
        && form.width.is_multiple_of(row)
        && start.is_multiple_of(row);
    let run = columns / form.cuts.max(1);
    let side_by_side = alternate
        && start == 0
        && length == run
        && form.granule.is_multiple_of(8)
        && run.is_multiple_of(form.granule)
        && form.width.is_multiple_of(form.cuts * form.granule)
        && cuts.iter().all(|(s, _)| s % run == 0);
    let single = cuts.len() == 1 && !alternate;
    if !is_whole && !(row.is_multiple_of(8) && start.is_multiple_of(8) && (side_by_side || single)) {
        return None;
    }
    let width = form.width / form.cuts.max(1);
    let even = match form.is_own {
        true if start == 0 && length == columns => Some(width),
        true => return None,
        false => (start % width == 0 && length % width == 0).then_some(width),
    };
    Some(Tile {
        core,
        line_axes: form.line_axes,
        start: start as i64,
        length: length as i64,
        row: row as i64,
        is_whole,
        run: if alternate { run as i64 } else { 0 },
        even: even.map(|n| n as i64),
        threads: form.threads as i64,
        most_lanes: form.most_lanes as i64,
    })
}

/// The columns of a core that operations read, as start and length, ascending.
fn cuts(graph: &Graph, core: ValueId, columns: u64, values: &[ValueId]) -> Option<Vec<(u64, u64)>> {
    let mut found = Vec::new();
    for id in values {
        if !graph.operands(*id).contains(&core) {
            continue;
        }
        let along = graph.tensor(core)?.axes.last()?;
        found.push(match &graph.node(*id).op {
            // A slice of the only axis of columns; others are parts of a row.
            Op::Slice { axis, start, len, .. } if *axis == along.name && along.extent == Extent::Fixed(columns) => {
                (*start, *len)
            }
            _ => (0, columns),
        });
    }
    found.sort_unstable();
    found.dedup();
    Some(found)
}
