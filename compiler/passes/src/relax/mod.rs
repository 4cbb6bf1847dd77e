//! Relaxations: passes that change bits in one named way, for speed. They run only where the target allows them by name
//! and `--exact` is absent; each enters its name into the module, the manifest and the report, and validation measures it.

pub mod rank_round;
pub mod rank_scale;
pub mod wire_bf16;

use crate::shard::with_graphs;
use crate::{Compile, PassError};
use ir::{Graph, Module, Sharding};

/// Runs a relaxation on every graph of a sharded module, if it is allowed; records it if it changed something.
fn relaxed(
    name: &str,
    module: &Module,
    compile: &Compile<'_>,
    rewrite: impl Fn(&Graph, &Module, &Sharding) -> Option<Graph>,
) -> Result<Module, PassError> {
    let Some(sharding) = &module.sharding else { return Ok(module.clone()) };
    if compile.exact || !compile.target.allows(name) {
        return Ok(module.clone());
    }
    let mut changed = false;
    let mut entries = Vec::new();
    for entry in &module.entries {
        let graphs = entry.graphs().map(|(_, graph)| match rewrite(graph, module, sharding) {
            Some(new) => {
                changed = true;
                new
            }
            None => graph.clone(),
        });
        let graphs = graphs.collect();
        entries.push(with_graphs(entry, graphs)?);
    }
    let mut module = module.with_entries(entries);
    if changed {
        module.relaxations.push(name.to_owned());
    }
    Ok(module)
}
