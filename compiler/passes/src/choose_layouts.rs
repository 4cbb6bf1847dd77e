//! **choose layouts** (kernel level)
//!
//! ```text
//! packed [gate, up], and an epilogue combines gate[i] with up[i]:
//!   gate 0-7 │ up 0-7 │ gate 8-15 │ up 8-15 │ …        interleaved 8
//! every other weight: row after row                    row_major
//! ```
//!
//! Why: a weight lies in memory once, whatever the bucket, so its layout is chosen before kernels are.
//! When: always. (1) Where an epilogue's strand reads several cuts of one product, the rows of the product's weight
//! interleave by `fuse.interleave_granule`, or by as many as a row of the strand takes of each cut if that is more. (2) Every
//! other weight is row-major; of a packed one, part after part.
//! Kind: `Exact`: where a number lies does not change it.
//! Tests: below.

use crate::error::defect;
use crate::{Compile, Kind, Level, PassError, PassInfo};
use indexmap::IndexMap;
use ir::{Anatomy, Graph, KernelGraph, KernelModule, Layout, Op, WeightLayout, WeightRef};

/// What the pass says about itself.
pub const INFO: PassInfo = PassInfo {
    name: "choose layouts",
    level: Level::Kernel,
    kind: Kind::Exact,
    why: "a weight lies in memory once, for every bucket",
};

/// Runs the pass.
pub fn run(kernels: &KernelModule, compile: &Compile<'_>) -> Result<KernelModule, PassError> {
    let mut layouts: IndexMap<WeightRef, Layout> = IndexMap::new();
    for graph in kernels.entries.iter().flat_map(|e| &e.graphs) {
        for id in graph.graph.ids() {
            if let Op::Weight(reference) = &graph.graph.node(id).op {
                for weight in reference.owners() {
                    layouts.entry(weight).or_insert(Layout::RowMajor);
                }
            }
        }
    }
    for graph in kernels.entries.iter().flat_map(|e| &e.graphs) {
        interleaved(graph, compile.target.fuse.interleave_granule, &mut layouts)?;
    }
    let layouts = layouts.into_iter().map(|(weight, layout)| WeightLayout { weight, layout }).collect();
    Ok(KernelModule { layouts, ..kernels.clone() })
}

fn interleaved(
    kernel_graph: &KernelGraph,
    granule: u64,
    layouts: &mut IndexMap<WeightRef, Layout>,
) -> Result<(), PassError> {
    let graph = &kernel_graph.graph;
    for region in &kernel_graph.regions {
        let anatomy = Anatomy::of(graph, &region.values).map_err(defect)?;
        let Some(core) = anatomy.core else { continue };
        let Some(weight) = graph.operands(core).get(1).copied() else { continue };
        let Op::Weight(reference) = &graph.node(weight).op else { continue };
        for strand in anatomy.strands.iter().filter(|s| s.reads.len() > 1) {
            let parts = equal_cuts(graph, &anatomy)
                .ok_or_else(|| defect(format!("{} combines cuts that no layout puts together", region.name)))?;
            let chosen = Layout::Interleaved { parts, granule: granule.max(strand.row_elements) };
            for owner in reference.owners() {
                let known = layouts.insert(owner, chosen);
                if known.is_some_and(|k| k != Layout::RowMajor && k != chosen) {
                    return Err(defect(format!("{} wants another layout than kernels before it", region.name)));
                }
            }
        }
    }
    Ok(())
}

