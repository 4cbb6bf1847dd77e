//! Products whose weight is streamed by the copy engine (`stream.cuh`): a kernel for each class of buckets.

use crate::cores::{Core, WARPS_OF_SORT};
use crate::region::Draft;
use crate::rows::Ends;
use artifact::{Blocks, Param, Product, Served};
use ir::ValueId;
use std::fmt::Write;

/// Threads of a block.
const THREADS: u64 = 384;
/// Bytes of shared memory that a block may have beside what the code itself declares.
const SHARED_BYTES: u64 = 230_000;
/// Most tiles that are under way.
const MOST_STAGES: u64 = 12;

/// One class: the token rows of a tile, how its sum is cut, and the buckets' most rows.
#[derive(Clone, Copy)]
struct Class {
    rows: u64,
    split: u64,
    least: u64,
    most: u64,
    /// Bytes of shared memory of what a kernel ends with.
    ends: u64,
    /// Whether picked rows are put side by side before, where the copy engine finds them: threads that gather them are slower than tiles of many rows.
    gathers: bool,
}

/// A class whose kernels end with nothing.
const fn class(rows: u64, split: u64, least: u64, most: u64) -> Class {
    Class { rows, split, least, most, ends: 0, gathers: false }
}

/// Classes of dense products; a split of 0 is chosen by the number of tiles. Where there may be several tiles of rows, sums stay
/// whole, so that a row's bits do not depend on how many others there are.
const DENSE: [Class; 6] = [
    class(16, 0, 1, 16),
    class(32, 0, 17, 32),
    class(64, 0, 33, 64),
    class(128, 0, 65, 128),
    class(256, 0, 129, 256),
    class(256, 1, 257, u64::MAX),
];
/// Classes of products with picked weights: few rows pick the same one.
const PICKED: [Class; 5] = [
    class(16, 2, 1, 4),
    class(16, 1, 5, 128),
    class(32, 1, 129, 512),
    Class { gathers: true, ..class(128, 1, 513, 2048) },
    Class { gathers: true, ..class(256, 1, 2049, u64::MAX) },
];
/// Most shares of a sum.
const MOST_SHARES: u64 = 8;
/// Fewest k-blocks of a share.
const LEAST_BLOCKS: u64 = 8;
/// Rows that a block puts side by side.
const ROWS_OF_GATHER: u64 = 8;

/// What a product is made of.
pub struct Shape {
    /// Rows of the weight, of one group.
    pub columns: u64,
    /// Terms of a sum.
    pub k: u64,
    /// How rows of the weight alternate.
    pub cuts: u64,
    /// Rows that stay together there.
    pub granule: u64,
    /// Groups of a weight whose rows are picked, and picks of a token row; rows of x for each.
    pub picked: Option<Picks>,
}

/// Picks of a product.
pub struct Picks {
    /// Groups of the weight.
    pub groups: u64,
    /// Picks of a token row.
    pub per_row: u64,
    /// Picks that read the same row.
    pub each: u64,
    /// Whether the picks of this step are sorted already.
    pub sorted: bool,
}

impl Class {
    /// Into how many shares sums are cut: so many that tiles come out even on the multiprocessors, and no more.
    fn split(&self, shape: &Shape, blocks: u64) -> u64 {
        let steps = shape.k.div_ceil(64);
        if self.split > 0 {
            // A share without a step would add what nobody wrote.
            return self.split.min(steps.max(1));
        }
        let tiles = shape.columns.div_ceil(128);
        let most = most_shares(shape);
        let cost = |n: u64| {
            let units = tiles * n;
            // Rounds of the multiprocessors over what would be even; where units are fewer, fewer bytes are under way. A share
            // costs what is kept and added again.
            let rounds = units.div_ceil(blocks) * blocks * 100 / units;
            let idle = if units * 4 < blocks * 3 { 9 } else { 1 };
            rounds * idle + 4 * (n - 1) * (1 + self.rows / 16)
        };
        (1..=most).min_by_key(|n| cost(*n)).unwrap_or(1)
    }

    /// What tuning calls a product.
    fn product(&self, shape: &Shape) -> Product {
        Product { columns: shape.columns, k: shape.k, rows: self.rows }
    }

    fn stages(&self) -> u64 {
        ((SHARED_BYTES - self.tile_bytes() - self.ends - 16) / (self.stage_bytes() + 16)).min(MOST_STAGES)
    }

    fn stage_bytes(&self) -> u64 {
        128 * 128 + self.rows * 128
    }

    fn tile_bytes(&self) -> u64 {
        self.rows.min(32) * 132 * 4
    }

