//! What every executor of this crate does around a step: facts and pools before, tokens and tickets after.

use crate::cache::Pool;
use crate::error::PrepareError;
use engine::{ExecutorFacts, PhysicalPage, Step, StepError, StepOutput, Ticket};
use ir::{Plan, RowsPerSequence};
use std::collections::VecDeque;

/// Facts for the engine. Limits are those of one bucket, the largest that takes any mixture of rows, so that every step within
/// them fits.
pub(crate) fn facts(plan: &Plan, vocab: usize, pool_pages: &[usize]) -> Result<ExecutorFacts, PrepareError> {
    let buckets = plan.entries.first().map_or(&[][..], |e| &e.buckets);
    let ragged = buckets.iter().rev().find(|b| b.bucket.rows == RowsPerSequence::Ragged);
    let Some(largest) = ragged.or(buckets.last()).map(|b| &b.bucket) else {
        return Err(PrepareError::Mismatch { plan: "has no bucket".to_owned(), kernels: "need one".to_owned() });
    };
    Ok(ExecutorFacts {
        vocab,
        max_tokens: largest.tokens as usize,
        max_sequences: largest.sequences as usize,
        max_wanted: largest.wanted as usize,
        kv: plan.kv.clone(),
        pool_pages: pool_pages.to_vec(),
    })
}

/// Cache memory of every kind.
pub(crate) fn pools(plan: &Plan, pool_pages: &[usize]) -> Result<Vec<Pool>, PrepareError> {
    if pool_pages.len() != plan.kv.len() {
        return Err(PrepareError::Mismatch {
            plan: format!("has {} KV kinds", plan.kv.len()),
            kernels: format!("are given pools for {}", pool_pages.len()),
        });
    }
    plan.kv.iter().zip(pool_pages).map(|(layout, pages)| Pool::new(layout, *pages)).collect()
}

/// Chooses tokens from the wanted rows' logits and hands out those asked for.
pub(crate) fn answer(step: &Step, logits: &[f32], vocab: usize) -> Result<StepOutput, StepError> {
    let mut output = StepOutput::default();
    for (wanted, row) in step.wanted.iter().zip(logits.chunks_exact(vocab.max(1))) {
        let token = wanted.sampling.as_ref().map(|s| engine::sample(row, s, wanted.mask.as_deref()));
        // One row that leaves no choice is the fault of its request; the others go on.
        if let Some(Err(error)) = &token {
            output.faults.push((output.tokens.len(), error.to_string()));
        }
        output.tokens.push(token.and_then(Result::ok));
        output.logits.push(wanted.logits.then(|| row.to_vec()));
    }
    Ok(output)
}

/// Copies whole pages inside a kind's pool.
pub(crate) fn copy_pages(
    pools: &mut [Pool],
    kind: usize,
    pages: &[(PhysicalPage, PhysicalPage)],
) -> Result<(), StepError> {
    let kinds = pools.len();
    let Some(pool) = pools.get_mut(kind) else {
        return Err(StepError::Contract(format!("pages of KV kind {kind} are to be copied, there are {kinds} kinds")));
    };
    for (from, to) in pages {
        let page = |p: PhysicalPage| usize::try_from(p).ok().filter(|p| *p < pool.pages);
        let (Some(from), Some(to)) = (page(*from), page(*to)) else {
            return Err(StepError::Contract(format!(
                "page {from} is to be copied to {to}, the pool has 0 to {}",
                pool.pages - 1
            )));
        };
        pool.copy_page(from, to);
    }
    Ok(())
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
        let ticket = Ticket(self.next);
        self.next += 1;
        self.outputs.push_back((ticket, output));
        ticket
    }

    /// Gives an output away, once.
    pub fn take(&mut self, ticket: Ticket) -> Result<Option<StepOutput>, StepError> {
        match self.outputs.iter().position(|(t, _)| *t == ticket) {
            Some(at) => Ok(self.outputs.remove(at).map(|(_, output)| output)),
            None => Err(StepError::Contract(format!("ticket {} was never given or was answered before", ticket.0))),
        }
    }
}