/// Into how many equal parts the cuts of a core's result divide it, if they do.
pub(crate) fn equal_cuts(graph: &Graph, anatomy: &Anatomy) -> Option<u64> {
    let core = anatomy.core?;
    let mut found: Option<(String, u64)> = None;
    for id in anatomy.parts.iter().filter(|v| graph.operands(**v).first() == Some(&core)) {
        let Op::Slice { axis, start, len, .. } = &graph.node(*id).op else { return None };
        let (same_axis, same_len) = found.get_or_insert_with(|| (axis.clone(), *len));
        if same_axis != axis || same_len != len || !start.is_multiple_of(*len) {
            return None;
        }
    }
    let (axis, len) = found?;
    let ty = graph.tensor(core)?;
    let whole = ty.axes.iter().find(|a| a.name == axis)?;
    let last = ty.axes.last()?.name == axis;
    match whole.extent {
        ir::Extent::Fixed(n) if last && len > 0 && n.is_multiple_of(len) => Some(n / len),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::{Compile, select_kernels};
    use targets::Target;

    /// What is wrong with regions and layouts; the text has no graph that gives what the last one reads.
    fn regions_broken(kernels: &ir::KernelModule) -> String {
        let errors = ir::verify_kernels(kernels).err().unwrap_or_default();
        errors.iter().filter(|e| e.code == "V0204").map(|e| e.to_string()).collect::<Vec<_>>().join("\n")
    }

    /// Layouts where a product with packed weights, its two cuts and `values` up to `%e` are one region.
    fn layouts(granule: u64, values: &str) -> String {
        let text = format!(
            "module m act bf16 dim hidden = 8 dim part = 4 dim heads = 2 dim head = 2 product part = [heads, head]
            weight layer gate: bf16[part, hidden] weight layer up: bf16[part, hidden] weight model down: bf16[hidden, part]
            entry e {{ graph first () -> () {{ }} graph last (%x) -> (r = %r) {{ axes T = rows, gate.up = 8
            %x: bf16[T, hidden] = input x
            %w: bf16[gate.up, hidden] = weight packed into gate.up [layer gate, layer up]
            %d: bf16[hidden, part] = weight model down
            %p: f32[T, gate.up] = linear over [hidden] order any (%x, %w)
            %g: f32[T, part] = slice gate.up from 0 len 4 into part (%p)
            %u: f32[T, part] = slice gate.up from 4 len 4 into part (%p)
            {values}
            %z: f32[T, hidden] = linear over [part] order any (%h, %d)
            %r: bf16[T, hidden] = round bf16 (%z) }} }}"
        );
        let module = ir::parse_module(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let mut target = Target::load("cpu").expect("a target");
        target.fuse.interleave_granule = granule;
        let compile = Compile::one_device(&target);
        let mut kernels = select_kernels::run(&module, &compile).expect("kernels");
        let graph = &mut kernels.entries[0].graphs[1];
        let end = graph.graph.find("e").expect("a value");
        let rest = graph.regions.iter().position(|r| r.values[0] > end).expect("a region behind it");
        let values = graph.regions.drain(..rest).flat_map(|r| r.values).collect();
        graph.regions.insert(0, ir::Region { name: "e".to_owned(), kind: ir::KernelKind::Matmul, values });
        assert_eq!(regions_broken(&kernels), "");
        let done = super::run(&kernels, &compile).expect("layouts");
        assert_eq!(regions_broken(&done), "");
        let text = ir::print_kernels(&done, false);
        text.lines().filter(|l| l.starts_with("layout ")).collect::<Vec<_>>().join("\n")
    }

    const COMBINED: &str = "%m: f32[T, part] = mul (%g, %u) %e: bf16[T, part] = round bf16 (%m)
        %h: bf16[T, part] = round bf16 (%e)";
    const PACKED: &str = "layout packed into gate.up [layer gate, layer up]";

    #[test]
    fn what_one_strand_combines_lies_side_by_side() {
        let expected = format!("{PACKED}: interleaved 2 by 3\nlayout model down: row_major");
        assert_eq!(layouts(3, COMBINED), expected);
    }

    #[test]
    fn a_strand_that_takes_more_of_each_cut_gets_as_many_rows() {
        let rows = "%g2: f32[T, heads, head] = split part (%g) %u2: f32[T, heads, head] = split part (%u)
            %m: f32[T, heads, head] = mul (%g2, %u2)
            %s: f32[T, heads] = reduce sum over head order fold (%m)
            %n: f32[T, heads, head] = mul (%m, %s)
            %e: bf16[T, heads, head] = round bf16 (%n)
            %h: bf16[T, part] = merge into part (%e)";
        let expected = format!("{PACKED}: interleaved 2 by 2\nlayout model down: row_major");
        assert_eq!(layouts(1, rows), expected);
    }

    #[test]
    fn cuts_that_part_ways_keep_rows_in_order() {
        let apart = "%v: bf16[T, part] = round bf16 (%u) %e: bf16[T, part] = round bf16 (%g)
            %q: bf16[T, part] = round bf16 (%v) %h: bf16[T, part] = round bf16 (%e)";
        let expected = format!("{PACKED}: row_major\nlayout model down: row_major");
        assert_eq!(layouts(2, apart), expected);
    }
}
