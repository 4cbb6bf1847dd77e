//! What a witness may change: orders that were open, and nothing else.
//!
//! A refining pass hands over a witness of its own making, so the witness itself is checked, here, without a word from the
//! pass: value for value it must be the old graph, except that
//!
//! * a sum whose order was open has any order;
//! * a product of weights with an open order may stand as a sum of products, each over one contiguous part of the
//!   contracted axis or with the ids of one part of the table (the others -1); the parts cover everything once;
//! * that sum may stand behind views, cuts, products with something that is no part of it, and sums that are open
//!   themselves, which then stand once per part; behind a rounding only if the parts are of the table alone and the
//!   rounding comes before any such product or sum, so that at most one of the parts that round is not -0: behind a sum
//!   over picked rows of the table two parts are.

use ir::{Binary, DType, Extent, Graph, Module, Op, Order, ReduceOp, ValueId};
use std::collections::HashMap;

/// Checks a witness against the graphs that it stands for.
pub(super) fn check(old: &Module, witness: &Module) -> Result<(), String> {
    if witness.sharding != old.sharding || witness.facts != old.facts || witness.entries.len() != old.entries.len() {
        return Err("the witness is of another model".to_owned());
    }
    for (a, b) in old.entries.iter().zip(&witness.entries) {
        let graphs: Vec<_> = a.graphs().zip(b.graphs()).collect();
        if a.name != b.name || a.instances != b.instances || a.classes.len() != b.classes.len() {
            return Err(format!("the witness has another entry than `{}`", a.name));
        }
        for ((name, old), (_, new)) in graphs {
            Matcher { old, new, known: HashMap::new() }
                .graphs()
                .map_err(|value| format!("the witness changes `{value}` of {} {name}, which no rule allows", a.name))?;
        }
    }
    Ok(())
}

struct Matcher<'a> {
    old: &'a Graph,
    new: &'a Graph,
    known: HashMap<(ValueId, ValueId), bool>,
}

/// One part of a product: of the contracted axis and of the table, as start and length.
#[derive(Clone, Copy, PartialEq)]
struct Part {
    origin: ValueId,
    sum: Option<(u64, u64)>,
    own: Option<(u64, u64)>,
    rounded: bool,
    /// Whether it has passed a product or a sum, so that more than one part may be other than -0.
    mixed: bool,
}

