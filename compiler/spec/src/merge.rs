//! `extends`: a spec laid over its base, table by table.
//!
//! Tables merge by key, so a derived spec states only what differs. One level down (one weight, one
//! cache kind, one list) the derived value replaces the base's. Functions of the block text replace
//! functions of the same name.

use crate::config::Origins;
use crate::document::{Kind, Node, Table, parse};
use crate::source::read_text;
use crate::{Diagnostic, Library, Sources};
use ir::Span;
use std::path::{Path, PathBuf};

/// Chains of `extends` longer than this are taken for a cycle.
const MAX_CHAIN: usize = 8;

/// Every table a spec may have, and the tables inside that merge by key as well.
const TABLES: [(&str, &[&str]); 17] = [
    ("model", &[]),
    ("dims", &[]),
    ("axes", &[]),
    ("values", &[]),
    ("options", &[]),
    ("schedule", &[]),
    ("kv", &[]),
    ("shard", &[]),
    ("weights", &[]),
    ("layer", &["weights"]),
    ("stored", &[]),
    ("import", &["dims", "values", "options", "schedule", "runtime", "capture"]),
    ("require", &[]),
    ("runtime", &[]),
    ("lints", &[]),
    ("blocks", &[]),
    ("capture", &[]),
];

/// Block text and where it starts in its file.
#[derive(Clone, Debug)]
pub(crate) struct BlockText {
    pub file: u32,
    pub start: u32,
    pub end: u32,
}

/// A spec with its bases merged in.
#[derive(Debug)]
pub(crate) struct Merged {
    pub root: Table,
    /// Block texts, base first.
    pub blocks: Vec<BlockText>,
    /// The whole user file, for errors about what is absent.
    pub whole: Span,
    /// Whether the spec extends another.
    pub derived: bool,
}

impl Merged {
    /// A top-level table; an absent one is empty.
    pub fn table(&self, name: &str) -> Option<&Table> {
        self.root.get(name).and_then(|(_, n)| n.table())
    }

    /// Where a top-level table stands, or the file's start.
    pub fn table_span(&self, name: &str) -> Span {
        self.root.get(name).map_or(self.whole, |(key, _)| *key)
    }
}

/// A text to read as a spec.
pub(crate) struct Input {
    /// Name of the file, for errors.
    pub name: String,
    pub text: String,
    /// Where its bases may lie.
    pub folder: Option<PathBuf>,
    /// If the text was made from another file: which places it comes from.
    pub origins: Option<Origins>,
}

impl Input {
    /// A text that stands alone.
    pub fn text(name: &str, text: &str) -> Self {
        Input { name: name.to_owned(), text: text.to_owned(), folder: None, origins: None }
    }
}

/// Reads a spec and its chain of bases.
pub(crate) fn load(
    input: Input,
    library: &Library,
    sources: &mut Sources,
    out: &mut Vec<Diagnostic>,
) -> Option<Merged> {
    let mut chain: Vec<(u32, Node)> = Vec::new();
    let mut next = Some(input);
    while let Some(input) = next.take() {
        let (file, node) = match &input.origins {
            Some(origins) => {
                let mut node = parse(origins.file, &input.text, out)?;
                origins.map(&mut node);
                (origins.file, node)
            }
            None => {
                let file = sources.add(input.name, input.text);
                (file, parse(file, sources.text(file), out)?)
            }
        };
        let base = node.table().and_then(|t| t.get("extends")).map(|(_, n)| n.clone());
        // Without its base nothing of a derived spec has a meaning, and that is one error.
        if base.is_none() && misspelt_extends(&node, out) {
            return None;
        }
        chain.push((file, node));
        if let Some(base) = base {
            if chain.len() >= MAX_CHAIN {
                out.push(
                    Diagnostic::error("B0006", format!("`extends` was followed {MAX_CHAIN} times without an end"))
                        .at(base.span, "this base extends another, and so on")
                        .help("a base may not lead back to a spec that extends it"),
                );
                return None;
            }
            next = Some(base_text(&base, input.folder.as_deref(), library, out)?);
        }
    }
    let whole = Span { file: chain[0].0, start: 0, end: 0 };
    let mut merged = Merged { root: Table::new(), blocks: Vec::new(), whole, derived: chain.len() > 1 };
    for (file, node) in chain.iter().rev() {
        overlay(&mut merged, *file, node, sources, out);
    }
    Some(merged)
}

/// Whether a key that holds a text is all but `extends`, which is told.
fn misspelt_extends(node: &Node, out: &mut Vec<Diagnostic>) -> bool {
    let known = || TABLES.iter().map(|(n, _)| *n).chain(["extends"]);
    for (key, (span, value)) in node.table().into_iter().flatten() {
        if value.text().is_some() && crate::nearest(key, known()) == Some("extends") {
            let d = Diagnostic::error("B0007", format!("a spec has no key `{key}`"));
            out.push(d.at(*span, "unknown").nearest(key, known()));
            return true;
        }
    }
    false
}

/// The text of a base.
fn base_text(base: &Node, folder: Option<&Path>, library: &Library, out: &mut Vec<Diagnostic>) -> Option<Input> {
    named_text(("B0005", "base", "extends"), base, folder, library, out)
}

