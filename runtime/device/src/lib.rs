//! Devices: executors that run a compiled model, and the weights they run it with.
//!
//! ```text
//! checkpoint/   files → weights in memory
//! prepare/      kernel module + plan + weights → kernels with resolved geometry, per graph and instance
//! walker.rs     one walk through a bucket's programs: the only place that knows launch order
//! segment.rs    operations of one or more regions, run some rows at a time
//! team.rs       threads that stay awake while steps of few rows follow each other
//! kernels/      what an operation computes, on the CPU
//! cpu.rs        the executor that serves: walker + kernels + paged cache
//! cuda/         the executor that runs an artifact's kernels on a CUDA device
//! truth.rs      the executor that defines: the compiler's interpreter behind the same contract
//! shell.rs      what both are around a step: tickets, page copies, probes
//! ahead.rs      an executor on a thread of its own, which takes a second step while the first runs
//! files.rs      the host tier in files
//! probe.rs      values traced out of, and injected into, either of them
//! ```
//!
//! Nothing here knows a request, a scheduler or a spec. A step that breaks the contract is an error, never a panic.

pub mod checkpoint;

mod ahead;
mod arena;
mod cache;
mod contract;
mod cpu;
mod cuda;
mod drafting;
mod error;
mod files;
mod finish;
mod kernels;
mod load;
mod prepare;
mod probe;
mod segment;
mod shell;
mod store;
mod team;
mod threads;
mod truth;
mod view;
mod walker;

pub use ahead::Ahead;
pub use checkpoint::Weights;
pub use cpu::CpuExecutor;
pub use cuda::{CudaExecutor, Given, Ranks, Steps, Timed, Verdict, describe_device, selftest};
pub use error::PrepareError;
pub use files::FileTier;
pub use kernels::matmul::has_fused_multiply_add;
pub use load::{
    ExecutorKind, decoded_at_once, load, load_drafting, load_probed, load_shared, pool_pages_for, pool_pages_of,
    rows_are_apart,
};
pub use probe::{Probe, ProbeError, Probed, Tensor, TensorData};
pub use store::WeightStore;
pub use threads::{ThreadsError, threads, use_threads};
pub use truth::InterpExecutor;
