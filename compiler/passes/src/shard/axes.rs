//! Which axis of which value is spread over which mesh axes.
//!
//! Every fixed axis of every value is a variable. An operation makes variables equal (an axis that runs through it) or
//! demands that one is whole (an axis that it selects, cuts, joins or reduces along). Axes of weights wish to be spread as
//! the spec says; a set of equal variables is spread if a member wishes it and none must be whole.

use super::constraints::Walk;
use super::error;
use crate::PassError;
use ir::{Entry, Extent, Facts, Graph, KvRef, Mesh, Module, Op, Placement, Scope, Sharding, ValueId};
use std::collections::{HashMap, HashSet};

/// What a variable stands for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// An axis of a value of a graph; graphs are numbered over all entries.
    Value(usize, ValueId, String),
    /// An axis of a name that graphs of an entry exchange.
    Exchanged(usize, String, String),
    /// An axis of a weight.
    Weight(Scope, String, String),
    /// An axis of cached rows.
    Cached(String, String),
}

/// The word of `[shard]` that lets several ranks share one element of an axis.
pub(super) const OR_REPLICATE: &str = "or-replicate";

/// Variables, joined into sets.
pub(super) struct Axes<'m> {
    module: &'m Module,
    mesh: &'m Mesh,
    keys: HashMap<Key, usize>,
    parent: Vec<usize>,
    /// By root: whether the set must be whole.
    whole: Vec<bool>,
    /// By root: what weights wish.
    wish: Vec<Option<Vec<String>>>,
    /// By variable: its length.
    lengths: Vec<u64>,
    /// By root, filled at the end.
    spread: Vec<Vec<String>>,
    /// Mesh axes that token rows are spread over, by sequence.
    rows: Vec<String>,
}

impl<'m> Axes<'m> {
    /// Solves the placement of all axes of a module.
    pub(super) fn solve(module: &'m Module, mesh: &'m Mesh) -> Result<Self, PassError> {
        let mut axes = Axes {
            module,
            mesh,
            keys: HashMap::new(),
            parent: Vec::new(),
            whole: Vec::new(),
            wish: Vec::new(),
            lengths: Vec::new(),
            spread: Vec::new(),
            rows: wish_of(&module.facts, mesh, ir::TOKEN_ROWS).unwrap_or_default(),
        };
        for (index, entry) in module.entries.iter().enumerate() {
            axes.entry(index, entry);
        }
        axes.wishes()?;
        axes.settle()?;
        Ok(axes)
    }

    /// The mesh axes that an axis of a value is spread over; empty for a whole one.
    pub(super) fn of(&self, graph: usize, id: ValueId, axis: &str) -> &[String] {
        self.found(&Key::Value(graph, id, axis.to_owned()))
    }

    /// Number of parts over some mesh axes.
    pub(super) fn parts(&self, over: &[String]) -> u64 {
        self.mesh.parts(over)
    }

    /// Mesh axes that rows are spread over.
    pub(super) fn rows(&self) -> &[String] {
        &self.rows
    }

    /// The ranks.
    pub(super) fn mesh(&self) -> &Mesh {
        self.mesh
    }

    fn found(&self, key: &Key) -> &[String] {
        self.keys.get(key).and_then(|v| self.spread.get(self.root(*v))).map_or(&[], Vec::as_slice)
    }

    /// Where weights and caches lie.
    pub(super) fn sharding(&self) -> Sharding {
        let facts = &self.module.facts;
        let mut sharding = Sharding { mesh: self.mesh.clone(), ..Sharding::default() };
        if !self.rows.is_empty() {
            for axis in [ir::TOKEN_ROWS, ir::WANTED_ROWS] {
                sharding.rows.insert(axis.to_owned(), self.rows.clone());
            }
        }
        for weight in &facts.weights {
            let mut axes = Placement::new();
            for axis in weight.axes.iter().flatten() {
                let over = self.found(&Key::Weight(weight.scope, weight.name.clone(), axis.name.clone()));
                if !over.is_empty() {
                    axes.insert(axis.name.clone(), over.to_vec());
                }
            }
            if !axes.is_empty() {
                sharding.weights.push(ir::PlacedWeight { scope: weight.scope, name: weight.name.clone(), axes });
            }
        }
        for kind in &facts.kv {
            let mut axes = Placement::new();
            for axis in kind.k.iter().chain(&kind.v) {
                let over = self.found(&Key::Cached(kind.name.clone(), axis.name.clone()));
                if !over.is_empty() {
                    axes.insert(axis.name.clone(), over.to_vec());
                }
            }
            if !axes.is_empty() {
                sharding.kv.insert(kind.name.clone(), axes);
            }
        }
        sharding
    }

