//! Which matrices are quantised, and how products with them run.

use crate::error::pass_error;
use crate::{Compile, PassError};
use indexmap::IndexMap;
use ir::{Extent, Facts, Graph, Module, Op, Scope, Stored, StoredFormat, StoredInputs, ValueId, Weight, WeightRef};
use targets::{BF16_TO_FP8, FormatUse};

/// Cached rows in e4m3, as a relaxation.
pub(super) const CACHED: &str = "kv-e4m3";

/// A matrix that is quantised somewhere.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Matrix {
    /// One for the model or one per layer.
    pub(super) scope: Scope,
    /// Axes that products contract.
    pub(super) contract: Vec<String>,
    /// Whether rows pick a slice of it.
    pub(super) picked: bool,
    /// Layers that keep it quantised; empty for a weight of the model.
    pub(super) layers: Vec<usize>,
}

/// What is quantised how.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    /// What the checkpoint keeps.
    pub(super) stored: Stored,
    /// Whether inputs are quantised too.
    pub(super) native: bool,
    /// Whether the loader may make codes of plain weights.
    pub(super) converts: bool,
    /// Matrices by scope and name.
    pub(super) matrices: IndexMap<(Scope, String), Matrix>,
}

impl Choice {
    /// The matrix behind a reference, if the layers at hand keep it quantised; all of a class do, or none.
    pub(super) fn matrix(&self, reference: &WeightRef, layers: &[usize]) -> Option<(&str, &Matrix)> {
        let key = match reference {
            WeightRef::Model(name) => (Scope::Model, name.clone()),
            WeightRef::Layer(name) => (Scope::Layer, name.clone()),
            WeightRef::Next { .. }
            | WeightRef::FirstLayer(_)
            | WeightRef::OfLayer { .. }
            | WeightRef::Packed { .. } => return None,
        };
        let (key, matrix) = self.matrices.get_key_value(&key)?;
        let here = matrix.scope == Scope::Model || layers.first().is_some_and(|l| matrix.layers.contains(l));
        here.then_some((key.1.as_str(), matrix))
    }

    /// Names of the relaxations that the choice amounts to.
    pub(super) fn names(&self) -> Vec<String> {
        if self.matrices.is_empty() {
            return Vec::new();
        }
        let format = self.stored.format.word();
        let mut names = vec![if self.native { format.to_owned() } else { format!("{format}-weights") }];
        if self.converts {
            names.push(BF16_TO_FP8.to_owned());
        }
        names
    }
}

/// What the target does with what the spec says is stored; `None` where nothing is.
pub(super) fn decide(module: &Module, compile: &Compile<'_>) -> Result<Option<Choice>, PassError> {
    let Some(stored) = &module.facts.stored else { return Ok(None) };
    let matrices = matrices(module, stored);
    if matrices.is_empty() {
        return Ok(None);
    }
    let (word, target) = (stored.format.word(), &compile.target.name);
    let error = |code, message: String, help: &str| {
        Err(PassError { span: stored.span, ..pass_error(code, message, help.to_owned()) })
    };
    let how = compile.target.formats.of(stored.format);
    if how == FormatUse::Refused {
        let message =
            format!("the checkpoint keeps {} matrices in {word}, the target {target} takes none", matrices.len());
        return error("P0701", message, "use a target whose `[formats]` has the format, as `beamc targets` lists them");
    }
    let native = how == FormatUse::Native && stored.inputs != StoredInputs::Plain;
    let choice = Choice {
        stored: stored.clone(),
        native,
        // What is stored is what the model is; making other numbers of it while loading is not exact.
        converts: !compile.exact && stored.format == StoredFormat::Fp8 && compile.target.formats.converts(BF16_TO_FP8),
        matrices,
    };
    whole_blocks(&module.facts, &choice)?;
    Ok(Some(choice))
}

/// Matrices that the checkpoint may keep quantised and that products alone read.
fn matrices(module: &Module, stored: &Stored) -> IndexMap<(Scope, String), Matrix> {
    let facts = &module.facts;
    let mut found = IndexMap::new();
    for weight in &facts.weights {
        let layers: Vec<usize> = match weight.scope {
            Scope::Model => Vec::new(),
            Scope::Layer => {
                (0..facts.layers()).filter(|l| facts.layer_has(*l, weight) && stored.holds(weight, Some(*l))).collect()
            }
        };
        let held = if weight.scope == Scope::Model { stored.holds(weight, None) } else { !layers.is_empty() };
        if let (true, Some((contract, picked))) = (held, products_of(module, weight)) {
            let matrix = Matrix { scope: weight.scope, contract, picked, layers };
            found.insert((weight.scope, weight.name.clone()), matrix);
        }
    }
    found
}

/// The axes that products contract a weight along and whether they pick slices of it; `None` if somebody else reads it, or
/// if the axes are not those of its rows on disk.
fn products_of(module: &Module, weight: &Weight) -> Option<(Vec<String>, bool)> {
    let mut known = None;
    for (_, graph) in module.entries.iter().flat_map(|e| e.graphs()) {
        for id in graph.ids() {
            let Op::Weight(reference) = &graph.node(id).op else { continue };
            let reads = reference.owners().iter().any(|owner| match owner {
                WeightRef::Model(name) => weight.scope == Scope::Model && *name == weight.name,
                WeightRef::Layer(name) => weight.scope == Scope::Layer && *name == weight.name,
                _ => false,
            });
            if !reads {
                continue;
            }
            let direct = matches!(reference, WeightRef::Model(_) | WeightRef::Layer(_));
            for user in graph.users(id) {
                let use_ = product(graph, user, id).filter(|_| direct)?;
                if known.as_ref().is_some_and(|k| *k != use_) {
                    return None;
                }
                known = Some(use_);
            }
        }
    }
    let (contract, _) = known.as_ref()?;
    let row = weight.axes.last()?;
    (row.iter().map(|a| &a.name).eq(contract)).then_some(known).flatten()
}

/// What a product does with its right operand, if the value is nothing but that.
fn product(graph: &Graph, user: ValueId, weight: ValueId) -> Option<(Vec<String>, bool)> {
    let Op::Linear { contract, .. } = &graph.node(user).op else { return None };
    let operands = graph.operands(user);
    let once = operands.iter().filter(|o| **o == weight).count() == 1;
    (once && operands.get(1) == Some(&weight)).then(|| (contract.clone(), operands.len() == 3))
}

/// Rows of nvfp4 are whole blocks.
fn whole_blocks(facts: &Facts, choice: &Choice) -> Result<(), PassError> {
    if choice.stored.format != StoredFormat::Nvfp4 {
        return Ok(());
    }
    for ((scope, name), _) in &choice.matrices {
        let Some(weight) = facts.weight(*scope, name) else { continue };
        let lengths = weight.axes.last().into_iter().flatten().map(|a| match a.extent {
            Extent::Fixed(n) => n,
            Extent::Rows => 1,
        });
        let length: u64 = lengths.product();
        if !length.is_multiple_of(ir::DType::BLOCK) {
            let message =
                format!("rows of `{name}` have {length} elements, nvfp4 keeps blocks of {}", ir::DType::BLOCK);
            let help = format!("list `{name}` under `plain` in `[stored]` if the checkpoint keeps it so");
            return Err(PassError { span: weight.span, ..pass_error("P0703", message, help) });
        }
    }
    Ok(())
}
