//! The text of a row kernel: parameters, loops, stores.

use super::emit::{Body, Coords, Symbol, flat};
use super::index::{Index, LANE};
use super::modes::{Mode, Modes};
use super::order::{Stage, own_needs};
use super::{Job, Link, RowKernel, Sink, Space, c_type, elements, length, memory_type};
use artifact::{Blocks, Param};
use ir::{Axis, DType, Op, ReduceOp, TopWhat, ValueId};
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// Stands for the number of a stage where what was computed in stages is stored.
const LATE: usize = usize::MAX;

/// Threads of a block whose rows take less than a block.
const SMALL_BLOCK: i64 = 256;
/// Threads of a block that has no rows to keep together.
const FLAT_BLOCK: i64 = 256;
/// Threads of a warp.
const WARP: i64 = 32;
/// Most elements that a warp selects one after the other.
const MOST_OF_WARP: u64 = 16;
/// Most groups of 8 that one thread owns.
const MOST_GROUPS: i64 = 8;
/// Most bytes of shared memory that need no permission of the driver.
const MOST_SHARED_BYTES: i64 = 48 * 1024;

/// A kernel that is being written.
pub struct Kernel<'a> {
    /// What it is made of.
    pub job: &'a Job<'a>,
    /// Where values live.
    pub modes: &'a Modes,
    params: Vec<(Param, String, String)>,
    literals: Vec<String>,
    literal_names: HashMap<ValueId, String>,
    next: usize,
    shared_bytes: i64,
    /// Bytes that a tile's kernel gives.
    pub(super) tile_bytes: i64,
    pub(super) geometry: Geometry,
    /// Register values that a later loop reads.
    kept: HashSet<ValueId>,
    /// Outputs that are written at the end.
    late: Vec<(ValueId, Sink)>,
    pub(super) own_rows: Coords,
    top_symbols: HashMap<String, Symbol>,
}

/// How threads and rows go together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    /// Threads of a row.
    pub(super) lanes: i64,
    /// Threads of a block.
    pub(super) threads: i64,
    /// Whether every thread has one group of its own and nothing is shared.
    pub(super) is_flat: bool,
}

/// Writes the kernel.
pub fn kernel(job: &Job<'_>, modes: &Modes, stages: &[Stage]) -> Result<RowKernel, String> {
    let mut kernel = Kernel::new(job, modes);
    kernel.geometry = geometry(job, modes, stages)?;
    kernel.kept = kept(job, modes, stages);
    kernel.write(stages)
}

fn ceil(a: i64, b: i64) -> i64 {
    (a + b - 1) / b
}

fn stage_elements(job: &Job<'_>, stage: &Stage) -> Result<i64, String> {
    match stage {
        Stage::Numbers(_) => Ok(1),
        Stage::Loop { space, .. } => elements(space),
        Stage::Select(id) => {
            let operand = job.graph.operands(*id).first().map(|v| job.space(*v)).unwrap_or_default();
            Ok(elements(&operand)?.min(1024))
        }
    }
}

fn geometry(job: &Job<'_>, modes: &Modes, stages: &[Stage]) -> Result<Geometry, String> {
    let mut groups = 1;
    for stage in stages {
        groups = groups.max(ceil(stage_elements(job, stage)?, 8));
    }
    let loops = stages.iter().filter(|s| matches!(s, Stage::Loop { .. })).count();
    let apart = stages.iter().all(|s| match s {
        Stage::Loop { reduced, .. } => reduced.is_empty() && !s.shares(modes),
        Stage::Numbers(_) => true,
        Stage::Select(_) => false,
    });
    let inline = modes.values().any(|m| *m == Mode::Inline);
    if let Some(link) = &job.link {
        return link.geometry(groups);
    }
    if loops <= 1 && apart && !(job.in_place && inline) {
        let threads = job.tile.as_ref().map_or(FLAT_BLOCK, |t| t.threads);
        return Ok(Geometry { lanes: groups, threads, is_flat: true });
    }
    if let Some(tile) = &job.tile {
        // Who selects from a row does so with as many threads as there are.
        let selected = stages.iter().filter(|s| matches!(s, Stage::Select(_)));
        let selected = selected.map(|s| stage_elements(job, s)).collect::<Result<Vec<_>, String>>()?;
        let most = selected.into_iter().max().unwrap_or(1).min(tile.most_lanes);
        return tile.geometry(groups.max(most));
    }
    let whole = (groups as u64).next_power_of_two() as i64;
    let lanes = if whole > 256 { (whole / 4).clamp(256, 1024) } else { whole };
    if ceil(groups, lanes) > MOST_GROUPS {
        return Err(format!("a row of {} elements is more than a block holds", groups * 8));
    }
    Ok(Geometry { lanes, threads: lanes.max(SMALL_BLOCK), is_flat: false })
}

