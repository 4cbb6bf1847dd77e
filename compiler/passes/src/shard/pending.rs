//! Values that are not complete on a rank yet, and where they are completed.
//!
//! Contracting a spread axis leaves a *partial* sum; reading a spread table by ids leaves an *exclusive* value: one rank
//! has it, the others have -0, which is neutral in a sum. Both are completed by a sum over ranks. It may stand right
//! behind the operation, or later, past operations that commute with it; the place with the fewest bytes wins, the
//! earliest of those.
//!
//! * A partial sum passes views and cuts. If the sum was left open, it also passes a product with a factor that is
//!   the same on all ranks, and an open sum over another axis: both only reorder that sum.
//!   A factor that has the rows of all ranks is always passed (`rows_back.rs`).
//! * An exclusive value passes views, cuts and roundings (-0 rounds to -0), and under the same condition products and sums.
//! * An exclusive value needs no completion at all if everything that comes of it ends in products that pick by the same
//!   ids: what a rank does not own is dropped there again. The largest magnitude of its rows may be wanted elsewhere, as a
//!   scale is: the largest over ranks is the owner's, for others have 0.

use super::axes::{Axes, index_axis, table_of};
use super::{elsewhere, rows_back};
use ir::{Binary, DType, Graph, Op, Order, ReduceOp, Unary, ValueId};
use std::collections::{HashMap, HashSet};

/// A value that an operation leaves incomplete.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    /// The operation.
    pub(super) origin: ValueId,
    /// Mesh axes over which it is a partial sum.
    pub(super) sum: Vec<String>,
    /// Mesh axes over which it is exclusive.
    pub(super) own: Vec<String>,
    /// Values from the origin to the last that may stand incomplete, each the only user of the one before it.
    pub(super) chain: Vec<ValueId>,
    /// Place in the chain where the partial sum is completed.
    pub(super) sum_at: usize,
    /// Place in the chain where the exclusive value is completed; `None` if it never need be.
    pub(super) own_at: Option<usize>,
    /// Largest magnitudes of rows of an exclusive value that is never completed: of them each rank needs the owner's.
    pub(super) maxima: Vec<ValueId>,
}

impl Pending {
    /// Whether the completion at a place stands behind an operation that only the open order lets it pass.
    pub(super) fn reorders(&self, graph: &Graph, at: usize) -> bool {
        self.chain
            .iter()
            .take(at + 1)
            .skip(1)
            .any(|v| matches!(graph.node(*v).op, Op::Binary(Binary::Mul) | Op::Reduce { .. }))
    }
}

/// Incomplete values of a graph.
pub(super) fn find(graph: &Graph, number: usize, axes: &Axes<'_>) -> Vec<Pending> {
    let mut found: Vec<Pending> = Vec::new();
    for id in graph.ids() {
        let (sum, own) = left_open(graph, number, id, axes);
        if !sum.is_empty() || !own.is_empty() {
            found.push(Pending {
                origin: id,
                sum,
                own,
                chain: vec![id],
                sum_at: 0,
                own_at: Some(0),
                maxima: Vec::new(),
            });
        }
    }
    let unsettled = unsettled(graph, &found);
    let size = |id: ValueId| local_bytes(graph, number, id, axes);
    for pending in &mut found {
        if !pending.own.is_empty()
            && let Some(maxima) = dropped_again(graph, number, pending, axes)
        {
            (pending.own_at, pending.maxima) = (None, maxima);
        }
        let sum_chain = if pending.sum.is_empty() {
            vec![pending.origin]
        } else {
            chain(graph, pending.origin, |user, from| sum_passes(graph, user, from, &unsettled))
        };
        let own_chain = if pending.own.is_empty() {
            vec![pending.origin]
        } else {
            let mut reordered = false;
            chain(graph, pending.origin, |user, from| own_passes(graph, user, from, &unsettled, &mut reordered))
        };
        let place = |chain: &[ValueId]| {
            fewest(
                chain
                    .iter()
                    .enumerate()
                    .filter(|(at, _)| settled_order(graph, chain, *at))
                    .map(|(at, v)| (at, size(*v))),
            )
        };
        pending.sum_at = if pending.sum.is_empty() { 0 } else { place(&sum_chain) };
        if pending.own_at.is_some() && !pending.own.is_empty() {
            // A sum over ranks that comes later would have to pass what the exclusive value passed.
            pending.own_at = Some(place(&own_chain).max(pending.sum_at));
        }
        pending.chain = if sum_chain.len() > own_chain.len() { sum_chain } else { own_chain };
        if pending.own_at.is_some() && !pending.sum.is_empty() && pending.reorders(graph, pending.sum_at) {
            pending.own_at = Some(pending.sum_at);
        }
    }
    rows_back::behind_products(graph, number, axes, &mut found);
    found
}

