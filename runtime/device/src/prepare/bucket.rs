//! One bucket's plan, checked against the graphs: where every value lies and what is launched.

use super::graph::Prepared;
use super::segment::{Segment, Spill, join};
use super::{RESULT, TOKENS, WANTED, mismatch};
use crate::arena::Slot;
use crate::error::PrepareError;
use indexmap::IndexMap;
use ir::{BucketPlan, Buffer, DType, KernelEntry, Op, Place, Plan, SEQUENCE_ROWS, TOKEN_ROWS, ValueId, WANTED_ROWS};

/// Lengths of the row axes, in a step or at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowCounts {
    pub tokens: usize,
    pub wanted: usize,
    pub sequences: usize,
}

/// What a value has a row for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowsOf {
    /// Nothing: it is one row.
    Nothing,
    Tokens,
    Wanted,
    Sequences,
    /// Rows of the sequences' blocks but the first of each.
    Slots,
}

impl RowsOf {
    /// What a value of a graph has a row for. A step brings token rows, wanted rows and sequences and nothing else.
    pub fn value(graph: &str, kernels: &ir::Graph, id: ValueId) -> Result<RowsOf, PrepareError> {
        let mut rows = RowsOf::Nothing;
        for axis in kernels.tensor(id).into_iter().flat_map(|ty| ty.row_axes()) {
            rows = match axis {
                TOKEN_ROWS => RowsOf::Tokens,
                WANTED_ROWS => RowsOf::Wanted,
                SEQUENCE_ROWS => RowsOf::Sequences,
                other => {
                    let value = kernels.node(id).name.clone().unwrap_or_else(|| id.to_string());
                    return Err(PrepareError::RowAxis { graph: graph.to_owned(), value, axis: other.to_owned() });
                }
            };
        }
        Ok(rows)
    }
}

impl RowCounts {
    /// Rows of a value.
    pub fn of(&self, rows: RowsOf) -> usize {
        match rows {
            RowsOf::Nothing => 1,
            RowsOf::Tokens => self.tokens,
            RowsOf::Wanted => self.wanted,
            RowsOf::Sequences => self.sequences,
            RowsOf::Slots => self.tokens.saturating_sub(self.sequences),
        }
    }
}

/// A place in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub offset: usize,
    pub dtype: DType,
    /// Elements per row.
    pub row: usize,
    pub rows: RowsOf,
}

impl Spot {
    /// The place with as many rows as a step has.
    pub fn slot(&self, counts: RowCounts) -> Slot {
        Slot { offset: self.offset, dtype: self.dtype, len: counts.of(self.rows) * self.row }
    }
}

/// A launch.
#[derive(Clone, Debug)]
pub(crate) enum Launch {
    /// Values computed, in order: how a plan launches, before regions are joined.
    Region(Vec<ValueId>),
    /// Operations that run some rows at a time.
    Segment(Segment),
    /// A value copied to a shared place.
    Move { from: ValueId, to: Spot },
}

/// The launches of one graph.
#[derive(Debug)]
pub(crate) struct Program {
    /// By value id; `None` for what is not in the arena.
    pub spots: Vec<Option<Spot>>,
    pub launches: Vec<Launch>,
}

/// A bucket, ready.
#[derive(Debug)]
pub(crate) struct Bucket {
    pub shape: ir::Bucket,
    /// Places of values exchanged by name.
    pub shared: IndexMap<String, Buffer>,
    /// `first`, the classes, `last`.
    pub programs: Vec<Program>,
    /// Bytes of the arena, the plan's and what segments exchange beyond it.
    pub arena_bytes: usize,
}

impl Bucket {
    /// Checks a bucket's plan.
    pub fn new(
        planned: &BucketPlan,
        entry: &KernelEntry,
        graphs: &[Prepared],
        plan: &Plan,
        vocab: usize,
    ) -> Result<Bucket, PrepareError> {
        let most = RowCounts {
            tokens: number(planned.bucket.tokens)?,
            wanted: number(planned.bucket.wanted)?,
            sequences: number(planned.bucket.sequences)?,
        };
        if planned.programs.len() != graphs.len() {
            return Err(mismatch(
                format!("has {} programs in bucket {}", planned.programs.len(), planned.bucket),
                format!("have {} graphs", graphs.len()),
            ));
        }
        for graph in graphs {
            countable(graph, most)?;
        }
        let arena = number(plan.arena_bytes)?;
        let check = Check { planned, most, arena };
        let mut arena_bytes = arena;
        let programs = graphs.iter().enumerate().map(|(i, graph)| {
            let (program, end) = check.program(i, graph, &entry.graphs[i].graph)?;
            arena_bytes = arena_bytes.max(end);
            Ok(program)
        });
        let programs = programs.collect::<Result<Vec<_>, _>>()?;
        for (name, buffer) in &planned.shared {
            let value = match name.as_str() {
                TOKENS => Some((DType::I32, 1, RowsOf::Tokens)),
                WANTED => Some((DType::I32, 1, RowsOf::Wanted)),
                RESULT => Some((DType::F32, vocab, RowsOf::Wanted)),
                _ => given(name, graphs),
            };
            check.buffer(name, buffer, value)?;
        }
        Ok(Bucket { shape: planned.bucket.clone(), shared: planned.shared.clone(), programs, arena_bytes })
    }
}

