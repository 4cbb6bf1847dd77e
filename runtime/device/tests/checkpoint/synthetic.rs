//! Weights from a seed.

use super::common::*;
use artifact::WeightRecipe;
use device::checkpoint::{Data, Weights};
use ir::{DType, Scope};

fn recipes() -> Vec<WeightRecipe> {
    let mut pinned = plain("table", &[64, 100]);
    pinned.dtype = DType::F32;
    vec![plain("matrix", &[300, 400]), plain("vector", &[5000]), experts(), pinned]
}

#[test]
fn a_seed_names_the_weights() {
    let (one, again, other) = (
        Weights::synthetic(&recipes(), 7).unwrap(),
        Weights::synthetic(&recipes(), 7).unwrap(),
        Weights::synthetic(&recipes(), 8).unwrap(),
    );
    for recipe in recipes() {
        assert_eq!(model(&one, &recipe.name), model(&again, &recipe.name));
        assert_ne!(model(&one, &recipe.name), model(&other, &recipe.name));
    }
    assert_eq!(one.get(Scope::Model, "experts", 0).unwrap().shape, [3, 2, 4]);
}

#[test]
fn weights_have_the_size_that_keeps_activations_finite() {
    let weights = Weights::synthetic(&recipes(), 7).unwrap();
    let moments = |name: &str| {
        let x = model(&weights, name);
        let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / x.len() as f64;
        (mean, variance.sqrt(), x.len() as f64)
    };
    for (name, mean, deviation) in [("matrix", 0.0, 0.05), ("vector", 1.0, 0.1), ("table", 0.0, 0.1)] {
        let (m, d, n) = moments(name);
        // Five standard errors of a mean and of a deviation.
        assert!((m - mean).abs() < 5.0 * deviation / n.sqrt(), "{name}: mean {m}");
        assert!((d / deviation - 1.0).abs() < 5.0 / (2.0 * n).sqrt(), "{name}: deviation {d}");
    }
}

#[test]
fn the_resident_format_rounds_and_both_formats_agree() {
    let narrow = Weights::synthetic(&[plain("w", &[40, 40])], 3).unwrap();
    let mut recipe = plain("w", &[40, 40]);
    recipe.dtype = DType::F32;
    let wide = Weights::synthetic(&[recipe], 3).unwrap();
    assert!(matches!(narrow.get(Scope::Model, "w", 0).unwrap().data, Data::Bf16(_)));
    let rounded: Vec<f32> = model(&wide, "w").into_iter().map(numerics::round_bf16).collect();
    assert_eq!(model(&narrow, "w"), rounded);
}

#[test]
fn what_no_machine_can_hold_is_refused() {
    let told = Weights::synthetic(&[plain("w", &[1 << 23, 1 << 23])], 1).unwrap_err().to_string();
    assert!(told.starts_with("W0308: the weights take 140737488355328 bytes"), "{told}");
}
