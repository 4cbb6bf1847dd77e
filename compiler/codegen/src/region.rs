//! A region as kernel starts: what stands before its core, the core, its strands and stores.
//!
//! What is computed from a core's result by rows that lie in one of its tiles (`tiled.rs`) is what the core's kernel ends with. For
//! the rest the core writes binary32 numbers to scratch, and each strand is a row kernel that reads them. Both leave the same bits.

use crate::cores::{self, Core};
use crate::machine::{Machine, Tune};
use crate::rows::{self, Job, Sink};
use crate::tiled::Form;
use crate::{streams, tiled};
use artifact::{Alternative, Blocks, Param, Product, RegionCode, Scratch, Served, Start};
use ir::{Anatomy, Axis, DType, Graph, KernelGraph, KernelKind, KernelModule, KvRef, Op, Plan, Region, ValueId};
use std::collections::HashMap;

/// A kernel's text before it has a name, with its threads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unit {
    /// The text; the entry is called `@NAME@`.
    pub text: String,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory that a start gives.
    pub dynamic_bytes: u32,
    /// What the name begins with.
    pub stem: String,
}

/// A start whose kernel is not compiled yet.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The kernel.
    pub unit: Unit,
    /// Variants of a launch that it belongs to; empty for all.
    pub variants: Vec<ir::Variant>,
    /// Buckets that it serves; `None` for all.
    pub buckets: Option<Served>,
    /// Blocks.
    pub grid: [Blocks; 2],
    /// Parameters.
    pub params: Vec<Param>,
    /// Into how many shares a product's sums are cut, where that is to be measured; false for the start's own number, true for another,
    /// which stands behind it.
    pub shares: Option<(Product, u64, bool)>,
}

/// Starts of a region.
#[derive(Clone, Debug, Default)]
pub struct RegionDraft {
    /// Scratch places.
    pub scratch: Vec<Scratch>,
    /// Starts in order.
    pub starts: Vec<Draft>,
}

impl RegionDraft {
    /// The same with kernels numbered by `number`.
    pub fn coded(self, mut number: impl FnMut(Unit) -> usize) -> RegionCode {
        let mut code = RegionCode { scratch: self.scratch, ..RegionCode::default() };
        for d in self.starts {
            let kernel = number(d.unit);
            let is_other = d.shares.is_some_and(|(_, _, is_other)| is_other);
            if let Some((product, shares, _)) = d.shares {
                let start = code.starts.len() - usize::from(is_other);
                code.alternatives.push(Alternative { start, product, shares, kernel });
            }
            if !is_other {
                let Draft { variants, buckets, grid, params, .. } = d;
                code.starts.push(Start { kernel, variants, buckets, grid, params });
            }
        }
        code
    }
}

/// Rows that a region computes: all of a strand, or what else leaves it.
#[derive(Clone)]
pub struct Ending {
    /// Operations, ascending.
    pub values: Vec<ValueId>,
    /// Row axes, outermost first.
    pub rows: Vec<Axis>,
    /// What is written where.
    pub outputs: Vec<(ValueId, Sink)>,
    /// Whether an output may take the place of what is read.
    pub in_place: bool,
    /// Whether a value from outside goes to the cache as it is.
    pub copies: bool,
}

/// What is known while a region is taken apart.
pub struct Maker<'a> {
    pub(crate) module: &'a KernelModule,
    pub(crate) plan: &'a Plan,
    pub(crate) machine: Machine,
    tune: Tune<'a>,
    pub(crate) kernels: &'a KernelGraph,
    pub(crate) region: &'a Region,
    /// Picks that an earlier region of the graph has sorted.
    sorted: &'a mut Vec<ValueId>,
    pub(crate) leaving: Vec<bool>,
    /// Scratch places of values of this region.
    places: HashMap<ValueId, usize>,
    /// Row kernels that wait for others to be started with.
    open: Vec<rows::RowKernel>,
    /// Buckets that the row kernels serve which follow; `None` for all.
    served: Option<Served>,
    pub(crate) out: RegionDraft,
}

