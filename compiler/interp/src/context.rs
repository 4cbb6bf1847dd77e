//! What surrounds a graph: the layer that runs, weights, cache, and those who watch.

use crate::Tensor;
use crate::cache::Cache;
use crate::error::{Fault, InterpError};
use ir::Scope;
use std::collections::HashMap;
use std::sync::Arc;

/// Everything a graph reaches besides its inputs.
pub struct Context<'a> {
    /// Index of the layer that runs; `None` before and after the layers.
    pub layer: Option<usize>,
    /// Weights.
    pub weights: &'a dyn WeightSource,
    /// Keys and values of earlier and current rows.
    pub cache: &'a mut dyn Cache,
    /// Traces and replacements.
    pub hooks: &'a mut dyn Hooks,
}

/// Gives weights by name.
pub trait WeightSource {
    /// A weight with the axes that the spec declares; `layer` is given exactly for the layer scope.
    fn weight(&self, scope: Scope, name: &str, layer: Option<usize>) -> Result<Arc<Tensor>, InterpError>;
}

/// Weights kept in memory.
#[derive(Clone, Debug, Default)]
pub struct WeightMap {
    weights: HashMap<(String, Option<usize>), Arc<Tensor>>,
}

impl WeightMap {
    /// No weights.
    pub fn new() -> Self {
        WeightMap::default()
    }

    /// Sets a weight of the model (`layer` is `None`) or of one layer.
    pub fn insert(&mut self, name: impl Into<String>, layer: Option<usize>, weight: impl Into<Arc<Tensor>>) {
        self.weights.insert((name.into(), layer), weight.into());
    }
}

impl WeightSource for WeightMap {
    fn weight(&self, scope: Scope, name: &str, layer: Option<usize>) -> Result<Arc<Tensor>, InterpError> {
        let layer = if scope == Scope::Model { None } else { layer };
        self.weights.get(&(name.to_owned(), layer)).cloned().ok_or_else(|| missing(name, layer))
    }
}

/// A source without weights.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoWeights;

impl WeightSource for NoWeights {
    fn weight(&self, _: Scope, name: &str, layer: Option<usize>) -> Result<Arc<Tensor>, InterpError> {
        Err(missing(name, layer))
    }
}

fn missing(name: &str, layer: Option<usize>) -> InterpError {
    let scope = layer.map_or("of the model".to_owned(), |l| format!("of layer {l}"));
    Fault::NoWeight { name: name.to_owned(), scope }.into()
}

/// Where a named value stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site<'a> {
    /// The layer that runs.
    pub layer: Option<usize>,
    /// The block, at the model level; `None` at the graph level and in an entry's own body.
    pub block: Option<&'a str>,
    /// Name of the value in its graph: the node's own, or an output's where that is another.
    pub name: &'a str,
}

/// Watches named values and may replace them.
pub trait Hooks {
    /// A value to stand for the named one; it must have the declared axes and dtype. The operation then does not run.
    fn inject(&mut self, site: Site<'_>) -> Option<Tensor> {
        let _ = site;
        None
    }

    /// A named value as its users see it, in the order of evaluation.
    fn on_value(&mut self, site: Site<'_>, value: &Tensor) {
        let _ = (site, value);
    }
}

/// Watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {}
