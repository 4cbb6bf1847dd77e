//! A second opinion on plans: a walk over the launches that knows nothing of lifetimes.
//!
//! ```text
//! byte   0 1 2 3 4 5 6 7 8 9 …
//! owner  · · x x x x n n · ·        who wrote it last: a value of a program run, or nobody
//! ```
//!
//! Every byte of the arena has an owner. A step runs as a device would: `first`, every instance, `last`. A launch must find
//! each value that it reads under the bytes of its place, all of them; then its places change owner. Nothing here is
//! shared with the pass that makes plans or with its verifier, and nothing is clever: it is slow and easy to believe.
//!
//! What may be written over while it is read is decided by following the value through the region: nothing that is
//! computed from it moves along its outermost axis, so a row of it is read for that row alone.
//!
//! Run by `compile --check` and `verify` (`validate`), and in tests on random graphs and on damaged plans.

#[cfg(test)]
mod tests;

use crate::PassError;
use ir::ValueId;
use ir::{BucketPlan, Buffer, Captured, Graph, KernelEntry, KernelGraph, KernelModule, Launch, Op, Place, Plan, Type};
use std::collections::{BTreeMap, HashMap};

/// Who wrote a stretch of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// A value of the running program.
    Local(ValueId),
    /// What the shared value of this number is at present.
    Shared(usize),
}

/// Walks every bucket of a plan; the first fault is the error.
pub fn check(plan: &Plan, kernels: &KernelModule) -> Result<(), PassError> {
    for (planned, entry) in plan.entries.iter().zip(&kernels.entries) {
        for bucket in &planned.buckets {
            let mut walk = Walk { bucket, captures: &planned.captures, bytes: BTreeMap::new() };
            walk.step(entry).map_err(|fault| PassError {
                code: "P0601",
                message: format!("bucket {}: {fault}", bucket.bucket),
                help: "this is a defect of the compiler, not of the spec: report it together with the spec".to_owned(),
                span: None,
            })?;
        }
    }
    Ok(())
}

struct Walk<'p> {
    bucket: &'p BucketPlan,
    captures: &'p [Captured],
    /// Stretches of bytes with an owner, by first byte: end and owner. They never overlap.
    bytes: BTreeMap<u64, (u64, Owner)>,
}

