//! When each value of a program is made and last read, in numbers of launches.

use crate::PassError;
use crate::error::defect;
use ir::{Anatomy, Graph, KernelGraph, KernelKind, ValueId};
use std::collections::HashMap;

/// Lifetimes of one program. Launch `n` of `launches` is the end, where outputs leave.
pub(super) struct Lifetimes {
    /// Regions that launch something, in order.
    pub(super) launched: Vec<usize>,
    /// What each of them is made of.
    anatomies: Vec<Anatomy>,
    /// For each value, the value whose memory it is: itself unless it is a view.
    root: Vec<ValueId>,
    /// For each value that leaves its region, the launch that makes it; inputs are made before all, which is none.
    pub(super) made: HashMap<ValueId, usize>,
    /// For each root, the last launch that reads it or a view of it.
    pub(super) read: HashMap<ValueId, usize>,
    /// For each launch, the earlier ones whose values or cache rows it reads, ascending.
    pub(super) reads: Vec<Vec<usize>>,
}

impl Lifetimes {
    pub(super) fn of(kernel_graph: &KernelGraph) -> Result<Self, PassError> {
        let graph = &kernel_graph.graph;
        let (root, leaving) = (kernel_graph.roots(), kernel_graph.leaving());
        let (mut launched, mut made, mut read) = (Vec::new(), HashMap::new(), HashMap::new());
        let (mut anatomies, mut reads) = (Vec::new(), Vec::new());
        let mut launch_of: HashMap<ValueId, usize> = HashMap::new();
        for (index, region) in kernel_graph.regions.iter().enumerate().filter(|(_, r)| r.kind != KernelKind::View) {
            let launch = launched.len();
            launched.push(index);
            anatomies.push(Anatomy::of(graph, &region.values).map_err(defect)?);
            let mut from: Vec<usize> = Vec::new();
            for id in &region.values {
                launch_of.insert(*id, launch);
                if leaving[id.0 as usize] {
                    made.insert(*id, launch);
                }
                // A view that nothing in its region reads is another region's business.
                let viewed = graph.node(*id).op.is_view();
                for operand in graph.operands(*id).into_iter().filter(|_| !viewed) {
                    let root = root[operand.0 as usize];
                    read.insert(root, launch);
                    from.extend(launch_of.get(&root).filter(|l| **l != launch));
                }
            }
            from.sort_unstable();
            from.dedup();
            reads.push(from);
        }
        Ok(Lifetimes { launched, anatomies, root, made, read, reads })
    }

    /// The root of a value.
    pub(super) fn root(&self, id: ValueId) -> ValueId {
        self.root[id.0 as usize]
    }

    /// The launch after the last.
    pub(super) fn end(&self) -> usize {
        self.launched.len()
    }

    /// Whether a value may be made where one lies that the launch that makes it reads.
    pub(super) fn overwrites(&self, graph: &Graph, old: ValueId, new: ValueId) -> bool {
        let anatomy = self.made.get(&new).and_then(|launch| self.anatomies.get(*launch));
        // What is read through a view has other axes, so nothing is known about its rows.
        let viewed = graph.users(old).into_iter().any(|u| graph.node(u).op.is_view());
        !viewed && anatomy.is_some_and(|a| a.overwrites(graph, old, new))
    }
}