impl Matcher<'_> {
    /// All outputs and effects; the error names the first old value that has no counterpart.
    fn graphs(&mut self) -> Result<(), String> {
        let shown = |id: ValueId, graph: &Graph| graph.node(id).name.clone().unwrap_or_else(|| id.to_string());
        let signature = |g: &Graph| -> Vec<String> {
            let inputs = g.inputs.iter().filter_map(|v| g.input_name(*v)).map(str::to_owned);
            inputs.chain(g.outputs.iter().map(|(n, _)| n.clone())).collect()
        };
        if signature(self.old) != signature(self.new) {
            return Err("the signature".to_owned());
        }
        let (old, new) = (self.old, self.new);
        for ((_, a), (_, b)) in old.outputs.iter().zip(&new.outputs) {
            if !self.same(*b, *a) {
                return Err(shown(*a, old));
            }
        }
        let stores = |g: &Graph| g.ids().filter(|v| matches!(g.node(*v).op, Op::Store { .. })).collect::<Vec<_>>();
        let (a, b) = (stores(old), stores(new));
        if a.len() != b.len() {
            return Err("the cache".to_owned());
        }
        match a.iter().zip(&b).find(|(a, b)| !self.same(**b, **a)) {
            Some((a, _)) => Err(shown(*a, old)),
            None => Ok(()),
        }
    }

    /// Whether a value of the witness is a value of the old graph, orders aside.
    fn same(&mut self, new: ValueId, old: ValueId) -> bool {
        if let Some(known) = self.known.get(&(new, old)) {
            return *known;
        }
        let found = self.directly(new, old) || self.by_parts(new, old);
        self.known.insert((new, old), found);
        found
    }

    fn directly(&mut self, new: ValueId, old: ValueId) -> bool {
        let (a, b) = (self.old.node(old), self.new.node(new));
        if a.ty != b.ty || !same_op(&a.op, &b.op) {
            return false;
        }
        let (a, b) = (self.old.operands(old), self.new.operands(new));
        a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| self.same(*b, *a))
    }

    /// Whether a value of the witness is the sum of all parts of an old one.
    fn by_parts(&mut self, new: ValueId, old: ValueId) -> bool {
        let narrowed = match &self.new.node(new).op {
            Op::Round(DType::Bf16) if self.old.tensor(old).is_some_and(|t| t.dtype == DType::Bf16) => true,
            Op::Binary(Binary::Add) => false,
            _ => return false,
        };
        let sum = if narrowed { self.new.operands(new)[0] } else { new };
        let (Some(wanted), Some(found)) = (self.old.tensor(old), self.new.tensor(sum)) else { return false };
        if wanted.axes != found.axes || found.dtype != DType::F32 {
            return false;
        }
        let terms = self.terms(sum);
        if terms.len() < 2 {
            return false;
        }
        let mut parts = Vec::new();
        for term in terms {
            match self.part(term, old) {
                Some(part) => parts.push(part),
                None => return false,
            }
        }
        let rounded = narrowed || parts.iter().any(|p| p.rounded);
        covers(self.old, &parts)
            && !(narrowed && parts.iter().any(|p| p.mixed))
            && !(rounded && parts.iter().any(|p| p.sum.is_some()))
    }

    /// The terms of a sum, however it is bracketed: the sum that it stands for was open.
    fn terms(&self, sum: ValueId) -> Vec<ValueId> {
        let (mut terms, mut open) = (Vec::new(), vec![sum]);
        while let Some(at) = open.pop() {
            match (&self.new.node(at).op, &self.new.operands(at)[..]) {
                // More terms than any mesh has ranks are no parts.
                (Op::Binary(Binary::Add), [a, b]) if terms.len() < 1 << 12 => open.extend([*b, *a]),
                _ => terms.push(at),
            }
        }
        terms
    }

    /// Which part of an old value a value of the witness is.
    fn part(&mut self, new: ValueId, old: ValueId) -> Option<Part> {
        let (a, b) = (self.old.node(old), self.new.node(new));
        let (olds, news) = (self.old.operands(old), self.new.operands(new));
        if a.ty != b.ty || olds.len() != news.len() {
            return None;
        }
        match &a.op {
            Op::Linear { .. } | Op::Gather { .. } => self.part_of_product(new, old),
            Op::Binary(Binary::Mul) if same_op(&a.op, &b.op) => {
                for (place, other) in [(0, 1), (1, 0)] {
                    if let Some(part) = self.part(news[place], olds[place])
                        && self.same(news[other], olds[other])
                    {
                        return Some(Part { mixed: true, ..part });
                    }
                }
                None
            }
            Op::Reduce { op: ReduceOp::Sum, order, .. } if order.is_open() && same_op(&a.op, &b.op) => {
                self.part(news[0], olds[0]).map(|part| Part { mixed: true, ..part })
            }
            Op::Round(_) if same_op(&a.op, &b.op) => {
                self.part(news[0], olds[0]).filter(|part| !part.mixed).map(|part| Part { rounded: true, ..part })
            }
            op if (op.is_view() || matches!(op, Op::Slice { .. })) && same_op(op, &b.op) => self.part(news[0], olds[0]),
            _ => None,
        }
    }

    fn part_of_product(&mut self, new: ValueId, old: ValueId) -> Option<Part> {
        let (olds, mut news) = (self.old.operands(old), self.new.operands(new));
        let (mut sum, mut own) = (None, None);
        let picks = olds.len() == 3 || matches!(self.old.node(old).op, Op::Gather { .. });
        if picks
            && let Some(last) = news.last_mut()
            && let Some((ids, part)) = self.inside(*last)
        {
            *last = ids;
            own = Some(part);
        }
        match (&self.old.node(old).op, &self.new.node(new).op) {
            (Op::Linear { contract: a, order: from }, Op::Linear { contract: b, order: to }) => {
                if !from.is_open() || !refines(from, to) || a.len() != b.len() || a.get(1..) != b.get(1..) {
                    return None;
                }
                let (a, b) = (a.first()?, b.first()?);
                if a != b {
                    let (x, cut) = self.cut(news[0], a, b)?;
                    let (w, same) = self.cut(news[1], a, b)?;
                    if same != cut {
                        return None;
                    }
                    (news[0], news[1]) = (x, w);
                    sum = Some(cut);
                }
            }
            (a @ Op::Gather { .. }, b) if a == b => {}
            _ => return None,
        }
        let same = olds.iter().zip(&news).all(|(a, b)| self.same(*b, *a));
        (same && (sum.is_some() || own.is_some())).then_some(Part {
            origin: old,
            sum,
            own,
            rounded: false,
            mixed: false,
        })
    }

    /// What a cut along an axis is of, and which part.
    fn cut(&self, id: ValueId, axis: &str, into: &str) -> Option<(ValueId, (u64, u64))> {
        match &self.new.node(id).op {
            Op::Slice { axis: a, start, len, into: Some(i) } if a == axis && i == into => {
                Some((*self.new.operands(id).first()?, (*start, *len)))
            }
            _ => None,
        }
    }

    /// The ids of which these are those of a part: `where(start <= ids and ids < end, ids, -1)`.
    fn inside(&self, id: ValueId) -> Option<(ValueId, (u64, u64))> {
        let graph = self.new;
        let binary = |id: ValueId, f: Binary| match (&graph.node(id).op, &graph.operands(id)[..]) {
            (Op::Binary(g), [a, b]) if *g == f => Some((*a, *b)),
            _ => None,
        };
        let number = |id: ValueId| match (&graph.node(id).op, graph.tensor(id)) {
            (Op::Literal(data), Some(ty)) if data.len() == 1 && ty.dtype == DType::I32 => data.first().copied(),
            _ => None,
        };
        let (Op::Select, [both, ids, none]) = (&graph.node(id).op, &graph.operands(id)[..]) else { return None };
        let (above, below) = binary(*both, Binary::And)?;
        let (first, above) = binary(above, Binary::Le)?;
        let (below, end) = binary(below, Binary::Lt)?;
        let (start, end) = (number(first)?, number(end)?);
        let fits = above == *ids && below == *ids && number(*none) == Some(-1.0) && start >= 0.0 && end > start;
        fits.then_some((*ids, (start as u64, (end - start) as u64)))
    }
}