/// Register values that another stage reads, or that are written at the end.
fn kept(job: &Job<'_>, modes: &Modes, stages: &[Stage]) -> HashSet<ValueId> {
    let mut kept = HashSet::new();
    for stage in stages {
        let (items, reduced) = match stage {
            Stage::Loop { items, reduced, .. } => (items.clone(), reduced.clone()),
            Stage::Numbers(ids) => (ids.clone(), Vec::new()),
            Stage::Select(id) => (vec![*id], Vec::new()),
        };
        for id in items.iter().chain(&reduced) {
            kept.extend(own_needs(job, modes, *id).into_iter().filter(|v| !items.contains(v)));
        }
    }
    if job.in_place {
        kept.extend(job.outputs.iter().map(|(v, _)| *v));
    }
    kept.retain(|v| modes.get(v) == Some(&Mode::Registers));
    kept
}

impl<'a> Kernel<'a> {
    /// One that has no text yet.
    pub(super) fn new(job: &'a Job<'a>, modes: &'a Modes) -> Kernel<'a> {
        Kernel {
            job,
            modes,
            params: Vec::new(),
            literals: Vec::new(),
            literal_names: HashMap::new(),
            next: 0,
            shared_bytes: 0,
            tile_bytes: 0,
            geometry: Geometry { lanes: 1, threads: FLAT_BLOCK, is_flat: true },
            kept: HashSet::new(),
            late: Vec::new(),
            own_rows: Coords::new(),
            top_symbols: HashMap::new(),
        }
    }

    /// Parameters that the text has named so far, and how they are declared.
    pub(super) fn parameters(&self) -> (Vec<Param>, Vec<String>) {
        self.params.iter().map(|(param, kind, name)| (param.clone(), format!("{kind} {name}"))).unzip()
    }

    /// Constants that the text has named so far.
    pub(super) fn constants(&self) -> &[String] {
        &self.literals
    }
}

impl Kernel<'_> {
    /// A new name.
    pub fn fresh(&mut self, prefix: &str) -> String {
        self.next += 1;
        format!("{prefix}{}", self.next)
    }

    /// The number of a value inside the kernel: texts of two graphs that mean the same are then the same.
    fn local(&self, id: ValueId) -> usize {
        self.job.values.binary_search(&id).unwrap_or(usize::MAX)
    }

    /// A name for a computed element; each use of it gets its own.
    pub fn value_name(&mut self, id: ValueId) -> String {
        let name = self.job.graph.node(id).name.clone().unwrap_or_default();
        let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let number = self.fresh("");
        if plain.is_empty() { format!("v{number}") } else { format!("v{number}_{plain}") }
    }

    /// The variable of a number of the row.
    pub fn number_name(&self, id: ValueId) -> String {
        format!("n{}", self.local(id))
    }

    /// The array of a value in registers.
    pub fn register_name(&self, id: ValueId) -> String {
        format!("r{}", self.local(id))
    }

    /// The array of a value in shared memory.
    pub fn shared_name(&self, id: ValueId) -> String {
        format!("s{}", self.local(id))
    }

    pub(super) fn param(&mut self, param: Param, kind: &str, prefix: &str) -> String {
        if let Some((_, _, name)) = self.params.iter().find(|(p, k, _)| *p == param && k == kind) {
            return name.clone();
        }
        let name = format!("{prefix}{}", self.params.len());
        self.params.push((param, kind.to_owned(), name.clone()));
        name
    }

    /// The address of a value from outside.
    pub fn pointer(&mut self, id: ValueId) -> Result<String, String> {
        let param = (self.job.memory)(id).ok_or_else(|| format!("{id} lies nowhere"))?;
        // No `__restrict__`: a result may take the place of what is read.
        let kind = format!("const {}*", memory_type(self.job.dtype(id)));
        Ok(self.param(param, &kind, "p"))
    }

    /// A number of the layer instance.
    pub fn number_param(&mut self, id: ValueId) -> Result<String, String> {
        Ok(self.param(Param::Number(id), "float", "x"))
    }

