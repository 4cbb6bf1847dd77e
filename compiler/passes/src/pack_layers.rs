//! The second half of *pack projections*: products of one value in every layer become one product before the layers.
//!
//! ```text
//! first:    %c = …                                first:    %c = …
//! layer i:  %p = linear (%c, packed [k, v])  ─►             %all = linear (%c, packed [layer 0 k, layer 0 v, layer 1 k, …])
//!                                                 layer i:  %p = slice from i·len len (%all)
//! ```
//!
//! Why: a value that no layer changes, such as a drafter's fused rows, feeds all layers, and one product reads it once.
//! When: (1) every layer has the same product of a value that the first graph hands on and no layer changes. (2) Its weights are
//! plain ones of the layer, alone or packed, and a rank's part of one layer's fills whole units of weight memory, so that
//! the layers' parts follow each other without a gap: other graphs go on reading one layer's.
//! Each layer then has a class of its own, which takes its part. Where all that is read of the product is rounded to one format,
//! it is handed on rounded.
//! Tests: below; a drafter of real size before and after, in `tests/tests/drafting/packing.rs`.

use crate::PassError;
use crate::copying::Copying;
use crate::pack_projections::length;
use indexmap::IndexMap;
use ir::{Axis, Class, DType, Entry, Extent, Facts, Graph, Instance, Op, TensorType, ValueId, WeightRef};

/// A product in a layer's graph that may stand before the layers.
#[derive(Clone)]
struct Found {
    value: ValueId,
    /// Name of what is multiplied.
    of: String,
    /// Weights of the layer, in order.
    weights: Vec<String>,
    /// Axes that end the result, and of the weight those behind them.
    columns: Vec<Axis>,
    behind: Vec<Axis>,
    rows: Vec<Axis>,
    op: Op,
    stored: DType,
    /// Format that all readers round to.
    rounded: Option<DType>,
}

/// An entry with such products before its layers.
pub(crate) fn stacked(entry: &Entry, facts: &Facts) -> Result<Entry, PassError> {
    let mut entry = entry.clone();
    let graphs: Vec<&Graph> = entry.instances.iter().filter_map(|i| Some(&entry.classes.get(i.class)?.graph)).collect();
    if graphs.len() < 2 || graphs.len() != entry.instances.len() {
        return Ok(entry);
    }
    let all: Vec<IndexMap<String, Found>> = graphs.iter().map(|graph| products(graph, &entry)).collect();
    let Some(first) = all.first() else { return Ok(entry) };
    let keys: Vec<String> = first.keys().filter(|key| all.iter().all(|of| of.contains_key(*key))).cloned().collect();
    for key in keys {
        // Each has moved the values of the layers' graphs.
        let found = entry.instances.iter().map(|i| {
            let graph = &entry.classes.get(i.class)?.graph;
            products(graph, &entry).swap_remove(&key)
        });
        if let Some(found) = found.collect::<Option<Vec<Found>>>() {
            entry = moved(&entry, &found, facts)?;
        }
    }
    Ok(entry)
}

/// Products of a graph by what all layers must have in common; one that it has twice is none.
fn products(graph: &Graph, entry: &Entry) -> IndexMap<String, Found> {
    let mut found: IndexMap<String, Option<Found>> = IndexMap::new();
    for product in graph.ids().filter_map(|id| product(graph, id, entry)) {
        let Found { of, weights, columns, behind, rows, op, stored, rounded, .. } = &product;
        let key = format!("{of} {weights:?} {columns:?} {behind:?} {rows:?} {op:?} {stored} {rounded:?}");
        found.entry(key).and_modify(|known| *known = None).or_insert(Some(product));
    }
    found.into_iter().filter_map(|(key, product)| Some((key, product?))).collect()
}

