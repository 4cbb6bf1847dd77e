//! Numbers of cached rows: which values are kept, by a compiled model, and what their numbers are called.

use super::by_artifact::{present, root};
use super::matrices::WEIGHT;
use crate::failure::Failure;
use artifact::Artifact;
use device::checkpoint::Checkpoint;
use ir::{Graph, Op, ValueId, WeightRef};
use std::collections::BTreeSet;

/// Ends of the names of keys' and values' numbers.
const ENDS: [&str; 2] = ["k_scale", "v_scale"];

/// The number of a layer's cached keys or values.
#[derive(Clone, Debug, PartialEq)]
pub struct Cached {
    /// Its name.
    pub tensor: String,
    /// The tensor beside which it is written.
    pub beside: String,
    /// The value that is kept, by full name.
    pub value: String,
    /// Stored codes times this are the rows.
    pub number: f32,
}

/// What each layer keeps. ModelOpt gives numbers to the modules that the rows come from, compressed-tensors (`of_parent`) to
/// the module that these are in.
pub fn find(artifact: &Artifact, checkpoint: &Checkpoint, of_parent: bool) -> Result<Vec<Cached>, Failure> {
    let mut found = Vec::new();
    let Some(entry) = artifact.kernels.entries.first() else { return Ok(found) };
    for instance in &entry.instances {
        let Some(graph) = entry.graphs.get(ir::KernelEntry::class_graph(instance.class)).map(|g| &g.graph) else {
            continue;
        };
        for id in graph.ids().filter(|id| matches!(graph.node(*id).op, Op::Store { .. })) {
            for (row, end) in graph.operands(id).iter().zip(ENDS) {
                let made = weights(graph, *row);
                let recipe = match made.iter().collect::<Vec<_>>()[..] {
                    [name] => artifact.recipes.iter().find(|r| r.layer == Some(instance.layer) && r.name == *name),
                    _ => None,
                };
                let Some(recipe) = recipe else {
                    return Err(Failure::input(format!(
                        "R0720: cached rows of layer {} come from {} weights, and `{end}` is a number of the one module that they come from; leave out `--kv-scales`",
                        instance.layer,
                        made.len()
                    )));
                };
                let beside = present(recipe, checkpoint)?.tensor_name(0);
                let module = beside.strip_suffix(WEIGHT).unwrap_or(&beside);
                let owner = if of_parent { module.rsplit_once('.').map_or("", |(parent, _)| parent) } else { module };
                let value = format!("layers.{}.{}", instance.layer, root(graph, *row));
                found.push(Cached { tensor: format!("{owner}.{end}"), beside, value, number: 1.0 });
            }
        }
    }
    Ok(found)
}

/// Weights of the products that a value comes from, without what those take in.
fn weights(graph: &Graph, value: ValueId) -> BTreeSet<String> {
    let (mut found, mut open, mut seen) = (BTreeSet::new(), vec![value], BTreeSet::new());
    while let Some(id) = open.pop() {
        if !seen.insert(id) {
            continue;
        }
        match (&graph.node(id).op, graph.operands(id)) {
            (Op::Linear { .. }, operands) => {
                let weight = operands.get(1).map(|w| &graph.node(root(graph, *w)).op);
                if let Some(Op::Weight(WeightRef::Layer(name))) = weight {
                    found.insert(name.clone());
                }
            }
            (_, operands) => open.extend(operands.iter().copied()),
        }
    }
    found
}
