//! What a region is made of, and the rules that make a set of operations one.
//!
//! ```text
//!          before            element-wise operations on what the core reads
//!            │
//!          core              a product, attention, or an exchange that gives other rows
//!          ╱   ╲
//!      part     part         cuts and views of its result
//!        │        │
//!     strand   strand        row operations, each strand on the rows of a space of its own
//!        │        │
//!      store ─────┘          rows scattered to the cache
//! ```
//!
//! A region without a core is strands and stores alone.

use crate::{DType, Extent, Graph, KernelKind, KvRef, Op, TensorType, ValueId};
use std::collections::{HashMap, HashSet};

/// The core kind of an operation that dictates how a kernel runs over its operands; `None` for operations on rows.
pub fn core_kind(graph: &Graph, id: ValueId) -> Option<KernelKind> {
    match &graph.node(id).op {
        Op::Linear { .. } if graph.operands(id).len() > 2 => Some(KernelKind::GroupedMatmul),
        Op::Linear { .. } => Some(KernelKind::Matmul),
        Op::Dot { .. } => Some(KernelKind::Dot),
        Op::Attend { .. } => Some(KernelKind::Attend),
        Op::AllGather { .. } | Op::ReduceScatter { .. } => Some(KernelKind::Collective),
        _ => None,
    }
}

/// The axes along which an element of the result depends on other elements of an operand than its own: those of the
/// operand and of the result that do not run in step. A broadcast mixes nothing.
pub fn mixed_axes(graph: &Graph, id: ValueId, slot: usize) -> Vec<String> {
    let operands = graph.operands(id);
    let operand = operands.get(slot).and_then(|v| graph.tensor(*v));
    let inner = |ty: Option<&TensorType>| ty.and_then(|t| t.axes.last()).map(|a| a.name.clone());
    match &graph.node(id).op {
        Op::Reduce { axis, .. } | Op::InTop { axis, .. } => vec![axis.clone()],
        Op::BlockRound { over } if slot == 0 => block_axes(over, operand),
        Op::Top { axis, into, .. } => vec![axis.clone(), into.clone()],
        Op::Gather { axis } if slot == 0 => vec![axis.clone()],
        Op::Slice { axis, into, .. } => std::iter::once(axis).chain(into).cloned().collect(),
        Op::Concat { into } => inner(operand).into_iter().chain([into.clone()]).collect(),
        Op::AllGather { axis, into, .. } | Op::ReduceScatter { axis, into, .. } => vec![axis.clone(), into.clone()],
        Op::Dot { axis, .. } | Op::Shift { axis, .. } => vec![axis.clone()],
        Op::Walk { .. } | Op::Probs | Op::Accept { .. } => {
            operand.into_iter().flat_map(|t| &t.axes).filter(|a| !a.is_rows()).map(|a| a.name.clone()).collect()
        }
        Op::Linear { contract, .. } => contract.clone(),
        Op::Attend { .. } => inner(operand).into_iter().collect(),
        Op::Split { .. } | Op::Merge { .. } | Op::Rename { .. } => {
            let names = |ty: Option<&TensorType>| -> Vec<String> {
                ty.map(|t| t.axes.iter().map(|a| a.name.clone()).collect()).unwrap_or_default()
            };
            let (from, to) = (names(operand), names(graph.tensor(id)));
            let only = |a: &[String], b: &[String]| a.iter().filter(|n| !b.contains(n)).cloned().collect::<Vec<_>>();
            only(&from, &to).into_iter().chain(only(&to, &from)).collect()
        }
        _ => Vec::new(),
    }
}

/// The axes that a block has elements along: the innermost of `over`, as many as whole blocks take.
fn block_axes(over: &[String], operand: Option<&TensorType>) -> Vec<String> {
    let length = |name: &str| match operand.and_then(|t| t.axes.iter().find(|a| a.name == name)).map(|a| a.extent) {
        Some(Extent::Fixed(n)) => n,
        _ => 1,
    };
    let (mut elements, mut axes) = (1u64, Vec::new());
    for axis in over.iter().rev() {
        axes.push(axis.clone());
        elements = elements.saturating_mul(length(axis));
        if elements.is_multiple_of(DType::BLOCK) {
            break;
        }
    }
    axes
}

