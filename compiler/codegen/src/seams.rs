//! Kernels that exchange numbers between ranks over each other's memory (`seam.cuh`): sums with all that a spec computes behind
//! them, and parts of an axis put together.

use crate::region::{Draft, Ending, Maker, Unit, stem};
use crate::rows::{self, Job, Link, Sink};
use artifact::{Blocks, Param};
use ir::{Anatomy, Axis, Extent, Graph, GraphBuilder, Op, ValueId};
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
        let ranks = self.group(&over)?;
        let operand = *self.graph().operands(sum).first().ok_or("a sum over ranks has no operand")?;
        let memory = |id| self.memory(id);
        let mut job = self.job(ending, None, &memory);
        job.values = self.needed(ending, Some(sum), ending.outputs.iter().map(|(id, _)| *id));
        job.link = Some(Link { sum: Some(sum), threads: None });
        let behind = rows::generate(&job)?;
        let threads = Some((behind.lanes, behind.threads));
        let before = self.sent(ending, operand, Link { sum: None, threads })?;
        let ty = self.graph().tensor(operand).ok_or("a sum of what is no tensor")?;
        let row: u64 = ty.axes.iter().filter(|a| !ending.rows.contains(a)).map(fixed).product();
        let at_once = u64::from(behind.threads / behind.lanes.max(1));
        let slot_bytes = (ty.dtype.bytes_for(row * at_once)).next_multiple_of(WORD_BYTES);
        let text = rows::seam(&before, &behind, ranks, ty.dtype, row, &order)?;
        let axis = ending.rows.iter().find(|a| a.is_rows()).map(|a| a.name.clone());
        let factor = ending.rows.iter().map(fixed).product();
        let mut params = vec![Param::Peers { over, slot_bytes }, Param::Rows { axis, factor }];
        params.extend(before.params);
        params.extend(behind.params);
        let threads = behind.threads;
        self.exchange(Unit { text, threads, dynamic_bytes: 0, stem: stem(&self.region.name, "seam") }, params);
        Ok(())
    }

    /// Parts of an axis, put together on every rank.
    pub(crate) fn gather(&mut self, anatomy: &Anatomy, core: ValueId) -> Result<(), String> {
        let Op::AllGather { axis, over, .. } = self.graph().node(core).op.clone() else {
            return Err("no parts to put together".to_owned());
        };
        if !anatomy.strands.is_empty() || !anatomy.before.is_empty() || !anatomy.stores.is_empty() {
            return Err("something is computed where parts are put together".to_owned());
        }
        let ranks = self.group(&over)?;
        let operand = *self.graph().operands(core).first().ok_or("parts of nothing")?;
        let ty = self.graph().tensor(operand).ok_or("parts of what is no tensor")?.clone();
        let at = ty.axes.iter().position(|a| a.name == axis).ok_or("parts of another axis")?;
        let (outer, inner) = ty.axes.split_at(at);
        if let Some(rows) = inner.iter().find(|a| a.is_rows()) {
            return Err(format!("rows of other ranks (`{}`) are put together", rows.name));
        }
        let bytes = ty.dtype.bytes_for(inner.iter().map(fixed).product());
        if !bytes.is_multiple_of(WORD_BYTES) {
            return Err(format!("parts of {bytes} bytes are put together; {WORD_BYTES} are moved at once"));
        }
        let words = bytes / WORD_BYTES;
        let rows = outer.iter().find(|a| a.is_rows()).map(|a| a.name.clone());
        let factor = outer.iter().map(fixed).product();
        let part = self.memory(operand).ok_or("parts that lie nowhere")?;
        let mut text = format!("// {}\n#include \"seam.cuh\"\n\n", self.title());
        let _ = writeln!(
            text,
            "extern \"C\" __global__ void __launch_bounds__({THREADS}, 1) @NAME@(const __grid_constant__ Peers peers, const int rows, const u8* part, u8* whole) {{\n  Joined<{ranks}, {words}, {THREADS}>::run(peers, part, whole, rows);\n}}"
        );
        let params =
            vec![Param::Peers { over, slot_bytes: 0 }, Param::Rows { axis: rows, factor }, part, Param::Value(core)];
        let (threads, stem) = (THREADS as u32, stem(&self.region.name, "gather"));
        self.exchange(Unit { text, threads, dynamic_bytes: 0, stem }, params);
        Ok(())
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
    fn as_it_is(&self, id: ValueId) -> Result<(Graph, ValueId), String> {
        let mut builder = GraphBuilder::new();
        let ty = self.graph().node(id).ty.clone();
        let dtype = self.graph().tensor(id).ok_or_else(|| format!("{id} is no tensor"))?.dtype;
        let from = builder.input("row", ty.clone());
        let to = builder.add(Op::Round(dtype), &[from], ty, None);
        Ok((builder.finish(), to))
    }

    /// The row kernel that sends the own term of a sum.
    fn sent(&self, ending: &Ending, operand: ValueId, link: Link) -> Result<rows::RowKernel, String> {
        let memory = |id| self.memory(id);
        let values = self.needed(ending, None, std::iter::once(operand));
        if !values.is_empty() {
            let mut job = self.job(ending, None, &memory);
            job.values = values;
            job.outputs = vec![(operand, Sink::Wire)];
            job.in_place = false;
            job.link = Some(link);
            return rows::generate(&job);
        }
        let (graph, to) = self.as_it_is(operand)?;
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
