//! A toy executor for tests: it keeps token ids instead of keys and values, and its model is a closure over a history.
//!
//! Every history is read back through the page tables of the step, as attention would, so a wrong page, a stale
//! translation or a row at the wrong position changes the answer or is refused.

use crate::{Executor, ExecutorFacts, PhysicalPage, Step, StepError, StepOutput, Ticket, sample};
use ir::{DType, KvLayout};

/// Logits after a history.
pub type Model = Box<dyn FnMut(&[u32]) -> Result<Vec<f32>, StepError> + Send>;

/// The executor.
pub struct Toy {
    facts: ExecutorFacts,
    model: Model,
    /// Token per kind, page and place in the page; `-1` where nothing was stored.
    cache: Vec<Vec<i32>>,
    done: Vec<(Ticket, Result<StepOutput, StepError>)>,
    /// Polls that answer "not yet" before each step is done.
    pub delay_polls: usize,
    polls_left: usize,
    next: u64,
}

/// Facts of a toy: two KV kinds with one page size, the second with a window.
pub fn facts(vocab: usize, page_tokens: usize, pages: usize, max_tokens: usize) -> ExecutorFacts {
    let layout = |kind: &str, window| KvLayout {
        kind: kind.into(),
        layers: vec![0],
        dtype: DType::F32,
        page_tokens: page_tokens as u64,
        page_stride: page_tokens as u64,
        layer_stride: page_tokens as u64,
        token_stride: 1,
        head_stride: 1,
        v_offset: 0,
        heads: 1,
        head_elements: 1,
        window,
    };
    ExecutorFacts {
        vocab,
        max_tokens,
        max_sequences: 4,
        max_wanted: 4,
        kv: vec![layout("whole", None), layout("near", Some(page_tokens as u64))],
        pool_pages: vec![pages + 1, pages + 1],
    }
}

/// Logits that choose one token for certain.
pub fn certain(vocab: usize, token: u32) -> Vec<f32> {
    (0..vocab).map(|id| if id == token as usize { 20.0 } else { -(id as f32) / vocab as f32 }).collect()
}

/// Logits that depend on every token of the history and on their order.
pub fn hashed(vocab: usize, history: &[u32]) -> Vec<f32> {
    let mix = |h: u64, x: u64| (h ^ x).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    let state = history.iter().fold(7, |h, token| mix(h, u64::from(*token) + 1));
    (0..vocab as u64).map(|id| (mix(mix(state, id), 3) >> 40) as f32 / (1 << 21) as f32).collect()
}

impl Toy {
    /// A toy with these facts and this model.
    pub fn new(facts: ExecutorFacts, model: Model) -> Self {
        let cache = facts
            .kv
            .iter()
            .zip(&facts.pool_pages)
            .map(|(kind, pages)| vec![-1; pages * kind.page_tokens as usize])
            .collect();
        Toy { facts, model, cache, done: Vec::new(), delay_polls: 0, polls_left: 0, next: 0 }
    }

    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        let contract = |text: String| StepError::Contract(text);
        let rows = step.tokens.len();
        if rows == 0 || rows > self.facts.max_tokens || step.sequences.len() > self.facts.max_sequences {
            return Err(contract(format!("{rows} rows of {} sequences", step.sequences.len())));
        }
        let mut output = StepOutput::default();
        let mut next_row = 0;
        for sequence in &step.sequences {
            if sequence.start != next_row || sequence.len == 0 {
                return Err(contract(format!("a sequence starts at row {}, not {next_row}", sequence.start)));
            }
            next_row += sequence.len;
            for row in sequence.start..next_row {
                let position = step.positions[row] as usize;
                if row > sequence.start && step.positions[row] != step.positions[row - 1] + 1 {
                    return Err(contract(format!("positions of row {row} do not follow")));
                }
                for kind in 0..self.facts.kv.len() {
                    let place = self.place(step, &sequence.pages, kind, position).map_err(contract)?;
                    self.cache[kind][place] = step.tokens[row];
                }
                let Some(wanted) = step.wanted.iter().find(|w| w.row == row) else { continue };
                let mut history = Vec::new();
                for position in 0..=position {
                    let token = self.cache[0][self.place(step, &sequence.pages, 0, position).map_err(contract)?];
                    history.push(
                        u32::try_from(token).map_err(|_| contract(format!("position {position} was never stored")))?,
                    );
                }
                let logits = (self.model)(&history)?;
                let token = wanted.sampling.as_ref().map(|s| {
                    assert_eq!(s.position, history.len() as u64, "position of the draw");
                    sample(&logits, s, wanted.mask.as_deref())
                });
                if let Some(Err(error)) = &token {
                    output.faults.push((output.tokens.len(), error.to_string()));
                }
                output.tokens.push(token.and_then(Result::ok));
                output.logits.push(wanted.logits.then_some(logits));
            }
        }
        if next_row == rows {
            Ok(output)
        } else {
            Err(contract(format!("{next_row} of {rows} rows belong to a sequence")))
        }
    }

    fn place(&self, step: &Step, pages: &[u32], kind: usize, position: usize) -> Result<usize, String> {
        let page_tokens = self.facts.kv[kind].page_tokens as usize;
        let page = pages.get(position / page_tokens).ok_or_else(|| format!("no page for position {position}"))?;
        match step.translation[kind].get(*page as usize) {
            Some(physical) if *physical > 0 => Ok(*physical as usize * page_tokens + position % page_tokens),
            other => Err(format!("virtual page {page} translates to {other:?}")),
        }
    }
}

impl Executor for Toy {
    fn facts(&self) -> &ExecutorFacts {
        &self.facts
    }

    fn submit(&mut self, step: Step) -> Result<Ticket, StepError> {
        let ticket = Ticket(self.next);
        self.next += 1;
        let result = self.run(&step);
        self.done.push((ticket, result));
        self.polls_left = self.delay_polls;
        Ok(ticket)
    }

    fn poll(&mut self, ticket: Ticket) -> Result<Option<StepOutput>, StepError> {
        if self.polls_left > 0 {
            self.polls_left -= 1;
            return Ok(None);
        }
        match self.done.iter().position(|(t, _)| *t == ticket) {
            Some(place) => self.done.remove(place).1.map(Some),
            None => Err(StepError::Contract(format!("ticket {} is not under way", ticket.0))),
        }
    }

    fn copy_pages(&mut self, _: usize, _: &[(PhysicalPage, PhysicalPage)]) -> Result<(), StepError> {
        Err(StepError::Contract("the toy copies no pages".into()))
    }
}
