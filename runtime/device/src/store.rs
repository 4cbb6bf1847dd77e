//! Where executors get weights from: the one question that they ask, so that tests can answer it too.

use crate::checkpoint::{Data, Weights};
use ir::Scope;
use std::sync::Arc;

/// Gives weights by scope, name and layer.
pub trait WeightStore: Sync {
    /// All elements of a weight, row-major, as binary32 (an exact widening of what is resident); `None` if there is no such weight.
    fn f32(&self, scope: Scope, name: &str, layer: Option<usize>) -> Option<Arc<Vec<f32>>>;

    /// How many elements a weight has.
    fn elements(&self, scope: Scope, name: &str, layer: Option<usize>) -> Option<usize> {
        self.f32(scope, name, layer).map(|whole| whole.len())
    }

    /// The same for the elements from `at` on, as many as `into` takes; false if there is no such weight, or not so much of it.
    fn read(&self, scope: Scope, name: &str, layer: Option<usize>, at: usize, into: &mut [f32]) -> bool {
        let whole = self.f32(scope, name, layer);
        let part = whole.as_ref().and_then(|whole| whole.get(at..at.checked_add(into.len())?));
        part.is_some_and(|part| {
            into.copy_from_slice(part);
            true
        })
    }
}

impl WeightStore for Weights {
    fn f32(&self, scope: Scope, name: &str, layer: Option<usize>) -> Option<Arc<Vec<f32>>> {
        self.get(scope, name, layer.unwrap_or(0)).ok().map(|tensor| tensor.data.f32())
    }

    fn read(&self, scope: Scope, name: &str, layer: Option<usize>, at: usize, into: &mut [f32]) -> bool {
        let Ok(tensor) = self.get(scope, name, layer.unwrap_or(0)) else { return false };
        let Some(end) = at.checked_add(into.len()) else { return false };
        match &tensor.data {
            Data::F32(data) => data.get(at..end).map(|part| into.copy_from_slice(part)).is_some(),
            Data::Bf16(data) => {
                let part = data.get(at..end);
                part.map(|part| part.iter().zip(into).for_each(|(b, x)| *x = numerics::bf16_value(*b))).is_some()
            }
        }
    }
}
