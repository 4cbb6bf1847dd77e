//! A plan, interpreted: launches in order on an arena of real bytes.
//!
//! ```text
//! arena      ░░░░░░░░░░░░░░  poison before the step
//! launch     what it will write is poisoned, what it reads is read, the region runs, results are written
//!            what nobody reads any more is poisoned
//! result     read from its place at the end
//! ```
//!
//! A value that is overwritten too early, read before it is made, or placed where it does not fit leaves other bits than the
//! kernel level. Where a region writes over a value that it reads, it runs row by row along that value's outermost axis,
//! reading the arena anew for each: rows before the one that runs are new, the others old. What it stores of a row is what it
//! computes in the row's turn; the stores themselves run once, at the end.

use super::regions::{self, Piece, Site, broken, made, piece};
use interp::{Context, Data, Env, InterpError, Outputs, Tensor};
use ir::{
    Axis, BucketPlan, Buffer, DType, Extent, Graph, KernelEntry, KernelGraph, KernelModule, Launch, Module, Place,
    Plan, Program, RowsPerSequence, TensorType, ValueId,
};
use std::collections::{BTreeMap, HashMap};

/// Poison: a NaN in either float format, and no index of anything.
const POISON: u8 = 0xff;

/// Runs one step of an entry on every rank; gives each rank's results. `rows` says sequence and position of every row.
pub(super) fn step(
    (kernels, plan): (&KernelModule, &Plan),
    entry: &str,
    rows: &[(usize, i32)],
    envs: &[Env],
    contexts: &mut [Context<'_>],
) -> Result<Vec<Outputs>, InterpError> {
    let found = kernels.entries.iter().zip(&plan.entries).find(|(e, _)| e.name == entry);
    let (kernel_entry, planned) = found.ok_or_else(|| broken(format!("the entry `{entry}` is gone")))?;
    let lengths = lengths(kernels, kernel_entry, envs)?;
    let bucket = planned.buckets.iter().find(|b| holds(b, rows, &lengths));
    let bucket = bucket.ok_or_else(|| broken(format!("no bucket holds a step of {} rows", rows.len())))?;
    let arena = vec![POISON; usize::try_from(bucket.arena_bytes).map_err(|_| broken("the arena is too large"))?];
    let around = regions::surroundings(kernels);
    let mut run = Run { around, bucket, lengths, arenas: vec![arena; envs.len()], contexts, pieces: HashMap::new() };
    for (rank, env) in envs.iter().enumerate() {
        for id in &kernel_entry.first().graph.inputs {
            let name = kernel_entry.first().graph.input_name(*id).unwrap_or_default();
            let tensor = env.get(name).ok_or_else(|| broken(format!("input `{name}` is not given")))?;
            run.write(rank, &run.shared(name)?, tensor)?;
        }
    }
    run.program(kernel_entry, 0, None)?;
    for instance in &kernel_entry.instances {
        run.program(kernel_entry, KernelEntry::class_graph(instance.class), Some(instance.layer))?;
    }
    run.program(kernel_entry, kernel_entry.graphs.len() - 1, None)?;
    (0..envs.len()).map(|rank| run.results(kernel_entry, rank)).collect()
}

/// Lengths of row axes on every rank, as its inputs have them; where ranks join their rows, the sum over the group.
fn lengths(kernels: &KernelModule, entry: &KernelEntry, envs: &[Env]) -> Result<Vec<Lengths>, InterpError> {
    let graph = &entry.first().graph;
    let mut all: Vec<Lengths> = vec![Lengths::new(); envs.len()];
    for (lengths, env) in all.iter_mut().zip(envs) {
        for id in &graph.inputs {
            let (Some(name), Some(ty)) = (graph.input_name(*id), graph.tensor(*id)) else { continue };
            for axis in ty.row_axes() {
                let length = env.get(name).and_then(|tensor| tensor.length(axis));
                let length = length.ok_or_else(|| broken(format!("`{name}` has no axis `{axis}`")))?;
                lengths.insert(axis.to_owned(), length);
            }
        }
    }
    let own = all.clone();
    for sharding in kernels.sharding.iter() {
        for (axis, over) in &sharding.rows {
            for (rank, lengths) in all.iter_mut().enumerate() {
                let group = sharding.mesh.group(rank as u64, over);
                let rows = group.iter().filter_map(|r| own.get(usize::try_from(*r).ok()?)?.get(axis));
                lengths.insert(format!("{axis}{}", ir::ALL_ROWS), rows.sum());
            }
        }
    }
    Ok(all)
}

/// Lengths of row axes by name.
type Lengths = BTreeMap<String, usize>;

/// Whether a step runs in a bucket.
fn holds(plan: &BucketPlan, rows: &[(usize, i32)], lengths: &[Lengths]) -> bool {
    let mut sequences: Vec<usize> = rows.iter().map(|(sequence, _)| *sequence).collect();
    sequences.sort_unstable();
    sequences.dedup();
    let per_sequence = |n: u64| {
        let count = |s: &usize| rows.iter().filter(|(sequence, _)| sequence == s).count() as u64;
        sequences.iter().all(|s| count(s) == n)
    };
    let shape = match plan.bucket.rows {
        RowsPerSequence::One => per_sequence(1),
        RowsPerSequence::Block(n) => per_sequence(n),
        RowsPerSequence::Ragged => true,
    };
    let fits = |(axis, n): (&String, &usize)| plan.bucket.most_rows(axis).is_some_and(|most| *n as u64 <= most);
    shape && sequences.len() as u64 <= plan.bucket.sequences && lengths.iter().flatten().all(fits)
}

struct Run<'r, 'c> {
    /// Facts and mesh.
    around: Module,
    bucket: &'r BucketPlan,
    lengths: Vec<Lengths>,
    arenas: Vec<Vec<u8>>,
    contexts: &'r mut [Context<'c>],
    /// By graph and region.
    pieces: HashMap<(usize, usize), std::sync::Arc<Piece>>,
}

