//! An executor that computes nothing: every wanted row gets a token made up from the request's seed and the position.

use crate::{
    Block, Draft, Executor, ExecutorFacts, PhysicalPage, SampledToken, Sampling, Step, StepError, StepOutput, Ticket,
};

/// Bytes of cache for which one byte stands where the host copies a layer: a copy of what nobody computed needs no more.
pub const STAND_IN: u64 = 4096;

/// Share of drafts that stand if nothing else is said.
const ACCEPTANCE: f64 = 0.8;

/// The executor. It answers at once and keeps the memory of steps and outputs.
#[derive(Debug)]
pub struct Blank {
    facts: ExecutorFacts,
    spare: Vec<Step>,
    outputs: Vec<StepOutput>,
    done: Vec<(Ticket, StepOutput)>,
    next: u64,
    /// Bytes of one layer of a page by kind, in stand-ins.
    layers: Vec<usize>,
    acceptance: f64,
}

impl Blank {
    /// An executor with these facts.
    pub fn new(facts: ExecutorFacts) -> Self {
        let layer = |kind: &ir::KvLayout| (kind.page_bytes() / kind.layers.len().max(1) as u64).div_ceil(STAND_IN);
        let layers = facts.kv.iter().map(|kind| layer(kind) as usize).collect();
        Blank {
            facts,
            spare: Vec::new(),
            outputs: Vec::new(),
            done: Vec::new(),
            next: 0,
            layers,
            acceptance: ACCEPTANCE,
        }
    }

    /// The token that stands at a position of a request.
    pub fn token(vocab: usize, sampling: &Sampling) -> u32 {
        let mixed = (sampling.seed ^ sampling.position.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed ^ (mixed >> 29)) % vocab.max(1) as u64) as u32
    }

    /// Makes such a share of drafts stand, each by itself, in blocks whose length nobody forces.
    pub fn set_acceptance(&mut self, share: f64) {
        self.acceptance = share;
    }

    /// Tokens that a block leaves, of at most `rows`.
    fn run(&self, block: &Block, rows: usize) -> usize {
        let stands = |slot: &usize| block.coins.get(*slot).is_some_and(|coin| f64::from(*coin) < self.acceptance);
        let natural = || 1 + (0..rows.saturating_sub(1)).take_while(stands).count();
        block.forced.unwrap_or_else(natural).clamp(1, rows.max(1))
    }

    fn layer(&self, kind: usize, layer: usize) -> Result<usize, StepError> {
        let known = self.facts.kv.get(kind).is_some_and(|k| layer < k.layers.len());
        match self.layers.get(kind).filter(|_| known) {
            Some(bytes) => Ok(*bytes),
            None => Err(StepError::Contract(format!("there is no layer {layer} of KV kind {kind}"))),
        }
    }
}

impl Executor for Blank {
    fn facts(&self) -> &ExecutorFacts {
        &self.facts
    }

    fn submit(&mut self, mut step: Step) -> Result<Ticket, StepError> {
        let mut output = self.outputs.pop().unwrap_or_default();
        for wanted in &step.wanted {
            let id = wanted.sampling.as_ref().map(|sampling| Blank::token(self.facts.vocab, sampling));
            output.tokens.push(id.map(|id| SampledToken { id, ..SampledToken::default() }));
            output.logits.push(wanted.logits.then(|| vec![0.0; self.facts.vocab]));
        }
        for block in &step.blocks {
            let rows = step.sequences.get(block.sequence).map_or(1, |s| s.len);
            let rejected = output.tokens.iter_mut().skip(block.wanted).take(rows).skip(self.run(block, rows));
            rejected.for_each(|token| *token = None);
        }
        for asked in &step.drafts {
            let n = asked.coins.len();
            output.drafts.push(Draft { tokens: vec![0; n], candidates: vec![0; n], probabilities: vec![1.0; n] });
        }
        step.clear();
        self.spare.push(step);
        let ticket = Ticket(self.next);
        self.next += 1;
        self.done.push((ticket, output));
        Ok(ticket)
    }

    fn poll(&mut self, ticket: Ticket) -> Result<Option<StepOutput>, StepError> {
        match self.done.iter().position(|(t, _)| *t == ticket) {
            Some(place) => Ok(Some(self.done.remove(place).1)),
            None => Err(StepError::Contract(format!("ticket {} is not under way", ticket.0))),
        }
    }

    fn copy_pages(&mut self, _: usize, _: &[(PhysicalPage, PhysicalPage)]) -> Result<(), StepError> {
        Ok(())
    }

    fn read_layer(&mut self, kind: usize, layer: usize, _: PhysicalPage, out: &mut Vec<u8>) -> Result<(), StepError> {
        let bytes = self.layer(kind, layer)?;
        out.resize(out.len() + bytes, 0);
        Ok(())
    }

    fn write_layer(&mut self, kind: usize, layer: usize, _: PhysicalPage, bytes: &[u8]) -> Result<(), StepError> {
        let needed = self.layer(kind, layer)?;
        if bytes.len() == needed {
            return Ok(());
        }
        Err(StepError::Contract(format!("a layer of KV kind {kind} has {needed} stand-ins, {} came", bytes.len())))
    }

    fn spare(&mut self) -> Option<Step> {
        self.spare.pop()
    }

    fn take_back(&mut self, mut output: StepOutput) {
        output.clear();
        self.outputs.push(output);
    }
}
