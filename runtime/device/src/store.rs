//! Where executors get weights from: the one question that they ask, so that tests can answer it too.

use crate::checkpoint::Weights;
use ir::Scope;
use std::sync::Arc;

/// Gives weights by scope, name and layer.
pub trait WeightStore {
    /// All elements of a weight, row-major, as binary32 (an exact widening of what is resident); `None` if there is no such weight.
    fn f32(&self, scope: Scope, name: &str, layer: Option<usize>) -> Option<Arc<Vec<f32>>>;
}

impl WeightStore for Weights {
    fn f32(&self, scope: Scope, name: &str, layer: Option<usize>) -> Option<Arc<Vec<f32>>> {
        self.get(scope, name, layer.unwrap_or(0)).ok().map(|tensor| tensor.data.f32())
    }
}
