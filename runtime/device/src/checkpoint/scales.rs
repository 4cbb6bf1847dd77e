//! Scales and numbers of a checkpoint that nothing can be scaled by: told by name, not run into every logit.
//!
//! | | must be |
//! |---|---|
//! | a number that inputs or cached rows are divided by | finite, above 0 |
//! | the scale of a row, the number of a matrix | finite, at least 0; 0 only over codes that are all 0, of which quantisers make it |
//! | the scale of a block | finite, at least 0; quantisers that do not hold it at 2^-9 or above let scales of small blocks become 0, and the block's values with them, but not all scales of a matrix whose codes are not 0 |

use super::bits::{Bits, float};
use super::error::{Divided, LoadErrors, Problem, quoted};
use super::load::elements;
use super::open::{Checkpoint, Found};
use super::resolve::{Resolved, Source, Values};
use artifact::WeightRecipe;
use ir::{DiskLayout, Scope};
use rayon::prelude::*;
use std::collections::HashMap;

/// Ends of the names of codes, and of scales that multiply what is under them.
const CODES: &str = ".codes";
const MULTIPLIES: &str = ".scale";
/// Ends of the names of numbers that values are divided by before they are codes.
const DIVIDES: [(&str, Divided); 3] =
    [(".input", Divided::Inputs), (".k_scale", Divided::CachedRows), (".v_scale", Divided::CachedRows)];
/// e4m3 without its sign where it is not a number, its sign, and a pair of e2m1 codes without theirs.
const NO_NUMBER: u8 = 0x7f;
const SIGN: u8 = 0x80;
const MAGNITUDES: u8 = 0x77;

const AT_LEAST: &str = "a finite number of at least 0";
const ABOVE: &str = "a finite number above 0";
const NOT_NONE: &str = "a number above 0, as codes under it are not all 0";

/// Scales of blocks and codes that are looked at in one go.
const AT_ONCE: usize = 1 << 12;

/// What a weight is a divisor of, by its name.
pub(super) fn divides(recipe: &WeightRecipe) -> Option<Divided> {
    DIVIDES.iter().find(|(end, _)| recipe.name.ends_with(end)).map(|(_, what)| *what)
}

/// What is wrong with a tensor of one number.
pub(super) fn wrong_number(recipe: &WeightRecipe, found: Found<'_>) -> Option<Problem> {
    let number = float(found, 0);
    let (good, wanted) = match divides(recipe) {
        Some(_) => (number > 0.0, ABOVE),
        None => (number >= 0.0, AT_LEAST),
    };
    (!(good && number.is_finite())).then(|| told(recipe, found, 0, number, wanted))
}

fn told(recipe: &WeightRecipe, found: Found<'_>, at: usize, number: f32, wanted: &'static str) -> Problem {
    let (tensor, file) = (quoted(&found.entry.name), quoted(found.file));
    Problem::Scale { weight: recipe.title(), tensor, file, at, number: number.to_string(), wanted }
}

/// Scope, layer and name.
type Matrix<'a> = (Scope, Option<usize>, &'a str);

/// Demands that scales are such.
pub(super) fn check(resolved: &Resolved<'_>, checkpoint: &Checkpoint) -> Result<(), LoadErrors> {
    let sources = resolved.sources.iter();
    let codes: HashMap<Matrix<'_>, &Source<'_>> = sources.filter_map(|s| Some((matrix(s, CODES)?, s))).collect();
    let fault = |source| wrong(source).or_else(|| idle(source, &codes, checkpoint));
    let problems: Vec<Problem> = resolved.sources.par_iter().filter_map(fault).collect();
    if problems.is_empty() { Ok(()) } else { Err(LoadErrors::new(problems)) }
}

/// The matrix that a weight is the part of which names end so.
fn matrix<'a>(source: &Source<'a>, end: &str) -> Option<Matrix<'a>> {
    let recipe = source.recipe;
    Some((recipe.scope, recipe.layer, recipe.name.strip_suffix(end)?))
}

/// The first scale of a weight that cannot be one, whatever is under it.
fn wrong(source: &Source<'_>) -> Option<Problem> {
    let Values::Of(bits) = &source.values else { return None };
    let is_scales = source.recipe.name.ends_with(MULTIPLIES) && source.form.layout == DiskLayout::Plain;
    bits.iter().find_map(|bits| {
        let (found, at, number, wanted) = match bits {
            Bits::Plain(found) if is_scales => negative(*found)?,
            Bits::Scaled { codes, scales, columns } => negative(*scales).or_else(|| {
                let is_zero = |row: &usize| float(*scales, *row) == 0.0;
                let under = |row: usize| codes.bytes.get(row * columns..(row + 1) * columns).unwrap_or_default();
                let some = |row: &usize| under(*row).iter().any(|code| code & !SIGN != 0);
                let row = (0..count(*scales)).filter(is_zero).find(some)?;
                Some((*scales, row, 0.0, NOT_NONE))
            })?,
            Bits::Blocks { codes, scales, number } => of_blocks(*codes, *scales, *number)?,
            _ => return None,
        };
        Some(told(source.recipe, found, at, number, wanted))
    })
}

