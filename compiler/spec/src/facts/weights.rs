//! `[weights]`, `[layer.weights]`, `[shard]`: weights, their axes and their names on disk.

use super::{MAX_ELEMENTS, Reader};
use crate::document::{Kind, Node};
use crate::{Diagnostic, disk};
use indexmap::IndexMap;
use ir::{Axis, DType, DiskForm, Extent, LayerKinds, Scope, Span, Weight};

impl<'a> Reader<'a> {
    pub(super) fn axes(&mut self, node: &Node, dims: &IndexMap<String, u64>) -> Option<Vec<Vec<Axis>>> {
        let Some(text) = node.text() else {
            self.wrong(node, "a text of axis names");
            return None;
        };
        let mut groups = Vec::new();
        let mut total = 1u64;
        for group in text.split_whitespace() {
            let mut axes = Vec::new();
            for name in group.split('.') {
                let Some(n) = dims.get(name) else {
                    if self.told.contains(name) {
                        return None;
                    }
                    let d = Diagnostic::error("B0023", format!("`{name}` is no axis"));
                    self.error(d.at(self.word(node, name), "used here").nearest(name, named(dims)));
                    return None;
                };
                total = total.saturating_mul(*n);
                axes.push(Axis::fixed(name, *n));
            }
            groups.push(axes);
        }
        let mut names: Vec<&str> = groups.iter().flatten().map(|a| a.name.as_str()).collect();
        names.sort_unstable();
        if total > MAX_ELEMENTS || groups.is_empty() {
            let d = Diagnostic::error("B0024", format!("the axes `{text}` make {total} elements"));
            self.error(d.at(node.span, "between 1 and 2^60 are allowed").help("write axes = \"out in\", smaller ones"));
            return None;
        }
        if let Some(twice) = names.windows(2).find(|w| w[0] == w[1]) {
            self.error(
                Diagnostic::error("B0025", format!("the axis `{}` occurs twice", twice[0]))
                    .at(node.span, "in these axes")
                    .help(format!(
                        "declare a dimension of the same length under another name and write it for one `{}`",
                        twice[0]
                    )),
            );
            return None;
        }
        Some(groups)
    }

    /// Something that is needed would be of no size.
    pub(super) fn no_elements(&mut self, span: Span, what: &str, axis: &str) {
        self.error(
            Diagnostic::error("B0024", format!("{what} would have no elements"))
                .at(span, format!("`{axis}` is 0"))
                .note(self.dim_spans.get(axis).copied(), "says 0")
                .help(format!("write {axis} = N, at least 1, or let no layer be of the kind that uses it")),
        );
    }

    pub(super) fn weights(&mut self, dims: &IndexMap<String, u64>, act: DType, schedule: &[LayerKinds]) -> Vec<Weight> {
        let mut weights = Vec::new();
        for (name, (span, node)) in self.table("weights").into_iter().flatten() {
            weights.extend(self.weight(name, *span, node, Scope::Model, "", dims, act, schedule));
        }
        let Some(layer) = self.table("layer") else { return self.completed(weights) };
        let mut prefix = String::new();
        for (key, (span, node)) in layer {
            match (key.as_str(), node.text()) {
                ("prefix", Some(text)) => {
                    prefix = text.to_owned();
                    self.prefix_span = Some(node.span);
                }
                ("weights", _) => {}
                _ => self.unknown_key("layer", key, *span, &["prefix", "weights"]),
            }
        }
        for (name, (span, node)) in layer.get("weights").and_then(|(_, n)| n.table()).into_iter().flatten() {
            weights.extend(self.weight(name, *span, node, Scope::Layer, &prefix, dims, act, schedule));
        }
        self.completed(weights)
    }

    pub(super) fn completed(&mut self, mut weights: Vec<Weight>) -> Vec<Weight> {
        disk::complete_shapes(weights.iter_mut().flat_map(|w| w.disk.iter_mut()));
        weights
    }

