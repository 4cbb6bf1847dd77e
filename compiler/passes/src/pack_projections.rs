//! **pack projections** (graph or sharded level)
//!
//! ```text
//! %q = linear over [hidden] (%n, W.q)        %p = linear over [hidden] (%n, packed [q, k])
//! %k = linear over [hidden] (%n, W.k)   ─►   %q = split (slice q.k from 0 len 6144 (%p))
//!                                            %k = split (slice q.k from 6144 len 1024 (%p))
//! ```
//!
//! Why: one product reads its operand once and fills the machine better than several narrow ones.
//! When: the target says `fuse.pack`, and no weight is another model's. (1) Products of one value, with the same contracted axes, order, dtype of the weight
//! and, where each row picks its slice, the same ids. (2) Each weight is a plain one that no other operation reads. (3) The
//! same weights stand together in every graph that reads one of them, because a weight has one layout. After sharding a rank
//! packs its own parts, so nothing about placement changes. Products that all layers have of one value are then joined
//! over the layers (`pack_layers.rs`).
//! Kind: `Exact`: an element of a product is a sum of its own.
//! Tests: below; random graphs in `tests/fusion.rs`.

use crate::{Compile, Kind, Level, PassError, PassInfo, pack_layers};
use indexmap::IndexMap;
use ir::{
    Axis, Class, Entry, Extent, Facts, Graph, GraphBuilder, Module, Op, Scope, TensorType, Type, ValueId, WeightRef,
};
use std::collections::{HashMap, HashSet};

/// What the pass says about itself.
pub const INFO: PassInfo = PassInfo {
    name: "pack projections",
    level: Level::Graph,
    kind: Kind::Exact,
    why: "one product reads its operand once",
};

/// A product that may be packed with others of the same operand.
struct Product {
    value: ValueId,
    weight: WeightRef,
    /// Axes that the weight's rows are, which end the result.
    columns: Vec<Axis>,
    /// What products that are packed together have in common.
    common: String,
}

/// Where each weight is multiplied: graph and what is common there. Weights with equal lists stand together.
type Uses = IndexMap<WeightRef, Option<Vec<(usize, String)>>>;

/// Runs the pass.
pub fn run(module: &Module, compile: &Compile<'_>) -> Result<Module, PassError> {
    if !compile.target.fuse.pack {
        return Ok(module.clone());
    }
    let mut uses = Uses::new();
    let graphs = module.entries.iter().flat_map(Entry::graphs).map(|(_, graph)| graph);
    for (index, graph) in graphs.enumerate() {
        note_uses(graph, index, &mut uses);
    }
    let facts = module.local_facts();
    // What belongs to another model lies where that one has it.
    uses.iter_mut().filter(|(weight, _)| is_borrowed(weight, &facts)).for_each(|(_, list)| *list = None);
    let mut index = 0;
    let mut pack = |graph: &Graph| {
        index += 1;
        packed(graph, index - 1, &uses, &facts)
    };
    let mut entries = Vec::new();
    for entry in &module.entries {
        let first = pack(&entry.first);
        let classes = entry.classes.iter().map(|c| Class { graph: pack(&c.graph), ..c.clone() }).collect();
        let last = pack(&entry.last);
        entries.push(pack_layers::stacked(&Entry { first, classes, last, ..entry.clone() }, &facts)?);
    }
    Ok(module.with_entries(entries))
}

/// Whether it is a weight of the model that is drafted for.
fn is_borrowed(weight: &WeightRef, facts: &Facts) -> bool {
    matches!(weight, WeightRef::Model(name) if facts.weight(Scope::Model, name).is_some_and(|w| w.borrowed))
}

fn note_uses(graph: &Graph, index: usize, uses: &mut Uses) {
    let products: HashMap<ValueId, Product> =
        graph.ids().filter_map(|v| product(graph, v)).map(|p| (graph.operands(p.value)[1], p)).collect();
    for id in graph.ids() {
        let Op::Weight(reference) = &graph.node(id).op else { continue };
        for weight in reference.owners().iter().flat_map(WeightRef::parts).cloned() {
            let list = uses.entry(weight).or_insert_with(|| Some(Vec::new()));
            match (products.get(&id), list.as_mut()) {
                (Some(product), Some(list)) => list.push((index, product.common.clone())),
                // Somebody else reads it, so its rows stay where they are.
                _ => *list = None,
            }
        }
    }
}

