//! The front end: a spec file becomes an [`ir::Model`], or a list of diagnostics that point into the file.
//!
//! A spec is TOML facts plus block text. It is read in steps, each a file here:
//! `document` (TOML with spans) → `merge` (`extends`) → `facts` (dims, weights, schedule) →
//! `lexer`, `parser` (block text) → `elab` (names, axes, types, rounding points) → the model level.
//! The front end reads no weight and knows no device; what a target decides (the activation dtype,
//! the alternative of an option) arrives as a [`Choices`].

mod ast;
mod codes;
mod config;
mod diag;
mod disk;
mod document;
mod elab;
mod facts;
mod import;
mod lexer;
mod library;
mod merge;
mod names;
mod own_lines;
mod parser;
mod quantised;
mod recipe;
mod rules;
mod source;
mod stop;
mod target;

pub use codes::{CODES, Code, explain};
pub use diag::{Diagnostic, Fix, Label, Severity, has_errors, is_plain, nearest, render, render_json};
pub use import::{Imported, import};
pub use library::Library;
pub use source::Sources;

use indexmap::IndexMap;
use ir::{DType, Model, StoredFormat};
use std::collections::BTreeMap;
use std::path::Path;

/// What a target decides about a spec.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    /// Replaces the spec's dtype of untyped names.
    pub act: Option<DType>,
    /// Option → alternatives, the preferred first. The first one that the spec offers is taken.
    pub options: BTreeMap<String, Vec<String>>,
    /// Replaces numbers of `[dims]`, after bases are merged: how validation makes a small model of the same text.
    /// Names that `[dims]` does not have change nothing; lengths of new factors follow from the others.
    pub dims: BTreeMap<String, u64>,
    /// The format of the checkpoint where the spec does not say what is stored.
    pub assume: Option<StoredFormat>,
    /// Whether that also holds where the spec says that nothing is, because weights are converted while they are loaded.
    pub convert: bool,
    /// Keeps only these layers, ascending, of the schedule that the spec states for all of them.
    pub layers: Option<Vec<usize>>,
    /// The target of a drafter's spec, in place of the one that the spec names.
    pub target: Option<Box<Model>>,
    /// Rows of a drafter's block, for `serve.draft_tokens`.
    pub draft_tokens: Option<u64>,
}

/// More findings than this help nobody; the rest is counted.
const MOST_SHOWN: usize = 40;

/// A spec that was read: the model if there was no error, and everything that is to be said about it.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The model level, absent if a diagnostic is an error.
    pub model: Option<Model>,
    /// Alternatives of each option, the default first; empty without a model.
    pub offered: IndexMap<String, Vec<String>>,
    /// Values that nothing gives yet (B0307); 0 stands in their place.
    pub missing: Vec<String>,
    /// Errors, then warnings, each in the order of the files.
    pub diagnostics: Vec<Diagnostic>,
    /// How many more there are than are listed.
    pub hidden: usize,
    /// The files that spans point into.
    pub sources: Sources,
}

/// Reads a spec file, or a directory that holds a `config.json`.
pub fn check_path(path: &Path, library: &Library, choices: &Choices) -> Checked {
    let mut sources = Sources::default();
    let mut diagnostics = Vec::new();
    let model = read(path, library, choices, &mut sources, &mut diagnostics);
    checked(model, diagnostics, sources)
}

/// Reads a spec from text, as if it were a file of that name.
pub fn check_text(name: &str, text: &str, library: &Library, choices: &Choices) -> Checked {
    let mut sources = Sources::default();
    let mut diagnostics = Vec::new();
    let input = merge::Input::text(name, text);
    let model = from_input(input, library, choices, &mut sources, &mut diagnostics);
    checked(model, diagnostics, sources)
}

fn checked(read: Option<Read>, mut diagnostics: Vec<Diagnostic>, sources: Sources) -> Checked {
    diagnostics.iter_mut().for_each(Diagnostic::point_at_the_users_file);
    let place = |d: &Diagnostic| d.primary.as_ref().map(|l| l.span);
    let mut told = std::collections::HashSet::new();
    diagnostics.retain(|d| told.insert((d.code, place(d), place(d).is_none().then(|| d.message.clone()))));
    diagnostics.sort_by_key(|d| (d.severity, place(d).map(|s| (s.file, s.start))));
    let read = read.filter(|_| !has_errors(&diagnostics));
    let (model, offered, missing) =
        read.map_or_else(Default::default, |read| (Some(read.model), read.offered, read.missing));
    let hidden = diagnostics.len().saturating_sub(MOST_SHOWN);
    diagnostics.truncate(MOST_SHOWN);
    Checked { model, offered, missing, diagnostics, hidden, sources }
}

fn read(
    path: &Path,
    library: &Library,
    choices: &Choices,
    sources: &mut Sources,
    out: &mut Vec<Diagnostic>,
) -> Option<Read> {
    let name = path.display().to_string();
    if path.is_dir() || path.extension().is_some_and(|e| e == "json") {
        let config = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
        let made = import(&config, library, sources, out)?;
        let input = merge::Input { name, text: made.toml, folder: None, origins: Some(made.origins) };
        return from_input(input, library, choices, sources, out);
    }
    let text = match source::read_text(path) {
        Ok(text) => text,
        Err(diagnostic) => {
            out.push(*diagnostic);
            return None;
        }
    };
    let input = merge::Input { name, text, folder: path.parent().map(Path::to_path_buf), origins: None };
    from_input(input, library, choices, sources, out)
}

fn from_input(
    input: merge::Input,
    library: &Library,
    choices: &Choices,
    sources: &mut Sources,
    out: &mut Vec<Diagnostic>,
) -> Option<Read> {
    let folder = input.folder.clone();
    let merged = merge::load(input, library, sources, out)?;
    from_merged(&merged, folder.as_deref(), library, choices, sources, out)
}

fn from_merged(
    merged: &merge::Merged,
    folder: Option<&Path>,
    library: &Library,
    choices: &Choices,
    sources: &mut Sources,
    out: &mut Vec<Diagnostic>,
) -> Option<Read> {
    let target = target::read(merged, folder, library, choices, out).ok()?;
    let program = parser::program(merged, library, sources, out);
    let arms = ast::arms_by_column(&program);
    let facts = facts::resolve(merged, arms, choices, (library, target.as_ref()), sources, out);
    names::check(merged, &program, out);
    // Types need facts; names do not.
    let read = facts.and_then(|facts| {
        let offered = facts.option_spans.iter().map(|(name, (_, words))| (name.clone(), words.clone())).collect();
        let missing = facts.missing.iter().map(|(name, _)| name.clone()).collect();
        Some(Read { model: elab::elaborate(facts, &program, out)?, offered, missing })
    });
    own_lines::tell(merged, sources, out);
    read
}

/// The facts of a text, if it has no errors; what is wrong with it is told when it is read for good.
fn facts_of(input: merge::Input, library: &Library) -> Option<ir::Facts> {
    let (mut sources, mut out) = (Sources::default(), Vec::new());
    let merged = merge::load(input, library, &mut sources, &mut out)?;
    let choices = Choices::default();
    let target = target::read(&merged, None, library, &choices, &mut out).ok()?;
    let program = parser::program(&merged, library, &mut sources, &mut out);
    let arms = ast::arms_by_column(&program);
    let read = facts::resolve(&merged, arms, &choices, (library, target.as_ref()), &sources, &mut out);
    read.map(|read| read.facts)
}

/// A spec without errors.
struct Read {
    model: Model,
    offered: IndexMap<String, Vec<String>>,
    missing: Vec<String>,
}
