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

#[cfg(test)]
mod testing {
    use crate::{Compile, PassError};
    use ir::Module;
    use targets::Target;

    /// Relaxations and operations of the first graph, without leaves, that a pass leaves of a text on a mesh; it runs where
    /// the target allows nothing but `name`, or nothing at all.
    pub(super) fn relaxed(
        text: &str,
        name: Option<&str>,
        run: fn(&Module, &Compile<'_>) -> Result<Module, PassError>,
    ) -> (Vec<String>, String) {
        let module = ir::parse_module(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(ir::verify_module(&module), Ok(()));
        let mut target = Target::load("cpu").expect("a target");
        target.relaxations = name.map(str::to_owned).into_iter().collect();
        let mesh = module.sharding.as_ref().expect("a mesh").mesh.clone();
        let compile = Compile { target: &target, mesh: &mesh, exact: false, unpack: &[] };
        let after = run(&module, &compile).expect("graphs");
        assert_eq!(ir::verify_module(&after), Ok(()), "{}", ir::print_module(&after, false));
        let text = ir::print_graph("first", &after.entries[0].first, &after.facts, false);
        let inner = |l: &&str| l.starts_with('%') && !l.contains(" = input ") && !l.contains(" = weight ");
        (after.relaxations, text.lines().map(str::trim).filter(inner).collect::<Vec<_>>().join("\n"))
    }
}
