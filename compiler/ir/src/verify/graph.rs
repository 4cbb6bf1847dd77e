//! Rules of a graph by itself.

use super::Report;
use super::operation::{Level, operation};
use crate::{Axis, Extent, Facts, Graph, Op, Type, ValueId};
use std::collections::HashSet;

/// A value as errors name it.
pub(super) fn shown(graph: &Graph, id: ValueId) -> String {
    match &graph.node(id).name {
        Some(name) => format!("%{name}"),
        None => id.to_string(),
    }
}

/// Checks form, types and operations; returns whether the form allows further questions.
pub(super) fn verify(graph: &Graph, facts: &Facts, level: Level<'_>, place: &str, report: &mut Report) -> bool {
    if let Some(broken) = graph.broken_structure() {
        report.add("V0201", place, broken);
        return false;
    }
    let mut names = HashSet::new();
    for id in graph.ids() {
        let node = graph.node(id);
        if let Some(name) = &node.name
            && !names.insert(name.as_str())
        {
            report.add("V0201", place, format!("two values are named `{name}`"));
        }
        if matches!(node.op, Op::Input(_)) && !graph.inputs.contains(&id) {
            report.add("V0201", place, format!("{} is an input that the signature does not list", shown(graph, id)));
        }
    }
    let mut inputs = HashSet::new();
    for id in &graph.inputs {
        match graph.input_name(*id) {
            Some(name) if inputs.insert(name) => {}
            Some(name) => report.add("V0201", place, format!("input `{name}` is listed twice")),
            None => report.add("V0201", place, format!("{} is listed as an input and is none", shown(graph, *id))),
        }
    }
    let mut outputs = HashSet::new();
    for (name, _) in &graph.outputs {
        report.check(outputs.insert(name), "V0201", place, || format!("output `{name}` is listed twice"));
    }
    for id in graph.ids() {
        let node = graph.node(id);
        let broken = ty(&node.ty, facts, level).and_then(|()| operation(graph, id, facts, level));
        if let Err(message) = broken {
            report.add("V0202", format!("{place} {}", shown(graph, id)), message);
        }
    }
    true
}

fn ty(ty: &Type, facts: &Facts, level: Level<'_>) -> Result<(), String> {
    match ty {
        Type::Tensor(tensor) => axes(&tensor.axes, facts),
        Type::Cache => Ok(()),
        Type::Tuple(_) if level != Level::Model => Err("a tuple may stand only at the model level".to_owned()),
        Type::Tuple(items) => items.iter().try_for_each(|item| match item {
            Type::Tuple(_) => Err("a tuple holds a tuple".to_owned()),
            item => self::ty(item, facts, level),
        }),
    }
}

/// Names are unique, rows come first, and lengths are those of the facts.
pub(super) fn axes(axes: &[Axis], facts: &Facts) -> Result<(), String> {
    for (i, axis) in axes.iter().enumerate() {
        let before = axes.get(..i).unwrap_or_default();
        if before.iter().any(|a| a.name == axis.name) {
            return Err(format!("the type has axis `{}` twice", axis.name));
        }
        if axis.is_rows() && before.iter().any(|a| !a.is_rows()) {
            return Err(format!("row axis `{}` stands behind a fixed one", axis.name));
        }
        if let (Extent::Fixed(n), Some(known)) = (axis.extent, facts.dims.get(&axis.name))
            && n != *known
        {
            return Err(format!("axis `{}` has length {n} here and {known} in the facts", axis.name));
        }
        if axis.extent == Extent::Fixed(0) {
            return Err(format!("axis `{}` has length 0", axis.name));
        }
    }
    Ok(())
}