    fn shared_bytes(&self) -> u64 {
        self.stages() * self.stage_bytes() + self.tile_bytes() + self.stages() * 16 + 16 + self.ends
    }

    /// Bytes where shares of tiles meet, or where rows are gathered.
    fn work_bytes(&self, shape: &Shape, most_rows: u64, split: u64) -> u64 {
        if let Some(picks) = shape.picked.as_ref().filter(|_| self.gathers) {
            return most_rows * picks.per_row * shape.k * 2;
        }
        let across = shape.columns.div_ceil(128);
        let tiles = match &shape.picked {
            _ if split == 1 => 0,
            Some(picks) => most_rows * picks.per_row * across,
            None => across,
        };
        tiles * split * self.rows * 128 * 4
    }
}

/// Into how many shares sums may be cut.
fn most_shares(shape: &Shape) -> u64 {
    (shape.k.div_ceil(64) / LEAST_BLOCKS).clamp(1, MOST_SHARES)
}

/// What strands may need besides.
pub(crate) fn cache(core: &Core<'_>) -> &'static str {
    if core.ends.functions.is_empty() { "" } else { "#include \"cache.cuh\"\n\n" }
}

/// The starts of a product, and the bytes of scratch that they share.
pub fn drafts(core: &Core<'_>, shape: &Shape, work: usize) -> Result<(Vec<Draft>, u64), String> {
    let axis = core.rows_axis().ok_or("a product without token rows")?;
    let classes: &[Class] = if shape.picked.is_some() { &PICKED } else { &DENSE };
    let (rows, ends) = (core.bucket_rows(&axis), u64::from(core.ends.bytes));
    let (mut out, mut bytes) = (Vec::new(), 0);
    for class in classes {
        let Some(most) = rows.iter().copied().filter(|n| (class.least..=class.most).contains(n)).max() else {
            continue;
        };
        let (own, most_split) = (class.product(shape), most_shares(shape));
        // Where the number of shares is no part of the class, a device may know better.
        let is_open = class.split == 0;
        let measured = core.tune.shares(&own, most_split).filter(|_| is_open);
        let split = measured.unwrap_or_else(|| class.split(shape, core.machine.blocks));
        let packs = core.tune.packs && is_open;
        let others = (1..=most_split).filter(|n| packs && *n != split);
        let shares: Vec<u64> = std::iter::once(split).chain(others).collect();
        bytes = shares.iter().map(|n| class.work_bytes(shape, most, *n)).fold(bytes, u64::max);
        let served = Served { axis: axis.clone(), least: class.least, most: class.most, rows: None };
        if let Some(picks) = shape.picked.as_ref().filter(|p| !p.sorted) {
            out.push(sort(core, core.operand(2)?, picks, class.rows, &axis, &served)?);
        }
        if let Some(picks) = shape.picked.as_ref().filter(|_| class.gathers) {
            out.push(gather(core, shape.k, picks, &axis, &served, work)?);
        }
        for split in &shares {
            let cut = Class { split: *split, ends, ..*class };
            let mut draft = product(core, shape, &cut, &axis, served.clone(), work)?;
            draft.shares = packs.then_some((own, *split, *split != shares[0]));
            out.push(draft);
        }
    }
    Ok((out, bytes))
}

fn product(
    core: &Core<'_>,
    shape: &Shape,
    class: &Class,
    axis: &str,
    served: Served,
    work: usize,
) -> Result<Draft, String> {
    let mut text = core.header("stream.cuh");
    text += cache(core);
    let Shape { columns, k, cuts, granule, .. } = shape;
    let (rows, stages, split) = (class.rows, class.stages(), class.split);
    let _ = writeln!(
        text,
        "using Core = Stream<{columns}, {k}, {cuts}, {granule}, {rows}, {stages}, {split}, {}>;",
        class.ends
    );
    text += &core.ends.functions;
    let x = core.address(core.operand(0)?)?;
    let (source, call, own, weight_rows) = match &shape.picked {
        None => {
            let of = Box::new(x);
            let map = Param::Map { of, columns: *k, axis: Some(axis.to_owned()), rows: 1, box_rows: rows };
            let count = Param::Rows { axis: Some(axis.to_owned()), factor: 1 };
            let source = "const __grid_constant__ TensorMap x, const int rows";
            (source, "Dense(rows), &map, &x, nullptr".to_owned(), [map, count], *columns)
        }
        Some(p) if class.gathers => {
            let of = Box::new(Param::Scratch(work));
            let map = Param::Map { of, columns: *k, axis: Some(axis.to_owned()), rows: p.per_row, box_rows: rows };
            let source = "const __grid_constant__ TensorMap x, const int* plan";
            let own = [map, Param::Picks { per_row: p.per_row }];
            (source, "Gathered(plan), &map, &x, nullptr".to_owned(), own, columns * p.groups)
        }
        Some(p) => {
            let call = format!("Picked(plan, {}), &map, nullptr, x", p.each);
            ("const bf16* x, const int* plan", call, [x, Param::Picks { per_row: p.per_row }], columns * p.groups)
        }
    };
    let _ = writeln!(
        text,
        "extern \"C\" __global__ void __launch_bounds__(Core::THREADS, 1) @NAME@(const __grid_constant__ TensorMap map, {source}, float* out, float* shares, u32* tickets{}) {{\n  Core::run(Core::{call}, out, shares, tickets, {});\n}}",
        core.ends.signature, core.ends.call
    );
    let bytes = class.shared_bytes();
    let _ = writeln!(text, "static_assert(Core::THREADS == {THREADS} && Core::SHARED == {bytes}, \"a block\");");
    let of = Box::new(core.address(core.operand(1)?)?);
    let map = Param::Map { of, columns: *k, axis: None, rows: weight_rows, box_rows: 128 };
    let [x, rows_of] = own;
    let mut params = vec![map, x, rows_of, core.out.clone(), Param::Scratch(work), Param::Tickets];
    params.extend(core.ends.params.iter().cloned());
    let grid = [fixed(core.machine.blocks), fixed(1)];
    let mut draft = core.unit(text, THREADS, grid, params);
    draft.unit.dynamic_bytes = bytes as u32;
    draft.unit.stem += &format!("_{rows}");
    draft.buckets = Some(served);
    Ok(draft)
}

/// Puts the rows that sorted picks read side by side, in scratch.
fn gather(core: &Core<'_>, k: u64, picks: &Picks, axis: &str, served: &Served, work: usize) -> Result<Draft, String> {
    let mut text = core.header_of("stream.cuh", &Ends::default());
    let each = picks.each;
    let _ = writeln!(
        text,
        "using Core = Gather<{k}, {ROWS_OF_GATHER}>;\nextern \"C\" __global__ void __launch_bounds__(Core::THREADS) @NAME@(const bf16* x, const int* plan, bf16* out) {{\n  Core::run(x, plan, {each}, out);\n}}"
    );
    let threads = ROWS_OF_GATHER * 32;
    let _ = writeln!(text, "static_assert(Core::THREADS == {threads}, \"threads\");");
    let rows = Blocks { rows: Some(axis.to_owned()), factor: picks.per_row, per_block: ROWS_OF_GATHER };
    let params = vec![core.address(core.operand(0)?)?, Param::Picks { per_row: picks.per_row }, Param::Scratch(work)];
    let mut draft = core.unit(text, threads, [rows, fixed(1)], params);
    draft.unit.stem += "_gather";
    draft.buckets = Some(served.clone());
    Ok(draft)
}

/// Rows of a tile of picked weights, by the buckets that have them.
pub fn picked_tiles() -> impl Iterator<Item = (u64, u64, u64)> {
    PICKED.iter().map(|c| (c.rows, c.least, c.most))
}

/// Sorts the picks by their groups, in tiles of so many rows.
pub(crate) fn sort(
    core: &Core<'_>,
    ids: ValueId,
    picks: &Picks,
    rows: u64,
    axis: &str,
    served: &Served,
) -> Result<Draft, String> {
    let mut text = core.header("stream.cuh");
    let _ = writeln!(text, "using Core = Sorted<{}, {rows}>;", picks.groups);
    let _ = writeln!(
        text,
        "extern \"C\" __global__ void __launch_bounds__(Core::THREADS, 1) @NAME@(const int* ids, const int picks, int* plan) {{\n  Core::run(ids, picks, picks, plan);\n}}"
    );
    let threads = WARPS_OF_SORT * 32;
    let _ = writeln!(text, "static_assert(Core::THREADS == {threads}, \"threads\");");
    let count = Param::Rows { axis: Some(axis.to_owned()), factor: picks.per_row };
    let params = vec![core.address(ids)?, count, Param::Picks { per_row: picks.per_row }];
    let mut draft = core.unit(text, threads, [fixed(1), fixed(1)], params);
    draft.unit.stem += "_sort";
    draft.buckets = Some(served.clone());
    Ok(draft)
}

fn fixed(blocks: u64) -> Blocks {
    Blocks { rows: None, factor: blocks, per_block: 1 }
}
