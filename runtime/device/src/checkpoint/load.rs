//! Loading: sources converted in parallel, straight from the map into their final place.

use super::convert::Element;
use super::error::{LoadErrors, Problem};
use super::open::{Checkpoint, Found};
use super::resolve::{Source, resolve};
use super::weights::{Data, WeightTensor, Weights};
use artifact::{RecipeForm, WeightRecipe};
use ir::DType;
use rayon::prelude::*;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

/// What may be done to a checkpoint while it is read.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Whether weights may be narrowed to their resident format. Loses bits; [`Weights::conversions`] says how many.
    pub narrow: bool,
    /// Patterns of tensors that belong to no weight and may be there all the same; `*` stands for any text.
    pub ignored: Vec<String>,
}

/// How far loading is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Resident bytes that are ready.
    pub done_bytes: u64,
    /// Resident bytes in all.
    pub total_bytes: u64,
}

/// Elements converted at a time: about a megabyte, large against a thread's start, small against a weight.
pub(super) const CHUNK_ELEMENTS: usize = 1 << 18;

impl Weights {
    /// Reads every weight that the recipes describe. `progress` is called on this thread.
    ///
    /// All problems of the checkpoint are found in one run; nothing is read unless there are none.
    pub fn load(
        recipes: &[WeightRecipe],
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Weights, LoadErrors> {
        let resolved = resolve(recipes, checkpoint, options.narrow, &options.ignored).map_err(LoadErrors::new)?;
        let total_bytes = resident_bytes(recipes)?;
        let tensors = with_progress(total_bytes, progress, |done| {
            resolved.sources.par_iter().map(|source| read(source, done)).collect::<Vec<WeightTensor>>()
        });
        let mut weights = Weights::default();
        for (source, tensor) in resolved.sources.iter().zip(tensors) {
            weights.insert(source.recipe, tensor);
        }
        weights.conversions = resolved.conversions;
        Ok(weights)
    }
}

/// Bytes that the weights take, once it is known that the machine would give them.
pub(super) fn resident_bytes(recipes: &[WeightRecipe]) -> Result<u64, LoadErrors> {
    let bytes = recipes.iter().try_fold(0u64, |sum, recipe| {
        let own = recipe.dtype.bytes_for(recipe.elements()?);
        sum.checked_add(own)
    });
    let bytes = bytes.unwrap_or(u64::MAX);
    // Asked for in one piece and given back untouched: what cannot be reserved is refused here, in words, rather
    // than by an abort in the middle of loading.
    let probe = usize::try_from(bytes).map(|n| Vec::<u8>::new().try_reserve_exact(n));
    match probe {
        Ok(Ok(())) => Ok(bytes),
        _ => Err(Problem::Memory { bytes }.into()),
    }
}

/// Runs `work` on another thread and reports on this one, so that `progress` needs no locks.
fn with_progress<T: Send>(
    total_bytes: u64,
    progress: &mut dyn FnMut(Progress),
    work: impl FnOnce(&Sender<u64>) -> T + Send,
) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || work(&sender));
        let mut done_bytes = 0;
        progress(Progress { done_bytes, total_bytes });
        // Ends when the worker drops its sender.
        for bytes in receiver {
            done_bytes += bytes;
            progress(Progress { done_bytes, total_bytes });
        }
        match worker.join() {
            Ok(result) => result,
            // A panic of the worker is this thread's.
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn read(source: &Source, done: &Sender<u64>) -> WeightTensor {
    let recipe = source.recipe;
    let data = match recipe.dtype {
        // What is narrower is resident in bf16, which holds its numbers exactly.
        DType::Bf16 | DType::E4m3 | DType::E5m2 | DType::Nvfp4 => Data::Bf16(Arc::new(assemble::<u16>(source, done))),
        // Recipes of other formats were refused.
        DType::F32 | DType::I32 | DType::Bool => Data::F32(Arc::new(assemble::<f32>(source, done))),
    };
    WeightTensor { shape: recipe.shape.clone(), data }
}

fn assemble<T: Element>(source: &Source, done: &Sender<u64>) -> Vec<T> {
    let elements = source.recipe.elements().unwrap_or(0) as usize;
    let runs = Runs::of(source.form);
    // Zeroed memory costs nothing until it is written.
    let mut values = vec![T::default(); elements];
    values.par_chunks_mut(CHUNK_ELEMENTS).enumerate().for_each_with(done.clone(), |done, (chunk, into)| {
        fill(&runs, &source.tensors, chunk * CHUNK_ELEMENTS, into);
        // The receiver outlives the work; if it did not, only a report would be lost.
        let _ = done.send(size_of_val(into) as u64);
    });
    values
}

/// Fills the elements of a weight from `at` on.
fn fill<T: Element>(runs: &Runs, tensors: &[Found], at: usize, into: &mut [T]) {
    let mut at = at;
    let mut into = into;
    while !into.is_empty() {
        let (tensor, offset, length) = runs.locate(at);
        let length = length.clamp(1, into.len());
        let (part, rest) = std::mem::take(&mut into).split_at_mut(length);
        if let Some(found) = tensors.get(tensor) {
            let width = found.entry.dtype.bits().unwrap_or(8) as usize / 8;
            // Shapes and sizes were compared, so the range is always there.
            if let Some(bytes) = found.bytes.get(offset * width..(offset + length) * width) {
                T::convert(&found.entry.dtype, bytes, part);
            }
        }
        at += length;
        into = rest;
    }
}

/// Where the elements of a weight lie: contiguous runs in one tensor after another.
struct Runs {
    /// Elements that a tensor contributes.
    per_tensor: usize,
    /// Elements of a run.
    run: usize,
    /// Dimensions outside a run: taken part's length, and the distance of neighbours in the tensor.
    outer: Vec<(usize, usize)>,
    /// First element of the part.
    base: usize,
}

impl Runs {
    fn of(form: &RecipeForm) -> Runs {
        let per_tensor = form.elements_per_tensor().unwrap_or(0) as usize;
        let whole: Vec<[u64; 2]> = form.shape.iter().map(|dim| [0, *dim]).collect();
        let slice = form.slice.as_ref().unwrap_or(&whole);
        let mut dims = Vec::new();
        let mut stride = 1usize;
        let mut base = 0usize;
        for (dim, [start, length]) in form.shape.iter().zip(slice).rev() {
            base += *start as usize * stride;
            dims.push((*length as usize, stride, *length == *dim));
            stride *= *dim as usize;
        }
        // Innermost first: whole dimensions join the run, and so does the first that is cut.
        let mut run = 1usize;
        let mut dims = dims.into_iter();
        for (length, _, whole) in dims.by_ref() {
            run *= length;
            if !whole {
                break;
            }
        }
        let mut outer: Vec<(usize, usize)> = dims.map(|(length, stride, _)| (length, stride)).collect();
        outer.reverse();
        Runs { per_tensor, run, outer, base }
    }

    /// Tensor, offset in it, and how many elements follow there, for element `at` of the weight.
    fn locate(&self, at: usize) -> (usize, usize, usize) {
        let (per_tensor, run) = (self.per_tensor.max(1), self.run.max(1));
        let (tensor, within) = (at / per_tensor, at % per_tensor);
        let (mut index, inside) = (within / run, within % run);
        let mut offset = self.base + inside;
        for (length, stride) in self.outer.iter().rev() {
            let length = (*length).max(1);
            offset += index % length * stride;
            index /= length;
        }
        (tensor, offset, run - inside)
    }
}
