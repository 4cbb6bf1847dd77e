//! TOML facts to [`ir::Facts`]: dims, product axes, values, options, schedule, cache kinds, weights.

mod dims;
mod kv;
mod require;
mod schedule;
mod stored;
mod target;
mod values;
mod weights;

use crate::document::{Kind, Node, Table};
use crate::merge::Merged;
use crate::{Choices, Diagnostic, Library, Sources};
use indexmap::IndexMap;
use ir::{Facts, Model, Span};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Longest axis and largest weight a spec may have; far above any model, far below an overflow.
const MAX_DIM: i64 = 1 << 40;
const MAX_LAYERS: u64 = 4096;
const MAX_ELEMENTS: u64 = 1 << 60;

/// A named number of `[values]`, or `"none"`, or a truth value, or a group of numbers.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Number(f64),
    None,
    Truth(bool),
    Group(IndexMap<String, f64>),
}

impl Value {
    /// The arm that a `match` on it takes, and what a condition on it compares with.
    pub(crate) fn arm(&self) -> &'static str {
        match self {
            Value::Number(_) => "number",
            Value::None => "none",
            Value::Truth(true) => "true",
            Value::Truth(false) => "false",
            Value::Group(_) => "group",
        }
    }
}

/// Everything TOML says, with places for errors about it.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub facts: Facts,
    pub values: IndexMap<String, (Span, Value)>,
    pub dim_spans: HashMap<String, Span>,
    /// Options: name → (place, alternatives).
    pub option_spans: IndexMap<String, (Span, Vec<String>)>,
    /// Where schedule columns and cache kinds are declared.
    pub column_spans: HashMap<String, Span>,
    pub kv_spans: HashMap<String, Span>,
    /// Entries that the tables themselves name: table and name.
    pub named_elsewhere: Vec<(&'static str, String)>,
    /// Whether the lint about narrowing names is on.
    pub lint_narrowing: bool,
    /// Axes that are the sum of two parts.
    pub sums: target::Sums,
    /// The target that the spec drafts for.
    pub target: Option<Facts>,
    /// Values that nothing gives yet, with their places.
    pub missing: Vec<(String, Span)>,
    /// End of the user's file list, for "entry is missing".
    pub whole: Span,
}

/// Reads the tables of a merged spec.
///
/// `text_arms` are the kinds that the block text has arms for, by column.
pub(crate) fn resolve(
    merged: &Merged,
    text_arms: HashMap<String, BTreeSet<String>>,
    choices: &Choices,
    (library, target): (&Library, Option<&Model>),
    sources: &Sources,
    out: &mut Vec<Diagnostic>,
) -> Option<Resolved> {
    let before = out.len();
    let mut reader = Reader::new(merged, text_arms, choices, target, sources, out);
    let (name, act) = reader.model(choices);
    let (mut dims, products) = reader.dims(choices);
    let sums = reader.sums(&mut dims);
    let mut values = reader.values();
    reader.arms = values.iter().map(|(name, (_, value))| (name.clone(), value.arm())).collect();
    let (options, option_spans) = reader.options(choices);
    let mut schedule = reader.schedule(&dims);
    let whole = schedule.clone();
    reader.keep_layers(choices, &mut dims, &mut schedule);
    let kv = reader.kv(&dims, &schedule, &values);
    let weights = reader.weights(&dims, act, &schedule);
    let stored = reader.stored(&whole, choices, library);
    let shard = reader.shard(&dims);
    let captures = reader.captures();
    let runtime = reader.runtime();
    let lint_narrowing = reader.lints();
    reader.require(&dims, &mut values);
    reader.imported();
    let named_elsewhere = std::mem::take(&mut reader.named_elsewhere);
    let missing = std::mem::take(&mut reader.missing);
    let spans = |table: &str| -> HashMap<String, Span> {
        merged.table(table).into_iter().flatten().map(|(key, (span, _))| (key.clone(), *span)).collect()
    };
    let (column_spans, kv_spans) = (spans("schedule"), spans("kv"));
    let dim_spans = std::mem::take(&mut reader.dim_spans);
    if out.len() > before {
        return None;
    }
    let files = sources.names();
    let facts = Facts {
        name,
        act,
        dims,
        products,
        shard,
        options,
        schedule,
        weights,
        kv,
        stored,
        captures,
        exports: Vec::new(),
        runtime,
        files,
    };
    Some(Resolved {
        facts,
        values,
        dim_spans,
        option_spans,
        column_spans,
        kv_spans,
        named_elsewhere,
        lint_narrowing,
        sums,
        target: target.map(|t| t.facts.clone()),
        missing,
        whole: merged.whole,
    })
}

