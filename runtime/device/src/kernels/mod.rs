//! What a value's kernel computes. Each is prepared once per graph, with every stride resolved, and run on some rows of a step at a time.
//!
//! Row kernels compute the interpreter's bits: the same `numerics` functions in the same order. Matmul and attention have an order of
//! their own ([`matmul`], [`attend`]). No kernel lets a row depend on another, on the number of rows or on the number of threads.
//! Loops over elements are plain; standing in a dispatch of `pulp` lets the compiler use this machine's vectors for them, which
//! changes no bit.

pub(crate) mod attend;
pub(crate) mod block;
pub(crate) mod block_round;
pub(crate) mod cursor;
pub(crate) mod elementwise;
pub(crate) mod gather;
pub(crate) mod linear;
pub(crate) mod matmul;
pub(crate) mod moves;
pub(crate) mod nest;
pub(crate) mod panels;
pub(crate) mod reduce;
pub(crate) mod spread;
pub(crate) mod store;
pub(crate) mod top;
pub(crate) mod walk;

use crate::cache::Cache;
use crate::contract::Rows;
use crate::team::Gathered;
use crate::threads::Company;
use crate::view::{Target, View};
use panels::Panels;
use std::sync::Arc;

/// A prepared operation.
#[derive(Debug)]
pub(crate) enum Kernel {
    Elementwise(elementwise::Elementwise),
    Reduce(reduce::Reduce),
    Dot(reduce::Dot),
    Top(top::Top),
    Moves(moves::Moves),
    ShiftRows(moves::ShiftRows),
    Gather(gather::Gather),
    BlockRound(block_round::BlockRound),
    Linear(linear::Linear),
    Attend(attend::Attend),
    Store(store::Store),
    Walk(walk::Walk),
}

/// What a kernel knows besides its operands.
pub(crate) struct Launching<'a> {
    /// Rows of the step: sequences, positions, pages.
    pub rows: &'a Rows,
    /// The first of them that is computed here.
    pub first: usize,
    /// Cache pools by kind; none where a launch writes them.
    pub pools: Option<&'a Cache>,
    /// Slot of the layer that runs in each kind, where it has one.
    pub slots: &'a [Option<usize>],
    /// Weight of the product, packed.
    pub panels: Option<&'a Arc<Panels>>,
    /// Number of the layer instance, such as a scale.
    pub number: f32,
    /// Who computes beside it.
    pub company: Company,
    /// Threads that are awake, where nobody does.
    pub team: Option<&'a Gathered>,
}

/// Why a launch cannot be finished: an index out of its range. Texts name both facts.
pub(crate) type KernelResult = Result<(), String>;

impl Kernel {
    /// Computes `out`, which holds whole rows; operands that have the row axis begin with the same row.
    pub fn run(&self, launch: &Launching<'_>, operands: &[View<'_>], out: Target<'_>) -> KernelResult {
        match self {
            Kernel::Elementwise(k) => k.run(operands, out),
            Kernel::Reduce(k) => k.run(operands, out),
            Kernel::Dot(k) => k.run(operands, out),
            Kernel::Top(k) => k.run(operands, out),
            Kernel::Moves(k) => k.run(operands, out),
            Kernel::ShiftRows(k) => k.run(launch.first, operands, out),
            Kernel::Walk(k) => k.run(operands, out),
            Kernel::Gather(k) => return k.run(operands, out),
            Kernel::BlockRound(k) => return k.run(operands, out),
            Kernel::Linear(k) => return k.run(launch, operands, out),
            Kernel::Attend(k) => return k.run(launch, operands, out),
            Kernel::Store(_) => return Err("a store was launched as a computation".to_owned()),
        }
        Ok(())
    }

    /// Rough element operations per row of a result of `row` elements, to judge whether threads pay.
    pub fn work(&self, row: usize) -> usize {
        match self {
            Kernel::Elementwise(k) => row * k.work(),
            Kernel::Reduce(k) => row * k.terms(),
            Kernel::Dot(k) => row * k.terms() * 2,
            Kernel::Top(k) => row.max(k.terms()) * 8,
            Kernel::Moves(_) | Kernel::ShiftRows(_) | Kernel::Gather(_) | Kernel::Store(_) => row,
            Kernel::BlockRound(_) => row * 8,
            Kernel::Walk(k) => k.terms() * 16,
            Kernel::Linear(k) => row.saturating_mul(k.length()) / 8,
            // Its keys are not known before a step; a few dozen are typical of what is small.
            Kernel::Attend(_) => row * 32,
        }
    }
}