impl Walk<'_> {
    fn step(&mut self, entry: &KernelEntry) -> Result<(), String> {
        let first = &entry.first().graph;
        for name in first.inputs.iter().filter_map(|v| first.input_name(*v)) {
            let (number, buffer) = self.shared(name)?;
            self.write(&buffer, Owner::Shared(number), name)?;
        }
        self.program(entry, 0)?;
        for instance in &entry.instances {
            self.program(entry, KernelEntry::class_graph(instance.class))?;
            for captured in self.captures.iter().filter(|c| c.layers.contains(&instance.layer)) {
                let (number, source) = self.shared(&captured.value)?;
                self.demand(&source, Owner::Shared(number), &format!("`{}`, which is captured", captured.value))?;
                let (number, place) = self.shared(&captured.place)?;
                self.write(&place, Owner::Shared(number), &captured.place)?;
            }
        }
        self.program(entry, entry.graphs.len() - 1)?;
        for (name, _) in &entry.last().graph.outputs {
            let (number, buffer) = self.shared(name)?;
            self.demand(&buffer, Owner::Shared(number), &format!("result `{name}`"))?;
        }
        for captured in self.captures {
            let (number, place) = self.shared(&captured.place)?;
            self.demand(&place, Owner::Shared(number), &format!("`{}` at the end", captured.place))?;
        }
        Ok(())
    }

    fn shared(&self, name: &str) -> Result<(usize, Buffer), String> {
        let found = self.bucket.shared.get_full(name);
        found.map(|(number, _, buffer)| (number, *buffer)).ok_or_else(|| format!("`{name}` has no shared place"))
    }

    fn program(&mut self, entry: &KernelEntry, index: usize) -> Result<(), String> {
        let (Some(kernel_graph), Some(program)) = (entry.graphs.get(index), self.bucket.programs.get(index)) else {
            return Err(format!("there is no program {index}"));
        };
        let graph = &kernel_graph.graph;
        let mut launched: Vec<usize> = Vec::new();
        let mut moved: Vec<&str> = Vec::new();
        for (number, launch) in program.launches.iter().enumerate() {
            let at = |fault: String| format!("program `{}`, launch {number}: {fault}", program.graph);
            match launch {
                Launch::Region { region, .. } => {
                    launched.push(*region);
                    self.region(kernel_graph, &program.places, *region).map_err(at)?;
                }
                Launch::Move { from, to } => {
                    let source = memory(graph, &program.places, *from).map_err(at)?;
                    self.demand(&source.1, self.owner(graph, source.0)?, &format!("{from}")).map_err(at)?;
                    let (number, target) = self.shared(to)?;
                    self.write(&target, Owner::Shared(number), to)?;
                    moved.push(to);
                }
            }
        }
        let all: Vec<usize> = (0..kernel_graph.regions.len()).filter(|r| !views_only(kernel_graph, *r)).collect();
        let mut sorted = launched.clone();
        sorted.sort_unstable();
        if sorted != all {
            return Err(format!("program `{}` launches regions {launched:?} of {all:?}", program.graph));
        }
        // What was made in a shared place is that shared value from now on; what was not must have been moved there.
        for (name, value) in graph.outputs.iter().filter(|(name, _)| !moved.contains(&name.as_str())) {
            let (number, target) = self.shared(name)?;
            let (root, buffer) = memory(graph, &program.places, *value)?;
            if buffer.offset_bytes != target.offset_bytes {
                return Err(format!("program `{}` leaves `{name}` elsewhere than in its shared place", program.graph));
            }
            self.demand(&buffer, self.owner(graph, root)?, &format!("output `{name}`"))?;
            self.write(&target, Owner::Shared(number), name)?;
        }
        // The space of one program is the next one's.
        self.bytes.retain(|_, (_, owner)| matches!(owner, Owner::Shared(_)));
        Ok(())
    }

    /// Who must have written a value that is read: a program's input is a shared value.
    fn owner(&self, graph: &Graph, root: ValueId) -> Result<Owner, String> {
        match graph.input_name(root) {
            Some(name) => Ok(Owner::Shared(self.shared(name)?.0)),
            None => Ok(Owner::Local(root)),
        }
    }

    fn region(&mut self, kernel_graph: &KernelGraph, places: &[Place], index: usize) -> Result<(), String> {
        let graph = &kernel_graph.graph;
        let region = kernel_graph.regions.get(index).ok_or_else(|| format!("there is no region {index}"))?;
        let mut reads: HashMap<ValueId, Buffer> = HashMap::new();
        for id in region.values.iter().filter(|v| !graph.node(**v).op.is_view()) {
            for operand in graph.operands(*id) {
                let root = root(graph, operand);
                let inside = region.values.contains(&root);
                let elsewhere = (graph.node(root).op.is_leaf() && graph.input_name(root).is_none())
                    || graph.node(root).ty == Type::Cache;
                if !inside && !elsewhere {
                    let (_, buffer) = memory(graph, places, root)?;
                    self.demand(&buffer, self.owner(graph, root)?, &format!("{root}, which {id} reads"))?;
                    reads.insert(root, buffer);
                }
            }
        }
        let mut written: Vec<(ValueId, Buffer)> = Vec::new();
        for id in region.values.iter().filter(|v| !graph.node(**v).op.is_view()) {
            match places.get(id.0 as usize) {
                Some(Place::Arena(buffer)) => written.push((*id, *buffer)),
                Some(Place::Inside | Place::Elsewhere) => {}
                _ => return Err(format!("{id} has no place of its own")),
            }
        }
        for (i, (id, buffer)) in written.iter().enumerate() {
            if let Some((other, _)) = written.iter().take(i).find(|(_, b)| overlap(b, buffer)) {
                return Err(format!("{id} and {other} are written to the same bytes"));
            }
            for (old, place) in reads.iter().filter(|(_, b)| overlap(b, buffer)) {
                let same = place.offset_bytes == buffer.offset_bytes && place.bytes == buffer.bytes;
                if !same || !row_by_row(graph, &region.values, *old, *id) {
                    return Err(format!("{id} is written over {old}, which the launch still reads"));
                }
            }
        }
        for (id, buffer) in written {
            self.write(&buffer, Owner::Local(id), &id.to_string())?;
        }
        Ok(())
    }

    /// Demands that every byte of a place was last written as this.
    fn demand(&self, buffer: &Buffer, owner: Owner, what: &str) -> Result<(), String> {
        let mut next = buffer.offset_bytes;
        while next < buffer.offset_bytes + buffer.bytes {
            let stretch = self.bytes.range(..=next).next_back().filter(|(_, (end, _))| *end > next);
            match stretch {
                Some((_, (end, found))) if *found == owner => next = *end,
                Some((_, (_, found))) => return Err(format!("byte {next} of {what} is {found:?} by now")),
                None => return Err(format!("byte {next} of {what} was never written")),
            }
        }
        Ok(())
    }

    fn write(&mut self, buffer: &Buffer, owner: Owner, what: &str) -> Result<(), String> {
        let (start, end) = (buffer.offset_bytes, buffer.offset_bytes.saturating_add(buffer.bytes));
        if end > self.bucket.arena_bytes || !start.is_multiple_of(64) {
            return Err(format!("{what} is written to bytes {start} to {end} of {}", self.bucket.arena_bytes));
        }
        let touched: Vec<(u64, (u64, Owner))> =
            self.bytes.range(..end).filter(|(_, (e, _))| *e > start).map(|(s, rest)| (*s, *rest)).collect();
        for (s, (e, old)) in touched {
            self.bytes.remove(&s);
            if s < start {
                self.bytes.insert(s, (start, old));
            }
            if e > end {
                self.bytes.insert(end, (e, old));
            }
        }
        if end > start {
            self.bytes.insert(start, (end, owner));
        }
        Ok(())
    }
}

