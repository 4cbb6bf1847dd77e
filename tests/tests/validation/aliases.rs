//! Plans in which two values that live at the same time lie in the same place.
//!
//! ```text
//! launch   0  1  2  3  4
//! a           w─────r          a is written at 1 and read for the last time at 3
//! b              w─────r       b is written at 2: it may not lie where a lies
//! ```
//!
//! Lifetimes are counted here anew, without the pass that makes plans and without its checkers.

use ir::{Buffer, KernelGraph, KernelModule, Launch, Place, Plan, Program};
use std::collections::HashMap;

/// A plan with two values in one place.
pub struct Alias {
    /// Bucket, program and values.
    pub name: String,
    /// The plan.
    pub plan: Plan,
}

/// A value of a program.
struct Life {
    index: usize,
    buffer: Buffer,
    /// The launch that makes it, counted from 1; 0 for what stands there before.
    made: usize,
    /// The last launch that reads it; for outputs, the end.
    read: usize,
    /// Its place is one that programs share.
    shared: bool,
}

/// Every pair, in every bucket, program and direction, one at a time.
pub fn all(kernels: &KernelModule, plan: &Plan, judge: &mut dyn FnMut(Alias)) {
    for (at, (entry, planned)) in kernels.entries.iter().zip(&plan.entries).enumerate() {
        for (number, bucket) in planned.buckets.iter().enumerate() {
            for (index, (graph, program)) in entry.graphs.iter().zip(&bucket.programs).enumerate() {
                let lives = lives(graph, program, &|b| bucket.shared.values().any(|s| s == b));
                for a in lives.iter().filter(|a| !a.shared) {
                    for b in lives.iter().filter(|b| b.index != a.index && meet(a, b)) {
                        let mut damaged = plan.clone();
                        let program = &mut damaged.entries[at].buckets[number].programs[index];
                        program.places[a.index] =
                            Place::Arena(Buffer { offset_bytes: b.buffer.offset_bytes, ..a.buffer });
                        let name = format!("{} {}: %{} where %{} lies", bucket.bucket, graph.name, a.index, b.index);
                        judge(Alias { name, plan: damaged });
                    }
                }
            }
            // Values that programs hand on to each other live for the whole step.
            for (a, place) in &bucket.shared {
                for (b, other) in bucket.shared.iter().filter(|(b, _)| *b != a) {
                    if !entry.graphs.iter().any(|g| takes(g, a) && takes(g, b)) {
                        continue;
                    }
                    let mut damaged = plan.clone();
                    let moved = Buffer { offset_bytes: other.offset_bytes, ..*place };
                    let damaged_bucket = &mut damaged.entries[at].buckets[number];
                    damaged_bucket.shared.insert(a.clone(), moved);
                    let places = damaged_bucket.programs.iter_mut().flat_map(|p| &mut p.places);
                    places.filter(|p| **p == Place::Arena(*place)).for_each(|p| *p = Place::Arena(moved));
                    judge(Alias { name: format!("{}: `{a}` where `{b}` lies", bucket.bucket), plan: damaged });
                }
            }
        }
    }
}

/// Whether a program is given a value of this name and reads it.
fn takes(graph: &KernelGraph, name: &str) -> bool {
    let graph = &graph.graph;
    graph.inputs.iter().any(|v| graph.input_name(*v) == Some(name) && !graph.users(*v).is_empty())
}

/// Whether two values live at the same time: each is read after the other was made, or one launch makes both.
fn meet(a: &Life, b: &Life) -> bool {
    a.made == b.made || (a.made < b.read && b.made < a.read)
}

fn lives(graph: &KernelGraph, program: &Program, shared: &dyn Fn(&Buffer) -> bool) -> Vec<Life> {
    let (roots, end) = (graph.roots(), program.launches.len() + 1);
    let (mut made, mut read): (HashMap<usize, usize>, HashMap<usize, usize>) = (HashMap::new(), HashMap::new());
    let root = |v: ir::ValueId| roots[v.0 as usize].0 as usize;
    for (number, launch) in program.launches.iter().enumerate() {
        match launch {
            Launch::Region { region, .. } => {
                for id in &graph.regions[*region].values {
                    made.insert(id.0 as usize, number + 1);
                    let viewed = graph.graph.node(*id).op.is_view();
                    for operand in graph.graph.operands(*id).into_iter().filter(|_| !viewed) {
                        read.insert(root(operand), number + 1);
                    }
                }
            }
            Launch::Move { from, .. } => drop(read.insert(root(*from), number + 1)),
        }
    }
    let moved = |name: &str| program.launches.iter().any(|l| matches!(l, Launch::Move { to, .. } if to == name));
    for (_, value) in graph.graph.outputs.iter().filter(|(name, _)| !moved(name)) {
        read.insert(root(*value), end);
    }
    let places = program.places.iter().enumerate();
    let life = |(index, place): (usize, &Place)| match place {
        Place::Arena(buffer) => {
            let made = made.get(&index).copied().unwrap_or(0);
            let read = read.get(&index).copied().unwrap_or(made);
            Some(Life { index, buffer: *buffer, made, read, shared: shared(buffer) })
        }
        _ => None,
    };
    places.filter_map(life).collect()
}