    /// Constant data as an array of the unit.
    pub fn literal_array(&mut self, id: ValueId, numbers: &[f32]) -> String {
        if let Some(name) = self.literal_names.get(&id) {
            return name.clone();
        }
        let name = format!("literal{}", self.literals.len());
        let kind = c_type(self.job.dtype(id));
        let items: Vec<String> = numbers
            .iter()
            .map(|x| match self.job.dtype(id) {
                DType::I32 => format!("{}", *x as i32),
                DType::Bool => format!("{}", *x != 0.0),
                _ if x.is_finite() => super::emit::literal(*x),
                // Constant data must not call anything.
                _ if x.is_nan() => "__int_as_float(0x7fc00000)".to_owned(),
                _ => format!("{}(1.0f / 0.0f)", if *x < 0.0 { "-" } else { "" }),
            })
            .collect();
        self.literals.push(format!("__constant__ const {kind} {name}[{}] = {{{}}};", numbers.len(), items.join(", ")));
        self.literal_names.insert(id, name.clone());
        name
    }

    fn write(&mut self, stages: &[Stage]) -> Result<RowKernel, String> {
        let mut body = String::new();
        let (axis, factor) = self.rows_text(&mut body)?;
        for (number, stage) in stages.iter().enumerate() {
            match stage {
                Stage::Numbers(ids) => self.numbers(ids, &mut body)?,
                Stage::Loop { space, items, reduced } => self.elements(number, space, items, reduced, &mut body)?,
                Stage::Select(id) => self.select(*id, &mut body)?,
            }
            if stage.shares(self.modes) {
                let _ = writeln!(body, "  group_sync<LANES>();");
            }
        }
        self.late_stores(&mut body)?;
        if self.job.tile.is_some() {
            self.tile_ends(stages, &mut body);
        }
        if self.shared_bytes > MOST_SHARED_BYTES {
            return Err(format!("a block needs {} bytes of shared memory", self.shared_bytes));
        }
        let g = self.geometry;
        let per_block = if g.is_flat { g.threads } else { g.threads / g.lanes };
        let factor_units = if g.is_flat { factor * g.lanes } else { factor };
        let grid = [
            Blocks { rows: axis.clone(), factor: factor_units as u64, per_block: per_block as u64 },
            Blocks { rows: None, factor: 1, per_block: 1 },
        ];
        let (mut params, mut signature) = (Vec::new(), Vec::new());
        if self.job.tile.is_none() && self.job.link.is_none() {
            params.push(Param::Rows { axis, factor: factor as u64 });
            signature.push("const int rows".to_owned());
        }
        let (own, declared) = self.parameters();
        params.extend(own);
        signature.extend(declared);
        let (head, constants) = self.header(&params, &signature);
        let is_apart = !self.job.in_place;
        let ahead: Vec<(usize, u64)> =
            params.iter().enumerate().filter_map(|(i, p)| Some((i, self.read_by_all(p)?))).collect();
        if self.job.tile.is_none() && self.job.link.is_none() && !g.is_flat {
            body = super::unit::ahead(&ahead, &signature) + &body;
        }
        let (threads, lanes, tile_bytes) = (g.threads as u32, g.lanes as u32, self.tile_bytes as u32);
        Ok(RowKernel { head, constants, signature, body, is_apart, threads, lanes, grid, params, ahead, tile_bytes })
    }

    /// Bytes of a weight of one axis, which stands in no cache when it is read: much else went through it since.
    fn read_by_all(&self, param: &Param) -> Option<u64> {
        let Param::Weight(id) = param else { return None };
        let ty = self.job.graph.tensor(*id).filter(|t| t.axes.len() == 1)?;
        Some(ty.dtype.bytes_for(ty.fixed_elements())).filter(|bytes| *bytes >= 1024)
    }

