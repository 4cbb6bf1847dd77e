//! A bucket's programs on the device, start by start.

use super::choose::{Choices, Choosing};
use super::driver::{Argument, Device, Kernel, Memory, Shape};
use super::load::Weights;
use super::ranks::{Known, Letterboxes, MOST_RANKS};
use super::tables::Tables;
use artifact::{Blocks, DeviceCode, Param, RegionCode, Start};
use ir::{
    ALL_ROWS, BucketPlan, KernelEntry, KernelGraph, Launch, Op, Place, Plan, Program, TOKEN_ROWS, ValueId, WANTED_ROWS,
};
use std::cell::Cell;

/// Scratch places begin at multiples of this.
const ALIGN: usize = 256;

/// Everything that runs steps of one entry.
pub struct Loaded {
    /// Place on the mesh.
    pub rank: u64,
    pub device: Device,
    pub code: DeviceCode,
    pub kernels: Vec<Kernel>,
    pub weights: Weights,
    /// The plan's arena and scratch behind it.
    pub arena: Memory,
    /// Where scratch begins.
    pub scratch: usize,
    pub pools: Vec<Memory>,
    /// Counters that are 0 whenever no kernel runs.
    pub tickets: Memory,
    /// What sorts the picks of a step.
    pub picks: Memory,
    pub tables: Tables,
    /// What chooses tokens, where the artifact has kernels for it.
    pub choices: Option<Choices>,
    pub letterboxes: Letterboxes,
    pub known: Known,
    /// Lengths of whole axes, and of the mesh.
    pub facts: ir::Facts,
    pub mesh: ir::Mesh,
    /// Mesh axes that rows are spread over, and the place along them.
    pub spread: Vec<String>,
    pub home: usize,
    /// Whether the rank is at the places of all others too.
    pub is_alone: bool,
    pub entry: KernelEntry,
    /// Index of the entry.
    pub number: usize,
    /// How many ranks have this device.
    pub crowd: u32,
    pub plan: Plan,
    /// Whether what was started last is a kernel, behind which another may begin early.
    pub early: Cell<bool>,
    /// Whether kernels also write what only a check reads.
    pub checks: Cell<bool>,
    /// Shares of sums, where kernels of another number than the plan's are timed.
    pub shares: Cell<Option<u64>>,
}

/// Rows of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Counts {
    /// Token rows.
    pub tokens: usize,
    /// Wanted rows.
    pub wanted: usize,
    /// Whose they are, where ranks bring rows of their own.
    pub shares: Option<Shares>,
}

/// Rows that ranks bring, by the ranks' places along the mesh axes that rows are spread over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shares {
    /// Token rows.
    pub tokens: [u32; MOST_RANKS],
    /// Wanted rows.
    pub wanted: [u32; MOST_RANKS],
}

impl Counts {
    /// Rows of the rank at place `home` along an axis; 1 for none. Axes of the rows of all ranks have all of them.
    pub fn of(&self, axis: Option<&str>, home: usize) -> Result<usize, String> {
        let Some(axis) = axis else { return Ok(1) };
        let own = axis.strip_suffix(ALL_ROWS).unwrap_or(axis);
        let (all, shares) = match own {
            TOKEN_ROWS => (self.tokens, self.shares.as_ref().map(|s| &s.tokens)),
            WANTED_ROWS => (self.wanted, self.shares.as_ref().map(|s| &s.wanted)),
            other => return Err(format!("a step has no rows along `{other}`")),
        };
        match shares {
            Some(shares) if own == axis => Ok(shares.get(home).copied().unwrap_or(0) as usize),
            Some(shares) => Ok(shares.iter().sum::<u32>() as usize),
            None => Ok(all),
        }
    }
}

/// One graph as it runs: which, as which instance, in which bucket.
#[derive(Clone, Copy)]
pub struct Stage<'a> {
    pub graph: &'a KernelGraph,
    pub index: usize,
    pub program: &'a Program,
    pub bucket: &'a BucketPlan,
    pub instance: Option<usize>,
}

/// Bytes of scratch that the entry's largest region needs in its largest bucket.
pub fn scratch_bytes(code: &DeviceCode, plan: &Plan) -> usize {
    let mut most = 0;
    for (graphs, planned) in code.entries.iter().zip(&plan.entries) {
        for bucket in &planned.buckets {
            for region in graphs.iter().flat_map(|g| &g.regions) {
                let rows = |axis: &Option<String>| match axis {
                    None => 1,
                    Some(axis) => bucket.bucket.most_rows(axis).unwrap_or(0),
                };
                let bytes = |s: &artifact::Scratch| ((s.row_bytes * rows(&s.rows)) as usize).next_multiple_of(ALIGN);
                most = most.max(region.scratch.iter().map(bytes).sum());
            }
        }
    }
    most
}