/// The starts of a region; the error says what is beyond this build.
pub fn starts(
    module: &KernelModule,
    plan: &Plan,
    (machine, tune): (Machine, Tune<'_>),
    kernels: &KernelGraph,
    region: &Region,
    sorted: &mut Vec<ValueId>,
) -> Result<RegionDraft, String> {
    if region.kind == KernelKind::View {
        return Ok(RegionDraft::default());
    }
    let leaving = kernels.leaving();
    let (places, out) = (HashMap::new(), RegionDraft::default());
    let (open, served) = (Vec::new(), None);
    let mut maker = Maker { module, plan, machine, tune, kernels, region, sorted, leaving, places, open, served, out };
    let anatomy = Anatomy::of(&kernels.graph, &region.values)?;
    if let Some(dtype) = maker.narrow() {
        return Err(format!("values in {dtype}"));
    }
    maker.make(&anatomy)?;
    Ok(maker.out)
}

impl Maker<'_> {
    pub(crate) fn graph(&self) -> &Graph {
        &self.kernels.graph
    }

    /// A narrow format among what the region reads, computes or caches.
    fn narrow(&self) -> Option<DType> {
        let graph = self.graph();
        let ids = self.region.values.iter().flat_map(|v| graph.operands(*v).into_iter().chain([*v]));
        let values = ids.filter_map(|v| graph.tensor(v)).map(|t| t.dtype);
        let caches = self.region.values.iter().filter_map(|v| match &graph.node(*v).op {
            Op::Store { kv, .. } | Op::Attend { kv, .. } => {
                self.plan.kv.get(self.kind(kv).ok()?).map(|layout| layout.dtype)
            }
            _ => None,
        });
        values.chain(caches).find(|d| d.is_narrow())
    }

    fn make(&mut self, anatomy: &Anatomy) -> Result<(), String> {
        let mut ends = self.endings(anatomy)?;
        if let Some(sum) = anatomy.exchange {
            return self.seam(sum, ends);
        }
        if let Some(core) = anatomy.core {
            match self.graph().node(core).op {
                Op::AllGather { .. } => return self.gather(anatomy, core, ends),
                Op::ReduceScatter { .. } => return self.home(anatomy, core, ends),
                _ => {}
            }
            ends = self.core(anatomy, core, ends)?;
        }
        for ending in ends {
            self.rows(ending)?;
        }
        self.close();
        Ok(())
    }

    /// What is computed behind a core, or without one.
    fn endings(&self, anatomy: &Anatomy) -> Result<Vec<Ending>, String> {
        let mut endings = Vec::new();
        for strand in &anatomy.strands {
            let mut values = self.with_parts(anatomy, &strand.values);
            values.sort_unstable();
            let rows = self.row_axes(&strand.rows, &strand.values);
            let mut outputs = Vec::new();
            for id in &strand.values {
                if self.leaving[id.0 as usize] {
                    outputs.push((*id, Sink::Buffer(Param::Value(*id))));
                }
            }
            outputs.extend(self.cached(anatomy, |id| strand.values.contains(&id))?);
            let in_place = self.in_place(anatomy, &outputs);
            endings.push(Ending { values, rows, outputs, in_place, copies: false });
        }
        // Rows that no strand computes go to the cache as they are.
        let inside = |id: ValueId| anatomy.strands.iter().any(|s| s.values.contains(&id));
        for (id, sink) in self.cached(anatomy, |id| !inside(id))? {
            let axes = self.graph().tensor(id).map(|t| t.axes.clone()).unwrap_or_default();
            let rows = axes.iter().filter(|a| a.is_rows()).cloned().collect();
            endings.push(Ending { values: vec![id], rows, outputs: vec![(id, sink)], in_place: false, copies: true });
        }
        // Cuts of a core's result that leave it as they are.
        for id in anatomy.parts.iter().filter(|v| self.leaving[v.0 as usize]) {
            let axes = self.graph().tensor(*id).map(|t| t.axes.clone()).unwrap_or_default();
            let rows = axes.split_last().map(|(_, rows)| rows.to_vec()).unwrap_or_default();
            let mut values = self.with_parts(anatomy, &[*id]);
            values.push(*id);
            values.sort_unstable();
            values.dedup();
            let outputs = vec![(*id, Sink::Buffer(Param::Value(*id)))];
            endings.push(Ending { values, rows, outputs, in_place: false, copies: false });
        }
        endings.retain(|e| !e.outputs.is_empty());
        Ok(endings)
    }

    /// The values of a strand with the cuts and views of the core that they read.
    fn with_parts(&self, anatomy: &Anatomy, values: &[ValueId]) -> Vec<ValueId> {
        let mut all = values.to_vec();
        let mut open = values.to_vec();
        while let Some(id) = open.pop() {
            for operand in self.graph().operands(id) {
                if anatomy.parts.contains(&operand) && !all.contains(&operand) {
                    all.push(operand);
                    open.push(operand);
                }
            }
        }
        all
    }

    /// Row axes of a strand, outermost first. Where a row would be a single element, the innermost axis is taken along it.
    fn row_axes(&self, names: &[String], values: &[ValueId]) -> Vec<Axis> {
        let fewest = values.iter().filter_map(|v| self.graph().tensor(*v)).min_by_key(|t| t.axes.len());
        let Some(ty) = fewest else { return Vec::new() };
        let mut rows: Vec<Axis> = ty.axes.iter().filter(|a| names.contains(&a.name)).cloned().collect();
        let single = |rows: &[Axis]| {
            let all = values.iter().filter_map(|v| self.graph().tensor(*v));
            all.flat_map(|t| &t.axes).all(|a| rows.iter().any(|r| r.name == a.name))
        };
        if single(&rows) && rows.last().is_some_and(|a| !a.is_rows()) {
            rows.pop();
        }
        rows
    }

    fn in_place(&self, anatomy: &Anatomy, outputs: &[(ValueId, Sink)]) -> bool {
        let inputs = self.graph().ids().filter(|v| !self.region.values.contains(v));
        let mut inputs = inputs.filter(|v| !self.graph().node(*v).op.is_view());
        inputs.any(|old| outputs.iter().any(|(new, _)| anatomy.overwrites(self.graph(), old, *new)))
    }

    /// What goes to the cache of the values that `wanted` names.
    fn cached(&self, anatomy: &Anatomy, wanted: impl Fn(ValueId) -> bool) -> Result<Vec<(ValueId, Sink)>, String> {
        let mut sinks = Vec::new();
        for store in &anatomy.stores {
            let Op::Store { kv, .. } = &self.graph().node(*store).op else { continue };
            let kind = self.kind(kv)?;
            let operands = self.graph().operands(*store);
            let [key, value, at] = operands.as_slice() else { return Err(format!("{store} lacks an operand")) };
            for (id, is_value) in [(*key, false), (*value, true)] {
                if wanted(id) {
                    sinks.push((id, Sink::Cache { kind, at: *at, is_value }));
                }
            }
        }
        Ok(sinks)
    }

    fn kind(&self, kv: &KvRef) -> Result<usize, String> {
        let KvRef::Kind(name) = kv else { return Err("a KV kind is not resolved".to_owned()) };
        let found = self.plan.kv.iter().position(|l| l.kind == *name);
        found.filter(|i| *i < 8).ok_or_else(|| format!("KV kind `{name}` has no layout, or is behind the eighth"))
    }

    /// The value whose memory a value shows.
    pub(crate) fn root(&self, id: ValueId) -> ValueId {
        self.kernels.roots().get(id.0 as usize).copied().unwrap_or(id)
    }

    /// Where a value lies that a kernel reads.
    pub(crate) fn memory(&self, id: ValueId) -> Option<Param> {
        let id = self.root(id);
        if let Some(place) = self.places.get(&id) {
            return Some(Param::Scratch(*place));
        }
        match &self.graph().node(id).op {
            Op::Weight(_) => Some(Param::Weight(id)),
            Op::Literal(_) | Op::Scalar(_) => None,
            _ => Some(Param::Value(id)),
        }
    }

    /// A place for a value: its own in the arena if it leaves, scratch otherwise.
    pub(crate) fn result_place(&mut self, id: ValueId) -> Result<Param, String> {
        if self.leaving[id.0 as usize] {
            return Ok(Param::Value(id));
        }
        let ty = self.graph().tensor(id).ok_or_else(|| format!("{id} is no tensor"))?;
        let rows = ty.row_axes().next().map(str::to_owned);
        let place = Scratch { row_bytes: ty.dtype.bytes_for(ty.fixed_elements()), rows };
        self.out.scratch.push(place);
        self.places.insert(id, self.out.scratch.len() - 1);
        Ok(Param::Scratch(self.out.scratch.len() - 1))
    }

    /// What stands before a core, as rows of their own.
    fn prologue(&mut self, anatomy: &Anatomy, last: ValueId) -> Result<(), String> {
        let axes = self.graph().tensor(last).map(|t| t.axes.clone()).unwrap_or_default();
        let rows = axes.split_last().map(|(_, rows)| rows.to_vec()).unwrap_or_default();
        let root = self.root(last);
        let place = self.result_place(root)?;
        let outputs = vec![(root, Sink::Buffer(place))];
        self.rows(Ending { values: anatomy.before.clone(), rows, outputs, in_place: false, copies: false })
    }

    /// The core; gives what it does not end with.
    fn core(&mut self, anatomy: &Anatomy, core: ValueId, ends: Vec<Ending>) -> Result<Vec<Ending>, String> {
        let read = self.graph().operands(core).first().copied();
        let is_attend = matches!(self.graph().node(core).op, Op::Attend { .. });
        let mut before = None;
        if let Some(last) = read.filter(|v| anatomy.before.contains(v)) {
            // Decoding computes what stands before an attention where it reads it.
            before = if is_attend { self.read_as(anatomy, last) } else { None };
            self.served = before.as_ref().and_then(|_| self.prompts(core));
            self.prologue(anatomy, last)?;
            self.close();
        }
        // A place for what the starts of the core share stands before that of its result.
        self.out.scratch.push(Scratch { row_bytes: 0, rows: None });
        let work = self.out.scratch.len() - 1;
        let place = self.result_place(core)?;
        if matches!(self.graph().node(core).op, Op::Dot { .. }) {
            let axes = self.graph().tensor(core).map(|t| t.axes.clone()).unwrap_or_default();
            let rows = axes.split_last().map(|(_, rows)| rows.to_vec()).unwrap_or_default();
            let outputs = vec![(core, Sink::Buffer(place))];
            self.rows(Ending { values: vec![core], rows, outputs, in_place: false, copies: false })?;
            self.close();
            return Ok(ends);
        }
        let memory = |id| self.memory(id);
        let picks = self.graph().operands(core).get(2).map(|v| self.root(*v));
        let picks = picks.filter(|_| matches!(self.graph().node(core).op, Op::Linear { .. }));
        let mut made = self.template(core, &memory, work, place.clone());
        made.sorted = picks.is_some_and(|v| self.sorted.contains(&v));
        made.before = before;
        let form = made.tile();
        let (mut inside, mut outside) = (Vec::new(), Vec::new());
        for ending in ends {
            let tile = form.as_ref().and_then(|f| tiled::tile(self.graph(), core, f, &ending));
            match tile.map(|t| rows::generate(&self.job(&ending, Some(t), &memory))) {
                Some(Ok(kernel)) => inside.push((kernel, ending)),
                _ => outside.push(ending),
            }
        }
        let parts: Vec<rows::RowKernel> = inside.iter().map(|(k, _)| k.clone()).collect();
        made.ends = rows::ends(&parts);
        made.ends_of_many = form.as_ref().and_then(|f| self.ends_of_many(f, core, &inside, &memory));
        let is_kept = form.is_some_and(|f| f.is_kept);
        if outside.is_empty() && !is_kept && !self.leaving[core.0 as usize] && !parts.is_empty() {
            made.out = Param::Checked(Box::new(place));
        }
        let sorts = if self.region.kind == KernelKind::Route { self.sorts(&inside) } else { None };
        let (drafts, bytes) = cores::drafts(&made, sorts.as_ref())?;
        self.sorted.extend(picks);
        self.sorted.extend(sorts.map(|(id, _)| id));
        self.out.scratch[work].row_bytes = bytes;
        self.out.starts.extend(drafts);
        // Prompts leave an attention's rows to kernels of their own.
        if is_attend && !inside.is_empty() {
            self.served = self.prompts(core);
            for (_, ending) in inside {
                self.rows(ending)?;
            }
            self.close();
        }
        self.served = None;
        Ok(outside)
    }

    /// Buckets of prompts.
    fn prompts(&self, core: ValueId) -> Option<Served> {
        let axis = self.graph().tensor(core)?.row_axes().next()?.to_owned();
        Some(Served { axis, least: 0, most: u64::MAX, rows: Some(ir::RowsPerSequence::Ragged) })
    }

    /// A core's template without what it ends with.
    fn template<'b>(
        &'b self,
        id: ValueId,
        memory: &'b dyn Fn(ValueId) -> Option<Param>,
        work: usize,
        out: Param,
    ) -> Core<'b> {
        Core {
            module: self.module,
            plan: self.plan,
            machine: self.machine,
            tune: self.tune,
            work,
            sorted: false,
            graph: self.graph(),
            title: self.title(),
            id,
            kind: self.region.kind,
            memory,
            out,
            before: None,
            ends: rows::Ends::default(),
            ends_of_many: None,
        }
    }

    /// The same ends where a tile holds many rows: a warp then has a row, and rows stand beside each other instead of one after the other.
    fn ends_of_many(
        &self,
        form: &Form,
        core: ValueId,
        inside: &[(rows::RowKernel, Ending)],
        memory: &dyn Fn(ValueId) -> Option<Param>,
    ) -> Option<rows::Ends> {
        let form = Form { most_lanes: form.most_lanes.min(32), ..*form };
        let again = |(_, ending): &(rows::RowKernel, Ending)| {
            let tile = tiled::tile(self.graph(), core, &form, ending)?;
            rows::generate(&self.job(ending, Some(tile), memory)).ok()
        };
        inside.iter().map(again).collect::<Option<Vec<_>>>().map(|parts| rows::ends(&parts))
    }

    /// What stands before a core as a function of one element.
    fn read_as(&self, anatomy: &Anatomy, last: ValueId) -> Option<rows::Element> {
        let memory = |id| self.memory(id);
        let (values, rows, outputs) = (anatomy.before.clone(), Vec::new(), Vec::new());
        let ending = Ending { values, rows, outputs, in_place: false, copies: false };
        rows::element(&self.job(&ending, None, &memory), last).ok()
    }

    /// The picks that a route writes and a later product reads sorted.
    fn sorts(&self, inside: &[(rows::RowKernel, Ending)]) -> Option<(ValueId, streams::Picks)> {
        let memory = |id| self.memory(id);
        let written: Vec<ValueId> = inside.iter().flat_map(|(_, e)| e.outputs.iter().map(|(id, _)| *id)).collect();
        self.graph().ids().find_map(|id| {
            let picks = self.graph().operands(id).get(2).map(|v| self.root(*v)).filter(|v| written.contains(v))?;
            if !matches!(self.graph().node(id).op, Op::Linear { .. }) || self.sorted.contains(&picks) {
                return None;
            }
            let mut later = self.template(id, &memory, 0, Param::Null);
            later.kind = KernelKind::GroupedMatmul;
            later.streamed()?.picked.map(|p| (picks, p))
        })
    }

    pub(crate) fn job<'b>(
        &'b self,
        ending: &Ending,
        tile: Option<rows::Tile>,
        memory: &'b dyn Fn(ValueId) -> Option<Param>,
    ) -> Job<'b> {
        Job {
            graph: &self.kernels.graph,
            title: self.title(),
            values: ending.values.clone(),
            rows: ending.rows.clone(),
            outputs: ending.outputs.clone(),
            memory,
            kv: &self.plan.kv,
            in_place: ending.in_place,
            tile,
            link: None,
        }
    }

    /// A value copied to the cache.
    fn copy(&mut self, id: ValueId, rows: Vec<Axis>, sink: Sink) -> Result<(), String> {
        // A rounding to the format that the value has changes nothing; it makes the copy an operation.
        let mut builder = ir::GraphBuilder::new();
        let ty = self.graph().node(id).ty.clone();
        let tensor = self.graph().tensor(id).cloned().ok_or_else(|| format!("{id} is no tensor"))?;
        let Sink::Cache { kind, at, is_value } = sink else { return Ok(()) };
        let position = self.graph().node(at).ty.clone();
        let (from, to_at) = (builder.input("row", ty.clone()), builder.input("at", position));
        let to = builder.add(Op::Round(tensor.dtype), &[from], ty, None);
        let graph = builder.finish();
        let origin = |v: ValueId| if v == from { id } else { at };
        let memory = |v: ValueId| self.memory(origin(v));
        let sink = Sink::Cache { kind, at: to_at, is_value };
        let job = Job {
            graph: &graph,
            title: self.title(),
            values: vec![to],
            rows,
            outputs: vec![(to, sink)],
            memory: &memory,
            kv: &self.plan.kv,
            in_place: false,
            tile: None,
            link: None,
        };
        let kernel = rows::generate(&job)?;
        self.open.push(kernel);
        Ok(())
    }

    pub(crate) fn rows(&mut self, ending: Ending) -> Result<(), String> {
        if ending.copies {
            let Some((id, sink)) = ending.outputs.into_iter().next() else { return Ok(()) };
            return self.copy(id, ending.rows, sink);
        }
        let memory = |id| self.memory(id);
        let kernel = rows::generate(&self.job(&ending, None, &memory))?;
        self.open.push(kernel);
        Ok(())
    }

    /// Starts the row kernels that wait: what is computed of one core's result runs side by side.
    pub(crate) fn close(&mut self) {
        for parts in rows::grouped(std::mem::take(&mut self.open)) {
            let stem = stem(&self.region.name, "rows");
            let threads = parts.iter().map(|p| p.threads).max().unwrap_or(1);
            let unit = Unit { text: rows::text(&parts), threads, dynamic_bytes: 0, stem };
            let (variants, buckets, grid) = (Vec::new(), self.served.clone(), rows::grid(&parts));
            let params = parts.into_iter().flat_map(|p| p.params).collect();
            self.out.starts.push(Draft { unit, variants, buckets, grid, params, shares: None });
        }
    }

    /// What a kernel says of itself.
    pub(crate) fn title(&self) -> String {
        format!("region `{}` ({})", self.region.name, self.region.kind.word())
    }
}

/// What a kernel's name begins with: the region's name and the kind, in letters that every tool takes.
pub fn stem(region: &str, kind: &str) -> String {
    let plain: String = region.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let first = if plain.starts_with(|c: char| c.is_ascii_digit()) { "r" } else { "" };
    format!("{first}{plain}_{kind}")
}

/// Whether a dtype can be multiplied.
pub fn is_float(dtype: Option<DType>) -> bool {
    dtype.is_some_and(|d| d.is_float())
}