fn overlap(a: &Buffer, b: &Buffer) -> bool {
    a.bytes > 0 && b.bytes > 0 && a.offset_bytes < b.offset_bytes + b.bytes && b.offset_bytes < a.offset_bytes + a.bytes
}

fn root(graph: &Graph, mut id: ValueId) -> ValueId {
    while graph.node(id).op.is_view() {
        match graph.operands(id).first() {
            Some(of) => id = *of,
            None => break,
        }
    }
    id
}

fn views_only(kernel_graph: &KernelGraph, region: usize) -> bool {
    kernel_graph.regions[region].values.iter().all(|v| kernel_graph.graph.node(*v).op.is_view())
}

/// The value whose memory another is, and its place.
fn memory(graph: &Graph, places: &[Place], id: ValueId) -> Result<(ValueId, Buffer), String> {
    let root = root(graph, id);
    match places.get(root.0 as usize) {
        Some(Place::Arena(buffer)) => Ok((root, *buffer)),
        _ => Err(format!("{root} is asked for and lies nowhere in the arena")),
    }
}

/// Whether every row of the old value is read for the same row of the new one alone. A row is what the outermost axis of
/// both counts; the walk follows each operation that reads the old value to all that is computed from it.
fn row_by_row(graph: &Graph, inside: &[ValueId], old: ValueId, new: ValueId) -> bool {
    let (Some(a), Some(b)) = (graph.tensor(old), graph.tensor(new)) else { return false };
    let (width, other) = (a.dtype.element_bytes(), b.dtype.element_bytes());
    if a.axes != b.axes || width.is_none() || width != other {
        return false;
    }
    let Some(row) = a.axes.first().map(|axis| axis.name.clone()) else { return inside.contains(&new) };
    // By row: whatever is computed from the old value keeps the row, and nothing moves along it.
    let mut from_old = vec![old];
    for id in inside {
        let operands = graph.operands(*id);
        // What a store takes goes to the cache, which is not in the arena.
        if !operands.iter().any(|v| from_old.contains(v)) || matches!(graph.node(*id).op, Op::Store { .. }) {
            continue;
        }
        let along = |axis: &str| axis == row;
        let moves = match &graph.node(*id).op {
            Op::Reduce { axis, .. } | Op::Top { axis, .. } | Op::InTop { axis, .. } | Op::Slice { axis, .. } => {
                along(axis)
            }
            Op::BlockRound { over } => over.iter().any(|axis| along(axis)),
            Op::Split { axis } => along(axis),
            Op::Merge { into } | Op::Concat { into } => along(into),
            Op::Rename { from, to } => along(from) || along(to),
            Op::Gather { axis } => along(axis),
            Op::Unary(_) | Op::Binary(_) | Op::Fma | Op::Select | Op::Round(_) | Op::AllReduce { .. } => false,
            Op::Own { .. } => false,
            // A core reads rows for other rows.
            _ => true,
        };
        let keeps = graph.tensor(*id).is_some_and(|t| t.axes.iter().any(|axis| axis.name == row));
        if moves || !keeps {
            return false;
        }
        from_old.push(*id);
    }
    from_old.contains(&new)
}
