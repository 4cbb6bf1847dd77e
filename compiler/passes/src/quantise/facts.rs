//! Weights after quantising: what of them lies where in the checkpoint.

use super::choice::{Choice, Matrix};
use super::inputs::{Group, Groups};
use super::parts::Part;
use ir::{DType, DiskForm, DiskLayout, Facts, Scope, StoredFormat, Weight};

/// All weights: each matrix gives way to its parts, and stays for the layers that keep it plain.
pub(super) fn weights(facts: &Facts, choice: &Choice, groups: &Groups<'_>) -> Vec<Weight> {
    let mut all = Vec::new();
    for weight in &facts.weights {
        let Some(matrix) = choice.matrices.get(&(weight.scope, weight.name.clone())) else {
            all.push(weight.clone());
            continue;
        };
        all.extend(plain(facts, weight, matrix));
        all.push(codes(facts, weight, matrix, choice));
        all.push(scale(facts, weight, matrix, choice));
        // The number of inputs stands behind the first matrix that it is for.
        for (name, group) in &groups.all {
            if group.scope == weight.scope && group.members.first() == Some(&weight.name) {
                all.push(input(facts, name, group, choice));
            }
        }
    }
    all.extend(groups.carried.iter().filter_map(|name| after_the_last(name, &all)).collect::<Vec<_>>());
    all
}

fn having(facts: &Facts, weight: &Weight) -> Vec<usize> {
    (0..facts.layers()).filter(|l| facts.layer_has(*l, weight)).collect()
}

/// The layers as a weight says them: nothing where its condition says the same.
fn only(facts: &Facts, weight: &Weight, layers: &[usize]) -> Option<Vec<usize>> {
    let whole = Weight { only: None, ..weight.clone() };
    (weight.scope == Scope::Layer && having(facts, &whole) != layers).then(|| layers.to_vec())
}

fn plain(facts: &Facts, weight: &Weight, matrix: &Matrix) -> Option<Weight> {
    let rest: Vec<usize> = having(facts, weight).into_iter().filter(|l| !matrix.layers.contains(l)).collect();
    let some = weight.scope == Scope::Layer && !rest.is_empty();
    some.then(|| Weight { only: only(facts, weight, &rest), quant: false, ..weight.clone() })
}

/// A part of a matrix, in the layers that keep it quantised.
fn part(facts: &Facts, weight: &Weight, matrix: &Matrix, part: Part, dtype: DType) -> Weight {
    Weight {
        name: part.of(&weight.name),
        dtype,
        pinned: true,
        only: only(facts, weight, &matrix.layers),
        disk: Vec::new(),
        quant: false,
        ..weight.clone()
    }
}

fn codes(facts: &Facts, weight: &Weight, matrix: &Matrix, choice: &Choice) -> Weight {
    let names = &choice.stored.names;
    let dtype = match choice.stored.format {
        StoredFormat::Fp8 => DType::E4m3,
        StoredFormat::Nvfp4 => DType::Nvfp4,
    };
    let mut codes = part(facts, weight, matrix, Part::Codes, dtype);
    if let Some(form) = weight.quantised_form() {
        let layout = match choice.stored.format {
            StoredFormat::Fp8 => DiskLayout::Plain,
            StoredFormat::Nvfp4 => DiskLayout::Nibbles { scales: form.beside(&names.scale) },
        };
        codes.disk.push(DiskForm { tensor: form.beside(&names.codes), layout, ..form.clone() });
    }
    if choice.converts {
        codes.disk.extend(weight.disk.iter().map(|form| DiskForm { layout: DiskLayout::RowCodes, ..form.clone() }));
    }
    codes
}

/// One number for each row: of fp8 its own, of nvfp4 that of the matrix.
fn scale(facts: &Facts, weight: &Weight, matrix: &Matrix, choice: &Choice) -> Weight {
    let names = &choice.stored.names;
    let mut scale = part(facts, weight, matrix, Part::Scale, DType::F32);
    scale.axes.pop();
    let Some(form) = weight.quantised_form() else { return scale };
    let rows = form.shape.split_last().map(|(_, rows)| rows.to_vec()).unwrap_or_default();
    match (choice.stored.format, &names.global) {
        (StoredFormat::Fp8, _) => {
            scale.disk.push(DiskForm { tensor: form.beside(&names.scale), shape: rows, ..form.clone() });
        }
        (StoredFormat::Nvfp4, global) => {
            let global = global.as_deref().unwrap_or_default();
            let layout = DiskLayout::Number;
            scale.disk.push(DiskForm { tensor: form.beside(global), shape: Vec::new(), layout, ..form.clone() });
        }
    }
    if choice.converts {
        scale.disk.extend(weight.disk.iter().map(|form| DiskForm { layout: DiskLayout::RowScales, ..form.clone() }));
    }
    scale
}

/// The number of the inputs of a group; 1 where the checkpoint has none and may lack it.
fn input(facts: &Facts, name: &str, group: &Group, choice: &Choice) -> Weight {
    let forms: Vec<&DiskForm> = group
        .members
        .iter()
        .filter_map(|member| facts.weight(group.scope, member).and_then(Weight::quantised_form))
        .collect();
    let end = choice.stored.names.input.as_deref().unwrap_or_default();
    let mut tensors = forms.iter().map(|form| form.beside(end));
    let first = tensors.next();
    let also: Vec<String> = tensors.collect();
    let several = group.picked || forms.first().is_some_and(|form| !form.spread.is_empty());
    let layout = match (several, also.is_empty()) {
        (true, _) => DiskLayout::Largest { also },
        (false, true) => DiskLayout::Number,
        (false, false) => DiskLayout::Same { also },
    };
    let disk = match (first, forms.first()) {
        (Some(tensor), Some(form)) => vec![DiskForm { tensor, shape: Vec::new(), layout, ..(*form).clone() }],
        _ => Vec::new(),
    };
    let base = group.members.first().and_then(|m| facts.weight(group.scope, m));
    let layers: Vec<usize> = group.layers.iter().copied().collect();
    Weight {
        name: name.to_owned(),
        scope: group.scope,
        axes: Vec::new(),
        dtype: DType::F32,
        pinned: true,
        when: base.and_then(|w| w.when.clone()),
        only: base.and_then(|w| only(facts, w, &layers)),
        absent: choice.stored.some_numbers.then_some(1.0),
        disk,
        quant: false,
        borrowed: false,
        span: base.and_then(|w| w.span),
    }
}

/// What stands in for a layer's number after the last layer, where nobody takes what is made with it: 1, unless a checkpoint
/// has a tensor of the number's own name, which no quantiser writes.
fn after_the_last(name: &str, all: &[Weight]) -> Option<Weight> {
    let of_layers = all.iter().find(|w| w.scope == Scope::Layer && w.name == name)?;
    let (tensor, layout) = (name.to_owned(), DiskLayout::Number);
    let disk = vec![DiskForm { tensor, spread: Vec::new(), slice: None, shape: Vec::new(), layout }];
    Some(Weight { scope: Scope::Model, when: None, only: None, absent: Some(1.0), disk, ..of_layers.clone() })
}
