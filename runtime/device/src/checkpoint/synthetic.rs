//! Synthetic weights: numbers that a seed names, of a size that keeps a model's activations finite.

use super::convert::Element;
use super::error::{LoadErrors, Problem, quoted};
use super::load::{CHUNK_ELEMENTS, resident, resident_bytes};
use super::weights::{Data, WeightTensor, Weights};
use artifact::WeightRecipe;
use ir::DType;
use numerics::{BLOCK, Block, round_e4m3, round_e5m2};
use rayon::prelude::*;
use std::sync::Arc;

/// Spread of one-dimensional weights around 1.
const VECTOR_SPREAD: f32 = 0.1;

impl Weights {
    /// Weights made from a seed, each element a function of seed, layer, name and index alone.
    ///
    /// What is one-dimensional on disk (factors, biases) lies around 1. Everything else has standard deviation
    /// 1/√K, with K the length of the last disk dimension, along which products contract: a product of
    /// normalised rows is then of the size of its operand.
    pub fn synthetic(recipes: &[WeightRecipe], seed: u64) -> Result<Weights, LoadErrors> {
        let faults: Vec<Problem> = recipes
            .iter()
            .filter_map(|recipe| recipe.check().err())
            .map(|fact| Problem::Recipe { fact: quoted(&fact) })
            .collect();
        if !faults.is_empty() {
            return Err(LoadErrors::new(faults));
        }
        resident_bytes(recipes)?;
        let tensors: Vec<WeightTensor> = recipes.par_iter().map(|recipe| draw(recipe, seed)).collect();
        let mut weights = Weights::default();
        for (recipe, tensor) in recipes.iter().zip(tensors) {
            weights.insert(recipe, tensor);
        }
        Ok(weights)
    }
}

fn draw(recipe: &WeightRecipe, seed: u64) -> WeightTensor {
    let data = match resident(recipe.dtype) {
        DType::Bf16 => Data::Bf16(Arc::new(elements(recipe, seed))),
        _ => Data::F32(Arc::new(elements(recipe, seed))),
    };
    WeightTensor { shape: recipe.shape.clone(), data }
}

fn elements<T: Element>(recipe: &WeightRecipe, seed: u64) -> Vec<T> {
    let name = match recipe.layer {
        Some(layer) => format!("{layer}.{}", recipe.name),
        None => recipe.name.clone(),
    };
    let hash = numerics::hash_name(&name);
    let (mean, spread) = moments(recipe);
    let mut values = vec![T::default(); recipe.elements().unwrap_or(0) as usize];
    values.par_chunks_mut(CHUNK_ELEMENTS).enumerate().for_each(|(chunk, into)| {
        let number = |i: usize| {
            let index = (chunk * CHUNK_ELEMENTS + i) as u64;
            mean + spread * numerics::synthetic(seed, hash, index)
        };
        match recipe.dtype {
            DType::E4m3 => into.iter_mut().enumerate().for_each(|(i, x)| *x = T::rounded(round_e4m3(number(i)))),
            DType::E5m2 => into.iter_mut().enumerate().for_each(|(i, x)| *x = T::rounded(round_e5m2(number(i)))),
            DType::Nvfp4 => {
                for (b, block) in into.chunks_mut(BLOCK).enumerate() {
                    let numbers = Block::of(&std::array::from_fn(|i| number(b * BLOCK + i)), 1.0).values();
                    block.iter_mut().zip(numbers).for_each(|(x, number)| *x = T::rounded(number));
                }
            }
            _ => into.iter_mut().enumerate().for_each(|(i, x)| *x = T::rounded(number(i))),
        }
    });
    values
}

/// Mean and standard deviation.
fn moments(recipe: &WeightRecipe) -> (f32, f32) {
    let Some(form) = recipe.forms.first() else {
        return (1.0, VECTOR_SPREAD);
    };
    let last = form.slice.as_ref().map_or(form.shape.last(), |slice| slice.last().map(|[_, length]| length));
    match last {
        Some(contracted) if form.shape.len() > 1 => (0.0, 1.0 / (*contracted as f32).sqrt()),
        _ => (1.0, VECTOR_SPREAD),
    }
}
