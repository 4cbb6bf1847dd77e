//! Launches of a program joined into segments: operations whose rows need nothing of each other.
//!
//! A segment runs some rows at a time through all of its operations. What only its own operations read lives in a scratch
//! that stays in the processor's caches and never reaches the arena, be it inside one region or between neighbouring ones; what others
//! read stands where the plan puts it. A segment ends where rows meet: an attention sees rows that other rows stored, a
//! table of rows is picked from, the row axis changes.

use super::bucket::{Launch, RowsOf, Spot};
use super::graph::Prepared;
use crate::kernels::Kernel;
use ir::{DType, Op, ValueId};
use std::collections::HashMap;

/// Scratch places are multiples of this many bytes a row, so that every place is aligned however many rows there are.
const ALIGN: usize = 64;

/// Where an operand is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Source {
    /// A place of the scratch, for one row: multiplied by the rows at hand it is the place of all.
    Scratch(Spot),
    /// What the segment reads from the arena, by index, and whether all rows are seen instead of those at hand.
    Read { index: usize, whole: bool },
    /// What the segment itself has written to the arena, by index.
    Written(usize),
    /// A weight, a literal or a number of the instance.
    Parameter(ValueId),
}

/// Where a result is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sink {
    Scratch(Spot),
    /// A place of the arena, by index.
    Written(usize),
    /// The cache.
    Cache,
}

/// One operation of a segment.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub id: ValueId,
    pub from: Vec<Source>,
    pub into: Sink,
    /// Where the rounded result goes instead, if nobody reads it but the operation that rounds it.
    pub rounded: Option<Sink>,
    /// Whether it only rounds what an earlier operation can write rounded.
    pub done_before: bool,
}

/// Operations that run some rows at a time.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub rows: RowsOf,
    pub operations: Vec<Operation>,
    /// Places that are read, with their values.
    pub reads: Vec<Spot>,
    /// Places that are written; apart from each other.
    pub writes: Vec<Spot>,
    /// Bytes of scratch per row.
    pub scratch_bytes: usize,
    /// Rough element operations per row.
    pub work: usize,
    /// Whether the cache is written.
    pub stores: bool,
    /// Whether, in the last layer that runs, nobody reads other rows of it than those whose logits are wanted.
    pub may_skip: bool,
}

/// Ids of one segment, before places are known.
struct Draft {
    rows: RowsOf,
    ids: Vec<ValueId>,
}

/// Whether an operand is seen with all its rows.
fn whole(graph: &Prepared, id: ValueId, operand: usize) -> bool {
    let shifted = matches!(graph.value(id).kernel, Some(Kernel::ShiftRows(_)));
    let picked = match &graph.graph.node(id).op {
        Op::Gather { axis } if operand == 0 => {
            graph.value(graph.value(id).operands[0]).shape.as_ref().and_then(|s| s.rows.as_ref()) == Some(axis)
        }
        _ => false,
    };
    let along = graph.value(id).along;
    picked
        || shifted
        || graph.value(graph.value(id).operands[operand]).row_along(along).is_none_or(|(_, rows)| rows != along)
}

/// Cuts regions, in the order of their launches, into segments; `cut` lists values that must begin one.
fn draft(graph: &Prepared, ids: &[ValueId], cut: &[ValueId]) -> Vec<Draft> {
    let mut drafts: Vec<Draft> = Vec::new();
    let (mut stores, mut attends) = (false, false);
    for id in ids {
        let value = graph.value(*id);
        let rows = value.along;
        let is_store = matches!(value.kernel, Some(Kernel::Store(_)));
        let is_attend = matches!(value.kernel, Some(Kernel::Attend(_)));
        let joins = drafts.last().is_some_and(|draft| {
            let meets =
                (0..value.operands.len()).any(|i| draft.ids.contains(&value.operands[i]) && whole(graph, *id, i));
            let mixed = is_store && attends || is_attend && stores;
            draft.rows == rows && !mixed && !meets && !cut.contains(id)
        });
        match drafts.last_mut() {
            Some(draft) if joins => draft.ids.push(*id),
            _ => {
                drafts.push(Draft { rows, ids: vec![*id] });
                (stores, attends) = (false, false);
            }
        }
        stores |= is_store;
        attends |= is_attend;
    }
    drafts
}

/// Places for values that the plan keeps inside a region and that segments have to exchange all the same.
#[derive(Debug)]
pub(crate) struct Spill<'a> {
    /// Where free memory begins, behind the plan's.
    pub end: &'a mut usize,
    /// Rows at most.
    pub most: super::RowCounts,
}