    fn root(&self, mut v: usize) -> usize {
        while self.parent[v] != v {
            v = self.parent[v];
        }
        v
    }

    pub(super) fn variable(&mut self, key: Key, length: u64) -> usize {
        if let Some(v) = self.keys.get(&key) {
            return *v;
        }
        let v = self.parent.len();
        self.parent.push(v);
        self.whole.push(false);
        self.wish.push(None);
        self.lengths.push(length);
        self.keys.insert(key, v);
        v
    }

    pub(super) fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        if a == b {
            return;
        }
        self.parent[b] = a;
        self.whole[a] |= self.whole[b];
    }

    pub(super) fn force(&mut self, v: usize) {
        let root = self.root(v);
        self.whole[root] = true;
    }

    fn entry(&mut self, index: usize, entry: &Entry) {
        let made: Vec<&str> = entry.graphs().flat_map(|(_, g)| g.outputs.iter().map(|(n, _)| n.as_str())).collect();
        for (place, (_, graph)) in entry.graphs().enumerate() {
            let number = number(index, place);
            let mut walk = Walk { axes: self, graph, number, entry: index };
            for id in graph.ids() {
                walk.node(id, &made);
            }
            for (name, id) in &graph.outputs {
                walk.exchanged(name, *id);
            }
        }
    }

    /// Weights wish to be spread as `[shard]` says, over the axes that the mesh has.
    fn wishes(&mut self) -> Result<(), PassError> {
        let facts = &self.module.facts;
        for weight in &facts.weights {
            for axis in weight.axes.iter().flatten() {
                let (Some(over), Extent::Fixed(n)) = (wish_of(facts, self.mesh, &axis.name), axis.extent) else {
                    continue;
                };
                let v = self.variable(Key::Weight(weight.scope, weight.name.clone(), axis.name.clone()), n);
                let root = self.root(v);
                match &self.wish[root] {
                    // Two wishes that differ cannot both hold.
                    Some(other) if *other != over => self.whole[root] = true,
                    _ => self.wish[root] = Some(over),
                }
            }
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), PassError> {
        self.spread_what_wishes();
        // First of all: an uneven length is the user's mistake, and making its axis whole below would hide it.
        self.lengths_come_out_even()?;
        while self.conflicts()? {
            self.spread_what_wishes();
        }
        self.heads_line_up()?;
        self.every_mesh_axis_works()
    }

    fn spread_what_wishes(&mut self) {
        self.spread = (0..self.parent.len())
            .map(|v| if self.whole[v] { Vec::new() } else { self.wish[v].clone().unwrap_or_default() })
            .collect();
    }

    /// Ranks along a mesh axis over which nothing came to lie would all do the same work.
    fn every_mesh_axis_works(&self) -> Result<(), PassError> {
        let sharding = self.sharding();
        let placements = sharding.weights.iter().map(|w| &w.axes).chain(sharding.kv.values()).chain([&sharding.rows]);
        let used: HashSet<&String> = placements.flat_map(|p| p.values().flatten()).collect();
        match self.mesh.axes().find(|(axis, _)| !used.iter().any(|u| u == axis)) {
            Some((axis, _)) => Err(error::idle_mesh_axis(axis, self.mesh, &self.module.facts)),
            None => Ok(()),
        }
    }

    /// Makes whole what cannot be spread after all; says whether something changed.
    fn conflicts(&mut self) -> Result<bool, PassError> {
        let mut force: Vec<Key> = Vec::new();
        for (entry_index, entry) in self.module.entries.iter().enumerate() {
            let last = entry.classes.len() + 1;
            for (place, (_, graph)) in entry.graphs().enumerate() {
                let number = number(entry_index, place);
                for id in graph.ids() {
                    self.value_conflicts(graph, number, id, &mut force)?;
                }
                // A result is put together from parts, and parts that ranks share would stand in it twice.
                for (_, id) in graph.outputs.iter().filter(|_| place == last) {
                    for axis in graph.tensor(*id).map(|t| t.axes.as_slice()).unwrap_or_default() {
                        let parts = self.mesh.parts(self.of(number, *id, &axis.name));
                        if matches!(axis.extent, Extent::Fixed(n) if !n.is_multiple_of(parts)) {
                            force.push(Key::Value(number, *id, axis.name.clone()));
                        }
                    }
                }
            }
        }
        for (key, v) in &self.keys {
            // A view may cut an axis so that parts do not come out even; a weight's own length is the user's mistake.
            let over = &self.spread[self.root(*v)];
            let parts = self.mesh.parts(over);
            if !over.is_empty() && matches!(key, Key::Value(..)) && !self.even(self.lengths[*v], parts) {
                let weight = self.keys.iter().any(|(k, w)| {
                    matches!(k, Key::Weight(..))
                        && self.root(*w) == self.root(*v)
                        && self.lengths[*w] == self.lengths[*v]
                });
                if !weight {
                    force.push(key.clone());
                }
            }
        }
        let mut changed = false;
        for key in force {
            if let Some(v) = self.keys.get(&key).copied() {
                let root = self.root(v);
                changed |= !std::mem::replace(&mut self.whole[root], true);
            }
        }
        Ok(changed)
    }

    fn even(&self, length: u64, parts: u64) -> bool {
        length.is_multiple_of(parts) || (length > 0 && parts.is_multiple_of(length))
    }

    /// A mesh axis may stand for one axis of a value only; what is contracted or indexed counts as one of the product's.
    fn value_conflicts(
        &self,
        graph: &Graph,
        number: usize,
        id: ValueId,
        force: &mut Vec<Key>,
    ) -> Result<(), PassError> {
        let Some(ty) = graph.tensor(id) else { return Ok(()) };
        let key = |id: ValueId, axis: &str| Key::Value(number, id, axis.to_owned());
        let mut used: Vec<(&str, &[String])> = Vec::new();
        let mut all: Vec<(ValueId, String)> = ty.axes.iter().map(|a| (id, a.name.clone())).collect();
        let operands = graph.operands(id);
        match &graph.node(id).op {
            Op::Linear { contract, .. } => {
                if let (Some(first), Some(w)) = (contract.first(), operands.get(1)) {
                    all.push((*w, first.clone()));
                    let length = self.keys.get(&key(*w, first)).map_or(1, |v| self.lengths[*v]);
                    let over = self.of(number, *w, first);
                    // Shared elements would be counted several times.
                    if !over.is_empty() && !length.is_multiple_of(self.mesh.parts(over)) {
                        force.push(key(*w, first));
                    }
                }
                if let (3, Some(index)) = (operands.len(), index_axis(graph, id)) {
                    all.push((operands[1], index));
                }
            }
            Op::Gather { axis } | Op::Reduce { axis, .. } => all.push((operands[0], axis.clone())),
            _ => {}
        }
        if let (Op::Linear { .. } | Op::Gather { .. }, Some(index)) = (&graph.node(id).op, index_axis(graph, id)) {
            let table = table_of(graph, id);
            let over = self.of(number, table, &index);
            let length = self.keys.get(&key(table, &index)).map_or(1, |v| self.lengths[*v]);
            if !over.is_empty() && !length.is_multiple_of(self.mesh.parts(over)) {
                force.push(key(table, &index));
            }
        }
        for (value, axis) in &all {
            let over = self.of(number, *value, axis);
            if let Some((other, _)) = used.iter().find(|(_, o)| o.iter().any(|m| over.contains(m))) {
                if let Op::Weight(reference) = &graph.node(id).op {
                    return Err(error::one_mesh_axis(reference, other, axis, over));
                }
                force.push(key(*value, axis));
                continue;
            }
            if !over.is_empty() {
                used.push((axis, over));
            }
        }
        Ok(())
    }

    /// What is spread has equal parts, or parts that ranks may share.
    fn lengths_come_out_even(&self) -> Result<(), PassError> {
        let facts = &self.module.facts;
        for weight in &facts.weights {
            for axis in weight.axes.iter().flatten() {
                let over = self.found(&Key::Weight(weight.scope, weight.name.clone(), axis.name.clone()));
                let Extent::Fixed(n) = axis.extent else { continue };
                let parts = self.mesh.parts(over);
                let shared = facts.shard.get(&axis.name).is_some_and(|l| l.iter().any(|w| w == OR_REPLICATE));
                let fits = n.is_multiple_of(parts) || (shared && n > 0 && parts.is_multiple_of(n));
                if !fits {
                    return Err(error::uneven(weight, &axis.name, n, over, self.mesh, shared));
                }
            }
        }
        Ok(())
    }

    /// Query heads of a rank read the cached heads of the same rank.
    fn heads_line_up(&self) -> Result<(), PassError> {
        for (entry_index, entry) in self.module.entries.iter().enumerate() {
            for (place, (_, graph)) in entry.graphs().enumerate() {
                let number = number(entry_index, place);
                for id in graph.ids() {
                    let Op::Attend { kv: KvRef::Kind(name), .. } = &graph.node(id).op else { continue };
                    let (Some(ty), Some(kind)) = (graph.tensor(id), self.module.facts.kv_kind(name)) else { continue };
                    let at = graph.operands(id).get(2).and_then(|at| graph.tensor(*at));
                    let along = at.map_or(0, |at| at.axes.iter().filter(|a| !a.is_rows()).count());
                    let heads = ty.axes.iter().filter(|a| !a.is_rows()).nth(along);
                    let (Some(heads), Some(cached)) = (heads, kind.k.first()) else { continue };
                    let over = self.of(number, id, &heads.name);
                    let kept = self.found(&Key::Cached(name.clone(), cached.name.clone()));
                    if over != kept && !(kept.is_empty() && cached.extent == Extent::Fixed(1)) {
                        return Err(error::heads_apart(&heads.name, over, &cached.name, kept, graph.node(id).span));
                    }
                }
            }
        }
        Ok(())
    }
}