/// Bytes of counters: one for every tile that blocks share, of the largest kernel.
pub const TICKET_BYTES: usize = 1 << 20;

/// Bytes of what sorts the picks of the largest step: an entry of four words and a place for each, and four words.
pub fn pick_bytes(code: &DeviceCode, most_rows: usize) -> usize {
    let starts = code.entries.iter().flatten().flat_map(|g| &g.regions).flat_map(|r| &r.starts);
    let per_row = |p: &Param| if let Param::Picks { per_row } = p { *per_row as usize } else { 0 };
    let most = starts.flat_map(|s| &s.params).map(per_row).max().unwrap_or(0);
    16 + most * most_rows * 20
}

impl Loaded {
    /// The stages of a step in a bucket.
    pub fn stages<'a>(&'a self, bucket: &'a BucketPlan) -> Result<Vec<Stage<'a>>, String> {
        let stage = |index: usize, instance| {
            let (graph, program) = (self.entry.graphs.get(index), bucket.programs.get(index));
            let (graph, program) = graph.zip(program).ok_or_else(|| format!("there is no program {index}"))?;
            Ok(Stage { graph, index, program, bucket, instance })
        };
        let mut stages = vec![stage(0, None)];
        for (i, instance) in self.entry.instances.iter().enumerate() {
            stages.push(stage(KernelEntry::class_graph(instance.class), Some(i)));
        }
        stages.push(stage(self.entry.graphs.len() - 1, None));
        stages.into_iter().collect()
    }

    /// The plan of a bucket.
    pub fn bucket(&self, index: usize) -> Result<&BucketPlan, String> {
        let buckets = self.plan.entries.get(self.number).and_then(|e| e.buckets.get(index));
        buckets.ok_or_else(|| format!("there is no bucket {index}"))
    }

    /// Starts everything.
    pub fn run(&self, bucket: usize, counts: Counts, choosing: Choosing) -> Result<(), String> {
        run(std::slice::from_ref(self), bucket, counts, choosing)
    }

    /// Runs one launch.
    pub fn launch(&self, stage: &Stage<'_>, launch: &Launch, counts: Counts) -> Result<(), String> {
        match launch {
            Launch::Region { region, variant, .. } => {
                let code = self.region(stage, *region)?;
                for start in code.starts.iter().filter(|s| s.serves(*variant, &stage.bucket.bucket)) {
                    self.start(stage, code, start, counts).map_err(|e| self.title(stage, *region, start, &e))?;
                }
                Ok(())
            }
            Launch::Move { from, to } => {
                let target = stage.bucket.shared.get(to).ok_or_else(|| format!("`{to}` has no shared place"))?;
                let source = place(stage, *from)?;
                let bytes = self.bytes(stage, *from, counts)?;
                // A kernel waits for kernels by itself, for copies it does not.
                self.early.set(false);
                self.arena.copy_within(source, target.offset_bytes as usize, bytes)
            }
        }
    }

    /// Starts of a region.
    pub fn region(&self, stage: &Stage<'_>, region: usize) -> Result<&RegionCode, String> {
        let graphs = self.code.entries.get(self.number).and_then(|e| e.get(stage.index));
        graphs.and_then(|g| g.regions.get(region)).ok_or_else(|| format!("region {region} has no kernels"))
    }

    fn title(&self, stage: &Stage<'_>, region: usize, start: &Start, error: &str) -> String {
        let kernel = self.code.kernels.get(start.kernel).map_or("?", |k| k.name.as_str());
        let graph = &stage.graph.graph;
        let region = stage.graph.regions.get(region);
        let name = region.map_or("?", |r| r.name.as_str());
        // What a region computes last is what it is for.
        let spans = region.iter().flat_map(|r| r.values.iter().rev()).filter_map(|v| graph.node(*v).span);
        let place = spans.filter_map(|span| Some((self.facts.files.get(span.file as usize)?, span))).next();
        let place = place.map_or(String::new(), |(file, span)| {
            format!(", which means bytes {} to {} of `{file}`", span.start, span.end)
        });
        format!("kernel `{kernel}` of region `{name}` in graph `{}`{place}: {error}", stage.graph.name)
    }

    /// The kernel of a start: its own, or the one with the shares that are timed.
    pub fn kernel_of(&self, region: &RegionCode, start: &Start) -> usize {
        let timed = self.shares.get().and_then(|shares| {
            let own = region.starts.iter().position(|s| std::ptr::eq(s, start))?;
            region.alternatives.iter().find(|a| a.start == own && a.shares == shares)
        });
        timed.map_or(start.kernel, |a| a.kernel)
    }