impl Run<'_, '_> {
    fn shared(&self, name: &str) -> Result<Buffer, InterpError> {
        self.bucket.shared.get(name).copied().ok_or_else(|| broken(format!("`{name}` has no shared place")))
    }

    fn program(&mut self, entry: &KernelEntry, index: usize, layer: Option<usize>) -> Result<(), InterpError> {
        let bucket = self.bucket;
        let (Some(graph), Some(program)) = (entry.graphs.get(index), bucket.programs.get(index)) else {
            return Err(broken(format!("there is no program {index}")));
        };
        let last_read = last_reads(graph, program);
        for (number, launch) in program.launches.iter().enumerate() {
            match launch {
                Launch::Region { region, .. } => {
                    let piece = match self.pieces.get(&(index, *region)) {
                        Some(piece) => piece.clone(),
                        None => std::sync::Arc::new(piece(graph, *region)?),
                    };
                    self.pieces.insert((index, *region), piece.clone());
                    self.region(graph, program, &piece, layer)?;
                }
                Launch::Move { from, to } => {
                    let (source, target) = (place(graph, program, *from)?, self.shared(to)?);
                    let start = source.offset_bytes as usize;
                    for rank in 0..self.arenas.len() {
                        let bytes = self.bytes_of(rank, graph, *from)?;
                        self.arenas[rank].copy_within(start..start + bytes, target.offset_bytes as usize);
                    }
                }
            }
            self.free(program, &last_read, number);
        }
        Ok(())
    }

    /// Poisons the places of values that no later launch reads.
    fn free(&mut self, program: &Program, last_read: &BTreeMap<ValueId, usize>, number: usize) {
        let buffer = |id: &ValueId| match program.places.get(id.0 as usize) {
            Some(Place::Arena(buffer)) if !self.bucket.shared.values().any(|b| b == buffer) => Some(*buffer),
            _ => None,
        };
        let dead: Vec<Buffer> =
            last_read.iter().filter(|(_, read)| **read == number).filter_map(|(id, _)| buffer(id)).collect();
        let alive: Vec<Buffer> =
            last_read.iter().filter(|(_, read)| **read > number).filter_map(|(id, _)| buffer(id)).collect();
        for dead in dead {
            // What was written over is not free: its place is another value's now.
            if !alive.iter().any(|b| b.offset_bytes == dead.offset_bytes) {
                self.poison(&dead);
            }
        }
    }

