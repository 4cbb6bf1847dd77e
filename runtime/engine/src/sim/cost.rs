//! Step times of a compiled model on a named target, from the target's cost model.

use super::StepTime;
use crate::Step;
use ir::KernelModule;
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
    kernels: Arc<KernelModule>,
    target: Target,
    known: HashMap<(usize, Load4), f64>,
}

/// Rows, sequences, wanted rows, context.
type Load4 = [u64; 4];

impl CostModel {
    /// The cost model of kernels on a target. The text of an error names what the target does not say.
    pub fn new(kernels: Arc<KernelModule>, target: Target) -> Result<Self, String> {
        let mut model = CostModel { kernels, target, known: HashMap::new() };
        if model.estimate(0, [1, 1, 1, 1]).is_none() {
            let (name, lacks) = (&model.target.name, "memory, arithmetic or link rates in `[hardware]`");
            return Err(format!(
                "E0312: target `{name}` states no {lacks}, so no time can be predicted; name a target with these facts"
            ));
        }
        Ok(model)
    }

    /// Seconds of a step of entry number `entry`.
    fn estimate(&mut self, entry: usize, load: Load4) -> Option<f64> {
        if let Some(seconds) = self.known.get(&(entry, load)) {
            return Some(*seconds);
        }
        let [tokens, sequences, wanted, context] = load;
        let load_of = Load { tokens, sequences, wanted, context };
        let cost = targets::cost::step(&self.kernels, self.kernels.entries.get(entry)?, &self.target, load_of);
        let seconds = cost.estimate(&self.target.hardware)?;
        self.known.insert((entry, load), seconds);
        Some(seconds)
    }
}

impl StepTime for CostModel {
    fn seconds(&mut self, step: &Step) -> f64 {
        let entry = self.kernels.entries.iter().position(|e| e.name == step.entry).unwrap_or(0);
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
            longest = longest.max(self.estimate(entry, load).unwrap_or(0.0));
        }
        longest
    }
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
