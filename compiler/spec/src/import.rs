//! A Hugging Face `config.json` becomes a spec that extends the base of its architecture.
//!
//! Which keys mean what is said by the `[import]` table of the base spec; no key is known here. Every key
//! of the config must be used, demanded or ignored by that table, so nothing is dropped in silence.

use crate::config::{Origins, Places};
use crate::document::{Node, Table};
use crate::merge::{self, Input, Merged};
use crate::quantised::{self, Found, Tensors};
use crate::source::read_text;
use crate::{Diagnostic, Library, Sources, recipe};
use ir::Span;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// The text of an imported spec.
#[derive(Clone, Debug)]
pub struct Imported {
    /// TOML.
    pub toml: String,
    /// Name of the base spec.
    pub base: String,
    /// Which lines of the text come from which keys.
    pub(crate) origins: Origins,
}

/// Reads a config and writes a spec, or says by name what cannot be expressed.
pub fn import(config: &Path, library: &Library, sources: &mut Sources, out: &mut Vec<Diagnostic>) -> Option<Imported> {
    let text = match read_text(config) {
        Ok(text) => text,
        Err(d) => {
            out.push(*d);
            return None;
        }
    };
    let file = sources.add(config.display().to_string(), text.clone());
    let json: Value = match serde_json::from_str(&text) {
        Ok(json @ Value::Object(_)) => json,
        Ok(_) => {
            let span = Span { file, start: 0, end: text.len().min(1) as u32 };
            out.push(
                Diagnostic::error("B0401", "a config is a JSON object")
                    .at(span, "another kind of value")
                    .help("name the config.json of a checkpoint"),
            );
            return None;
        }
        Err(e) => {
            let span = line_column(&text, file, e.line(), e.column());
            out.push(
                Diagnostic::error("B0401", format!("the config is not JSON: {e}"))
                    .at(span, "here")
                    .help("mend the file, or copy it from the checkpoint again"),
            );
            return None;
        }
    };
    let places = Places::read(&text, file);
    let (base, merged) = base_for(&json, &places, library, out)?;
    // A checkpoint has no name of its own but that of its directory.
    let folder = config.canonicalize().ok().and_then(|p| Some(p.parent()?.file_name()?.to_string_lossy().into_owned()));
    let name = folder.filter(|name| crate::is_plain(name)).unwrap_or_else(|| base.clone());
    let quantised = quantised::find(&json, &places, config, sources, out);
    let files = quantised::tensor_files(config, sources, out);
    let mut importer = Importer { json, file, places, used: BTreeSet::new(), out, failed: false };
    let (toml, origins) = importer.run(&name, &base, &merged);
    let mut made = Imported { toml, base, origins };
    let failed = importer.failed;
    if matches!(quantised, Found::Refused) {
        return None;
    }
    let nothing = Span { file, start: 0, end: 0 };
    let tensors = files.as_deref().and_then(|files| Tensors::of(files, out));
    // Weights and layers are counted in the spec as it is so far.
    let needed = !failed && (tensors.is_some() || matches!(quantised, Found::Scheme(_)));
    let facts = needed.then(|| crate::facts_of(Input::text("import", &made.toml), library)).flatten();
    let stored = match (quantised, facts) {
        (Found::Scheme(schemes), Some(facts)) => {
            quantised::lines(*schemes, &facts, &merged, library, tensors.as_ref(), out)?
        }
        (Found::Scheme(_), None) => Vec::new(),
        (_, facts) => {
            if let Some((facts, tensors)) = facts.zip(tensors)
                && !quantised::none_in_codes(&facts, &tensors, nothing, out)
            {
                return None;
            }
            vec![(nothing, "format = \"none\"".to_owned())]
        }
    };
    made.section("stored", &stored);
    (!failed && files.is_some()).then_some(made)
}

impl Imported {
    /// Appends a table whose lines come from these places.
    fn section(&mut self, name: &str, lines: &[quantised::Line]) {
        let place = lines.first().map_or(Span { file: self.origins.file, start: 0, end: 0 }, |(span, _)| *span);
        self.origins.line(self.toml.len(), place, place);
        self.toml.push_str(&format!("\n[{name}]\n"));
        for (span, text) in lines {
            self.origins.line(self.toml.len(), *span, *span);
            self.toml.push_str(text);
            self.toml.push('\n');
        }
    }
}

/// The place of a line and column that a JSON reader counts.
pub(crate) fn line_column(text: &str, file: u32, line: usize, column: usize) -> Span {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let at = (start + column.saturating_sub(1)).min(text.len()) as u32;
    Span { file, start: at, end: at }
}

