//! **rotate the seam** (graph level)
//!
//! ```text
//! before  first  …                 -> x            after  first  …; norm = norm(x, first layer's weight)  -> x, norm
//!         layer  (x)               -> x'                  layer  (x, norm)                               -> x', norm'
//!           n = norm(x, W.input_norm)                       …
//!           …                                               x' = combine(…)
//!           x' = combine(…)                                 norm' = norm(x', next W.input_norm else W.norm)
//!         last   y = norm(x[rows], W.norm)                last   y = norm[rows]
//! ```
//!
//! Why: "branch, output norm, residual, next input norm" is one chain of row operations, but it crosses from one layer
//! to the next, so no graph of one layer contains it. Rotated, it lies at the end of a layer and can become one kernel.
//!
//! When: a value v of the layer graphs rotates if
//! (1) it is the left operand of a `linear`;
//! (2) everything it is computed from is a carried value, a weight or a literal, at least one of them carried, by
//!     operations that treat rows alone; and it is computed, not just a carried value;
//! (3) every class computes it by the same graph from the same layer weights, and every layer has these weights;
//! (4) the last graph computes the same from the final carried values, with one model weight of equal type in place of
//!     each layer weight, either on all rows or on rows gathered from each carried value by the same index. The gather
//!     then moves behind: row operations commute with it.
//! Where a condition is missing, v stays where it is and a note says which.
//!
//! Kind: `Exact`: the same operations run on the same operands; only the graph that holds them changes. The final norm
//! runs on all rows instead of the wanted ones, which changes no row's bits.
//! Tests: `tests.rs` here, and `tests/small_models.rs`.

mod apply;
mod head;

#[cfg(test)]
mod tests;

use crate::{Kind, Level, Note, PassError, PassInfo};
use ir::{Entry, Module};

/// What the pass says about itself.
pub const INFO: PassInfo = PassInfo {
    name: "rotate the seam",
    level: Level::Graph,
    kind: Kind::Exact,
    why: "a layer ends with its successor's input norm, so that the chain across the seam is one piece",
};

/// Runs the pass.
pub fn run(module: &Module, notes: &mut Vec<Note>) -> Result<Module, PassError> {
    let mut entries = Vec::new();
    for entry in &module.entries {
        let mut note = |message: String| {
            notes.push(Note { pass: INFO.name, entry: entry.name.clone(), message });
        };
        let seams = head::seams(entry, &module.facts, &mut note);
        entries.push(if seams.is_empty() { entry.clone() } else { apply::rotated(entry, &seams)? });
    }
    Ok(module.with_entries(entries))
}

/// A value that rotates, with its place in every graph.
#[derive(Clone, Debug)]
struct Seam {
    /// Name in the environment.
    name: String,
    /// The value in each class graph.
    in_class: Vec<ir::ValueId>,
    /// The value in the last graph.
    in_last: ir::ValueId,
    /// Rows that the last graph takes of it: the axis and the index.
    gathered: Option<(String, ir::ValueId)>,
    /// Layer weight → model weight that stands in for it after the last layer.
    weights: Vec<(String, String)>,
}

/// Names of the entry's environment.
fn environment(entry: &Entry) -> std::collections::HashSet<String> {
    let mut names = std::collections::HashSet::new();
    for (_, graph) in entry.graphs() {
        names.extend(graph.inputs.iter().filter_map(|v| graph.input_name(*v)).map(str::to_owned));
        names.extend(graph.outputs.iter().map(|(n, _)| n.clone()));
    }
    names
}
