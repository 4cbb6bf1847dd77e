//! Builds the rotated graphs of an entry.

use super::Seam;
use super::head::slice;
use crate::PassError;
use crate::error::defect;
use ir::{Axis, Class, Entry, Graph, GraphBuilder, Op, Type, ValueId, WeightRef};
use std::collections::HashMap;

/// The entry with every seam rotated.
pub(super) fn rotated(entry: &Entry, seams: &[Seam]) -> Result<Entry, PassError> {
    let template = entry.classes.first().ok_or_else(|| defect("a seam without a layer class"))?;
    let mut classes = Vec::new();
    for (index, class) in entry.classes.iter().enumerate() {
        let graph = rotated_class(&class.graph, index, seams)?;
        classes.push(Class { name: class.name.clone(), kinds: class.kinds.clone(), graph });
    }
    Ok(Entry {
        name: entry.name.clone(),
        first: rotated_first(&entry.first, &template.graph, seams)?,
        classes,
        instances: entry.instances.clone(),
        last: rotated_last(&entry.last, &template.graph, seams)?,
    })
}

/// `first` with the first layer's heads computed from its outputs.
fn rotated_first(first: &Graph, class: &Graph, seams: &[Seam]) -> Result<Graph, PassError> {
    let mut builder = GraphBuilder::new();
    let copies = copy_all(&mut builder, first, HashMap::new());
    let outputs: Vec<(String, ValueId)> = first.outputs.iter().map(|(n, v)| (n.clone(), copies[v])).collect();
    let mut rotated = Vec::new();
    for seam in seams {
        let weight = |name: &str| WeightRef::FirstLayer(name.to_owned());
        let inputs = |name: &str| outputs.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
        rotated.push((seam.name.clone(), copy_head(&mut builder, class, seam.in_class[0], "", &inputs, &weight)?));
    }
    finish(builder, outputs, rotated, &first.inputs, &copies)
}

/// A class with each head read from its predecessor and computed for its successor.
fn rotated_class(graph: &Graph, class: usize, seams: &[Seam]) -> Result<Graph, PassError> {
    let mut builder = GraphBuilder::new();
    let mut given = HashMap::new();
    graph.inputs.iter().for_each(|v| copy_node(&mut builder, graph, *v, &mut given));
    for seam in seams {
        let head = seam.in_class[class];
        given.insert(head, builder.input(&seam.name, graph.node(head).ty.clone()));
    }
    let copies = copy_all(&mut builder, graph, given);
    let outputs: Vec<(String, ValueId)> = graph.outputs.iter().map(|(n, v)| (n.clone(), copies[v])).collect();
    let mut rotated = Vec::new();
    for seam in seams {
        let weight = |name: &str| {
            let last = seam.weights.iter().find(|(layer, _)| layer == name);
            let last = last.map_or_else(|| name.to_owned(), |(_, last)| last.clone());
            WeightRef::Next { layer: name.to_owned(), last }
        };
        let inputs = |name: &str| outputs.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
        let head = copy_head(&mut builder, graph, seam.in_class[class], "next.", &inputs, &weight)?;
        rotated.push((seam.name.clone(), head));
    }
    finish(builder, outputs, rotated, &graph.inputs, &copies)
}

/// `last` with each head read instead of computed, its rows gathered where only some are wanted.
fn rotated_last(last: &Graph, class: &Graph, seams: &[Seam]) -> Result<Graph, PassError> {
    let mut builder = GraphBuilder::new();
    // An index that a gather uses must stand before it, so what it is computed from is copied first.
    let mut copies: HashMap<ValueId, ValueId> = HashMap::new();
    for seam in seams {
        let ty = class.node(seam.in_class[0]).ty.clone();
        let mut value = builder.input(&seam.name, ty);
        if let Some((axis, index)) = &seam.gathered {
            for id in slice(last, *index) {
                copy_node(&mut builder, last, id, &mut copies);
            }
            let node = last.node(seam.in_last);
            let ty = gathered_type(builder.graph(), value, axis, copies[index])?;
            value = builder.add(Op::Gather { axis: axis.clone() }, &[value, copies[index]], ty, node.span);
        }
        if let Some(name) = &last.node(seam.in_last).name {
            builder.name(value, name);
        }
        copies.insert(seam.in_last, value);
    }
    let copies = copy_all(&mut builder, last, copies);
    let outputs: Vec<(String, ValueId)> = last.outputs.iter().map(|(n, v)| (n.clone(), copies[v])).collect();
    finish(builder, outputs, Vec::new(), &last.inputs, &copies)
}

