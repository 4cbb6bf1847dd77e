//! Weights in memory, as executors take them.

use super::convert::widened;
use super::error::{LoadErrors, Problem};
use super::header::FileDType;
use artifact::WeightRecipe;
use ir::{DType, Scope, WeightRef};
use std::collections::HashMap;
use std::sync::Arc;

/// Every weight of a model, in its resident format.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    /// By layer (`None` for the model's own), then by name.
    pub(super) tensors: HashMap<Option<usize>, HashMap<String, WeightTensor>>,
    pub(super) conversions: Vec<Conversion>,
}

/// One weight.
#[derive(Clone, Debug)]
pub struct WeightTensor {
    /// Lengths of the value's axes, outermost first.
    pub shape: Vec<u64>,
    /// Row-major elements.
    pub data: Data,
}

/// Elements in their resident format.
#[derive(Clone, Debug)]
pub enum Data {
    /// IEEE binary32.
    F32(Arc<Vec<f32>>),
    /// Bits of bf16 numbers; see `numerics::bf16_value`.
    Bf16(Arc<Vec<u16>>),
}

impl Data {
    /// The format.
    pub fn dtype(&self) -> DType {
        match self {
            Data::F32(_) => DType::F32,
            Data::Bf16(_) => DType::Bf16,
        }
    }

    /// The elements as binary32: shared where they are, else widened into a new copy (exact).
    pub fn f32(&self) -> Arc<Vec<f32>> {
        match self {
            Data::F32(data) => Arc::clone(data),
            Data::Bf16(data) => Arc::new(widened(data)),
        }
    }
}

/// One conversion that loading did, over the whole checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// Format in the files.
    pub from: FileDType,
    /// Resident format.
    pub to: DType,
    /// Whether it loses bits.
    pub lossy: bool,
    /// Whether stored codes were multiplied by their scales.
    pub unscaled: bool,
    /// Tensors converted; a tensor that two weights share counts for each.
    pub tensors: u64,
    /// Elements converted.
    pub elements: u64,
}

impl Conversion {
    /// Its name in reports: `copy BF16`, `widen BF16 to f32`, `narrow F32 to bf16`, `unscale U8 to f32`.
    pub fn name(&self) -> String {
        if self.unscaled {
            return format!("unscale {} to {}", self.from, self.to);
        }
        match (self.lossy, self.from.bits() == self.to.element_bytes().map(|bytes| 8 * bytes)) {
            (true, _) => format!("narrow {} to {}", self.from, self.to),
            (false, true) => format!("copy {}", self.from),
            (false, false) => format!("widen {} to {}", self.from, self.to),
        }
    }
}

impl Weights {
    /// A weight; `layer` counts for layer weights only.
    pub fn get(&self, scope: Scope, name: &str, layer: usize) -> Result<&WeightTensor, LoadErrors> {
        let layer = match scope {
            Scope::Model => None,
            Scope::Layer => Some(layer),
        };
        self.tensors.get(&layer).and_then(|of_layer| of_layer.get(name)).ok_or_else(|| {
            let weight = match layer {
                Some(layer) => format!("W.{name} of layer {layer}"),
                None => format!("W.{name}"),
            };
            Problem::Unknown { weight }.into()
        })
    }

    /// The weight that a graph means when it runs as layer `layer` of `layers`.
    pub fn of(&self, reference: &WeightRef, layer: usize, layers: usize) -> Result<&WeightTensor, LoadErrors> {
        match reference {
            WeightRef::Model(name) => self.get(Scope::Model, name, layer),
            WeightRef::Layer(name) => self.get(Scope::Layer, name, layer),
            WeightRef::FirstLayer(name) => self.get(Scope::Layer, name, 0),
            WeightRef::OfLayer { layer, name } => self.get(Scope::Layer, name, *layer),
            WeightRef::Next { layer: name, .. } if layer + 1 < layers => self.get(Scope::Layer, name, layer + 1),
            WeightRef::Next { last, .. } => self.get(Scope::Model, last, layer),
            // Joined by the executor that can; under its own name there is none.
            WeightRef::Packed { into, .. } => self.get(Scope::Model, into, layer),
        }
    }

    /// A weight as binary32; see [`Data::f32`].
    pub fn f32(&self, scope: Scope, name: &str, layer: usize) -> Result<Arc<Vec<f32>>, LoadErrors> {
        self.get(scope, name, layer).map(|tensor| tensor.data.f32())
    }

    /// What loading converted; empty for synthetic weights.
    pub fn conversions(&self) -> &[Conversion] {
        &self.conversions
    }

    /// Number of weights.
    pub fn len(&self) -> usize {
        self.tensors.values().map(HashMap::len).sum()
    }

    /// Whether there is no weight.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    pub(super) fn insert(&mut self, recipe: &WeightRecipe, tensor: WeightTensor) {
        self.tensors.entry(recipe.layer).or_default().insert(recipe.name.clone(), tensor);
    }
}