/// A product is passed for the sake of the sum behind it only.
fn settled_order(graph: &Graph, chain: &[ValueId], at: usize) -> bool {
    let passed = chain.get(1..=at).unwrap_or_default();
    let product = passed.iter().rposition(|v| matches!(graph.node(*v).op, Op::Binary(_)));
    let sum = passed.iter().rposition(|v| matches!(graph.node(*v).op, Op::Reduce { .. }));
    match (product, sum) {
        (None, _) => true,
        (Some(product), Some(sum)) => sum > product,
        (Some(_), None) => false,
    }
}

fn fewest(places: impl Iterator<Item = (usize, u64)>) -> usize {
    places.min_by_key(|(at, bytes)| (*bytes, *at)).map_or(0, |(at, _)| at)
}

/// Mesh axes over which an operation leaves a partial sum, and over which an exclusive value.
fn left_open(graph: &Graph, number: usize, id: ValueId, axes: &Axes<'_>) -> (Vec<String>, Vec<String>) {
    let (mut sum, mut own) = (Vec::new(), Vec::new());
    if let (Op::Linear { contract, .. }, Some(w)) = (&graph.node(id).op, graph.operands(id).get(1))
        && let Some(first) = contract.first()
    {
        sum = axes.of(number, *w, first).to_vec();
    }
    if let Some(axis) = index_axis(graph, id) {
        own = axes.of(number, table_of(graph, id), &axis).to_vec();
    }
    (sum, own)
}

/// Everything that may be incomplete or hold nothing of use on some rank, whatever is decided.
fn unsettled(graph: &Graph, found: &[Pending]) -> HashSet<ValueId> {
    let mut unsettled: HashSet<ValueId> = found.iter().map(|p| p.origin).collect();
    for id in graph.ids() {
        if !graph.node(id).op.is_leaf() && graph.operands(id).iter().any(|o| unsettled.contains(o)) {
            let passes = match &graph.node(id).op {
                Op::Binary(Binary::Mul) | Op::Round(_) | Op::Slice { .. } => true,
                Op::Reduce { op: ReduceOp::Sum, order, .. } => order.is_open(),
                op => op.is_view(),
            };
            if passes {
                unsettled.insert(id);
            }
        }
    }
    unsettled
}

/// Values from the origin on, each the only user of the one before it.
fn chain(graph: &Graph, origin: ValueId, mut passes: impl FnMut(ValueId, ValueId) -> bool) -> Vec<ValueId> {
    let mut chain = vec![origin];
    let mut last = origin;
    loop {
        if graph.outputs.iter().any(|(_, v)| *v == last) {
            return chain;
        }
        let users = graph.users(last);
        match users[..] {
            [user] if passes(user, last) => {
                chain.push(user);
                last = user;
            }
            _ => return chain,
        }
    }
}

fn is_cut_or_view(op: &Op) -> bool {
    op.is_view() || matches!(op, Op::Slice { .. })
}

fn open_product_or_sum(graph: &Graph, user: ValueId, from: ValueId, unsettled: &HashSet<ValueId>) -> bool {
    match &graph.node(user).op {
        Op::Binary(Binary::Mul) => {
            let operands = graph.operands(user);
            operands.iter().filter(|o| **o == from).count() == 1
                && operands.iter().all(|o| *o == from || !unsettled.contains(o))
        }
        Op::Reduce { op: ReduceOp::Sum, order: Order::Any, .. } => true,
        _ => false,
    }
}

fn sum_passes(graph: &Graph, user: ValueId, from: ValueId, unsettled: &HashSet<ValueId>) -> bool {
    is_cut_or_view(&graph.node(user).op) || open_product_or_sum(graph, user, from, unsettled)
}

fn own_passes(graph: &Graph, user: ValueId, from: ValueId, unsettled: &HashSet<ValueId>, reordered: &mut bool) -> bool {
    match &graph.node(user).op {
        op if is_cut_or_view(op) => true,
        Op::Round(_) => !*reordered,
        _ => {
            let passes = open_product_or_sum(graph, user, from, unsettled);
            *reordered |= passes;
            passes
        }
    }
}