fn product(graph: &Graph, id: ValueId, entry: &Entry) -> Option<Found> {
    let node = graph.node(id);
    let Op::Linear { contract, .. } = &node.op else { return None };
    let [x, w] = graph.operands(id)[..] else { return None };
    let of = graph.input_name(x)?.to_owned();
    let given = entry.first.outputs.iter().any(|(name, _)| *name == of);
    let changed = entry.classes.iter().any(|c| c.graph.outputs.iter().any(|(name, _)| *name == of));
    let Op::Weight(weight) = &graph.node(w).op else { return None };
    let own = |part: &WeightRef| if let WeightRef::Layer(name) = part { Some(name.clone()) } else { None };
    let weights = weight.parts().iter().map(own).collect::<Option<Vec<String>>>()?;
    if !given || changed || graph.users(w) != [id] || graph.outputs.iter().any(|(_, v)| *v == id) {
        return None;
    }
    let (ty, result) = (graph.tensor(w)?, graph.tensor(id)?);
    let (columns, behind) = ty.axes.split_at_checked(ty.axes.len().checked_sub(contract.len())?)?;
    let rows = result.axes.get(..result.axes.len().checked_sub(columns.len())?)?;
    let fixed = |axes: &[Axis]| axes.iter().all(|a| matches!(a.extent, Extent::Fixed(_)));
    let bytes = ty.dtype.bytes_for(ty.fixed_elements());
    if columns.is_empty() || !fixed(columns) || !fixed(behind) || !bytes.is_multiple_of(ir::WEIGHT_ALIGN_BYTES) {
        return None;
    }
    Some(Found {
        value: id,
        of,
        weights,
        columns: columns.to_vec(),
        behind: behind.to_vec(),
        rows: rows.to_vec(),
        op: node.op.clone(),
        stored: ty.dtype,
        rounded: rounded(graph, id),
    })
}

/// Values that only cut the product or name its axes anew.
fn cuts(op: &Op) -> bool {
    matches!(op, Op::Slice { .. } | Op::Split { .. } | Op::Rename { .. })
}

/// The format that everything that reads a value, or cuts of it, rounds to.
fn rounded(graph: &Graph, of: ValueId) -> Option<DType> {
    let (mut open, mut found) = (vec![of], None);
    while let Some(id) = open.pop() {
        if graph.outputs.iter().any(|(_, v)| *v == id) {
            return None;
        }
        for user in graph.users(id) {
            match &graph.node(user).op {
                Op::Round(dtype) if found.is_none_or(|known| known == *dtype) => found = Some(*dtype),
                op if cuts(op) => open.push(user),
                _ => return None,
            }
        }
    }
    found
}

/// The entry with one product in its first graph, and a part of it in a class for each layer.
fn moved(entry: &Entry, found: &[Found], facts: &Facts) -> Result<Entry, PassError> {
    let Some(one) = found.first() else { return Ok(entry.clone()) };
    let into = free_axis(entry, facts, &format!("layers.{}", one.weights.join(".")));
    let taken = |name: &str| {
        let graphs = entry.graphs().map(|(_, graph)| graph);
        graphs
            .into_iter()
            .any(|g| g.ids().any(|v| g.node(v).name.as_deref() == Some(name) || g.input_name(v) == Some(name)))
    };
    let name = ir::free_name(&format!("{}.{into}", one.of), taken);
    let each = length(&one.columns);
    let joined = Axis::fixed(into.clone(), each.saturating_mul(found.len() as u64));
    let ty = TensorType::new(DType::F32, one.rows.iter().cloned().chain([joined]).collect());
    let first = before(entry, one, (&into, &name), &ty)?;
    let ty = one.rounded.map_or(ty.clone(), |dtype| ty.with_dtype(dtype));
    let (mut classes, mut instances) = (Vec::new(), Vec::new());
    for (place, (instance, product)) in entry.instances.iter().zip(found).enumerate() {
        let Some(class) = entry.classes.get(instance.class) else { continue };
        let graph = part(&class.graph, product, (&into, &name), &ty, place as u64 * each)?;
        instances.push(Instance { class: classes.len(), ..*instance });
        classes.push(Class { name: format!("{}.{}", class.name, instance.layer), graph, ..class.clone() });
    }
    Ok(Entry { first, classes, instances, ..entry.clone() })
}

