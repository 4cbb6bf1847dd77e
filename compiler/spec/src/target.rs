//! The target of a drafter's spec: `[model] target = "spec.toml"`, or the one that is compiled with it.

use crate::merge::{self, Merged, named_text};
use crate::{Choices, Diagnostic, Library, Sources, from_merged, has_errors};
use ir::{Extent, Model};
use std::path::Path;

/// A reading that was told to have ended.
pub(crate) struct Told;

/// Reads the target, if the spec has one. What is wrong with the target is told of the target alone.
pub(crate) fn read(
    merged: &Merged,
    folder: Option<&Path>,
    library: &Library,
    choices: &Choices,
    out: &mut Vec<Diagnostic>,
) -> Result<Option<Model>, Told> {
    let Some((_, node)) = merged.table("model").and_then(|t| t.get("target")) else { return Ok(None) };
    if let Some(given) = &choices.target {
        return Ok(Some(resized((**given).clone(), choices)));
    }
    let input = named_text(("B0038", "target", "target"), node, folder, library, out).ok_or(Told)?;
    let name = input.name.clone();
    let own = Choices { act: choices.act, options: choices.options.clone(), ..Choices::default() };
    let (mut sources, mut found, own_folder) = (Sources::default(), Vec::new(), input.folder.clone());
    let target = merge::load(input, library, &mut sources, &mut found);
    // Asked before it is read: targets of targets may go round in a circle.
    let is_drafter = target.as_ref().is_some_and(|t| t.table("model").is_some_and(|m| m.contains_key("target")));
    let read = target
        .filter(|_| !is_drafter)
        .and_then(|target| from_merged(&target, own_folder.as_deref(), library, &own, &mut sources, &mut found));
    let d = match read.filter(|_| !has_errors(&found)) {
        Some(read) => return Ok(Some(resized(read.model, choices))),
        None if is_drafter => Diagnostic::error("B0038", format!("the target `{name}` is a drafter itself"))
            .help("name the spec of the model that checks what is drafted"),
        None => Diagnostic::error("B0038", format!("the target `{name}` has errors"))
            .help(format!("`beamc check {name}` shows them")),
    };
    out.push(d.at(node.span, "named here"));
    Err(Told)
}

/// The target with the lengths that a small drafter is to have, so that what it borrows fits. Its graphs stay as they are:
/// a drafter reads facts of its target alone.
fn resized(mut target: Model, choices: &Choices) -> Model {
    for (name, length) in &choices.dims {
        if let Some(own) = target.facts.dims.get_mut(name) {
            *own = *length;
        }
        let axes = target.facts.weights.iter_mut().flat_map(|w| w.axes.iter_mut().flatten());
        axes.filter(|axis| axis.name == *name).for_each(|axis| axis.extent = Extent::Fixed(*length));
    }
    target
}
