//! `[require]`: conditions on dims and values that the mathematics of the spec depends on.
//!
//! Each has a name, so that a derived spec can replace it or, with `"none"`, remove it. A condition that reads a value
//! which is `"none"` (or a truth value) says nothing. A drafter's may read the dims of its target, `target.name`.

use super::{Reader, Value};
use crate::{Diagnostic, rules};
use indexmap::IndexMap;
use ir::Span;
use std::collections::{BTreeSet, HashMap};

impl Reader<'_> {
    /// Asks every condition; one that does not hold points at what its names say.
    ///
    /// Where the model is made small, a value that a condition keeps below a dim follows it down.
    pub(super) fn require(&mut self, dims: &IndexMap<String, u64>, values: &mut IndexMap<String, (Span, Value)>) {
        let mut numbers: HashMap<String, f64> = dims.iter().map(|(name, n)| (name.clone(), *n as f64)).collect();
        for (name, (_, value)) in values.iter() {
            match value {
                Value::Number(x) => drop(numbers.insert(name.clone(), *x)),
                Value::Group(items) => numbers.extend(items.iter().map(|(m, x)| (format!("{name}.{m}"), *x))),
                Value::None | Value::Truth(_) => {}
            }
        }
        if let Some(target) = self.target {
            numbers.extend(target.facts.dims.iter().map(|(name, n)| (format!("target.{name}"), *n as f64)));
        }
        for (name, (_, node)) in self.table("require").into_iter().flatten() {
            let Some(text) = node.text() else {
                self.wrong(node, "a condition such as \"eps > 0\"");
                continue;
            };
            if text == "none" {
                continue;
            }
            let read = rules::names(text);
            for word in &read {
                let root = word.split('.').next().unwrap_or(word).to_owned();
                self.named_elsewhere.extend([("dims", root.clone()), ("values", root)]);
            }
            let silent = |w: &String| {
                let value = values.get(w).map(|(_, v)| v);
                self.told.contains(w) || matches!(value, Some(Value::None | Value::Truth(_)))
            };
            if read.iter().any(silent) {
                continue;
            }
            if self.is_small
                && let Some((value, x)) = followed(text, &numbers, dims, values)
            {
                numbers.insert(value.clone(), x);
                values.entry(value).and_modify(|(_, value)| *value = Value::Number(x));
            }
            match rules::condition(text, &numbers) {
                Ok(true) => {}
                Ok(false) => {
                    let place = |w: &String| {
                        let root = w.split('.').next().unwrap_or(w);
                        values.get(root).map(|(s, _)| *s).or_else(|| self.dim_spans.get(root).copied())
                    };
                    let mut d = Diagnostic::error("B0032", format!("the spec requires `{text}`, which does not hold"))
                        .at(node.span, format!("required as `{name}`"))
                        .help(format!("change the number, or write {name} = \"none\" in [require] to do without"));
                    for word in &read {
                        let shown = numbers.get(word).map_or_else(String::new, |x| format!("{word} = {x}"));
                        d = d.note(place(word), shown);
                    }
                    self.error(d);
                }
                Err(e) => {
                    let at = e.unknown.as_ref().map_or(node.span, |w| self.word(node, w));
                    let d = Diagnostic::error("B0033", format!("the condition `{name}` cannot be read: {}", e.why))
                        .at(at, "here")
                        .help("for example \"picked <= experts and eps > 0\"");
                    let known: BTreeSet<&str> = numbers.keys().map(String::as_str).collect();
                    self.error(match &e.unknown {
                        Some(word) => d.nearest(word, known),
                        None => d,
                    });
                }
            }
        }
    }
}

/// A whole value of a condition that does not hold, and the last index of one of its dims, with which it does.
fn followed(
    text: &str,
    numbers: &HashMap<String, f64>,
    dims: &IndexMap<String, u64>,
    values: &IndexMap<String, (Span, Value)>,
) -> Option<(String, f64)> {
    if !matches!(rules::condition(text, numbers), Ok(false)) {
        return None;
    }
    let read = rules::names(text);
    let whole = |w: &&String| matches!(values.get(*w), Some((_, Value::Number(x))) if x.fract() == 0.0);
    let last = read.iter().filter_map(|w| Some(dims.get(w)?.saturating_sub(1) as f64));
    last.flat_map(|x| read.iter().filter(whole).map(move |value| (value.clone(), x))).find(|(value, x)| {
        let mut tried = numbers.clone();
        tried.insert(value.clone(), *x);
        matches!(rules::condition(text, &tried), Ok(true))
    })
}
