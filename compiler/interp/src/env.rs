//! The environment in which the graphs of an entry exchange values by name.

use crate::Tensor;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Values by name. Cloning is cheap: tensors are shared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Env {
    values: BTreeMap<String, Arc<Tensor>>,
}

impl Env {
    /// An empty environment.
    pub fn new() -> Self {
        Env::default()
    }

    /// Sets a value, replacing one of the same name.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<Arc<Tensor>>) {
        self.values.insert(name.into(), value.into());
    }

    /// A value.
    pub fn get(&self, name: &str) -> Option<&Arc<Tensor>> {
        self.values.get(name)
    }

    /// All values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<Tensor>)> {
        self.values.iter().map(|(name, value)| (name.as_str(), value))
    }
}

impl<N: Into<String>, T: Into<Arc<Tensor>>> FromIterator<(N, T)> for Env {
    fn from_iter<I: IntoIterator<Item = (N, T)>>(items: I) -> Self {
        let mut env = Env::new();
        for (name, value) in items {
            env.insert(name, value);
        }
        env
    }
}
