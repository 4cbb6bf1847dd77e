//! The plan walker: the first program, every instance's, the last, launch by launch.

use crate::arena::Arena;
use crate::cache::Cache;
use crate::contract::Rows;
use crate::drafting::{Given, Inputs};
use crate::prepare::{
    Bucket, Entry, Launch, POSITIONS, Params, Prepared, Program, RowCounts, Segment, TOKENS, WANTED, runs,
};
use crate::probe::{Probing, TensorData};
use crate::segment::{Fault, Run, Stop};
use crate::shell::write_layer;
use crate::team::Gathered;
use crate::view::{Target, View};
use engine::{Arrivals, Step, StepError};
use ir::{KernelEntry, ValueId};
use std::ops::Range;

/// One step under way.
pub(crate) struct Walker<'a> {
    pub entry: &'a Entry,
    pub bucket: &'a Bucket,
    pub arena: &'a mut Arena,
    pub aside: &'a mut Vec<u64>,
    pub pools: &'a mut Cache,
    pub rows: &'a Rows,
    pub counts: RowCounts,
    pub probing: Option<&'a mut Probing>,
    /// Layers of the step's pages that are still to come.
    pub arrivals: Option<&'a mut dyn Arrivals>,
    /// Threads that are awake for it.
    pub team: Option<Gathered>,
}

/// A graph as one stage of the walk runs it.
struct Stage<'a> {
    number: usize,
    graph: &'a Prepared,
    program: &'a Program,
    params: &'a Params,
    slots: &'a [Option<usize>],
    /// Rows that are enough where others may be skipped; `None`: all.
    seen: Option<&'a [Range<usize>]>,
}