    fn header(&self, params: &[Param], signature: &[String]) -> (String, String) {
        let mut text = String::new();
        let _ = writeln!(text, "// {}", self.job.title);
        let rows: Vec<&str> = self.job.rows.iter().map(|a| a.name.as_str()).collect();
        let g = self.geometry;
        let way =
            if g.is_flat { "a group of 8 elements a thread".to_owned() } else { format!("{} threads a row", g.lanes) };
        let _ = writeln!(text, "// rows [{}], {way}", rows.join(", "));
        for (param, declared) in params.iter().zip(signature) {
            let what = match param {
                Param::Value(id) | Param::Weight(id) | Param::Number(id) => self.describe(*id),
                Param::Scratch(_) => "scratch".to_owned(),
                _ => continue,
            };
            let _ = writeln!(text, "{}", format!("//   {declared}: {what}").trim_end_matches([':', ' ']));
        }
        let mut constants = format!("constexpr int LANES = {};\n", g.lanes);
        for line in &self.literals {
            let _ = writeln!(constants, "{line}");
        }
        (text, constants)
    }

    fn describe(&self, id: ValueId) -> String {
        if self.job.graph.len() <= id.0 as usize {
            // A value of the graph that this one was made for.
            return String::new();
        }
        let node = self.job.graph.node(id);
        let ty = self.job.graph.tensor(id).map(ToString::to_string).unwrap_or_default();
        let what = match &node.op {
            Op::Weight(reference) => reference.parts().iter().map(weight_name).collect::<Vec<_>>().join(" + "),
            Op::Scalar(number) => number.to_string(),
            _ => node.name.clone().unwrap_or_default(),
        };
        format!("{ty} {what}").trim_end().to_owned()
    }

    /// The row of a thread, and the indices along the row axes. Returns the row axis of steps and rows for each of its.
    fn rows_text(&mut self, body: &mut String) -> Result<(Option<String>, i64), String> {
        let stepped: Vec<&Axis> = self.job.rows.iter().filter(|a| a.is_rows()).collect();
        if stepped.len() > 1 {
            return Err("rows run along two axes of the step".to_owned());
        }
        let axis = stepped.first().map(|a| a.name.clone());
        let mut factor = 1;
        for a in self.job.rows.iter().filter(|a| !a.is_rows()) {
            factor *= length(a)?;
        }
        let g = self.geometry;
        if let Some(tile) = &self.job.tile {
            tile.begin(g, factor, body);
        } else if self.job.link.is_some() {
            Link::begin(body);
        } else if g.is_flat {
            let _ = writeln!(body, "  wait_for_earlier();");
            let _ = writeln!(body, "  const u64 unit = (u64)blockIdx.x * {} + threadIdx.x;", g.threads);
            let _ = writeln!(body, "  if (unit >= (u64)rows * LANES) return;");
            let _ = writeln!(body, "  const int row = (int)(unit / LANES), lane = (int)(unit % LANES);");
        } else {
            let per_block = g.threads / g.lanes;
            let _ = writeln!(body, "  wait_for_earlier();");
            let _ = writeln!(body, "  if (blockIdx.x * {per_block} >= rows) return;");
            let _ = writeln!(body, "  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;");
            let _ = writeln!(body, "  const int wanted = blockIdx.x * {per_block} + sub;");
            let _ = writeln!(body, "  const bool live = wanted < rows;");
            let _ = writeln!(body, "  const int row = live ? wanted : rows - 1;");
        }
        let mut behind = factor;
        for a in self.job.rows.clone() {
            let symbol = self.fresh("i");
            if a.is_rows() {
                let _ = writeln!(body, "  const int {symbol} = row / {factor};  // {}", a.name);
            } else {
                let n = length(&a)?;
                behind /= n;
                let _ = writeln!(body, "  const int {symbol} = row / {behind} % {n};  // {}", a.name);
            }
            self.top_symbols.insert(symbol.clone(), Symbol::default());
            self.own_rows.insert(a.name.clone(), Index::symbol(&symbol));
        }
        self.cells(body)?;
        Ok((axis, factor))
    }

    /// Where the rows of cache sinks lie.
    fn cells(&mut self, out: &mut String) -> Result<(), String> {
        let sinks: Vec<Sink> = self.job.outputs.iter().map(|(_, s)| s.clone()).collect();
        let mut seen = HashSet::new();
        for sink in sinks {
            let Sink::Cache { kind, at, .. } = sink else { continue };
            if !seen.insert(kind) {
                continue;
            }
            let layout = self.job.kv.get(kind).ok_or("a cache has no layout")?;
            let _ = writeln!(out, "  using Cache{kind} = {};", layout_type(layout));
            let steps = self.param(Param::Steps, "const Steps*", "p");
            let slot = self.param(Param::Slot(kind), "const i64", "x");
            let row = self.own_rows.values().next().map(|i| i.text(false)).unwrap_or_default();
            let mut body = Body { symbols: self.top_symbols.clone(), own: self.own_rows.clone(), ..Body::default() };
            let coords = self.own_rows.clone();
            let position = self.at(&mut body, at, &coords)?;
            append(out, "  ", &body.lines);
            let _ = writeln!(
                out,
                "  const u64 cell{kind} = Cache{kind}::cell({steps}, {kind}, {steps}->sequence[{row}], {position}, {slot});"
            );
        }
        Ok(())
    }

