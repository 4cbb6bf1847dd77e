//! Rows that stand in a tile of a core's result: the core's own kernel ends with them, and its numbers never reach memory.
//!
//! A *line* of a tile is a row of the core; it holds some of its columns. Either a tile holds whole rows of what is computed from
//! it, or every element is computed from the core's own element (of each cut), and threads take what the tile has, 8 at a time.

use super::emit::{Coords, flat};
use super::index::{Index, LANE};
use super::order::Stage;
use super::text::{Geometry, Kernel};
use artifact::Param;
use ir::{Axis, ValueId};
use std::fmt::Write;

/// Where a strand's rows stand in the tiles of a core.
#[derive(Clone, Debug, PartialEq)]
pub struct Tile {
    /// The core.
    pub core: ValueId,
    /// How many of its axes count lines.
    pub line_axes: usize,
    /// First column of the cut that the strand reads; of the first of several.
    pub start: i64,
    /// Columns of that cut.
    pub length: i64,
    /// Columns of one row of the strand.
    pub row: i64,
    /// Whether a tile holds whole rows.
    pub is_whole: bool,
    /// Columns between cuts that stand side by side in a tile; 0 for a single cut.
    pub run: i64,
    /// Columns of the cut that every tile holds which holds any; `None` where tiles differ.
    pub even: Option<i64>,
    /// Threads that have a tile.
    pub threads: i64,
    /// Most threads that can meet beside others.
    pub most_lanes: i64,
}

impl Tile {
    /// Threads of rows of so many groups of 8 elements.
    pub(super) fn geometry(&self, groups: i64) -> Result<Geometry, String> {
        let lanes = (groups as u64).next_power_of_two() as i64;
        if !self.is_whole || lanes > self.most_lanes || self.threads % lanes != 0 {
            return Err(format!("{lanes} threads a row do not meet in a tile"));
        }
        Ok(Geometry { lanes, threads: self.threads, is_flat: false })
    }

    /// The column of the core that is read. The error says that it may stand in another tile.
    pub(super) fn index(&self, axes: &[Axis], coords: &Coords, rows: &Coords, wide: bool) -> Result<Index, String> {
        let columns = axes.get(self.line_axes..).unwrap_or_default();
        let index = flat(columns, coords)?;
        if self.is_whole {
            return Ok(index);
        }
        let is_row = |s: &str| rows.values().any(|i| i.symbols().any(|r| r == s));
        let constant = index.own_element(is_row).filter(|_| wide);
        let fits = constant.is_some_and(|c| if self.run > 0 { c % self.run == 0 } else { c == self.start });
        if fits {
            Ok(index)
        } else {
            Err(format!("`{}` of {} may stand in another tile", index.text(false), self.core))
        }
    }

    /// The loop over the rows of a tile, or over its groups of 8 elements.
    pub(super) fn begin(&self, g: Geometry, factor: i64, out: &mut String) {
        let Tile { start, length, row, threads, .. } = self;
        let unit = if self.is_whole { *row } else { 8 };
        let template = format!("{start}, {length}");
        let across = match self.even {
            Some(width) => format!("{}", width / unit),
            None => format!("tile.template across<{template}, {unit}>()"),
        };
        let _ = writeln!(out, "  const int each = {across};");
        let _ = writeln!(out, "  const int units = tile.template holds<{template}>() ? tile.count * each : 0;");
        let line = |out: &mut String, at: &str| {
            let _ = writeln!(out, "  const int line = {at} / each;");
            let _ = writeln!(out, "  const int first = tile.template first<{template}>(line) + {at} % each * {unit};");
        };
        // Rows of the strand for each of the core.
        let within = length / row;
        let own_row = if within == 1 {
            "tile.to(line)".to_owned()
        } else {
            format!("tile.to(line) * {within} + (first - {start}) / {row}")
        };
        debug_assert!(factor % within == 0);
        if !g.is_flat {
            let at_once = threads / g.lanes;
            let _ = writeln!(out, "  const int lane = tile.own % LANES, sub = tile.own / LANES;");
            let _ = writeln!(out, "#pragma unroll 1\n  for (int begun = 0; begun < units; begun += {at_once}) {{");
            let _ = writeln!(out, "  const int at = begun + sub < units ? begun + sub : units - 1;");
            line(out, "at");
            let _ = writeln!(out, "  const bool live = begun + sub < units && tile.has(line);");
            let _ = writeln!(out, "  const int row = {own_row};");
            return;
        }
        let all = if self.is_whole { "units * LANES" } else { "units" };
        let _ = writeln!(out, "#pragma unroll 1\n  for (int at = tile.own; at < {all}; at += {threads}) {{");
        if self.is_whole {
            let _ = writeln!(out, "  const int unit = at / LANES, lane = at % LANES;");
            line(out, "unit");
        } else {
            line(out, "at");
            let _ = writeln!(out, "  const int lane = (first - {start}) % {row} / 8;");
        }
        let _ = writeln!(out, "  if (!tile.has(line)) continue;");
        let _ = writeln!(out, "  const int row = {own_row};");
    }
}

impl Kernel<'_> {
    /// The end of the loop over a tile's rows: what threads share is theirs again.
    pub(super) fn tile_ends(&self, stages: &[Stage], out: &mut String) {
        let meets = |s: &Stage| s.shares(self.modes) || matches!(s, Stage::Loop { reduced, .. } if !reduced.is_empty());
        if !self.geometry.is_flat && stages.iter().any(meets) {
            let _ = writeln!(out, "  group_sync<LANES>();");
        }
        out.push_str("  }\n");
    }
}

impl Index {
    /// The constant of the index of a loop's own element: that, what `is_row` names, and a number.
    fn own_element(&self, is_row: impl Fn(&str) -> bool) -> Option<i64> {
        let once = |s: &str| self.factor(s) == 1;
        let others = self.symbols().filter(|s| *s != LANE && *s != "e").all(is_row);
        (once("e") && once(LANE) && others).then(|| self.constant())
    }
}

/// What the kernel of a core ends with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ends {
    /// What it says of itself, in comments.
    pub head: String,
    /// Functions.
    pub functions: String,
    /// Parameters behind those of the core, as they are declared.
    pub signature: String,
    /// The function that the template calls with every tile.
    pub call: String,
    /// Parameters.
    pub params: Vec<Param>,
    /// Bytes of shared memory.
    pub bytes: u32,
}
