//! What a value's kernel computes. Each is prepared once per graph, with every stride resolved, and run per launch.
//!
//! Row kernels compute the interpreter's bits: the same `numerics` functions in the same order. Matmul and attention have an order of
//! their own ([`matmul`], [`attend`]). No kernel lets a row depend on another, on the number of rows or on the number of threads.

pub(crate) mod attend;
pub(crate) mod elementwise;
pub(crate) mod gather;
pub(crate) mod linear;
pub(crate) mod matmul;
pub(crate) mod moves;
pub(crate) mod nest;
pub(crate) mod reduce;
pub(crate) mod store;
pub(crate) mod top;

use crate::cache::Pool;
use crate::contract::Rows;
use crate::view::{Target, View};
use matmul::Panels;
use rayon::prelude::*;
use std::sync::Arc;

/// Work below this many element operations is not worth waking a thread (a wake-up costs some ten microseconds).
const PARALLEL_WORK: usize = 1 << 17;

/// A prepared operation.
#[derive(Debug)]
pub(crate) enum Kernel {
    Elementwise(elementwise::Elementwise),
    Reduce(reduce::Reduce),
    Dot(reduce::Dot),
    Top(top::Top),
    Moves(moves::Moves),
    Gather(gather::Gather),
    Linear(linear::Linear),
    Attend(attend::Attend),
    Store(store::Store),
}

/// What a launch knows besides its operands.
pub(crate) struct Launching<'a> {
    /// Rows of the step: sequences, positions, pages.
    pub rows: &'a Rows,
    /// Cache pools by kind.
    pub pools: &'a [Pool],
    /// Slot of the layer that runs in each kind, where it has one.
    pub slots: &'a [Option<usize>],
    /// Weight of the launch's product, packed.
    pub panels: Option<&'a Arc<Panels>>,
    /// Number of the layer instance, such as a scale.
    pub number: f32,
}

/// Why a launch cannot be finished: an index out of its range. Texts name both facts.
pub(crate) type KernelResult = Result<(), String>;

impl Kernel {
    /// Computes `out`, which holds whole rows.
    pub fn run(&self, launch: &Launching<'_>, operands: &[View<'_>], out: Target<'_>) -> KernelResult {
        match self {
            Kernel::Elementwise(k) => k.run(operands, out),
            Kernel::Reduce(k) => k.run(operands, out),
            Kernel::Dot(k) => k.run(operands, out),
            Kernel::Top(k) => k.run(operands, out),
            Kernel::Moves(k) => k.run(operands, out),
            Kernel::Gather(k) => return k.run(operands, out),
            Kernel::Linear(k) => return k.run(launch, operands, out),
            Kernel::Attend(k) => return k.run(launch, operands, out),
            Kernel::Store(_) => return Err("a store was launched as a computation".to_owned()),
        }
        Ok(())
    }
}

/// Runs `each(first row, rows)` over `out` cut into runs of whole rows, on several threads if `work` per row warrants it.
pub(crate) fn over_rows(out: Target<'_>, row: usize, work: usize, each: impl Fn(usize, Target<'_>) + Sync) {
    let rows = out.len().checked_div(row).unwrap_or(0);
    let threads = rayon::current_num_threads();
    if rows < 2 || threads < 2 || rows.saturating_mul(work) < PARALLEL_WORK {
        return each(0, out);
    }
    // A few runs per thread even out what the scheduler does; none smaller than a quarter of the threshold.
    let least = (PARALLEL_WORK / 4).div_ceil(work.max(1));
    let run = rows.div_ceil(threads * 4).max(least).max(1);
    out.chunks(run * row).into_par_iter().enumerate().for_each(|(i, chunk)| each(i * run, chunk));
}