/// The embedded spec whose `hf` facts are those of the config.
fn base_for(json: &Value, places: &Places, library: &Library, out: &mut Vec<Diagnostic>) -> Option<(String, Merged)> {
    let (mut known, mut named_by_class) = (Vec::new(), false);
    for (name, spec) in library.specs() {
        let mut scratch = Vec::new();
        let Some(merged) = merge::load(Input::text(name, spec), library, &mut Sources::default(), &mut scratch) else {
            continue;
        };
        let Some(hf) = merged.table("model").and_then(|t| t.get("hf")).and_then(|(_, n)| n.table()) else { continue };
        if merged.derived {
            continue;
        }
        let wanted = hf.get("architectures").and_then(|(_, n)| n.array()).into_iter().flatten();
        let wanted: Vec<&str> = wanted.filter_map(|n| n.text()).collect();
        let model_type = hf.get("model_type").and_then(|(_, n)| n.text());
        let has = json.get("architectures").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let same_type = model_type.is_none_or(|t| json.get("model_type").and_then(Value::as_str) == Some(t));
        if same_type && has.clone().all(|a| wanted.contains(&a)) && (model_type.is_some() || has.clone().count() > 0) {
            return Some((name.to_owned(), merged));
        }
        named_by_class |= has.clone().count() > 0 && has.clone().all(|a| wanted.contains(&a));
        known.push(format!("{} ({})", model_type.unwrap_or("any model_type"), wanted.join(", ")));
    }
    // The key that keeps the config from a base whose other key it has is the one to look at.
    let key = if named_by_class { ["model_type", "architectures"] } else { ["architectures", "model_type"] };
    let key = key.into_iter().find(|k| json.get(*k).is_some()).unwrap_or("architectures");
    let found = json.get(key).unwrap_or(&Value::Null);
    let d = Diagnostic::error("B0402", "no base spec of this build is of the config's architecture")
        .at(places.key(key), format!("the config says {found}"))
        .help(format!("known: {}; write a spec of your own for another one", known.join("; ")));
    out.push(d);
    None
}

/// A line of the spec, and the path of the config that it comes from.
struct Line {
    path: String,
    text: String,
}

/// The text of the spec as it grows, with the places its lines come from.
struct Made<'p> {
    toml: String,
    places: &'p Places,
    origins: Origins,
}

impl Made<'_> {
    fn line(&mut self, path: &str, text: &str) {
        let (key, value) = (self.places.key(path), self.places.value(path));
        self.origins.line(self.toml.len(), key, value);
        self.toml.push_str(text);
        self.toml.push('\n');
    }

    fn section(&mut self, name: &str, lines: &[Line]) {
        if !lines.is_empty() {
            self.line("", &format!("\n[{name}]"));
            lines.iter().for_each(|l| self.line(&l.path, &l.text));
        }
    }
}

struct Importer<'a> {
    json: Value,
    file: u32,
    places: Places,
    used: BTreeSet<String>,
    out: &'a mut Vec<Diagnostic>,
    failed: bool,
}

