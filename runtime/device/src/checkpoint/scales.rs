//! Scales of a checkpoint that no product can be multiplied by: told by name, not run into every logit.

use super::bits::{Bits, float};
use super::error::{LoadErrors, Problem, quoted};
use super::open::Found;
use super::resolve::{Resolved, Source, Values};
use ir::DiskLayout;
use rayon::prelude::*;

/// Ends of the names of scales that multiply.
const MULTIPLIES: &str = ".scale";
/// Ends of the names of numbers that values are divided by before they are codes.
const DIVIDES: [&str; 3] = [".input", ".k_scale", ".v_scale"];
/// e4m3 without its sign where it is not a number.
const NO_NUMBER: u8 = 0x7f;

/// Demands that scales are finite, and above zero where something is divided by them.
pub(super) fn check(resolved: &Resolved<'_>) -> Result<(), LoadErrors> {
    let problems: Vec<Problem> = resolved.sources.par_iter().filter_map(wrong).collect();
    if problems.is_empty() { Ok(()) } else { Err(LoadErrors::new(problems)) }
}

/// The first scale of a weight that cannot be one.
fn wrong(source: &Source<'_>) -> Option<Problem> {
    let told = |tensor: &str, at: usize, number: f32, wanted| Problem::Scale {
        weight: source.recipe.title(),
        tensor: quoted(tensor),
        at,
        number: number.to_string(),
        wanted,
    };
    match &source.values {
        Values::Of(bits) => bits.iter().find_map(|bits| {
            let (found, at, number) = of_bits(bits, source.recipe.name.ends_with(MULTIPLIES))?;
            Some(told(&found.entry.name, at, number, FINITE))
        }),
        // Without a tensor there is nothing to mend in the checkpoint.
        Values::Numbers(numbers) if source.form.layout != DiskLayout::Plain => {
            let divides = DIVIDES.iter().any(|end| source.recipe.name.ends_with(end));
            let good = |x: f32| x.is_finite() && (!divides || x > 0.0);
            let at = numbers.iter().position(|x| !good(*x))?;
            let name = source.form.tensor_name(at as u64);
            Some(told(&name, 0, *numbers.get(at)?, if divides { ABOVE } else { FINITE }))
        }
        _ => None,
    }
}

const FINITE: &str = "a finite number";
const ABOVE: &str = "a finite number above 0";

/// The first scale of a tensor that is not finite, with its place; `scales` says that the tensor itself consists of scales.
fn of_bits<'a>(bits: &Bits<'a>, scales: bool) -> Option<(Found<'a>, usize, f32)> {
    match bits {
        Bits::Plain(found) if scales => not_finite(*found),
        Bits::Scaled { scales, .. } => not_finite(*scales),
        Bits::Blocks { scales, .. } => {
            let at = scales.bytes.iter().position(|code| code & NO_NUMBER == NO_NUMBER)?;
            Some((*scales, at, f32::NAN))
        }
        _ => None,
    }
}

fn not_finite(found: Found<'_>) -> Option<(Found<'_>, usize, f32)> {
    let numbers = found.entry.shape.iter().product::<u64>() as usize;
    (0..numbers).map(|at| (found, at, float(found, at))).find(|(.., x)| !x.is_finite())
}
