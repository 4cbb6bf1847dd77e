//! A region as a graph of its own, and a kernel level run region by region.
//!
//! ```text
//! region    %a = linear (%x, %w)      inputs   %x                what it reads of other regions and of the graph
//!           %b = round (%a)      ─►   inside   %w, %a, %b        leaves and views are made anew
//!           %c = exp (%b)             outputs  %c                what other regions read, the graph leaves or nobody reads
//! ```
//!
//! Run so, a region sees nothing but what earlier regions left, as a kernel does.

use interp::{Context, Env, Fault, InterpError, Outputs};
use ir::{
    Class, Entry, Graph, GraphBuilder, Instance, KernelEntry, KernelGraph, KernelModule, LayerKinds, Module, Op,
    ValueId,
};
use std::collections::HashMap;

pub(super) fn broken(what: impl Into<String>) -> InterpError {
    Fault::Graph(what.into()).into()
}

/// What a region is run beside: facts and mesh, no graphs.
pub(super) fn surroundings(kernels: &KernelModule) -> Module {
    Module {
        facts: kernels.facts.clone(),
        sharding: kernels.sharding.clone(),
        relaxations: Vec::new(),
        entries: Vec::new(),
    }
}

/// A region as a graph of its own: what it reads are inputs, what leaves it are outputs, both called by their numbers.
pub(super) struct Piece {
    pub(super) graph: Graph,
    /// Values of other regions, or given to the graph, that it reads.
    pub(super) reads: Vec<ValueId>,
    /// Values that leave it.
    pub(super) makes: Vec<ValueId>,
    /// The same without its stores, and the stores alone, for a kernel that goes row by row.
    pub(super) stores: Option<Stores>,
    /// Whether it reads the cache after it has stored there, so that it cannot be run without its stores.
    pub(super) stores_are_read: bool,
}

/// A region that stores, in two: everything up to what it stores, and the stores.
pub(super) struct Stores {
    /// Leaves what leaves the region, and what the stores read.
    pub(super) before: Graph,
    /// What the stores read.
    pub(super) reads: Vec<ValueId>,
    /// The stores.
    pub(super) alone: Graph,
}

/// Cuts a region out of its graph.
pub(super) fn piece(graph: &KernelGraph, region: usize) -> Result<Piece, InterpError> {
    let region = graph.regions.get(region).ok_or_else(|| broken(format!("there is no region {region}")))?;
    let leaving = graph.leaving();
    let makes: Vec<ValueId> = region.values.iter().copied().filter(|v| leaving[v.0 as usize]).collect();
    let (whole, reads) = cut(&graph.graph, &region.values, &makes);
    let is_store = |v: &ValueId| matches!(graph.graph.node(*v).op, Op::Store { .. });
    let (stores, rest): (Vec<ValueId>, Vec<ValueId>) = region.values.iter().copied().partition(is_store);
    let read_inside = stores.iter().any(|s| graph.graph.users(*s).iter().any(|u| region.values.contains(u)));
    let apart = (!stores.is_empty() && !read_inside).then(|| {
        let mut stored: Vec<ValueId> = stores.iter().flat_map(|s| graph.graph.operands(*s)).collect();
        stored.sort_unstable();
        stored.dedup();
        let mut left: Vec<ValueId> = makes.iter().chain(&stored).copied().collect();
        left.sort_unstable();
        left.dedup();
        let (before, _) = cut(&graph.graph, &rest, &left);
        Stores { before, alone: stores_alone(&graph.graph, &stores), reads: stored }
    });
    Ok(Piece { graph: whole, reads, makes, stores: apart, stores_are_read: read_inside })
}

