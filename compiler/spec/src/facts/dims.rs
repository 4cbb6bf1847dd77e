//! `[dims]` and `[axes]`: lengths, and how product axes split into factors.

use super::{MAX_DIM, MAX_LAYERS, Reader};
use crate::document::Kind;
use crate::{Choices, Diagnostic};
use indexmap::IndexMap;

impl<'a> Reader<'a> {
    pub(super) fn dims(&mut self, choices: &Choices) -> (IndexMap<String, u64>, IndexMap<String, Vec<String>>) {
        let mut dims = IndexMap::new();
        for (key, (span, node)) in self.table("dims").into_iter().flatten() {
            self.dim_spans.insert(key.clone(), *span);
            let chosen = choices.dims.get(key).and_then(|n| i64::try_from(*n).ok());
            match chosen.map_or_else(|| node.kind.clone(), Kind::Integer) {
                Kind::Integer(n) if (0..=MAX_DIM).contains(&n) => {
                    dims.insert(key.clone(), n as u64);
                    self.numbers.insert(key.clone(), n as f64);
                }
                Kind::Integer(n) => {
                    self.told.insert(key.clone());
                    self.error(
                        Diagnostic::error("B0013", format!("`{key}` is {n}, and a dimension is between 0 and 2^40"))
                            .at(node.span, "out of range")
                            .help("write a whole number in this range"),
                    );
                }
                Kind::Text(ref text) => match self.taken(text, node) {
                    Some(n) => {
                        dims.insert(key.clone(), n);
                        self.numbers.insert(key.clone(), n as f64);
                    }
                    None => drop(self.told.insert(key.clone())),
                },
                _ => {
                    self.told.insert(key.clone());
                    self.wrong(node, "a whole number");
                }
            }
        }
        match dims.get("layers") {
            // A wrong number was told already.
            None if self.told.contains("layers") => {}
            None => self.error(
                Diagnostic::error("B0014", "[dims] does not say how many `layers` there are")
                    .at(self.merged.table_span("dims"), "no `layers` here")
                    .help("write layers = N, N the number"),
            ),
            Some(0) => self.error(
                Diagnostic::error("B0013", "a model has at least one layer")
                    .at(self.dim_spans["layers"], "none here")
                    .help("write layers = 1 or more"),
            ),
            Some(n) if *n > MAX_LAYERS => self.error(
                Diagnostic::error("B0013", format!("{n} layers are more than the {MAX_LAYERS} allowed"))
                    .at(self.dim_spans["layers"], "too many")
                    .help(format!("write layers = {MAX_LAYERS} or less")),
            ),
            Some(_) => {}
        }
        if dims.get("layers").is_some_and(|n| !(1..=MAX_LAYERS).contains(n)) {
            self.told.insert("layers".to_owned());
        }
        let products = self.products(&mut dims);
        (dims, products)
    }

    /// Product axes: at most one factor may be new, and its length follows.
    pub(super) fn products(&mut self, dims: &mut IndexMap<String, u64>) -> IndexMap<String, Vec<String>> {
        let mut products = IndexMap::new();
        for (key, (span, node)) in self.table("axes").into_iter().flatten() {
            let Some(text) = node.text() else {
                self.wrong(node, "a text such as \"groups.member\"");
                continue;
            };
            if text.contains('+') {
                continue;
            }
            let factors: Vec<String> = text.split('.').map(|f| f.trim().to_owned()).collect();
            if self.told.contains(key) || factors.iter().any(|f| self.told.contains(f)) {
                self.told.extend(factors);
                continue;
            }
            let Some(total) = dims.get(key).copied() else {
                let d = Diagnostic::error("B0015", format!("`{key}` is split into factors but is no dimension"));
                self.error(d.at(*span, "not in [dims]").nearest(key, dims.keys().map(String::as_str)));
                self.told.extend(factors);
                continue;
            };
            let length = |f: &String| f.parse::<u64>().ok().or_else(|| dims.get(f).copied());
            let fresh = factors.iter().filter(|f| length(f).is_none()).count();
            let known = factors.iter().filter_map(length).fold(1u64, u64::saturating_mul);
            if fresh > 1 || factors.len() < 2 || factors.iter().any(String::is_empty) {
                self.error(
                    Diagnostic::error("B0016", format!("`{text}` does not say the factors of `{key}`"))
                        .at(node.span, "at most one factor may be new")
                        .help("write known and new factors joined by dots, the first outermost, such as \"groups.member\""),
                );
                self.told.extend(factors);
                continue;
            }
            // An axis of no length has factors of none: all of its kind is absent.
            let rest = total.checked_div(known).unwrap_or(0);
            if let (0, 1.., Some(none)) = (known, total, factors.iter().find(|f| length(f) == Some(0))) {
                self.error(
                    Diagnostic::error(
                        "B0017",
                        format!("`{key}` has {total} entries, and its factor `{none}` has none"),
                    )
                    .at(node.span, "a factor of 0")
                    .note(self.dim_spans.get(none).copied(), "says 0")
                    .help(format!("write {none} = N, a divisor of {total}, or {key} = 0")),
                );
                self.told.extend(factors);
                continue;
            }
            if rest.checked_mul(known) != Some(total) || (fresh == 0 && rest != 1 && total != 0) {
                self.error(
                    Diagnostic::error("B0017", format!("`{key}` has {total} entries, which {known} does not divide"))
                        .at(node.span, format!("the known factors make {known}"))
                        .note(self.dim_spans.get(key).copied(), format!("{total} entries"))
                        .help(format!("make `{key}` a multiple of {known}")),
                );
                self.told.extend(factors);
                continue;
            }
            for factor in &factors {
                let n = factor.parse::<u64>().unwrap_or(rest);
                if !dims.contains_key(factor) {
                    dims.insert(factor.clone(), n);
                    self.numbers.insert(factor.clone(), n as f64);
                    self.dim_spans.insert(factor.clone(), node.span);
                }
            }
            products.insert(key.clone(), factors);
        }
        products
    }
}
