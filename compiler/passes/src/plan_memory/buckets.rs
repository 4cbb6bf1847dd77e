//! Shapes of an entry's steps.

use ir::{Bucket, KernelEntry, KernelModule, RowsPerSequence};
use targets::Target;

/// The buckets of an entry. A target states those of steps that bring token rows; an entry of a drafter follows the steps of
/// the model that it drafts for: one over rows has a bucket for each number of them, one over blocks for each number of
/// sequences.
pub(super) fn of(entry: &KernelEntry, kernels: &KernelModule, target: &Target) -> Vec<Bucket> {
    let followed = kernels.facts.captures.first().map(|c| c.entry.as_str());
    let stated = target.buckets_of(followed.unwrap_or(&entry.name));
    if followed.is_none() {
        return stated;
    }
    let name = || entry.name.clone();
    let mut buckets: Vec<Bucket> = match ir::block_rows(&entry.first().graph) {
        Some(block) => {
            let of = |sequences: u64| Bucket {
                entry: name(),
                rows: RowsPerSequence::Block(block),
                tokens: sequences.saturating_mul(block),
                sequences,
                wanted: sequences,
            };
            stated.iter().map(|b| of(b.sequences)).collect()
        }
        None => {
            let most = stated.iter().map(|b| b.sequences).max().unwrap_or(1);
            let of = |tokens: u64| Bucket {
                entry: name(),
                rows: RowsPerSequence::Ragged,
                tokens,
                sequences: tokens.min(most),
                wanted: 1,
            };
            stated.iter().map(|b| of(b.tokens)).collect()
        }
    };
    buckets.sort_by_key(|b| b.tokens);
    buckets.dedup();
    buckets
}
