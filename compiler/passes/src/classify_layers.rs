//! **classify layers** (analysis, model level)
//!
//! ```text
//! 0 sliding dense      ┐ sliding.dense   0 1 2
//! 1 sliding dense      │
//! 2 sliding dense      ┘
//! 3 sliding sparse     ─ sliding.sparse  3 4 6 …
//! 5 full    sparse     ─ full.sparse     5 11 …
//! ```
//!
//! Why: layers of one class share a graph, its kernels and its plan; only numbers and weights differ per instance.
//! When: always. Two layers are of one class if (1) their kinds agree in every column of the schedule and (2) every
//! weight that they have is kept in the same format.
//! Kind: an analysis; it changes nothing.
//! Tests: below.

use ir::{DType, Facts, Instance, LayerKinds, Scope};

/// Layers of one class.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerClass {
    /// Kinds joined with dots, such as `sliding.dense`; `layer` where the schedule has no column.
    pub name: String,
    /// Kinds per schedule column.
    pub kinds: LayerKinds,
    /// Weights that the layers have, with their formats.
    formats: Vec<(String, DType)>,
}

/// Classes in the order of their first layers, and the class of every layer.
pub fn classify(facts: &Facts) -> (Vec<LayerClass>, Vec<Instance>) {
    let mut classes: Vec<LayerClass> = Vec::new();
    let mut instances = Vec::new();
    for (layer, kinds) in facts.schedule.iter().enumerate() {
        let formats: Vec<(String, DType)> = facts
            .weights
            .iter()
            .filter(|w| w.scope == Scope::Layer && facts.layer_has(layer, w))
            .map(|w| (w.name.clone(), w.dtype))
            .collect();
        let known = classes.iter().position(|c| c.kinds == *kinds && c.formats == formats);
        let class = known.unwrap_or_else(|| {
            let name = name_of(kinds, &classes);
            classes.push(LayerClass { name, kinds: kinds.clone(), formats });
            classes.len() - 1
        });
        instances.push(Instance { layer, class });
    }
    (classes, instances)
}

/// The kinds joined with dots, made different from the other classes and from the graphs `first` and `last`.
fn name_of(kinds: &LayerKinds, classes: &[LayerClass]) -> String {
    let joined = kinds.values().map(String::as_str).collect::<Vec<_>>().join(".");
    let wanted = if joined.is_empty() { "layer".to_owned() } else { joined };
    let taken = |name: &str| matches!(name, "first" | "last") || classes.iter().any(|c| c.name == name);
    ir::free_name(&wanted, taken)
}

#[cfg(test)]
mod tests {
    use super::classify;
    use crate::testing::{facts, kinds};

    #[test]
    fn classes_follow_the_kinds_in_the_order_of_their_first_layers() {
        let mut facts = facts();
        facts.schedule = vec![
            kinds(&[("attn", "near"), ("mlp", "dense")]),
            kinds(&[("attn", "near"), ("mlp", "dense")]),
            kinds(&[("attn", "far"), ("mlp", "dense")]),
            kinds(&[("attn", "near"), ("mlp", "dense")]),
        ];
        let (classes, instances) = classify(&facts);
        assert_eq!(classes.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["near.dense", "far.dense"]);
        assert_eq!(instances.iter().map(|i| i.class).collect::<Vec<_>>(), [0, 0, 1, 0]);
    }

    #[test]
    fn a_schedule_without_columns_is_one_class_and_names_never_clash() {
        let mut facts = facts();
        facts.schedule = vec![kinds(&[]), kinds(&[])];
        assert_eq!(classify(&facts).0[0].name, "layer");
        facts.schedule = vec![kinds(&[("a", "first")]), kinds(&[("a", "first"), ("b", "x")])];
        let names: Vec<String> = classify(&facts).0.into_iter().map(|c| c.name).collect();
        assert_eq!(names, ["first#2", "first.x"]);
    }
}
