//! The plan walker: the first program, every instance's, the last, launch by launch.

use crate::arena::{Arena, Operand};
use crate::cache::Pool;
use crate::contract::Rows;
use crate::kernels::{Kernel, Launching};
use crate::prepare::{Bucket, Entry, Launch, POSITIONS, Params, Prepared, Program, RowCounts, TOKENS, WANTED};
use crate::probe::{Probing, TensorData};
use crate::view::View;
use engine::{Step, StepError};
use ir::{KernelEntry, ValueId};

/// One step under way.
pub(crate) struct Walker<'a> {
    pub entry: &'a Entry,
    pub bucket: &'a Bucket,
    pub arena: &'a mut Arena,
    pub pools: &'a mut [Pool],
    pub rows: &'a Rows,
    pub counts: RowCounts,
    pub probing: Option<&'a mut Probing>,
}

/// A graph as one stage of the walk runs it.
struct Stage<'a> {
    number: usize,
    graph: &'a Prepared,
    program: &'a Program,
    params: &'a Params,
    slots: &'a [Option<usize>],
}

impl Walker<'_> {
    /// Runs everything; results stand in the bucket's shared places afterwards.
    pub fn run(&mut self, step: &Step) -> Result<(), StepError> {
        self.inputs(step);
        let (entry, bucket) = (self.entry, self.bucket);
        let none = vec![None; self.pools.len()];
        let last = entry.graphs.len() - 1;
        let stage = |number: usize, graph: usize, slots| Stage {
            number,
            graph: &entry.graphs[graph],
            program: &bucket.programs[graph],
            params: &entry.params[number],
            slots,
        };
        self.stage(&stage(0, 0, &none))?;
        for (i, instance) in entry.instances.iter().enumerate() {
            let graph = KernelEntry::class_graph(instance.class);
            self.stage(&stage(Entry::instance_params(i), graph, &entry.slots[i]))?;
        }
        self.stage(&stage(entry.last_params(), last, &none))
    }

    fn inputs(&mut self, step: &Step) {
        let wanted: Vec<i32> = step.wanted.iter().map(|w| w.row as i32).collect();
        for (name, numbers) in [(TOKENS, &step.tokens), (POSITIONS, &step.positions), (WANTED, &wanted)] {
            if let Some(slot) = self.bucket.shared_slot(name, numbers.len()) {
                self.arena.write(slot).copy(0, View::I32(numbers), 0, numbers.len());
            }
        }
    }

    fn stage(&mut self, stage: &Stage<'_>) -> Result<(), StepError> {
        let restored = self.enter(stage)?;
        for launch in &stage.program.launches {
            match launch {
                Launch::Region(values) => {
                    for id in values {
                        self.compute(stage, *id).map_err(|fact| {
                            StepError::Device(format!(
                                "kernel `{}` of graph `{}`: {fact}",
                                stage.graph.title(*id),
                                stage.graph.name
                            ))
                        })?;
                        if self.probing.is_some() {
                            self.probe_views(stage, *id)?;
                        }
                    }
                }
                Launch::Move { from, to } => {
                    let source = self.operand(stage, *from).map_err(StepError::Device)?;
                    self.arena.launch(&[source], to.slot(self.counts), |views, mut out| {
                        out.copy(0, views[0], 0, views[0].len())
                    });
                }
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

    fn operand<'s>(&self, stage: &Stage<'s>, id: ValueId) -> Result<Operand<'s>, String> {
        if let Some(spot) = stage.program.spots[id.0 as usize] {
            return Ok(Operand::Slot(spot.slot(self.counts)));
        }
        let root = stage.graph.value(id).root;
        match stage.params.data(root) {
            Some(param) => Ok(Operand::Outside(param.view())),
            None => Err(format!("operand `{}` is nowhere", stage.graph.title(id))),
        }
    }

    fn compute(&mut self, stage: &Stage<'_>, id: ValueId) -> Result<(), String> {
        let value = stage.graph.value(id);
        let Some(kernel) = &value.kernel else { return Ok(()) };
        let panels = stage.params.panels(id);
        let mut operands = Vec::with_capacity(value.operands.len());
        for (slot, operand) in value.operands.iter().enumerate() {
            operands.push(match panels {
                Some(_) if slot == 1 => Operand::Outside(View::F32(&[])),
                _ => self.operand(stage, *operand)?,
            });
        }
        if let Kernel::Store(store) = kernel {
            let slot = stage.slots[store.kind].ok_or("a store in a layer without cache")?;
            let (rows, pool) = (self.rows, &mut self.pools[store.kind]);
            self.arena.look(&operands, |views| store.run(rows, pool, slot, views));
            return Ok(());
        }
        let spot = stage.program.spots[id.0 as usize].ok_or("its result has no place")?;
        let out = spot.slot(self.counts);
        if out.len == 0 {
            return Ok(());
        }
        let number = stage.params.number(id);
        let launch = Launching { rows: self.rows, pools: self.pools, slots: stage.slots, panels, number };
        self.arena.launch(&operands, out, |views, target| kernel.run(&launch, views, target))
    }

    /// Probes what exists before the first launch: inputs and parameters. Gives back what is to be restored after the
    /// last: an injected input that the graph does not output stays what it was for other graphs.
    fn enter(&mut self, stage: &Stage<'_>) -> Result<Vec<(crate::arena::Slot, Vec<u64>)>, StepError> {
        let Some(probing) = &self.probing else { return Ok(Vec::new()) };
        let graph = &stage.graph.graph;
        let mut restored = Vec::new();
        for id in probing.of_stage(stage.number) {
            let root = stage.graph.value(id).root;
            if !graph.node(root).op.is_leaf() {
                continue;
            }
            let Some(spot) = stage.program.spots[root.0 as usize] else {
                self.probe(stage, id)?;
                continue;
            };
            let name = graph.input_name(root);
            if graph.outputs.iter().all(|(output, _)| Some(output.as_str()) != name) {
                let slot = spot.slot(self.counts);
                let mut bytes = vec![0u64; (slot.len * slot.dtype.bytes()).div_ceil(8)];
                self.arena.save(slot, &mut bytes);
                restored.push((slot, bytes));
            }
            self.probe(stage, id)?;
        }
        Ok(restored)
    }

    /// Probes a computed value and every view of it.
    fn probe_views(&mut self, stage: &Stage<'_>, computed: ValueId) -> Result<(), StepError> {
        let ids = self.probing.as_ref().map(|p| p.of_stage(stage.number)).unwrap_or_default();
        for id in ids {
            if stage.graph.value(id).root == computed {
                self.probe(stage, id)?;
            }
        }
        Ok(())
    }

    fn probe(&mut self, stage: &Stage<'_>, id: ValueId) -> Result<(), StepError> {
        let rows = self.row_count(stage, id);
        let spot = stage.program.spots[id.0 as usize];
        let Some(probing) = &mut self.probing else { return Ok(()) };
        if let Some(data) = probing.injection(stage.number, id, rows)? {
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

impl Bucket {
    /// The place of a shared value with `len` elements.
    pub fn shared_slot(&self, name: &str, len: usize) -> Option<crate::arena::Slot> {
        let buffer = self.shared.get(name)?;
        Some(crate::arena::Slot { offset: buffer.offset_bytes as usize, dtype: buffer.dtype, len })
    }
}