/// What an entry takes or leaves under a name: format, elements of a row, rows.
fn given(name: &str, graphs: &[Prepared]) -> Option<(DType, usize, RowsOf)> {
    let input = graphs.first().and_then(|g| g.graph.inputs.iter().find(|id| g.graph.input_name(**id) == Some(name)));
    let input = input.and_then(|id| Some((graphs.first()?, *id)));
    let output = || {
        let last = graphs.last()?;
        Some((last, last.graph.outputs.iter().find(|(n, _)| n == name)?.1))
    };
    let (graph, id) = input.or_else(output)?;
    let value = graph.value(id);
    Some((value.dtype, value.shape.as_ref()?.row, value.rows))
}

/// Refuses values whose bytes nothing could address, wherever the plan keeps them: sizes are plain products from here on.
fn countable(graph: &Prepared, most: RowCounts) -> Result<(), PrepareError> {
    const MOST_BYTES: usize = 1 << 48;
    for (id, value) in graph.graph.ids().zip(&graph.values) {
        let Some(shape) = &value.shape else { continue };
        let elements = shape.row.checked_mul(most.of(value.rows));
        if elements.is_none_or(|n| value.dtype.bytes_for(n as u64) > MOST_BYTES as u64) {
            let rows = most.of(value.rows);
            let found = format!("has {rows} rows of {} elements as {}", shape.row, graph.title(id));
            return Err(mismatch(found, format!("are kept to {MOST_BYTES} bytes a value")));
        }
    }
    Ok(())
}

fn number(n: u64) -> Result<usize, PrepareError> {
    usize::try_from(n)
        .map_err(|_| mismatch(format!("asks for {n} bytes or rows"), "run on a machine that cannot address them"))
}

struct Check<'a> {
    planned: &'a BucketPlan,
    most: RowCounts,
    arena: usize,
}