    /// Runs one start of a region.
    pub fn start(&self, stage: &Stage<'_>, region: &RegionCode, start: &Start, counts: Counts) -> Result<(), String> {
        let index = self.kernel_of(region, start);
        let (kernel, code) = self.kernels.get(index).zip(self.code.kernels.get(index)).ok_or("no kernel")?;
        let blocks = |b: &Blocks| -> Result<u32, String> {
            let units = counts.of(b.rows.as_deref(), self.home)? as u64 * b.factor;
            u32::try_from(units.div_ceil(b.per_block.max(1))).map_err(|_| "more blocks than a start has".to_owned())
        };
        let mut grid = [blocks(&start.grid[0])?, blocks(&start.grid[1])?];
        if meets(start) {
            // Blocks of all ranks that meet run at once: ranks of one device share its multiprocessors out.
            grid[0] = grid[0].div_ceil(self.crowd);
        }
        // Where a rank has no rows, it only meets the others.
        let rows = |p: &Param| match p {
            Param::Rows { axis, .. } | Param::Map { axis, .. } => counts.of(axis.as_deref(), self.home) == Ok(0),
            _ => false,
        };
        if grid.contains(&0) || (!meets(start) && start.params.iter().any(rows)) {
            return Ok(());
        }
        let arguments = start.params.iter().map(|p| self.argument(stage, region, p, counts));
        let arguments = arguments.collect::<Result<Vec<_>, String>>()?;
        let shape = Shape { grid, threads: code.threads, early: self.early.replace(true) };
        self.device.start(kernel, shape, &arguments)
    }

    fn argument(
        &self,
        stage: &Stage<'_>,
        region: &RegionCode,
        param: &Param,
        counts: Counts,
    ) -> Result<Argument, String> {
        let graph = &stage.graph.graph;
        let instance = stage.instance.and_then(|i| self.entry.instances.get(i));
        let layer = instance.map(|i| i.layer);
        Ok(match param {
            Param::Value(id) => Argument::Address(self.arena.address() + place(stage, *id)? as u64),
            Param::Weight(id) => match &graph.node(*id).op {
                Op::Weight(w) => Argument::Address(self.weights.address(w, &self.entry.instances, stage.instance)?),
                _ => return Err(format!("{id} is no weight")),
            },
            Param::Scratch(index) => {
                Argument::Address(self.arena.address() + self.scratch_at(stage, region, *index) as u64)
            }
            Param::Number(id) => match &graph.node(*id).op {
                Op::Scalar(number) | Op::Attend { scale: number, .. } => {
                    Argument::F32(number.eval(layer.unwrap_or(0)) as f32)
                }
                _ => return Err(format!("{id} is no number")),
            },
            Param::Rows { axis, factor } => {
                let rows = counts.of(axis.as_deref(), self.home)? as u64 * factor;
                Argument::I32(i32::try_from(rows).map_err(|_| "more rows than a kernel counts".to_owned())?)
            }
            Param::Steps => Argument::Address(self.tables.address()),
            Param::Pool(kind) => Argument::Address(self.pools.get(*kind).ok_or("no such KV kind")?.address()),
            Param::Slot(kind) => {
                let layout = self.plan.kv.get(*kind).ok_or("no such KV kind")?;
                let slot = layer.and_then(|l| layout.slot(l)).ok_or("the layer has no slot in the cache")?;
                Argument::I64(slot as i64 * layout.layer_stride as i64)
            }
            Param::Map { of, columns, axis, rows, box_rows } => {
                let Argument::Address(address) = self.argument(stage, region, of, counts)? else {
                    return Err("a map of what has no address".to_owned());
                };
                let rows = counts.of(axis.as_deref(), self.home)? as u64 * rows;
                self.device.map(address, *columns, rows, *box_rows)?
            }
            Param::Peers { over, .. } => self.peers(over)?,
            Param::Brought { axis, over } => self.brought(axis, over, counts)?,
            Param::Own { axis, over, end } => {
                let parts = self.mesh.parts(over).max(1);
                let whole = self.facts.dims.get(axis).ok_or_else(|| format!("`{axis}` has no length"))?;
                let place = self.mesh.place(self.rank, over) + u64::from(*end);
                Argument::I32(i32::try_from(place * (whole / parts)).map_err(|_| format!("`{axis}` is too long"))?)
            }
            Param::Tickets => Argument::Address(self.tickets.address()),
            Param::Picks { .. } => Argument::Address(self.picks.address()),
            Param::Checked(of) if self.checks.get() => self.argument(stage, region, of, counts)?,
            Param::Checked(_) | Param::Null => Argument::Address(0),
        })
    }