    /// One weight; `"none"` in a derived spec removes the base's.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn weight(
        &mut self,
        name: &str,
        span: Span,
        node: &Node,
        scope: Scope,
        prefix: &str,
        dims: &IndexMap<String, u64>,
        act: DType,
        schedule: &[LayerKinds],
    ) -> Option<Weight> {
        if node.text() == Some("none") {
            return None;
        }
        let Some(table) = node.table() else {
            self.wrong(node, "a table with axes and disk");
            return None;
        };
        let condition = table.get("when").and_then(|(_, item)| self.condition(item, schedule));
        if condition == Some(false) {
            return None;
        }
        let axes = match table.get("axes") {
            Some((_, axes)) => self.axes(axes, dims)?,
            None => {
                let d = Diagnostic::error("B0029", format!("the weight `{name}` has no `axes`"));
                self.error(d.at(span, "declared here").help("write axes = \"out in\""));
                return None;
            }
        };
        let mut weight = Weight {
            name: name.to_owned(),
            scope,
            axes,
            dtype: act,
            pinned: false,
            when: None,
            only: None,
            absent: None,
            borrowed: false,
            disk: Vec::new(),
            quant: true,
            span: Some(span),
        };
        let before = self.out.len();
        for (key, (key_span, item)) in table {
            match key.as_str() {
                "axes" => {}
                "disk" => weight.disk = self.disk(item, prefix, &weight.axes),
                "when" if condition.is_some() => {}
                "when" => weight.when = self.when(item, schedule),
                "dtype" => match item.text().and_then(|t| t.parse::<DType>().ok()) {
                    Some(d) if d.is_float() && !d.is_narrow() => {
                        weight.dtype = d;
                        weight.pinned = true;
                        weight.quant = false;
                    }
                    _ => self.wrong(item, "a float dtype such as \"f32\""),
                },
                "quant" => match item.kind {
                    Kind::Bool(b) => weight.quant = b,
                    _ => self.wrong(item, "true or false"),
                },
                _ => self.unknown_key("weights", key, *key_span, &["axes", "disk", "when", "dtype", "quant"]),
            }
        }
        // A condition that was refused says nothing about who has the weight.
        let known = condition.is_some() || weight.when.is_some() || !table.contains_key("when");
        self.whole(weight, span, schedule, known, self.out.len() > before)
    }

    /// The weight, if there is something of it; `refused` says that a part of it was told already.
    fn whole(
        &mut self,
        weight: Weight,
        span: Span,
        schedule: &[LayerKinds],
        known: bool,
        refused: bool,
    ) -> Option<Weight> {
        let name = &weight.name;
        if let Some(empty) = weight.axes.iter().flatten().find(|axis| fixed(axis) == 0) {
            let when = weight.when.as_ref();
            let absent = when.is_some_and(|w| schedule.iter().all(|k| k.get(&w.column) != Some(&w.kind)));
            if known && !absent {
                self.no_elements(span, &format!("the weight `{name}`"), &empty.name);
            }
            return None;
        }
        if weight.disk.is_empty() && !refused {
            let d = Diagnostic::error("B0029", format!("the weight `{name}` has no `disk` name"));
            self.error(d.at(span, "declared here").help("write disk = \"name.in.the.checkpoint\""));
        }
        // One prefix is behind all of them.
        let told = self.out.iter().any(|d| d.code == "B0030");
        if weight.scope == Scope::Layer && weight.disk.iter().any(|d| !d.tensor.contains("{l}")) && !told {
            self.error(
                Diagnostic::error("B0030", format!("every layer would read `{name}` from the same tensor"))
                    .at(span, "its disk name has no `{l}`")
                    .note(self.prefix_span, "stands before it")
                    .help("write prefix = \"layers.{l}.\" in [layer], as the checkpoint has it"),
            );
        }
        Some(weight)
    }

    pub(super) fn disk(&mut self, node: &Node, prefix: &str, axes: &[Vec<Axis>]) -> Vec<DiskForm> {
        let items: Vec<&Node> = node.array().map_or_else(|| vec![node], |a| a.iter().collect());
        let mut forms = Vec::new();
        for item in items {
            let parsed = match item.text() {
                Some(text) => disk::parse(text, prefix, axes, &self.numbers),
                None => Err(format!("this is {}", item.what())),
            };
            match parsed {
                Ok(form) => forms.push(form),
                Err(why) => self.error(
                    Diagnostic::error("B0031", format!("the disk name cannot be read: {why}"))
                        .at(item.span, "this name")
                        .help("for example \"mlp.experts.{experts}.up.weight\" or \"packed[:, 0:width]\""),
                ),
            }
        }
        forms
    }

    /// Which axes a mesh may split, and over which of its axes.
    pub(super) fn shard(&mut self, dims: &IndexMap<String, u64>) -> IndexMap<String, Vec<String>> {
        let mut shard = IndexMap::new();
        for (axis, (span, node)) in self.table("shard").into_iter().flatten() {
            if !dims.contains_key(axis) && axis != ir::TOKEN_ROWS {
                let d = Diagnostic::error("B0023", format!("`{axis}` is no axis"));
                if self.told.contains(axis) {
                    continue;
                }
                self.error(d.at(*span, "sharded here").nearest(axis, named(dims).chain([ir::TOKEN_ROWS])));
            }
            let mesh = |n: &Node| n.text().map(str::to_owned);
            match node.array().and_then(|a| a.iter().map(mesh).collect::<Option<Vec<_>>>()) {
                Some(mesh) => drop(shard.insert(axis.clone(), mesh)),
                None => self.wrong(node, "a list of mesh axes"),
            }
        }
        shard
    }
}

/// Length of an axis of fixed length.
pub(super) fn fixed(axis: &Axis) -> u64 {
    if let Extent::Fixed(n) = axis.extent { n } else { 1 }
}

/// Axes that have a name: a factor that is written as a number has none.
fn named(dims: &IndexMap<String, u64>) -> impl Iterator<Item = &str> {
    dims.keys().map(String::as_str).filter(|name| name.parse::<u64>().is_err())
}
