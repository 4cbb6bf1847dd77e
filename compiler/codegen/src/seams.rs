//! Kernels that exchange numbers between ranks over each other's memory (`seam.cuh`): sums with all that a spec computes behind
//! them, and parts of an axis put together.

use crate::region::{Draft, Ending, Maker, Unit, stem};
use crate::rows::{self, Job, Link, Sink};
use artifact::{Blocks, Param};
use ir::{Anatomy, Axis, Extent, Graph, GraphBuilder, Op, Order, ValueId};
use std::fmt::Write;

/// Most ranks of a group.
const MOST_RANKS: u64 = 8;
/// Threads of a block that puts parts together.
const THREADS: u64 = 256;
/// Bytes that a thread moves at once.
const WORD_BYTES: u64 = 16;

impl Maker<'_> {
    /// A sum over ranks, what stands before it, and what is computed behind it.
    pub(crate) fn seam(&mut self, sum: ValueId, ends: Vec<Ending>) -> Result<(), String> {
        let [ending] = ends.as_slice() else { return Err("several strands behind a sum over ranks".to_owned()) };
        let Op::AllReduce { over, order } = self.graph().node(sum).op.clone() else {
            return Err("no sum over ranks".to_owned());
        };
        let operand = *self.graph().operands(sum).first().ok_or("a sum over ranks has no operand")?;
        // What stands before the sum and leaves is written behind it.
        let before = Ending { outputs: Vec::new(), in_place: false, ..ending.clone() };
        self.sum((sum, operand), &before, ending, &(over, order), None)
    }

    /// A sum over ranks of the rows of all of them, of which each takes its own.
    pub(crate) fn home(&mut self, anatomy: &Anatomy, sum: ValueId, mut ends: Vec<Ending>) -> Result<(), String> {
        let Op::ReduceScatter { axis, over, into } = self.graph().node(sum).op.clone() else {
            return Err("no rows to take home".to_owned());
        };
        let operand = *self.graph().operands(sum).first().ok_or("a sum over ranks has no operand")?;
        if self.leaving[sum.0 as usize] {
            let rows = self.rows_of(sum);
            let outputs = vec![(sum, Sink::Buffer(Param::Value(sum)))];
            match ends.first_mut() {
                Some(ending) => ending.outputs.extend(outputs),
                None => ends.push(Ending { values: Vec::new(), rows, outputs, in_place: false, copies: false }),
            }
        }
        let [behind] = ends.as_slice() else {
            return Err("several strands behind rows that are taken home".to_owned());
        };
        let rows = self.rows_of(operand);
        let is = |rows: &[Axis], name: &str| rows.iter().map(|a| a.name.as_str()).eq([name]);
        if !is(&rows, &axis) || !is(&behind.rows, &into) {
            return Err(format!("`{axis}` is taken home as `{into}`, and is no outermost axis of rows alone"));
        }
        let outputs = self.left(&anatomy.before);
        let before = Ending { values: anatomy.before.clone(), rows, outputs, in_place: false, copies: false };
        self.sum(
            (sum, operand),
            &before,
            behind,
            &(over.clone(), Order::Serial),
            Some(Param::Brought { axis: into, over }),
        )
    }

    /// The kernel of a sum over ranks: own terms are sent, and what is computed from the sum stands behind it.
    fn sum(
        &mut self,
        (sum, operand): (ValueId, ValueId),
        before: &Ending,
        behind: &Ending,
        (over, order): &(Vec<String>, Order),
        brought: Option<Param>,
    ) -> Result<(), String> {
        let ranks = self.group(over)?;
        let (rows, is_home) = (behind.rows.clone(), brought.is_some());
        let own = self.taken(behind, sum)?;
        let threads = Some((own.lanes, own.threads));
        let sent = self.sent(before, operand, Link { sum: None, threads })?;
        let ty = self.graph().tensor(operand).ok_or("a sum of what is no tensor")?;
        let row: u64 = ty.axes.iter().filter(|a| !before.rows.contains(a)).map(fixed).product();
        let at_once = u64::from(own.threads / own.lanes.max(1));
        let slot_bytes = (ty.dtype.bytes_for(row * at_once)).next_multiple_of(WORD_BYTES);
        let text = rows::seam((&sent, &own), ranks, ty.dtype, row, order, is_home)?;
        let axis = rows.iter().find(|a| a.is_rows()).map(|a| a.name.clone());
        let factor = rows.iter().map(fixed).product();
        let mut params = vec![Param::Peers { over: over.clone(), slot_bytes }];
        params.extend(brought);
        params.push(Param::Rows { axis, factor });
        params.extend(sent.params);
        params.extend(own.params);
        let (threads, kind) = (own.threads, if is_home { "home" } else { "seam" });
        self.exchange(Unit { text, threads, dynamic_bytes: 0, stem: stem(&self.region.name, kind) }, params);
        Ok(())
    }

    /// Parts of an axis, or the rows of all ranks, put together on every rank; what stands before and behind are kernels of their own.
    pub(crate) fn gather(&mut self, anatomy: &Anatomy, core: ValueId, ends: Vec<Ending>) -> Result<(), String> {
        let Op::AllGather { axis, over, .. } = self.graph().node(core).op.clone() else {
            return Err("no parts to put together".to_owned());
        };
        let ranks = self.group(&over)?;
        let operand = *self.graph().operands(core).first().ok_or("parts of nothing")?;
        if !anatomy.before.is_empty() {
            let rows = self.rows_of(operand);
            let mut outputs = self.left(&anatomy.before);
            if !outputs.iter().any(|(id, _)| *id == operand) {
                outputs.push((operand, Sink::Buffer(self.result_place(operand)?)));
            }
            self.rows(Ending { values: anatomy.before.clone(), rows, outputs, in_place: false, copies: false })?;
            self.close();
        }
        let ty = self.graph().tensor(operand).ok_or("parts of what is no tensor")?.clone();
        let at = ty.axes.iter().position(|a| a.name == axis).ok_or("parts of another axis")?;
        let (outer, inner) = ty.axes.split_at(at);
        let of_rows = inner.first().is_some_and(Axis::is_rows);
        if of_rows && !outer.is_empty() || inner.iter().skip(1).any(Axis::is_rows) {
            return Err(format!("rows of other ranks (`{axis}`) stand behind other axes"));
        }
        let bytes = ty.dtype.bytes_for(inner.iter().map(fixed).product());
        if !bytes.is_multiple_of(WORD_BYTES) {
            return Err(format!("parts of {bytes} bytes are put together; {WORD_BYTES} are moved at once"));
        }
        let words = bytes / WORD_BYTES;
        let rows = ty.row_axes().next().map(str::to_owned);
        let factor = outer.iter().map(fixed).product();
        let part = self.memory(operand).ok_or("parts that lie nowhere")?;
        let mut text = format!("// {}\n#include \"seam.cuh\"\n\n", self.title());
        let (kind, given, passed) = if of_rows {
            ("Rows", ", const __grid_constant__ Brought brought", ", brought")
        } else {
            ("Joined", "", "")
        };
        let _ = writeln!(
            text,
            "extern \"C\" __global__ void __launch_bounds__({THREADS}, 1) @NAME@(const __grid_constant__ Peers peers{given}, const int rows, const u8* part, u8* whole) {{\n  {kind}<{ranks}, {words}, {THREADS}>::run(peers{passed}, part, whole, rows);\n}}"
        );
        let mut params = vec![Param::Peers { over: over.clone(), slot_bytes: 0 }];
        params.extend(of_rows.then_some(Param::Brought { axis, over }));
        params.extend([Param::Rows { axis: rows, factor }, part, self.result_place(core)?]);
        let (threads, stem) = (THREADS as u32, stem(&self.region.name, "gather"));
        self.exchange(Unit { text, threads, dynamic_bytes: 0, stem }, params);
        for ending in ends {
            self.rows(ending)?;
        }
        self.close();
        Ok(())
    }

    /// The outermost axis of a value, if it counts rows.
    fn rows_of(&self, id: ValueId) -> Vec<Axis> {
        let axes = self.graph().tensor(id).map(|t| t.axes.as_slice()).unwrap_or_default();
        axes.iter().take(1).filter(|a| a.is_rows()).cloned().collect()
    }

    /// Of these values, those that leave the region, to their own places.
    fn left(&self, values: &[ValueId]) -> Vec<(ValueId, Sink)> {
        let leaving = values.iter().filter(|v| self.leaving[v.0 as usize] && !self.graph().node(**v).op.is_view());
        leaving.map(|id| (*id, Sink::Buffer(Param::Value(*id)))).collect()
    }

    /// A start with a block for each multiprocessor: a block waits for the same one of every other rank, so all must run at once.
    fn exchange(&mut self, unit: Unit, params: Vec<Param>) {
        let fixed = |factor| Blocks { rows: None, factor, per_block: 1 };
        let grid = [fixed(self.machine.blocks), fixed(1)];
        self.out.starts.push(Draft { unit, variants: Vec::new(), buckets: None, grid, params, shares: None });
    }

    /// Ranks of a group.
    fn group(&self, over: &[String]) -> Result<u64, String> {
        let mesh = self.module.sharding.as_ref().map(|s| &s.mesh).ok_or("an exchange without a mesh")?;
        let ranks = mesh.parts(over);
        if ranks > MOST_RANKS {
            return Err(format!("an exchange of {ranks} ranks; {MOST_RANKS} see each other's memory"));
        }
        Ok(ranks)
    }

    /// The values of an ending that some of it need, `without` and what only it needs left out.
    fn needed(&self, ending: &Ending, without: Option<ValueId>, of: impl Iterator<Item = ValueId>) -> Vec<ValueId> {
        let mut found: Vec<ValueId> = Vec::new();
        let mut open: Vec<ValueId> = of.collect();
        while let Some(id) = open.pop() {
            if Some(id) != without && ending.values.contains(&id) && !found.contains(&id) {
                found.push(id);
                open.extend(self.graph().operands(id));
            }
        }
        found.sort_unstable();
        found
    }

    /// A value as an operation of a graph of its own: a rounding to the format that it has changes nothing.
    fn as_it_is(&self, id: ValueId) -> Result<(Graph, ValueId, ValueId), String> {
        let mut builder = GraphBuilder::new();
        let ty = self.graph().node(id).ty.clone();
        let dtype = self.graph().tensor(id).ok_or_else(|| format!("{id} is no tensor"))?.dtype;
        let from = builder.input("row", ty.clone());
        let to = builder.add(Op::Round(dtype), &[from], ty, None);
        Ok((builder.finish(), from, to))
    }

    /// The row kernel that takes sums over ranks.
    fn taken(&self, ending: &Ending, sum: ValueId) -> Result<rows::RowKernel, String> {
        let memory = |id| self.memory(id);
        let link = Some(Link { sum: Some(sum), threads: None });
        let values = self.needed(ending, Some(sum), ending.outputs.iter().map(|(id, _)| *id));
        if !values.is_empty() {
            let mut job = self.job(ending, None, &memory);
            (job.values, job.link) = (values, link);
            return rows::generate(&job);
        }
        // Nothing is computed from it.
        let (graph, from, to) = self.as_it_is(sum)?;
        let sinks = ending.outputs.iter().map(|(_, sink)| (to, sink.clone())).collect();
        rows::generate(&Job {
            graph: &graph,
            title: self.title(),
            values: vec![to],
            rows: ending.rows.clone(),
            outputs: sinks,
            memory: &memory,
            kv: &self.plan.kv,
            in_place: false,
            tile: None,
            link: Some(Link { sum: Some(from), threads: None }),
        })
    }

    /// The row kernel that sends the own term of a sum.
    fn sent(&self, ending: &Ending, operand: ValueId, link: Link) -> Result<rows::RowKernel, String> {
        let memory = |id| self.memory(id);
        let values = self.needed(ending, None, std::iter::once(operand));
        if !values.is_empty() {
            let mut job = self.job(ending, None, &memory);
            job.values = values;
            job.outputs.retain(|(id, _)| job.values.binary_search(id).is_ok());
            job.outputs.push((operand, Sink::Wire));
            job.in_place = false;
            job.link = Some(link);
            return rows::generate(&job);
        }
        let (graph, _, to) = self.as_it_is(operand)?;
        let memory = |_| self.memory(operand);
        rows::generate(&Job {
            graph: &graph,
            title: self.title(),
            values: vec![to],
            rows: ending.rows.clone(),
            outputs: vec![(to, Sink::Wire)],
            memory: &memory,
            kv: &self.plan.kv,
            in_place: false,
            tile: None,
            link: Some(link),
        })
    }
}

fn fixed(axis: &Axis) -> u64 {
    if let Extent::Fixed(n) = axis.extent { n } else { 1 }
}
