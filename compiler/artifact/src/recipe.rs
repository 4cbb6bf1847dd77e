//! Weight recipes: which tensors of a checkpoint make up each weight of each layer.
//!
//! A recipe stays short however many experts a model has: a weight spread over one tensor per index
//! keeps the pattern of the names, not the names.

use crate::memory::product;
use ir::{DType, DiskLayout, Extent, Scope};
use serde::{Deserialize, Serialize};

/// One weight of one layer (or of the model), and the forms it may have on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightRecipe {
    /// Model or layer.
    pub scope: Scope,
    /// Name in the spec.
    pub name: String,
    /// Layer index, for a layer's weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<usize>,
    /// Lengths of the value's axes, outermost first.
    pub shape: Vec<u64>,
    /// Format while the model runs.
    pub dtype: DType,
    /// Whether the spec fixes `dtype`, whatever float format the file holds.
    pub pinned: bool,
    /// Value of all elements where a checkpoint holds none of the forms; without it one must be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<f32>,
    /// Alternatives, exactly one of which a checkpoint must hold (or at most one, see `absent`).
    pub forms: Vec<RecipeForm>,
}

/// One way the weight may lie in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecipeForm {
    /// Tensor name; `{axis}` stands for an index along an axis of `spread`.
    pub tensor: String,
    /// Leading axes of the value that the name enumerates, with their lengths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spread: Vec<(String, u64)>,
    /// Full shape of one tensor on disk.
    pub shape: Vec<u64>,
    /// `[start, length]` per dimension of one tensor, when the weight is only a part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<Vec<[u64; 2]>>,
    /// What the bytes of a tensor are, and how they become elements. Names in it have the placeholders of `tensor`.
    #[serde(default, skip_serializing_if = "DiskLayout::is_plain")]
    pub layout: DiskLayout,
}

/// The recipes of a model: its own weights, then layer by layer those the layer has.
pub fn recipes(facts: &ir::Facts) -> Vec<WeightRecipe> {
    let of_model = facts.weights.iter().filter(|w| w.scope == Scope::Model).map(|w| recipe(facts, w, None));
    let of_layers = (0..facts.layers()).flat_map(|layer| {
        facts
            .weights
            .iter()
            .filter(move |w| w.scope == Scope::Layer && facts.layer_has(layer, w))
            .map(move |w| recipe(facts, w, Some(layer)))
    });
    of_model.chain(of_layers).collect()
}

fn recipe(facts: &ir::Facts, weight: &ir::Weight, layer: Option<usize>) -> WeightRecipe {
    let shape = weight.axes.iter().flatten().map(|axis| length(axis.extent)).collect();
    let of_layer = |name: &str| match layer {
        Some(l) => name.replace("{l}", &l.to_string()),
        None => name.to_owned(),
    };
    let forms = weight
        .disk
        .iter()
        .map(|form| RecipeForm {
            tensor: of_layer(&form.tensor),
            spread: form.spread.iter().map(|axis| (axis.clone(), spread_length(facts, weight, axis))).collect(),
            shape: form.shape.clone(),
            slice: form.slice.clone(),
            layout: match &form.layout {
                DiskLayout::Nibbles { scales } => DiskLayout::Nibbles { scales: of_layer(scales) },
                DiskLayout::Same { also } => DiskLayout::Same { also: also.iter().map(|n| of_layer(n)).collect() },
                DiskLayout::Largest { also } => {
                    DiskLayout::Largest { also: also.iter().map(|n| of_layer(n)).collect() }
                }
                other => other.clone(),
            },
        })
        .collect();
    WeightRecipe {
        scope: weight.scope,
        name: weight.name.clone(),
        layer,
        shape,
        dtype: weight.dtype,
        pinned: weight.pinned,
        absent: weight.absent,
        forms,
    }
}

/// Length of a spread axis; 0, which every check refuses, if neither the weight nor the model has it.
fn spread_length(facts: &ir::Facts, weight: &ir::Weight, axis: &str) -> u64 {
    let own = weight.axes.iter().flatten().find(|a| a.name == axis).map(|a| length(a.extent));
    own.or_else(|| facts.dims.get(axis).copied()).unwrap_or(0)
}

/// Weights have no row axes; one would count as a single row.
fn length(extent: Extent) -> u64 {
    match extent {
        Extent::Fixed(n) => n,
        Extent::Rows => 1,
    }
}