impl Spill<'_> {
    fn place(&mut self, graph: &Prepared, id: ValueId) -> Option<Spot> {
        let value = graph.value(id);
        let row = value.shape.as_ref()?.row;
        let spot = Spot { offset: *self.end, dtype: value.dtype, row, rows: value.rows };
        let bytes = spot.slot(self.most).bytes();
        *self.end = bytes.end.next_multiple_of(ALIGN);
        Some(spot)
    }
}

/// Launches joined into segments. Fills in the places of values that cross from one to another and have none.
pub(crate) fn join(
    graph: &Prepared,
    launches: Vec<Launch>,
    spots: &mut [Option<Spot>],
    mut spill: Spill<'_>,
) -> Vec<Launch> {
    let moved: Vec<ValueId> =
        launches.iter().filter_map(|l| if let Launch::Move { from, .. } = l { Some(*from) } else { None }).collect();
    let mut joined = Vec::new();
    let mut ids: Vec<ValueId> = Vec::new();
    let mut runs: Vec<Vec<ValueId>> = Vec::new();
    let mut moves: Vec<Vec<Launch>> = Vec::new();
    for launch in launches {
        match launch {
            Launch::Region(values) => ids.extend(values),
            other => {
                runs.push(std::mem::take(&mut ids));
                moves.push(vec![other]);
            }
        }
    }
    runs.push(ids);
    moves.push(Vec::new());
    let mut cut = Vec::new();
    let segments = loop {
        let drafts: Vec<Vec<Draft>> = runs.iter().map(|ids| draft(graph, ids, &cut)).collect();
        match assign(graph, &drafts, &moved, spots, &mut spill) {
            Ok(segments) => break segments,
            Err(id) => cut.push(id),
        }
    };
    for (segments, moves) in segments.into_iter().zip(moves) {
        joined.extend(segments.into_iter().map(Launch::Segment));
        joined.extend(moves);
    }
    joined
}

/// Places for every operand and result. An error names a value whose place overlaps another result's of its segment.
fn assign(
    graph: &Prepared,
    drafts: &[Vec<Draft>],
    moved: &[ValueId],
    spots: &mut [Option<Spot>],
    spill: &mut Spill<'_>,
) -> Result<Vec<Vec<Segment>>, ValueId> {
    let mut home: HashMap<ValueId, usize> = HashMap::new();
    for (number, draft) in drafts.iter().flatten().enumerate() {
        home.extend(draft.ids.iter().map(|id| (*id, number)));
    }
    let mut crossing: Vec<bool> = vec![false; spots.len()];
    let roots = graph.graph.outputs.iter().map(|(_, id)| graph.value(*id).root);
    roots.chain(moved.iter().map(|id| graph.value(*id).root)).for_each(|id| crossing[id.0 as usize] = true);
    for (number, draft) in drafts.iter().flatten().enumerate() {
        for operand in draft.ids.iter().flat_map(|id| &graph.value(*id).operands) {
            if home.get(operand).is_some_and(|other| *other != number) {
                crossing[operand.0 as usize] = true;
            }
        }
    }
    for id in home.keys().copied().collect::<std::collections::BTreeSet<_>>() {
        if crossing[id.0 as usize] && spots[id.0 as usize].is_none() {
            spots[id.0 as usize] = spill.place(graph, id);
        }
    }
    drafts
        .iter()
        .map(|drafts| drafts.iter().map(|draft| segment(graph, draft, &crossing, spots, spill.most)).collect())
        .collect()
}

fn segment(
    graph: &Prepared,
    draft: &Draft,
    crossing: &[bool],
    spots: &[Option<Spot>],
    most: super::RowCounts,
) -> Result<Segment, ValueId> {
    let mut out = Segment {
        rows: draft.rows,
        operations: Vec::new(),
        reads: Vec::new(),
        writes: Vec::new(),
        scratch_bytes: 0,
        work: 0,
        stores: false,
        may_skip: false,
    };
    let rounds = rounds(graph, draft, crossing);
    let places = scratch(graph, draft, crossing, &rounds, &mut out.scratch_bytes);
    let mut written: HashMap<ValueId, usize> = HashMap::new();
    let mut read: HashMap<ValueId, usize> = HashMap::new();
    for id in &draft.ids {
        let value = graph.value(*id);
        let mut from = Vec::new();
        for (i, operand) in value.operands.iter().enumerate() {
            from.push(if let Some(spot) = places.get(operand) {
                Source::Scratch(*spot)
            } else if let Some(index) = written.get(operand) {
                Source::Written(*index)
            } else if let Some(spot) = spots[operand.0 as usize] {
                let index = *read.entry(*operand).or_insert_with(|| {
                    out.reads.push(along(graph, *operand, spot, draft.rows));
                    out.reads.len() - 1
                });
                Source::Read { index, whole: whole(graph, *id, i) }
            } else {
                Source::Parameter(*operand)
            });
        }
        let into = if matches!(value.kernel, Some(Kernel::Store(_))) {
            out.stores = true;
            Sink::Cache
        } else if let Some(spot) = places.get(id) {
            Sink::Scratch(*spot)
        } else if let Some(spot) = spots[id.0 as usize] {
            let slot = spot.slot(most);
            if out.writes.iter().any(|w| w.slot(most).overlaps(&slot)) {
                return Err(*id);
            }
            written.insert(*id, out.writes.len());
            out.writes.push(along(graph, *id, spot, draft.rows));
            Sink::Written(out.writes.len() - 1)
        } else {
            continue;
        };
        let row = value.row_along(draft.rows).map_or(0, |(row, _)| row);
        out.work = out.work.saturating_add(value.kernel.as_ref().map_or(0, |k| k.work(row)));
        out.operations.push(Operation { id: *id, from, into, rounded: None, done_before: false });
    }
    for (wide, narrow) in rounds {
        let at = |id: ValueId| out.operations.iter().position(|o| o.id == id);
        if let (Some(wide), Some(narrow)) = (at(wide), at(narrow)) {
            out.operations[wide].rounded = Some(out.operations[narrow].into);
            out.operations[narrow].done_before = true;
        }
    }
    Ok(out)
}