impl Walker<'_> {
    /// Runs everything; results stand in the bucket's shared places afterwards.
    pub fn run(&mut self, step: &Step) -> Result<(), StepError> {
        let wanted: Vec<i32> = step.wanted.iter().map(|w| w.row as i32).collect();
        for (name, numbers) in [(TOKENS, &step.tokens), (POSITIONS, &step.positions), (WANTED, &wanted)] {
            self.input(name, View::I32(numbers));
        }
        // Who looks on sees all rows.
        let seen = runs(step.wanted.iter().map(|w| w.row), self.counts.tokens).filter(|_| self.probing.is_none());
        self.programs(seen.as_deref())
    }

    /// The same with a drafter's inputs; captured rows are where the model left them.
    pub fn run_on(&mut self, inputs: &Inputs) -> Result<(), StepError> {
        for (name, numbers) in inputs {
            self.input(
                name,
                match numbers {
                    Given::I32(x) => View::I32(x),
                    Given::F32(x) => View::F32(x),
                    Given::Bool(x) => View::Bool(x),
                },
            );
        }
        self.programs(None)
    }

    fn programs(&mut self, seen: Option<&[Range<usize>]>) -> Result<(), StepError> {
        let (entry, bucket) = (self.entry, self.bucket);
        let none = vec![None; self.pools.kinds()];
        let last = entry.graphs.len() - 1;
        let stage = |number: usize, graph: usize, slots, seen| Stage {
            number,
            graph: &entry.graphs[graph],
            program: &bucket.programs[graph],
            params: &entry.params[number],
            slots,
            seen,
        };
        self.stage(&stage(0, 0, &none, None))?;
        for (i, instance) in entry.instances.iter().enumerate() {
            let graph = KernelEntry::class_graph(instance.class);
            self.take(&entry.slots[i]);
            let seen = seen.filter(|_| i + 1 == entry.instances.len());
            self.stage(&stage(Entry::instance_params(i), graph, &entry.slots[i], seen))?;
            self.capture(instance.layer)?;
        }
        self.stage(&stage(entry.last_params(), last, &none, None))
    }

    /// Waits for the pages of the layers that an instance reads, by KV kind.
    fn take(&mut self, slots: &[Option<usize>]) {
        let Some(arrivals) = &mut self.arrivals else { return };
        for (kind, layer) in slots.iter().enumerate().filter_map(|(kind, layer)| Some((kind, (*layer)?))) {
            let pools = &mut *self.pools;
            arrivals.take(kind, layer, &mut |page, bytes| write_layer(pools, kind, layer, page, bytes));
        }
    }

    fn input(&mut self, name: &str, numbers: View<'_>) {
        if let Some(slot) = self.bucket.shared_slot(name, numbers.len()) {
            self.arena.write(slot).copy(0, numbers, 0, numbers.len());
        }
    }

    /// Copies what a layer hands on to the place of rows that a drafter reads: the layers of a row stand side by side.
    fn capture(&mut self, layer: usize) -> Result<(), StepError> {
        for captured in &self.entry.captures {
            let Some(at) = captured.layers.iter().position(|l| *l == layer) else { continue };
            let lost = || StepError::Device(format!("`{}` of layer {layer} has no place", captured.value));
            let shape = self.entry.handed_on(&captured.value).ok_or_else(lost)?;
            let (rows, layers) = (self.counts.of(shape.rows), captured.layers.len());
            let source = self.bucket.shared_slot(&captured.value, rows * shape.row).ok_or_else(lost)?;
            let place = self.bucket.shared_slot(&captured.place, rows * shape.row * layers).ok_or_else(lost)?;
            let (views, mut targets) = self.arena.open(&[source], &[place], self.aside);
            let (Some(view), Some(target)) = (views.first(), targets.first_mut()) else { return Err(lost()) };
            for row in 0..rows {
                target.copy((row * layers + at) * shape.row, *view, row * shape.row, shape.row);
            }
        }
        Ok(())
    }

    fn stage(&mut self, stage: &Stage<'_>) -> Result<(), StepError> {
        let restored = self.enter(stage)?;
        for launch in &stage.program.launches {
            match launch {
                Launch::Segment(segment) => self.segment(stage, segment)?,
                Launch::Region(_) => return Err(StepError::Device("a region was not joined to a segment".to_owned())),
                Launch::Move { from, to } => self.copy(stage, *from, to.slot(self.counts))?,
            }
        }
        for (slot, bytes) in restored {
            self.arena.write(slot).copy(0, View::of(slot.dtype, bytemuck::cast_slice(&bytes)), 0, slot.len);
        }
        Ok(())
    }

    fn row_count(&self, stage: &Stage<'_>, id: ValueId) -> usize {
        self.counts.of(stage.graph.value(id).rows)
    }

    fn segment(&mut self, stage: &Stage<'_>, segment: &Segment) -> Result<(), StepError> {
        let run = Run {
            graph: stage.graph,
            params: stage.params,
            segment,
            rows: self.rows,
            counts: self.counts,
            slots: stage.slots,
            seen: stage.seen.filter(|_| segment.may_skip),
            team: self.team.as_ref(),
        };
        let ended = match &mut self.probing {
            None => run.run(self.arena, self.pools, self.aside, None),
            Some(probing) => {
                let mut hook = |id: ValueId, first: usize, target: &mut Target<'_>| {
                    probe_rows(probing, stage.number, stage.graph, id, first, target)
                };
                run.run(self.arena, self.pools, self.aside, Some(&mut hook))
            }
        };
        ended.map_err(|stop| match stop {
            Stop::Probe(error) => error,
            Stop::Fault(Fault { id, fact }) => {
                StepError::Device(format!("kernel `{}` of graph `{}`: {fact}", stage.graph.title(id), stage.graph.name))
            }
        })
    }

    /// A value copied to a shared place.
    fn copy(&mut self, stage: &Stage<'_>, from: ValueId, to: crate::arena::Slot) -> Result<(), StepError> {
        match stage.program.spots[from.0 as usize] {
            Some(spot) => {
                let (views, mut targets) = self.arena.open(&[spot.slot(self.counts)], &[to], self.aside);
                targets.iter_mut().zip(views).for_each(|(target, view)| target.copy(0, view, 0, view.len()));
            }
            None => match stage.params.data(stage.graph.value(from).root) {
                Some(param) => self.arena.write(to).copy(0, param.view(), 0, param.view().len()),
                None => return Err(StepError::Device(format!("`{}` is nowhere", stage.graph.title(from)))),
            },
        }
        Ok(())
    }

    /// Probes what exists before the first launch: inputs and parameters. Gives back what is to be restored after the
    /// last: an injected input that the graph does not output stays what it was for other graphs.
    fn enter(&mut self, stage: &Stage<'_>) -> Result<Vec<(crate::arena::Slot, Vec<u64>)>, StepError> {
        let Some(probing) = &self.probing else { return Ok(Vec::new()) };
        let graph = &stage.graph.graph;
        let mut restored = Vec::new();
        for id in probing.of_stage(stage.number) {
            let root = stage.graph.value(id).root;
            if !graph.node(root).op.is_leaf() && !stage.graph.value(root).constant {
                continue;
            }
            let Some(spot) = stage.program.spots[root.0 as usize] else {
                self.probe(stage, id)?;
                continue;
            };
            let name = graph.input_name(root);
            if graph.outputs.iter().all(|(output, _)| Some(output.as_str()) != name) {
                let slot = spot.slot(self.counts);
                let mut bytes = vec![0u64; slot.bytes().len().div_ceil(8)];
                self.arena.save(slot, &mut bytes);
                restored.push((slot, bytes));
            }
            self.probe(stage, id)?;
        }
        Ok(restored)
    }

    fn probe(&mut self, stage: &Stage<'_>, id: ValueId) -> Result<(), StepError> {
        let rows = self.row_count(stage, id);
        let spot = stage.program.spots[id.0 as usize];
        let Some(probing) = &mut self.probing else { return Ok(()) };
        if let Some(data) = probing.injection(stage.number, id, 0, rows)? {
            let Some(spot) = spot else {
                let name = stage.graph.title(id);
                return Err(StepError::Contract(format!("`{name}` is a parameter and cannot be injected on `cpu`")));
            };
            let mut target = self.arena.write(spot.slot(self.counts));
            match &data {
                TensorData::F32(x) => target.put(0, x),
                TensorData::I32(x) => target.copy(0, View::I32(x), 0, x.len()),
            }
        }
        let view = match spot {
            Some(spot) => self.arena.read(spot.slot(self.counts)),
            None => match stage.params.data(stage.graph.value(id).root) {
                Some(param) => param.view(),
                None => return Ok(()),
            },
        };
        probing.trace(stage.number, id, || match view {
            View::I32(x) => TensorData::I32(x.to_vec()),
            other => TensorData::F32(other.to_f32()),
        });
        Ok(())
    }
}

/// Probes rows of a value just computed and of every view of it.
fn probe_rows(
    probing: &mut Probing,
    stage: usize,
    graph: &Prepared,
    computed: ValueId,
    first: usize,
    target: &mut Target<'_>,
) -> Result<(), StepError> {
    for id in probing.of_stage(stage) {
        let value = graph.value(id);
        if value.root != computed {
            continue;
        }
        let rows = target.len() / value.shape.as_ref().map_or(1, |s| s.row.max(1));
        match probing.injection(stage, id, first, rows)? {
            Some(TensorData::F32(x)) => target.put(0, &x),
            Some(TensorData::I32(x)) => target.copy(0, View::I32(&x), 0, x.len()),
            None => {}
        }
        probing.trace(stage, id, || match target.view() {
            View::I32(x) => TensorData::I32(x.to_vec()),
            other => TensorData::F32(other.to_f32()),
        });
    }
    Ok(())
}

impl Bucket {
    /// The place of a shared value with `len` elements.
    pub fn shared_slot(&self, name: &str, len: usize) -> Option<crate::arena::Slot> {
        let buffer = self.shared.get(name)?;
        Some(crate::arena::Slot { offset: buffer.offset_bytes as usize, dtype: buffer.dtype, len })
    }
}
