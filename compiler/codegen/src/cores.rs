//! Heavy cores: a template of `codegen-templates/` with its numbers filled in.

use crate::machine::{Machine, Tune};
use crate::region::{Draft, Unit, is_float, stem};
use crate::rows::{layout_type, memory_type};
use crate::tiled::Form;
use crate::{attends, routes, rows, streams};
use artifact::{Blocks, Param};
use ir::{Axis, DType, Extent, Graph, KernelKind, KernelModule, KvRef, Layout, Mask, Op, Plan, ValueId, WeightRef};
use std::fmt::Write;

/// Warps of a block of a product: one output column each.
pub(crate) const PRODUCT_WARPS: u64 = 8;
/// Token rows that a product's block has at once.
pub(crate) const PRODUCT_ROWS: u64 = 8;
/// Rows and columns of a tile of a product of many rows.
const TILE_EDGE: u64 = 128;
/// Threads of a block that has such a tile.
const TILE_THREADS: u64 = 256;
/// Warps of a block of an attention.
const ATTEND_WARPS: u64 = 4;

/// Most groups whose counts, of every warp of the block that sorts, fit in its shared memory.
const MOST_GROUPS: u64 = 320;
/// Warps of the block that sorts picks.
pub(crate) const WARPS_OF_SORT: u64 = 32;

/// A core to be made a kernel.
pub struct Core<'a> {
    /// The model, for layouts of weights.
    pub module: &'a KernelModule,
    /// The plan, for layouts of caches.
    pub plan: &'a Plan,
    /// The device.
    pub machine: Machine,
    /// What was measured on it.
    pub tune: Tune<'a>,
    /// The graph.
    pub graph: &'a Graph,
    /// What the kernel is called in comments.
    pub title: String,
    /// The operation.
    pub id: ValueId,
    /// Kind of its region.
    pub kind: KernelKind,
    /// Where operands lie.
    pub memory: &'a dyn Fn(ValueId) -> Option<Param>,
    /// Where the result goes.
    pub out: Param,
    /// Scratch place that the starts of this core may use.
    pub work: usize,
    /// Whether the picks of this product are sorted already.
    pub sorted: bool,
    /// What stands before it, where it is computed as it is read.
    pub before: Option<rows::Element>,
    /// What its kernel ends with.
    pub ends: rows::Ends,
    /// The same where a tile holds many rows.
    pub ends_of_many: Option<rows::Ends>,
}

/// The starts of a core, by variant and bucket, and the bytes of scratch that they share.
pub fn drafts(core: &Core<'_>, sorts: Option<&(ValueId, streams::Picks)>) -> Result<(Vec<Draft>, u64), String> {
    match &core.graph.node(core.id).op {
        Op::Linear { .. } => {
            if let Some(shape) = core.streamed() {
                return streams::drafts(core, &shape, core.work);
            }
            if !core.ends.params.is_empty() {
                return Ok((routes::drafts(core, sorts)?, 0));
            }
            let mut few = core.product()?;
            let many = core.tiles(&few)?;
            if many.is_some() {
                few.variants = vec![ir::Variant::Only, ir::Variant::FewRows];
            }
            Ok((std::iter::once(few).chain(many).collect(), 0))
        }
        Op::Attend { .. } => core.attention(),
        _ => Err(format!("{} is no core that this build has a template for", core.id)),
    }
}

pub(crate) fn count(axes: &[Axis]) -> u64 {
    axes.iter().map(|a| if let Extent::Fixed(n) = a.extent { n } else { 1 }).product()
}

fn row_axis(axes: &[Axis]) -> Option<String> {
    axes.iter().find(|a| a.is_rows()).map(|a| a.name.clone())
}