impl WeightRecipe {
    /// How messages name the weight: `W.norm`, or `W.q of layer 3`.
    pub fn title(&self) -> String {
        match self.layer {
            Some(layer) => format!("W.{} of layer {layer}", self.name),
            None => format!("W.{}", self.name),
        }
    }

    /// Number of elements, unless it exceeds what 64 bits can count.
    pub fn elements(&self) -> Option<u64> {
        product(&self.shape)
    }

    /// How many leading axes of the value enumerate its tensors, where each tensor holds one number for all elements behind
    /// them.
    pub fn numbers(&self) -> Option<usize> {
        let once = !self.forms.is_empty() && self.forms.iter().all(|form| form.layout == DiskLayout::Number);
        self.forms.first().filter(|_| once).map(|form| form.spread.len())
    }

    /// Number of elements that may differ, unless it exceeds what 64 bits can count.
    pub fn distinct_elements(&self) -> Option<u64> {
        match self.numbers() {
            Some(axes) => product(self.shape.get(..axes)?),
            None => self.elements(),
        }
    }

    /// Checks that the recipe means something: a float weight with at least one form, each of which gives
    /// every element of the value. The text names the two facts in conflict.
    pub fn check(&self) -> Result<(), String> {
        let title = self.title();
        if (self.scope == Scope::Layer) != self.layer.is_some() {
            return Err(format!("{title} has scope {:?} but layer index {:?}", self.scope, self.layer));
        }
        if !self.dtype.is_float() {
            return Err(format!("{title} has dtype {}, weights are f32, bf16, e4m3, e5m2 or nvfp4", self.dtype));
        }
        let Some(elements) = self.elements().filter(|n| *n > 0 && *n <= MOST_ELEMENTS) else {
            return Err(format!("{title} has shape {:?}, which is not 1 to 2^46 elements", self.shape));
        };
        if self.absent.is_some_and(|value| !value.is_finite() || self.dtype.is_narrow()) {
            return Err(format!("{title} of {} would be {:?} where a checkpoint lacks it", self.dtype, self.absent));
        }
        if self.forms.is_empty() {
            return Err(format!("{title} names no tensor of a checkpoint"));
        }
        for form in &self.forms {
            form.check(elements, self.dtype).map_err(|fact| format!("{title}: {fact}"))?;
        }
        Ok(())
    }
}

/// 64 TiB of bf16: far above any weight, far below where byte counts overflow.
const MOST_ELEMENTS: u64 = 1 << 46;

impl RecipeForm {
    /// How many tensors the form consists of, unless 64 bits cannot count them.
    pub fn tensors(&self) -> Option<u64> {
        self.spread.iter().try_fold(1u64, |n, (_, len)| n.checked_mul(*len))
    }

    /// Name of tensor number `index`, counted in row-major order of the spread axes.
    pub fn tensor_name(&self, index: u64) -> String {
        self.filled(&self.tensor, index)
    }

    /// A name of the layout (the tensor of scales, for example) that belongs to tensor number `index`.
    pub fn filled(&self, pattern: &str, index: u64) -> String {
        let mut name = pattern.to_owned();
        let mut rest = index;
        for (axis, length) in self.spread.iter().rev() {
            let length = (*length).max(1);
            name = name.replace(&format!("{{{axis}}}"), &(rest % length).to_string());
            rest /= length;
        }
        name
    }

    /// Elements on disk that one tensor contributes, codes for a layout of codes, unless 64 bits cannot count them.
    pub fn elements_per_tensor(&self) -> Option<u64> {
        match &self.slice {
            Some(slice) => slice.iter().try_fold(1u64, |n, [_, len]| n.checked_mul(*len)),
            None => product(&self.shape),
        }
    }

    /// Where an element of the value lies, counted row-major: which tensor of the form, and which of its elements. Of a
    /// form that was checked and holds an element of its own, or a code, for each of the value; `None` for other layouts.
    pub fn locate(&self, element: u64) -> Option<(u64, u64)> {
        if !self.one_to_one() {
            return None;
        }
        let per = self.elements_per_tensor().filter(|n| *n > 0)?;
        let (tensor, mut rest) = (element / per, element % per);
        let Some(slice) = &self.slice else { return Some((tensor, rest)) };
        let (mut at, mut stride) = (0, 1);
        for ([start, length], dim) in slice.iter().zip(&self.shape).rev() {
            at += (start + rest.checked_rem(*length)?) * stride;
            stride *= dim;
            rest /= length;
        }
        Some((tensor, at))
    }

