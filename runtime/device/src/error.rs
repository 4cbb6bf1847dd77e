//! Why an executor cannot be made of an artifact, a checkpoint and a pool size.

/// Of a weight that the checkpoint did not give.
pub(crate) const NOT_LOADED: &str = "which was not loaded; load the checkpoint with this artifact's recipes";

/// What stands in the way. Each says what was found, what was needed, and what to do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PrepareError {
    /// An operation that this device has no kernel for.
    #[error(
        "D0101: `{value}` in graph `{graph}` is {fact}, which the cpu executor does not run; use `--executor interp`"
    )]
    Unsupported {
        /// Graph.
        graph: String,
        /// Value.
        value: String,
        /// What about it.
        fact: String,
    },
    /// A weight that the checkpoint does not give.
    #[error("D0102: graph `{graph}` uses weight {weight}, {fact}")]
    WeightMissing {
        /// Graph.
        graph: String,
        /// Weight, with its layer.
        weight: String,
        /// Why it is not there, and what to do.
        fact: &'static str,
    },
    /// A weight of another size.
    #[error(
        "D0103: weight {weight} has {found} elements, graph `{graph}` needs {needed}; checkpoint and artifact do not belong together"
    )]
    WeightSize {
        /// Graph.
        graph: String,
        /// Weight, with its layer.
        weight: String,
        /// Elements loaded.
        found: usize,
        /// Elements of the graph's value.
        needed: usize,
    },
    /// Kernels and plan contradict each other.
    #[error("D0104: the plan {plan}, the kernels {kernels}; the artifact is damaged, compile it again")]
    Mismatch {
        /// What the plan says.
        plan: String,
        /// What the kernel module says.
        kernels: String,
    },
    /// Pools that cannot work.
    #[error("D0105: {found} pages are given for `{kind}`, {needed}; see `pool_pages_for`")]
    Pool {
        /// KV kind.
        kind: String,
        /// Pages given.
        found: usize,
        /// What would do.
        needed: String,
    },
    /// Pools that this machine has no memory for.
    #[error(
        "D0108: {pages} pages of `{kind}` need {bytes} bytes of cache, which this machine does not give; hold fewer or shorter sequences at once"
    )]
    PoolMemory {
        /// KV kind.
        kind: String,
        /// Pages asked for.
        pages: usize,
        /// Their bytes.
        bytes: u128,
    },
    /// An arena that this machine has no memory for.
    #[error(
        "D0110: the plan needs an arena of {bytes} bytes, which this machine does not give; compile for a target with smaller buckets"
    )]
    ArenaMemory {
        /// Bytes of the largest bucket.
        bytes: u64,
    },
    /// An artifact for another machine.
    #[error(
        "D0109: the artifact is compiled for `{found}` (target `{target}`), the cpu executor runs `{needed}`; compile the spec for a target of that architecture, or use `--executor interp`"
    )]
    Arch {
        /// Target of the artifact.
        target: String,
        /// Its architecture.
        found: String,
        /// Architecture of the executor.
        needed: &'static str,
    },
    /// An executor that is not in this build.
    #[error(
        "D0106: executor `{0}` is not in this build, which has `interp`, `cpu` and `cuda`; choose one of these with `--executor`"
    )]
    NotBuilt(String),
    /// A drafter on a device without kernels for it.
    #[error("D0112: the cuda executor has no kernels for a drafter; use `--executor cpu`, or leave `--draft` away")]
    NoDrafts,
    /// A CUDA device that is missing, of another architecture, or out of memory.
    #[error("D0111: the cuda executor cannot run here: {0}; `beam-run doctor` says what this machine has")]
    Device(String),
    /// A value with a row for something that a step does not bring.
    #[error(
        "D0107: `{value}` in graph `{graph}` has rows of axis `{axis}`, a step has rows of `T` (tokens), `R` (wanted) and `S` (sequences) only; give it one of these in the spec, or compile the artifact again"
    )]
    RowAxis {
        /// Graph.
        graph: String,
        /// Value.
        value: String,
        /// Its row axis.
        axis: String,
    },
}