/// The first graph with the product of all layers.
fn before(entry: &Entry, one: &Found, (into, name): (&str, &str), ty: &TensorType) -> Result<Graph, PassError> {
    let mut copying = Copying::new(&entry.first);
    for id in entry.first.ids() {
        copying.copy(id)?;
    }
    let Some((_, x)) = entry.first.outputs.iter().find(|(output, _)| *output == one.of) else {
        return Ok(entry.first.clone());
    };
    let layers = entry.instances.iter().flat_map(|i| one.weights.iter().map(|name| (i.layer, name.clone())));
    let parts = layers.map(|(layer, name)| WeightRef::OfLayer { layer, name }).collect();
    let axes = ty.axes.last().into_iter().chain(&one.behind).cloned().collect();
    let weight = Op::Weight(WeightRef::Packed { into: into.to_owned(), parts });
    let weight = copying.add(weight, &[], TensorType::new(one.stored, axes), None);
    let span = entry.first.node(*x).span;
    let x = copying.at(*x)?;
    let mut value = copying.add(one.op.clone(), &[x, weight], ty.clone(), span);
    if let Some(dtype) = one.rounded {
        value = copying.add(Op::Round(dtype), &[value], ty.with_dtype(dtype), span);
    }
    copying.output(name, value);
    copying.finish()
}

/// A layer's graph with its part, from `start` on, in place of the product.
fn part(
    graph: &Graph,
    product: &Found,
    (into, name): (&str, &str),
    ty: &TensorType,
    start: u64,
) -> Result<Graph, PassError> {
    let mut copying = Copying::new(graph);
    let operands = graph.operands(product.value);
    let alone = |v: &ValueId| operands.contains(v) && graph.users(*v) == [product.value];
    let mut readers = vec![product.value];
    for id in graph.ids().filter(|v| !alone(v)) {
        let node = graph.node(id);
        let reads = graph.operands(id).iter().any(|o| readers.contains(o));
        if id == product.value {
            let value = taken(&mut copying, product, (into, name), ty, start);
            copying.set(id, value);
        } else if let (true, Op::Round(_), Some(_)) = (reads, &node.op, product.rounded) {
            let value = copying.operands(id)?;
            value.first().into_iter().for_each(|value| copying.set(id, *value));
        } else if let (true, Some(dtype), Some(old)) = (reads && cuts(&node.op), product.rounded, graph.tensor(id)) {
            let operands = copying.operands(id)?;
            let value = copying.add(node.op.clone(), &operands, old.with_dtype(dtype), node.span);
            copying.set(id, value);
            readers.push(id);
        } else {
            copying.copy(id)?;
        }
    }
    copying.finish()
}

/// The part of what the first graph hands on that stands for a layer's product.
fn taken(
    copying: &mut Copying<'_>,
    product: &Found,
    (into, name): (&str, &str),
    ty: &TensorType,
    start: u64,
) -> ValueId {
    let span = copying.old.node(product.value).span;
    let all = copying.input(name, ty.clone());
    let with = |columns: &[Axis]| TensorType::new(ty.dtype, product.rows.iter().chain(columns).cloned().collect());
    let len = length(&product.columns);
    let cut = match product.columns.as_slice() {
        [only] => only.clone(),
        _ => Axis::fixed(format!("{into}.own"), len),
    };
    let slice = Op::Slice { axis: into.to_owned(), start, len, into: Some(cut.name.clone()) };
    let value = copying.add(slice, &[all], with(std::slice::from_ref(&cut)), span);
    match product.columns.len() {
        1 => value,
        _ => copying.add(Op::Split { axis: cut.name }, &[value], with(&product.columns), span),
    }
}

