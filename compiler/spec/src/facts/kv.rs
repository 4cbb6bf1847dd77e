//! `[kv]`: cache kinds.

use super::weights::fixed;
use super::{Reader, Value};
use crate::Diagnostic;
use crate::document::Node;
use indexmap::IndexMap;
use ir::{KvKind, LayerKinds, Span};

impl<'a> Reader<'a> {
    pub(super) fn kv(
        &mut self,
        dims: &IndexMap<String, u64>,
        schedule: &[LayerKinds],
        values: &IndexMap<String, (Span, Value)>,
    ) -> Vec<KvKind> {
        let mut kinds = Vec::new();
        'kinds: for (name, (span, node)) in self.table("kv").into_iter().flatten() {
            let Some(table) = node.table() else {
                self.wrong(node, "a table with layers, k and v");
                continue;
            };
            let before = self.out.len();
            let mut kind = KvKind {
                name: name.clone(),
                layers: Vec::new(),
                k: Vec::new(),
                v: Vec::new(),
                window: None,
                lives_in: None,
                shared_slots: 0,
            };
            for (key, (key_span, item)) in table {
                match key.as_str() {
                    "layers" if item.text() == Some("all") => kind.layers = (0..schedule.len()).collect(),
                    "layers" => {
                        if let Some(when) = self.when(item, schedule) {
                            self.named_elsewhere.push(("schedule", when.column.clone()));
                            let has = |l: &usize| schedule[*l].get(&when.column) == Some(&when.kind);
                            kind.layers = (0..schedule.len()).filter(has).collect();
                        }
                    }
                    "k" | "v" => {
                        let Some(axes) = self.axes(item, dims) else { continue 'kinds };
                        *(if key == "k" { &mut kind.k } else { &mut kind.v }) = axes.concat();
                    }
                    "window" => kind.window = self.window(item, values),
                    "lives_in" => kind.lives_in = self.home(item),
                    _ => self.unknown_key("kv", key, *key_span, &["layers", "k", "v", "window", "lives_in"]),
                }
            }
            // What is wrong with a part was told; the whole is asked for only if its parts are right.
            if self.out.len() > before {
                continue;
            }
            if let (Some((_, window)), None, false) = (table.get("window"), kind.window, kind.layers.is_empty()) {
                let refused = window.text().is_some_and(|name| self.told.contains(name));
                if !refused {
                    self.error(
                        Diagnostic::error(
                            "B0028",
                            format!("layers of the kind `{name}` have a window, and it is none"),
                        )
                        .at(window.span, "names the window")
                        .note(window.text().and_then(|n| Some(values.get(n)?.0)), "says none")
                        .help("give the window a number, or remove `window` from the kind to let it see everything"),
                    );
                }
            }
            if kind.k.len() != 2 || kind.v != kind.k {
                self.error(
                    Diagnostic::error("B0026", format!("the cache kind `{name}` needs k and v rows of two equal axes"))
                        .at(*span, "k and v of this kind")
                        .help("write k = \"heads elements\", v = \"heads elements\""),
                );
            }
            match kind.k.iter().find(|axis| fixed(axis) == 0) {
                // Nobody caches what no layer has.
                Some(_) if kind.layers.is_empty() => {}
                Some(axis) => {
                    let name = axis.name.clone();
                    self.no_elements(*span, &format!("a row of the cache kind `{}`", kind.name), &name);
                }
                None => kinds.push(kind),
            }
        }
        kinds
    }

    pub(super) fn window(&mut self, node: &Node, values: &IndexMap<String, (Span, Value)>) -> Option<u64> {
        self.named_elsewhere.extend(node.text().map(|name| ("values", name.to_owned())));
        let number = match node.text() {
            None => node.number(),
            Some(name) => match values.get(name) {
                Some((_, Value::Number(x))) => Some(*x),
                Some((_, Value::None)) => return None,
                None if self.told.contains(name) => return None,
                _ => {
                    let d = Diagnostic::error("B0027", format!("`{name}` is no value"));
                    self.error(
                        d.at(self.word(node, name), "named as the window")
                            .nearest(name, values.keys().map(String::as_str)),
                    );
                    return None;
                }
            },
        };
        match number {
            Some(x) if x >= 1.0 && x.fract() == 0.0 && x < 1e15 => Some(x as u64),
            _ => {
                self.error(
                    Diagnostic::error("B0028", "a window is a whole number of positions, at least 1")
                        .at(node.span, "the query's own position counts")
                        .note(node.text().and_then(|n| Some(values.get(n)?.0)), "another number")
                        .help("write a whole number from 1, or remove `window` from the kind to let it see everything"),
                );
                None
            }
        }
    }
}