/// Some operations as a graph that leaves some values; and the values that it reads.
fn cut(graph: &Graph, inside: &[ValueId], left: &[ValueId]) -> (Graph, Vec<ValueId>) {
    let mut cut = Cut { graph, inside, builder: GraphBuilder::new(), copies: HashMap::new(), reads: Vec::new() };
    // What is given stands first, so that a rank knows how many rows are its own before it exchanges any.
    for id in inside {
        if let Op::ReduceScatter { into, .. } = &graph.node(*id).op {
            let own = graph.inputs.iter().find(|v| graph.tensor(**v).is_some_and(|t| t.axis(into).is_some()));
            if let Some(own) = own {
                cut.add(*own);
            }
        }
        for operand in graph.operands(*id).into_iter().filter(|v| !inside.contains(v)) {
            cut.add(operand);
        }
    }
    for id in inside {
        cut.add(*id);
    }
    for id in left {
        let copy = cut.add(*id);
        cut.builder.output(&id.to_string(), copy);
    }
    (cut.builder.finish(), cut.reads)
}

fn stores_alone(graph: &Graph, stores: &[ValueId]) -> Graph {
    let mut builder = GraphBuilder::new();
    let mut copies: HashMap<ValueId, ValueId> = HashMap::new();
    for store in stores {
        let mut operands = Vec::new();
        for id in graph.operands(*store) {
            let make = || builder.input(&id.to_string(), graph.node(id).ty.clone());
            operands.push(*copies.entry(id).or_insert_with(make));
        }
        let node = graph.node(*store);
        builder.add(node.op.clone(), &operands, node.ty.clone(), node.span);
    }
    builder.finish()
}

struct Cut<'a> {
    graph: &'a Graph,
    inside: &'a [ValueId],
    builder: GraphBuilder,
    copies: HashMap<ValueId, ValueId>,
    reads: Vec<ValueId>,
}

impl Cut<'_> {
    /// The copy of a value: computed if it is inside or another view, given if it is not.
    fn add(&mut self, id: ValueId) -> ValueId {
        if let Some(copy) = self.copies.get(&id) {
            return *copy;
        }
        let node = self.graph.node(id);
        let leaf = node.op.is_leaf() && self.graph.input_name(id).is_none();
        let copy = if self.inside.contains(&id) || leaf || node.op.is_view() {
            let operands: Vec<ValueId> = self.graph.operands(id).into_iter().map(|v| self.add(v)).collect();
            self.builder.add(node.op.clone(), &operands, node.ty.clone(), None)
        } else {
            if node.ty.tensor().is_some() {
                self.reads.push(id);
            }
            self.builder.input(&id.to_string(), node.ty.clone())
        };
        self.copies.insert(id, copy);
        copy
    }
}

/// Where graphs are run: beside facts and mesh, in a layer or outside the layers.
#[derive(Clone, Copy)]
pub(super) struct Site<'a> {
    pub(super) layer: Option<usize>,
    pub(super) around: &'a Module,
}

impl Site<'_> {
    /// Runs a cut-out graph on every rank; `envs` hold what it reads and are left with what it leaves.
    pub(super) fn run(self, graph: &Graph, envs: &mut [Env], contexts: &mut [Context<'_>]) -> Result<(), InterpError> {
        // In a layer it runs as one, so that instance numbers and weights are those of this layer.
        let (first, classes, instances) = match self.layer {
            None => (graph.clone(), Vec::new(), Vec::new()),
            Some(layer) => {
                let class = Class { name: String::new(), kinds: LayerKinds::new(), graph: graph.clone() };
                (Graph::default(), vec![class], vec![Instance { layer, class: 0 }])
            }
        };
        let entry = Entry { name: String::new(), first, classes, instances, last: Graph::default() };
        match (&self.around.sharding, &mut *contexts, &mut *envs) {
            (None, [context], [env]) => drop(interp::run_entry(&entry, &self.around.facts, env, context)?),
            _ => drop(interp::run_ranks(&entry, self.around, envs, contexts)?),
        }
        Ok(())
    }
}

