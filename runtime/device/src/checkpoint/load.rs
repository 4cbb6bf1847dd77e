//! Loading: sources converted in parallel, straight from the map into their final place.

use super::bits::{Bits, odd_of_row, row_scale};
use super::convert::{Element, not_finite};
use super::error::{LoadErrors, Problem, quoted};
use super::open::{Checkpoint, Found};
use super::resolve::{Source, Values, resolve};
use super::scales;
use super::weights::{Data, WeightTensor, Weights};
use artifact::{RecipeForm, WeightRecipe};
use ir::DType;
use rayon::prelude::*;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

/// What may be done to a checkpoint while it is read.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Whether weights may be narrowed to their resident format. Loses bits; [`Weights::conversions`] says how many.
    pub narrow: bool,
    /// Whether a matrix that the checkpoint stores as codes and scales may be multiplied out into a weight that is kept wider.
    pub widen: bool,
    /// Whether cached rows are kept as codes: their numbers then must not stay unread, unless they are 1.
    pub cached_codes: bool,
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
/// The same of scales of rows.
const CHUNK_SCALES: usize = 1 << 6;

impl Weights {
    /// Reads every weight that the recipes describe. `progress` is called on this thread.
    ///
    /// All problems of the checkpoint are found in one run, and nothing is read unless there are none; but elements are looked at
    /// while they are read, and each must be a finite number.
    pub fn load(
        recipes: &[WeightRecipe],
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Weights, LoadErrors> {
        let resolved = resolve(recipes, checkpoint, options).map_err(LoadErrors::new)?;
        scales::check(&resolved, checkpoint)?;
        let total_bytes = resident_bytes(recipes)?;
        let tensors = with_progress(total_bytes, progress, |done| {
            resolved
                .sources
                .par_iter()
                .map(|source| read(source, done))
                .collect::<Vec<Result<WeightTensor, Box<Problem>>>>()
        });
        let (mut weights, mut problems, mut told) = (Weights::default(), Vec::new(), HashSet::new());
        for (source, tensor) in resolved.sources.iter().zip(tensors) {
            match tensor {
                Ok(tensor) => weights.insert(source.recipe, tensor),
                Err(problem) => {
                    // Two weights may be made of one tensor.
                    let is_new = match &*problem {
                        Problem::Element { tensor, at, .. } => told.insert((tensor.clone(), *at)),
                        _ => true,
                    };
                    if is_new {
                        problems.push(*problem);
                    }
                }
            }
        }
        if !problems.is_empty() {
            return Err(LoadErrors::new(problems));
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

fn read(source: &Source, done: &Sender<u64>) -> Result<WeightTensor, Box<Problem>> {
    let recipe = source.recipe;
    let data = match resident(recipe.dtype) {
        DType::Bf16 => Data::Bf16(Arc::new(assemble::<u16>(source, done)?)),
        _ => Data::F32(Arc::new(assemble::<f32>(source, done)?)),
    };
    Ok(WeightTensor { shape: recipe.shape.clone(), data })
}

/// The format in memory: what is narrower than bf16 is kept in it, which holds its numbers exactly.
pub(super) fn resident(dtype: DType) -> DType {
    if dtype.is_narrow() { DType::Bf16 } else { dtype }
}

fn assemble<T: Element>(source: &Source, done: &Sender<u64>) -> Result<Vec<T>, Box<Problem>> {
    let elements = source.recipe.elements().unwrap_or(0) as usize;
    // Zeroed memory costs nothing until it is written.
    let mut values = vec![T::default(); elements];
    // A scale looks at a whole row.
    let chunk = if matches!(source.values, Values::RowScales(..)) { CHUNK_SCALES } else { CHUNK_ELEMENTS };
    let chunks = values.par_chunks_mut(chunk).enumerate();
    let faults = chunks.map_with(done.clone(), |done, (number, into)| {
        let fault = read_at(source, number * chunk, into).err();
        // The receiver outlives the work; if it did not, only a report would be lost.
        let _ = done.send(size_of_val(into) as u64);
        fault.map(|fault| (number, fault))
    });
    match faults.flatten().min_by_key(|(number, _)| *number) {
        Some((_, fault)) => Err(fault),
        None => Ok(values),
    }
}

/// Fills elements of a weight from `at` on; the weight has as many. An element of the files that is infinite or no number is
/// an error.
pub(super) fn read_at<T: Element>(source: &Source, at: usize, into: &mut [T]) -> Result<(), Box<Problem>> {
    let runs = Runs::of(source.form);
    match &source.values {
        Values::Of(bits) => {
            fill(&runs, bits, at, into);
            if let Some(wrong) = not_finite(into) {
                let (tensor, offset, _) = runs.locate(at + wrong);
                return Err(tensors_fault(source, bits.get(tensor).map(|bits| bits.odd(offset))));
            }
        }
        Values::Numbers(numbers) => {
            let elements = source.recipe.elements().unwrap_or(0) as usize;
            let each = elements.div_ceil(numbers.len().max(1)).max(1);
            for (i, x) in (at..).zip(into) {
                *x = numbers.get(i / each).map_or_else(T::default, |number| T::rounded(*number));
            }
        }
        Values::RowScales(tensors, columns) => {
            let columns = (*columns).max(1);
            let place = |row: usize| {
                let (tensor, offset, _) = runs.locate(row * runs.columns());
                tensors.get(tensor).map(|found| (*found, offset / columns))
            };
            for (row, x) in (at..).zip(into.iter_mut()) {
                if let Some((found, row)) = place(row) {
                    *x = T::rounded(row_scale(found, row, columns));
                }
            }
            if let Some((found, row)) = not_finite(into).and_then(|wrong| place(at + wrong)) {
                let (at, number) = odd_of_row(found, row, columns).unwrap_or((row * columns, f32::NAN));
                return Err(tensors_fault(source, Some((found, at, number))));
            }
        }
    }
    Ok(())
}

/// An element that is infinite or no number, where it stands in the files.
fn tensors_fault(source: &Source, place: Option<(Found<'_>, usize, f32)>) -> Box<Problem> {
    let weight = source.recipe.title();
    Box::new(match place {
        Some((found, at, number)) => Problem::Element {
            weight,
            tensor: quoted(&found.entry.name),
            file: quoted(found.file),
            at,
            number: format!("{number:?}"),
            found: found.entry.dtype.to_string(),
            kept: source.recipe.dtype,
        },
        // Shapes and sizes were compared, so the place is always there.
        None => Problem::Recipe { fact: format!("{weight} has an element outside of its tensors") },
    })
}

/// Elements of a weight from `at` on, as binary32; only of what has a place of its own for each.
pub(super) fn elements(source: &Source, at: usize, into: &mut [f32]) {
    if let Values::Of(bits) = &source.values {
        fill(&Runs::of(source.form), bits, at, into);
    }
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