    /// Where a scratch place begins in the arena's memory.
    pub fn scratch_at(&self, stage: &Stage<'_>, region: &RegionCode, index: usize) -> usize {
        let rows = |axis: &Option<String>| match axis {
            None => 1,
            Some(axis) => stage.bucket.bucket.most_rows(axis).unwrap_or(0),
        };
        let bytes = |s: &artifact::Scratch| ((s.row_bytes * rows(&s.rows)) as usize).next_multiple_of(ALIGN);
        self.scratch + region.scratch.iter().take(index).map(bytes).sum::<usize>()
    }

    /// Bytes of a value in a step.
    pub fn bytes(&self, stage: &Stage<'_>, id: ValueId, counts: Counts) -> Result<usize, String> {
        let ty = stage.graph.graph.tensor(id).ok_or_else(|| format!("{id} is no tensor"))?;
        let elements = ty.fixed_elements() * counts.of(ty.row_axes().next(), self.home)? as u64;
        Ok(ty.dtype.bytes_for(elements) as usize)
    }
}

/// Whether blocks of a start wait for those of other ranks.
pub fn meets(start: &Start) -> bool {
    start.params.iter().any(|p| matches!(p, Param::Peers { .. }))
}

/// Starts everything on all ranks, graph by graph: none runs far ahead of what another has not been given yet. Ranks of one device go launch
/// by launch, and meet when nothing else runs there: a kernel that waits for its predecessor would have the place of one that its predecessor
/// waits for.
pub fn run(ranks: &[Loaded], bucket: usize, counts: Counts, choosing: Choosing) -> Result<(), String> {
    let stages = ranks.iter().map(|r| r.stages(r.bucket(bucket)?)).collect::<Result<Vec<_>, String>>()?;
    ranks.iter().for_each(|r| r.early.set(false));
    if choosing.places {
        ranks.iter().try_for_each(|r| r.place_tokens(r.bucket(bucket)?, counts))?;
    }
    (0..stages.first().map_or(0, Vec::len)).try_for_each(|number| graph_of_all(ranks, &stages, number, counts))?;
    if choosing.chooses {
        ranks.iter().try_for_each(|r| r.choose(r.bucket(bucket)?, counts, choosing))?;
    }
    Ok(())
}

/// The same for one graph, by its place among the stages.
pub fn graph_of_all(ranks: &[Loaded], stages: &[Vec<Stage<'_>>], number: usize, counts: Counts) -> Result<(), String> {
    if ranks.iter().any(|r| r.crowd > 1) {
        return together(ranks, stages, number, counts);
    }
    for (rank, stages) in ranks.iter().zip(stages) {
        let Some(stage) = stages.get(number) else { continue };
        for launch in &stage.program.launches {
            rank.launch(stage, launch, counts)?;
        }
    }
    Ok(())
}

/// A graph of ranks of one device.
fn together(ranks: &[Loaded], stages: &[Vec<Stage<'_>>], number: usize, counts: Counts) -> Result<(), String> {
    let own = |stages: &'_ Vec<Stage<'_>>| stages.get(number).map(|s| s.program.launches.len());
    for at in 0..stages.first().and_then(own).unwrap_or(0) {
        for (place, (rank, stages)) in ranks.iter().zip(stages).enumerate() {
            let Some(stage) = stages.get(number) else { continue };
            let Some(launch) = stage.program.launches.get(at) else { continue };
            let Launch::Region { region, .. } = launch else {
                rank.launch(stage, launch, counts)?;
                continue;
            };
            if place == 0 && rank.region(stage, *region)?.starts.iter().any(meets) {
                ranks.iter().try_for_each(|r| r.device.wait())?;
            }
            rank.launch(stage, launch, counts)?;
        }
    }
    Ok(())
}

/// Where a value lies in the arena.
pub fn place(stage: &Stage<'_>, id: ValueId) -> Result<usize, String> {
    match stage.program.places.get(id.0 as usize) {
        Some(Place::Arena(buffer)) => Ok(buffer.offset_bytes as usize),
        Some(Place::Alias(of)) if *of != id => place(stage, *of),
        _ => {
            let shared = stage.graph.graph.input_name(id).and_then(|name| stage.bucket.shared.get(name));
            shared.map(|b| b.offset_bytes as usize).ok_or_else(|| format!("{id} has no place in the arena"))
        }
    }
}