/// Pairs of effects on one cache kind that must keep their order: a store, and what stores to or reads that kind next.
/// Operands say so only of a read and the store that it names.
pub fn effect_order(graph: &Graph) -> Vec<(ValueId, ValueId)> {
    let mut latest: HashMap<&KvRef, (Option<ValueId>, Vec<ValueId>)> = HashMap::new();
    let mut pairs = Vec::new();
    for id in graph.ids() {
        match &graph.node(id).op {
            Op::Store { kv, .. } => {
                let (store, reads) = latest.entry(kv).or_default();
                pairs.extend(store.iter().chain(reads.iter()).map(|before| (*before, id)));
                *store = Some(id);
                reads.clear();
            }
            Op::Attend { kv, .. } => {
                let (store, reads) = latest.entry(kv).or_default();
                pairs.extend(store.iter().map(|before| (*before, id)));
                reads.push(id);
            }
            _ => {}
        }
    }
    pairs
}

/// Row operations that depend on each other, on a space of rows of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strand {
    /// Its operations, ascending.
    pub values: Vec<ValueId>,
    /// Axes whose indices name one row: every value has them all, and no element depends on one of another row.
    pub rows: Vec<String>,
    /// Cuts of the core's result that it reads, ascending; the core itself where it reads the result whole.
    pub reads: Vec<ValueId>,
    /// Most elements that one row takes of one of `reads`.
    pub row_elements: u64,
}

/// A region's operations by what they are in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anatomy {
    /// What executes such a region.
    pub kind: KernelKind,
    /// The core, if there is one.
    pub core: Option<ValueId>,
    /// The sum over ranks inside the strands, if there is one.
    pub exchange: Option<ValueId>,
    /// What the core's operands are computed by.
    pub before: Vec<ValueId>,
    /// Cuts and views of the core's result.
    pub parts: Vec<ValueId>,
    /// Row operations.
    pub strands: Vec<Strand>,
    /// Stores to the cache.
    pub stores: Vec<ValueId>,
}

impl Anatomy {
    /// Takes a set of operations apart; `values` ascend. The error names the rule that they break. The rules:
    ///
    /// * the operations are connected: each is an operand of another, or the other way round;
    /// * at most one is a core or a sum over ranks;
    /// * what a product or attention reads through its first operand may be computed before it, element by element or by
    ///   picking rows of a table; its other operands come from outside. What an exchange of rows reads may be any strand;
    /// * row operations that are connected without the core, its cuts and the stores are a strand. A strand has a space of
    ///   rows: axes that all its values have and along which no operation inside mixes elements, the cuts of the core's
    ///   result included. Row axes of steps are all among them;
    /// * a strand reads of a core's result, per row, elements that stand together. Where it reads several cuts, these
    ///   are of one axis and of one length, so that a layout can put them side by side.
    pub fn of(graph: &Graph, values: &[ValueId]) -> Result<Anatomy, String> {
        let inside: HashSet<ValueId> = values.iter().copied().collect();
        connected(graph, values, &inside)?;
        let cores: Vec<ValueId> = values.iter().copied().filter(|v| core_kind(graph, *v).is_some()).collect();
        let sums: Vec<ValueId> =
            values.iter().copied().filter(|v| matches!(graph.node(*v).op, Op::AllReduce { .. })).collect();
        if cores.len() + sums.len() > 1 {
            let names: Vec<String> = cores.iter().chain(&sums).map(ValueId::to_string).collect();
            return Err(format!("it holds {} cores and sums over ranks: {}", names.len(), names.join(", ")));
        }
        let (core, exchange) = (cores.first().copied(), sums.first().copied());
        let before = core.map_or_else(Vec::new, |c| ancestors(graph, c, values, &inside));
        let mut parts: Vec<ValueId> = Vec::new();
        for id in values.iter().filter(|v| core.is_some() && !before.contains(v)) {
            let op = &graph.node(*id).op;
            let of = graph.operands(*id).first().copied();
            let of_core = of.is_some_and(|v| Some(v) == core || parts.contains(&v));
            if of_core && (op.is_view() || matches!(op, Op::Slice { .. })) {
                parts.push(*id);
            }
        }
        let stores: Vec<ValueId> =
            values.iter().copied().filter(|v| matches!(graph.node(*v).op, Op::Store { .. })).collect();
        let apart = |v: &ValueId| Some(*v) == core || before.contains(v) || parts.contains(v) || stores.contains(v);
        let rest: Vec<ValueId> = values.iter().copied().filter(|v| !apart(v)).collect();
        let cut: Vec<ValueId> = core.into_iter().chain(parts.iter().copied()).collect();
        let mut strands = Vec::new();
        for group in components(graph, &rest) {
            strands.push(strand(graph, group, &cut)?);
        }
        if let Some(core) = core {
            prologue(graph, core, &before, &inside)?;
        }
        let kind = kind(graph, values, core, exchange);
        Ok(Anatomy { kind, core, exchange, before, parts, strands, stores })
    }
}

