//! A path through the candidates of a block's slots: the interpreter's own step from slot to slot, a row at a time.

use super::nest::Shape;
use crate::view::{Target, View};
use ir::WalkWhat;

/// A walking kernel.
#[derive(Debug)]
pub(crate) struct Walk {
    what: WalkWhat,
    slots: usize,
    candidates: usize,
    /// From one row of the step to the next, in scores, ids, temperatures and draws.
    strides: [usize; 4],
}

impl Walk {
    /// Prepares the kernel for scores of each candidate behind each of the slot before, ids, temperatures and draws.
    pub fn new(what: WalkWhat, operands: &[Shape], out: &Shape) -> Result<Walk, String> {
        let [score, ids, temp, coin] = operands else {
            return Err(format!("a walk of {} operands", operands.len()));
        };
        let lengths = |s: &Shape| s.axes.iter().map(|(_, n)| *n).collect::<Vec<_>>();
        let [slots, before, candidates] = lengths(score)[..] else {
            return Err(format!("a walk through scores with axes {:?}", score.axes));
        };
        let left = if what == WalkWhat::Tokens { vec![slots] } else { vec![slots, candidates] };
        let fits = before == candidates
            && candidates > 0
            && lengths(ids) == [slots, candidates]
            && temp.row == 1
            && lengths(coin) == [slots]
            && lengths(out) == left;
        if !fits {
            return Err(format!("a walk from {before} to {candidates} candidates of {slots} slots"));
        }
        let rows = out.rows.as_deref();
        Ok(Walk { what, slots, candidates, strides: [score, ids, temp, coin].map(|s| s.row_stride(rows)) })
    }

    /// Elements that are looked at.
    pub fn terms(&self) -> usize {
        self.slots * self.candidates
    }

    pub fn run(&self, operands: &[View<'_>], mut out: Target<'_>) {
        let [score, ids, temp, coin] = [operands[0], operands[1], operands[2], operands[3]];
        let k = self.candidates;
        let row = if self.what == WalkWhat::Tokens { self.slots } else { self.slots * k };
        let mut scores = vec![0.0; k];
        for r in 0..out.len().checked_div(row).unwrap_or(0) {
            let [from, first_id, at_temp, at_coin] = self.strides.map(|s| s * r);
            let (temperature, mut at) = (temp.number(at_temp), 0);
            for slot in 0..self.slots {
                let scores = score.numbers(from + (slot * k + at) * k, k, &mut scores);
                let (chosen, q) = interp::walk_slot(scores, temperature, coin.number(at_coin + slot));
                match self.what {
                    WalkWhat::Tokens => out.copy(r * row + slot, ids, first_id + slot * k + chosen, 1),
                    WalkWhat::Probs => out.put(r * row + slot * k, &q),
                }
                at = chosen;
            }
        }
    }
}
