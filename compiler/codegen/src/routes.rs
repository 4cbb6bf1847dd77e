//! Products of routes (`route.cuh`): who ends a row last selects from it, and who ends the step's last row sorts what was selected.

use crate::cores::{Core, PRODUCT_WARPS, count};
use crate::region::Draft;
use crate::rows::memory_type;
use crate::streams::{self, Picks};
use artifact::{Blocks, Param, Served};
use ir::{DType, Op, ValueId};
use std::fmt::Write;

/// Most token rows whose picks one such block sorts; more take a kernel of their own.
const MOST_SORTED: u64 = 128;
/// Token rows that a block has at once where the matrix units do not take its formats.
const ROWS_APART: u64 = 2;
/// Token rows for which the matrix units are not worth it: they are selected from faster by whole blocks.
const FEWEST_ROWS: u64 = 1;
/// Columns of a warp on the matrix units.
const WARP_COLUMNS: u64 = 16;

/// How a route's product is cut where the matrix units take it: token rows of a block, warps along the sum, steps that are read ahead.
fn pieces(most: u64) -> [u64; 3] {
    match most {
        0..=128 => [8, 8, 4],
        129..=512 => [16, 4, 4],
        _ => [32, 2, 1],
    }
}

/// The starts of a route: one for each way in which its picks are sorted, and one where they are not.
pub fn drafts(core: &Core<'_>, sorts: Option<&(ValueId, Picks)>) -> Result<Vec<Draft>, String> {
    let axis = core.rows_axis().ok_or("a route without token rows")?;
    let rows = core.bucket_rows(&axis);
    let mut out: Vec<Draft> = Vec::new();
    // Those for few rows and those on the matrix units apart.
    let cut = |(tile, least, most): (u64, u64, u64)| {
        let ranges = [(least, most.min(FEWEST_ROWS)), (least.max(FEWEST_ROWS + 1), most)];
        ranges.into_iter().filter(|(least, most)| least <= most).map(move |(least, most)| (tile, least, most))
    };
    for (tile, least, most) in streams::picked_tiles().flat_map(cut) {
        if !rows.iter().any(|n| (least..=most).contains(n)) {
            continue;
        }
        let served = Served { axis: axis.clone(), least, most, rows: None };
        let own = sorts.filter(|_| most <= MOST_SORTED);
        out.push(route(core, own.map(|s| (s, tile)), &axis, served.clone())?);
        if let Some((ids, picks)) = sorts.filter(|_| most > MOST_SORTED) {
            out.push(streams::sort(core, *ids, picks, tile, &axis, &served)?);
        }
    }
    Ok(out)
}

fn route(
    core: &Core<'_>,
    sorts: Option<(&(ValueId, Picks), u64)>,
    axis: &str,
    served: Served,
) -> Result<Draft, String> {
    let Op::Linear { contract, .. } = &core.graph.node(core.id).op else { return Err("no product".to_owned()) };
    let (x, w) = (core.operand(0)?, core.operand(1)?);
    let of = |id| memory_type(core.dtype(id).unwrap_or(DType::F32));
    let inner: Vec<_> = core.axes(x).into_iter().filter(|a| contract.contains(&a.name)).collect();
    let k = count(&inner);
    let columns = count(&core.axes(w)) / k.max(1);
    let is_weight = matches!(core.dtype(w), Some(DType::F32 | DType::Bf16));
    let is_split = served.most > FEWEST_ROWS && core.dtype(x) == Some(DType::Bf16) && is_weight && k.is_multiple_of(8);
    let ends = core.ends_of_many.as_ref().filter(|_| is_split).unwrap_or(&core.ends);
    let mut text = core.header_of("route.cuh", ends);
    text += streams::cache(core);
    let (xt, wt) = (of(x), of(w));
    let [at_once, split, ahead] = if is_split { pieces(served.most) } else { [ROWS_APART, 1, 1] };
    let (across, shares) = if is_split {
        let across = PRODUCT_WARPS / split * WARP_COLUMNS;
        let _ =
            writeln!(text, "using Core = Split<{wt}, {columns}, {k}, {at_once}, {split}, {PRODUCT_WARPS}, {ahead}>;");
        (across, if split > 1 { split * at_once * across * 8 } else { 0 })
    } else {
        let _ = writeln!(
            text,
            "using Core = Product<{xt}, {wt}, double, {columns}, {k}, 1, 1, {at_once}, {PRODUCT_WARPS}>;"
        );
        (PRODUCT_WARPS, 0)
    };
    let _ = writeln!(text, "using Own = Route<Core, {columns}, {at_once}, {}>;", ends.bytes);
    text += &ends.functions;
    let rows = Param::Rows { axis: Some(axis.to_owned()), factor: 1 };
    let mut params = vec![core.address(x)?, core.address(w)?, core.out.clone(), rows, Param::Tickets];
    let (mut declared, mut after) = ("", "Nothing()".to_owned());
    if let Some(((ids, picks), tile)) = sorts {
        let count = Param::Rows { axis: Some(axis.to_owned()), factor: picks.per_row };
        params.extend([core.address(*ids)?, count, Param::Picks { per_row: picks.per_row }]);
        declared = ", const int* ids, const int picks, int* plan";
        let groups = picks.groups;
        // Where other ranks have some of the columns that are chosen among, a pick may name none of the groups here.
        let all = if groups < columns { groups + 1 } else { groups };
        after =
            format!("[&](int) {{ Sorted<{groups}, {tile}, {PRODUCT_WARPS}, {all}>::run(ids, picks, picks, plan); }}");
    }
    params.extend(ends.params.iter().cloned());
    let _ = writeln!(
        text,
        "extern \"C\" __global__ void __launch_bounds__(Own::THREADS) @NAME@(const {xt}* x, const {wt}* w, float* out, const int rows, u32* tickets{declared}{}) {{\n  Own::run(x, w, out, rows, tickets, {}, {after});\n}}",
        ends.signature, ends.call
    );
    let bytes = (at_once * columns.next_multiple_of(4) * 4 + u64::from(ends.bytes)).max(shares);
    let threads = PRODUCT_WARPS * 32;
    let _ = writeln!(text, "static_assert(Own::THREADS == {threads} && Own::SHARED == {bytes}, \"a block\");");
    let grid = [
        Blocks { rows: None, factor: columns, per_block: across },
        Blocks { rows: Some(axis.to_owned()), factor: 1, per_block: at_once },
    ];
    let mut draft = core.unit(text, threads, grid, params);
    draft.unit.dynamic_bytes = bytes as u32;
    draft.buckets = Some(served);
    Ok(draft)
}