/// The text of another spec, under the code, word and key of errors about it: a file beside the spec if there is one,
/// else an embedded spec.
pub(crate) fn named_text(
    (code, word, key): (&'static str, &str, &str),
    base: &Node,
    folder: Option<&Path>,
    library: &Library,
    out: &mut Vec<Diagnostic>,
) -> Option<Input> {
    let Some(wanted) = base.text() else {
        out.push(
            Diagnostic::error(code, format!("`{key}` names one {word} spec"))
                .at(base.span, format!("this is {}", base.what()))
                .help(format!("write {key} = \"name\" or {key} = \"path/to/{word}.toml\"")),
        );
        return None;
    };
    let file = if wanted.ends_with(".toml") { wanted.to_owned() } else { format!("{wanted}.toml") };
    if let Some(path) = folder.map(|f| f.join(&file)).filter(|p| p.is_file()) {
        return match read_text(&path) {
            Ok(text) => Some(Input {
                name: path.display().to_string(),
                text,
                folder: path.parent().map(PathBuf::from),
                origins: None,
            }),
            Err(d) => {
                out.push((*d).at(base.span, "named here"));
                None
            }
        };
    }
    let name = file.strip_suffix(".toml").unwrap_or(wanted);
    if let Some(text) = library.spec(name) {
        return Some(Input::text(&format!("{file} (built in)"), text));
    }
    out.push(
        Diagnostic::error(code, format!("the {word} `{wanted}` is neither a file beside this spec nor built in"))
            .at(base.span, "not found")
            .nearest(wanted, library.specs().map(|(n, _)| n)),
    );
    None
}

fn overlay(merged: &mut Merged, file: u32, node: &Node, sources: &Sources, out: &mut Vec<Diagnostic>) {
    let Some(top) = node.table() else { return };
    for (key, (key_span, value)) in top {
        if key == "extends" {
            continue;
        }
        let Some((_, inner)) = TABLES.iter().find(|(name, _)| name == key) else {
            out.push(
                Diagnostic::error("B0007", format!("a spec has no table `{key}`"))
                    .at(*key_span, "unknown")
                    .nearest(key, TABLES.iter().map(|(n, _)| *n)),
            );
            continue;
        };
        let Some(table) = value.table() else {
            out.push(
                Diagnostic::error("B0008", format!("`{key}` is a table"))
                    .at(value.span, format!("this is {}", value.what()))
                    .help(format!("write [{key}] on a line of its own")),
            );
            continue;
        };
        if key == "blocks" {
            blocks(merged, file, table, sources, out);
            continue;
        }
        let (_, slot) = merged.root.entry(key.clone()).or_insert_with(|| (*key_span, empty_table(value.span)));
        merge_into(slot, table, inner);
    }
}

fn empty_table(span: Span) -> Node {
    Node { kind: Kind::Table(Table::new()), span }
}

fn merge_into(slot: &mut Node, from: &Table, merging: &[&str]) {
    let Kind::Table(into) = &mut slot.kind else { return };
    for (key, (span, value)) in from {
        match (value.table(), merging.contains(&key.as_str())) {
            (Some(inner), true) => {
                let (_, deeper) = into.entry(key.clone()).or_insert_with(|| (*span, empty_table(value.span)));
                merge_into(deeper, inner, &[]);
            }
            _ => {
                into.insert(key.clone(), (*span, value.clone()));
            }
        }
    }
}

/// Finds the bytes of the block text, so that its positions are positions of the file.
fn blocks(merged: &mut Merged, file: u32, table: &Table, sources: &Sources, out: &mut Vec<Diagnostic>) {
    for (key, (key_span, value)) in table {
        if key != "text" {
            out.push(
                Diagnostic::error("B0009", format!("[blocks] has no key `{key}`"))
                    .at(*key_span, "unknown")
                    .help("[blocks] holds one key, text = '''…'''"),
            );
            continue;
        }
        let Some(content) = value.text() else {
            out.push(
                Diagnostic::error("B0009", "the block text is a text between ''' and '''")
                    .at(value.span, format!("this is {}", value.what())),
            );
            continue;
        };
        let raw = sources.text(file).get(value.span.start as usize..value.span.end as usize).unwrap_or("");
        let start = ["'''\r\n", "'''\n", "'''"].iter().find(|q| raw.starts_with(*q)).map(|q| q.len());
        let start = start.or_else(|| raw.starts_with('\'').then_some(1));
        let Some(start) = start else {
            out.push(
                Diagnostic::error("B0009", "block text is quoted with ''', where a backslash means itself")
                    .at(Span { end: value.span.start + 3, ..value.span }, "another kind of quote")
                    .help("write text = '''…'''"),
            );
            continue;
        };
        let start = value.span.start + start as u32;
        let quote = if raw.ends_with("'''") { 3 } else { 1 };
        let end = value.span.end - quote;
        debug_assert!(sources.text(file).get(start as usize..end as usize).is_some_and(|t| t.len() >= content.len()));
        merged.blocks.push(BlockText { file, start, end });
    }
}
