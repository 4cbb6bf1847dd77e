//! The toy's drafter: as good as it is told to be, with a cache of its own in the pages of the first kind.
//!
//! Its cache must hold every committed token before it drafts, and its scratch rows spoil what lies behind, as a real
//! drafter's do.

use super::{Model, Toy};
use crate::{Draft, DraftFacts, Step, StepError, StepOutput, lasting_rows};

/// What the drafter's scratch rows leave.
const SCRATCH: i32 = -2;

/// A drafter.
pub struct Drafter {
    model: Model,
    /// Share of slots in which it knows the model's own scores; it has them upside down in the others.
    right: f64,
    candidates: usize,
    /// Token per page and place of the first kind.
    pub(super) cache: Vec<i32>,
}

impl Toy {
    /// Gives the toy a drafter for blocks of at most so many rows, which is right in so many of a hundred slots. `model` is
    /// the toy's own.
    pub fn with_drafter(mut self, model: Model, rows: usize, right: usize, candidates: usize) -> Toy {
        let blocks = (2..=rows).collect();
        let sequences = self.facts.max_sequences;
        self.facts.draft = Some(DraftFacts { entry: "draft".into(), blocks, sequences, candidates });
        if let Some(kind) = self.facts.kv.first_mut() {
            kind.layers.push(kind.layers.len());
        }
        let cache = vec![-1; self.cache[0].len()];
        self.drafter = Some(Drafter { model, right: right as f64 / 100.0, candidates, cache });
        self
    }

    /// The drafter's cache, where this kind's pages hold it.
    pub(super) fn drafts_of(&mut self, kind: usize) -> Option<&mut Vec<i32>> {
        self.drafter.as_mut().filter(|_| kind == 0).map(|d| &mut d.cache)
    }

    /// What a layer of a kind holds: the last layer of the first kind is the drafter's.
    pub(super) fn layer(&mut self, kind: usize, layer: usize) -> &mut Vec<i32> {
        let is_last = layer + 1 == self.facts.kv[kind].layers.len();
        match self.drafter.as_mut().filter(|_| kind == 0 && is_last) {
            Some(drafter) => &mut drafter.cache,
            None => &mut self.cache[kind],
        }
    }

    /// Brings the drafter's cache up to date with the rows that stay.
    pub(super) fn remember(&mut self, step: &Step, output: &StepOutput) -> Result<(), StepError> {
        let Some(mut drafter) = self.drafter.take() else { return Ok(()) };
        let lasting = lasting_rows(step, output);
        for sequence in &step.sequences {
            for row in (sequence.start..sequence.start + sequence.len).filter(|row| lasting[*row]) {
                let position = step.positions[row] as usize;
                let place = self.place(step, &sequence.pages, 0, position).map_err(StepError::Contract)?;
                drafter.cache[place] = self.token(step.tokens[row])?;
            }
        }
        self.drafter = Some(drafter);
        Ok(())
    }

    /// Runs a draft step.
    pub(super) fn draft(&self, step: &Step, drafter: &mut Drafter) -> Result<StepOutput, StepError> {
        let contract = StepError::Contract;
        let facts = self.facts.draft.clone().ok_or_else(|| contract("there is no drafter".into()))?;
        let rows = step.sequences.first().map_or(0, |s| s.len);
        if !facts.blocks.contains(&rows) || step.sequences.len() > facts.sequences || !step.wanted.is_empty() {
            return Err(contract(format!("{} blocks of {rows} rows", step.sequences.len())));
        }
        if step.drafts.len() != step.sequences.len() || step.tokens.len() != rows * step.sequences.len() {
            return Err(contract(format!("{} sequences, {} drafts", step.sequences.len(), step.drafts.len())));
        }
        let mut output = StepOutput::default();
        let mut scratch = Vec::new();
        for (sequence, asked) in step.sequences.iter().zip(&step.drafts) {
            let first = step.positions[sequence.start] as usize;
            if sequence.len != rows || asked.coins.len() + 1 != rows {
                return Err(contract(format!("a block of {} rows among blocks of {rows}", sequence.len)));
            }
            let mut history = Vec::new();
            for position in 0..first + rows {
                let place = self.place(step, &sequence.pages, 0, position).map_err(contract)?;
                if position >= first {
                    scratch.push(place);
                    continue;
                }
                let (own, models) = (drafter.cache[place], self.cache[0][place]);
                if own != models || own < 0 {
                    return Err(contract(format!("the drafter has {own} at {position}, the model {models}")));
                }
                history.push(own as u32);
            }
            history.push(step.tokens[sequence.start] as u32);
            output.drafts.push(drafter.path(history, asked.temperature, &asked.coins)?);
        }
        scratch.into_iter().for_each(|place| drafter.cache[place] = SCRATCH);
        Ok(output)
    }
}

impl Drafter {
    /// A path of drafts behind a history.
    fn path(&mut self, mut history: Vec<u32>, temperature: f32, coins: &[f32]) -> Result<Draft, StepError> {
        let mut draft = Draft::default();
        for coin in coins {
            let mut scores = (self.model)(&history)?;
            let mood = history.iter().fold(5u64, |h, t| (h ^ u64::from(*t)).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            if (mood >> 40) as f64 / (1u64 << 24) as f64 >= self.right {
                scores.iter_mut().for_each(|x| *x = -*x);
            }
            let mut ids: Vec<u32> = (0..scores.len() as u32).collect();
            ids.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b)));
            ids.truncate(self.candidates);
            let best = scores[ids[0] as usize];
            let weight = |id: &u32| ((scores[*id as usize] - best) / temperature.max(1e-5)).exp();
            let total: f32 = ids.iter().map(weight).sum();
            let q: Vec<f32> = ids.iter().map(|id| weight(id) / total).collect();
            let mut sum = 0.0;
            let below = q.iter().filter(|q| {
                sum += **q;
                *coin >= sum
            });
            let chosen = below.count().min(ids.len() - 1);
            history.push(ids[chosen]);
            draft.tokens.push(ids[chosen]);
            draft.candidates.extend(ids);
            draft.probabilities.extend(q);
        }
        Ok(draft)
    }
}