/// A product of rules (1) and (2).
fn product(graph: &Graph, id: ValueId) -> Option<Product> {
    let Op::Linear { contract, order } = &graph.node(id).op else { return None };
    let operands = graph.operands(id);
    let (x, w) = (*operands.first()?, *operands.get(1)?);
    let Op::Weight(weight @ (WeightRef::Model(_) | WeightRef::Layer(_))) = &graph.node(w).op else { return None };
    if graph.users(w) != [id] || x == w {
        return None;
    }
    let (ty, result) = (graph.tensor(w)?, graph.tensor(id)?);
    let front = operands.len() - 2;
    let columns = ty.axes.get(front..ty.axes.len().checked_sub(contract.len())?)?.to_vec();
    let rows = result.axes.get(..result.axes.len().checked_sub(columns.len())?)?;
    let fixed = columns.iter().all(|a| matches!(a.extent, Extent::Fixed(_)));
    if columns.is_empty() || !fixed {
        return None;
    }
    let others = (&ty.axes[..front], &ty.axes[front + columns.len()..]);
    let common = format!("{x} {:?} {contract:?} {order} {} {others:?} {rows:?}", operands.get(2), ty.dtype);
    Some(Product { value: id, weight: weight.clone(), columns, common })
}

/// Entries of axes of fixed length.
pub(crate) fn length(columns: &[Axis]) -> u64 {
    columns.iter().map(|a| if let Extent::Fixed(n) = a.extent { n } else { 1 }).product()
}

fn packed(graph: &Graph, index: usize, uses: &Uses, facts: &Facts) -> Graph {
    let mut packs: IndexMap<&Vec<(usize, String)>, Vec<Product>> = IndexMap::new();
    for product in graph.ids().filter_map(|v| product(graph, v)) {
        // A weight that a graph multiplies twice has two places to be packed at; it stays as it is.
        let once = |list: &&Vec<(usize, String)>| list.iter().filter(|(i, _)| *i == index).count() == 1;
        if let Some(list) = uses.get(&product.weight).and_then(Option::as_ref).filter(once) {
            packs.entry(list).or_default().push(product);
        }
    }
    let packs: Vec<Vec<Product>> = packs.into_values().filter(|p| p.len() > 1).collect();
    if packs.is_empty() {
        return graph.clone();
    }
    Packing { graph, facts, packs, builder: GraphBuilder::new(), copies: HashMap::new() }.run()
}

struct Packing<'a> {
    graph: &'a Graph,
    facts: &'a Facts,
    packs: Vec<Vec<Product>>,
    builder: GraphBuilder,
    copies: HashMap<ValueId, ValueId>,
}

impl Packing<'_> {
    fn run(mut self) -> Graph {
        let weights: HashSet<ValueId> =
            self.packs.iter().flatten().filter_map(|p| self.graph.operands(p.value).get(1).copied()).collect();
        // A pack stands where its first product stood.
        let packs = std::mem::take(&mut self.packs);
        let firsts: HashMap<ValueId, &Vec<Product>> =
            packs.iter().filter_map(|pack| Some((pack.first()?.value, pack))).collect();
        let members: HashSet<ValueId> = packs.iter().flatten().map(|p| p.value).collect();
        for id in self.graph.ids().filter(|v| !weights.contains(v)) {
            if let Some(pack) = firsts.get(&id) {
                self.pack(pack);
            }
            if !members.contains(&id) {
                let node = self.graph.node(id);
                let operands = self.operands(id);
                let copy = self.builder.add(node.op.clone(), &operands, node.ty.clone(), node.span);
                self.name(id, copy);
            }
        }
        for (name, value) in &self.graph.outputs {
            if let Some(copy) = self.copies.get(value) {
                self.builder.output(name, *copy);
            }
        }
        let inputs: Vec<ValueId> = self.graph.inputs.iter().filter_map(|v| self.copies.get(v).copied()).collect();
        let mut done = self.builder.finish();
        done.inputs = inputs;
        done
    }

    fn operands(&self, id: ValueId) -> Vec<ValueId> {
        self.graph.operands(id).iter().filter_map(|v| self.copies.get(v).copied()).collect()
    }

    fn name(&mut self, id: ValueId, copy: ValueId) {
        if let Some(name) = &self.graph.node(id).name {
            self.builder.name(copy, name);
        }
        self.copies.insert(id, copy);
    }

    /// The packed product, and a cut of its result for each product that it stands for.
    fn pack(&mut self, pack: &[Product]) {
        let Some(first) = pack.first() else { return };
        let old = self.graph.operands(first.value);
        let (Some(ty), Some(result)) = (self.graph.tensor(old[1]), self.graph.tensor(first.value)) else { return };
        let into = self.axis_name(pack);
        let joined = Axis::fixed(into.clone(), pack.iter().map(|p| length(&p.columns)).sum());
        let mut axes = ty.axes.clone();
        let front = old.len() - 2;
        axes.splice(front..front + first.columns.len(), [joined.clone()]);
        let parts = pack.iter().map(|p| p.weight.clone()).collect();
        let weight = Op::Weight(WeightRef::Packed { into: into.clone(), parts });
        let weight = self.builder.add(weight, &[], Type::Tensor(TensorType::new(ty.dtype, axes)), None);
        let mut operands: Vec<ValueId> = old.iter().filter_map(|v| self.copies.get(v).copied()).collect();
        operands.insert(1, weight);
        let rows = &result.axes[..result.axes.len() - first.columns.len()];
        let with = |columns: &[Axis]| {
            Type::Tensor(TensorType::new(result.dtype, rows.iter().chain(columns).cloned().collect()))
        };
        let node = self.graph.node(first.value);
        let product = self.builder.add(node.op.clone(), &operands, with(&[joined]), node.span);
        let mut start = 0;
        for (i, member) in pack.iter().enumerate() {
            let span = self.graph.node(member.value).span;
            let len = length(&member.columns);
            let cut = match member.columns.as_slice() {
                [only] => only.clone(),
                _ => Axis::fixed(format!("{into}.{i}"), len),
            };
            let slice = Op::Slice { axis: into.clone(), start, len, into: Some(cut.name.clone()) };
            let mut value = self.builder.add(slice, &[product], with(std::slice::from_ref(&cut)), span);
            if member.columns.len() > 1 {
                value = self.builder.add(Op::Split { axis: cut.name }, &[value], with(&member.columns), span);
            }
            self.name(member.value, value);
            start += len;
        }
    }

    /// The weights' names joined by dots, unless an axis is called so already.
    fn axis_name(&self, pack: &[Product]) -> String {
        let words: Vec<&str> = pack
            .iter()
            .map(|p| match &p.weight {
                WeightRef::Model(name)
                | WeightRef::Layer(name)
                | WeightRef::FirstLayer(name)
                | WeightRef::OfLayer { name, .. } => name.as_str(),
                WeightRef::Next { layer, .. } => layer,
                WeightRef::Packed { into, .. } => into,
            })
            .collect();
        let wanted = words.join(".");
        let in_graph = |name: &str| {
            let tensors = self.graph.ids().filter_map(|v| self.graph.tensor(v));
            tensors.flat_map(|t| &t.axes).any(|a| a.name == name || a.name.starts_with(&format!("{name}.")))
        };
        let known = |name: &str| {
            let starts = |n: &String| n == name || n.starts_with(&format!("{name}."));
            self.facts.dims.keys().any(starts) || self.facts.products.keys().any(starts)
        };
        ir::free_name(&wanted, |name| in_graph(name) || known(name))
    }
}

