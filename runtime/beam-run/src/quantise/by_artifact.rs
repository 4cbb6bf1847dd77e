//! Which tensors are matrices of products, by a compiled model: right operands of its products that the spec lets be narrow.

use super::matrices::{Found, Matrix, WEIGHT, main_dtype};
use crate::failure::Failure;
use artifact::{Artifact, RecipeForm, WeightRecipe};
use device::checkpoint::{Checkpoint, FileDType};
use ir::{Graph, Op, Scope, ValueId, WeightRef};
use std::collections::HashMap;

/// What takes the same value in, contracted along the same axes: stage, value, axes.
type Input = (String, ValueId, Vec<String>);

/// Products with a weight, by layer (none for the model's own) and name of the weight.
fn uses(artifact: &Artifact) -> Result<HashMap<(Option<usize>, String), Input>, Failure> {
    let mut uses = HashMap::new();
    let Some(entry) = artifact.kernels.entries.first() else { return Ok(uses) };
    let stages = entry
        .instances
        .iter()
        .filter_map(|i| Some((Some(i.layer), entry.graphs.get(ir::KernelEntry::class_graph(i.class))?)))
        .chain(entry.graphs.first().map(|g| (None, g)))
        .chain(entry.graphs.last().map(|g| (None, g)));
    for (layer, graph) in stages {
        let graph = &graph.graph;
        for id in graph.ids() {
            let Op::Linear { contract, .. } = &graph.node(id).op else { continue };
            let [x, w, ..] = graph.operands(id)[..] else { continue };
            let Op::Weight(weight) = &graph.node(root(graph, w)).op else { continue };
            let (layer, name) = match weight {
                WeightRef::Layer(name) => (layer, name),
                WeightRef::Model(name) => (None, name),
                WeightRef::Packed { into, .. } => {
                    return Err(Failure::input(format!(
                        "R0715: the artifact joins several weights to `{into}`, and they are quantised one by one; compile for a target without `pack`, such as `cpu`"
                    )));
                }
                WeightRef::Next { .. } | WeightRef::FirstLayer(_) | WeightRef::OfLayer { .. } => continue,
            };
            let stage = layer.map_or("last".to_owned(), |l| format!("layers.{l}"));
            uses.insert((layer, name.clone()), (stage, root(graph, x), contract.clone()));
        }
    }
    Ok(uses)
}

/// The value whose memory a view shows.
pub(super) fn root(graph: &Graph, mut id: ValueId) -> ValueId {
    while graph.node(id).op.is_view() {
        match graph.operands(id).first() {
            Some(operand) => id = *operand,
            None => break,
        }
    }
    id
}

/// Finds the matrices.
pub fn find(artifact: &Artifact, checkpoint: &Checkpoint) -> Result<Found, Failure> {
    let facts = &artifact.kernels.facts;
    let uses = uses(artifact)?;
    let mut found = Found { in_bf16: main_dtype(checkpoint)? == FileDType::Bf16, ..Found::default() };
    let mut inputs: HashMap<&Input, usize> = HashMap::new();
    let mut units: HashMap<(usize, u64), usize> = HashMap::new();
    for recipe in &artifact.recipes {
        let Some(input) = uses.get(&(recipe.layer, recipe.name.clone())) else {
            found.plain.extend(table(recipe, checkpoint));
            continue;
        };
        let form = present(recipe, checkpoint)?;
        let weight = facts.weight(recipe.scope, &recipe.name);
        let may = recipe.scope == Scope::Layer && weight.is_some_and(|w| w.quant && !w.pinned);
        if !may {
            let names = (0..form.tensors().unwrap_or(0)).map(|i| form.tensor_name(i));
            found.plain.extend(names.filter_map(|n| n.strip_suffix(WEIGHT).map(str::to_owned)));
            continue;
        }
        let next = inputs.len();
        let number = *inputs.entry(input).or_insert_with(|| {
            found.inputs.push(format!("{}.{}", input.0, input.1));
            next
        });
        for (at, mut matrix) in matrices(recipe, form)?.into_iter().enumerate() {
            let next = units.len();
            matrix.unit = *units.entry((number, at as u64)).or_insert(next);
            matrix.input = Some(number);
            found.matrices.push(matrix);
        }
    }
    found.matrices.sort_by(|a, b| a.module.cmp(&b.module));
    found.plain.sort();
    found.said = found.plain.clone();
    Ok(found)
}

/// The module of a matrix that no product reads, such as a table of rows.
fn table(recipe: &WeightRecipe, checkpoint: &Checkpoint) -> Option<String> {
    let named = |form: &&RecipeForm| form.spread.is_empty() && form.shape.len() == 2 && form.tensor.ends_with(WEIGHT);
    let name = recipe.forms.iter().find(named)?.tensor_name(0);
    checkpoint.tensor(&name).and_then(|_| name.strip_suffix(WEIGHT).map(str::to_owned))
}

/// The form that the checkpoint has.
pub(super) fn present<'a>(recipe: &'a WeightRecipe, checkpoint: &Checkpoint) -> Result<&'a RecipeForm, Failure> {
    recipe
        .check()
        .map_err(|fact| Failure::input(format!("R0716: the artifact's recipe does not hold together: {fact}")))?;
    let here = |form: &&RecipeForm| {
        form.layout.is_plain()
            && checkpoint.tensor(&form.tensor_name(0)).is_some_and(|(entry, _)| entry.shape == form.shape)
    };
    recipe.forms.iter().find(here).ok_or_else(|| {
        Failure::input(format!(
            "R0717: {} is in no form of the artifact in the checkpoint, such as `{}`; artifact and checkpoint must be of one unquantised model",
            recipe.title(),
            recipe.forms.first().map_or(String::new(), |form| form.tensor_name(0))
        ))
    })
}

/// The matrices of a weight under the names of its form with one tensor each.
fn matrices(recipe: &WeightRecipe, from: &RecipeForm) -> Result<Vec<Matrix>, Failure> {
    let single = |form: &&RecipeForm| form.layout.is_plain() && form.slice.is_none() && form.tensor.ends_with(WEIGHT);
    let named = recipe.forms.iter().find(single).filter(|form| form.shape.len() == 2);
    let Some(named) = named else {
        return Err(Failure::input(format!(
            "R0718: {} is `{}` of shape {:?}, and the spec knows no names of its single matrices; leave it as it is with `quant = false` in the spec",
            recipe.title(),
            from.tensor,
            from.shape
        )));
    };
    let (rows, columns) = (named.shape[0], named.shape[1]);
    let count = named.tensors().unwrap_or(0);
    (0..count)
        .map(|i| {
            let module = named.tensor_name(i).strip_suffix(WEIGHT).unwrap_or_default().to_owned();
            let (first, last) = (i * rows * columns, (i + 1) * rows * columns - 1);
            match from.locate(first).zip(from.locate(last)) {
                Some(((tensor, start), (other, end))) if tensor == other && end - start == last - first => Ok(Matrix {
                    module,
                    tensor: from.tensor_name(tensor),
                    first: start,
                    rows,
                    columns,
                    unit: 0,
                    input: None,
                }),
                _ => Err(Failure::input(format!(
                    "R0719: rows of `{module}` do not lie one after the other in `{}`",
                    from.tensor
                ))),
            }
        })
        .collect()
}