    /// Whether each element of the value has its own place on disk.
    fn one_to_one(&self) -> bool {
        matches!(self.layout, DiskLayout::Plain | DiskLayout::Nibbles { .. } | DiskLayout::RowCodes)
    }

    fn check(&self, elements: u64, dtype: DType) -> Result<(), String> {
        let names = match &self.layout {
            DiskLayout::Nibbles { scales } => std::slice::from_ref(scales),
            DiskLayout::Same { also } | DiskLayout::Largest { also } => also,
            _ => &[],
        };
        for (axis, length) in &self.spread {
            let silent = std::iter::once(&self.tensor).chain(names).find(|n| !n.contains(&format!("{{{axis}}}")));
            if let Some(name) = silent.or((*length == 0).then_some(&self.tensor)) {
                return Err(format!("`{name}` does not enumerate axis `{axis}` of length {length}"));
            }
        }
        if product(&self.shape).is_none() {
            return Err(format!("`{}` has shape {:?}, too large to count", self.tensor, self.shape));
        }
        if let Some(slice) = &self.slice {
            let inside = slice.len() == self.shape.len()
                && slice.iter().zip(&self.shape).all(|([s, n], dim)| s.checked_add(*n).is_some_and(|end| end <= *dim));
            if !inside {
                return Err(format!("part {slice:?} of `{}` is not inside its shape {:?}", self.tensor, self.shape));
            }
        }
        self.check_layout(dtype)?;
        let have = self.elements_per_tensor().and_then(|n| n.checked_mul(self.tensors()?));
        let fits = |n: u64| match self.layout {
            DiskLayout::Plain | DiskLayout::Nibbles { .. } | DiskLayout::RowCodes => n == elements,
            // Each tensor stands for as many elements as any other.
            DiskLayout::Number => n > 0 && elements.is_multiple_of(n),
            // Whole rows of disk elements.
            DiskLayout::RowScales => n.is_multiple_of(elements),
            DiskLayout::Largest { .. } | DiskLayout::Same { .. } => true,
        };
        match have {
            Some(n) if fits(n) => Ok(()),
            Some(n) => Err(format!("`{}` gives {n} elements, the value has {elements}", self.tensor)),
            None => Err(format!("`{}` gives too many elements to count, the value has {elements}", self.tensor)),
        }
    }

    /// What a layout asks of the value's format and of a tensor's shape.
    fn check_layout(&self, dtype: DType) -> Result<(), String> {
        let format = match self.layout {
            DiskLayout::Nibbles { .. } => dtype == DType::Nvfp4,
            DiskLayout::RowCodes => dtype == DType::E4m3,
            DiskLayout::Plain => dtype != DType::Nvfp4,
            _ => !dtype.is_narrow(),
        };
        if !format {
            return Err(format!("`{}` has layout {}, which makes no {dtype}", self.tensor, self.word()));
        }
        let shape = match self.layout {
            DiskLayout::Nibbles { .. } => {
                let whole = |n: &u64| n.is_multiple_of(DType::BLOCK);
                self.shape.last().is_some_and(whole)
                    && self.slice.as_ref().and_then(|s| s.last()).is_none_or(|[start, n]| whole(start) && whole(n))
            }
            DiskLayout::Number | DiskLayout::Largest { .. } | DiskLayout::Same { .. } => {
                self.shape.iter().all(|n| *n == 1) && self.slice.is_none()
            }
            DiskLayout::RowCodes | DiskLayout::RowScales => !self.shape.is_empty(),
            DiskLayout::Plain => true,
        };
        if shape {
            return Ok(());
        }
        let part = self.slice.as_ref().map_or_else(String::new, |slice| format!(" and part {slice:?}"));
        Err(format!("`{}` has layout {} but shape {:?}{part}", self.tensor, self.word(), self.shape))
    }

    fn word(&self) -> &'static str {
        match self.layout {
            DiskLayout::Plain => "plain",
            DiskLayout::Nibbles { .. } => "nibbles",
            DiskLayout::Number => "number",
            DiskLayout::Largest { .. } => "largest",
            DiskLayout::Same { .. } => "same",
            DiskLayout::RowCodes => "row codes",
            DiskLayout::RowScales => "row scales",
        }
    }
}
