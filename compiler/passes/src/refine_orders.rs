//! **refine orders** (graph level → graph level)
//!
//! ```text
//! %q: f32[T, heads] = linear over [hidden] order any (%n, %w)
//! ─►
//! %q: f32[T, heads] = linear over [hidden] order serial (%n, %w)
//! ```
//!
//! Why: a target whose matrix products add in one known order says so in its file. Then the order is part of the
//! program: the interpreter adds in the same one, and the target's kernels must equal it bit for bit. A row sum that the
//! spec left open so that sharding may move it (`sum(…, order = any)`) gets `fold`, the order of every other row sum.
//! When: (1) the target names an order for products; (2) what is left of the product's order is `any`; (3) every open row
//! sum. Attention stays `any`.
//! Kind: `Refines("orders")`: the witness is the order written into the graph.
//! Tests: below; `tests/tests/snapshots.rs` shows the full model.

use crate::{Compile, Kind, Level, PassError, PassInfo, Refined};
use ir::{Class, Entry, Graph, Module, Op, Order};

/// What the pass says about itself.
pub const INFO: PassInfo = PassInfo {
    name: "refine orders",
    level: Level::Graph,
    kind: Kind::Refines("orders"),
    why: "a target's products add in an order that its file states, row sums in fold",
};

/// Runs the pass.
pub fn run(module: &Module, compile: &Compile<'_>) -> Result<Refined, PassError> {
    Ok(Refined { module: refined(module, compile.target.products.as_ref()), witness: None })
}

fn refined(module: &Module, order: Option<&Order>) -> Module {
    let refined = |graph: &Graph| refine(graph, order);
    let entry = |e: &Entry| Entry {
        name: e.name.clone(),
        first: refined(&e.first),
        classes: e.classes.iter().map(|c| Class { graph: refined(&c.graph), ..c.clone() }).collect(),
        instances: e.instances.clone(),
        last: refined(&e.last),
    };
    module.with_entries(module.entries.iter().map(entry).collect())
}

fn refine(graph: &Graph, products: Option<&Order>) -> Graph {
    graph.map_ops(|node| {
        let to = match &node.op {
            Op::Linear { .. } | Op::Dot { .. } => products,
            Op::Reduce { .. } => Some(&Order::Fold),
            _ => None,
        };
        let mut op = node.op.clone();
        if let (Some(to), Some(order)) = (to, op.order_mut()) {
            *order = order.closed(to);
        }
        op
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::two_kind_model;

    #[test]
    fn products_take_the_order_of_the_target_and_nothing_else_changes() {
        let module = crate::to_module(&two_kind_model()).expect("graph level");
        let refined = refined(&module, Some(&Order::Serial));
        let (before, after) = (ir::print_module(&module, false), ir::print_module(&refined, false));
        assert!(before.contains("order any") && after.contains("order serial"));
        let product = |line: &str| line.contains(" = linear ") || line.contains(" = dot ");
        for (a, b) in before.lines().zip(after.lines()) {
            let expected = if product(a) { a.replace("order any", "order serial") } else { a.to_owned() };
            assert_eq!(b, expected);
        }
        assert_eq!(super::refined(&module, None), module);
    }

    #[test]
    fn what_is_left_open_is_closed() {
        let text = "module m act f32 dim n = 4 entry e { graph first (%x) -> (y = %y, z = %z) { axes T = rows
            %x: f32[T, n] = input x
            %y: f32[T] = reduce sum over n order split 2 any (%x)
            %z: f32[T] = dot over n order split 2 any (%x, %x) }
            graph last () -> () { } }";
        let module = ir::parse_module(text).expect("a module");
        let after = ir::print_module(&refined(&module, Some(&Order::Serial)), false);
        assert!(
            after.contains("order split 2 fold (%x)") && after.contains("order split 2 serial (%x, %x)"),
            "{after}"
        );
    }
}