/// Runs one step of an entry region by region on every rank; gives each rank's results.
pub(super) fn step(
    kernels: &KernelModule,
    entry: &str,
    envs: &[Env],
    contexts: &mut [Context<'_>],
) -> Result<Vec<Outputs>, InterpError> {
    let found = kernels.entries.iter().find(|e| e.name == entry);
    let entry = found.ok_or_else(|| broken(format!("the entry `{entry}` is gone")))?;
    let around = surroundings(kernels);
    let mut envs = envs.to_vec();
    let classes = entry.instances.iter().map(|i| (KernelEntry::class_graph(i.class), Some(i.layer)));
    let order = std::iter::once((0, None)).chain(classes).chain([(entry.graphs.len() - 1, None)]);
    let mut cuts: HashMap<usize, Cuts> = HashMap::new();
    for (index, layer) in order {
        let graph = entry.graphs.get(index).ok_or_else(|| broken(format!("there is no graph {index}")))?;
        let cuts = match cuts.entry(index) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => new.insert(Cuts::of(graph)?),
        };
        let site = Site { layer, around: &around };
        cuts.run(&graph.graph, |graph, envs| site.run(graph, envs, contexts), &mut envs)?;
    }
    let results = |env: &Env| {
        let names = entry.last().graph.outputs.iter().map(|(name, _)| name);
        names.filter_map(|name| Some((name.clone(), env.get(name)?.clone()))).collect()
    };
    Ok(envs.iter().map(results).collect())
}

/// A graph in pieces.
struct Cuts {
    regions: Vec<Piece>,
    /// Its results, from what regions left and what it was given.
    ends: Graph,
    ends_read: Vec<ValueId>,
}

impl Cuts {
    fn of(graph: &KernelGraph) -> Result<Cuts, InterpError> {
        let regions = (0..graph.regions.len()).map(|r| piece(graph, r)).collect::<Result<_, _>>()?;
        let mut left: Vec<ValueId> = graph.graph.outputs.iter().map(|(_, v)| *v).collect();
        left.sort_unstable();
        left.dedup();
        let (ends, ends_read) = cut(&graph.graph, &[], &left);
        Ok(Cuts { regions, ends, ends_read })
    }

    /// Runs the regions in their order, each by `run`; `envs` hold what graphs exchange by name.
    fn run(
        &self,
        graph: &Graph,
        mut run: impl FnMut(&Graph, &mut [Env]) -> Result<(), InterpError>,
        envs: &mut [Env],
    ) -> Result<(), InterpError> {
        // Values by number.
        let mut known: Vec<Env> = vec![Env::new(); envs.len()];
        for (known, env) in known.iter_mut().zip(envs.iter()) {
            for id in &graph.inputs {
                let name = graph.input_name(*id).unwrap_or_default();
                let tensor = env.get(name).ok_or_else(|| broken(format!("input `{name}` is not given")))?;
                known.insert(id.to_string(), tensor.clone());
            }
        }
        for piece in &self.regions {
            let mut own = given(&piece.reads, &known)?;
            run(&piece.graph, &mut own)?;
            for (known, own) in known.iter_mut().zip(&own) {
                for id in &piece.makes {
                    known.insert(id.to_string(), made(own, *id)?.clone());
                }
            }
        }
        let mut own = given(&self.ends_read, &known)?;
        run(&self.ends, &mut own)?;
        for (env, own) in envs.iter_mut().zip(&own) {
            for (name, id) in &graph.outputs {
                env.insert(name.clone(), made(own, *id)?.clone());
            }
        }
        Ok(())
    }
}

/// Of what is known on every rank, what is read.
fn given(reads: &[ValueId], known: &[Env]) -> Result<Vec<Env>, InterpError> {
    let given = |known: &Env| -> Result<Env, InterpError> {
        let mut env = Env::new();
        for id in reads {
            let name = id.to_string();
            let value = known.get(&name).ok_or_else(|| broken(format!("{id} is read before a region leaves it")))?;
            env.insert(name, value.clone());
        }
        Ok(env)
    };
    known.iter().map(given).collect()
}

/// What a run left under a value's number.
pub(super) fn made(env: &Env, id: ValueId) -> Result<&std::sync::Arc<interp::Tensor>, InterpError> {
    env.get(&id.to_string()).ok_or_else(|| broken(format!("{id} was not made")))
}
