//! `[stored]`: in which narrow format the checkpoint keeps matrices, and which of them it keeps as they are.
//!
//! A table without `format` says nothing of the checkpoint; its other keys then hold for the format that a target assumes.

use super::Reader;
use crate::document::{Kind, Node, Table};
use crate::library::{self, Written};
use crate::{Choices, Diagnostic, Library};
use ir::{LayerKinds, Scope, Span, Stored, StoredFormat, StoredInputs, StoredKv, StoredNames, StoredPlain};

const KEYS: [&str; 6] = ["format", "inputs", "plain", "kv", "numbers", "names"];

/// What the table says of the format.
enum Said {
    Nothing,
    /// That weights are stored as they are declared.
    None,
    Format(StoredFormat),
}

impl Reader<'_> {
    /// `whole` is the schedule of all layers, of which the choices may keep some.
    pub(super) fn stored(&mut self, whole: &[LayerKinds], choices: &Choices, library: &Library) -> Option<Stored> {
        let empty = Table::new();
        let table = self.table("stored").unwrap_or(&empty);
        for (key, (span, _)) in table {
            if !KEYS.contains(&key.as_str()) {
                self.unknown_key("stored", key, *span, &KEYS);
            }
        }
        let get = |key: &str| table.get(key).map(|(_, node)| node);
        let said = get("format").map_or(Some(Said::Nothing), |node| self.format(node))?;
        let plain = get("plain").map_or_else(Vec::new, |node| self.plain(node, whole, choices));
        let kv = get("kv").and_then(|node| self.scales(node));
        let some_numbers = get("numbers").map_or(Some(false), |node| self.numbers(node))?;
        let format = match said {
            Said::Format(format) => format,
            Said::Nothing => choices.assume?,
            Said::None => choices.assume.filter(|_| choices.convert)?,
        };
        // The built-in words are part of the program.
        let written = library.written(format)?;
        let inputs = get("inputs").map_or(Some(written.inputs), |node| self.inputs(node, &written, format))?;
        let names =
            get("names").map_or(Some(written.names.clone()), |node| self.stored_names(node, &written, format))?;
        let input = names.input.filter(|_| inputs == StoredInputs::Block);
        let span = table.get("format").map(|(key, _)| *key);
        let names = StoredNames { input, ..names };
        Some(Stored { format, inputs, plain, kv, names, some_numbers, span })
    }

    /// Whether the checkpoint has only some of the numbers of inputs and cached rows.
    fn numbers(&mut self, node: &Node) -> Option<bool> {
        match node.text() {
            Some("all") => Some(false),
            Some("some") => Some(true),
            _ => {
                self.wrong(node, "\"all\" or \"some\"");
                None
            }
        }
    }

    fn format(&mut self, node: &Node) -> Option<Said> {
        let word = node.text().unwrap_or("");
        if word == "none" {
            return Some(Said::None);
        }
        let found = StoredFormat::ALL.into_iter().find(|f| f.word() == word);
        if found.is_none() {
            let d = Diagnostic::error("B0035", "no format that a checkpoint is stored in");
            let known = StoredFormat::ALL.map(StoredFormat::word).into_iter().chain(["none"]);
            self.error(match node.text() {
                Some(word) => d.at(node.span, "unknown format").nearest(word, known),
                None => {
                    d.at(node.span, format!("this is {}", node.what())).help("write \"fp8\", \"nvfp4\" or \"none\"")
                }
            });
        }
        found.map(Said::Format)
    }

    fn inputs(&mut self, node: &Node, written: &Written, format: StoredFormat) -> Option<StoredInputs> {
        let found = node.text().and_then(library::inputs);
        if let Some(inputs) = found.filter(|i| *i == StoredInputs::Plain || *i == written.inputs) {
            return Some(inputs);
        }
        let other = match written.inputs {
            StoredInputs::Token => "token",
            StoredInputs::Block => "block",
            StoredInputs::Plain => "plain",
        };
        let d = Diagnostic::error("B0035", format!("{} products take in \"plain\" or \"{other}\"", format.word()));
        self.error(d.at(node.span, "other inputs").help(format!("write inputs = \"{other}\", or \"plain\"")));
        None
    }

    /// `{ head = "all", o = [3] }`.
    fn plain(&mut self, node: &Node, whole: &[LayerKinds], choices: &Choices) -> Vec<StoredPlain> {
        let Some(table) = node.table() else {
            self.wrong(node, "a table of weights");
            return Vec::new();
        };
        let mut found = Vec::new();
        for (name, (span, node)) in table {
            let Some(scope) = self.declared(name, *span) else { continue };
            let layers = match (&node.kind, node.text()) {
                (_, Some("all")) => None,
                (Kind::Array(items), _) if scope == Scope::Layer => match self.layers_of(name, items, whole) {
                    Some(layers) => Some(layers),
                    None => continue,
                },
                _ => {
                    let wanted = if scope == Scope::Layer { "\"all\" or a list of layers" } else { "\"all\"" };
                    self.wrong(node, wanted);
                    continue;
                }
            };
            // Where layers are left out, those that stay are counted anew.
            let layers = layers.map(|layers| match &choices.layers {
                Some(kept) => (0..kept.len()).filter(|at| kept.get(*at).is_some_and(|l| layers.contains(l))).collect(),
                None => layers,
            });
            found.push(StoredPlain { weight: name.clone(), layers });
        }
        found
    }

    /// Which of the tables declares a weight; one that a spec has removed was declared too.
    fn declared(&mut self, name: &str, span: Span) -> Option<Scope> {
        let of_layers = self.table("layer").and_then(|t| t.get("weights")).and_then(|(_, n)| n.table());
        if self.table("weights").is_some_and(|t| t.contains_key(name)) {
            return Some(Scope::Model);
        }
        if of_layers.is_some_and(|t| t.contains_key(name)) {
            return Some(Scope::Layer);
        }
        let known = self.table("weights").into_iter().chain(of_layers).flatten().map(|(k, _)| k.as_str());
        let d = Diagnostic::error("B0036", format!("there is no weight `{name}` to be stored as it is"));
        self.error(d.at(span, "unknown weight").nearest(name, known));
        None
    }

    /// Layers in ascending order, each of which has the weight.
    fn layers_of(&mut self, name: &str, items: &[Node], whole: &[LayerKinds]) -> Option<Vec<usize>> {
        let of_layers = self.table("layer").and_then(|t| t.get("weights")).and_then(|(_, n)| n.table());
        let when = of_layers.and_then(|t| t.get(name)).and_then(|(_, n)| n.table()).and_then(|t| t.get("when"));
        let when = when.and_then(|(_, n)| n.text()).and_then(crate::rules::when);
        let mut layers = Vec::new();
        for item in items {
            let layer = match item.kind {
                Kind::Integer(n) => usize::try_from(n).ok(),
                _ => {
                    self.wrong(item, "the number of a layer");
                    return None;
                }
            };
            let Some((layer, kinds)) = layer.and_then(|l| Some((l, whole.get(l)?))) else {
                // A schedule that was refused has no layers to count.
                if !whole.is_empty() {
                    let help = format!("layers are numbered from 0 to {}", whole.len() - 1);
                    self.error(
                        Diagnostic::error("B0036", "there is no such layer").at(item.span, "counted here").help(help),
                    );
                }
                return None;
            };
            let other = when.as_ref().filter(|w| kinds.get(&w.column).is_some_and(|kind| *kind != w.kind));
            if let Some(when) = other {
                let kind = kinds.get(&when.column).map_or("", String::as_str);
                let d = Diagnostic::error("B0036", format!("layer {layer} has no weight `{name}`"));
                let d = d.at(item.span, format!("`{}` is {kind} there", when.column));
                self.error(d.help(format!("name layers where {} == {}", when.column, when.kind)));
                return None;
            }
            layers.push(layer);
        }
        layers.sort_unstable();
        layers.dedup();
        Some(layers)
    }

    /// `{ k_scale = [names], v_scale = [names] }`, below the prefix of layers.
    fn scales(&mut self, node: &Node) -> Option<StoredKv> {
        const KEYS: [&str; 2] = ["k_scale", "v_scale"];
        let Some(table) = node.table() else {
            self.wrong(node, "a table with k_scale and v_scale");
            return None;
        };
        let layer = self.table("layer").and_then(|t| t.get("prefix")).and_then(|(_, n)| n.text());
        let prefix = layer.unwrap_or("").to_owned();
        let mut kv = StoredKv { k_scale: Vec::new(), v_scale: Vec::new() };
        for (key, (span, node)) in table {
            let items: Vec<&Node> = node.array().map_or_else(|| vec![node], |a| a.iter().collect());
            let names = items.into_iter().map(|n| Some(format!("{prefix}{}", n.text()?))).collect::<Option<Vec<_>>>();
            let Some(names) = names.filter(|names| !names.is_empty()) else {
                self.wrong(node, "a tensor name or a list of them");
                continue;
            };
            match key.as_str() {
                "k_scale" => kv.k_scale = names,
                "v_scale" => kv.v_scale = names,
                _ => self.unknown_key("stored.kv", key, *span, &KEYS),
            }
        }
        if let Some((key, _)) = KEYS
            .iter()
            .zip([&kv.k_scale, &kv.v_scale])
            .find(|(key, names)| names.is_empty() && !table.contains_key(**key))
        {
            let d = Diagnostic::error("B0035", format!("scales of cached rows without `{key}`"));
            self.error(d.at(node.span, "keys and values have one each").help(format!("write {key} = \"a.tensor\"")));
        }
        Some(kv)
    }

    fn stored_names(&mut self, node: &Node, written: &Written, format: StoredFormat) -> Option<StoredNames> {
        let Some(table) = node.table() else {
            self.wrong(node, "a table of tensor names");
            return None;
        };
        let mut names = written.names.clone();
        let known: &[&str] =
            if format == StoredFormat::Nvfp4 { &["codes", "scale", "global", "input"] } else { &["codes", "scale"] };
        for (key, (span, node)) in table {
            let Some(text) = node.text().filter(|t| !t.is_empty()) else {
                self.wrong(node, "the last part of a tensor's name");
                continue;
            };
            let text = text.to_owned();
            match key.as_str() {
                "codes" => names.codes = text,
                "scale" => names.scale = text,
                "global" if known.contains(&"global") => names.global = Some(text),
                "input" if known.contains(&"input") => names.input = Some(text),
                _ => self.unknown_key("stored.names", key, *span, known),
            }
        }
        Some(names)
    }
}