    fn poison(&mut self, buffer: &Buffer) {
        let range = buffer.offset_bytes as usize..(buffer.offset_bytes + buffer.bytes) as usize;
        for arena in &mut self.arenas {
            if let Some(bytes) = arena.get_mut(range.clone()) {
                bytes.fill(POISON);
            }
        }
    }

    fn region(
        &mut self,
        graph: &KernelGraph,
        program: &Program,
        piece: &Piece,
        layer: Option<usize>,
    ) -> Result<(), InterpError> {
        let placed = |ids: &[ValueId]| -> Result<Vec<(ValueId, Buffer)>, InterpError> {
            ids.iter().map(|v| Ok((*v, place(graph, program, *v)?))).collect()
        };
        let (reads, makes) = (placed(&piece.reads)?, placed(&piece.makes)?);
        let over = |b: &Buffer| reads.iter().any(|(_, r)| r.offset_bytes == b.offset_bytes);
        for (_, buffer) in makes.iter().filter(|(_, b)| !over(b)) {
            self.poison(buffer);
        }
        let outer = |id: &ValueId| graph.graph.tensor(*id).and_then(|ty| ty.axes.first());
        let mut stepped: Vec<&Axis> = makes.iter().filter(|(_, b)| over(b)).filter_map(|(v, _)| outer(v)).collect();
        stepped.dedup();
        let without_stores = piece.stores.as_ref().map(|s| &s.before);
        let row_wise = if piece.stores_are_read { None } else { Some(without_stores.unwrap_or(&piece.graph)) };
        let Some(by_row) = row_wise.filter(|_| !stepped.is_empty()) else {
            let left = self.evaluate(graph, &piece.graph, &reads, layer)?;
            makes.iter().filter(|(_, b)| over(b)).for_each(|(_, b)| self.poison(b));
            for (rank, env) in left.iter().enumerate() {
                for (id, buffer) in &makes {
                    self.write(rank, buffer, made(env, *id)?)?;
                }
            }
            return Ok(());
        };
        let mut steps = 0;
        for rank in 0..self.arenas.len() {
            for axis in &stepped {
                steps = steps.max(self.length(rank, axis)?);
            }
        }
        // What is stored of each row is what stands in the step of the row.
        let mut stored: Vec<Env> = vec![Env::new(); self.arenas.len()];
        for row in 0..steps {
            let left = self.evaluate(graph, by_row, &reads, layer)?;
            for (rank, env) in left.iter().enumerate() {
                for (id, buffer) in &makes {
                    let in_step = outer(id).is_some_and(|axis| stepped.contains(&axis));
                    self.write_row(rank, buffer, made(env, *id)?, row, in_step)?;
                }
                for id in piece.stores.iter().flat_map(|s| &s.reads) {
                    let in_step = outer(id).is_some_and(|axis| stepped.contains(&axis));
                    keep_row(&mut stored[rank], *id, made(env, *id)?, row, in_step)?;
                }
            }
        }
        match &piece.stores {
            Some(stores) if steps > 0 => {
                let site = Site { layer, around: &self.around };
                site.run(&stores.alone, &mut stored, self.contexts)
            }
            _ => Ok(()),
        }
    }

    /// Runs a region on what the arenas hold.
    fn evaluate(
        &mut self,
        graph: &KernelGraph,
        region: &Graph,
        reads: &[(ValueId, Buffer)],
        layer: Option<usize>,
    ) -> Result<Vec<Env>, InterpError> {
        let mut envs = Vec::with_capacity(self.arenas.len());
        for rank in 0..self.arenas.len() {
            let mut env = Env::new();
            for (id, buffer) in reads {
                let ty = graph.graph.tensor(*id).ok_or_else(|| broken(format!("{id} is no tensor")))?;
                env.insert(id.to_string(), self.read(rank, buffer, ty)?);
            }
            envs.push(env);
        }
        Site { layer, around: &self.around }.run(region, &mut envs, self.contexts)?;
        Ok(envs)
    }

