//! **plan memory** (kernel level → plan)
//!
//! ```text
//! region a rows   { %a }      a @4096+2048
//! region b matmul { %b }      b @6144+4096    a, b live
//! region c rows   { %c }      c @4096+2048    a is dead, c takes its place
//! ```
//!
//! Why: nothing allocates after load, so every value has its place before the first step.
//! When: always, once per bucket of the target. (1) Values that graphs exchange by name, and results, have places of
//! their own for the whole step, at the start of the arena. (2) A value that is read inside its region alone has no place.
//! (3) Other values live from the launch that makes them to the last that reads them or a view of them, and take the
//! lowest place that is free for so long; or that of a value which dies in the launch that makes them, where the region
//! reads each of its rows before it writes it ([`ir::Anatomy::overwrites`]). Programs run one after the other, so they share
//! that space. (4) An output is made in its shared place if nothing reads the old content from then on, save the making
//! region itself where it may write over it; otherwise it is moved there at the end of the program. (5) Places are multiples
//! of 64 bytes. (6) A launch records the kernel of its kind that fits the bucket, the launches it reads from, and whether it
//! may start while the one before it ends. (7) Rows that a model exports for its drafter stand before all else (`captured.rs`).
//! Kind: `Exact`.
//! Places: `shared` here for (1), `program.rs::local_places` for (3). Tests: `tests.rs` here, `ir::verify_plan` on every plan,
//! the independent walk of `check_plan`, plans run on poisoned bytes in `validate/plan.rs`, and `tests/damaged_plans.rs`.

mod buckets;
mod captured;
mod kv;
mod lifetimes;
mod program;
mod variants;

#[cfg(test)]
mod tests;

use crate::error::defect;
use crate::{Compile, Kind, Level, PassError, PassInfo};
use captured::Reserved;
use indexmap::IndexMap;
use ir::{Bucket, BucketPlan, Buffer, KernelEntry, KernelModule, Plan, PlanEntry, TensorType};
use targets::Fuse;
use variants::Variants;

/// What the pass says about itself.
pub const INFO: PassInfo =
    PassInfo { name: "plan memory", level: Level::Plan, kind: Kind::Exact, why: "nothing allocates after load" };

/// Places are multiples of this many bytes: a cache line, and what wide loads want.
pub const ALIGN_BYTES: u64 = 64;

/// Runs the pass.
pub fn run(kernels: &KernelModule, compile: &Compile<'_>) -> Result<Plan, PassError> {
    let target = compile.target;
    let kv = kv::layouts(kernels, target)?;
    let reserved = Reserved::of(kernels, target)?;
    let mut entries = Vec::new();
    for entry in &kernels.entries {
        let buckets = buckets::of(entry, kernels, target);
        if buckets.is_empty() {
            return Err(PassError {
                code: "P0302",
                message: format!("target `{}` has no bucket for entry `{}`", target.name, entry.name),
                help: format!("add `[[bucket]]` with `entry = \"{}\"`, or without `entry`, to the target", entry.name),
                span: None,
            });
        }
        let plans = buckets.into_iter().map(|b| bucket_plan(entry, b, &target.fuse, &reserved));
        let buckets = plans.collect::<Result<Vec<_>, _>>()?;
        let captures = reserved.captured(&entry.name);
        entries.push(PlanEntry { name: entry.name.clone(), instances: entry.instances.clone(), captures, buckets });
    }
    let arena_bytes = entries.iter().flat_map(|e| &e.buckets).map(|b| b.arena_bytes).max().unwrap_or(0);
    if let Some(limit) = target.limits.arena_bytes
        && arena_bytes > limit
    {
        return Err(PassError {
            code: "P0305",
            message: format!("the largest bucket needs {arena_bytes} bytes, target `{}` allows {limit}", target.name),
            help: "use fewer tokens in the largest bucket, or raise `limits.arena_bytes`".to_owned(),
            span: None,
        });
    }
    Ok(Plan { kv, entries, arena_bytes })
}

fn bucket_plan(entry: &KernelEntry, bucket: Bucket, fuse: &Fuse, reserved: &Reserved) -> Result<BucketPlan, PassError> {
    let shared = shared(entry, &bucket, reserved)?;
    let base = shared.values().map(|b| b.offset_bytes + b.bytes).max().unwrap_or(0).max(reserved.end);
    let mut arena_bytes = base;
    let mut programs = Vec::new();
    for graph in &entry.graphs {
        let (program, end) = program::plan(graph, &bucket, &shared, align(base), &Variants { bucket: &bucket, fuse })?;
        arena_bytes = arena_bytes.max(end);
        programs.push(program);
    }
    if fuse.dependent_launch {
        variants::mark_dependent(&mut programs);
    }
    Ok(BucketPlan { bucket, arena_bytes: align(arena_bytes), shared, programs })
}

/// Places of what graphs exchange by name: inputs and outputs of every graph, in the order of the graphs.
fn shared(entry: &KernelEntry, bucket: &Bucket, reserved: &Reserved) -> Result<IndexMap<String, Buffer>, PassError> {
    let mut shared: IndexMap<String, Buffer> = reserved.shared(&entry.name);
    let mut next = reserved.end;
    for graph in &entry.graphs {
        let graph = &graph.graph;
        let inputs = graph.inputs.iter().filter_map(|v| Some((graph.input_name(*v)?, *v)));
        let outputs = graph.outputs.iter().map(|(n, v)| (n.as_str(), *v));
        for (name, value) in inputs.chain(outputs) {
            if shared.contains_key(name) {
                continue;
            }
            let ty = graph.tensor(value).ok_or_else(|| defect(format!("`{name}` crosses graphs and is no tensor")))?;
            let buffer = Buffer { offset_bytes: next, bytes: bytes(ty, bucket, name)?, dtype: ty.dtype };
            next = align(next + buffer.bytes);
            shared.insert(name.to_owned(), buffer);
        }
    }
    Ok(shared)
}

/// Bytes of a value at the bucket's largest step.
fn bytes(ty: &TensorType, bucket: &Bucket, name: &str) -> Result<u64, PassError> {
    bucket.bytes(ty).ok_or_else(|| PassError {
        code: "P0301",
        message: format!(
            "`{name}` is {ty}, and steps bring rows along {}, {} and {} only",
            ir::TOKEN_ROWS,
            ir::WANTED_ROWS,
            ir::SEQUENCE_ROWS
        ),
        help: "declare the entry's inputs with these axes, or give the axis a length in `[dims]`".to_owned(),
        span: None,
    })
}

fn align(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGN_BYTES)
}
