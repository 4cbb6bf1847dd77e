//! `[model]`, `[values]`, `[options]`, `[runtime]`, `[lints]`: what the text and the server read by name.

use super::{Reader, Value};
use crate::document::{Kind, Node};
use crate::{Choices, Diagnostic};
use indexmap::IndexMap;
use ir::{DType, RuntimeFacts, Span};

impl<'a> Reader<'a> {
    pub(super) fn model(&mut self, choices: &Choices) -> (String, DType) {
        let (mut name, mut act) = ("unnamed".to_owned(), None);
        for (key, (span, node)) in self.table("model").into_iter().flatten() {
            match (key.as_str(), node.text()) {
                ("name", Some(text)) if crate::is_plain(text) => name = text.to_owned(),
                ("name", Some(_)) => self.error(
                    Diagnostic::error("B0010", "a name is one line of visible characters")
                        .at(node.span, "holds a line break or another character that a terminal obeys")
                        .help("write a name without them: it is printed, and stands in artifacts"),
                ),
                ("act", Some(text)) => match text.parse::<DType>() {
                    Ok(d) if d.is_float() && !d.is_narrow() => act = Some(d),
                    _ => self.error(
                        Diagnostic::error("B0012", format!("`{text}` is no format that values can round to"))
                            .at(node.span, "the dtype of untyped names")
                            .help("write act = \"bf16\" or act = \"f32\""),
                    ),
                },
                ("name" | "act", None) => self.wrong(node, "a text"),
                ("hf", _) if node.table().is_some() => {}
                // Read before everything else.
                ("target", _) => {}
                _ => self.unknown_key("model", key, *span, &["name", "act", "hf", "target"]),
            }
        }
        if act.is_none() && !self.table("model").is_some_and(|t| t.contains_key("act")) {
            let span = self.merged.table_span("model");
            self.error(
                Diagnostic::error("B0012", "[model] does not say `act`, the dtype of untyped names")
                    .at(span, "no `act` here")
                    .help("write act = \"bf16\""),
            );
        }
        (name, choices.act.or(act).unwrap_or(DType::F32))
    }

    pub(super) fn values(&mut self) -> IndexMap<String, (Span, Value)> {
        let mut values = IndexMap::new();
        for (key, (span, node)) in self.table("values").into_iter().flatten() {
            if self.numbers.contains_key(key) {
                let d = Diagnostic::error("B0018", format!("`{key}` is a value and a dimension at once"));
                self.error(
                    d.at(*span, "a value")
                        .note(self.dim_spans.get(key).copied(), "a dimension")
                        .help("give one of them another name"),
                );
                self.told.insert(key.clone());
                continue;
            }
            let value = match (&node.kind, node.number()) {
                (_, Some(x)) => Value::Number(x),
                (Kind::Text(t), _) if t == "required" => self.required(key, *span),
                (Kind::Text(t), _) if t == "none" => Value::None,
                (Kind::Bool(b), _) => Value::Truth(*b),
                (Kind::Table(t), _) if t.values().all(|(_, n)| n.number().is_some()) => {
                    Value::Group(t.iter().filter_map(|(k, (_, n))| Some((k.clone(), n.number()?))).collect())
                }
                _ => {
                    self.told.insert(key.clone());
                    self.wrong(node, "a number, a truth value, \"none\", \"required\", or a table of numbers");
                    continue;
                }
            };
            values.insert(key.clone(), (*span, value));
        }
        values
    }

    #[allow(clippy::type_complexity)]
    pub(super) fn options(
        &mut self,
        choices: &Choices,
    ) -> (IndexMap<String, String>, IndexMap<String, (Span, Vec<String>)>) {
        let (mut chosen, mut spans) = (IndexMap::new(), IndexMap::new());
        for (key, (span, node)) in self.table("options").into_iter().flatten() {
            let offered: Vec<String> =
                node.array().into_iter().flatten().filter_map(|n| n.text().map(str::to_owned)).collect();
            let Some(default) = offered.first() else {
                self.wrong(node, "a list of alternatives, the default first,");
                continue;
            };
            let wanted = choices.options.get(key).into_iter().flatten().find(|w| offered.contains(w));
            chosen.insert(key.clone(), wanted.unwrap_or(default).clone());
            spans.insert(key.clone(), (*span, offered));
        }
        (chosen, spans)
    }

    /// What `[import]` fills is known by name, whether or not the text that is taken reads it.
    pub(super) fn imported(&mut self) {
        let import = self.table("import");
        for table in ["dims", "values", "options"] {
            let filled = import.and_then(|t| t.get(table)).and_then(|(_, n)| n.table()).into_iter().flatten();
            self.named_elsewhere.extend(filled.map(|(name, _)| (table, name.clone())));
        }
    }

    pub(super) fn runtime(&mut self) -> RuntimeFacts {
        let mut facts = RuntimeFacts::default();
        for (key, (span, node)) in self.table("runtime").into_iter().flatten() {
            let id = |n: &Node| match n.kind {
                Kind::Integer(i) => u32::try_from(i).ok(),
                _ => None,
            };
            match key.as_str() {
                "context" => match node.kind {
                    Kind::Integer(n) if n > 0 => facts.context = Some(n as u64),
                    _ => self.wrong(node, "a number of tokens, at least 1,"),
                },
                "stop" => {
                    let list: Vec<&Node> = node.array().map_or_else(|| vec![node], |a| a.iter().collect());
                    match list.into_iter().map(id).collect::<Option<Vec<u32>>>() {
                        Some(ids) => facts.stop = ids,
                        None => self.wrong(node, "a token id or a list of them"),
                    }
                }
                "start" | "pad" => match id(node) {
                    Some(n) if key == "start" => facts.start = Some(n),
                    Some(n) => facts.pad = Some(n),
                    None => self.wrong(node, "a token id"),
                },
                _ => self.unknown_key("runtime", key, *span, &["context", "stop", "start", "pad"]),
            }
        }
        facts
    }

    pub(super) fn lints(&mut self) -> bool {
        let mut on = true;
        for (key, (span, node)) in self.table("lints").into_iter().flatten() {
            match (key.as_str(), &node.kind) {
                ("narrowing", Kind::Bool(b)) => on = *b,
                ("narrowing", _) => self.wrong(node, "true or false"),
                _ => self.unknown_key("lints", key, *span, &["narrowing"]),
            }
        }
        on
    }
}
