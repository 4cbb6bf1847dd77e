//! Rules of the graph level: what each graph may hold and how the graphs of an entry fit together.

use super::graph::{self, axes, shown};
use super::operation::Level;
use super::{Report, VerifyError, sharding, stored};
use crate::{Class, Entry, Facts, Graph, KvRef, MOST_PARAMETERS, Module, Op, Scope, Sharding, Type, WeightRef};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

pub(super) fn verify(module: &Module) -> Result<(), Vec<VerifyError>> {
    let mut report = Report::default();
    facts(&module.facts, &mut report);
    let view = View::new(&module.facts, module.sharding.as_ref(), &mut report);
    for entry in &module.entries {
        verify_entry(entry, &view, &mut report);
    }
    report.finish()
}

/// Facts as the graphs of a level see them.
pub(super) struct View<'m> {
    whole: &'m Facts,
    seen: Cow<'m, Facts>,
    sharding: Option<&'m Sharding>,
}

impl<'m> View<'m> {
    /// Checks the sharding, if there is one.
    pub(super) fn new(whole: &'m Facts, sharding: Option<&'m Sharding>, report: &mut Report) -> Self {
        let Some(placed) = sharding else { return View { whole, seen: Cow::Borrowed(whole), sharding } };
        sharding::verify(whole, placed, report);
        View { whole, seen: Cow::Owned(sharding::seen_by_graphs(whole, placed)), sharding }
    }

    fn level(&self) -> Level<'m> {
        self.sharding.map_or(Level::Graph, |sharding| Level::Sharded(sharding, self.whole))
    }
}

/// Names are unique, lengths consistent, cached layers exist.
pub(super) fn facts(facts: &Facts, report: &mut Report) {
    let mut weights = HashSet::new();
    for weight in &facts.weights {
        let place = format!("weight {}", weight.name);
        report.check(weights.insert((weight.scope, &weight.name)), "V0201", &place, || "is declared twice".to_owned());
        let list: Vec<_> = weight.axes.iter().flatten().cloned().collect();
        if let Err(message) = axes(&list, facts) {
            report.add("V0202", &place, message);
        }
        report.check(list.iter().all(|a| !a.is_rows()), "V0202", &place, || "has a row axis".to_owned());
        stored::weight(weight, facts, &place, report);
    }
    if let Some(stored) = &facts.stored {
        stored::stored(stored, facts, report);
    }
    report.check(facts.parameters() <= MOST_PARAMETERS, "V0202", "weights", || {
        format!("they have more than {MOST_PARAMETERS} elements together")
    });
    let mut kinds = HashSet::new();
    for kind in &facts.kv {
        let place = format!("kv {}", kind.name);
        report.check(kinds.insert(&kind.name), "V0201", &place, || "is declared twice".to_owned());
        let ascending = kind.layers.windows(2).all(|w| w[0] < w[1]);
        let exist = kind.layers.iter().all(|l| *l < facts.layers());
        report.check(ascending && exist, "V0203", &place, || {
            format!("its layers do not ascend inside the {} of the model", facts.layers())
        });
        for list in [&kind.k, &kind.v] {
            if let Err(message) = axes(list, facts) {
                report.add("V0202", &place, message);
            }
        }
    }
}

/// Checks an entry; returns whether its graphs allow further questions.
pub(super) fn verify_entry(entry: &Entry, view: &View<'_>, report: &mut Report) -> bool {
    let facts: &Facts = &view.seen;
    let mut whole = true;
    for (name, graph) in entry.graphs() {
        let place = format!("{} {name}", entry.name);
        whole &= graph::verify(graph, facts, view.level(), &place, report);
    }
    if !whole {
        return false;
    }
    if let Some(placed) = view.sharding {
        sharding::verify_entry(entry, view.whole, placed, report);
    }
    leaves(&entry.first, Role::First, &format!("{} first", entry.name), report);
    leaves(&entry.last, Role::Last, &format!("{} last", entry.name), report);
    let mut names = HashSet::new();
    for class in &entry.classes {
        let place = format!("{} {}", entry.name, class.name);
        leaves(&class.graph, Role::Class, &place, report);
        let unique = names.insert(class.name.as_str()) && !matches!(class.name.as_str(), "first" | "last");
        report.check(unique, "V0203", &place, || "two graphs have this name".to_owned());
    }
    instances(entry, facts, report);
    exchange(entry, report);
    super::captures::exports(entry, view.whole, report);
    true
}

#[derive(Clone, Copy, PartialEq)]
enum Role {
    First,
    Class,
    Last,
}

fn leaves(graph: &Graph, role: Role, place: &str, report: &mut Report) {
    for id in graph.ids() {
        let legal = match &graph.node(id).op {
            Op::Weight(reference) => reference.parts().iter().all(|part| match part {
                WeightRef::Layer(_) | WeightRef::Next { .. } => role == Role::Class,
                WeightRef::FirstLayer(_) | WeightRef::OfLayer { .. } => role == Role::First,
                WeightRef::Model(_) | WeightRef::Packed { .. } => true,
            }),
            Op::Scalar(expr) => role == Role::Class || !expr.uses_layer(),
            Op::Attend { scale, .. } => role == Role::Class || !scale.uses_layer(),
            _ => true,
        };
        let message = || format!("{} depends on a layer where none runs", shown(graph, id));
        report.check(legal, "V0203", place, message);
    }
}

