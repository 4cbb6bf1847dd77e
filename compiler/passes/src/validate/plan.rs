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
//! kernel level. Where a region writes over a value that it reads, it runs row by row along the axis of steps, reading
//! the arena anew for each: rows before the one that runs are new, the others old.

use interp::{Context, Data, Env, Fault, InterpError, Outputs, Tensor};
use ir::{
    Axis, BucketPlan, Buffer, Class, DType, Entry, Extent, Graph, GraphBuilder, Instance, KernelEntry, KernelGraph,
    KernelModule, Launch, LayerKinds, Module, Op, Place, Plan, Program, RowsPerSequence, TensorType, ValueId,
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
    let module = kernels.to_module();
    let mut run = Run { module, bucket, lengths, arenas: vec![arena; envs.len()], contexts, pieces: HashMap::new() };
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

fn broken(what: impl Into<String>) -> InterpError {
    Fault::Graph(what.into()).into()
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

/// A region as a graph of its own: what it reads are inputs, what leaves it are outputs, both called by their numbers.
struct Piece {
    graph: Graph,
    /// Values of the arena that it reads.
    reads: Vec<ValueId>,
    /// Values that leave it.
    makes: Vec<ValueId>,
    stores: bool,
}

struct Run<'r, 'c> {
    module: Module,
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
        let reads = piece.reads.iter().map(|v| Ok((*v, place(graph, program, *v)?)));
        let reads = reads.collect::<Result<Vec<_>, InterpError>>()?;
        let makes = piece.makes.iter().map(|v| Ok((*v, place(graph, program, *v)?)));
        let makes = makes.collect::<Result<Vec<_>, InterpError>>()?;
        let over = |b: &Buffer| reads.iter().any(|(_, r)| r.offset_bytes == b.offset_bytes);
        let written_over = makes.iter().any(|(_, b)| over(b));
        for (_, buffer) in makes.iter().filter(|(_, b)| !over(b)) {
            self.poison(buffer);
        }
        let most = self.lengths.iter().filter_map(|l| l.get(ir::TOKEN_ROWS)).max().copied();
        let steps = if written_over && !piece.stores { most } else { None };
        match steps {
            None => {
                let left = self.evaluate(graph, piece, &reads, layer)?;
                makes.iter().filter(|(_, b)| over(b)).for_each(|(_, b)| self.poison(b));
                for (rank, env) in left.iter().enumerate() {
                    for (id, buffer) in &makes {
                        self.write(rank, buffer, made(env, *id)?)?;
                    }
                }
            }
            Some(rows) => {
                for row in 0..rows {
                    let left = self.evaluate(graph, piece, &reads, layer)?;
                    for (rank, env) in left.iter().enumerate() {
                        for (id, buffer) in &makes {
                            self.write_row(rank, buffer, made(env, *id)?, row)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs a region on what the arenas hold.
    fn evaluate(
        &mut self,
        graph: &KernelGraph,
        piece: &Piece,
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
        // The region runs as a layer, so that instance numbers and weights are those of this one.
        let alone = |graph: Graph| Entry {
            name: String::new(),
            first: if layer.is_none() { graph.clone() } else { Graph::default() },
            classes: vec![Class { name: String::new(), kinds: LayerKinds::new(), graph }],
            instances: layer.map(|layer| Instance { layer, class: 0 }).into_iter().collect(),
            last: Graph::default(),
        };
        let entry = alone(piece.graph.clone());
        match (&self.module.sharding, &mut *self.contexts, &mut envs[..]) {
            (None, [context], [env]) => drop(interp::run_entry(&entry, &self.module.facts, env, context)?),
            _ => drop(interp::run_ranks(&entry, &self.module, &mut envs, self.contexts)?),
        }
        Ok(envs)
    }

    fn axes(&self, rank: usize, ty: &TensorType) -> Result<Vec<(String, usize)>, InterpError> {
        let length = |axis: &Axis| match axis.extent {
            Extent::Fixed(n) => Ok(n as usize),
            Extent::Rows => self
                .lengths
                .get(rank)
                .and_then(|l| l.get(&axis.name))
                .copied()
                .ok_or_else(|| broken(format!("no rows `{}`", axis.name))),
        };
        ty.axes.iter().map(|axis| Ok((axis.name.clone(), length(axis)?))).collect()
    }

    fn bytes_of(&self, rank: usize, graph: &KernelGraph, id: ValueId) -> Result<usize, InterpError> {
        let ty = graph.graph.tensor(id).ok_or_else(|| broken(format!("{id} is no tensor")))?;
        Ok(self.axes(rank, ty)?.iter().map(|a| a.1).product::<usize>() * ty.dtype.bytes())
    }

    fn read(&self, rank: usize, buffer: &Buffer, ty: &TensorType) -> Result<Tensor, InterpError> {
        let axes = self.axes(rank, ty)?;
        let count: usize = axes.iter().map(|a| a.1).product();
        let start = buffer.offset_bytes as usize;
        let arena = self.arenas.get(rank).ok_or_else(|| broken(format!("there is no rank {rank}")))?;
        let bytes = arena.get(start..start + count * ty.dtype.bytes());
        let bytes = bytes.ok_or_else(|| broken(format!("{count} numbers at {start} end behind the arena")))?;
        Tensor::new(axes, ty.dtype, decode(bytes, ty.dtype))
    }

    fn write(&mut self, rank: usize, buffer: &Buffer, tensor: &Tensor) -> Result<(), InterpError> {
        let bytes = encode(tensor);
        self.put(rank, buffer, 0, &bytes)
    }

    /// Writes one row, if the rank has so many; a value without the axis of steps is written with the first.
    fn write_row(&mut self, rank: usize, buffer: &Buffer, tensor: &Tensor, row: usize) -> Result<(), InterpError> {
        let bytes = encode(tensor);
        let rows = tensor.length(ir::TOKEN_ROWS).unwrap_or(1);
        if tensor.axes().first().is_none_or(|(name, _)| name != ir::TOKEN_ROWS) {
            return if row == 0 { self.put(rank, buffer, 0, &bytes) } else { Ok(()) };
        }
        if row >= rows {
            return Ok(());
        }
        let width = bytes.len() / rows.max(1);
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

fn made(env: &Env, id: ValueId) -> Result<&Tensor, InterpError> {
    env.get(&id.to_string()).map(|t| &**t).ok_or_else(|| broken(format!("{id} was not made")))
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

/// Cuts a region out of its graph.
fn piece(graph: &KernelGraph, region: usize) -> Result<Piece, InterpError> {
    let region = graph.regions.get(region).ok_or_else(|| broken(format!("there is no region {region}")))?;
    let leaving = graph.leaving();
    let mut cut = Cut {
        graph: &graph.graph,
        inside: &region.values,
        builder: GraphBuilder::new(),
        copies: HashMap::new(),
        reads: Vec::new(),
    };
    // What is given stands first, so that a rank knows how many rows are its own before it exchanges any.
    for id in &region.values {
        if let Op::ReduceScatter { into, .. } = &graph.graph.node(*id).op {
            let own =
                graph.graph.inputs.iter().find(|v| graph.graph.tensor(**v).is_some_and(|t| t.axis(into).is_some()));
            if let Some(own) = own {
                cut.add(*own);
            }
        }
        for operand in graph.graph.operands(*id).into_iter().filter(|v| !region.values.contains(v)) {
            cut.add(operand);
        }
    }
    for id in &region.values {
        cut.add(*id);
    }
    let makes: Vec<ValueId> = region.values.iter().copied().filter(|v| leaving[v.0 as usize]).collect();
    for id in &makes {
        if let Some(copy) = cut.copies.get(id) {
            cut.builder.output(&id.to_string(), *copy);
        }
    }
    let stores = region.values.iter().any(|v| matches!(graph.graph.node(*v).op, Op::Store { .. }));
    Ok(Piece { graph: cut.builder.finish(), reads: cut.reads, makes, stores })
}

struct Cut<'a> {
    graph: &'a Graph,
    inside: &'a [ValueId],
    builder: GraphBuilder,
    copies: HashMap<ValueId, ValueId>,
    reads: Vec<ValueId>,
}

impl Cut<'_> {
    /// The copy of a value: computed if it is inside or another view, given if it is not.
    fn add(&mut self, id: ValueId) -> ValueId {
        if let Some(copy) = self.copies.get(&id) {
            return *copy;
        }
        let node = self.graph.node(id);
        let leaf = node.op.is_leaf() && self.graph.input_name(id).is_none();
        let copy = if self.inside.contains(&id) || leaf || node.op.is_view() {
            let operands: Vec<ValueId> = self.graph.operands(id).into_iter().map(|v| self.add(v)).collect();
            self.builder.add(node.op.clone(), &operands, node.ty.clone(), None)
        } else {
            if node.ty.tensor().is_some() {
                self.reads.push(id);
            }
            self.builder.input(&id.to_string(), node.ty.clone())
        };
        self.copies.insert(id, copy);
        copy
    }
}

fn decode(bytes: &[u8], dtype: DType) -> Data {
    let words = |i: &[u8]| [i[0], i[1], i[2], i[3]];
    match dtype {
        DType::F32 => Data::F32(bytes.chunks_exact(4).map(|b| f32::from_le_bytes(words(b))).collect()),
        DType::Bf16 => {
            let wide = |b: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
            Data::F32(bytes.chunks_exact(2).map(wide).collect())
        }
        DType::I32 => Data::I32(bytes.chunks_exact(4).map(|b| i32::from_le_bytes(words(b))).collect()),
        DType::Bool => Data::Bool(bytes.iter().map(|b| *b != 0).collect()),
    }
}

fn encode(tensor: &Tensor) -> Vec<u8> {
    match (tensor.data(), tensor.dtype()) {
        // A bf16 tensor holds numbers that the upper half of their bits is all of.
        (Data::F32(v), DType::Bf16) => v.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect(),
        (Data::F32(v), _) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        (Data::I32(v), _) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        (Data::Bool(v), _) => v.iter().map(|b| u8::from(*b)).collect(),
    }
}
