//! Sums that bring the rows of all ranks back to their own.
//!
//! ```text
//! %c: e4m3[T.all, ffn], %s: f32[T.all]                       codes and scales of the rows of all ranks
//! %p: f32[T.all, hidden] = linear … (%c, %d)                 a part of the sum
//! %q: f32[T.all, hidden] = mul (%p, mul (%s, %w))            not yet `reduce_scatter (%p)`: %s has the rows of all
//! %y: f32[T, hidden] = reduce_scatter T.all over [dp] (%q)
//! ```
//!
//! Where token rows are spread and a weight is spread over their mesh axes too, a product sees the rows of all ranks until a
//! sum over ranks takes each row home. What multiplies the sum behind that place must have a rank's own rows; a factor that
//! was found with the rows of all ranks, as a token's scale is, has all of them, and the sum stands behind the product
//! with it. That only reorders a sum that was open, as where a product is passed for the sake of fewer bytes (`pending.rs`).

use super::axes::{Axes, index_axis};
use super::pending::Pending;
use ir::{Binary, Graph, Op, ValueId};
use std::collections::HashSet;

/// Moves sums over the ranks of rows behind the products with factors that have the rows of all ranks.
pub(super) fn behind_products(graph: &Graph, number: usize, axes: &Axes<'_>, found: &mut [Pending]) {
    if axes.rows().is_empty() {
        return;
    }
    let all = with_all_rows(graph, number, axes, found);
    for pending in found {
        let Some(at) = last_product(graph, pending, &all) else { continue };
        if takes_rows_home(&pending.sum, axes) {
            pending.sum_at = pending.sum_at.max(at);
        }
        if let Some(own_at) = &mut pending.own_at {
            if takes_rows_home(&pending.own, axes) {
                *own_at = (*own_at).max(at);
            }
            // As in `pending.rs`: neither sum may pass what the other stays before.
            *own_at = (*own_at).max(pending.sum_at);
        }
        if pending.own_at.is_some() && !pending.sum.is_empty() && pending.reorders(graph, pending.sum_at) {
            pending.own_at = Some(pending.sum_at);
        }
    }
}

/// Mesh axes because of which an operation sees the rows of all ranks, some of those that rows are spread over: of a table that it
/// multiplies by or reads from, or of another axis of its result, of which a rank's part would go with no other rank's rows.
pub(super) fn over_rows<'a>(graph: &Graph, number: usize, id: ValueId, axes: &'a Axes<'_>) -> Option<&'a [String]> {
    let table = match (&graph.node(id).op, graph.operands(id).as_slice()) {
        (Op::Linear { .. }, [_, w, ..]) => Some(*w),
        (Op::Gather { .. }, [table, _]) if index_axis(graph, id).is_some() => Some(*table),
        _ => None,
    };
    let has_rows = graph.tensor(id).is_some_and(|ty| ty.row_axes().next().is_some());
    let spread = |value: ValueId| {
        let named = graph.tensor(value).map(|t| t.axes.as_slice()).unwrap_or_default();
        named.iter().map(|a| axes.of(number, value, &a.name)).find(|over| takes_rows_home(over, axes))
    };
    table.and_then(spread).or_else(|| has_rows.then_some(id).and_then(spread))
}

/// Whether a sum over these mesh axes is one over the ranks of rows.
fn takes_rows_home(over: &[String], axes: &Axes<'_>) -> bool {
    over.iter().any(|axis| axes.rows().contains(axis))
}

/// Values that have the rows of all ranks.
fn with_all_rows(graph: &Graph, number: usize, axes: &Axes<'_>, found: &[Pending]) -> HashSet<ValueId> {
    let mut home: HashSet<ValueId> = HashSet::new();
    for pending in found {
        let sum = takes_rows_home(&pending.sum, axes).then_some(pending.sum_at);
        let own = pending.own_at.filter(|_| takes_rows_home(&pending.own, axes));
        home.extend([sum, own].into_iter().flatten().filter_map(|at| pending.chain.get(at)));
    }
    let mut all: HashSet<ValueId> = HashSet::new();
    for id in graph.ids() {
        let seen = over_rows(graph, number, id, axes).is_some()
            || graph.operands(id).iter().any(|operand| all.contains(operand));
        if seen && !home.contains(&id) {
            all.insert(id);
        }
    }
    all
}

/// The last product of a chain whose other factor has the rows of all ranks.
fn last_product(graph: &Graph, pending: &Pending, all: &HashSet<ValueId>) -> Option<usize> {
    let mut last = None;
    for (at, pair) in pending.chain.windows(2).enumerate() {
        let [from, product] = pair else { continue };
        let other = |operand: &ValueId| operand != from && all.contains(operand);
        if matches!(graph.node(*product).op, Op::Binary(Binary::Mul)) && graph.operands(*product).iter().any(other) {
            last = Some(at + 1);
        }
    }
    last
}
