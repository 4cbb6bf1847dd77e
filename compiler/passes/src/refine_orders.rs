//! **refine orders** (graph level → graph level)
//!
//! ```text
//! %q: f32[T, heads] = linear over [hidden] order any (%n, %w)
//! ─►
//! %q: f32[T, heads] = linear over [hidden] order serial (%n, %w)
//! ```
//!
//! Why: a target whose matrix products add in one known order says so in its file. Then the order is part of the
//! program: the interpreter adds in the same one, and the target's kernels must equal it bit for bit.
//! When: (1) the target names an order for products; (2) the product's order is still `any`. Attention stays `any`.
//! Kind: `Refines("products")`: the witness is the order written into the graph.
//! Tests: below; `tests/tests/snapshots.rs` shows the full model.

use crate::{Kind, Level, PassError, PassInfo};
use ir::{Class, Entry, Graph, Module, Op, Order};
use targets::Target;

/// What the pass says about itself.
pub const INFO: PassInfo = PassInfo {
    name: "refine orders",
    level: Level::Graph,
    kind: Kind::Refines("products"),
    why: "a target's products add in an order that its file states",
};

/// Runs the pass.
pub fn run(module: &Module, target: &Target) -> Result<Module, PassError> {
    let Some(order) = &target.products else { return Ok(module.clone()) };
    let refined = |graph: &Graph| refine(graph, order);
    let entry = |e: &Entry| Entry {
        name: e.name.clone(),
        first: refined(&e.first),
        classes: e.classes.iter().map(|c| Class { graph: refined(&c.graph), ..c.clone() }).collect(),
        instances: e.instances.clone(),
        last: refined(&e.last),
    };
    Ok(Module { facts: module.facts.clone(), entries: module.entries.iter().map(entry).collect() })
}

fn refine(graph: &Graph, to: &Order) -> Graph {
    graph.map_ops(|node| match &node.op {
        Op::Linear { contract, order: Order::Any } => Op::Linear { contract: contract.clone(), order: to.clone() },
        Op::Dot { axis, order: Order::Any } => Op::Dot { axis: axis.clone(), order: to.clone() },
        other => other.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::two_kind_model;

    #[test]
    fn products_take_the_order_of_the_target_and_nothing_else_changes() {
        let module = crate::to_module(&two_kind_model()).expect("graph level");
        let mut target = Target::load("cpu").expect("target");
        let refined = run(&module, &target).expect("refined");
        let (before, after) = (ir::print_module(&module, false), ir::print_module(&refined, false));
        assert!(before.contains("order any") && after.contains("order serial"));
        let product = |line: &str| line.contains(" = linear ") || line.contains(" = dot ");
        for (a, b) in before.lines().zip(after.lines()) {
            let expected = if product(a) { a.replace("order any", "order serial") } else { a.to_owned() };
            assert_eq!(b, expected);
        }
        target.products = None;
        assert_eq!(run(&module, &target).expect("refined"), module);
    }
}