    fn numbers(&mut self, ids: &[ValueId], out: &mut String) -> Result<(), String> {
        let coords = self.own_rows.clone();
        for id in ids {
            let mut body = Body { symbols: self.top_symbols.clone(), own: coords.clone(), ..Body::default() };
            let text = self.evaluate(&mut body, *id, &coords)?;
            append(out, "  ", &body.lines);
            let _ = writeln!(out, "  const {} {} = {text};", c_type(self.job.dtype(*id)), self.number_name(*id));
            self.number_outputs(*id, out)?;
        }
        Ok(())
    }

    fn sinks(&self, id: ValueId) -> Vec<Sink> {
        self.job.outputs.iter().filter(|(v, _)| *v == id).map(|(_, s)| s.clone()).collect()
    }

    fn number_outputs(&mut self, id: ValueId, out: &mut String) -> Result<(), String> {
        for sink in self.sinks(id) {
            if self.job.in_place {
                self.late.push((id, sink));
                continue;
            }
            let coords = self.own_rows.clone();
            let (pointer, index) = self.place(id, &sink, &coords)?;
            let guard = if self.geometry.is_flat { "lane == 0" } else { "live && lane == 0" };
            let name = self.number_name(id);
            let _ = writeln!(out, "  if ({guard}) store({pointer} + {}, {name});", index.text(true));
        }
        Ok(())
    }

    /// Address and index where an element goes.
    fn place(&mut self, id: ValueId, sink: &Sink, coords: &Coords) -> Result<(String, Index), String> {
        let axes = self.job.graph.tensor(id).map(|t| t.axes.clone()).unwrap_or_default();
        match sink {
            Sink::Buffer(param) => {
                let kind = format!("{}*", memory_type(self.job.dtype(id)));
                Ok((self.param(param.clone(), &kind, "p"), flat(&axes, coords)?))
            }
            Sink::Cache { kind, is_value, .. } => {
                let layout = self.job.kv.get(*kind).ok_or("a cache has no layout")?;
                let (head_stride, offset) = (layout.head_stride as i64, layout.v_offset as i64);
                let pool = self.param(Param::Pool(*kind), &format!("{}*", memory_type(layout.dtype)), "p");
                let own: Vec<Axis> = axes.iter().filter(|a| !a.is_rows()).cloned().collect();
                let (inner, heads) = own.split_last().ok_or("a cached row has no elements")?;
                let head = flat(heads, coords)?;
                let inside = coords.get(&inner.name).cloned().unwrap_or_default();
                let start =
                    Index::symbol(&format!("cell{kind}")).plus(&Index::number(if *is_value { offset } else { 0 }));
                Ok((pool, head.times(head_stride).plus(&inside).plus(&start)))
            }
            Sink::Wire => Err(format!("{id} is a number of the row, which no sum over ranks takes yet")),
        }
    }

    /// Symbols and coordinates of a loop's element; lines that define them go into `lines`.
    fn loop_coords(&mut self, space: &Space, wide: bool, body: &mut Body) -> Result<Coords, String> {
        let mut coords = self.own_rows.clone();
        body.symbols = self.top_symbols.clone();
        body.symbols.insert("e".to_owned(), Symbol { varies: false, aligned: true });
        // Where a head begins: pages, tokens and heads are apart by multiples of 8, or the store is not wide.
        for (kind, layout) in self.job.kv.iter().enumerate() {
            let strides = [layout.page_stride, layout.layer_stride, layout.token_stride];
            let aligned = strides.iter().all(|s| s % 8 == 0);
            body.symbols.insert(format!("cell{kind}"), Symbol { varies: false, aligned });
        }
        let element = Index::symbol("e").plus(&Index::symbol(LANE));
        match space.as_slice() {
            [] => {}
            [axis] => {
                coords.insert(axis.name.clone(), element);
            }
            axes => {
                let mut behind = elements(axes)?;
                for (i, axis) in axes.iter().enumerate() {
                    let n = length(axis)?;
                    behind /= n;
                    let name = self.fresh("i");
                    let last = i + 1 == axes.len();
                    let from = if wide { "e".to_owned() } else { format!("(e + {LANE})") };
                    let line = format!("const int {name} = {from} / {behind} % {n};  // {}", axis.name);
                    body.symbols.insert(name.clone(), Symbol { varies: !wide, aligned: wide && last });
                    if wide {
                        body.group_lines.push(line)
                    } else {
                        body.lines.push(line)
                    }
                    let mut index = Index::symbol(&name);
                    if wide && last {
                        index = index.plus(&Index::symbol(LANE));
                    }
                    coords.insert(axis.name.clone(), index);
                }
            }
        }
        body.own = coords.clone();
        Ok(coords)
    }

