//! Finds what rotates: row operations from carried values to a product, equal in all classes and at the end.

use super::{Seam, environment};
use crate::inline::base;
use ir::{Entry, Extent, Facts, Graph, Op, Scope, TensorType, Type, ValueId, WeightRef};
use std::collections::{BTreeSet, HashMap, HashSet};

/// The seams of an entry, in the order in which the first class uses them.
pub(super) fn seams(entry: &Entry, facts: &Facts, note: &mut dyn FnMut(String)) -> Vec<Seam> {
    let carried: HashSet<&str> =
        entry.classes.iter().flat_map(|c| c.graph.outputs.iter()).map(|(n, _)| n.as_str()).collect();
    let Some(first_class) = entry.classes.first() else { return Vec::new() };
    if entry.instances.is_empty() {
        return Vec::new();
    }
    let mut names = environment(entry);
    let mut seams = Vec::new();
    for value in heads(&first_class.graph, &carried) {
        let wanted = first_class.graph.node(value).name.as_deref().map_or("n", base).to_owned();
        let graphs: Vec<&Graph> = entry.classes.iter().map(|c| &c.graph).collect();
        let Some(in_class) = in_every_class(&graphs, value, &carried) else {
            note(format!("`{wanted}` stays inside the layers: not every class computes it, or not in the same way"));
            continue;
        };
        if let Some(weight) = not_everywhere(&first_class.graph, value, facts) {
            note(format!("`{wanted}` stays inside the layers: not every layer has `W.{weight}`"));
            continue;
        }
        let Some(found) = in_last(&first_class.graph, value, &entry.last, facts) else {
            note(format!(
                "`{wanted}` stays inside the layers: what follows the last layer does not begin like a layer"
            ));
            continue;
        };
        let name = ir::free_name(&wanted, |name| names.contains(name));
        names.insert(name.clone());
        let weights = found.weights.into_iter().collect();
        seams.push(Seam { name, in_class, in_last: found.value, gathered: found.gathered, weights });
    }
    seams
}

/// Left operands of products that are row operations on carried values.
fn heads(graph: &Graph, carried: &HashSet<&str>) -> Vec<ValueId> {
    let mut heads = Vec::new();
    for id in graph.ids() {
        if !matches!(graph.node(id).op, Op::Linear { .. }) {
            continue;
        }
        if let Some(x) = graph.operands(id).first().copied()
            && !heads.contains(&x)
            && is_head(graph, x, carried)
        {
            heads.push(x);
        }
    }
    heads
}

fn is_head(graph: &Graph, value: ValueId, carried: &HashSet<&str>) -> bool {
    let slice = slice(graph, value);
    let from_carried = |id: &ValueId| graph.input_name(*id).is_some_and(|n| carried.contains(n));
    !graph.node(value).op.is_leaf()
        && slice.iter().any(from_carried)
        && slice.iter().all(|id| match &graph.node(*id).op {
            Op::Input(_) => from_carried(id),
            Op::Weight(WeightRef::Layer(_) | WeightRef::Model(_)) | Op::Literal(_) => true,
            _ => treats_rows_alone(graph, *id),
        })
}

/// Everything a value is computed from, itself included, ascending.
pub(super) fn slice(graph: &Graph, value: ValueId) -> BTreeSet<ValueId> {
    let mut slice = BTreeSet::from([value]);
    let mut open = vec![value];
    while let Some(id) = open.pop() {
        for operand in graph.operands(id) {
            if slice.insert(operand) {
                open.push(operand);
            }
        }
    }
    slice
}

/// Whether a row of the result depends on the same row of the operands only.
fn treats_rows_alone(graph: &Graph, id: ValueId) -> bool {
    let operands = graph.operands(id);
    let fixed = |axis: &str| {
        let ty = operands.first().and_then(|v| graph.tensor(*v));
        ty.and_then(|t| t.axes.iter().find(|a| a.name == axis)).is_some_and(|a| !a.is_rows())
    };
    match &graph.node(id).op {
        Op::Unary(_) | Op::Binary(_) | Op::Fma | Op::Select | Op::Round(_) => true,
        Op::Reduce { axis, .. }
        | Op::Top { axis, .. }
        | Op::InTop { axis, .. }
        | Op::Gather { axis }
        | Op::Slice { axis, .. }
        | Op::Split { axis } => fixed(axis),
        Op::Rename { from, .. } => fixed(from),
        Op::Concat { .. } => {
            operands.iter().all(|v| graph.tensor(*v).and_then(|t| t.axes.last()).is_some_and(|a| !a.is_rows()))
        }
        Op::Merge { into } => {
            graph.tensor(id).and_then(|t| t.axes.iter().find(|a| a.name == *into)).is_some_and(|a| !a.is_rows())
        }
        _ => false,
    }
}

/// The value in every class, if each computes it in the same way.
fn in_every_class(graphs: &[&Graph], value: ValueId, carried: &HashSet<&str>) -> Option<Vec<ValueId>> {
    let (first, others) = graphs.split_first()?;
    let mut found = vec![value];
    for graph in others {
        let same = heads(graph, carried).into_iter().find(|candidate| {
            let mut matching = Matching::new(first, graph, Leaves::Equal);
            matching.equal(value, *candidate)
        })?;
        found.push(same);
    }
    Some(found)
}

