//! What every executor of this crate does around a step: facts and pools before, tokens and tickets after.

use crate::cache::Cache;
use crate::error::PrepareError;
use engine::{ExecutorFacts, PhysicalPage, Step, StepError, StepOutput, Ticket};
use ir::Plan;
use std::collections::VecDeque;

/// Facts for the engine.
pub(crate) fn facts(
    plan: &Plan,
    vocab: usize,
    pool_pages: &[usize],
    shared_bytes: Option<u64>,
) -> Result<ExecutorFacts, PrepareError> {
    ExecutorFacts::of_plan(plan, vocab, pool_pages, shared_bytes)
        .ok_or_else(|| PrepareError::Mismatch { plan: "has no bucket".to_owned(), kernels: "need one".to_owned() })
}

/// Cache memory of every kind.
pub(crate) fn pools(plan: &Plan, pool_pages: &[usize]) -> Result<Cache, PrepareError> {
    if pool_pages.len() != plan.kv.len() {
        return Err(PrepareError::Mismatch {
            plan: format!("has {} KV kinds", plan.kv.len()),
            kernels: format!("are given pools for {}", pool_pages.len()),
        });
    }
    Cache::new(&plan.kv, pool_pages)
}

/// Chooses tokens from the wanted rows' logits, one row after the other, and hands out those asked for.
pub(crate) fn answer(step: &Step, logits: &[f32], vocab: usize) -> Result<StepOutput, StepError> {
    let needed = step.wanted.len() * vocab;
    if logits.len() < needed {
        let has = logits.len();
        return Err(StepError::Device(format!("{has} logits were computed, {needed} are needed for the wanted rows")));
    }
    Ok(engine::answer(step, |row| logits.get(row * vocab..(row + 1) * vocab).unwrap_or_default()))
}

/// A page of a kind by its number, the sink not among them where it must be a page of somebody.
pub(crate) fn page(pools: &Cache, kind: usize, page: PhysicalPage) -> Result<usize, StepError> {
    let all = pools.pages();
    let Some(pages) = all.get(kind) else {
        let kinds = all.len();
        return Err(StepError::Contract(format!("a page of KV kind {kind} is named, there are {kinds} kinds")));
    };
    let found = usize::try_from(page).ok().filter(|p| p < pages);
    found.ok_or_else(|| StepError::Contract(format!("page {page} is named, the pool has 0 to {}", pages - 1)))
}

/// Outputs of steps that ran and were not polled.
#[derive(Debug, Default)]
pub(crate) struct Done {
    next: u64,
    outputs: VecDeque<(Ticket, StepOutput)>,
}

impl Done {
    /// Keeps an output.
    pub fn keep(&mut self, output: StepOutput) -> Ticket {
        let ticket = self.ticket();
        self.keep_as(ticket, output);
        ticket
    }

    /// A ticket for an output that is still to come.
    pub fn ticket(&mut self) -> Ticket {
        self.next += 1;
        Ticket(self.next - 1)
    }

    /// Keeps an output under its ticket.
    pub fn keep_as(&mut self, ticket: Ticket, output: StepOutput) {
        self.outputs.push_back((ticket, output));
    }

    /// Gives an output away, once.
    pub fn take(&mut self, ticket: Ticket) -> Result<Option<StepOutput>, StepError> {
        match self.outputs.iter().position(|(t, _)| *t == ticket) {
            Some(at) => Ok(self.outputs.remove(at).map(|(_, output)| output)),
            None => Err(StepError::Contract(format!("ticket {} was never given or was answered before", ticket.0))),
        }
    }
}