    /// A loop over the elements of a space.
    fn elements(
        &mut self,
        number: usize,
        space: &Space,
        items: &[ValueId],
        reduced: &[ValueId],
        out: &mut String,
    ) -> Result<(), String> {
        let n = elements(space)?;
        let inner = space.last().map_or(Ok(1), length)?;
        let wide = inner % 8 == 0;
        let mut body = Body { wide, ..Body::default() };
        let coords = self.loop_coords(space, wide, &mut body)?;
        let mut after: Vec<String> = Vec::new();
        let mut before: Vec<String> = Vec::new();
        for id in items {
            let text = self.evaluate(&mut body, *id, &coords)?;
            body.computed.insert(*id, text.clone());
            if self.kept.contains(id) {
                body.lines.push(format!("{}[j][{LANE}] = {text};", self.register_name(*id)));
            }
            if self.modes.get(id) == Some(&Mode::Shared) {
                self.declare_shared(*id, out)?;
                let index = flat(space, &coords)?;
                body.lines.push(format!("{}[sub][{}] = {text};", self.shared_name(*id), index.text(false)));
            }
            for sink in self.sinks(*id) {
                if self.job.in_place {
                    self.late.push((*id, sink));
                } else {
                    self.element_store(*id, &sink, &coords, &text, &mut body, &mut before, &mut after)?;
                }
            }
        }
        for id in reduced {
            let operand = *self.job.graph.operands(*id).first().ok_or("a reduction has no operand")?;
            let text = self.at(&mut body, operand, &coords)?;
            let local = self.local(*id);
            let is_max = matches!(self.job.graph.node(*id).op, Op::Reduce { op: ReduceOp::Max, .. });
            let nothing = if is_max { "nothing_larger()" } else { "absent()" };
            before.push(format!("float t{local}[8];"));
            if n % 8 != 0 {
                before.push(format!("for (int {LANE} = 0; {LANE} < 8; ++{LANE}) t{local}[{LANE}] = {nothing};"));
            }
            body.lines.push(format!("t{local}[{LANE}] = {text};"));
            after.push(format!("g{local}[j] = {}(t{local});", if is_max { "largest" } else { "pairwise" }));
        }
        self.loop_text(number, n, items, reduced, &body, &before, &after, out)
    }