impl Check<'_> {
    /// A buffer as a place for `value` (dtype, elements per row, rows).
    fn buffer(
        &self,
        title: &str,
        buffer: &Buffer,
        value: Option<(DType, usize, RowsOf)>,
    ) -> Result<Spot, PrepareError> {
        let end = buffer.offset_bytes.checked_add(buffer.bytes);
        if !buffer.offset_bytes.is_multiple_of(64) || end.is_none_or(|end| end > self.arena as u64) {
            return Err(mismatch(
                format!("puts `{title}` at {} + {} bytes", buffer.offset_bytes, buffer.bytes),
                format!("need multiples of 64 within the arena's {} bytes", self.arena),
            ));
        }
        let (dtype, row, rows_of) = value.unwrap_or((buffer.dtype, 0, RowsOf::Nothing));
        let rows = self.most.of(rows_of);
        let needed = row.checked_mul(rows).map(|n| dtype.bytes_for(n as u64));
        if buffer.dtype != dtype || needed.is_none_or(|n| n > buffer.bytes) {
            return Err(mismatch(
                format!("gives `{title}` {} bytes of {}", buffer.bytes, buffer.dtype),
                format!("have {rows} rows of {row} elements of {dtype}"),
            ));
        }
        Ok(Spot { offset: number(buffer.offset_bytes)?, dtype, row, rows: rows_of })
    }

    /// A graph's program, and where the memory that it uses ends.
    fn program(&self, index: usize, prepared: &Prepared, graph: &ir::Graph) -> Result<(Program, usize), PrepareError> {
        let program = &self.planned.programs[index];
        if program.graph != prepared.name || program.places.len() != prepared.values.len() {
            return Err(mismatch(
                format!("has a program for `{}` with {} values", program.graph, program.places.len()),
                format!("have graph `{}` with {}", prepared.name, prepared.values.len()),
            ));
        }
        let mut spots: Vec<Option<Spot>> = Vec::with_capacity(program.places.len());
        for id in graph.ids() {
            spots.push(self.spot(prepared, graph, id, &program.places, &spots)?);
        }
        let launches = program.launches.iter().map(|launch| self.launch(prepared, graph, launch, &spots));
        let launches = launches.collect::<Result<Vec<_>, _>>()?;
        // What one program exchanges beyond the plan is over when the next begins.
        let mut end = self.arena.next_multiple_of(64);
        let launches = join(prepared, launches, &mut spots, Spill { end: &mut end, most: self.most });
        Ok((Program { spots, launches }, end))
    }

    fn spot(
        &self,
        prepared: &Prepared,
        graph: &ir::Graph,
        id: ValueId,
        places: &[Place],
        spots: &[Option<Spot>],
    ) -> Result<Option<Spot>, PrepareError> {
        let value = prepared.value(id);
        let Some(shape) = value.shape.as_ref().filter(|_| !value.constant) else { return Ok(None) };
        let wanted = (value.dtype, shape.row, value.rows);
        let title = format!("{}.{}", prepared.name, prepared.title(id));
        match (&places[id.0 as usize], &graph.node(id).op) {
            (Place::Arena(buffer), _) => Ok(Some(self.buffer(&title, buffer, Some(wanted))?)),
            (Place::Alias(of), op) => {
                let target = spots.get(of.0 as usize).copied().flatten();
                if !op.is_view() && target.is_some() {
                    return Err(mismatch(format!("makes `{title}` a view of {of}"), "compute it"));
                }
                Ok(target)
            }
            (Place::Elsewhere, Op::Input(name)) => match self.planned.shared.get(name) {
                Some(buffer) => Ok(Some(self.buffer(&title, buffer, Some(wanted))?)),
                None => Err(mismatch(format!("has no place for input `{title}`"), "read it")),
            },
            (Place::Inside | Place::Elsewhere, _) if prepared.inner[id.0 as usize] => Ok(None),
            (Place::Inside, _) if value.kernel.is_some() => {
                Err(mismatch(format!("keeps `{title}` inside its kernel"), "have readers of it outside".to_owned()))
            }
            (Place::Inside, _) => Ok(None),
            (Place::Elsewhere, op) if value.kernel.is_some() => {
                Err(mismatch(format!("has no place for `{title}`"), format!("compute it ({})", op_word(op))))
            }
            (Place::Elsewhere, op) if op.is_view() => Ok(spots.get(value.root.0 as usize).copied().flatten()),
            (Place::Elsewhere, _) => Ok(None),
        }
    }

    fn launch(
        &self,
        prepared: &Prepared,
        graph: &ir::Graph,
        launch: &ir::Launch,
        spots: &[Option<Spot>],
    ) -> Result<Launch, PrepareError> {
        match launch {
            ir::Launch::Region { region, .. } => {
                prepared.regions.get(*region).map(|values| Launch::Region(values.clone())).ok_or_else(|| {
                    mismatch(
                        format!("launches region {region} of `{}`", prepared.name),
                        format!("have {}", prepared.regions.len()),
                    )
                })
            }
            ir::Launch::Move { from, to } => {
                if from.0 as usize >= graph.len() {
                    return Err(mismatch(
                        format!("moves {from} of `{}`", prepared.name),
                        format!("have {} values", graph.len()),
                    ));
                }
                let value = prepared.value(*from);
                let buffer = self.planned.shared.get(to);
                let (Some(shape), Some(buffer)) = (&value.shape, buffer) else {
                    return Err(mismatch(
                        format!("moves {from} of `{}` to `{to}`", prepared.name),
                        "have no such values",
                    ));
                };
                let wanted = (value.dtype, shape.row, value.rows);
                let to = self.buffer(to, buffer, Some(wanted))?;
                let root = prepared.value(value.root);
                let known = spots[from.0 as usize].is_some() || prepared.inner[value.root.0 as usize] || root.constant;
                if !known && !graph.node(super::root(graph, *from)).op.is_leaf() {
                    return Err(mismatch(format!("moves {from} of `{}`", prepared.name), "keep it elsewhere"));
                }
                Ok(Launch::Move { from: *from, to })
            }
        }
    }
}

fn op_word(op: &Op) -> &'static str {
    match op {
        Op::Store { .. } => "a store",
        _ => "an operation",
    }
}