/// A layer weight of the value that some layer lacks.
fn not_everywhere(graph: &Graph, value: ValueId, facts: &Facts) -> Option<String> {
    slice(graph, value).into_iter().find_map(|id| match &graph.node(id).op {
        Op::Weight(WeightRef::Layer(name)) => {
            let weight = facts.weight(Scope::Layer, name);
            let everywhere = weight.is_some_and(|w| (0..facts.layers()).all(|l| facts.layer_has(l, w)));
            (!everywhere).then(|| name.clone())
        }
        _ => None,
    })
}

struct Found {
    value: ValueId,
    gathered: Option<(String, ValueId)>,
    weights: std::collections::BTreeMap<String, String>,
}

/// Where the last graph computes the same from the final carried values.
fn in_last(class: &Graph, value: ValueId, last: &Graph, facts: &Facts) -> Option<Found> {
    last.ids().find_map(|candidate| {
        let mut matching = Matching::new(class, last, Leaves::AfterTheLayers { facts });
        if !matching.equal(value, candidate) {
            return None;
        }
        let gathered = matching.gathered.flatten();
        Some(Found { value: candidate, gathered, weights: matching.weights })
    })
}

/// What leaves of two graphs may differ in.
#[derive(Clone, Copy)]
enum Leaves<'a> {
    /// Nothing.
    Equal,
    /// Model weights stand for layer weights, and rows of a carried value for all of them.
    AfterTheLayers { facts: &'a Facts },
}

/// A correspondence of two graphs, grown from a pair of values.
struct Matching<'a> {
    left: &'a Graph,
    right: &'a Graph,
    leaves: Leaves<'a>,
    pairs: HashMap<ValueId, ValueId>,
    weights: std::collections::BTreeMap<String, String>,
    /// How the right graph takes rows of carried values, once known: all, or by axis and index.
    gathered: Option<Option<(String, ValueId)>>,
    /// Row axis of the left graph and what it is called in the right one.
    renamed: Option<(String, String)>,
}

impl<'a> Matching<'a> {
    fn new(left: &'a Graph, right: &'a Graph, leaves: Leaves<'a>) -> Self {
        Matching {
            left,
            right,
            leaves,
            pairs: HashMap::new(),
            weights: Default::default(),
            gathered: None,
            renamed: None,
        }
    }

    /// Whether two values are computed in the same way. Types are compared last, once row axes are known.
    fn equal(&mut self, left: ValueId, right: ValueId) -> bool {
        self.grow(left, right) && self.pairs.iter().all(|(l, r)| self.same_type(*l, *r))
    }

    fn grow(&mut self, left: ValueId, right: ValueId) -> bool {
        if let Some(known) = self.pairs.get(&left) {
            return *known == right;
        }
        let (a, b) = (&self.left.node(left).op, &self.right.node(right).op);
        let equal = match (a, b, self.leaves) {
            (Op::Input(a), Op::Input(b), _) => a == b && self.takes_rows(None),
            (Op::Input(_), Op::Gather { axis }, Leaves::AfterTheLayers { .. }) => self.gathers(left, right, axis),
            (Op::Weight(WeightRef::Layer(a)), Op::Weight(WeightRef::Model(b)), Leaves::AfterTheLayers { facts }) => {
                let types = (facts.weight(Scope::Layer, a), facts.weight(Scope::Model, b));
                let same = matches!(types, (Some(a), Some(b)) if a.ty() == b.ty());
                same && *self.weights.entry(a.clone()).or_insert_with(|| b.clone()) == *b
            }
            (a, b, _) if a.is_leaf() || b.is_leaf() => a == b,
            (a, b, _) => {
                let operands = (self.left.operands(left), self.right.operands(right));
                a == b
                    && operands.0.len() == operands.1.len()
                    && operands.0.iter().zip(&operands.1).all(|(l, r)| self.grow(*l, *r))
            }
        };
        if equal {
            self.pairs.insert(left, right);
        }
        equal
    }

    fn takes_rows(&mut self, how: Option<(String, ValueId)>) -> bool {
        *self.gathered.get_or_insert_with(|| how.clone()) == how
    }

    /// Whether the right value is rows of the carried value that the left one is.
    fn gathers(&mut self, left: ValueId, right: ValueId, axis: &str) -> bool {
        let operands = self.right.operands(right);
        let [source, index] = operands.as_slice() else { return false };
        let rows = |t: &TensorType| t.axes.first().filter(|a| a.extent == Extent::Rows).map(|a| a.name.clone());
        let (Some(before), Some(after)) =
            (self.left.tensor(left).and_then(rows), self.right.tensor(right).and_then(rows))
        else {
            return false;
        };
        let single = self.right.tensor(*index).is_some_and(|t| t.axes.len() == 1);
        let same_input = self.left.input_name(left).is_some_and(|n| self.right.input_name(*source) == Some(n));
        let renamed = (before.clone(), after);
        single
            && same_input
            && before == axis
            && *self.renamed.get_or_insert_with(|| renamed.clone()) == renamed
            && self.takes_rows(Some((axis.to_owned(), *index)))
    }

    fn same_type(&self, left: ValueId, right: ValueId) -> bool {
        match (&self.left.node(left).ty, &self.right.node(right).ty) {
            (Type::Tensor(a), Type::Tensor(b)) => {
                let mut a = a.clone();
                if let Some((before, after)) = &self.renamed {
                    for axis in a.axes.iter_mut().filter(|x| x.is_rows() && x.name == *before) {
                        axis.name.clone_from(after);
                    }
                }
                a == *b
            }
            _ => false,
        }
    }
}
