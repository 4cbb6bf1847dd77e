//! Places and launches of one graph in one bucket.

use super::lifetimes::Lifetimes;
use super::variants::Variants;
use super::{align, bytes};
use crate::PassError;
use crate::error::defect;
use indexmap::IndexMap;
use ir::{Bucket, Buffer, Graph, KernelGraph, Launch, Place, Program, Type, ValueId};
use std::collections::HashMap;

/// Values made in a shared place, by its name.
type InPlace = HashMap<ValueId, String>;

/// Values moved to a shared place, with its name, in order.
type Moves = Vec<(ValueId, String)>;

/// The program and the first byte behind what it uses.
pub(super) fn plan(
    kernel_graph: &KernelGraph,
    bucket: &Bucket,
    shared: &IndexMap<String, Buffer>,
    base: u64,
    variants: &Variants<'_>,
) -> Result<(Program, u64), PassError> {
    let graph = &kernel_graph.graph;
    let leaving = kernel_graph.leaving();
    let mut lifetimes = Lifetimes::of(kernel_graph)?;
    let (in_place, moves) = outputs(graph, &mut lifetimes)?;
    let (local, end) = local_places(graph, bucket, &lifetimes, &in_place, base)?;
    let mut places = Vec::with_capacity(graph.len());
    for id in graph.ids() {
        let root = lifetimes.root(id);
        let node = graph.node(id);
        let buffer = |name: &str| {
            shared.get(name).copied().ok_or_else(|| defect(format!("`{name}` crosses graphs and has no place")))
        };
        places.push(if root != id {
            Place::Alias(root)
        } else if let Some(name) = graph.input_name(id) {
            Place::Arena(buffer(name)?)
        } else if node.op.is_leaf() || node.ty == Type::Cache {
            Place::Elsewhere
        } else if !leaving[id.0 as usize] {
            Place::Inside
        } else if let Some(name) = in_place.get(&id) {
            Place::Arena(buffer(name)?)
        } else {
            let place = local.get(&id).copied();
            Place::Arena(place.ok_or_else(|| defect(format!("{id} of `{}` has no place", kernel_graph.name)))?)
        });
    }
    let regions = lifetimes.launched.iter().zip(&lifetimes.reads);
    let mut launches: Vec<Launch> = regions
        .map(|(region, reads)| Launch::Region {
            region: *region,
            kernel: kernel_graph.regions[*region].kind,
            variant: variants.of(kernel_graph, &kernel_graph.regions[*region]),
            reads: reads.clone(),
            // Known once every program is.
            dependent: false,
        })
        .collect();
    launches.extend(moves.into_iter().map(|(from, to)| Launch::Move { from, to }));
    Ok((Program { graph: kernel_graph.name.clone(), places, launches }, end))
}

/// Decides for every output whether it is made in its shared place or moved there, and makes moved values live to the
/// end. Returns the roots that are made in place, with the shared name, and the moves in an order that loses nothing.
fn outputs(graph: &Graph, lifetimes: &mut Lifetimes) -> Result<(InPlace, Moves), PassError> {
    let end = lifetimes.end();
    let input = |name: &str| graph.inputs.iter().copied().find(|v| graph.input_name(*v) == Some(name));
    let mut in_place = InPlace::new();
    let mut moves = Moves::new();
    // An output that is an input, or a view of one, is read at the end; this has to be known before anything is placed.
    let mut open = Vec::new();
    for (name, value) in &graph.outputs {
        let root = lifetimes.root(*value);
        if graph.node(root).op.is_leaf() {
            if graph.input_name(root) != Some(name) {
                lifetimes.read.insert(root, end);
                moves.push((*value, name.clone()));
            }
        } else {
            open.push((name, *value, root));
        }
    }
    for (name, value, root) in open {
        let free = input(name).is_none_or(|old| old_content_is_free(graph, lifetimes, old, root));
        if free && !in_place.contains_key(&root) {
            in_place.insert(root, name.clone());
        } else {
            lifetimes.read.insert(root, end);
            moves.push((value, name.clone()));
        }
    }
    Ok((in_place, ordered(graph, lifetimes, moves)?))
}