/// The mesh axes that `[shard]` gives an axis, of those that the mesh has.
pub(super) fn wish_of(facts: &Facts, mesh: &Mesh, axis: &str) -> Option<Vec<String>> {
    let over = mesh.present(facts.shard.get(axis)?.iter().filter(|word| *word != OR_REPLICATE));
    (!over.is_empty()).then_some(over)
}

/// The axis of a table that ids index: of a weight in a product with ids, or gathered along. `None` where the table is no
/// weight, or the axis one of rows.
pub(super) fn index_axis(graph: &Graph, id: ValueId) -> Option<String> {
    let operands = graph.operands(id);
    let table = match (&graph.node(id).op, operands.len()) {
        (Op::Linear { .. }, 3) => operands.get(1)?,
        (Op::Gather { .. }, 2) => operands.first()?,
        _ => return None,
    };
    if !matches!(graph.node(*table).op, Op::Weight(_)) {
        return None;
    }
    let axis = match &graph.node(id).op {
        Op::Gather { axis } => axis.clone(),
        _ => graph.tensor(*table)?.axes.first()?.name.clone(),
    };
    Some(axis)
}

/// The table that a product with ids or a gather reads.
pub(super) fn table_of(graph: &Graph, id: ValueId) -> ValueId {
    let operands = graph.operands(id);
    let place = usize::from(matches!(graph.node(id).op, Op::Linear { .. }));
    operands.get(place).copied().unwrap_or(id)
}

/// Graphs are numbered entry by entry; no entry has this many.
const GRAPHS: usize = 1 << 20;

/// Number of a graph by entry and place.
pub(super) fn number(entry: usize, place: usize) -> usize {
    entry * GRAPHS + place
}