    fn length(&self, rank: usize, axis: &Axis) -> Result<usize, InterpError> {
        let rows = || self.lengths.get(rank).and_then(|l| l.get(&axis.name)).copied();
        match axis.extent {
            Extent::Fixed(n) => Ok(n as usize),
            Extent::Rows => rows().ok_or_else(|| broken(format!("no rows `{}`", axis.name))),
        }
    }

    fn axes(&self, rank: usize, ty: &TensorType) -> Result<Vec<(String, usize)>, InterpError> {
        ty.axes.iter().map(|axis| Ok((axis.name.clone(), self.length(rank, axis)?))).collect()
    }

    fn bytes_of(&self, rank: usize, graph: &KernelGraph, id: ValueId) -> Result<usize, InterpError> {
        let ty = graph.graph.tensor(id).ok_or_else(|| broken(format!("{id} is no tensor")))?;
        let count: usize = self.axes(rank, ty)?.iter().map(|a| a.1).product();
        Ok(ty.dtype.bytes_for(count as u64) as usize)
    }

    fn read(&self, rank: usize, buffer: &Buffer, ty: &TensorType) -> Result<Tensor, InterpError> {
        let axes = self.axes(rank, ty)?;
        let count: usize = axes.iter().map(|a| a.1).product();
        let start = buffer.offset_bytes as usize;
        let arena = self.arenas.get(rank).ok_or_else(|| broken(format!("there is no rank {rank}")))?;
        let bytes = arena.get(start..start + ty.dtype.bytes_for(count as u64) as usize);
        let bytes = bytes.ok_or_else(|| broken(format!("{count} numbers at {start} end behind the arena")))?;
        Tensor::new(axes, ty.dtype, decode(bytes, ty.dtype))
    }

    fn write(&mut self, rank: usize, buffer: &Buffer, tensor: &Tensor) -> Result<(), InterpError> {
        let bytes = encode(tensor);
        self.put(rank, buffer, 0, &bytes)
    }

    /// Writes one row along the outermost axis, if the rank has so many; a value that is not `in_step` is written whole
    /// with the first.
    fn write_row(
        &mut self,
        rank: usize,
        buffer: &Buffer,
        tensor: &Tensor,
        row: usize,
        in_step: bool,
    ) -> Result<(), InterpError> {
        if !in_step {
            return if row == 0 { self.write(rank, buffer, tensor) } else { Ok(()) };
        }
        let rows = tensor.axes().first().map_or(0, |axis| axis.1);
        if row >= rows {
            return Ok(());
        }
        let bytes = encode(tensor);
        let width = bytes.len() / rows;
        self.put(rank, buffer, row * width, bytes.get(row * width..(row + 1) * width).unwrap_or_default())
    }

    fn put(&mut self, rank: usize, buffer: &Buffer, at: usize, bytes: &[u8]) -> Result<(), InterpError> {
        if (at + bytes.len()) as u64 > buffer.bytes {
            return Err(broken(format!("{} bytes are written to a place of {}", at + bytes.len(), buffer.bytes)));
        }
        let start = buffer.offset_bytes as usize + at;
        let arena = self.arenas.get_mut(rank).and_then(|arena| arena.get_mut(start..start + bytes.len()));
        arena.ok_or_else(|| broken(format!("a place at {start} ends behind the arena")))?.copy_from_slice(bytes);
        Ok(())
    }

    fn results(&self, entry: &KernelEntry, rank: usize) -> Result<Outputs, InterpError> {
        let graph = &entry.last().graph;
        let outputs = graph.outputs.iter().map(|(name, id)| {
            let ty = graph.tensor(*id).ok_or_else(|| broken(format!("result `{name}` is no tensor")))?;
            Ok((name.clone(), std::sync::Arc::new(self.read(rank, &self.shared(name)?, ty)?)))
        });
        outputs.collect()
    }
}