impl Anatomy {
    /// Whether a value that the region makes may take the place of one that it reads, if each row is read whole before it
    /// is written: the new value is computed from the old one and has its axes and width, their outermost axis counts rows, and
    /// what reads the old value does so in the strand that makes the new one, each row the old value's own, and stands before
    /// the new one (or makes it element by element), so that a kernel may also go operation by operation.
    pub fn overwrites(&self, graph: &Graph, old: ValueId, new: ValueId) -> bool {
        let Some(strand) = self.strands.iter().find(|s| s.values.contains(&new)) else { return false };
        let (Some(a), Some(b)) = (graph.tensor(old), graph.tensor(new)) else { return false };
        let before = |id: ValueId| id < new || (id == new && is_element_wise(&graph.node(id).op));
        let own_row = |id: ValueId| {
            let slots = graph.operands(id).into_iter().enumerate().filter(|(_, v)| *v == old);
            slots.map(|(slot, _)| mixed_axes(graph, id, slot)).all(|m| m.iter().all(|axis| !strand.rows.contains(axis)))
        };
        let all = self.strands.iter().flat_map(|s| &s.values).chain(&self.before).chain(&self.parts);
        let all = all.chain(&self.stores).chain(&self.core);
        let mut readers = all.filter(|v| graph.operands(**v).contains(&old));
        let mut computed = vec![old];
        for id in &strand.values {
            if graph.operands(*id).iter().any(|v| computed.contains(v)) {
                computed.push(*id);
            }
        }
        a.axes == b.axes
            && a.dtype.element_bytes().is_some()
            && a.dtype.element_bytes() == b.dtype.element_bytes()
            && computed.contains(&new)
            && a.axes.first().is_none_or(|axis| strand.rows.contains(&axis.name))
            && strand.rows.iter().all(|row| a.axis(row).is_some())
            && readers.all(|v| before(*v) && strand.values.contains(v) && !graph.node(*v).op.is_view() && own_row(*v))
    }
}

fn kind(graph: &Graph, values: &[ValueId], core: Option<ValueId>, exchange: Option<ValueId>) -> KernelKind {
    let ops = || values.iter().map(|v| &graph.node(*v).op).filter(|op| !op.is_view());
    let selects = |op: &Op| matches!(op, Op::Top { .. } | Op::InTop { .. });
    match core.and_then(|c| core_kind(graph, c)) {
        Some(KernelKind::Matmul) if ops().any(selects) => return KernelKind::Route,
        Some(kind) => return kind,
        None if exchange.is_some() => return KernelKind::Collective,
        None => {}
    }
    let all: Vec<&Op> = ops().collect();
    match all.as_slice() {
        [] => KernelKind::View,
        [Op::Gather { .. }] => KernelKind::Gather,
        [Op::Store { .. }] => KernelKind::Store,
        _ => KernelKind::Rows,
    }
}