    #[allow(clippy::too_many_arguments)]
    fn loop_text(
        &mut self,
        number: usize,
        n: i64,
        items: &[ValueId],
        reduced: &[ValueId],
        body: &Body,
        before: &[String],
        after: &[String],
        out: &mut String,
    ) -> Result<(), String> {
        let groups = ceil(ceil(n, 8), self.geometry.lanes);
        let is_max = |id: &ValueId| matches!(self.job.graph.node(*id).op, Op::Reduce { op: ReduceOp::Max, .. });
        let _ = match number {
            LATE => writeln!(out, "  // what is stored last: {n} elements"),
            number => writeln!(out, "  // stage {number}: {n} elements"),
        };
        for id in items.iter().filter(|v| self.kept.contains(v)) {
            let kind = c_type(self.job.dtype(*id));
            let _ = writeln!(out, "  {kind} {}[{groups}][8];", self.register_name(*id));
        }
        for id in reduced {
            let _ = writeln!(out, "  float g{}[{groups}];", self.local(*id));
        }
        let _ = writeln!(out, "#pragma unroll\n  for (int j = 0; j < {groups}; ++j) {{");
        let _ = writeln!(out, "    const int e = (lane + j * LANES) * 8;");
        for id in reduced {
            let nothing = if is_max(id) { "nothing_larger()" } else { "absent()" };
            let _ = writeln!(out, "    g{}[j] = {nothing};", self.local(*id));
        }
        let _ = writeln!(out, "    if (e < {n}) {{");
        append(out, "      ", before);
        append(out, "      ", &body.group_lines);
        let _ = writeln!(out, "#pragma unroll\n      for (int {LANE} = 0; {LANE} < 8; ++{LANE}) {{");
        if n % 8 != 0 {
            let _ = writeln!(out, "        if (e + {LANE} >= {n}) break;");
        }
        append(out, "        ", &body.lines);
        let _ = writeln!(out, "      }}");
        append(out, "      ", after);
        let _ = writeln!(out, "    }}\n  }}");
        for id in reduced {
            let (local, op) = (self.local(*id), if is_max(id) { "Max" } else { "Sum" });
            let meet = if self.geometry.lanes > 32 {
                // Rows of a block stand side by side.
                let subs = self.geometry.threads / self.geometry.lanes;
                self.shared_bytes += subs * self.geometry.lanes * 4;
                let _ = writeln!(out, "  __shared__ float meet{local}[{subs}][LANES];");
                format!("meet{local}[sub]")
            } else {
                "nullptr".to_owned()
            };
            let name = self.number_name(*id);
            let _ = writeln!(out, "  const float {name} = across<{op}, LANES>(g{local}, {meet}, lane);");
            self.number_outputs(*id, out)?;
        }
        Ok(())
    }