impl Core<'_> {
    pub(crate) fn operand(&self, slot: usize) -> Result<ValueId, String> {
        self.graph.operands(self.id).get(slot).copied().ok_or_else(|| format!("{} lacks an operand", self.id))
    }

    pub(crate) fn axes(&self, id: ValueId) -> Vec<Axis> {
        self.graph.tensor(id).map(|t| t.axes.clone()).unwrap_or_default()
    }

    pub(crate) fn dtype(&self, id: ValueId) -> Option<DType> {
        self.graph.tensor(id).map(|t| t.dtype)
    }

    pub(crate) fn address(&self, id: ValueId) -> Result<Param, String> {
        (self.memory)(id).ok_or_else(|| format!("{id} lies nowhere"))
    }

    /// How the rows of a weight alternate: runs and granule.
    pub(crate) fn interleave(&self, weight: ValueId) -> (u64, u64) {
        let Op::Weight(reference) = &self.graph.node(weight).op else { return (1, 1) };
        let same = |r: &WeightRef| r == reference;
        match self.module.layouts.iter().find(|l| same(&l.weight)).map(|l| l.layout) {
            Some(Layout::Interleaved { parts, granule }) => (parts, granule),
            _ => (1, 1),
        }
    }

    /// The axis of token rows.
    pub(crate) fn rows_axis(&self) -> Option<String> {
        row_axis(&self.axes(self.id))
    }

    /// Most rows along an axis, of every bucket.
    pub(crate) fn bucket_rows(&self, axis: &str) -> Vec<u64> {
        let buckets = self.plan.entries.iter().flat_map(|e| &e.buckets);
        buckets.filter_map(|b| b.bucket.most_rows(axis)).collect()
    }

    /// The tiles in which its result stands, where a kernel can end with more than the result.
    pub fn tile(&self) -> Option<Form> {
        let columns_of = |w: ValueId, picked: bool| -> Option<Vec<Axis>> {
            let Op::Linear { contract, .. } = &self.graph.node(self.id).op else { return None };
            let free = self.axes(w).into_iter().filter(|a| !contract.contains(&a.name));
            Some(free.skip(usize::from(picked)).collect())
        };
        match &self.graph.node(self.id).op {
            Op::Linear { .. } => {
                let picked = self.graph.operands(self.id).len() > 2;
                let columns = columns_of(self.operand(1).ok()?, picked)?;
                let line_axes = self.axes(self.id).len().checked_sub(columns.len())?;
                if let Some(shape) = self.streamed() {
                    let (cuts, granule) = (shape.cuts, shape.granule);
                    return Some(Form { line_axes, width: 128, cuts, granule, threads: 256, ..Form::default() });
                }
                let (cuts, _) = self.interleave(self.operand(1).ok()?);
                let threads = PRODUCT_WARPS * 32;
                let routes = self.kind == KernelKind::Route && !picked && line_axes == 1 && cuts == 1;
                let width = count(&columns);
                routes.then_some(Form {
                    line_axes,
                    width,
                    threads,
                    most_lanes: threads,
                    is_kept: true,
                    ..Form::default()
                })
            }
            Op::Attend { .. } => {
                let (shape, is_tiled) = self.attend_shape().ok()?;
                let (width, threads) = (shape.layout.head_elements, attends::DECODE_THREADS);
                is_tiled.then_some(Form { line_axes: 1, width, is_own: true, threads, ..Form::default() })
            }
            _ => None,
        }
    }

    /// The shape of a product that a streaming kernel takes.
    pub(crate) fn streamed(&self) -> Option<streams::Shape> {
        let Op::Linear { contract, .. } = &self.graph.node(self.id).op else { return None };
        let (x, w) = (self.operand(0).ok()?, self.operand(1).ok()?);
        let ids = self.graph.operands(self.id).get(2).copied();
        let bf16 = |id| self.dtype(id) == Some(DType::Bf16);
        let free = |id| -> Vec<Axis> { self.axes(id).into_iter().filter(|a| !contract.contains(&a.name)).collect() };
        let (x_rows, w_rows) = (free(x), free(w));
        let k = count(&self.axes(x)) / count(&x_rows).max(1);
        let weight = matches!(self.graph.node(w).op, Op::Weight(_));
        let fits = self.machine.has_warpgroups && self.kind != KernelKind::Route && weight && bf16(x) && bf16(w);
        if !fits || !k.is_multiple_of(8) || self.rows_axis().is_none() {
            return None;
        }
        let (cuts, granule) = self.interleave(w);
        let picked = match ids {
            None if count(&x_rows) == 1 => None,
            None => return None,
            Some(ids) => {
                let per_row = count(&self.axes(ids));
                let each = match count(&x_rows) {
                    1 => per_row,
                    n if n == per_row => 1,
                    _ => return None,
                };
                let groups = count(w_rows.get(..1)?);
                if groups > MOST_GROUPS {
                    return None;
                }
                Some(streams::Picks { groups, per_row, each, sorted: self.sorted })
            }
        };
        let columns = count(w_rows.get(usize::from(picked.is_some())..)?);
        Some(streams::Shape { columns, k, cuts, granule, picked })
    }

    fn product(&self) -> Result<Draft, String> {
        let Op::Linear { contract, .. } = &self.graph.node(self.id).op else { return Err("no product".to_owned()) };
        let (x, w) = (self.operand(0)?, self.operand(1)?);
        let ids = self.graph.operands(self.id).get(2).copied();
        if !is_float(self.dtype(x)) || !is_float(self.dtype(w)) {
            return Err("a product of other formats than f32 and bf16".to_owned());
        }
        let free =
            |axes: Vec<Axis>| -> Vec<Axis> { axes.into_iter().filter(|a| !contract.contains(&a.name)).collect() };
        let (x_rows, w_rows) = (free(self.axes(x)), free(self.axes(w)));
        let k = count(&self.axes(x)) / count(&x_rows).max(1);
        let columns = count(&w_rows[usize::from(ids.is_some()).min(w_rows.len())..]);
        let (cuts, granule) = self.interleave(w);
        // Selections depend on small differences: their scores are added in binary64.
        let precise = self.kind == KernelKind::Route;
        let template = format!(
            "Product<{}, {}, {}, {columns}, {k}, {cuts}, {granule}, {}, {PRODUCT_WARPS}>",
            memory_type(self.dtype(x).unwrap_or(DType::F32)),
            memory_type(self.dtype(w).unwrap_or(DType::F32)),
            if precise { "double" } else { "float" },
            if ids.is_some() { 1 } else { PRODUCT_ROWS },
        );
        let axis = row_axis(&self.axes(self.id));
        let mut params = vec![self.address(x)?, self.address(w)?];
        let (call, rows, signature);
        match ids {
            None => {
                rows = Param::Rows { axis: axis.clone(), factor: count(&x_rows) };
                call = "dense(x, w, out, rows)".to_owned();
                signature = "float* out, const int rows";
                params.extend([self.out.clone(), rows]);
            }
            Some(ids) => {
                let per_row = count(&self.axes(ids));
                let each = match (count(&x_rows), per_row) {
                    (1, n) => n,
                    (m, n) if m == n => 1,
                    _ => return Err("a product whose rows are picked from along two axes".to_owned()),
                };
                rows = Param::Rows { axis: axis.clone(), factor: per_row };
                call = format!("picked(x, w, ids, out, picks, {each})");
                signature = "const int* ids, float* out, const int picks";
                params.extend([self.address(ids)?, self.out.clone(), rows]);
            }
        }
        let factor = if let Some(Param::Rows { factor, .. }) = params.last() { *factor } else { 1 };
        let per_block = if ids.is_some() { 1 } else { PRODUCT_ROWS };
        let grid = [
            Blocks { rows: None, factor: columns, per_block: PRODUCT_WARPS },
            Blocks { rows: axis, factor, per_block },
        ];
        let mut text = self.header("product.cuh");
        let _ = writeln!(text, "using Core = {template};");
        let (xt, wt) = (self.dtype(x).unwrap_or(DType::F32), self.dtype(w).unwrap_or(DType::F32));
        let _ = writeln!(
            text,
            "extern \"C\" __global__ void __launch_bounds__(Core::THREADS) @NAME@(const {}* x, const {}* w, {signature}) {{\n  Core::{call};\n}}",
            memory_type(xt),
            memory_type(wt)
        );
        text += &format!("static_assert(Core::THREADS == {}, \"threads\");\n", PRODUCT_WARPS * 32);
        Ok(self.unit(text, PRODUCT_WARPS * 32, grid, params))
    }

    /// The same product on tiles, where the matrix units take its formats. Parameters are those of the one for few rows.
    fn tiles(&self, few: &Draft) -> Result<Option<Draft>, String> {
        let Op::Linear { contract, .. } = &self.graph.node(self.id).op else { return Ok(None) };
        let (x, w) = (self.operand(0)?, self.operand(1)?);
        let bf16 = |id| self.dtype(id) == Some(DType::Bf16);
        let picked = self.graph.operands(self.id).len() > 2;
        let of = |id| self.axes(id).into_iter().filter(|a| contract.contains(&a.name)).collect::<Vec<_>>();
        let k = count(&of(x));
        if picked || self.kind == KernelKind::Route || !bf16(x) || !bf16(w) || !k.is_multiple_of(8) {
            return Ok(None);
        }
        let columns = count(&self.axes(w)) / k.max(1);
        let (cuts, granule) = self.interleave(w);
        let mut text = self.header("tiles.cuh");
        let _ = writeln!(text, "using Core = Tiles<{columns}, {k}, {cuts}, {granule}>;");
        text += "extern \"C\" __global__ void __launch_bounds__(Core::THREADS) @NAME@(const bf16* x, const bf16* w, float* out, const int rows) {\n  Core::dense(x, w, out, rows);\n}\n";
        text += &format!("static_assert(Core::THREADS == {TILE_THREADS}, \"threads\");\n");
        let [_, rows] = few.grid.clone();
        let grid =
            [Blocks { rows: None, factor: columns, per_block: TILE_EDGE }, Blocks { per_block: TILE_EDGE, ..rows }];
        let mut draft = self.unit(text, TILE_THREADS, grid, few.params.clone());
        draft.unit.stem += "_tiles";
        draft.variants = vec![ir::Variant::ManyRows];
        Ok(Some(draft))
    }

    /// The KV kind of an attention.
    pub(crate) fn kv_kind(&self) -> Option<usize> {
        let Op::Attend { kv: KvRef::Kind(name), .. } = &self.graph.node(self.id).op else { return None };
        self.plan.kv.iter().position(|l| l.kind == *name).filter(|i| *i < 8)
    }

    fn attention(&self) -> Result<(Vec<Draft>, u64), String> {
        let kind = self.kv_kind().ok_or("an attention's KV kind has no layout, or is behind the eighth")?;
        let (q, at) = (self.operand(0)?, self.operand(2)?);
        let sink = self.graph.operands(self.id).get(3).copied();
        let (shape, is_tiled) = self.attend_shape()?;
        let params = vec![
            self.address(q)?,
            Param::Pool(kind),
            Param::Steps,
            Param::Slot(kind),
            self.address(at)?,
            sink.map_or(Ok(Param::Null), |s| self.address(s))?,
            Param::Number(self.id),
            self.out.clone(),
            Param::Rows { axis: self.rows_axis(), factor: 1 },
        ];
        if is_tiled {
            return attends::drafts(self, &shape, params, self.work);
        }
        Ok((vec![self.plain_attention(&shape, params)], 0))
    }

    /// The shape of an attention, and whether it runs on the matrix units.
    fn attend_shape(&self) -> Result<(attends::Shape<'_>, bool), String> {
        let Op::Attend { mask, .. } = &self.graph.node(self.id).op else { return Err("no attention".to_owned()) };
        let kind = self.kv_kind().ok_or("an attention's KV kind has no layout, or is behind the eighth")?;
        let layout = &self.plan.kv[kind];
        let q = self.operand(0)?;
        let heads = count(&self.axes(q)) / layout.head_elements.max(1);
        let share = heads / layout.heads.max(1);
        if share * layout.heads != heads || layout.head_elements > 512 {
            return Err(format!("{heads} query heads of {} elements over {}", layout.head_elements, layout.heads));
        }
        let sink = self.graph.operands(self.id).get(3).copied();
        let sink_type = memory_type(sink.and_then(|s| self.dtype(s)).unwrap_or(DType::F32));
        let shape = attends::Shape { layout, heads, share, sees_all: *mask == Mask::All, sink_type };
        let bf16 = self.dtype(q) == Some(DType::Bf16) && layout.dtype == DType::Bf16;
        let is_tiled = bf16 && shape.fits() && self.rows_axis().is_some();
        Ok((shape, is_tiled))
    }

    /// An attention of any format: a block for every row and head.
    fn plain_attention(&self, shape: &attends::Shape<'_>, params: Vec<Param>) -> Draft {
        let q_type = memory_type(self.operand(0).ok().and_then(|q| self.dtype(q)).unwrap_or(DType::F32));
        let (layout, heads, share, sink_type) = (shape.layout, shape.heads, shape.share, shape.sink_type);
        let kv_type = memory_type(layout.dtype);
        let mut text = self.header("attend.cuh");
        let _ = writeln!(
            text,
            "using Core = Attend<{q_type}, {kv_type}, {sink_type}, {heads}, {share}, {}, {}, {}, {ATTEND_WARPS}>;",
            layout.head_elements,
            layout.window.unwrap_or(0),
            shape.sees_all
        );
        let _ = writeln!(text, "using Cache = {};", layout_type(layout));
        let kind = self.kv_kind().unwrap_or(0);
        let _ = writeln!(
            text,
            "extern \"C\" __global__ void __launch_bounds__(Core::THREADS) @NAME@(const {q_type}* q, const {kv_type}* pool, const Steps* steps, const i64 slot, const int* at, const {sink_type}* sink, const float scale, float* out, const int rows) {{\n  Core::run<Cache>(q, pool, steps, {kind}, slot, at, sink, scale, out, rows);\n}}"
        );
        text += &format!("static_assert(Core::THREADS == {}, \"threads\");\n", ATTEND_WARPS * 32);
        let axis = self.rows_axis();
        let grid = [Blocks { rows: axis, factor: heads, per_block: 1 }, Blocks { rows: None, factor: 1, per_block: 1 }];
        self.unit(text, ATTEND_WARPS * 32, grid, params)
    }

    pub(crate) fn header(&self, template: &str) -> String {
        self.header_of(template, &self.ends)
    }

    /// What a kernel that ends with `ends` begins with.
    pub(crate) fn header_of(&self, template: &str, ends: &rows::Ends) -> String {
        let ty = |id: ValueId| self.graph.tensor(id).map(ToString::to_string).unwrap_or_default();
        let operands: Vec<String> = self.graph.operands(self.id).into_iter().map(ty).collect();
        format!(
            "{}// {}\n// {} from {}\n#include \"{template}\"\n\n",
            ends.head,
            self.title,
            ty(self.id),
            operands.iter().filter(|t| !t.is_empty()).cloned().collect::<Vec<_>>().join(", ")
        )
    }

    pub(crate) fn unit(&self, text: String, threads: u64, grid: [Blocks; 2], params: Vec<Param>) -> Draft {
        let title = self.title.split('`').nth(1).unwrap_or("core");
        let unit = Unit { text, threads: threads as u32, dynamic_bytes: 0, stem: stem(title, self.kind.word()) };
        Draft { unit, variants: Vec::new(), buckets: None, grid, params, shares: None }
    }
}