/// Whether nothing reads the old content of an input from the launch on that makes `root`, save that launch at the
/// row that it then writes.
fn old_content_is_free(graph: &Graph, lifetimes: &Lifetimes, old: ValueId, root: ValueId) -> bool {
    let (Some(made), read) = (lifetimes.made.get(&root), lifetimes.read.get(&old)) else { return false };
    match read {
        None => true,
        Some(read) if read < made => true,
        Some(read) if read == made => lifetimes.overwrites(graph, old, root),
        Some(_) => false,
    }
}

/// Moves ordered so that a shared value is overwritten only after it was moved elsewhere itself.
fn ordered(graph: &Graph, lifetimes: &Lifetimes, mut moves: Moves) -> Result<Moves, PassError> {
    let mut done = Vec::new();
    while !moves.is_empty() {
        let reads = |value: ValueId, name: &str| graph.input_name(lifetimes.root(value)) == Some(name);
        let free = moves.iter().position(|(_, to)| !moves.iter().any(|(from, other)| other != to && reads(*from, to)));
        let Some(index) = free else {
            let names: Vec<&str> = moves.iter().map(|(_, to)| to.as_str()).collect();
            return Err(defect(format!("{} are exchanged without an operation between them", names.join(", "))));
        };
        done.push(moves.remove(index));
    }
    Ok(done)
}

/// The place of a value that dies in the launch that makes this one and may be written over; otherwise first fit: the
/// lowest place that no value alive at the same time has.
fn local_places(
    graph: &Graph,
    bucket: &Bucket,
    lifetimes: &Lifetimes,
    in_place: &InPlace,
    base: u64,
) -> Result<(HashMap<ValueId, Buffer>, u64), PassError> {
    let mut places: HashMap<ValueId, Buffer> = HashMap::new();
    let mut alive: Vec<Alive> = Vec::new();
    let mut end = base;
    let mut made: Vec<(usize, ValueId)> = lifetimes.made.iter().map(|(id, launch)| (*launch, *id)).collect();
    made.sort_unstable();
    for (launch, id) in made {
        let Some(ty) = graph.tensor(id).filter(|_| !in_place.contains_key(&id)) else { continue };
        alive.retain(|a| a.read >= launch);
        let name = graph.node(id).name.clone().unwrap_or_else(|| id.to_string());
        let size = bytes(ty, bucket, &name)?;
        let read = lifetimes.read.get(&id).copied().unwrap_or(launch);
        let dying = |a: &Alive| {
            a.read == launch && a.made < launch && a.buffer.bytes == size && lifetimes.overwrites(graph, a.value, id)
        };
        if let Some(old) = alive.iter_mut().find(|a| dying(a)) {
            let buffer = Buffer { dtype: ty.dtype, ..old.buffer };
            *old = Alive { buffer, value: id, made: launch, read };
            places.insert(id, buffer);
            continue;
        }
        let mut offset_bytes = base;
        for Alive { buffer, .. } in &alive {
            if offset_bytes + size <= buffer.offset_bytes {
                break;
            }
            offset_bytes = offset_bytes.max(align(buffer.offset_bytes + buffer.bytes));
        }
        let buffer = Buffer { offset_bytes, bytes: size, dtype: ty.dtype };
        end = end.max(offset_bytes + size);
        let at = alive.partition_point(|a| a.buffer.offset_bytes < offset_bytes);
        alive.insert(at, Alive { buffer, value: id, made: launch, read });
        places.insert(id, buffer);
    }
    Ok((places, end))
}

/// A value that has its place; lists of them ascend by place.
struct Alive {
    buffer: Buffer,
    value: ValueId,
    made: usize,
    /// The last launch that reads it.
    read: usize,
}