/// A scale that cannot be one: its tensor, its place, itself, and what it must be.
type Wrong<'a> = (Found<'a>, usize, f32, &'static str);

/// What is wrong with the scales of blocks, or with the number of their matrix.
fn of_blocks<'a>(codes: Found<'a>, scales: Found<'a>, number: Option<Found<'a>>) -> Option<Wrong<'a>> {
    // No number, or below 0.
    let is_wrong = |code: &u8| code & NO_NUMBER == NO_NUMBER || *code > SIGN;
    if let Some(at) = first(scales.bytes, is_wrong) {
        let code = scales.bytes.get(at).copied().unwrap_or(NO_NUMBER);
        return Some((scales, at, numerics::e4m3_value(code), AT_LEAST));
    }
    let some = |codes: Found<'_>| first(codes.bytes, |pair| pair & MAGNITUDES != 0).is_some();
    if scales.bytes.iter().all(|code| code & !SIGN == 0) && some(codes) {
        return Some((scales, 0, 0.0, NOT_NONE));
    }
    let number = number?;
    match float(number, 0) {
        x if !(x.is_finite() && x >= 0.0) => Some((number, 0, x, AT_LEAST)),
        x if x == 0.0 && some(codes) => Some((number, 0, x, NOT_NONE)),
        _ => None,
    }
}

/// The first byte of which something holds.
fn first(bytes: &[u8], holds: impl Fn(&u8) -> bool) -> Option<usize> {
    // Without a way out in the middle of a part, so that its loop is one of vectors.
    let part = bytes.chunks(AT_ONCE).position(|part| part.iter().fold(false, |any, byte| any | holds(byte)))?;
    let start = part * AT_ONCE;
    bytes.get(start..)?.iter().position(holds).map(|at| start + at)
}

/// The first number of a tensor that is not finite or below 0.
fn negative(found: Found<'_>) -> Option<Wrong<'_>> {
    let number = |at| (found, at, float(found, at), AT_LEAST);
    (0..count(found)).map(number).find(|(_, _, x, _)| !(x.is_finite() && *x >= 0.0))
}

fn count(found: Found<'_>) -> usize {
    found.entry.shape.iter().product::<u64>() as usize
}

/// The first scale of rows, or number of a matrix, that is 0 although codes under it are not.
fn idle(source: &Source<'_>, codes: &HashMap<Matrix<'_>, &Source<'_>>, checkpoint: &Checkpoint) -> Option<Problem> {
    let codes = codes.get(&matrix(source, MULTIPLIES)?)?;
    let (total, zeros) = zeros(source, checkpoint)?;
    let under = codes.recipe.elements()? as usize / total.max(1);
    let mut part = vec![0f32; AT_ONCE];
    for Zero { row, tensor, at } in zeros {
        for start in (row * under..(row + 1) * under).step_by(AT_ONCE) {
            let length = AT_ONCE.min((row + 1) * under - start);
            let into = part.get_mut(..length)?;
            elements(codes, start, into);
            if into.iter().any(|x| *x != 0.0) {
                return Some(told(source.recipe, tensor, at, 0.0, NOT_NONE));
            }
        }
    }
    None
}

/// A scale that is 0: which of all it is, in which tensor, and where in it.
struct Zero<'a> {
    row: usize,
    tensor: Found<'a>,
    at: usize,
}

/// How many numbers the scales of a matrix are, and those that are 0.
fn zeros<'a>(source: &Source<'a>, checkpoint: &'a Checkpoint) -> Option<(usize, Vec<Zero<'a>>)> {
    match &source.values {
        Values::Numbers(numbers) if source.form.layout == DiskLayout::Number => {
            let zeros = numbers.iter().enumerate().filter(|(_, x)| **x == 0.0);
            let tensor = |row: usize| checkpoint.find(&source.form.tensor_name(row as u64));
            let zero = |(row, _): (usize, _)| Some(Zero { row, tensor: tensor(row)?, at: 0 });
            Some((numbers.len(), zeros.filter_map(zero).collect()))
        }
        // Parts of tensors are not in the order of the value.
        Values::Of(bits) if source.form.slice.is_none() => {
            let (mut total, mut zeros) = (0, Vec::new());
            for bits in bits {
                let Bits::Plain(found) = bits else { return None };
                let is_zero = |at: &usize| float(*found, *at) == 0.0;
                let zero = |at| Zero { row: total + at, tensor: *found, at };
                zeros.extend((0..count(*found)).filter(is_zero).map(zero));
                total += count(*found);
            }
            Some((total, zeros))
        }
        _ => None,
    }
}
