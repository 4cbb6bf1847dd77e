//! What a checkpoint keeps narrow, and the bytes of weights by format, for `check` and the report.

use crate::check::grouped;
use indexmap::IndexMap;
use ir::{Facts, Scope, Stored, StoredInputs};

/// Bytes of all weights by format, in the order of first use.
pub fn bytes(facts: &Facts) -> IndexMap<&'static str, u64> {
    let mut all: IndexMap<&'static str, u64> = IndexMap::new();
    for weight in &facts.weights {
        let copies = match weight.scope {
            Scope::Model => 1,
            Scope::Layer => (0..facts.layers()).filter(|l| facts.layer_has(*l, weight)).count() as u64,
        };
        let bytes = weight.dtype.bytes_for(weight.distinct_elements()).saturating_mul(copies);
        let sum = all.entry(weight.dtype.word()).or_default();
        *sum = sum.saturating_add(bytes);
    }
    all
}

/// The same in words: `12 bytes: e4m3 8, bf16 4`.
pub fn bytes_line(facts: &Facts) -> String {
    let bytes = bytes(facts);
    let whole = bytes.values().fold(0u64, |n, b| n.saturating_add(*b));
    let parts: Vec<String> = bytes.iter().map(|(format, n)| format!("{format} {}", grouped(*n))).collect();
    format!("{} bytes of weights: {}", grouped(whole), parts.join(", "))
}

/// What the spec says is stored, in words.
pub fn line(facts: &Facts, stored: &Stored) -> String {
    let inputs = match stored.inputs {
        StoredInputs::Plain => "inputs as they are",
        StoredInputs::Token => "inputs by token",
        StoredInputs::Block => "inputs in blocks",
    };
    let plain: Vec<String> = facts
        .weights
        .iter()
        .filter(|w| w.quantised_form().is_some())
        .filter_map(|w| {
            let holders: Vec<usize> = match w.scope {
                Scope::Model => return (!stored.holds(w, None)).then(|| w.name.clone()),
                Scope::Layer => (0..facts.layers()).filter(|l| facts.layer_has(*l, w)).collect(),
            };
            let plain: Vec<usize> = holders.iter().copied().filter(|l| !stored.holds(w, Some(*l))).collect();
            match plain.as_slice() {
                [] => None,
                [layer] => Some(format!("{} in layer {layer}", w.name)),
                all if all.len() == holders.len() => Some(w.name.clone()),
                some => Some(format!("{} in {} of {} layers", w.name, some.len(), holders.len())),
            }
        })
        .collect();
    let plain = if plain.is_empty() { "none".to_owned() } else { plain.join(", ") };
    let kv = if stored.kv.is_some() { "; cached rows have scales" } else { "" };
    format!("stored: {}, {inputs}; plain matrices: {plain}{kv}", stored.format.word())
}
