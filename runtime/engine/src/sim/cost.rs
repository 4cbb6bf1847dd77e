//! Step times of a compiled model on a named target, from the target's cost model.

use super::StepTime;
use crate::Step;
use ir::{KernelEntry, KernelModule};
use std::collections::HashMap;
use std::sync::Arc;
use targets::Target;
use targets::cost::Load;

/// Bits of a number that are looked at; what lies between two such numbers counts as the larger, at most 1/16 more.
const BITS: u32 = 5;

/// Predicted step times. A prediction is the cost model's estimate: floors of all kernels, one after the other, with their
/// launches and exchanges. Nothing in it is measured on the model.
///
/// The cost model knows steps whose sequences are alike. A mixed step counts as one with as many rows and sequences and
/// with their mean context, over sequences or over rows, whichever takes longer.
pub struct CostModel {
    /// The model, and behind it its drafter for blocks of each length.
    modules: Vec<Arc<KernelModule>>,
    /// Rows of the blocks of the modules behind the first.
    blocks: Vec<usize>,
    target: Target,
    known: HashMap<(usize, usize, Load4), f64>,
}

/// Rows, sequences, wanted rows, context.
type Load4 = [u64; 4];

impl CostModel {
    /// The cost model of kernels on a target. The text of an error names what the target does not say.
    pub fn new(kernels: Arc<KernelModule>, target: Target) -> Result<Self, String> {
        let mut model = CostModel { modules: vec![kernels], blocks: Vec::new(), target, known: HashMap::new() };
        if model.estimate(0, 0, [1, 1, 1, 1]).is_none() {
            let (name, lacks) = (&model.target.name, "memory, arithmetic or link rates in `[hardware]`");
            return Err(format!(
                "E0312: target `{name}` states no {lacks}, so no time can be predicted; name a target with these facts"
            ));
        }
        Ok(model)
    }

    /// With a drafter: its kernels by rows of a block.
    pub fn with_drafter(mut self, drafter: &[(usize, Arc<KernelModule>)]) -> Self {
        self.blocks.extend(drafter.iter().map(|(rows, _)| *rows));
        self.modules.extend(drafter.iter().map(|(_, kernels)| kernels.clone()));
        self
    }

    /// Seconds of an entry of a module.
    fn estimate(&mut self, module: usize, entry: usize, load: Load4) -> Option<f64> {
        if let Some(seconds) = self.known.get(&(module, entry, load)) {
            return Some(*seconds);
        }
        let [tokens, sequences, wanted, context] = load;
        let load_of = Load { tokens, sequences, wanted, context };
        let kernels = self.modules.get(module)?;
        let cost = targets::cost::step(kernels, kernels.entries.get(entry)?, &self.target, load_of);
        let seconds = cost.estimate(&self.target.hardware)?;
        self.known.insert((module, entry, load), seconds);
        Some(seconds)
    }

    /// Place of an entry among a module's.
    fn entry(&self, module: usize, is_it: impl Fn(&KernelEntry) -> bool) -> Option<usize> {
        self.modules.get(module)?.entries.iter().position(is_it)
    }

    /// The longest that an entry takes by both means of the sequences' contexts.
    fn longest(&mut self, module: usize, entry: usize, step: &Step) -> f64 {
        let (rows, sequences) = (step.tokens.len() as u64, step.sequences.len() as u64);
        let (mut by_sequence, mut by_row) = (0u64, 0u64);
        for s in &step.sequences {
            let context = step.positions.get(s.start + s.len.max(1) - 1).map_or(0, |p| *p as u64 + 1);
            by_sequence += context;
            by_row += context * s.len as u64;
        }
        let means = [by_sequence / sequences.max(1), by_row / rows.max(1)];
        let wanted = round_up(step.wanted.len() as u64);
        let mut longest: f64 = 0.0;
        for mean in means {
            let context = round_up(mean.max(rows.div_ceil(sequences.max(1))));
            let load = [round_up(rows), round_up(sequences), wanted, context];
            longest = longest.max(self.estimate(module, entry, load).unwrap_or(0.0));
        }
        longest
    }
}

impl StepTime for CostModel {
    fn seconds(&mut self, step: &Step) -> f64 {
        let rows = step.sequences.first().map_or(1, |s| s.len);
        if !step.drafts.is_empty() {
            let block = self.blocks.iter().position(|of| *of >= rows).unwrap_or(self.blocks.len().saturating_sub(1));
            let entry = self.entry(1 + block, |e| e.name == step.entry);
            return entry.map_or(0.0, |entry| self.longest(1 + block, entry, step));
        }
        let entry = self.entry(0, |e| e.name == step.entry).unwrap_or(0);
        let own = self.longest(0, entry, step);
        // The drafter's cache follows: by the entry of it that drafts nothing.
        let follows = self.entry(1, |e| !drafts(e));
        own + follows.map_or(0.0, |entry| self.longest(1, entry, step))
    }
}

/// Whether an entry of a drafter makes blocks of rows; the other one brings its cache up to date.
pub(super) fn drafts(entry: &KernelEntry) -> bool {
    ir::block_rows(&entry.first().graph).is_some()
}

/// The next number that has no more than [`BITS`] bits that count.
fn round_up(n: u64) -> u64 {
    let drop = (u64::BITS - n.leading_zeros()).saturating_sub(BITS);
    n.div_ceil(1 << drop) << drop
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_bits_are_enough() {
        assert_eq!([0, 1, 31, 32, 33, 1000, 74_160].map(round_up), [0, 1, 31, 32, 34, 1024, 77_824]);
        assert!(
            (1..5000).all(|n| round_up(n) >= n && round_up(n) * 16 <= n * 17 && round_up(round_up(n)) == round_up(n))
        );
    }
}