fn connected(graph: &Graph, values: &[ValueId], inside: &HashSet<ValueId>) -> Result<(), String> {
    let Some(first) = values.first() else { return Err("it holds no operation".to_owned()) };
    let mut reached: HashSet<ValueId> = HashSet::from([*first]);
    let mut open = vec![*first];
    while let Some(id) = open.pop() {
        let around = graph.operands(id).into_iter().chain(graph.users(id));
        for next in around.filter(|v| inside.contains(v)) {
            if reached.insert(next) {
                open.push(next);
            }
        }
    }
    match values.iter().find(|v| !reached.contains(v)) {
        Some(apart) => Err(format!("{apart} and {first} are not connected inside it")),
        None => Ok(()),
    }
}

/// What a value depends on, inside.
fn ancestors(graph: &Graph, of: ValueId, values: &[ValueId], inside: &HashSet<ValueId>) -> Vec<ValueId> {
    let mut found: HashSet<ValueId> = HashSet::new();
    let mut open = vec![of];
    while let Some(id) = open.pop() {
        for operand in graph.operands(id).into_iter().filter(|v| inside.contains(v)) {
            if found.insert(operand) {
                open.push(operand);
            }
        }
    }
    values.iter().copied().filter(|v| found.contains(v)).collect()
}

/// Groups of values that are connected among themselves, each ascending.
fn components(graph: &Graph, values: &[ValueId]) -> Vec<Vec<ValueId>> {
    let mut group_of: HashMap<ValueId, usize> = Default::default();
    let mut groups: Vec<Vec<ValueId>> = Vec::new();
    for id in values {
        let near = graph.operands(*id).into_iter().filter_map(|v| group_of.get(&v).copied());
        let mut joined: Vec<usize> = near.collect();
        joined.sort_unstable();
        joined.dedup();
        let Some((home, others)) = joined.split_first() else {
            group_of.insert(*id, groups.len());
            groups.push(vec![*id]);
            continue;
        };
        for other in others {
            let moved = std::mem::take(&mut groups[*other]);
            group_of.extend(moved.iter().map(|v| (*v, *home)));
            groups[*home].extend(moved);
        }
        groups[*home].push(*id);
        group_of.insert(*id, *home);
    }
    groups.retain(|g| !g.is_empty());
    groups.iter_mut().for_each(|g| g.sort_unstable());
    groups
}

/// The space of a group of row operations. `cut` is the core with the cuts of its result.
fn strand(graph: &Graph, values: Vec<ValueId>, cut: &[ValueId]) -> Result<Strand, String> {
    let own: HashSet<ValueId> = values.iter().copied().collect();
    let mut rows: Option<Vec<String>> = None;
    let mut stepped: Vec<String> = Vec::new();
    let mut mixed: HashSet<String> = HashSet::new();
    let mut reads: Vec<ValueId> = Vec::new();
    for id in &values {
        let Some(ty) = graph.tensor(*id) else { return Err(format!("{id} is no tensor")) };
        stepped.extend(ty.row_axes().map(str::to_owned));
        match &mut rows {
            Some(rows) => rows.retain(|r| ty.axis(r).is_some()),
            None => rows = Some(ty.axes.iter().map(|a| a.name.clone()).collect()),
        }
        for (slot, operand) in graph.operands(*id).into_iter().enumerate() {
            let of_core = cut.contains(&operand);
            if of_core || own.contains(&operand) {
                mixed.extend(mixed_axes(graph, *id, slot));
            }
            if of_core && !reads.contains(&operand) {
                reads.push(operand);
            }
        }
    }
    let mut rows = rows.unwrap_or_default();
    rows.retain(|r| !mixed.contains(r));
    if let Some(axis) = stepped.iter().find(|axis| !rows.contains(axis)) {
        let last = values.last().map(ValueId::to_string).unwrap_or_default();
        return Err(format!("rows of the operations up to {last} do not run in step along `{axis}`"));
    }
    reads.sort_unstable();
    let mut row_elements = 1;
    for read in &reads {
        row_elements = row_elements.max(window(graph, *read, &rows)?);
    }
    side_by_side(graph, &reads)?;
    Ok(Strand { values, rows, reads, row_elements })
}

