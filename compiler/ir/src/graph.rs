//! Dataflow graphs: nodes in a petgraph, operands as edges, ids in topological order.

use crate::{Op, TensorType, Type};
use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;

/// A byte range in one of the files a spec consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Span {
    /// Index into [`crate::Facts::files`].
    pub file: u32,
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

/// A value of one graph. Ids ascend in an order in which operands precede their users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ValueId(pub u32);

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// One operation and what is known of its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// Type of the result.
    pub ty: Type,
    /// Name from the spec, unique in the graph; what traces and injections use.
    pub name: Option<String>,
    /// Where the spec says so.
    pub span: Option<Span>,
}

/// A dataflow graph. Built once through [`GraphBuilder`]; passes build new graphs rather than edit one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Graph {
    inner: DiGraph<Node, u32>,
    /// Inputs in the order of the signature; each is an [`Op::Input`].
    pub inputs: Vec<ValueId>,
    /// Results by name, in the order of the signature.
    pub outputs: Vec<(String, ValueId)>,
}

impl Graph {
    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.inner.node_count()
    }

    /// Whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All ids, operands before users.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = ValueId> + use<> {
        (0..self.inner.node_count() as u32).map(ValueId)
    }

    /// The node behind an id of this graph.
    pub fn node(&self, id: ValueId) -> &Node {
        &self.inner[NodeIndex::new(id.0 as usize)]
    }

    /// The tensor type of a value, if it is a tensor.
    pub fn tensor(&self, id: ValueId) -> Option<&TensorType> {
        self.node(id).ty.tensor()
    }

    /// Operands in order.
    pub fn operands(&self, id: ValueId) -> Vec<ValueId> {
        let mut edges: Vec<(u32, ValueId)> = self
            .inner
            .edges_directed(NodeIndex::new(id.0 as usize), Direction::Incoming)
            .map(|e| (*e.weight(), ValueId(e.source().index() as u32)))
            .collect();
        edges.sort_unstable();
        edges.into_iter().map(|(_, v)| v).collect()
    }

    /// Nodes that take a value as an operand, ascending, each once.
    pub fn users(&self, id: ValueId) -> Vec<ValueId> {
        let mut users: Vec<ValueId> = self
            .inner
            .neighbors_directed(NodeIndex::new(id.0 as usize), Direction::Outgoing)
            .map(|n| ValueId(n.index() as u32))
            .collect();
        users.sort_unstable();
        users.dedup();
        users
    }

    /// The value with this name: a node's name or an output's.
    pub fn find(&self, name: &str) -> Option<ValueId> {
        self.ids()
            .find(|v| self.node(*v).name.as_deref() == Some(name))
            .or_else(|| self.outputs.iter().find(|(n, _)| n == name).map(|(_, v)| *v))
    }

    /// What is wrong with ids and edges, for a graph that was read from outside: everything else here may be asked of
    /// a graph only if this returns nothing.
    pub fn broken_structure(&self) -> Option<String> {
        let count = self.len() as u32;
        if let Some(v) = self.inputs.iter().chain(self.outputs.iter().map(|(_, v)| v)).find(|v| v.0 >= count) {
            return Some(format!("the signature names {v}, the graph has {count} values"));
        }
        for node in self.inner.node_indices() {
            let mut slots: Vec<u32> = Vec::new();
            for edge in self.inner.edges_directed(node, Direction::Incoming) {
                if edge.source() >= node {
                    let (user, operand) = (node.index(), edge.source().index());
                    return Some(format!("%{user} uses %{operand}, which does not precede it"));
                }
                slots.push(*edge.weight());
            }
            slots.sort_unstable();
            if slots.iter().enumerate().any(|(i, slot)| i as u32 != *slot) {
                return Some(format!("the operands of %{} are not numbered from 0", node.index()));
            }
        }
        None
    }

    /// The same graph with every operation replaced by what `f` makes of its node; types and operands stay.
    pub fn map_ops(&self, mut f: impl FnMut(&Node) -> Op) -> Graph {
        let mut graph = self.clone();
        for node in graph.inner.node_weights_mut() {
            node.op = f(node);
        }
        graph
    }

    /// Name of an input node.
    pub fn input_name(&self, id: ValueId) -> Option<&str> {
        match &self.node(id).op {
            Op::Input(name) => Some(name),
            _ => None,
        }
    }
}

impl PartialEq for Graph {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len()
            && self.inputs == other.inputs
            && self.outputs == other.outputs
            && self.ids().all(|v| self.node(v) == other.node(v) && self.operands(v) == other.operands(v))
    }
}

/// The wanted name, or the first of `wanted#2`, `wanted#3`, … that is not taken.
pub fn free_name(wanted: &str, taken: impl Fn(&str) -> bool) -> String {
    if !taken(wanted) {
        return wanted.to_owned();
    }
    let mut numbered = (2u64..).map(|count| format!("{wanted}#{count}"));
    numbered.find(|name| !taken(name)).unwrap_or_else(|| wanted.to_owned())
}

/// Builds a [`Graph`]; keeps value names unique by appending `#2`, `#3`, ….
#[derive(Debug, Default)]
pub struct GraphBuilder {
    graph: Graph,
    /// Names in use, each with the number of the last suffix tried.
    names: HashMap<String, u32>,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new() -> Self {
        GraphBuilder::default()
    }

    /// Adds an operation. Operands must be ids that this builder returned.
    pub fn add(&mut self, op: Op, operands: &[ValueId], ty: Type, span: Option<Span>) -> ValueId {
        let node = self.graph.inner.add_node(Node { op, ty, name: None, span });
        for (slot, operand) in operands.iter().enumerate() {
            self.graph.inner.add_edge(NodeIndex::new(operand.0 as usize), node, slot as u32);
        }
        ValueId(node.index() as u32)
    }

    /// Adds a graph input.
    pub fn input(&mut self, name: &str, ty: Type) -> ValueId {
        let id = self.add(Op::Input(name.to_owned()), &[], ty, None);
        self.graph.inputs.push(id);
        self.name(id, name);
        id
    }

    /// Names a value that has no name yet, making the name unique; a second name is ignored.
    pub fn name(&mut self, id: ValueId, wanted: &str) {
        if self.graph.node(id).name.is_some() {
            return;
        }
        let unique = self.unique(wanted);
        self.graph.inner[NodeIndex::new(id.0 as usize)].name = Some(unique);
    }

    /// The wanted name, or with the first suffix that is free. A name such as `q#2` may be wanted for itself, so
    /// counting alone would not do.
    fn unique(&mut self, wanted: &str) -> String {
        let Some(mut count) = self.names.get(wanted).copied() else {
            self.names.insert(wanted.to_owned(), 1);
            return wanted.to_owned();
        };
        loop {
            count += 1;
            let candidate = format!("{wanted}#{count}");
            if !self.names.contains_key(&candidate) {
                self.names.insert(wanted.to_owned(), count);
                self.names.insert(candidate.clone(), 1);
                return candidate;
            }
        }
    }

    /// Declares a result.
    pub fn output(&mut self, name: &str, id: ValueId) {
        self.graph.outputs.push((name.to_owned(), id));
    }

    /// Puts the inputs into another order of the signature; `order` lists every input once.
    pub fn order_inputs(&mut self, order: Vec<ValueId>) {
        debug_assert_eq!(order.len(), self.graph.inputs.len());
        self.graph.inputs = order;
    }

    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The finished graph.
    pub fn finish(self) -> Graph {
        self.graph
    }
}
