//! Rules of the model level: blocks and how they are called.

use super::graph::{self, shown};
use super::operation::Level;
use super::{Report, VerifyError};
use crate::{Block, Facts, Graph, Model, Op, Type, ValueId};
use std::collections::HashMap;

pub(super) fn verify(model: &Model) -> Result<(), Vec<VerifyError>> {
    let mut report = Report::default();
    super::environment::facts(&model.facts, &mut report);
    let mut known: HashMap<&str, &Block> = HashMap::new();
    for block in &model.blocks {
        let place = format!("block {}", block.name);
        if graph::verify(&block.graph, &model.facts, Level::Model, &place, &mut report) {
            calls(&block.graph, &model.facts, &known, &place, &mut report);
            if known.insert(&block.name, block).is_some() {
                report.add("V0201", &place, "two blocks have this name");
            }
        }
    }
    for entry in &model.entries {
        let place = format!("entry {}", entry.name);
        if graph::verify(&entry.graph, &model.facts, Level::Model, &place, &mut report) {
            calls(&entry.graph, &model.facts, &known, &place, &mut report);
        }
    }
    report.finish()
}

fn calls(graph: &Graph, facts: &Facts, known: &HashMap<&str, &Block>, place: &str, report: &mut Report) {
    for id in graph.ids() {
        if let Err(message) = call(graph, id, facts, known) {
            report.add("V0202", format!("{place} {}", shown(graph, id)), message);
        }
    }
}

fn call(graph: &Graph, id: ValueId, facts: &Facts, known: &HashMap<&str, &Block>) -> Result<(), String> {
    let node = graph.node(id);
    let find = |name: &str| known.get(name).copied().ok_or_else(|| format!("no block `{name}` stands before"));
    match &node.op {
        Op::Call(name) => fits(graph, id, find(name)?, true),
        Op::Match { column, arms } => {
            for (_, name) in arms {
                // An arm may ignore an argument that another arm reads.
                fits(graph, id, find(name)?, false)?;
            }
            let kinds = facts.schedule.iter().filter_map(|k| k.get(column));
            if kinds.count() == 0 && !facts.schedule.is_empty() {
                return Err(format!("the schedule has no column `{column}`"));
            }
            Ok(())
        }
        Op::Layers { block, carried } => {
            let block = find(block)?;
            fits(graph, id, block, true)?;
            let operands = graph.operands(id);
            let before: Option<Vec<&Type>> =
                operands.get(..*carried).map(|ids| ids.iter().map(|v| &graph.node(*v).ty).collect());
            let Some(before) = before else { return Err(format!("carries {carried} of {} operands", operands.len())) };
            let after = block.graph.outputs.iter().map(|(_, v)| &block.graph.node(*v).ty);
            if before.into_iter().eq(after) {
                Ok(())
            } else {
                Err("carried values come back with other types".to_owned())
            }
        }
        Op::Item(index) => {
            let [tuple] = graph.operands(id)[..] else { return Err("takes an item of several values".to_owned()) };
            match &graph.node(tuple).ty {
                Type::Tuple(items) if items.get(*index) == Some(&node.ty) => Ok(()),
                other => Err(format!("takes item {index} as {} of {other}", node.ty)),
            }
        }
        _ => Ok(()),
    }
}

/// Whether a block takes the operands and leaves the tuple of a node.
fn fits(graph: &Graph, id: ValueId, block: &Block, strict: bool) -> Result<(), String> {
    let callee = &block.graph;
    let operands = graph.operands(id);
    if operands.len() != callee.inputs.len() {
        let (found, wanted) = (operands.len(), callee.inputs.len());
        return Err(format!("passes {found} arguments to `{}`, which takes {wanted}", block.name));
    }
    for (argument, input) in operands.iter().zip(&callee.inputs) {
        let (found, wanted) = (&graph.node(*argument).ty, &callee.node(*input).ty);
        let read = strict || !callee.users(*input).is_empty();
        if read && !same_but_for_index(found, wanted) {
            return Err(format!("passes {found} to `{}`, which takes {wanted}", block.name));
        }
    }
    let results = Type::Tuple(callee.outputs.iter().map(|(_, v)| callee.node(*v).ty.clone()).collect());
    if same_but_for_index(&results, &graph.node(id).ty) {
        Ok(())
    } else {
        Err(format!("takes {} from `{}`, which leaves {results}", graph.node(id).ty, block.name))
    }
}

/// Equal types, whatever integers index.
fn same_but_for_index(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Tensor(a), Type::Tensor(b)) => a.dtype == b.dtype && a.axes == b.axes,
        (Type::Tuple(a), Type::Tuple(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_but_for_index(a, b))
        }
        (a, b) => a == b,
    }
}
