//! Which products share the number of their inputs.
//!
//! Quantisers give one number to all quantised products of one value, because runtimes merge them; so the compiler takes one
//! number for them, and the loader checks that the checkpoint agrees. A product that is named to stay apart has a
//! number of its own. Products that pick slices, experts, share the largest number of all slices: what one of them sees is no
//! sample of its own.

use super::choice::Choice;
use super::parts::Part;
use indexmap::IndexMap;
use ir::{Graph, Op, Scope, ValueId};
use std::collections::{BTreeSet, HashMap};

/// A number that products share.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Group {
    /// One for the model or one per layer.
    pub(super) scope: Scope,
    /// Matrices, in the order of their products.
    pub(super) members: Vec<String>,
    /// Whether they pick slices.
    pub(super) picked: bool,
    /// Layers that read it.
    pub(super) layers: BTreeSet<usize>,
}

/// Groups of all graphs, by the name of their number.
pub(super) struct Groups<'a> {
    apart: &'a [String],
    pub(super) all: IndexMap<String, Group>,
    /// Numbers that a layer's predecessor reads too.
    pub(super) carried: BTreeSet<String>,
}

impl<'a> Groups<'a> {
    pub(super) fn new(apart: &'a [String]) -> Self {
        Groups { apart, all: IndexMap::new(), carried: BTreeSet::new() }
    }

    /// The name and scope of the number of each quantised product of a graph that runs in these layers.
    pub(super) fn of(&mut self, graph: &Graph, choice: &Choice, layers: &[usize]) -> HashMap<ValueId, (Scope, String)> {
        let mut together: IndexMap<String, Vec<(ValueId, String, Scope, bool)>> = IndexMap::new();
        for id in graph.ids() {
            let Op::Linear { contract, .. } = &graph.node(id).op else { continue };
            let operands = graph.operands(id);
            let [x, w, ids @ ..] = operands.as_slice() else { continue };
            let Op::Weight(reference) = &graph.node(*w).op else { continue };
            let Some((name, matrix)) = choice.matrix(reference, layers) else { continue };
            let own = if self.apart.iter().any(|a| a == name) { name } else { "" };
            let key = format!("{x} {contract:?} {ids:?} {:?} {own}", matrix.scope);
            together.entry(key).or_default().push((id, name.to_owned(), matrix.scope, matrix.picked));
        }
        let mut found = HashMap::new();
        for products in together.into_values() {
            let mut members: Vec<String> = Vec::new();
            for (_, name, ..) in &products {
                if !members.contains(name) {
                    members.push(name.clone());
                }
            }
            let Some((_, _, scope, picked)) = products.first().cloned() else { continue };
            let name = Part::Input.of(&members.join("."));
            let group = Group { scope, members, picked, layers: BTreeSet::new() };
            self.all.entry(name.clone()).or_insert(group).layers.extend(layers);
            found.extend(products.into_iter().map(|(id, ..)| (id, (scope, name.clone()))));
        }
        found
    }
}
