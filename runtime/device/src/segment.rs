//! A segment run: some rows at a time through all of its operations, rows shared out among threads.

use crate::arena::{Arena, Around, Slot};
use crate::cache::Cache;
use crate::contract::Rows;
use crate::kernels::{Kernel, Launching};
use crate::prepare::{Operation, Params, Prepared, RowCounts, RowsOf, Segment, Sink, Source, Spot};
use crate::team::{Gathered, gather};
use crate::threads::Company;
use crate::view::{Target, View};
use ir::ValueId;
use rayon::prelude::*;
use std::cell::Cell;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Work below this many element operations is not worth waking a thread (a wake-up costs some ten microseconds).
const PARALLEL_WORK: usize = 1 << 16;

/// Work that threads which are awake share out, by rows: less is done before it is handed over; with more, each had better have its part of the
/// weights, which all of them would read otherwise.
const TEAM_WORK: Range<usize> = 1 << 13..1 << 21;

/// Rows that such a thread has at least.
const TEAM_ROWS: usize = 2;

/// Rows at hand: enough that a weight is read seldom, few enough that what is between operations stays near.
const ROWS: Bounds = Bounds { least: 16, most: 256 };

struct Bounds {
    least: usize,
    most: usize,
}

/// Rows at hand where threads share blocks out: enough blocks that one thread that waits is not everybody waiting.
const PARALLEL_ROWS: usize = 64;

/// Scratch at most: some of it is always in the second-level cache.
const SCRATCH_BYTES: usize = 3 << 20;

/// Operands that are looked at without a list in memory; only joins have more.
const FEW: usize = 4;

/// Why an operation could not be finished.
pub(crate) struct Fault {
    pub id: ValueId,
    pub fact: String,
}

/// What a probe does with a value just computed: value, first row, what stands there.
pub(crate) type Hook<'h> = dyn FnMut(ValueId, usize, &mut Target<'_>) -> Result<(), engine::StepError> + 'h;

/// A fault of the device, or of a probe.
pub(crate) enum Stop {
    Fault(Fault),
    Probe(engine::StepError),
}

/// A segment about to run.
pub(crate) struct Run<'a> {
    pub graph: &'a Prepared,
    pub params: &'a Params,
    pub segment: &'a Segment,
    pub rows: &'a Rows,
    pub counts: RowCounts,
    /// Slot of the layer in each KV kind.
    pub slots: &'a [Option<usize>],
    /// The rows that run, ascending and apart; `None`: all.
    pub seen: Option<&'a [Range<usize>]>,
    /// Threads that are awake, for steps of few rows.
    pub team: Option<&'a Gathered>,
}

/// Who runs blocks of rows, the more the larger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    /// This thread, one after the other.
    This,
    /// Threads that are awake.
    Team,
    /// All threads, which are woken.
    All,
}

/// The caches, written by one block of rows at a time or read by all.
enum Pools<'a> {
    Read(&'a Cache),
    Write(Mutex<&'a mut Cache>),
}

/// Rows that go through the operations together.
struct Block<'b> {
    first: usize,
    count: usize,
    company: Company,
    reads: &'b [View<'b>],
    pools: &'b Pools<'b>,
}

thread_local! {
    /// Kept from segment to segment; taken while in use, since a thread that waits for others may run another segment meanwhile.
    static SCRATCH: Cell<Arena> = Cell::new(Arena::default());
}

/// Whether rows are too few to wake threads for.
fn is_few(rows: usize) -> bool {
    rows < ROWS.least * rayon::current_num_threads()
}

/// Threads that are awake for a step of so many rows: of several, and few.
pub(crate) fn team_for(rows: usize) -> Option<Gathered> {
    if rows >= TEAM_ROWS * 2 && is_few(rows) { gather() } else { None }
}

