//! A toy executor for tests: it keeps token ids instead of keys and values, and its model is a closure over a history.
//!
//! Every history is read back through the page tables of the step, as attention would, so a wrong page, a stale
//! translation or a row at the wrong position changes the answer or is refused.

mod draft;

use crate::sim::Blank;
use crate::{
    Engine, Event, Executor, ExecutorFacts, Limits, PhysicalPage, Request, Step, StepError, StepOutput, Ticket, answer,
};
use ir::{DType, KvLayout};

pub use draft::Drafter;

/// Logits after a history.
pub type Model = Box<dyn FnMut(&[u32]) -> Result<Vec<f32>, StepError> + Send>;

/// What a failure that was asked for says.
pub const INJECTED: &str = "a failure that was asked for";

/// The executor.
pub struct Toy {
    facts: ExecutorFacts,
    model: Model,
    /// Token per kind, page and place in the page; `-1` where nothing was stored.
    cache: Vec<Vec<i32>>,
    done: Vec<(Ticket, Result<StepOutput, StepError>)>,
    /// Polls that answer "not yet" before each step is done.
    pub delay_polls: usize,
    /// The next step fails after it has written what it writes.
    pub fails_next: bool,
    /// Steps that may be under way at once.
    pub most_in_flight: usize,
    polls_left: usize,
    next: u64,
    /// Tokens that the step before chose, by its wanted rows.
    chosen: Vec<Option<u32>>,
    drafter: Option<Drafter>,
}

/// Facts of a toy: two KV kinds with one page size, the second with a window.
pub fn facts(vocab: usize, page_tokens: usize, pages: usize, max_tokens: usize) -> ExecutorFacts {
    let layout = |kind: &str, window| KvLayout {
        kind: kind.into(),
        layers: vec![0],
        lives_in: None,
        first: 0,
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
        shared_bytes: None,
        takes_choices: true,
        draft: None,
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
        Toy {
            facts,
            model,
            cache,
            done: Vec::new(),
            delay_polls: 0,
            most_in_flight: 1,
            fails_next: false,
            polls_left: 0,
            next: 0,
            chosen: Vec::new(),
            drafter: None,
        }
    }

    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        let contract = |text: String| StepError::Contract(text);
        let rows = step.tokens.len();
        if rows == 0 || rows > self.facts.max_tokens || step.sequences.len() > self.facts.max_sequences {
            return Err(contract(format!("{rows} rows of {} sequences", step.sequences.len())));
        }
        if step.wanted.len() > self.facts.max_wanted {
            return Err(contract(format!("{} rows are wanted", step.wanted.len())));
        }
        let mut logits = Vec::new();
        let mut next_row = 0;
        if let Some(mut drafter) = self.drafter.take() {
            let is_draft = self.facts.draft.as_ref().is_some_and(|d| d.entry == step.entry);
            let drafted = is_draft.then(|| self.draft(step, &mut drafter));
            self.drafter = Some(drafter);
            if let Some(drafted) = drafted {
                return drafted;
            }
        }
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
                    self.cache[kind][place] = self.token(step.tokens[row])?;
                }
                let Some(wanted) = step.wanted.iter().find(|w| w.row == row) else { continue };
                let mut history = Vec::new();
                for position in 0..=position {
                    let token = self.cache[0][self.place(step, &sequence.pages, 0, position).map_err(contract)?];
                    history.push(
                        u32::try_from(token).map_err(|_| contract(format!("position {position} was never stored")))?,
                    );
                }
                self.check_windows(step, &sequence.pages, position, &history).map_err(contract)?;
                if let Some(sampling) = &wanted.sampling {
                    assert_eq!(sampling.position, history.len() as u64, "position of the draw");
                }
                logits.push((self.model)(&history)?);
            }
        }
        if next_row == rows {
            let output = answer(step, |wanted| &logits[wanted]);
            self.remember(step, &output)?;
            Ok(output)
        } else {
            Err(contract(format!("{next_row} of {rows} rows belong to a sequence")))
        }
    }

    /// Every kind with a window must hold the same tokens as far as it sees.
    fn check_windows(&self, step: &Step, pages: &[u32], position: usize, history: &[u32]) -> Result<(), String> {
        for kind in 0..self.facts.kv.len() {
            let Some(window) = self.facts.kv[kind].window else { continue };
            let from = (position + 1).saturating_sub(window as usize);
            for (at, known) in history.iter().enumerate().take(position + 1).skip(from) {
                let token = self.cache[kind][self.place(step, pages, kind, at)?];
                if token != *known as i32 {
                    return Err(format!("position {at} of kind {kind} holds {token}, not {known}"));
                }
            }
        }
        Ok(())
    }

    /// A row's token, chosen by the step before if it is not known.
    fn token(&self, token: i32) -> Result<i32, StepError> {
        if token >= 0 {
            return Ok(token);
        }
        let chosen = self.chosen.get((-1 - token) as usize).copied().flatten();
        // A choice that failed leaves a row that nobody looks at.
        chosen.map(|t| t as i32).or(self.chosen.get((-1 - token) as usize).map(|_| 0)).ok_or_else(|| {
            StepError::Contract(format!("row {token} stands for a choice, {} were made", self.chosen.len()))
        })
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
        let mut result = self.run(&step);
        if std::mem::take(&mut self.fails_next) && result.is_ok() {
            result = Err(StepError::Device(INJECTED.into()));
        }
        self.chosen.clear();
        match &result {
            Ok(output) => self.chosen.extend(output.tokens.iter().map(|t| t.as_ref().map(|t| t.id))),
            // Rows that follow a step that failed are computed and nobody looks at them.
            Err(_) => self.chosen.resize(self.facts.max_wanted, None),
        }
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

    fn in_flight_limit(&self) -> usize {
        self.most_in_flight
    }

    fn copy_pages(&mut self, kind: usize, pages: &[(PhysicalPage, PhysicalPage)]) -> Result<(), StepError> {
        for (from, to) in pages {
            let (from, to) = (self.page(kind, *from)?, self.page(kind, *to)?);
            self.cache[kind].copy_within(from.clone(), to.start);
            if let Some(cache) = self.drafts_of(kind) {
                cache.copy_within(from, to.start);
            }
        }
        Ok(())
    }

    fn zero_pages(&mut self, kind: usize, pages: &[PhysicalPage]) -> Result<(), StepError> {
        for page in pages {
            let page = self.page(kind, *page)?;
            self.cache[kind][page.clone()].fill(-1);
            if let Some(cache) = self.drafts_of(kind) {
                cache[page].fill(-1);
            }
        }
        Ok(())
    }

    fn read_layer(
        &mut self,
        kind: usize,
        layer: usize,
        page: PhysicalPage,
        out: &mut Vec<u8>,
    ) -> Result<(), StepError> {
        let page = self.page(kind, page)?;
        out.extend(self.layer(kind, layer)[page].iter().flat_map(|token| token.to_le_bytes()));
        Ok(())
    }

    fn write_layer(&mut self, kind: usize, layer: usize, page: PhysicalPage, bytes: &[u8]) -> Result<(), StepError> {
        let page = self.page(kind, page)?;
        for (place, four) in self.layer(kind, layer)[page].iter_mut().zip(bytes.chunks_exact(4)) {
            *place = i32::from_le_bytes([four[0], four[1], four[2], four[3]]);
        }
        Ok(())
    }
}