fn gathered_type(graph: &Graph, value: ValueId, axis: &str, index: ValueId) -> Result<Type, PassError> {
    let (Some(source), Some(index)) = (graph.tensor(value), graph.tensor(index)) else {
        return Err(defect("rows are gathered from something that is no tensor"));
    };
    let mut ty = source.clone();
    let rows: Vec<Axis> = index.axes.clone();
    let place = ty.axis(axis).ok_or_else(|| defect(format!("rows are gathered along `{axis}`, which is missing")))?;
    ty.axes.splice(place..=place, rows);
    Ok(Type::Tensor(ty))
}

/// Copies every node that has no copy yet.
fn copy_all(
    builder: &mut GraphBuilder,
    graph: &Graph,
    mut copies: HashMap<ValueId, ValueId>,
) -> HashMap<ValueId, ValueId> {
    for id in graph.ids() {
        copy_node(builder, graph, id, &mut copies);
    }
    copies
}

fn copy_node(builder: &mut GraphBuilder, graph: &Graph, id: ValueId, copies: &mut HashMap<ValueId, ValueId>) {
    if copies.contains_key(&id) {
        return;
    }
    let node = graph.node(id);
    let operands: Vec<ValueId> = graph.operands(id).iter().map(|v| copies[v]).collect();
    let copy = builder.add(node.op.clone(), &operands, node.ty.clone(), node.span);
    if let Some(name) = &node.name {
        builder.name(copy, name);
    }
    copies.insert(id, copy);
}

/// Copies what a head is computed from, carried values and layer weights replaced.
fn copy_head(
    builder: &mut GraphBuilder,
    graph: &Graph,
    head: ValueId,
    prefix: &str,
    carried: &dyn Fn(&str) -> Option<ValueId>,
    weight: &dyn Fn(&str) -> WeightRef,
) -> Result<ValueId, PassError> {
    let mut copies: HashMap<ValueId, ValueId> = HashMap::new();
    for id in slice(graph, head) {
        let node = graph.node(id);
        let copy = match &node.op {
            Op::Input(name) => carried(name).ok_or_else(|| defect(format!("`{name}` is carried and has no value")))?,
            Op::Weight(WeightRef::Layer(name)) => {
                builder.add(Op::Weight(weight(name)), &[], node.ty.clone(), node.span)
            }
            op => {
                let operands: Vec<ValueId> = graph.operands(id).iter().map(|v| copies[v]).collect();
                builder.add(op.clone(), &operands, node.ty.clone(), node.span)
            }
        };
        if let (Some(name), false) = (&node.name, node.op.is_leaf()) {
            builder.name(copy, &format!("{prefix}{name}"));
        }
        copies.insert(id, copy);
    }
    Ok(copies[&head])
}

/// Outputs with the rotated ones behind the carried value that stands first; inputs in the old order, rotated ones second.
fn finish(
    mut builder: GraphBuilder,
    outputs: Vec<(String, ValueId)>,
    rotated: Vec<(String, ValueId)>,
    old_inputs: &[ValueId],
    copies: &HashMap<ValueId, ValueId>,
) -> Result<Graph, PassError> {
    let mut outputs = outputs.into_iter();
    for (name, value) in outputs.next().into_iter().chain(rotated).chain(outputs) {
        builder.output(&name, value);
    }
    let mut graph = builder.finish();
    let new_inputs = std::mem::take(&mut graph.inputs);
    let mut kept = old_inputs.iter().map(|v| copies[v]).filter(|v| graph.input_name(*v).is_some()).collect::<Vec<_>>();
    let at = kept.len().min(1);
    kept.splice(at..at, new_inputs);
    graph.inputs = kept;
    Ok(graph)
}
