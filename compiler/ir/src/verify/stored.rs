//! Rules of what the facts say about checkpoints: which layers have a weight, what it is where it is absent, what the bytes of
//! a tensor become, and what is stored in a narrow format.

use super::Report;
use crate::{DType, DiskLayout, Facts, Scope, Stored, StoredFormat, StoredInputs, Weight};

/// One weight's layers, number and layouts.
pub(super) fn weight(weight: &Weight, facts: &Facts, place: &str, report: &mut Report) {
    if let Some(only) = &weight.only {
        let fits = weight.scope == Scope::Layer && !only.is_empty();
        report.check(fits, "V0203", place, || "is kept to no layer, or is a weight of the model".to_owned());
        layers(only, facts, place, report);
    }
    if let Some(absent) = weight.absent {
        report.check(absent.is_finite(), "V0202", place, || format!("is {absent} where it is absent"));
    }
    for form in &weight.disk {
        let fits = match &form.layout {
            DiskLayout::Plain => weight.dtype != DType::Nvfp4,
            DiskLayout::Nibbles { .. } => weight.dtype == DType::Nvfp4,
            DiskLayout::RowCodes => weight.dtype == DType::E4m3,
            DiskLayout::Number | DiskLayout::Largest { .. } | DiskLayout::Same { .. } | DiskLayout::RowScales => {
                weight.dtype == DType::F32
            }
        };
        report
            .check(fits, "V0202", place, || format!("`{}` has a layout that leaves no {}", form.tensor, weight.dtype));
    }
}

/// What the checkpoint keeps in a narrow format.
pub(super) fn stored(stored: &Stored, facts: &Facts, report: &mut Report) {
    let place = format!("stored {}", stored.format.word());
    let inputs = match (stored.format, stored.inputs) {
        (_, StoredInputs::Plain)
        | (StoredFormat::Fp8, StoredInputs::Token)
        | (StoredFormat::Nvfp4, StoredInputs::Block) => true,
        (StoredFormat::Fp8, StoredInputs::Block) | (StoredFormat::Nvfp4, StoredInputs::Token) => false,
    };
    report.check(inputs, "V0202", &place, || format!("takes inputs by {}", stored.inputs.word()));
    let numbers = stored.format == StoredFormat::Fp8 || stored.names.global.is_some();
    report.check(numbers, "V0202", &place, || "names no number of a matrix".to_owned());
    let input = stored.inputs != StoredInputs::Block || stored.names.input.is_some();
    report.check(input, "V0202", &place, || "names no number of inputs".to_owned());
    for plain in &stored.plain {
        let known = facts.weights.iter().any(|w| w.name == plain.weight);
        report.check(known, "V0203", &place, || format!("there is no weight `{}`", plain.weight));
        if let Some(list) = &plain.layers {
            layers(list, facts, &place, report);
        }
    }
}

/// Layers ascend and exist.
fn layers(list: &[usize], facts: &Facts, place: &str, report: &mut Report) {
    let fits = list.windows(2).all(|w| w[0] < w[1]) && list.iter().all(|l| *l < facts.layers());
    report.check(fits, "V0203", place, || format!("layers do not ascend inside the {} of the model", facts.layers()));
}
