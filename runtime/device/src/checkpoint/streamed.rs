//! Weights that stay in the checkpoint and are read when they are asked for: for devices, which have a memory of their own.

use super::error::{LoadErrors, Problem};
use super::load::{LoadOptions, Progress, read_at, resident};
use super::open::Checkpoint;
use super::resolve::{Source, resolve};
use super::scales;
use super::weights::Conversion;
use crate::store::WeightStore;
use artifact::WeightRecipe;
use ir::{DType, Scope};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Every weight of a model as a checkpoint has it. Its numbers are those that [`Weights::load`](super::Weights::load) gives.
pub struct Streamed<'a> {
    sources: HashMap<Option<usize>, HashMap<&'a str, Source<'a>>>,
    conversions: Vec<Conversion>,
    total_bytes: u64,
    done_bytes: AtomicU64,
    progress: Box<dyn Fn(Progress) + Send + Sync + 'a>,
    /// What reading found first.
    fault: Mutex<Option<Box<Problem>>>,
}

impl<'a> Streamed<'a> {
    /// Finds every weight that the recipes describe; `progress` hears of what is read later, from whichever thread reads.
    ///
    /// All problems of the checkpoint are found here but numbers that are none, which are seen where they are read
    /// ([`Streamed::fault`]).
    pub fn open(
        recipes: &'a [WeightRecipe],
        checkpoint: &'a Checkpoint,
        options: &LoadOptions,
        progress: impl Fn(Progress) + Send + Sync + 'a,
    ) -> Result<Streamed<'a>, LoadErrors> {
        let resolved = resolve(recipes, checkpoint, options).map_err(LoadErrors::new)?;
        scales::check(&resolved, checkpoint)?;
        let bytes = |recipe: &WeightRecipe| resident(recipe.dtype).bytes_for(recipe.elements().unwrap_or(0));
        let total_bytes = recipes.iter().map(bytes).fold(0, u64::saturating_add);
        let mut sources: HashMap<Option<usize>, HashMap<&str, Source>> = HashMap::new();
        for source in resolved.sources {
            sources.entry(source.recipe.layer).or_default().insert(&source.recipe.name, source);
        }
        let (conversions, done_bytes) = (resolved.conversions, AtomicU64::new(0));
        let fault = Mutex::default();
        Ok(Streamed { sources, conversions, total_bytes, done_bytes, progress: Box::new(progress), fault })
    }

    /// What reading converts.
    pub fn conversions(&self) -> &[Conversion] {
        &self.conversions
    }

    /// Why a weight could not be read, where one could not.
    pub fn fault(&self) -> Option<LoadErrors> {
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner).take();
        fault.map(|problem| LoadErrors::from(*problem))
    }

    fn source(&self, scope: Scope, name: &str, layer: Option<usize>) -> Option<&Source<'a>> {
        let layer = match scope {
            Scope::Model => None,
            Scope::Layer => Some(layer.unwrap_or(0)),
        };
        self.sources.get(&layer)?.get(name)
    }
}

impl WeightStore for Streamed<'_> {
    fn f32(&self, scope: Scope, name: &str, layer: Option<usize>) -> Option<Arc<Vec<f32>>> {
        let elements = self.source(scope, name, layer)?.recipe.elements()?;
        let mut numbers = vec![0.0; usize::try_from(elements).ok()?];
        self.read(scope, name, layer, 0, &mut numbers).then(|| Arc::new(numbers))
    }

    fn elements(&self, scope: Scope, name: &str, layer: Option<usize>) -> Option<usize> {
        usize::try_from(self.source(scope, name, layer)?.recipe.elements()?).ok()
    }

    fn read(&self, scope: Scope, name: &str, layer: Option<usize>, at: usize, into: &mut [f32]) -> bool {
        let Some(source) = self.source(scope, name, layer) else { return false };
        let elements = source.recipe.elements().unwrap_or(0);
        if at.checked_add(into.len()).is_none_or(|end| end as u64 > elements) {
            return false;
        }
        let kept = resident(source.recipe.dtype);
        // By way of the format that is kept, so that numbers beyond it are seen.
        let done = if kept == DType::Bf16 {
            let mut bits = vec![0u16; into.len()];
            let done = read_at(source, at, &mut bits);
            into.iter_mut().zip(bits).for_each(|(x, bits)| *x = numerics::bf16_value(bits));
            done
        } else {
            read_at(source, at, into)
        };
        if let Err(problem) = done {
            self.fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(problem);
            return false;
        }
        let bytes = kept.bytes_for(into.len() as u64);
        if bytes > 0 {
            let done_bytes = self.done_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
            // What several ranks hold is read for each of them.
            let total_bytes = self.total_bytes.max(done_bytes);
            (self.progress)(Progress { done_bytes, total_bytes });
        }
        true
    }
}