/// The same operation, but for an order that was open.
fn same_op(old: &Op, new: &Op) -> bool {
    let (Some(from), Some(to)) = (old.order(), new.order()) else { return old == new };
    let mut closed = old.clone();
    if let Some(order) = closed.order_mut() {
        *order = to.clone();
    }
    closed == *new && refines(from, to)
}

/// Whether an order is another with its open part decided.
pub(super) fn refines(from: &Order, to: &Order) -> bool {
    match (from, to) {
        (Order::Any, _) => true,
        (Order::Split { parts: a, inner: x }, Order::Split { parts: b, inner: y }) => a == b && refines(x, y),
        (from, to) => from == to,
    }
}

/// Whether parts are of one product and cover each pair of contracted index and table index once.
fn covers(old: &Graph, parts: &[Part]) -> bool {
    let Some(first) = parts.first() else { return false };
    let operands = old.operands(first.origin);
    let fixed = |id: ValueId, axis: Option<&str>| -> Option<u64> {
        let ty = old.tensor(id)?;
        let found = match axis {
            Some(axis) => ty.axes.iter().find(|a| a.name == axis)?,
            None => ty.axes.first()?,
        };
        match found.extent {
            Extent::Fixed(n) => Some(n),
            Extent::Rows => None,
        }
    };
    let (sum, own) = match &old.node(first.origin).op {
        Op::Linear { contract, .. } => {
            (fixed(operands[0], contract.first().map(String::as_str)), fixed(operands[1], None))
        }
        Op::Gather { axis } => (Some(1), fixed(operands[0], Some(axis))),
        _ => return false,
    };
    let (Some(sum), Some(own)) = (sum, own) else { return false };
    // With nothing cut along an axis a part has all of it.
    let whole = |part: Option<(u64, u64)>, n: u64| part.unwrap_or((0, n));
    let boxes: Vec<[(u64, u64); 2]> = parts.iter().map(|p| [whole(p.sum, sum), whole(p.own, own)]).collect();
    let apart = |a: (u64, u64), b: (u64, u64)| a.0 + a.1 <= b.0 || b.0 + b.1 <= a.0;
    let disjoint =
        boxes.iter().enumerate().all(|(i, a)| boxes.iter().take(i).all(|b| apart(a[0], b[0]) || apart(a[1], b[1])));
    let area: u128 = boxes.iter().map(|b| u128::from(b[0].1) * u128::from(b[1].1)).sum();
    parts.iter().all(|p| p.origin == first.origin) && disjoint && area == u128::from(sum) * u128::from(own)
}
