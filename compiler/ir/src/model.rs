//! The model level: entries and blocks with named axes, calls and the layer schedule still in place.

use crate::{Facts, Graph};
use serde::{Deserialize, Serialize};

/// A function of the spec at one set of argument types and constants. Its graph's inputs are its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// Name from the spec; further instances of one function are `name#2`, `name#3`, ….
    pub name: String,
    /// Body.
    pub graph: Graph,
}

/// A whole model: what the front end hands to the passes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// Facts.
    pub facts: Facts,
    /// Blocks, callees before callers.
    pub blocks: Vec<Block>,
    /// Entries in the order of the spec.
    pub entries: Vec<Block>,
}

impl Model {
    /// A block by name.
    pub fn block(&self, name: &str) -> Option<&Block> {
        self.blocks.iter().find(|b| b.name == name)
    }
}