/// Takes one row of a value along its outermost axis over into what is kept of it; all of one that is not `in_step`, with
/// the first.
fn keep_row(kept: &mut Env, id: ValueId, value: &Tensor, row: usize, in_step: bool) -> Result<(), InterpError> {
    let name = id.to_string();
    let known = match kept.get(&name) {
        Some(known) if in_step => known,
        Some(_) => return Ok(()),
        None => {
            kept.insert(name, value.clone());
            return Ok(());
        }
    };
    let rows = value.axes().first().map_or(0, |axis| axis.1);
    if row >= rows {
        return Ok(());
    }
    let width = value.len() / rows;
    let range = row * width..(row + 1) * width;
    fn with_row<T: Copy>(known: &[T], new: &[T], range: std::ops::Range<usize>) -> Vec<T> {
        let taken = |(i, (old, new)): (usize, (&T, &T))| if range.contains(&i) { *new } else { *old };
        known.iter().zip(new).enumerate().map(taken).collect()
    }
    let data = match (known.data(), value.data()) {
        (Data::F32(a), Data::F32(b)) => Data::F32(with_row(a, b, range)),
        (Data::I32(a), Data::I32(b)) => Data::I32(with_row(a, b, range)),
        (Data::Bool(a), Data::Bool(b)) => Data::Bool(with_row(a, b, range)),
        _ => return Err(broken(format!("{id} changes its dtype"))),
    };
    kept.insert(name, Tensor::new(value.axes().to_vec(), value.dtype(), data)?);
    Ok(())
}

/// Where a value lies, itself or as a view of another.
fn place(graph: &KernelGraph, program: &Program, id: ValueId) -> Result<Buffer, InterpError> {
    match program.places.get(id.0 as usize) {
        Some(Place::Arena(buffer)) => Ok(*buffer),
        Some(Place::Alias(of)) if *of != id && graph.graph.node(id).op.is_view() => place(graph, program, *of),
        _ => Err(broken(format!("{id} of `{}` is asked for and has no place", graph.name))),
    }
}

/// For every value that has a place of its own, the last launch that reads it or a view of it, or else makes it.
fn last_reads(graph: &KernelGraph, program: &Program) -> BTreeMap<ValueId, usize> {
    let mut last = BTreeMap::new();
    let own = |mut id: ValueId| {
        while graph.graph.node(id).op.is_view() {
            match graph.graph.operands(id).first() {
                Some(of) => id = *of,
                None => break,
            }
        }
        id
    };
    for (number, launch) in program.launches.iter().enumerate() {
        match launch {
            Launch::Region { region, .. } => {
                for id in graph.regions.get(*region).map_or(&[][..], |r| &r.values) {
                    last.entry(*id).or_insert(number);
                    let viewed = graph.graph.node(*id).op.is_view();
                    for operand in graph.graph.operands(*id).into_iter().filter(|_| !viewed) {
                        last.insert(own(operand), number);
                    }
                }
            }
            Launch::Move { from, .. } => drop(last.insert(own(*from), number)),
        }
    }
    last
}

fn decode(bytes: &[u8], dtype: DType) -> Data {
    let words = |i: &[u8]| [i[0], i[1], i[2], i[3]];
    match dtype {
        DType::F32 => Data::F32(bytes.chunks_exact(4).map(|b| f32::from_le_bytes(words(b))).collect()),
        DType::Bf16 => {
            let wide = |b: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
            Data::F32(bytes.chunks_exact(2).map(wide).collect())
        }
        DType::E4m3 => Data::F32(bytes.iter().map(|b| numerics::e4m3_value(*b)).collect()),
        DType::E5m2 => Data::F32(bytes.iter().map(|b| numerics::e5m2_value(*b)).collect()),
        DType::Nvfp4 => {
            let block =
                |b: &[u8; 9]| numerics::Block { scale: b[8], codes: [b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]] };
            Data::F32(bytes.as_chunks::<9>().0.iter().flat_map(|b| block(b).values()).collect())
        }
        DType::I32 => Data::I32(bytes.chunks_exact(4).map(|b| i32::from_le_bytes(words(b))).collect()),
        DType::Bool => Data::Bool(bytes.iter().map(|b| *b != 0).collect()),
    }
}