    fn declare_shared(&mut self, id: ValueId, out: &mut String) -> Result<(), String> {
        if self.geometry.is_flat {
            return Err(format!("{id} is shared by threads that do not meet"));
        }
        let (n, subs) = (elements(&self.job.space(id))?, self.geometry.threads / self.geometry.lanes);
        let (kind, name) = (if self.job.dtype(id).is_float() { "float" } else { "int" }, self.shared_name(id));
        if self.job.tile.is_some() {
            // 16-byte pieces of rows stay aligned.
            let (at, pitch) = (self.tile_bytes, ceil(n, 4) * 4);
            self.tile_bytes += pitch * subs * 4;
            let _ = writeln!(out, "  {kind}(*{name})[{pitch}] = ({kind}(*)[{pitch}])(tile.extra + {at});");
            return Ok(());
        }
        self.shared_bytes += n * subs * 4;
        let _ = writeln!(out, "  __shared__ {kind} {name}[{subs}][{n}];");
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn element_store(
        &mut self,
        id: ValueId,
        sink: &Sink,
        coords: &Coords,
        text: &str,
        body: &mut Body,
        before: &mut Vec<String>,
        after: &mut Vec<String>,
    ) -> Result<(), String> {
        if *sink == Sink::Wire {
            return self.element_sent(id, coords, text, body, before, after);
        }
        let (pointer, index) = self.place(id, sink, coords)?;
        let live = if self.geometry.is_flat { "" } else { "if (live) " };
        let symbols = body.symbols.clone();
        let aligned = |s: &str| symbols.get(s).is_some_and(|s| s.aligned);
        let varies = |s: &str| symbols.get(s).is_some_and(|s| s.varies);
        if body.wide && self.job.dtype(id) != DType::Bool && index.is_group(aligned, varies) {
            let name = self.fresh("o");
            before.push(format!("{} {name}[8];", c_type(self.job.dtype(id))));
            body.lines.push(format!("{name}[{LANE}] = {text};"));
            after.push(format!("{live}store8({pointer} + {}, {name});", index.without_lane().text(true)));
        } else {
            body.lines.push(format!("{live}store({pointer} + {}, {text});", index.text(true)));
        }
        Ok(())
    }

    /// A selection: each thread ranks some elements, those that are selected go to their places.
    fn select(&mut self, id: ValueId, out: &mut String) -> Result<(), String> {
        let operand = *self.job.graph.operands(id).first().ok_or("a selection has no operand")?;
        let space = self.job.space(operand);
        let n = elements(&space)?;
        self.declare_shared(id, out)?;
        let mut body = Body { symbols: self.top_symbols.clone(), own: self.own_rows.clone(), ..Body::default() };
        let mut coords = self.own_rows.clone();
        let mut behind = n;
        for axis in &space {
            let len = length(axis)?;
            behind /= len;
            let name = self.fresh("i");
            body.lines.push(format!("const int {name} = at / {behind} % {len};  // {}", axis.name));
            body.symbols.insert(name.clone(), Symbol { varies: true, aligned: false });
            coords.insert(axis.name.clone(), Index::symbol(&name));
        }
        let to = self.shared_name(id);
        let (mut head, mut tail) = (format!("  for (int at = lane; at < {n}; at += LANES) {{"), "  }");
        match self.job.graph.node(id).op.clone() {
            Op::InTop { k, axis } => {
                let rank = self.rank(&mut body, operand, &axis, &coords)?;
                let index = flat(&space, &coords)?;
                body.lines.push(format!("{to}[sub][{}] = {rank} < {k};", index.text(false)));
            }
            Op::Top { k, axis, into, what } => {
                let by_warp = self.geometry.lanes == WARP && space.len() == 1 && k <= MOST_OF_WARP;
                if by_warp {
                    let term = self.term(&mut body, operand, &axis, &coords)?;
                    head = format!("  best_in_warp<{n}, {k}>({}, lane, [&](int rank, int at) {{", term);
                    tail = "  });";
                } else {
                    let rank = self.rank(&mut body, operand, &axis, &coords)?;
                    body.lines.push(format!("const int rank = {rank};"));
                }
                let own = coords.get(&axis).map(|i| i.text(false)).unwrap_or_default();
                let value = if what == TopWhat::Ids { own } else { self.at(&mut body, operand, &coords)? };
                let mut result = coords.clone();
                result.insert(into, Index::symbol("rank"));
                let index = flat(&self.job.space(id), &result)?;
                let when = if by_warp { String::new() } else { format!("if (rank < {k}) ") };
                body.lines.push(format!("{when}{to}[sub][{}] = {value};", index.text(false)));
            }
            _ => return Err(format!("{id} is no selection")),
        }
        let _ = writeln!(out, "{head}");
        append(out, "    ", &body.lines);
        let _ = writeln!(out, "{tail}");
        let sinks = self.sinks(id);
        self.late.extend(sinks.into_iter().map(|s| (id, s)));
        Ok(())
    }

    /// What is written once everything is read.
    fn late_stores(&mut self, out: &mut String) -> Result<(), String> {
        let late = std::mem::take(&mut self.late);
        if late.is_empty() {
            return Ok(());
        }
        if !self.geometry.is_flat {
            let _ = writeln!(out, "  group_sync<LANES>();");
        }
        for (id, sink) in late {
            let space = self.job.space(id);
            if space.is_empty() {
                let (pointer, index) = self.place(id, &sink, &self.own_rows.clone())?;
                let guard = if self.geometry.is_flat { "lane == 0" } else { "live && lane == 0" };
                let name = self.number_name(id);
                let _ = writeln!(out, "  if ({guard}) store({pointer} + {}, {name});", index.text(true));
                continue;
            }
            let n = elements(&space)?;
            let wide = space.last().map_or(Ok(1), length)? % 8 == 0;
            let mut body = Body { wide, ..Body::default() };
            let coords = self.loop_coords(&space, wide, &mut body)?;
            let text = self.at(&mut body, id, &coords)?;
            let (mut before, mut after) = (Vec::new(), Vec::new());
            self.element_store(id, &sink, &coords, &text, &mut body, &mut before, &mut after)?;
            self.loop_text(LATE, n, &[], &[], &body, &before, &after, out)?;
        }
        Ok(())
    }
}

/// Lines behind what is written, indented.
fn append(out: &mut String, indent: &str, lines: &[String]) {
    lines.iter().for_each(|l| *out += &format!("{indent}{l}\n"));
}

fn weight_name(reference: &ir::WeightRef) -> String {
    match reference {
        ir::WeightRef::Model(name) | ir::WeightRef::Layer(name) | ir::WeightRef::FirstLayer(name) => name.clone(),
        ir::WeightRef::OfLayer { layer, name } => format!("{name} of layer {layer}"),
        ir::WeightRef::Next { layer, last } => format!("next {layer} else {last}"),
        ir::WeightRef::Packed { into, .. } => into.clone(),
    }
}

/// The layout of a cache as a type of the templates.
pub fn layout_type(layout: &ir::KvLayout) -> String {
    format!(
        "CacheLayout<{}, {}, {}, {}, {}>",
        layout.page_tokens, layout.page_stride, layout.token_stride, layout.head_stride, layout.v_offset
    )
}
