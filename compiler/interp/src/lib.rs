//! The interpreter: what a graph means, at the model and the graph level.
//!
//! It is the judge of every pass and every kernel, so it is slow, direct and reads like `docs/ops.md`, whose labels its
//! errors cite. Values are whole tensors, one operation runs at a time, nothing is fused or reordered. Storage formats
//! narrower than binary32 are kept as binary32 numbers that they hold exactly.
//!
//! Sums whose order is left open ([`ir::Order::Any`]) accumulate in binary64 and round once, which is as near to the exact sum as one
//! gets; everything else is exact to the bit and shared with the kernels through the `numerics` crate.
//!
//! A sharded program runs on all ranks in lock step ([`run_ranks`]): every rank has its own environment, weights and cache,
//! and only [`exchange`] sees those of more than one.
//!
//! An ill-formed graph, a wrong shape or an index out of range is an [`InterpError`], never a panic. The crate knows no
//! model, no file and no device: weights, cache and traces come in through [`WeightSource`], [`Cache`] and [`Hooks`].

mod cache;
mod context;
mod env;
mod error;
mod eval;
mod ops;
mod ranks;
mod run;
mod shape;
mod tensor;

pub use cache::{Cache, CachedRow, MemoryCache, NoCache};
pub use context::{Context, Hooks, NoHooks, NoWeights, Site, WeightMap, WeightSource};
pub use env::Env;
pub use error::{Fault, InterpError};
pub use eval::eval_graph;
pub use ops::collective::{Ranks, exchange};
pub use ops::speculation::walk_slot;
pub use ranks::{RankWeights, run_ranks, slice_for_rank};
pub use run::{Outputs, run_entry, run_model};
pub use tensor::{Data, Tensor};
