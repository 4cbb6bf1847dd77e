//! When each value of a program is made and last read, in numbers of launches.

use ir::{Graph, KernelGraph, KernelKind, Op, ValueId};
use std::collections::HashMap;

/// Lifetimes of one program. Launch `n` of `launches` is the end, where outputs leave.
pub(super) struct Lifetimes {
    /// Regions that launch something, in order.
    pub(super) launched: Vec<usize>,
    /// For each value, the value whose memory it is: itself unless it is a view.
    pub(super) root: Vec<ValueId>,
    /// For each root, the launch that makes it; inputs are made before all, which is none.
    pub(super) made: HashMap<ValueId, usize>,
    /// For each root, the last launch that reads it or a view of it.
    pub(super) read: HashMap<ValueId, usize>,
}

impl Lifetimes {
    pub(super) fn of(kernel_graph: &KernelGraph) -> Self {
        let graph = &kernel_graph.graph;
        let root = roots(graph);
        let (mut launched, mut made, mut read) = (Vec::new(), HashMap::new(), HashMap::new());
        for (index, region) in kernel_graph.regions.iter().enumerate() {
            if region.kind == KernelKind::View {
                continue;
            }
            let launch = launched.len();
            launched.push(index);
            for id in &region.values {
                made.insert(*id, launch);
                for operand in graph.operands(*id) {
                    read.insert(root[operand.0 as usize], launch);
                }
            }
        }
        Lifetimes { launched, root, made, read }
    }

    /// The root of a value.
    pub(super) fn root(&self, id: ValueId) -> ValueId {
        self.root[id.0 as usize]
    }

    /// The launch after the last.
    pub(super) fn end(&self) -> usize {
        self.launched.len()
    }
}

fn roots(graph: &Graph) -> Vec<ValueId> {
    let mut roots: Vec<ValueId> = Vec::with_capacity(graph.len());
    for id in graph.ids() {
        let viewed = graph.operands(id).first().copied().filter(|_| graph.node(id).op.is_view());
        roots.push(viewed.map_or(id, |v| roots[v.0 as usize]));
    }
    roots
}

/// Whether an operation reads an operand only at the element it then writes, so that both may share memory.
pub(super) fn element_wise(graph: &Graph, id: ValueId, operand: ValueId) -> bool {
    let same_shape = match (graph.tensor(id), graph.tensor(operand)) {
        (Some(a), Some(b)) => a.axes == b.axes && a.dtype.bytes() == b.dtype.bytes(),
        _ => false,
    };
    let by_element = matches!(graph.node(id).op, Op::Unary(_) | Op::Binary(_) | Op::Fma | Op::Select | Op::Round(_));
    by_element && same_shape
}