struct Reader<'a> {
    merged: &'a Merged,
    sources: &'a Sources,
    out: &'a mut Vec<Diagnostic>,
    /// Dims and factors by name, for rules and slices.
    numbers: HashMap<String, f64>,
    /// What `match` would choose for each value.
    arms: HashMap<String, &'static str>,
    /// Kinds that the text has arms for, by column.
    text_arms: HashMap<String, BTreeSet<String>>,
    dim_spans: HashMap<String, Span>,
    /// Names of dims, factors and values whose entry was refused: what uses them says nothing new.
    told: HashSet<String>,
    prefix_span: Option<Span>,
    /// Columns whose rule or list was refused: conditions on them say nothing new.
    refused_columns: Vec<String>,
    named_elsewhere: Vec<(&'static str, String)>,
    /// The target that the spec drafts for.
    target: Option<&'a Model>,
    /// Rows of a block, if somebody chose.
    draft_tokens: Option<u64>,
    /// Whether lengths were chosen, to make the model small.
    is_small: bool,
    missing: Vec<(String, Span)>,
}

impl<'a> Reader<'a> {
    fn new(
        merged: &'a Merged,
        text_arms: HashMap<String, BTreeSet<String>>,
        choices: &Choices,
        target: Option<&'a Model>,
        sources: &'a Sources,
        out: &'a mut Vec<Diagnostic>,
    ) -> Self {
        Reader {
            merged,
            sources,
            out,
            numbers: HashMap::new(),
            arms: HashMap::new(),
            text_arms,
            dim_spans: HashMap::new(),
            told: HashSet::new(),
            prefix_span: None,
            refused_columns: Vec::new(),
            named_elsewhere: Vec::new(),
            target,
            draft_tokens: choices.draft_tokens,
            is_small: !choices.dims.is_empty(),
            missing: Vec::new(),
        }
    }

    fn table(&self, name: &str) -> Option<&'a Table> {
        self.merged.table(name)
    }

    fn error(&mut self, d: Diagnostic) {
        self.out.push(d);
    }

    fn wrong(&mut self, node: &Node, wanted: &str) {
        if matches!(node.kind, Kind::Bad) {
            return;
        }
        let d = Diagnostic::error("B0010", format!("{wanted} is expected"));
        self.error(d.at(node.span, format!("this is {}", node.what())).help(format!("write {wanted} here")));
    }

    /// Where a word stands inside a text, so that an error points at it alone.
    fn word(&self, node: &Node, word: &str) -> Span {
        let range = node.span.start as usize..node.span.end as usize;
        let raw = self.sources.text(node.span.file).get(range).unwrap_or("");
        let part = |c: char| c.is_alphanumeric() || c == '_';
        let whole = |at: &usize| {
            let (before, after) = (raw.get(..*at).unwrap_or(""), raw.get(at + word.len()..).unwrap_or(""));
            !before.ends_with(part) && !after.starts_with(part)
        };
        match raw.match_indices(word).map(|(at, _)| at).find(whole) {
            Some(at) if !word.is_empty() => {
                let start = node.span.start + at as u32;
                Span { start, end: start + word.len() as u32, ..node.span }
            }
            _ => node.span,
        }
    }

    fn unknown_key(&mut self, table: &str, key: &str, span: Span, known: &[&str]) {
        let d = Diagnostic::error("B0011", format!("[{table}] has no key `{key}`"));
        self.error(d.at(span, "unknown").nearest(key, known.iter().copied()));
    }
}