impl Toy {
    /// Places of a page in its kind's cache.
    fn page(&self, kind: usize, page: PhysicalPage) -> Result<std::ops::Range<usize>, StepError> {
        let tokens = self.facts.kv[kind].page_tokens as usize;
        let start = usize::try_from(page).unwrap_or(0) * tokens;
        if page > 0 && start + tokens <= self.cache[kind].len() {
            Ok(start..start + tokens)
        } else {
            Err(StepError::Contract(format!("page {page} of kind {kind} is outside its pool")))
        }
    }
}

/// An engine over an executor that computes nothing, with so many answers under way, each after a prompt of `context`
/// tokens: what a step costs the host is measured on it.
pub fn answering(requests: usize, context: usize) -> Result<Engine<Blank>, String> {
    const ANSWER: usize = 2000;
    let pages = requests * (context + ANSWER).div_ceil(64);
    let facts = ExecutorFacts {
        max_tokens: 8192,
        max_sequences: requests,
        max_wanted: requests,
        ..facts(151_936, 64, pages, 8192)
    };
    let limits = Limits { running: requests, known_tokens: Some(151_000), ..Limits::default() };
    let mut engine = Engine::new(Blank::new(facts), limits)?;
    for i in 0..requests as u32 {
        let prompt = (0..context as u32).map(|at| (at * 7 + i) % 1000).collect();
        let request = Request { prompt, max_tokens: Some(ANSWER), ..Request::default() };
        engine.submit(request).map_err(|e| e.to_string())?;
    }
    let (mut events, mut started) = (Vec::new(), 0);
    while started < requests {
        engine.step();
        started += engine.take_events().iter().filter(|e| matches!(e, Event::Started { .. })).count();
    }
    // One more round in which everybody answers, so that all memory has its size.
    for _ in 0..200 {
        engine.step();
        events.clear();
        engine.drain_events(&mut events);
    }
    Ok(engine)
}