impl Run<'_> {
    /// Runs its rows. With a hook, rows run in order on this thread, and it sees every value.
    pub fn run(
        &self,
        arena: &mut Arena,
        pools: &mut Cache,
        aside: &mut Vec<u64>,
        hook: Option<&mut Hook<'_>>,
    ) -> Result<(), Stop> {
        let total = self.counts.of(self.segment.rows);
        if total == 0 {
            return Ok(());
        }
        let slots = |spots: &[Spot]| spots.iter().map(|s| s.slot(self.counts)).collect::<Vec<Slot>>();
        let (reads, targets) = arena.open(&slots(&self.segment.reads), &slots(&self.segment.writes), aside);
        let pools = if self.segment.stores { Pools::Write(Mutex::new(pools)) } else { Pools::Read(pools) };
        let mut blocks = Vec::new();
        let mut by = By::This;
        let all = 0..total;
        for seen in self.seen.unwrap_or(std::slice::from_ref(&all)) {
            let (rows, shared) = self.rows_at_once(seen.len(), hook.is_some());
            by = by.max(shared);
            blocks.extend(seen.clone().step_by(rows.max(1)).map(|first| {
                let count = rows.min(seen.end - first);
                let company = if rows >= seen.len() { Company::Nobody } else { Company::ANY };
                Block { first, count, company, reads: &reads, pools: &pools }
            }));
        }
        if by == By::Team {
            let parts = blocks.len();
            blocks.iter_mut().enumerate().for_each(|(part, b)| b.company = Company::Others { part, parts });
        }
        let mut parts: Vec<Vec<Option<Target<'_>>>> =
            blocks.iter().map(|_| Vec::with_capacity(targets.len())).collect();
        for (mut rest, spot) in targets.into_iter().zip(&self.segment.writes) {
            let mut at = 0;
            for (block, part) in blocks.iter().zip(&mut parts) {
                let (_, from) = rest.split((block.first - at) * spot.row);
                let (own, behind) = from.split(block.count * spot.row);
                part.push(Some(own));
                (rest, at) = (behind, block.first + block.count);
            }
        }
        let blocks: Vec<_> = blocks.iter().zip(parts).collect();
        let run = |(block, mut targets): (&Block<'_>, Vec<Option<Target<'_>>>)| self.block(block, &mut targets, None);
        match (by, self.team) {
            (By::All, _) => blocks.into_par_iter().try_for_each(run),
            (By::Team, Some(team)) => team.run(blocks, run),
            _ => {
                let mut hook = hook;
                blocks
                    .into_iter()
                    .try_for_each(|(block, mut targets)| self.block(block, &mut targets, hook.as_deref_mut()))
            }
        }
    }

    /// How many rows go through the operations together, and who runs them.
    fn rows_at_once(&self, total: usize, in_order: bool) -> (usize, By) {
        if self.segment.rows == RowsOf::Nothing {
            return (1, By::This);
        }
        let threads = rayon::current_num_threads();
        let near = (SCRATCH_BYTES / self.segment.scratch_bytes.max(1)).clamp(ROWS.least, ROWS.most) / 8 * 8;
        let work = total.saturating_mul(self.segment.work);
        if is_few(total) {
            let parts = self.team.map_or(1, Gathered::parts).min(total / TEAM_ROWS);
            if !in_order && parts > 1 && TEAM_WORK.contains(&work) {
                return (total.div_ceil(parts), By::Team);
            }
            // Few rows stay together, so that a kernel alone with them can share out its weight.
            return (total, By::This);
        }
        if in_order || threads == 1 || work < PARALLEL_WORK {
            return (even(total, near), By::This);
        }
        (even(total, total.div_ceil(threads).min(near).min(PARALLEL_ROWS)), By::All)
    }

    fn block(
        &self,
        block: &Block<'_>,
        targets: &mut [Option<Target<'_>>],
        mut hook: Option<&mut Hook<'_>>,
    ) -> Result<(), Stop> {
        let mut scratch = SCRATCH.take();
        scratch.fit(self.segment.scratch_bytes * block.count);
        let mut result = Ok(());
        for operation in &self.segment.operations {
            if operation.done_before && hook.is_none() {
                continue;
            }
            result = self.operation(operation, block, &mut scratch, targets, &mut hook);
            if result.is_err() {
                break;
            }
        }
        SCRATCH.set(scratch);
        result
    }

    fn operation(
        &self,
        operation: &Operation,
        block: &Block<'_>,
        scratch: &mut Arena,
        targets: &mut [Option<Target<'_>>],
        hook: &mut Option<&mut Hook<'_>>,
    ) -> Result<(), Stop> {
        let fault = |fact: String| Stop::Fault(Fault { id: operation.id, fact });
        let Some(kernel) = &self.graph.value(operation.id).kernel else { return Ok(()) };
        // A probe sees what stands before the rounding, too.
        match operation.rounded.filter(|_| hook.is_none()).unwrap_or(operation.into) {
            Sink::Cache => {
                let around = scratch.all();
                self.with_operands(operation, block, &around, targets, |views| self.store(kernel, block, views))
                    .map_err(fault)
            }
            Sink::Scratch(spot) => {
                let (around, mut target) = scratch.around(at_hand(spot, block.count));
                let run =
                    |views: &[View<'_>]| kernel.run(&self.launching(operation.id, block), views, reborrow(&mut target));
                self.with_operands(operation, block, &around, targets, run).map_err(fault)?;
                see(hook, operation.id, block.first, &mut target)
            }
            Sink::Written(index) => {
                let around = scratch.all();
                let Some(mut target) = targets.get_mut(index).and_then(Option::take) else {
                    return Err(fault("its result has no place in the segment".to_owned()));
                };
                let run =
                    |views: &[View<'_>]| kernel.run(&self.launching(operation.id, block), views, reborrow(&mut target));
                self.with_operands(operation, block, &around, targets, run).map_err(fault)?;
                let seen = see(hook, operation.id, block.first, &mut target);
                targets[index] = Some(target);
                seen
            }
        }
    }

    fn launching<'l>(&'l self, id: ValueId, block: &'l Block<'_>) -> Launching<'l> {
        Launching {
            rows: self.rows,
            first: block.first,
            pools: match block.pools {
                Pools::Read(pools) => Some(*pools),
                Pools::Write(_) => None,
            },
            slots: self.slots,
            panels: self.params.panels(id),
            number: self.params.number(id),
            company: block.company,
            team: self.team.filter(|_| block.company.is_nobody()),
        }
    }

    fn store(&self, kernel: &Kernel, block: &Block<'_>, views: &[View<'_>]) -> Result<(), String> {
        let (Kernel::Store(store), Pools::Write(pools)) = (kernel, block.pools) else {
            return Err("an operation without a result".to_owned());
        };
        let slot = self.slots.get(store.kind).copied().flatten().ok_or("a store in a layer without cache")?;
        let mut pools = pools.lock().unwrap_or_else(PoisonError::into_inner);
        match pools.pool_mut(store.kind) {
            Some(mut pool) => store.run(self.rows, block.first..block.first + block.count, &mut pool, slot, views),
            None => return Err("a store without a pool".to_owned()),
        }
        Ok(())
    }

    /// Calls `run` with the operands' rows at hand.
    fn with_operands(
        &self,
        operation: &Operation,
        block: &Block<'_>,
        scratch: &Around<'_>,
        targets: &[Option<Target<'_>>],
        run: impl FnOnce(&[View<'_>]) -> Result<(), String>,
    ) -> Result<(), String> {
        let packed = self.params.panels(operation.id).is_some();
        let view = |i: usize| -> Result<View<'_>, String> {
            Ok(match operation.from[i] {
                // The weight of a packed product is read from its panels.
                _ if packed && i == 1 => View::F32(&[]),
                Source::Scratch(spot) => scratch.view(at_hand(spot, block.count)),
                Source::Written(index) => match targets.get(index).and_then(Option::as_ref) {
                    Some(target) => target.view(),
                    None => return Err("an operand has no place in the segment".to_owned()),
                },
                Source::Read { index, whole } => {
                    let spot = self.segment.reads[index];
                    match whole || spot.rows == RowsOf::Nothing {
                        true => block.reads[index],
                        false => block.reads[index].part(block.first * spot.row, block.count * spot.row),
                    }
                }
                Source::Parameter(id) => match self.params.data(id) {
                    Some(param) => param.view(),
                    None => return Err(format!("operand `{}` is nowhere", self.graph.title(id))),
                },
            })
        };
        let count = operation.from.len();
        if count <= FEW {
            let mut views = [View::Bool(&[]); FEW];
            for (i, slot) in views.iter_mut().enumerate().take(count) {
                *slot = view(i)?;
            }
            return run(&views[..count]);
        }
        run(&(0..count).map(view).collect::<Result<Vec<_>, _>>()?)
    }
}

/// At most `most` rows or the next multiple of 8, in blocks of nearly one length.
fn even(total: usize, most: usize) -> usize {
    total.div_ceil(total.div_ceil(most.max(1)).max(1)).next_multiple_of(8)
}

/// A place of the scratch for the rows at hand.
fn at_hand(spot: Spot, rows: usize) -> Slot {
    Slot { offset: spot.offset * rows, dtype: spot.dtype, len: spot.row * rows }
}

/// The same place, lent for a while.
fn reborrow<'t>(target: &'t mut Target<'_>) -> Target<'t> {
    match target {
        Target::F32(x) => Target::F32(x),
        Target::Bf16(x) => Target::Bf16(x),
        Target::I32(x) => Target::I32(x),
        Target::Bool(x) => Target::Bool(x),
        Target::E4m3(x) => Target::E4m3(x),
        Target::E5m2(x) => Target::E5m2(x),
        Target::Nvfp4(x) => Target::Nvfp4(x),
    }
}

fn see(hook: &mut Option<&mut Hook<'_>>, id: ValueId, first: usize, target: &mut Target<'_>) -> Result<(), Stop> {
    match hook {
        Some(hook) => hook(id, first, target).map_err(Stop::Probe),
        None => Ok(()),
    }
}
