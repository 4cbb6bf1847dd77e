//! Which matrices a quantised checkpoint may keep in a narrow format, and which one does.

use crate::{DiskForm, DiskLayout, Scope, Stored, TensorType, Weight};

/// The last part of the name of a matrix' tensor; what belongs to it has another one in its place.
const MATRIX: &str = ".weight";
/// What passes call the part of a matrix that has its elements.
const CODES: &str = "codes";

impl Weight {
    /// The form in which quantisers write the weight: one matrix a tensor, called `weight` in its module. `None` for a weight
    /// that has no such form, that is pinned to a format, or that the spec keeps from being quantised.
    pub fn quantised_form(&self) -> Option<&DiskForm> {
        let allowed = self.quant && !self.pinned;
        self.disk
            .iter()
            .find(|form| form.slice.is_none() && form.shape.len() == 2 && form.tensor.ends_with(MATRIX))
            .filter(|_| allowed)
    }
}

impl Weight {
    /// Whether it is a number that goes with a quantised matrix or with cached rows, and no parameter of the model. Passes
    /// call what a matrix consists of by its name, a dot and a word, which no name of a spec has; of those only codes are
    /// parameters.
    pub fn is_scale(&self) -> bool {
        self.name.rsplit_once('.').is_some_and(|(_, part)| part != CODES)
    }

    /// How many elements of one instance may differ: all of them, or as many as there are tensors where each holds one number
    /// for many elements.
    pub fn distinct_elements(&self) -> u64 {
        let once = !self.disk.is_empty() && self.disk.iter().all(|form| form.layout == DiskLayout::Number);
        match self.disk.first().filter(|_| once) {
            // Tensors are spread over leading axes.
            Some(form) => TensorType::new(self.dtype, self.ty().axes.into_iter().take(form.spread.len()).collect())
                .fixed_elements(),
            None => self.elements(),
        }
    }
}

impl DiskForm {
    /// Name of the module that the tensor belongs to, with the placeholders of `tensor`; the tensor's own name if it is none
    /// of a module.
    pub fn module(&self) -> &str {
        self.tensor.strip_suffix(MATRIX).unwrap_or(&self.tensor)
    }

    /// Name of a tensor of the same module, with the same placeholders.
    pub fn beside(&self, end: &str) -> String {
        format!("{}.{end}", self.module())
    }
}

impl Stored {
    /// Whether the checkpoint keeps the weight in its format, in this layer for a layer's weight. That a product reads it, as
    /// a quantised weight must be, is for passes to see.
    pub fn holds(&self, weight: &Weight, layer: Option<usize>) -> bool {
        let plain = self.plain.iter().filter(|p| p.weight == weight.name).any(|p| match (&p.layers, layer) {
            (None, _) => true,
            (Some(layers), Some(layer)) => weight.scope == Scope::Layer && layers.contains(&layer),
            (Some(_), None) => false,
        });
        !plain && weight.quantised_form().is_some()
    }
}