/// A value's place as operations along some rows see it.
fn along(graph: &Prepared, id: ValueId, spot: Spot, rows: RowsOf) -> Spot {
    match graph.value(id).row_along(rows) {
        Some((row, rows)) => Spot { row, rows, ..spot },
        None => spot,
    }
}

/// Results that are rounded to bf16 and read for nothing else, with what rounds them: one pass over memory instead of two.
fn rounds(graph: &Prepared, draft: &Draft, crossing: &[bool]) -> HashMap<ValueId, ValueId> {
    let mut readers: HashMap<ValueId, usize> = HashMap::new();
    draft.ids.iter().flat_map(|id| &graph.value(*id).operands).for_each(|v| *readers.entry(*v).or_default() += 1);
    let mut rounds = HashMap::new();
    for (at, narrow) in draft.ids.iter().enumerate() {
        let value = graph.value(*narrow);
        let (Some(Kernel::Elementwise(kernel)), Some(operand)) = (&value.kernel, value.operands.first()) else {
            continue;
        };
        let wide = graph.value(*operand);
        // Copies of short runs are better rounded together.
        let writes_any = matches!(wide.kernel, Some(Kernel::Elementwise(_) | Kernel::Reduce(_) | Kernel::Linear(_)));
        if kernel.only_rounds()
            && (wide.dtype, value.dtype) == (DType::F32, DType::Bf16)
            && writes_any
            && draft.ids[..at].contains(operand)
            && !crossing[operand.0 as usize]
            && readers.get(operand) == Some(&1)
        {
            rounds.insert(*operand, *narrow);
        }
    }
    rounds
}

/// Places in the scratch for what only the segment reads, each free again behind its last reader.
fn scratch(
    graph: &Prepared,
    draft: &Draft,
    crossing: &[bool],
    rounds: &HashMap<ValueId, ValueId>,
    bytes: &mut usize,
) -> HashMap<ValueId, Spot> {
    let mut last: HashMap<ValueId, usize> = HashMap::new();
    for (at, id) in draft.ids.iter().enumerate() {
        last.insert(*id, at);
        last.extend(graph.value(*id).operands.iter().map(|operand| (*operand, at)));
    }
    let mut places: HashMap<ValueId, Spot> = HashMap::new();
    let mut live: Vec<(std::ops::Range<usize>, usize)> = Vec::new();
    // What is written rounded is written where it is computed.
    let written = |(at, id)| std::iter::once((at, id)).chain(rounds.get(id).map(|narrow| (at, narrow)));
    for (at, id) in draft.ids.iter().enumerate().flat_map(written) {
        let value = graph.value(*id);
        let is_inside = !crossing[id.0 as usize] && !places.contains_key(id);
        let Some((row, rows)) = value.row_along(draft.rows).filter(|_| is_inside) else { continue };
        live.retain(|(_, last)| *last >= at);
        let size = (value.dtype.bytes_for(row as u64) as usize).next_multiple_of(ALIGN).max(ALIGN);
        let mut offset = 0;
        live.sort_by_key(|(range, _)| range.start);
        for (range, _) in &live {
            if offset + size <= range.start {
                break;
            }
            offset = offset.max(range.end);
        }
        live.push((offset..offset + size, last.get(id).copied().unwrap_or(at)));
        *bytes = (*bytes).max(offset + size);
        places.insert(*id, Spot { offset, dtype: value.dtype, row, rows });
    }
    places
}
