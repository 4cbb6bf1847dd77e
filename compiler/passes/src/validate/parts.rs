//! Numbers of what quantised matrices consist of, made of the matrices that a trial has.
//!
//! A trial quantises as a quantiser of checkpoints does, so what is measured is the size of a format. A probe
//! (`probe.rs`) has powers of two as scales and leaves the codes wide: codes times scale is the matrix, bit for bit.

use crate::quantise::parts::{Part, of_name};
use interp::{Data, InterpError, Tensor, WeightMap, WeightSource};
use ir::{DType, Facts, Scope, Weight};

/// What numbers are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To show how large a change is.
    Trial,
    /// To show whether there is one besides roundings.
    Probe,
}

/// Scales of a probe.
const SCALES: [f32; 5] = [1.0, 0.5, 0.25, 0.125, 2.0];

/// Adds the parts that the facts name and the map lacks.
pub(super) fn add(map: &mut WeightMap, facts: &Facts, purpose: Purpose) -> Result<(), InterpError> {
    for weight in &facts.weights {
        let Some((part, whole)) = of_name(&weight.name) else { continue };
        let layers: Vec<Option<usize>> = match weight.scope {
            Scope::Model => vec![None],
            Scope::Layer => (0..facts.layers()).filter(|l| facts.layer_has(*l, weight)).map(Some).collect(),
        };
        for layer in layers {
            if map.weight(weight.scope, &weight.name, layer).is_ok() {
                continue;
            }
            let tensor = match part {
                Part::Codes | Part::Scale => {
                    let Ok(matrix) = map.weight(weight.scope, whole, layer) else { continue };
                    matrix_part(facts, weight, (part, whole, layer), &matrix, purpose)?
                }
                // After the last layer nobody reads what was made with it.
                Part::Input if purpose == Purpose::Trial => number((8.0 + fraction(layer)) / numerics::NVFP4_LARGEST)?,
                Part::Input => number(SCALES[layer.unwrap_or(0) % SCALES.len()])?,
                // A cache holds what it holds: another scale there is a difference.
                Part::CachedKey | Part::CachedValue if purpose == Purpose::Probe => number(1.0)?,
                Part::CachedKey => number(0.75 + 0.5 * fraction(layer))?,
                Part::CachedValue => number(1.5 - 0.5 * fraction(layer))?,
            };
            map.insert(weight.name.clone(), layer, tensor);
        }
    }
    Ok(())
}

/// A number from 0 on, below 1, that differs from layer to layer.
fn fraction(layer: Option<usize>) -> f32 {
    layer.map_or(0.0, |l| (l % 8) as f32 / 8.0)
}

fn number(x: f32) -> Result<Tensor, InterpError> {
    Tensor::new(Vec::new(), DType::F32, Data::F32(vec![x]))
}

/// Codes or scales of a matrix.
fn matrix_part(
    facts: &Facts,
    weight: &Weight,
    (part, whole, layer): (Part, &str, Option<usize>),
    matrix: &Tensor,
    purpose: Purpose,
) -> Result<Tensor, InterpError> {
    let codes = facts.weight(weight.scope, &Part::Codes.of(whole)).map_or(DType::E4m3, |w| w.dtype);
    let scale = facts.weight(weight.scope, &Part::Scale.of(whole));
    let row_axes = scale.map_or(0, |w| w.axes.iter().flatten().count());
    let length: usize = matrix.axes().iter().skip(row_axes).map(|a| a.1).product();
    let numbers = matrix.floats().unwrap_or_default();
    // Rows of two matrices, and of two layers, are not scaled alike, or taking one for the other would not show.
    let place = |row: usize| numerics::hash_name(&format!("{whole} {layer:?} {row}")) as usize % SCALES.len();
    let rows = numbers.chunks(length.max(1)).enumerate().map(|(i, row)| quantised(row, place(i), codes, purpose));
    let (codes, scales): (Vec<Vec<f32>>, Vec<f32>) = rows.unzip();
    match part {
        Part::Codes => {
            let dtype = if purpose == Purpose::Probe { DType::F32 } else { weight.dtype };
            Tensor::new(matrix.axes().to_vec(), dtype, Data::F32(codes.concat()))
        }
        _ => {
            let axes = matrix.axes().iter().take(row_axes).cloned().collect();
            Tensor::new(axes, DType::F32, Data::F32(scales))
        }
    }
}

/// Codes of a row, widened, and the number that multiplies them; a probe takes its own from `SCALES`.
fn quantised(row: &[f32], place: usize, dtype: DType, purpose: Purpose) -> (Vec<f32>, f32) {
    if purpose == Purpose::Probe {
        let scale = SCALES[place];
        return (row.iter().map(|x| x / scale).collect(), scale);
    }
    let largest = row.iter().fold(0.0f32, |m, x| numerics::max_f32(m, x.abs()));
    let most = if dtype == DType::Nvfp4 { numerics::NVFP4_LARGEST } else { numerics::E4M3_LARGEST };
    let scale = if largest > 0.0 { largest / most } else { 1.0 };
    let (blocks, _) = row.as_chunks::<{ numerics::BLOCK }>();
    let codes = match dtype {
        DType::Nvfp4 => blocks.iter().flat_map(|block| numerics::Block::of(block, scale).values()).collect(),
        _ => row.iter().map(|x| numerics::round_e4m3(x / scale)).collect(),
    };
    (codes, scale)
}
