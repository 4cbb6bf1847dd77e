//! **quantise** (graph level)
//!
//! ```text
//! %w: bf16[wide, hidden] = weight layer w        %1: e4m3[wide, hidden] = weight layer w.codes
//! %y: f32[T, wide] = linear … (%x, %w)     ─►    %2: f32[wide] = weight layer w.scale
//!                                                %3: f32[T, wide] = linear … (%x.codes, %1)
//!                                                %y: f32[T, wide] = mul (%3, mul (%x.scale, %2))
//! ```
//!
//! Why: a checkpoint keeps matrices in 8 or 4 bits, and products of such matrices read half or a quarter of the bytes; where a
//! target multiplies them as they are, the inputs are quantised too.
//! When: the spec says what is stored (`[stored]`), the target how its format runs. (1) A matrix is quantised if the
//! checkpoint keeps it so in the layer at hand, and every graph uses it as the right operand of a product alone. (2) Its
//! scales multiply the product, in binary32, before whatever rounds it: of fp8 `(token * row)` at once, of nvfp4 first that of the
//! matrix, then that of the inputs. (3) Run natively, inputs become e4m3 under one scale
//! a token, or nvfp4 under a number of the checkpoint; products of one value share its codes (`inputs.rs`), and what a layer takes in is quantised by its predecessor (`seam.rs`). (4) Layers
//! that store different matrices are different classes (`classes.rs`). (5) Where the target keeps cached rows in e4m3, they round
//! as they are stored (`cached.rs`).
//! Kind: `Relaxed`, by names such as `fp8`, `nvfp4-weights`, `bf16-to-fp8`, `kv-e4m3`. What is stored are other numbers than what was declared; the module
//! says which relaxations came about.
//! Tests: `tests.rs`; against numbers of an independent implementation in `tests/quantised.rs`.

mod cached;
mod choice;
mod classes;
mod codes;
mod facts;
mod graph;
mod inputs;
pub mod parts;
mod seam;
#[cfg(test)]
mod tests;

use crate::shard::with_graphs;
use crate::{Compile, Kind, Level, PassError, PassInfo};
use choice::Choice;
use inputs::Groups;
use ir::{Entry, Module};

/// What the pass says about itself.
pub const INFO: PassInfo = PassInfo {
    name: "quantise",
    level: Level::Graph,
    kind: Kind::Relaxed("formats"),
    why: "matrices and cached rows are kept in 8 or 4 bits",
};

/// Runs the pass.
pub fn run(module: &Module, compile: &Compile<'_>) -> Result<Module, PassError> {
    let module = match choice::decide(module, compile)? {
        Some(choice) => weights(module, &choice, compile)?,
        None => module.clone(),
    };
    let mut module = cached::run(module, compile)?;
    module.facts.stored = None;
    Ok(module)
}

/// The module with the matrices of the choice quantised.
fn weights(module: &Module, choice: &Choice, compile: &Compile<'_>) -> Result<Module, PassError> {
    let mut groups = Groups::new(compile.unpack);
    let mut entries = Vec::new();
    for entry in &module.entries {
        let entry = classes::split(entry, choice);
        entries.push(rewritten(&entry, choice, &mut groups)?);
    }
    let mut new = module.with_entries(entries);
    new.facts.weights = facts::weights(&module.facts, choice, &groups);
    new.relaxations.extend(choice.names());
    Ok(new)
}

fn rewritten(entry: &Entry, choice: &Choice, groups: &mut Groups<'_>) -> Result<Entry, PassError> {
    let (mut graphs, mut taken) = (Vec::new(), Vec::new());
    for (place, (_, graph)) in entry.graphs().enumerate() {
        let layers: Vec<usize> = entry.instances.iter().filter(|i| i.class + 1 == place).map(|i| i.layer).collect();
        let (graph, inputs) = graph::quantised(graph, choice, &layers, groups)?;
        graphs.push(graph);
        taken.push(inputs);
    }
    with_graphs(entry, seam::carried(entry, graphs, &taken, groups)?)
}