impl Importer<'_> {
    fn error(&mut self, path: &str, d: Diagnostic, found: String) {
        self.out.push(d.at(self.places.key(path), found));
        self.failed = true;
    }

    /// The value at a dotted path; an absent key counts as null.
    fn get(&mut self, path: &str) -> Value {
        self.used.insert(path.to_owned());
        path.split('.').try_fold(&self.json, |at, key| at.get(key)).cloned().unwrap_or(Value::Null)
    }

    fn run(&mut self, name: &str, base: &str, merged: &Merged) -> (String, Origins) {
        let empty = Table::new();
        let table = merged.table("import").unwrap_or(&empty);
        let inner = |name: &str| table.get(name).and_then(|(_, n)| n.table()).cloned().unwrap_or_default();
        self.used.extend(["model_type".to_owned(), "architectures".to_owned()]);
        let ignored = table.get("ignore").and_then(|(_, n)| n.array()).into_iter().flatten();
        self.used.extend(ignored.filter_map(|n| n.text()).map(str::to_owned));
        // Read apart, key by key.
        self.used.insert(quantised::KEY.to_owned());
        let demands: Vec<String> = table
            .get("demand")
            .and_then(|(_, n)| n.array())
            .into_iter()
            .flatten()
            .filter_map(|n| n.text().map(str::to_owned))
            .collect();
        demands.iter().for_each(|d| self.demand(d));
        let act = self.act(table);
        let dims = self.dims(&inner("dims"));
        let values = self.values(&inner("values"), merged.table("values"));
        let options = self.options(&inner("options"), merged.table("options"));
        let schedule = self.schedule(&inner("schedule"));
        let runtime = self.runtime(&inner("runtime"));
        let capture = self.captures(&inner("capture"), merged.table("capture"));
        self.unknown_keys();
        let origins = Origins::of(self.file);
        let mut made = Made { toml: String::new(), places: &self.places, origins };
        made.line("architectures", &format!("extends = {}", quoted(base)));
        made.line("", "\n[model]");
        made.line("", &format!("name = {}", quoted(name)));
        made.line(&act.path, &act.text);
        made.section("dims", &dims);
        made.section("values", &values);
        made.section("options", &options);
        made.section("schedule", &schedule);
        made.section("runtime", &runtime);
        made.section("capture", &capture);
        (made.toml, made.origins)
    }

    /// `path == literal | literal`; a literal is null, a truth value, a number, a list, or a bare word.
    fn demand(&mut self, demand: &str) {
        let Some((path, wanted)) = demand.split_once("==").map(|(a, b)| (a.trim(), b.trim())) else { return };
        let found = self.get(path);
        if !recipe::is_one_of(&found, wanted) {
            let expected = recipe::describe(wanted);
            let d = Diagnostic::error("B0404", format!("`{path}` must be {expected}, and the config says {found}"))
                .help("the base spec computes no other case; write a spec of your own for it");
            self.error(path, d, format!("{found} here"));
        }
    }

    fn act(&mut self, table: &Table) -> Line {
        let line = |path: &str, act: &str| Line { path: path.to_owned(), text: format!("act = {}", quoted(act)) };
        let Some((_, node)) = table.get("act") else { return line("", "f32") };
        let (key, found) = self.find(node);
        match found.as_str() {
            Some("bfloat16") => line(&key, "bf16"),
            Some("float32") => line(&key, "f32"),
            _ => {
                let d = Diagnostic::error(
                    "B0405",
                    format!("`{key}` must be bfloat16 or float32, and the config says {found}"),
                )
                .help("values are stored as bf16 or f32 in this build");
                self.error(&key, d, format!("{found} here"));
                line(&key, "f32")
            }
        }
    }

    /// The value that a recipe finds, and the path it was found at.
    fn find(&mut self, node: &Node) -> (String, Value) {
        recipe::find(node, &mut |path| self.get(path))
    }

    fn dims(&mut self, table: &Table) -> Vec<Line> {
        let mut lines = Vec::new();
        for (ours, (_, node)) in table {
            match self.find(node) {
                (path, Value::Number(n)) => lines.push(Line { path, text: format!("{ours} = {n}") }),
                (path, found) => self.not_a_number(&path, &found, "a number"),
            }
        }
        lines
    }

    /// Numbers and truth values; null becomes "none", which is left away where the base says it already.
    fn values(&mut self, table: &Table, base: Option<&Table>) -> Vec<Line> {
        let mut lines = Vec::new();
        for (ours, (_, node)) in table {
            let says = |word: &str| base.and_then(|b| b.get(ours)).is_some_and(|(_, n)| n.text() == Some(word));
            let is_none = says("none");
            match self.find(node) {
                (path, Value::Number(n)) => lines.push(Line { path, text: format!("{ours} = {n}") }),
                (path, Value::Bool(b)) => lines.push(Line { path, text: format!("{ours} = {b}") }),
                (_, Value::Null) if is_none => {}
                (path, found @ Value::Null) if says("required") => self.not_a_number(&path, &found, "a number"),
                (path, Value::Null) => lines.push(Line { path, text: format!("{ours} = \"none\"") }),
                (path, found) => self.not_a_number(&path, &found, "a number, true, false or null"),
            }
        }
        lines
    }

    fn not_a_number(&mut self, path: &str, found: &Value, wanted: &str) {
        let d = Diagnostic::error("B0406", format!("`{path}` must be {wanted}, and the config says {found}"))
            .help("an absent key counts as null");
        self.error(path, d, format!("{found} here"));
    }

    /// Words of the config that choose among the alternatives of an option; null leaves the base's default.
    fn options(&mut self, table: &Table, base: Option<&Table>) -> Vec<Line> {
        let mut lines = Vec::new();
        for (ours, (_, node)) in table {
            let offered = base.and_then(|b| b.get(ours)).and_then(|(_, n)| n.array()).into_iter().flatten();
            let offered: Vec<&str> = offered.filter_map(|n| n.text()).collect();
            match self.find(node) {
                (_, Value::Null) => {}
                (_, Value::String(word)) if offered.first() == Some(&word.as_str()) => {}
                (path, Value::String(word)) if offered.contains(&word.as_str()) => {
                    lines.push(Line { path, text: format!("{ours} = [{}]", quoted(&word)) });
                }
                (path, found) => {
                    let d = Diagnostic::error(
                        "B0410",
                        format!("`{path}` must be {}, and the config says {found}", offered.join(" or ")),
                    )
                    .help(format!("the base spec computes these; write an arm for another one in a spec of your own, under match options.{ours}"));
                    self.error(&path, d, format!("{found} here"));
                }
            }
        }
        lines
    }

    /// Lists of kinds, perhaps with a filter `| strip('suffix')`; without a list the base's rule stays.
    fn schedule(&mut self, table: &Table) -> Vec<Line> {
        let mut lines = Vec::new();
        for (ours, (_, node)) in table {
            let rule = node.text().unwrap_or("");
            let (path, filter) = rule.split_once('|').map_or((rule, ""), |(a, b)| (a, b));
            let path = path.trim().to_owned();
            let suffix =
                filter.trim().strip_prefix("strip('").and_then(|f| f.strip_suffix("')")).unwrap_or("").to_owned();
            match self.get(&path) {
                Value::Null => {}
                Value::Array(items) if items.iter().all(Value::is_string) => {
                    let kinds: Vec<String> = items
                        .iter()
                        .filter_map(Value::as_str)
                        .map(|k| quoted(k.strip_suffix(suffix.as_str()).unwrap_or(k)))
                        .collect();
                    lines.push(Line { path, text: format!("{ours} = [{}]", kinds.join(", ")) });
                }
                found => {
                    let d = Diagnostic::error("B0407", format!("`{path}` must be a list of names, one per layer"))
                        .help("write null to take the rule of the base spec");
                    self.error(&path, d, format!("{found} here"));
                }
            }
        }
        lines
    }

    /// Layers of the target whose rows are captured; the base says what of them is read.
    fn captures(&mut self, table: &Table, base: Option<&Table>) -> Vec<Line> {
        let mut lines = Vec::new();
        for (ours, (_, node)) in table {
            let path = node.text().unwrap_or("").to_owned();
            let of = base.and_then(|b| b.get(ours)).and_then(|(_, n)| n.table()?.get("of")?.1.text().map(quoted));
            match (self.get(&path), of) {
                (Value::Array(items), Some(of)) if !items.is_empty() && items.iter().all(Value::is_u64) => {
                    let layers: Vec<String> = items.iter().map(Value::to_string).collect();
                    let text = format!("{ours} = {{ of = {of}, layers = [{}] }}", layers.join(", "));
                    lines.push(Line { path, text });
                }
                (found, _) => {
                    let d = Diagnostic::error("B0408", format!("`{path}` must be a list of the target's layers"))
                        .help("a drafter's config says which layers it was trained on");
                    self.error(&path, d, format!("{found} here"));
                }
            }
        }
        lines
    }

    fn runtime(&mut self, table: &Table) -> Vec<Line> {
        let mut lines = Vec::new();
        for (ours, (_, node)) in table {
            let path = node.text().unwrap_or("").to_owned();
            match self.get(&path) {
                Value::Null => {}
                found @ Value::Number(_) => lines.push(Line { path, text: format!("{ours} = {found}") }),
                Value::Array(items) if items.iter().all(Value::is_u64) => {
                    let ids: Vec<String> = items.iter().map(Value::to_string).collect();
                    lines.push(Line { path, text: format!("{ours} = [{}]", ids.join(", ")) });
                }
                found => {
                    let d =
                        Diagnostic::error("B0408", format!("`{path}` must be a number, a list of token ids or null"))
                            .help("write null if the model has none");
                    self.error(&path, d, format!("{found} here"));
                }
            }
        }
        lines
    }

    /// Refuses every key that nothing used.
    fn unknown_keys(&mut self) {
        let mut leaves = Vec::new();
        collect_leaves(&self.json, "", &mut leaves);
        for leaf in leaves {
            let covered = self
                .used
                .iter()
                .any(|u| leaf == *u || leaf.strip_prefix(u.as_str()).is_some_and(|r| r.starts_with('.')));
            if !covered {
                let found = leaf.split('.').try_fold(&self.json, |at, key| at.get(key)).cloned().unwrap_or(Value::Null);
                if found.is_null() {
                    continue;
                }
                let known: Vec<String> = self.used.iter().cloned().collect();
                let d = Diagnostic::error(
                    "B0409",
                    format!("the config says `{leaf}`, and the base spec has no meaning for it"),
                )
                .nearest(&leaf, known.iter().map(String::as_str));
                self.error(&leaf, d, format!("{found}"));
            }
        }
    }
}

fn collect_leaves(value: &Value, path: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, inner) in map {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                collect_leaves(inner, &path, out);
            }
        }
        _ if path.is_empty() => {}
        _ => out.push(path.to_owned()),
    }
}

/// A TOML basic string.
pub(crate) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