/// How many elements of a cut stand together for one row: those of the axes behind the rows' axes.
fn window(graph: &Graph, read: ValueId, rows: &[String]) -> Result<u64, String> {
    let ty = graph.tensor(read).ok_or_else(|| format!("{read} is no tensor"))?;
    let is_row = |name: &str| rows.iter().any(|r| r == name);
    let behind = ty.axes.iter().position(|a| !is_row(&a.name)).unwrap_or(ty.axes.len());
    let (_, inner) = ty.axes.split_at(behind);
    if let Some(axis) = inner.iter().find(|a| is_row(&a.name)) {
        return Err(format!("a row takes elements of {read} that lie apart: `{}` stands behind others", axis.name));
    }
    let lengths = inner.iter().map(|a| if let Extent::Fixed(n) = a.extent { n } else { 1 });
    Ok(lengths.fold(1, u64::saturating_mul))
}

/// The slice that a cut of a core's result begins with: axis, start, length.
pub(crate) fn first_slice(graph: &Graph, mut id: ValueId) -> Option<(String, u64, u64)> {
    let mut found = None;
    loop {
        let Some(of) = graph.operands(id).first().copied() else { return found };
        match &graph.node(id).op {
            Op::Slice { axis, start, len, .. } => found = Some((axis.clone(), *start, *len)),
            op if op.is_view() => {}
            _ => return found,
        }
        id = of;
    }
}

/// Several cuts that one strand reads are of one axis and one length.
fn side_by_side(graph: &Graph, reads: &[ValueId]) -> Result<(), String> {
    let mut cuts: Vec<(String, u64, u64)> = reads.iter().filter_map(|v| first_slice(graph, *v)).collect();
    let whole = cuts.len() < reads.len();
    cuts.sort_unstable();
    cuts.dedup();
    let Some((axis, _, len)) = cuts.first() else { return Ok(()) };
    if cuts.len() == 1 && !whole {
        return Ok(());
    }
    match cuts.iter().find(|(a, _, n)| whole || a != axis || n != len) {
        Some((a, start, n)) => {
            Err(format!("`{a}` from {start} len {n} and `{axis}` len {len} of one result are combined and differ"))
        }
        None => Ok(()),
    }
}

fn is_element_wise(op: &Op) -> bool {
    matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Fma | Op::Select | Op::Round(_))
}

/// What stands before a core: element by element, or rows of a table, and only on the way to its first operand.
fn prologue(graph: &Graph, core: ValueId, before: &[ValueId], inside: &HashSet<ValueId>) -> Result<(), String> {
    if core_kind(graph, core) == Some(KernelKind::Collective) {
        return components(graph, before).into_iter().try_for_each(|group| strand(graph, group, &[]).map(drop));
    }
    if let Some(other) = graph.operands(core).into_iter().skip(1).find(|v| inside.contains(v)) {
        return Err(format!("{core} reads {other} beside its first operand, and both are inside"));
    }
    for id in before {
        let picks = |op: &Op| {
            matches!(op, Op::Gather { .. }) && graph.operands(*id).first().is_some_and(|x| !inside.contains(x))
        };
        match &graph.node(*id).op {
            op if is_element_wise(op) || matches!(op, Op::Own { .. }) => {}
            op if op.is_view() || picks(op) => {}
            _ => return Err(format!("{id} stands before {core} and mixes elements")),
        }
    }
    Ok(())
}