/// The largest magnitudes of rows of an exclusive value, if everything else that comes of it ends in products that pick by
/// the same ids over the same ranks.
fn dropped_again(graph: &Graph, number: usize, pending: &Pending, axes: &Axes<'_>) -> Option<Vec<ValueId>> {
    let ids = graph.operands(pending.origin).get(2).copied()?;
    let rows = graph.tensor(ids)?;
    let mut maxima = Vec::new();
    let begins = |id: ValueId| {
        let picks = matches!(graph.node(id).op, Op::Linear { .. }) && graph.operands(id).get(2) == Some(&ids);
        picks && index_axis(graph, id).is_some_and(|axis| axes.of(number, table_of(graph, id), &axis) == pending.own)
    };
    let elsewhere = elsewhere::numbers(graph, begins);
    // No element is below 0, and all are 0 on the ranks that do not have the rows.
    let is_magnitude = |id: ValueId| {
        matches!(graph.node(id).op, Op::Unary(Unary::Abs)) && elsewhere.get(id.0 as usize) == Some(&Some(0.0))
    };
    let kept = |axis: &str| rows.axis(axis).is_none();
    let mut open = vec![pending.origin];
    let mut seen: HashSet<ValueId> = HashSet::new();
    while let Some(v) = open.pop() {
        if !seen.insert(v) {
            continue;
        }
        if graph.outputs.iter().any(|(_, o)| *o == v) || graph.users(v).is_empty() {
            return None;
        }
        for user in graph.users(v) {
            let operands = graph.operands(user);
            let row_wise = match &graph.node(user).op {
                Op::Linear { .. } if operands.get(2) == Some(&ids) && operands.first() == Some(&v) => {
                    if !begins(user) || operands.get(1) == Some(&v) {
                        return None;
                    }
                    continue;
                }
                Op::Reduce { op: ReduceOp::Max, axis, .. } if kept(axis) && is_magnitude(v) => {
                    if !maxima.contains(&user) {
                        maxima.push(user);
                    }
                    continue;
                }
                Op::Unary(_) | Op::Binary(_) | Op::Fma | Op::Select | Op::Round(_) | Op::BlockRound { .. } => true,
                Op::Reduce { axis, .. } | Op::Top { axis, .. } | Op::InTop { axis, .. } | Op::Slice { axis, .. } => {
                    kept(axis)
                }
                Op::Concat { .. } => graph.tensor(v).and_then(|t| t.axes.last()).is_some_and(|a| kept(&a.name)),
                Op::Split { axis } => kept(axis),
                Op::Rename { from, .. } => kept(from),
                Op::Merge { .. } => {
                    graph.tensor(user).is_some_and(|t| rows.axes.iter().all(|a| t.axis(&a.name).is_some()))
                }
                _ => false,
            };
            if !row_wise {
                return None;
            }
            open.push(user);
        }
    }
    Some(maxima)
}

/// Bytes of a value on one rank, per combination of rows.
fn local_bytes(graph: &Graph, number: usize, id: ValueId, axes: &Axes<'_>) -> u64 {
    let Some(ty) = graph.tensor(id) else { return u64::MAX };
    let dtype = if ty.dtype == DType::Bf16 { DType::Bf16 } else { DType::F32 };
    let elements = ty.axes.iter().map(|a| match a.extent {
        ir::Extent::Fixed(n) => n / axes.parts(axes.of(number, id, &a.name)).min(n).max(1),
        ir::Extent::Rows => 1,
    });
    dtype.bytes_for(elements.product::<u64>())
}

/// The incomplete value that is completed at each value, by value.
pub(super) fn by_value(found: &[Pending]) -> HashMap<ValueId, Vec<(usize, bool, bool)>> {
    let mut at: HashMap<ValueId, Vec<(usize, bool, bool)>> = HashMap::new();
    for (i, pending) in found.iter().enumerate() {
        let sum = (!pending.sum.is_empty()).then(|| pending.chain[pending.sum_at]);
        let own = pending.own_at.filter(|_| !pending.own.is_empty()).map(|own| pending.chain[own]);
        match (sum, own) {
            (Some(s), Some(o)) if s == o => at.entry(s).or_default().push((i, true, true)),
            (s, o) => {
                s.into_iter().for_each(|s| at.entry(s).or_default().push((i, true, false)));
                o.into_iter().for_each(|o| at.entry(o).or_default().push((i, false, true)));
            }
        }
    }
    at
}
