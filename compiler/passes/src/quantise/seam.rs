//! What layers take in is quantised where it is made.
//!
//! ```text
//! layer l      %norm = round bf16 (…)                      layer l      %norm = round bf16 (…)
//!                                                  ─►                   %norm.codes, %norm.scale = quantised (%norm)
//! layer l + 1  %norm.codes, … = quantised (%norm)          layer l + 1  input norm.codes, input norm.scale
//! ```
//!
//! A layer's last region makes its successor's normalised input; quantised there, it needs no kernel of its own. It may be so
//! if every graph before a layer leaves the value, and layers that quantise it do so along the same axes under the
//! same number. A number of the checkpoint is read of the successor, so all layers must have it; after the last layer nobody
//! takes the codes, and a number of the model that is 1 stands in.

use super::codes;
use super::inputs::Groups;
use crate::copying::Copying;
use crate::{PassError, canonicalise};
use ir::{Entry, Graph, Op, TensorType, ValueId, WeightRef};
use std::collections::HashSet;

/// A value that a layer takes in and quantises.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Taken {
    /// Its name.
    pub(super) name: String,
    /// Axes that the products contract.
    pub(super) contract: Vec<String>,
    /// The number of the layer that it is quantised under, and the value of it; `None` for a scale found from the value.
    pub(super) number: Option<String>,
    /// The codes.
    pub(super) codes: ValueId,
    /// The scale that was found.
    pub(super) scale: Option<ValueId>,
}

impl Taken {
    fn codes_name(&self) -> String {
        format!("{}.codes", self.name)
    }

    fn scale_name(&self) -> String {
        format!("{}.scale", self.name)
    }
}

/// The graphs of an entry, in the order of [`Entry::graphs`], with what they may take in as codes; `taken` is by graph.
pub(super) fn carried(
    entry: &Entry,
    graphs: Vec<Graph>,
    taken: &[Vec<Taken>],
    groups: &mut Groups<'_>,
) -> Result<Vec<Graph>, PassError> {
    let layers = 1..=entry.classes.len();
    let all: Vec<&Taken> = taken.iter().take(entry.classes.len() + 1).skip(1).flatten().collect();
    let mut chosen: Vec<&Taken> = Vec::new();
    for value in &all {
        let same = |t: &&&Taken| t.name == value.name;
        let alike = all.iter().filter(same).all(|t| t.contract == value.contract && t.number == value.number);
        let by_all = value.number.is_none() || all.iter().filter(same).count() == entry.classes.len();
        let made = |graph: &Graph| graph.outputs.iter().any(|(n, _)| *n == value.name);
        let made = graphs.iter().take(entry.classes.len() + 1).all(made);
        if alike && by_all && made && !chosen.iter().any(|t| t.name == value.name) {
            chosen.push(value);
        }
    }
    if chosen.is_empty() {
        return Ok(graphs);
    }
    groups.carried.extend(chosen.iter().filter_map(|t| t.number.clone()));
    let mut new = Vec::new();
    for (place, graph) in graphs.into_iter().enumerate() {
        let reference = |layer: &str| match place {
            0 => WeightRef::FirstLayer(layer.to_owned()),
            _ => WeightRef::Next { layer: layer.to_owned(), last: layer.to_owned() },
        };
        if place == 0 || layers.contains(&place) {
            let takes = taken.get(place).map_or(&[][..], Vec::as_slice);
            let takes: Vec<&Taken> = takes.iter().filter(|t| chosen.iter().any(|c| c.name == t.name)).collect();
            let rewritten = rewritten(&graph, if place == 0 { &[] } else { &takes }, &chosen, reference)?;
            new.push(canonicalise::graph(&rewritten, place == 0));
        } else {
            new.push(graph);
        }
    }
    Ok(new)
}

/// A graph that takes codes in and leaves codes.
fn rewritten(
    graph: &Graph,
    takes: &[&Taken],
    leaves: &[&Taken],
    reference: impl Fn(&str) -> WeightRef,
) -> Result<Graph, PassError> {
    let live = live(graph, takes);
    let mut to = Copying::new(graph);
    for id in graph.ids().filter(|id| live.contains(id)) {
        let ty = graph.tensor(id).cloned();
        let codes = takes.iter().find(|t| t.codes == id).map(|t| t.codes_name());
        let scale = takes.iter().find(|t| t.scale == Some(id)).map(|t| t.scale_name());
        match (codes.or(scale), ty) {
            (Some(name), Some(ty)) => {
                let input = to.input(&name, ty);
                to.set(id, input);
            }
            _ => to.copy(id)?,
        }
    }
    for taken in leaves {
        let Some((_, value)) = graph.outputs.iter().find(|(name, _)| *name == taken.name) else { continue };
        let (x, span) = (to.at(*value)?, graph.node(*value).span);
        match &taken.number {
            Some(number) => {
                let leaf = Op::Weight(reference(number));
                let number = to.add(leaf, &[], TensorType::scalar(ir::DType::F32), None);
                let codes = codes::blocks(&mut to, x, &taken.contract, number, span)?;
                to.output(&taken.codes_name(), codes);
            }
            None => {
                let (codes, scale) = codes::token(&mut to, x, &taken.contract, span)?;
                to.output(&taken.codes_name(), codes);
                to.output(&taken.scale_name(), scale);
            }
        }
    }
    to.finish()
}

/// What is still computed where codes are taken in.
fn live(graph: &Graph, takes: &[&Taken]) -> HashSet<ValueId> {
    let stores = graph.ids().filter(|id| matches!(graph.node(*id).op, Op::Store { .. }));
    let mut open: Vec<ValueId> = graph.outputs.iter().map(|(_, v)| *v).chain(stores).collect();
    // The signature of the first graph stays; a layer takes in what it reads.
    if takes.is_empty() {
        open.extend(&graph.inputs);
    }
    let mut live = HashSet::new();
    while let Some(id) = open.pop() {
        let taken = takes.iter().any(|t| t.codes == id || t.scale == Some(id));
        if live.insert(id) && !taken {
            open.extend(graph.operands(id));
        }
    }
    live
}
