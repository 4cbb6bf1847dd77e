//! From an artifact's parts to a simulated device of a named target.

use super::cost::drafts;
use super::{Blank, Clock, CostModel, Sim};
use crate::{DraftFacts, ExecutorFacts};
use ir::{KernelModule, Plan};
use std::sync::Arc;
use targets::Target;

/// Ids that made-up tokens have; nothing that is predicted depends on how many there are.
const VOCAB: usize = 1 << 16;

/// What is predicted.
#[derive(Clone, Debug)]
pub struct Predicted<'a> {
    /// The model, as compiled for one rank.
    pub kernels: Arc<KernelModule>,
    /// Its plan; its KV layouts are those of one rank.
    pub plan: &'a Plan,
    /// Bytes of a rank's weights.
    pub weight_bytes: u64,
    /// Name or path of the target.
    pub target: &'a str,
    /// Share of the device's memory that weights and caches may take.
    pub memory_share: f64,
    /// Bytes of cache; `None` takes what memory is left.
    pub cache_bytes: Option<u64>,
    /// The drafter's kernels by rows of a block, ascending, if there is a drafter.
    pub drafter: Vec<(usize, Arc<KernelModule>)>,
}

impl Predicted<'_> {
    /// A device that only takes time. One memory serves all KV kinds, and the next step may follow before the last is read.
    pub fn device(&self, clock: Clock) -> Result<Sim<Blank>, String> {
        let target = Target::load(self.target).map_err(|e| e.to_string())?;
        let cache_bytes = match self.cache_bytes {
            Some(bytes) => bytes,
            None => self.cache_left(&target)?,
        };
        let page = |kind: &ir::KvLayout| usize::try_from(cache_bytes / kind.page_bytes().max(1)).unwrap_or(usize::MAX);
        let pages: Vec<usize> = self.plan.kv.iter().map(page).collect();
        let shared = (self.plan.kv.len() == 2).then_some(cache_bytes);
        let mut facts = ExecutorFacts::of_plan(self.plan, VOCAB, &pages, shared).ok_or(
            "E0314: the plan has no bucket, so nothing can run; compile the artifact for a target with buckets",
        )?;
        facts.takes_choices = true;
        facts.draft = self.draft_facts(&facts);
        let time = CostModel::new(self.kernels.clone(), target)?.with_drafter(&self.drafter);
        Ok(Sim::new(Blank::new(facts), Box::new(time), clock))
    }

    /// What an engine must know of the drafter. Its candidates are made up as all tokens are.
    fn draft_facts(&self, facts: &ExecutorFacts) -> Option<DraftFacts> {
        let (_, kernels) = self.drafter.last()?;
        let entry = kernels.entries.iter().find(|e| drafts(e))?.name.clone();
        let blocks = self.drafter.iter().map(|(rows, _)| *rows).collect();
        Some(DraftFacts { entry, blocks, sequences: facts.max_sequences, candidates: 1 })
    }

    fn cache_left(&self, target: &Target) -> Result<u64, String> {
        let name = &target.name;
        let memory = target.hardware.fact("memory_bytes").ok_or_else(|| {
            format!(
                "E0312: target `{name}` states no `memory_bytes` in `[hardware]`; give the size of the cache instead"
            )
        })?;
        let usable = memory * self.memory_share.clamp(0.0, 1.0);
        let taken = self.weight_bytes as f64 + self.plan.arena_bytes as f64;
        if taken >= usable {
            return Err(format!(
                "E0313: weights and working memory take {taken:.3e} bytes and target `{name}` has {usable:.3e} to use; compile for a larger mesh"
            ));
        }
        Ok((usable - taken) as u64)
    }
}
