//! Loading: sources converted in parallel, straight from the map into their final place.

use super::bits::{Bits, row_scale};
use super::convert::Element;
use super::error::{LoadErrors, Problem};
use super::open::Checkpoint;
use super::resolve::{Source, Values, resolve};
use super::scales;
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
    /// Whether a matrix that the checkpoint stores as codes and scales may be multiplied out into a weight that is kept wider.
    pub widen: bool,
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
        let resolved = resolve(recipes, checkpoint, options).map_err(LoadErrors::new)?;
        scales::check(&resolved)?;
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
        let own = resident(recipe.dtype).bytes_for(recipe.elements()?);
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
    let data = match resident(recipe.dtype) {
        DType::Bf16 => Data::Bf16(Arc::new(assemble::<u16>(source, done))),
        _ => Data::F32(Arc::new(assemble::<f32>(source, done))),
    };
    WeightTensor { shape: recipe.shape.clone(), data }
}

/// The format in memory: what is narrower than bf16 is kept in it, which holds its numbers exactly.
pub(super) fn resident(dtype: DType) -> DType {
    if dtype.is_narrow() { DType::Bf16 } else { dtype }
}

fn assemble<T: Element>(source: &Source, done: &Sender<u64>) -> Vec<T> {
    let elements = source.recipe.elements().unwrap_or(0) as usize;
    // Zeroed memory costs nothing until it is written.
    let mut values = vec![T::default(); elements];
    match &source.values {
        Values::Of(bits) => {
            let runs = Runs::of(source.form);
            values.par_chunks_mut(CHUNK_ELEMENTS).enumerate().for_each_with(done.clone(), |done, (chunk, into)| {
                fill(&runs, bits, chunk * CHUNK_ELEMENTS, into);
                // The receiver outlives the work; if it did not, only a report would be lost.
                let _ = done.send(size_of_val(into) as u64);
            });
        }
        Values::Numbers(numbers) => {
            let each = elements.div_ceil(numbers.len().max(1)).max(1);
            values.chunks_mut(each).zip(numbers).for_each(|(part, x)| part.fill(T::rounded(*x)));
            let _ = done.send(size_of_val(&values[..]) as u64);
        }
        Values::RowScales(tensors, columns) => {
            let runs = Runs::of(source.form);
            let columns = (*columns).max(1);
            values.par_iter_mut().enumerate().for_each(|(row, x)| {
                let (tensor, offset, _) = runs.locate(row * runs.columns());
                if let Some(found) = tensors.get(tensor) {
                    *x = T::rounded(row_scale(*found, offset / columns, columns));
                }
            });
            let _ = done.send(size_of_val(&values[..]) as u64);
        }
    }
    values
}

/// Fills the elements of a weight from `at` on.
fn fill<T: Element>(runs: &Runs, tensors: &[Bits<'_>], at: usize, into: &mut [T]) {
    let mut at = at;
    let mut into = into;
    while !into.is_empty() {
        let (tensor, offset, length) = runs.locate(at);
        let length = length.clamp(1, into.len());
        let (part, rest) = std::mem::take(&mut into).split_at_mut(length);
        // Shapes and sizes were compared, so the range is always there.
        if let Some(bits) = tensors.get(tensor) {
            bits.read(offset, part);
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
    /// Elements of a row that belong to the part.
    columns: usize,
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
        let columns = slice.last().map_or(1, |[_, length]| *length as usize);
        Runs { per_tensor, run, outer, base, columns }
    }

    /// Elements that one row of a tensor contributes.
    fn columns(&self) -> usize {
        self.columns
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

/// Fills elements of a weight from `at` on; the weight has as many.
pub(super) fn read_at<T: Element>(source: &Source, at: usize, into: &mut [T]) {
    let runs = Runs::of(source.form);
    match &source.values {
        Values::Of(bits) => fill(&runs, bits, at, into),
        Values::Numbers(numbers) => {
            let elements = source.recipe.elements().unwrap_or(0) as usize;
            let each = elements.div_ceil(numbers.len().max(1)).max(1);
            for (i, x) in (at..).zip(into) {
                *x = numbers.get(i / each).map_or_else(T::default, |number| T::rounded(*number));
            }
        }
        Values::RowScales(tensors, columns) => {
            let columns = (*columns).max(1);
            for (row, x) in (at..).zip(into) {
                let (tensor, offset, _) = runs.locate(row * runs.columns());
                if let Some(found) = tensors.get(tensor) {
                    *x = T::rounded(row_scale(*found, offset / columns, columns));
                }
            }
        }
    }
}
