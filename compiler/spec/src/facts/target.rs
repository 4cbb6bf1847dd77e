//! What a drafter's tables take from the target: lengths, captured rows, the pages of its cache.

use super::{Reader, Value};
use crate::Diagnostic;
use crate::document::{Kind, Node};
use indexmap::IndexMap;
use ir::{Capture, Model, Op, Span};

/// Rows of a block where nobody chooses another number.
const DRAFT_TOKENS: u64 = 8;

/// `[axes] whole = "front + back"`: parts of an axis with their lengths, in order. A part is a name or a number.
pub(crate) type Sums = IndexMap<String, Vec<(String, u64)>>;

impl Reader<'_> {
    /// A dimension that is written as a text: `target.name`, `capture.name` or `serve.draft_tokens`.
    pub(super) fn taken(&mut self, text: &str, node: &Node) -> Option<u64> {
        let Some((from, name)) = text.split_once('.') else {
            self.wrong(node, "a whole number, or \"target.name\", \"capture.name\" or \"serve.draft_tokens\",");
            return None;
        };
        match (from, self.target) {
            ("serve", _) if name == "draft_tokens" => Some(self.draft_tokens.unwrap_or(DRAFT_TOKENS)),
            ("capture", _) => match self.captured_layers(name) {
                Some(layers) => Some(layers.len() as u64),
                None => {
                    let d = Diagnostic::error("B0039", format!("[capture] has no `{name}` with layers"));
                    let known = self.table("capture").into_iter().flatten().map(|(k, _)| k.as_str());
                    self.error(d.at(node.span, "as many as its layers").nearest(name, known));
                    None
                }
            },
            ("target", None) => {
                let d =
                    Diagnostic::error("B0038", format!("`{text}` is a length of the target, and [model] names none"));
                self.error(d.at(node.span, "taken from the target").help("write target = \"spec.toml\" in [model]"));
                None
            }
            ("target", Some(target)) => match target.facts.dims.get(name) {
                Some(n) => Some(*n),
                None => {
                    let known = target.facts.dims.keys().map(String::as_str);
                    let d = Diagnostic::error("B0038", format!("the target has no dimension `{name}`"));
                    self.error(d.at(node.span, "unknown").nearest(name, known));
                    None
                }
            },
            _ => {
                self.wrong(node, "a whole number, or \"target.name\", \"capture.name\" or \"serve.draft_tokens\",");
                None
            }
        }
    }

    /// Layers that a capture lists, if they are whole numbers.
    fn captured_layers(&self, name: &str) -> Option<Vec<usize>> {
        let (_, node) = self.table("capture")?.get(name)?;
        let layer = |n: &Node| match n.kind {
            Kind::Integer(i) => usize::try_from(i).ok(),
            _ => None,
        };
        node.table()?.get("layers")?.1.array()?.iter().map(layer).collect()
    }

    /// `[capture]`: rows of the target.
    pub(super) fn captures(&mut self) -> Vec<Capture> {
        let mut found = Vec::new();
        for (name, (span, node)) in self.table("capture").into_iter().flatten() {
            let of = node.table().and_then(|t| t.get("of")).and_then(|(_, n)| n.text());
            let (Some(of), Some(layers)) = (of, self.captured_layers(name)) else {
                self.wrong(node, "a table with of = \"target.entry.value\" and layers = [numbers]");
                continue;
            };
            match self.capture(name, of, layers) {
                Ok(_) if !found.is_empty() => {
                    let d = Diagnostic::error("B0039", format!("`{name}` cannot be captured: it is the second one"));
                    self.error(
                        d.at(*span, "asks for it")
                            .help("list all layers in one line: a drafter is handed one value of all of them"),
                    );
                }
                Ok(capture) => found.push(capture),
                Err(why) => {
                    let d = Diagnostic::error("B0039", format!("`{name}` cannot be captured: {why}"));
                    self.error(d.at(*span, "asks for it").help(
                        "write of = \"target.entry.value\", a value that the entry's layers hand on, and layers that the target has, ascending",
                    ));
                }
            }
        }
        found
    }

    fn capture(&self, name: &str, of: &str, layers: Vec<usize>) -> Result<Capture, String> {
        let target = self.target.ok_or("[model] names no target")?;
        let path: Vec<&str> = of.split('.').collect();
        let ["target", entry, value] = path.as_slice() else { return Err(format!("`{of}` is no value of an entry")) };
        if !hands_on(target, entry, value)? {
            return Err(format!("the layers of `{entry}` of the target hand on no `{value}`"));
        }
        let count = target.facts.layers();
        if let Some(missing) = layers.iter().find(|l| **l >= count) {
            return Err(format!("layer {missing} is none of the target's, which has {count}"));
        }
        if layers.is_empty() || layers.windows(2).any(|w| w[0] >= w[1]) {
            return Err("its layers do not ascend, or are none".to_owned());
        }
        Ok(Capture { name: name.to_owned(), entry: (*entry).to_owned(), value: (*value).to_owned(), layers })
    }

    /// The target's cache kind in whose pages a kind lies.
    pub(super) fn home(&mut self, node: &Node) -> Option<String> {
        let Some(name) = node.text().and_then(|t| t.strip_prefix("target.")) else {
            self.wrong(node, "a text such as \"target.kind\"");
            return None;
        };
        let known: Vec<&str> = self.target.iter().flat_map(|t| &t.facts.kv).map(|k| k.name.as_str()).collect();
        if known.contains(&name) {
            return Some(name.to_owned());
        }
        let d = Diagnostic::error("B0038", format!("the target has no cache kind `{name}`"));
        self.error(d.at(node.span, "unknown").nearest(name, known));
        None
    }

    /// Axes that are written as a sum of two parts; one part may be new, and its length follows.
    pub(super) fn sums(&mut self, dims: &mut IndexMap<String, u64>) -> Sums {
        let mut sums = Sums::new();
        for (key, (_, node)) in self.table("axes").into_iter().flatten() {
            let Some(text) = node.text().filter(|t| t.contains('+')) else { continue };
            let parts: Vec<&str> = text.split('+').map(str::trim).collect();
            let length = |part: &&str| part.parse::<u64>().ok().or_else(|| dims.get(*part).copied());
            let known = parts.iter().filter_map(length).try_fold(0u64, u64::checked_add);
            let fresh: Vec<&&str> = parts.iter().filter(|p| length(p).is_none()).collect();
            let total = dims.get(key).copied().unwrap_or(0);
            let rest = known.and_then(|known| total.checked_sub(known));
            let fits = match (rest, fresh.as_slice()) {
                (Some(0), []) => true,
                (Some(n), [name]) => n > 0 && !name.is_empty(),
                _ => false,
            };
            if !fits || parts.len() != 2 {
                let d = Diagnostic::error("B0016", format!("`{text}` does not say the two parts of `{key}`"));
                self.error(
                    d.at(node.span, format!("`{key}` has {total} entries"))
                        .note(self.dim_spans.get(key).copied(), format!("{total} entries"))
                        .help("write two parts joined by a plus, at most one of them new, such as \"1 + rest\""),
                );
                self.told.extend(parts.iter().map(|p| (*p).to_owned()));
                continue;
            }
            let named = parts.iter().map(|p| ((*p).to_owned(), length(p).or(rest).unwrap_or(0)));
            let named: Vec<(String, u64)> = named.collect();
            for (part, n) in named.iter().filter(|(part, _)| part.parse::<u64>().is_err()) {
                if dims.insert(part.clone(), *n).is_none() {
                    self.numbers.insert(part.clone(), *n as f64);
                    self.dim_spans.insert(part.clone(), node.span);
                }
            }
            sums.insert(key.clone(), named);
        }
        sums
    }

    /// Values that nothing gives yet: a checkpoint must.
    pub(super) fn required(&mut self, name: &str, span: Span) -> Value {
        self.missing.push((name.to_owned(), span));
        Value::Number(0.0)
    }
}

/// Whether the layer loop of an entry carries a value of this name.
fn hands_on(target: &Model, entry: &str, value: &str) -> Result<bool, String> {
    let found = target.entries.iter().find(|e| e.name == entry);
    let graph = &found.ok_or_else(|| format!("the target has no entry `{entry}`"))?.graph;
    let carried = |v: &ir::ValueId| {
        let stem = graph.node(*v).name.as_deref().map(|n| n.split('#').next().unwrap_or(n));
        let of_loop = graph.operands(*v).first().is_some_and(|o| matches!(graph.node(*o).op, Op::Layers { .. }));
        matches!(graph.node(*v).op, Op::Item(_)) && of_loop && stem == Some(value)
    };
    Ok(graph.ids().any(|v| carried(&v)))
}
