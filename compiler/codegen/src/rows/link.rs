//! Rows that ranks have together: each sends its own terms of a sum to all, and computes what is behind the sum from what all sent.
//!
//! ```text
//! before: rows of the operand ──► to every rank's letterbox ── exchange ──► sums by rank ──► behind: norms, residual, next norm
//! ```
//!
//! Both are row kernels, called by one kernel for the same rows of a block (`seam.cuh`).

use super::emit::{Body, Coords, flat};
use super::index::{Index, LANE};
use super::text::{Geometry, Kernel};
use super::{RowKernel, c_type, memory_type};
use ir::{DType, Order, ValueId};
use std::fmt::Write;

/// Most threads of a row: each then has few groups, and its numbers from every rank stand in registers.
const MOST_LANES: i64 = 512;
/// Threads of a block whose rows take less than a block.
const SMALL_BLOCK: i64 = 256;

/// What a part of an exchanging kernel is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Link {
    /// The sum over ranks that it reads, and its order; none in what stands before.
    pub sum: Option<ValueId>,
    /// Threads of a row and of a block, where another part has chosen them.
    pub threads: Option<(u32, u32)>,
}

impl Link {
    /// How threads and rows go together.
    pub(super) fn geometry(&self, groups: i64) -> Result<Geometry, String> {
        let (lanes, threads) = match self.threads {
            Some((lanes, threads)) => (i64::from(lanes), i64::from(threads)),
            None => {
                let lanes = ((groups.max(1) as u64).next_power_of_two() as i64).min(MOST_LANES);
                (lanes, lanes.max(SMALL_BLOCK))
            }
        };
        if groups > lanes * 8 {
            return Err(format!("a row of {} elements is more than a block holds", groups * 8));
        }
        Ok(Geometry { lanes, threads, is_flat: false })
    }

    /// The row of a thread, among those that the block exchanges at once.
    pub(super) fn begin(out: &mut String) {
        out.push_str("  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;\n");
        out.push_str("  const bool live = link.begin + sub < link.rows;\n");
        out.push_str("  const int row = live ? link.begin + sub : link.rows - 1;\n");
    }
}

impl Kernel<'_> {
    /// An element of the sum over ranks.
    pub(super) fn summed(&mut self, body: &mut Body, id: ValueId, coords: &Coords) -> Result<String, String> {
        let index = self.index_in_row(id, coords)?;
        let key = format!("link[{}]", index.text(true));
        if let Some(known) = body.loads.get(&key) {
            return Ok(known.clone());
        }
        let name = self.fresh("m");
        let text = if is_group(body, &index) {
            body.group_lines
                .push(format!("float {name}[8]; link.take8({name}, sub, {});", index.without_lane().text(false)));
            format!("{name}[{LANE}]")
        } else {
            body.lines.push(format!("const float {name} = link.take(sub, {});", index.text(false)));
            name
        };
        body.loads.insert(key, text.clone());
        Ok(text)
    }

    /// An element of the own term goes to all ranks.
    pub(super) fn element_sent(
        &mut self,
        id: ValueId,
        coords: &Coords,
        text: &str,
        body: &mut Body,
        before: &mut Vec<String>,
        after: &mut Vec<String>,
    ) -> Result<(), String> {
        let index = self.index_in_row(id, coords)?;
        if is_group(body, &index) {
            let name = self.fresh("o");
            before.push(format!("{} {name}[8];", c_type(self.job.dtype(id))));
            body.lines.push(format!("{name}[{LANE}] = {text};"));
            after.push(format!("if (live) link.send8(sub, {}, {name});", index.without_lane().text(false)));
        } else {
            body.lines.push(format!("if (live) link.send(sub, {}, {text});", index.text(false)));
        }
        Ok(())
    }

    fn index_in_row(&self, id: ValueId, coords: &Coords) -> Result<Index, String> {
        flat(&self.job.space(id), coords)
    }
}

/// Whether a group of 8 elements stands side by side.
fn is_group(body: &Body, index: &Index) -> bool {
    let aligned = |s: &str| body.symbols.get(s).is_some_and(|s| s.aligned);
    let varies = |s: &str| body.symbols.get(s).is_some_and(|s| s.varies);
    body.wide && index.is_group(aligned, varies)
}

/// The text of a kernel that exchanges rows; its entry is called `@NAME@`. Its parameters are those of the exchange, then `before`'s, then `behind`'s.
/// Where `is_home`, ranks bring rows of their own: what stands before has those of all ranks, and each takes its own sums.
pub fn seam(
    (before, behind): (&RowKernel, &RowKernel),
    ranks: u64,
    of: DType,
    row: u64,
    order: &Order,
    is_home: bool,
) -> Result<String, String> {
    let order = match order {
        Order::Serial => "Ascending",
        Order::Fold | Order::Any => "Tree",
        other => return Err(format!("a sum over ranks in the order {other}")),
    };
    let (threads, rows) = (behind.threads, behind.threads / behind.lanes.max(1));
    let mut text = format!("{}{}#include \"seam.cuh\"\n\n", before.head, behind.head);
    let (of, kind) = (memory_type(of), if is_home { "Home" } else { "Link" });
    let _ = writeln!(text, "using Own = {kind}<{ranks}, {of}, {row}, {rows}, {order}>;");
    let (mut all, mut calls, mut ahead) = (Vec::new(), Vec::new(), String::new());
    for (number, (name, part)) in [("before", before), ("behind", behind)].into_iter().enumerate() {
        let signature: String = part.signature.iter().map(|s| format!(", {s}")).collect();
        let _ = writeln!(
            text,
            "namespace {name} {{\n{}DEVICE void run(const Own& link{signature}) {{\n{}}}\n}}",
            part.constants, part.body
        );
        let names = super::unit::arguments(part, number);
        let arguments: String = names.iter().map(|a| format!(", {a}")).collect();
        ahead += &super::unit::ahead(&part.ahead, &names);
        calls.push(format!("{name}::run(link{arguments});"));
        all.extend(part.signature.iter().map(|s| format!(", {s}_{number}")));
    }
    let (brought, given, exchange) = if is_home {
        let send = format!(
            "#pragma unroll 1\n    for (int rank = 0; rank < {ranks}; ++rank)\n      if (link.towards(rank)) {}",
            calls[0]
        );
        let exchange = format!(
            "  while (link.more()) {{\n    link.open();\n{send}\n    link.exchange();\n    if (link.back()) {}\n    link.next();\n  }}\n",
            calls[1]
        );
        (", const __grid_constant__ Brought brought", ", brought", exchange)
    } else {
        let exchange = format!(
            "  for (; link.begin < rows; link.next()) {{\n    link.open();\n    {}\n    link.exchange();\n    {}\n  }}\n",
            calls[0], calls[1]
        );
        ("", "", exchange)
    };
    let _ = writeln!(
        text,
        "extern \"C\" __global__ void __launch_bounds__({threads}, 1) @NAME@(const __grid_constant__ Peers peers{brought}, const int rows{}) {{\n{ahead}  wait_for_earlier();\n  Own link(peers{given}, rows);\n{exchange}  link.close();\n}}",
        all.concat(),
    );
    Ok(text)
}
