//! **shard** (graph level → sharded level)
//!
//! ```text
//! one device                                     every rank of tp = 2
//! %w: bf16[ffn = 8, hidden]                      %w: bf16[ffn = 4, hidden]                       its rows
//! %g: f32[T, ffn = 8] = linear … (%x, %w)   ─►   %g: f32[T, ffn = 4] = linear … (%x, %w)
//! %d: bf16[hidden, ffn = 8]                      %d: bf16[hidden, ffn = 4]                       its columns
//! %y: f32[T, hidden] = linear … (%h, %d)         %p: f32[T, hidden] = linear … (%h, %d)          a part of the sum
//!                                                %y: f32[T, hidden] = all_reduce over [tp] … (%p)
//! ```
//!
//! Why: a model that does not fit one device, or is too slow there, runs on several: one program for all ranks, each with
//! its own parts of weights and caches.
//! When: the mesh has more than one rank. (1) An axis that `[shard]` spreads is cut into equal contiguous parts; of one
//! marked `or-replicate` neighbouring ranks may share an element. (2) An axis that some operation selects, cuts, joins,
//! views or sums along is whole wherever it reaches, back to the weight; at an entry's result it is gathered instead. The
//! largest along a spread axis is found per rank, and of the ranks' the largest.
//! (3) Contracting a spread axis leaves a partial sum, reading a spread table by ids a value that one rank has and the
//! others hold -0 for; `pending.rs` says where the sums over ranks stand. (4) A length that does not come out even, a
//! rank's row of nvfp4 that is no whole blocks, or a mesh axis that the spec gives nothing to, is an error.
//! Kind: `Refines("sums over ranks")`: sums that were open are added rank by rank; `witness.rs` has the same sums on one
//! device.
//! Tests: `tests/sharding.rs`; `tests/meshes.rs` runs the full model, made small, on many meshes.

mod axes;
mod constraints;
mod elsewhere;
mod error;
mod pending;
mod rewrite;
mod rows_back;
mod witness;

use crate::{Compile, Kind, Level, PassError, PassInfo, Refined};
use axes::Axes;
use ir::{Class, DType, Entry, Extent, Graph, Module, Op};

/// What the pass says about itself.
pub const INFO: PassInfo = PassInfo {
    name: "shard",
    level: Level::Sharded,
    kind: Kind::Refines("sums over ranks"),
    why: "every rank has its parts of weights and caches",
};

/// Runs the pass.
pub fn run(module: &Module, compile: &Compile<'_>) -> Result<Refined, PassError> {
    let mesh = compile.mesh;
    if mesh.is_single() {
        return Ok(Refined { module: module.clone(), witness: None });
    }
    for (axis, _) in mesh.axes() {
        let known = module.facts.shard.values().flatten().any(|word| word == axis && word != axes::OR_REPLICATE);
        if !known {
            return Err(error::unknown_mesh_axis(axis, mesh, &module.facts));
        }
    }
    let axes = Axes::solve(module, mesh)?;
    let (mut local, mut witness) = (Vec::new(), Vec::new());
    for (index, entry) in module.entries.iter().enumerate() {
        let (a, b) = sharded(index, entry, &axes)?;
        local.push(a);
        witness.push(b);
    }
    let witness = module.with_entries(witness);
    let module = Module { sharding: Some(axes.sharding()), ..module.with_entries(local) };
    Ok(Refined { module, witness: Some(witness) })
}

/// An entry on one rank, and its witness.
fn sharded(index: usize, entry: &Entry, axes: &Axes<'_>) -> Result<(Entry, Entry), PassError> {
    let last = entry.classes.len() + 1;
    let mut graphs: Vec<(Graph, Graph)> = Vec::new();
    for (place, (_, graph)) in entry.graphs().enumerate() {
        let number = axes::number(index, place);
        let pending = pending::find(graph, number, axes);
        blocks_stay_whole(graph, number, axes)?;
        let local = rewrite::local(graph, number, axes, &pending, place == last)?;
        graphs.push((local, witness::of(graph, axes, &pending)?));
    }
    let (local, witness): (Vec<Graph>, Vec<Graph>) = graphs.into_iter().unzip();
    Ok((with_graphs(entry, local)?, with_graphs(entry, witness)?))
}

/// A rank's part of a matrix in nvfp4 has whole blocks.
fn blocks_stay_whole(graph: &Graph, number: usize, axes: &Axes<'_>) -> Result<(), PassError> {
    for id in graph.ids() {
        let (Op::Linear { contract, .. }, [_, w, ..]) = (&graph.node(id).op, &graph.operands(id)[..]) else { continue };
        let (Some(first), Some(ty)) = (contract.first(), graph.tensor(*w)) else { continue };
        if ty.dtype != DType::Nvfp4 {
            continue;
        }
        let lengths = ty.axes.iter().filter(|a| contract.contains(&a.name)).map(|a| match a.extent {
            Extent::Fixed(n) => n,
            Extent::Rows => 1,
        });
        let (whole, parts) = (lengths.product::<u64>(), axes.parts(axes.of(number, *w, first)));
        if !whole.is_multiple_of(parts * DType::BLOCK) {
            return Err(error::blocks_apart(first, whole, axes.mesh(), parts, graph.node(id).span));
        }
    }
    Ok(())
}

/// The entry with other graphs, in the order of [`Entry::graphs`].
pub(crate) fn with_graphs(entry: &Entry, graphs: Vec<Graph>) -> Result<Entry, PassError> {
    let mut graphs = graphs.into_iter();
    let mut next = || graphs.next().ok_or_else(|| crate::error::defect("a graph of an entry is gone"));
    let first = next()?;
    let classes = entry.classes.iter().map(|c| Ok(Class { graph: next()?, ..c.clone() }));
    let classes = classes.collect::<Result<Vec<_>, PassError>>()?;
    let last = next()?;
    Ok(Entry { name: entry.name.clone(), first, classes, instances: entry.instances.clone(), last })
}
