//! The door: an artifact, weights and a choice of executor in, an executor out.

use crate::cpu::CpuExecutor;
use crate::cuda::{CudaExecutor, Ranks};
use crate::error::PrepareError;
use crate::probe::Probed;
use crate::store::WeightStore;
use crate::truth::InterpExecutor;
use artifact::Artifact;
use engine::Executor;
use ir::{KvLayout, Plan, RowsPerSequence, TOKEN_ROWS};
use std::fmt;
use std::str::FromStr;

/// Architecture of the artifacts that the `cpu` executor runs.
const CPU_ARCH: &str = "cpu";

/// Which executor runs the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutorKind {
    /// The interpreter: truth.
    Interp,
    /// Rust kernels on this machine's processor.
    Cpu,
    /// The artifact's kernels on CUDA devices.
    Cuda(Ranks),
}

impl FromStr for ExecutorKind {
    type Err = PrepareError;

    fn from_str(word: &str) -> Result<Self, PrepareError> {
        match word {
            "interp" => Ok(ExecutorKind::Interp),
            "cpu" => Ok(ExecutorKind::Cpu),
            "cuda" => Ok(ExecutorKind::Cuda(Ranks::Apart)),
            other => Err(PrepareError::NotBuilt(other.to_owned())),
        }
    }
}

impl fmt::Display for ExecutorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ExecutorKind::Interp => "interp",
            ExecutorKind::Cpu => "cpu",
            ExecutorKind::Cuda(_) => "cuda",
        })
    }
}

/// An executor of an artifact with its weights; `pool_pages` per KV kind, see [`pool_pages_for`].
pub fn load(
    artifact: &Artifact,
    weights: &dyn WeightStore,
    kind: ExecutorKind,
    pool_pages: &[usize],
) -> Result<Box<dyn Executor>, PrepareError> {
    Ok(load_probed(artifact, weights, kind, pool_pages)?)
}

/// The same for an engine, which keeps pages apart: both KV kinds draw from one memory.
pub fn load_shared(
    artifact: &Artifact,
    weights: &dyn WeightStore,
    kind: ExecutorKind,
    pool_pages: &[usize],
) -> Result<Box<dyn Executor>, PrepareError> {
    let (kernels, plan) = (&artifact.kernels, &artifact.plan);
    check_arch(artifact, kind)?;
    Ok(match kind {
        ExecutorKind::Interp => {
            let mut executor = InterpExecutor::new(kernels, plan, weights, pool_pages)?;
            executor.share_memory();
            Box::new(executor)
        }
        ExecutorKind::Cpu => {
            let mut executor = CpuExecutor::new(kernels, plan, weights, pool_pages)?;
            executor.share_memory();
            Box::new(executor)
        }
        // Its memory is one allocation a kind.
        ExecutorKind::Cuda(placed) => Box::new(CudaExecutor::on(artifact, weights, pool_pages, placed)?),
    })
}

/// The same for a model with its drafter, whose weights are `drafter`; pages as [`pool_pages_of`] has them.
pub fn load_drafting(
    artifact: &Artifact,
    weights: &dyn WeightStore,
    drafter: &dyn WeightStore,
    kind: ExecutorKind,
    pool_pages: &[usize],
) -> Result<Box<dyn Executor>, PrepareError> {
    check_arch(artifact, kind)?;
    Ok(match kind {
        ExecutorKind::Interp => {
            let mut executor = InterpExecutor::with_drafter(artifact, weights, drafter, pool_pages)?;
            executor.share_memory();
            Box::new(executor)
        }
        ExecutorKind::Cpu => {
            let mut executor = CpuExecutor::with_drafter(artifact, weights, drafter, pool_pages)?;
            executor.share_memory();
            Box::new(executor)
        }
        ExecutorKind::Cuda(_) => return Err(PrepareError::NoDrafts),
    })
}

/// The interpreter runs what any target's regions mean; kernels run on their own architecture only.
fn check_arch(artifact: &Artifact, kind: ExecutorKind) -> Result<(), PrepareError> {
    let target = &artifact.manifest.target;
    if kind == ExecutorKind::Cpu && target.arch != CPU_ARCH {
        let (target, found) = (target.name.clone(), target.arch.clone());
        return Err(PrepareError::Arch { target, found, needed: CPU_ARCH });
    }
    Ok(())
}

/// The same, for those who trace and inject.
pub fn load_probed(
    artifact: &Artifact,
    weights: &dyn WeightStore,
    kind: ExecutorKind,
    pool_pages: &[usize],
) -> Result<Box<dyn Probed>, PrepareError> {
    let (kernels, plan) = (&artifact.kernels, &artifact.plan);
    check_arch(artifact, kind)?;
    Ok(match kind {
        ExecutorKind::Interp => Box::new(InterpExecutor::new(kernels, plan, weights, pool_pages)?),
        ExecutorKind::Cpu => Box::new(CpuExecutor::new(kernels, plan, weights, pool_pages)?),
        ExecutorKind::Cuda(placed) => Box::new(CudaExecutor::on(artifact, weights, pool_pages, placed)?),
    })
}

/// Pages per KV kind that hold `sequences` sequences of `context` tokens at once, the sink page included.
pub fn pool_pages_for(plan: &Plan, context: usize, sequences: usize) -> Vec<usize> {
    pages_of(&plan.kv, context, sequences)
}

/// The same for every kind that a model and its drafter have; the rows of a block need places behind the context.
pub fn pool_pages_of(artifact: &Artifact, context: usize, sequences: usize) -> Vec<usize> {
    let longest = artifact.drafter.as_ref().and_then(|d| d.longest()).map_or(0, |b| b.tokens);
    let rows = usize::try_from(longest).unwrap_or(usize::MAX);
    pages_of(&artifact.kv(), context.saturating_add(rows), sequences)
}

fn pages_of(kinds: &[KvLayout], context: usize, sequences: usize) -> Vec<usize> {
    let pages = |page_tokens: u64| {
        let per_sequence = context.div_ceil(usize::try_from(page_tokens).unwrap_or(usize::MAX).max(1));
        per_sequence.saturating_mul(sequences).saturating_add(1).max(2)
    };
    kinds.iter().map(|kv| pages(kv.page_tokens)).collect()
}

/// The most sequences of which a step decodes one row each; 1 for a plan without such buckets.
pub fn decoded_at_once(plan: &Plan) -> usize {
    let buckets = plan.entries.iter().flat_map(|entry| &entry.buckets).map(|of| &of.bucket);
    let sequences = buckets.filter(|bucket| bucket.rows == RowsPerSequence::One).map(|bucket| bucket.sequences);
    sequences.max().map_or(1, |most| usize::try_from(most).unwrap_or(usize::MAX).max(1))
}

/// Whether ranks have token rows of their own. Each then has the cache of its own sequences, and none goes on behind what another
/// has computed.
pub fn rows_are_apart(artifact: &Artifact) -> bool {
    places_of_rows(artifact) > 1
}

/// Over how many places of the mesh token rows are spread.
pub(crate) fn places_of_rows(artifact: &Artifact) -> u64 {
    let over = artifact.kernels.sharding.as_ref().and_then(|s| s.rows.get(TOKEN_ROWS));
    over.map_or(1, |over| artifact.memory.mesh.parts(over))
}