fn instances(entry: &Entry, facts: &Facts, report: &mut Report) {
    for instance in &entry.instances {
        let place = format!("{} layer {}", entry.name, instance.layer);
        let Some(class) = entry.classes.get(instance.class) else {
            report.add("V0203", &place, format!("is of class {}, there are {}", instance.class, entry.classes.len()));
            continue;
        };
        let Some(kinds) = facts.schedule.get(instance.layer) else {
            report.add("V0203", &place, format!("the model has {} layers", facts.layers()));
            continue;
        };
        report.check(*kinds == class.kinds, "V0203", &place, || format!("is not of the kinds of `{}`", class.name));
        for message in lacks(class, instance.layer, facts) {
            report.add("V0203", &place, message);
        }
    }
    for reference in weights(&entry.first) {
        if let WeightRef::OfLayer { layer, name } = reference {
            has_weight(name, *layer, facts, &entry.name, report);
        }
        let WeightRef::FirstLayer(name) = reference else { continue };
        match entry.instances.first() {
            Some(first) => has_weight(name, first.layer, facts, &entry.name, report),
            None => report.add("V0203", &entry.name, format!("reads the first layer's `{name}` and runs no layer")),
        }
    }
    // The last layer's successor is the tail; every other successor must have what its predecessor reads of it.
    for pair in entry.instances.windows(2) {
        if let Some(class) = entry.classes.get(pair[0].class) {
            next_weights(&class.graph, pair[1].layer, facts, &entry.name, report);
        }
    }
}

fn next_weights(graph: &Graph, layer: usize, facts: &Facts, entry: &str, report: &mut Report) {
    for reference in weights(graph) {
        if let WeightRef::Next { layer: name, .. } = reference {
            has_weight(name, layer, facts, entry, report);
        }
    }
}

/// Every weight that a graph reads, alone or packed.
fn weights(graph: &Graph) -> impl Iterator<Item = &WeightRef> {
    let packed = graph.ids().filter_map(|id| match &graph.node(id).op {
        Op::Weight(reference) => Some(reference.parts()),
        _ => None,
    });
    packed.flatten()
}

fn has_weight(name: &str, layer: usize, facts: &Facts, entry: &str, report: &mut Report) {
    let has = layer < facts.layers() && facts.weight(Scope::Layer, name).is_some_and(|w| facts.layer_has(layer, w));
    report.check(has, "V0203", entry, || format!("layer {layer} has no weight `{name}`, which is read before it runs"));
}

/// What a class reads that a layer lacks.
fn lacks(class: &Class, layer: usize, facts: &Facts) -> Vec<String> {
    let mut lacks = Vec::new();
    for id in class.graph.ids() {
        match &class.graph.node(id).op {
            Op::Weight(reference) => {
                for part in reference.parts() {
                    if let WeightRef::Layer(name) = part
                        && !facts.weight(Scope::Layer, name).is_some_and(|w| facts.layer_has(layer, w))
                    {
                        lacks.push(format!("has no weight `{name}`, which `{}` reads", class.name));
                    }
                }
            }
            Op::Store { kv: KvRef::Kind(name), .. } | Op::Attend { kv: KvRef::Kind(name), .. }
                if !facts.kv_kind(name).is_some_and(|k| k.layers.contains(&layer)) =>
            {
                lacks.push(format!("keeps no rows of cache `{name}`, which `{}` uses", class.name));
            }
            _ => {}
        }
    }
    lacks
}

/// Names read and written, in the order in which graphs run.
fn exchange(entry: &Entry, report: &mut Report) {
    let mut types: BTreeMap<&str, &Type> = BTreeMap::new();
    for (graph_name, graph) in entry.graphs() {
        let inputs = graph.inputs.iter().filter_map(|v| Some((graph.input_name(*v)?, &graph.node(*v).ty)));
        let outputs = graph.outputs.iter().map(|(n, v)| (n.as_str(), &graph.node(*v).ty));
        for (name, ty) in inputs.chain(outputs) {
            let known = *types.entry(name).or_insert(ty);
            let same = match (known, ty) {
                (Type::Tensor(a), Type::Tensor(b)) => a.dtype == b.dtype && a.axes == b.axes,
                _ => false,
            };
            let place = format!("{} {graph_name}", entry.name);
            report.check(same, "V0203", &place, || format!("`{name}` is {ty} here and {known} before"));
        }
    }
    let outputs = |graph: &Graph| graph.outputs.iter().map(|(n, _)| n.clone()).collect::<HashSet<String>>();
    let from_first = outputs(&entry.first);
    let given: HashSet<&str> = entry.first.inputs.iter().filter_map(|v| entry.first.input_name(*v)).collect();
    for class in &entry.classes {
        let carried = outputs(&class.graph);
        for name in &carried {
            let known = from_first.contains(name) || given.contains(name.as_str());
            let place = format!("{} {}", entry.name, class.name);
            report.check(known, "V0203", &place, || format!("`{name}` is left by a layer and never by `first`"));
        }
    }
    for (graph_name, graph) in entry.graphs().filter(|(name, _)| *name != "first") {
        for name in graph.inputs.iter().filter_map(|v| graph.input_name(*v)) {
            let known = from_first.contains(name) || given.contains(name);
            let place = format!("{} {graph_name}", entry.name);
            report.check(known, "V0203", &place, || format!("`{name}` is read and nobody has left it"));
        }
    }
}
