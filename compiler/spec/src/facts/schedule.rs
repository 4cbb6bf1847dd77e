//! `[schedule]`: the kind of each layer per column, and conditions on it.

use super::{MAX_LAYERS, Reader};
use crate::document::Node;
use crate::{Choices, Diagnostic, rules};
use indexmap::IndexMap;
use ir::{LayerKinds, When};
use std::collections::BTreeSet;

impl<'a> Reader<'a> {
    pub(super) fn schedule(&mut self, dims: &IndexMap<String, u64>) -> Vec<LayerKinds> {
        let layers = dims.get("layers").copied().unwrap_or(0).min(MAX_LAYERS) as usize;
        let mut schedule = vec![LayerKinds::new(); layers];
        for (column, (span, node)) in self.table("schedule").into_iter().flatten() {
            if let Some(list) = node.array() {
                if self.told.contains("layers") {
                    self.refused_columns.push(column.clone());
                    continue;
                }
                if list.len() != layers {
                    self.refused_columns.push(column.clone());
                    self.error(
                        Diagnostic::error(
                            "B0019",
                            format!("the schedule `{column}` has {} entries for {layers} layers", list.len()),
                        )
                        .at(node.span, format!("{} entries", list.len()))
                        .note(self.dim_spans.get("layers").copied(), format!("{layers} layers"))
                        .help("one kind per layer, or a rule in their place"),
                    );
                    continue;
                }
                for (layer, item) in list.iter().enumerate() {
                    match item.text() {
                        Some(kind) => drop(schedule[layer].insert(column.clone(), kind.to_owned())),
                        None => {
                            self.refused_columns.push(column.clone());
                            self.wrong(item, "the name of a kind");
                        }
                    }
                }
            } else if let Some(rule) = node.text() {
                let words = rules::names(rule);
                if words.iter().any(|w| self.told.contains(w)) {
                    self.refused_columns.push(column.clone());
                    continue;
                }
                self.named_elsewhere.extend(words.into_iter().map(|w| ("dims", w)));
                for (layer, kinds) in schedule.iter_mut().enumerate() {
                    self.numbers.insert("l".to_owned(), layer as f64);
                    match rules::schedule_kind(rule, &self.numbers) {
                        Ok(kind) => drop(kinds.insert(column.clone(), kind)),
                        Err(why) => {
                            self.refused_columns.push(column.clone());
                            let at = why.unknown.as_ref().map_or(node.span, |w| self.word(node, w));
                            let d = Diagnostic::error(
                                "B0020",
                                format!("the schedule rule of `{column}` cannot be read: {}", why.why),
                            )
                            .at(at, if why.unknown.is_some() { "unknown" } else { "this rule" })
                            .note(Some(*span), "of this column")
                            .help("for example \"dense if l < 3 else sparse\"");
                            let known = self.numbers.keys().map(String::as_str).collect::<BTreeSet<_>>();
                            self.error(match &why.unknown {
                                Some(word) => d.nearest(word, known),
                                None => d,
                            });
                            break;
                        }
                    }
                }
                self.numbers.remove("l");
            } else {
                self.refused_columns.push(column.clone());
                self.wrong(node, "a rule or a list of kinds");
            }
        }
        schedule
    }

    /// The part of the schedule that is asked for; the index of a layer is its place in this part.
    pub(super) fn keep_layers(
        &mut self,
        choices: &Choices,
        dims: &mut IndexMap<String, u64>,
        schedule: &mut Vec<LayerKinds>,
    ) {
        let Some(kept) = &choices.layers else { return };
        *schedule = kept.iter().filter_map(|l| schedule.get(*l).cloned()).collect();
        dims.insert("layers".to_owned(), schedule.len() as u64);
        self.numbers.insert("layers".to_owned(), schedule.len() as f64);
    }

    /// Whether a condition on one of `[values]` holds: `value == arm`. Nothing if it is a condition on the layer's kind.
    pub(super) fn condition(&mut self, node: &Node, schedule: &[LayerKinds]) -> Option<bool> {
        let when = rules::when(node.text()?)?;
        let arm = self.arms.get(&when.column).copied()?;
        if schedule.first().is_some_and(|k| k.contains_key(&when.column)) {
            return None;
        }
        self.named_elsewhere.push(("values", when.column.clone()));
        let arms: &[&str] = if matches!(arm, "true" | "false") { &["true", "false"] } else { &["none", "number"] };
        if !arms.contains(&when.kind.as_str()) {
            let d = Diagnostic::error("B0021", format!("`{}` is {arm}, and is never {}", when.column, when.kind));
            self.error(d.at(self.word(node, &when.kind), "compared here").nearest(&when.kind, arms.iter().copied()));
        }
        Some(arm == when.kind)
    }

    /// `column == kind`, checked against the schedule.
    pub(super) fn when(&mut self, node: &Node, schedule: &[LayerKinds]) -> Option<When> {
        let text = node.text().unwrap_or("");
        let Some(when) = rules::when(text) else {
            self.error(
                Diagnostic::error("B0021", format!("`{text}` is no condition on a layer's kind"))
                    .at(node.span, "not understood")
                    .help("write \"column == kind\""),
            );
            return None;
        };
        if self.refused_columns.contains(&when.column) {
            return None;
        }
        if self.told.contains(&when.column) {
            return None;
        }
        if schedule.first().is_some_and(|k| !k.contains_key(&when.column)) {
            let d = Diagnostic::error("B0022", format!("the schedule has no column `{}`", when.column));
            let known: Vec<&str> = schedule[0].keys().map(String::as_str).collect();
            self.error(d.at(self.word(node, &when.column), "unknown column").nearest(&when.column, known));
            return None;
        }
        self.is_a_kind(node, &when, schedule).then_some(when)
    }

    /// Whether a condition's kind can occur: some layer has it, the column's rule names it, or the text has an arm for
    /// it. A condition of a base may outlive the schedule that a derived spec replaced.
    fn is_a_kind(&mut self, node: &Node, when: &When, schedule: &[LayerKinds]) -> bool {
        let column = self.table("schedule").and_then(|t| t.get(&when.column));
        let Some((_, column)) = column.filter(|(span, _)| node.span.file <= span.file) else { return true };
        let mut kinds: BTreeSet<String> = schedule.iter().filter_map(|k| k.get(&when.column).cloned()).collect();
        let ruled = column.text().map(rules::names).unwrap_or_default();
        kinds.extend(ruled.into_iter().filter(|word| word != "l" && !self.numbers.contains_key(word)));
        kinds.extend(self.text_arms.get(&when.column).into_iter().flatten().cloned());
        if kinds.contains(&when.kind) {
            return true;
        }
        let d = Diagnostic::error("B0034", format!("no layer is of the kind `{}` in `{}`", when.kind, when.column))
            .at(self.word(node, &when.kind), "unknown kind")
            .note(Some(column.span), "kinds of this column");
        self.error(d.nearest(&when.kind, kinds.iter().map(String::as_str)));
        false
    }
}