fn encode(tensor: &Tensor) -> Vec<u8> {
    match (tensor.data(), tensor.dtype()) {
        // A bf16 tensor holds numbers that the upper half of their bits is all of.
        (Data::F32(v), DType::Bf16) => v.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect(),
        (Data::F32(v), DType::E4m3) => v.iter().map(|x| numerics::e4m3_code(*x)).collect(),
        (Data::F32(v), DType::E5m2) => v.iter().map(|x| numerics::e5m2_code(*x)).collect(),
        // Which scale a block was made with cannot be seen; one that gives the same elements exists.
        (Data::F32(v), DType::Nvfp4) => {
            let blocks =
                v.as_chunks().0.iter().map(|x| numerics::Block::exactly(x).unwrap_or(numerics::Block::of(x, 1.0)));
            blocks.flat_map(|b| b.codes.into_iter().chain([b.scale])).collect()
        }
        (Data::F32(v), _) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        (Data::I32(v), _) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        (Data::Bool(v), _) => v.iter().map(|b| u8::from(*b)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Compile, plan_memory, select_kernels};
    use interp::{Cache, MemoryCache, NoHooks, NoWeights};
    use targets::Target;

    /// The kernel level of a text, each operation a region but for the last of one graph, which are one, and its plan.
    fn kernels(text: &str, graph: usize, joined: usize) -> (KernelModule, Plan) {
        let module = ir::parse_module(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let target = Target::load("cpu").expect("a target");
        let compile = Compile::one_device(&target);
        let mut kernels = select_kernels::run(&module, &compile).expect("kernels");
        let mut plan = plan_memory::run(&kernels, &compile).expect("a plan");
        let regions = &mut kernels.entries[0].graphs[graph].regions;
        let last = regions.split_off(regions.len() - joined);
        let values: Vec<ValueId> = last.iter().flat_map(|r| r.values.clone()).collect();
        let kernel = last[0].kind;
        for bucket in &mut plan.entries[0].buckets {
            let launches = &mut bucket.programs[graph].launches;
            launches.retain(|l| !matches!(l, Launch::Region { region, .. } if *region >= regions.len()));
            let (region, variant) = (regions.len(), ir::Variant::Only);
            launches.push(Launch::Region { region, kernel, variant, reads: Vec::new(), dependent: false });
        }
        regions.push(ir::Region { values, ..last[0].clone() });
        (kernels, plan)
    }

    fn floats(name: &str, axes: &[(&str, usize)]) -> (String, Tensor) {
        let n: usize = axes.iter().map(|a| a.1).product();
        (name.to_owned(), Tensor::f32(axes, (0..n).map(|i| 1.0 + i as f32).collect()).expect("numbers"))
    }

    /// Results and cached keys of a step of three rows.
    fn run(kernels: &KernelModule, plan: &Plan, env: &Env) -> (Outputs, Vec<Vec<f32>>) {
        let mut cache = MemoryCache::default();
        cache.begin_step(vec![0; 3]);
        let mut hooks = NoHooks;
        let context = Context { layer: None, weights: &NoWeights, cache: &mut cache, hooks: &mut hooks };
        let rows = [(0, 0), (0, 1), (0, 2)];
        let left = step((kernels, plan), "e", &rows, std::slice::from_ref(env), &mut [context]).expect("a step");
        cache.begin_step(vec![0]);
        let keys = match kernels.facts.kv.is_empty() {
            true => Vec::new(),
            false => {
                let cached = cache.rows("near", 0, 0, 0, i32::MAX).expect("a cache");
                cached.into_iter().map(|row| row.k.into_owned()).collect()
            }
        };
        (left.into_iter().next().expect("a rank"), keys)
    }

    /// The plan with a value of a program where another is.
    fn moved(plan: &Plan, program: usize, value: ValueId, onto: ValueId) -> Plan {
        let mut plan = plan.clone();
        for bucket in &mut plan.entries[0].buckets {
            let program = &mut bucket.programs[program];
            program.places[value.0 as usize] = program.places[onto.0 as usize];
        }
        plan
    }

    #[test]
    fn rows_of_any_axis_are_written_one_after_the_other() {
        // A region picks rows of %y and writes them over %y: right where each row picks itself only.
        let text = "module m act f32 dim n = 2 entry e { graph first (%x, %rows) -> () { axes T = rows, R = rows
            %x: f32[T, n] = input x
            %rows: i32<T>[R] = input rows }
            graph last (%x, %rows) -> (z = %z) { axes T = rows, R = rows
            %x: f32[T, n] = input x
            %rows: i32<T>[R] = input rows
            %y: f32[T, n] = neg (%x)
            %g: f32[R, n] = gather over T (%y, %rows)
            %v: f32[R, n] = neg (%g)
            %z: f32[R, n] = neg (%v) } }";
        let (kernels, plan) = kernels(text, 1, 1);
        let id = |name: &str| kernels.entries[0].last().graph.find(name).expect("a value");
        let env = |ids: Vec<i32>| -> Env {
            let rows = ("rows".to_owned(), Tensor::i32(&[("R", 3)], ids).expect("ids"));
            [floats("x", &[("T", 3), ("n", 2)]), rows].into_iter().collect()
        };
        let over = moved(&plan, 1, id("g"), id("y"));
        for (ids, shows) in [(vec![0, 1, 2], false), (vec![2, 0, 1], true)] {
            let env = env(ids.clone());
            let same = run(&kernels, &plan, &env).0 == run(&kernels, &over, &env).0;
            assert_eq!(same, !shows, "{ids:?}");
        }
    }

    #[test]
    fn what_is_stored_of_a_row_is_computed_in_its_turn() {
        // The key of a row, and from it the row's new value, in the place of the old one.
        let text = |key: &str| {
            format!(
                "module m act f32 dim n = 2 dim heads = 1 layers 0: attn = near
                kv near: k [heads, n] v [heads, n] layers [0]
                entry e {{ graph first (%x, %pos) -> () {{ axes T = rows
                %x: f32[T, heads, n] = input x
                %pos: i32[T] = input pos }}
                class near {{attn = near}} (%x, %pos) -> (x = %b) {{ axes T = rows
                %x: f32[T, heads, n] = input x
                %pos: i32[T] = input pos
                %f: f32[heads, n] = slice T from 0 len 1 (%x)
                %k: f32[T, heads, n] = {key}
                %c: cache = store kind near (%k, %k, %pos)
                %b: f32[T, heads, n] = neg (%k) }}
                instances 0: near
                graph last (%x) -> (z = %x) {{ axes T = rows %x: f32[T, heads, n] = input x }} }}"
            )
        };
        let positions = ("pos".to_owned(), Tensor::i32(&[("T", 3)], vec![0, 1, 2]).expect("positions"));
        let env: Env = [floats("x", &[("T", 3), ("heads", 1), ("n", 2)]), positions].into_iter().collect();
        // The numbers are 1 to 6. Of the second row on, the first row is the new one: -2, -4.
        let doubled = [[2.0, 4.0], [6.0, 8.0], [10.0, 12.0]];
        let (whole, in_turn) = ([[2.0, 4.0], [4.0, 6.0], [6.0, 8.0]], [[2.0, 4.0], [1.0, 0.0], [3.0, 2.0]]);
        for (key, own, shared) in [("add (%x, %x)", doubled, doubled), ("add (%x, %f)", whole, in_turn)] {
            let (kernels, plan) = kernels(&text(key), 1, 4);
            let graph = &kernels.entries[0].graphs[1].graph;
            let id = |name: &str| graph.find(name).expect("a value");
            // The new value in a place of its own, moved to the old one's when all is done; or right there.
            let placed = |there: bool| {
                let mut plan = moved(&plan, 1, id("b"), id("x"));
                for bucket in &mut plan.entries[0].buckets {
                    bucket.programs[1].launches.retain(|l| matches!(l, Launch::Region { .. }));
                    if !there {
                        let free = Buffer { offset_bytes: bucket.arena_bytes, ..bucket.shared["x"] };
                        bucket.arena_bytes += free.bytes;
                        bucket.programs[1].places[id("b").0 as usize] = Place::Arena(free);
                        bucket.programs[1].launches.push(Launch::Move { from: id("b"), to: "x".to_owned() });
                    }
                }
                plan
            };
            // Each row is stored once.
            assert_eq!(run(&kernels, &placed(false), &env).1, own, "{key}");
            assert_eq!(run(&kernels, &placed(true), &env).1, shared, "{key}");
        }
    }
}