/// An axis that neither the graphs of an entry nor the facts have.
fn free_axis(entry: &Entry, facts: &Facts, wanted: &str) -> String {
    let starts = |own: &str, name: &str| own == name || own.starts_with(&format!("{name}."));
    let in_graphs = |name: &str| {
        let graphs = entry.graphs().map(|(_, graph)| graph);
        graphs.into_iter().any(|g| {
            let tensors = g.ids().filter_map(|v| g.tensor(v));
            tensors.flat_map(|t| &t.axes).any(|a| starts(&a.name, name))
        })
    };
    let known = |name: &str| facts.dims.keys().chain(facts.products.keys()).any(|own| starts(own, name));
    ir::free_name(wanted, |name| in_graphs(name) || known(name))
}

#[cfg(test)]
mod tests {
    use super::stacked;

    /// An entry of two layers before and after, as text; the layers' lines are `body`.
    fn text(body: &str, carried: &str, wide: u64) -> String {
        let text = format!(
            "module m act bf16 dim hidden = 64 dim wide = {wide}
            layers 0-1: attn = near
            weight layer k: bf16[wide, hidden]
            entry e {{ graph first (%c, %x) -> (c = %c, x = %x) {{ axes T = rows
                %c: bf16[T, hidden] = input c
                %x: bf16[T, wide] = input x }}
            class near {{attn = near}} (%c, %x) -> (x = %o{carried}) {{ axes T = rows
                %c: bf16[T, hidden] = input c
                %x: bf16[T, wide] = input x
                %w: bf16[wide, hidden] = weight layer k
                {body} }}
            instances 0-1: near
            graph last (%x) -> (z = %x) {{ axes T = rows %x: bf16[T, wide] = input x }} }}"
        );
        let module = ir::parse_module(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(ir::verify_module(&module), Ok(()));
        let entry = stacked(&module.entries[0], &module.facts).expect("an entry");
        let after = module.with_entries(vec![entry]);
        assert_eq!(ir::verify_module(&after), Ok(()));
        ir::print_module(&after, false)
    }

    const ROUNDED: &str = "%p: f32[T, wide] = linear over [hidden] order any (%c, %w)
                %r: bf16[T, wide] = round bf16 (%p)
                %s: f32[T, wide] = add (%r, %x)
                %o: bf16[T, wide] = round bf16 (%s)";

    #[test]
    fn a_product_of_every_layer_stands_before_the_layers() {
        let after = text(ROUNDED, "", 2);
        for line in [
            "bf16[layers.k, hidden] = weight packed into layers.k [of 0 k, of 1 k]",
            "f32[T, layers.k] = linear over [hidden] order any (%c, ",
            "class near.0 {attn = near} (%x, %c.layers.k) -> (x = %o)",
            "class near.1 {attn = near} (%x, %c.layers.k) -> (x = %o)",
            "%p: bf16[T, wide] = slice layers.k from 0 len 2 into wide (%c.layers.k)",
            "%p: bf16[T, wide] = slice layers.k from 2 len 2 into wide (%c.layers.k)",
        ] {
            assert!(after.contains(line), "{line} in\n{after}");
        }
        assert_eq!(after.matches("linear").count(), 1, "{after}");
    }

    #[test]
    fn what_is_read_unrounded_is_handed_on_unrounded() {
        let body = "%p: f32[T, wide] = linear over [hidden] order any (%c, %w)
                %s: f32[T, wide] = add (%p, %x)
                %o: bf16[T, wide] = round bf16 (%s)";
        let after = text(body, "", 2);
        assert!(after.contains("f32[T, wide] = slice layers.k from 2 len 2 into wide (%c.layers.k)"), "{after}");
    }

    #[test]
    fn what_layers_change_or_does_not_fill_memory_stays() {
        let changed =
            ROUNDED.replace("%s:", "%d: f32[T, hidden] = neg (%c)\n%e: bf16[T, hidden] = round bf16 (%d)\n%s:");
        for after in [text(&changed, ", c = %e", 2), text(ROUNDED, "", 3)] {
            assert!(!after.contains("packed") && after.contains("class near {"), "{after}");
        }
    }
}