#[cfg(test)]
mod tests {
    use crate::Compile;
    use targets::Target;

    /// The last graph before and after the pass, line by line without the inputs.
    fn packed(values: &str, pack: bool) -> String {
        let text = format!(
            "module m act bf16 dim hidden = 8 dim wide = 6 dim heads = 2 dim head = 2 dim q = 4 product q = [heads, head]
            weight model q: bf16[heads head, hidden] weight model k: bf16[wide, hidden]
            entry e {{ graph first () -> () {{ }} graph last (%x, %y) -> (q = %q, k = %k) {{ axes T = rows
            %x: bf16[T, hidden] = input x
            %y: bf16[T, hidden] = input y
            %wq: bf16[heads, head, hidden] = weight model q
            %wk: bf16[wide, hidden] = weight model k
            {values} }} }}"
        );
        let module = ir::parse_module(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(ir::verify_module(&module.with_entries(Vec::new())), Ok(()));
        let mut target = Target::load("cpu").expect("a target");
        target.fuse.pack = pack;
        let after = super::run(&module, &Compile::one_device(&target)).expect("graphs");
        let text = ir::print_graph("last", &after.entries[0].last, &after.facts, false);
        let lines = text.lines().map(str::trim).filter(|l| l.starts_with('%') && !l.contains(" = input "));
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn products_of_one_value_become_one_and_are_cut_again() {
        let values = "%q: f32[T, heads, head] = linear over [hidden] order any (%x, %wq)
            %k: f32[T, wide] = linear over [hidden] order any (%x, %wk)";
        let expected = "%2: bf16[q.k, hidden] = weight packed into q.k [model q, model k]
%3: f32[T, q.k] = linear over [hidden] order any (%x, %2)
%4: f32[T, q.k.0] = slice q.k from 0 len 4 into q.k.0 (%3)
%q: f32[T, heads, head] = split q.k.0 (%4)
%k: f32[T, wide] = slice q.k from 4 len 6 into wide (%3)";
        assert_eq!(packed(values, true), expected);
        assert!(packed(values, false).contains("linear over [hidden] order any (%x, %wk)"));
    }

    #[test]
    fn what_differs_in_operand_or_order_or_is_read_elsewhere_stays() {
        let two = |x: &str, order: &str, more: &str| {
            format!(
                "%q: f32[T, heads, head] = linear over [hidden] order any (%x, %wq)
                %k: f32[T, wide] = linear over [hidden] order {order} ({x}, %wk) {more}"
            )
        };
        let read = "%n: f32[wide, hidden] = neg (%wk)";
        for values in [two("%y", "any", ""), two("%x", "serial", ""), two("%x", "any", read)] {
            let after = packed(&values, true);
            assert!(!after.contains("packed") && after.contains("weight model k"), "{after}");
        }
    }
}
