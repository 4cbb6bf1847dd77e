//! A model and its drafter, compiled with each other.
//!
//! ```text
//! target  forward ─► captured rows ─┐ one arena: captured rows stand at its start
//! drafter context ◄─────────────────┘ one cache: draft rows lie in the target's pages, if their rows have one shape
//! drafter draft   one program for each length of block
//! ```
//!
//! The two stay two models, each with facts, graphs and a plan of its own. What binds them is stated in their facts before
//! they are lowered: the target exports rows and leaves layer slots free in its pages, the drafter's kinds live there.

use crate::error::pass_error;
use crate::{Compile, Note, PassError, Stages};
use ir::{KvKind, Mesh, Model, RowsPerSequence};
use targets::{BucketRule, Target};

/// Every level of a model and of its drafter.
#[derive(Clone, Debug, PartialEq)]
pub struct Paired {
    /// The model.
    pub target: Stages,
    /// The drafter, once for each length of block, ascending.
    pub drafter: Vec<Stages>,
    /// What could not be done as the drafter's spec wishes, and why; the result is right without it.
    pub notes: Vec<Note>,
    /// The target with the buckets of blocks.
    pub machine: Target,
}

/// Compiles a model with its drafter, of which `drafter` has one for each length of block, ascending.
pub fn pair(mut model: Model, mut drafter: Vec<Model>, compile: &Compile<'_>) -> Result<Paired, PassError> {
    let mut notes = Vec::new();
    if let Some(first) = drafter.first().cloned() {
        model.facts.exports = first.facts.captures.clone();
        for kind in model.facts.kv.iter_mut() {
            kind.shared_slots = 0;
        }
        let kinds = first.facts.kv.clone();
        for (place, kind) in kinds.iter().enumerate() {
            own_name(kind, &model)?;
            match home(kind, &model, &first, compile.mesh) {
                Ok(host) => {
                    let before = model.facts.kv[host].layers.len() as u64;
                    model.facts.kv[host].shared_slots = kind.layers.len() as u64;
                    drafter.iter_mut().for_each(|d| d.facts.kv[place].shared_slots = before);
                }
                Err(why) => {
                    notes.push(Note { pass: "pair", entry: format!("kv.{}", kind.name), message: why });
                    drafter.iter_mut().for_each(|d| {
                        d.facts.kv[place].lives_in = None;
                        d.facts.kv[place].shared_slots = 0;
                    });
                }
            }
        }
    }
    let entry = model.facts.exports.first().map(|e| e.entry.clone());
    let blocks: Vec<u64> = drafter.iter().filter_map(block).collect();
    let machine = with_blocks(compile.target, entry.as_deref(), &blocks);
    let compile = Compile { target: &machine, ..*compile };
    let target = Stages::compile(model, &compile)?;
    let drafter = drafter.into_iter().map(|d| Stages::compile(d, &compile)).collect::<Result<Vec<_>, _>>()?;
    Ok(Paired { target, drafter, notes, machine })
}

/// Which kind of the model a drafter's kind lives in, by its place; or why it cannot.
fn home(kind: &KvKind, model: &Model, drafter: &Model, mesh: &Mesh) -> Result<usize, String> {
    let wish = kind.lives_in.as_ref().ok_or("the spec does not say in whose pages it lives")?;
    let found = model.facts.kv.iter().position(|k| k.name == *wish && k.shared_slots == 0);
    let place = found.ok_or_else(|| format!("the target has no cache kind `{wish}` with room for it"))?;
    let host = &model.facts.kv[place];
    let shape = |k: &KvKind| (KvKind::row_shape(&k.k), KvKind::row_shape(&k.v));
    if shape(host) != shape(kind) {
        let text = |k: &KvKind| match KvKind::row_shape(&k.k) {
            Some((heads, elements)) => format!("{heads} heads of {elements}"),
            None => "rows of unknown length".to_owned(),
        };
        return Err(format!("it has {}, `{wish}` of the target {}; it has pages of its own", text(kind), text(host)));
    }
    if host.window.is_some_and(|host| kind.window.is_none_or(|own| own > host)) {
        let text = |w: Option<u64>| w.map_or_else(|| "all".to_owned(), |w| w.to_string());
        let (own, other) = (text(kind.window), text(host.window));
        return Err(format!("it sees {own} positions, `{wish}` of the target keeps {other}; it has pages of its own"));
    }
    if model.facts.act != drafter.facts.act {
        let (own, other) = (drafter.facts.act, model.facts.act);
        return Err(format!("its rows are {own}, the target's {other}; it has pages of its own"));
    }
    let parts = |facts: &ir::Facts, k: &KvKind| {
        let over = k.k.first().and_then(|axis| facts.shard.get(&axis.name));
        over.map_or(1, |over| mesh.parts(&mesh.present(over)))
    };
    if parts(&model.facts, host) != parts(&drafter.facts, kind) {
        return Err("its heads lie on other ranks than the target's; it has pages of its own".to_owned());
    }
    Ok(place)
}

/// A kind beside those of the target needs a name that none of them has.
fn own_name(kind: &KvKind, model: &Model) -> Result<(), PassError> {
    if model.facts.kv.iter().all(|k| k.name != kind.name) {
        return Ok(());
    }
    let message = format!("the drafter's cache kind `{}` has the name of one of the target's", kind.name);
    Err(pass_error("P0307", message, "give it another name in [kv] of the drafter's spec".to_owned()))
}

/// Rows of a block: those of the entry that takes a list of them for each sequence.
fn block(drafter: &Model) -> Option<u64> {
    drafter.entries.iter().filter_map(|e| ir::block_rows(&e.graph)).max()
}

/// The target with buckets in which every sequence brings a block: one beside each in which it brings one row.
fn with_blocks(target: &Target, entry: Option<&str>, blocks: &[u64]) -> Target {
    let mut target = target.clone();
    let Some(entry) = entry else { return target };
    let single = target
        .buckets
        .iter()
        .filter(|rule| rule.rows == RowsPerSequence::One && rule.entry.as_deref().is_none_or(|of| of == entry));
    let of = |rule: &BucketRule, block: u64| BucketRule {
        entry: Some(entry.to_owned()),
        rows: RowsPerSequence::Block(block),
        tokens: rule.tokens.saturating_mul(block),
        sequences: rule.sequences,
        wanted: rule.tokens.saturating_mul(block),
    };
    let added: Vec<BucketRule> = single.flat_map(|rule| blocks.iter().map(|b| of(rule, *b))).collect();
    target.buckets.extend(added);
    target
}
