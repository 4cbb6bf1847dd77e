//! Several choices on their way: one channel of engine events, one reader for each, steps out in the order of the engine.

use super::reader::{Reader, Reading, Step, TurnEvent};
use super::{Finish, FinishWord};
use crate::app::App;
use crate::error::ApiError;
use crate::service::{Generation, Gone};
use crate::writer::Outlet;
use engine::{Event, Request, RequestId, SampledToken};
use std::collections::VecDeque;
use std::sync::Weak;
use std::task::{Context, Poll, ready};
use text::response::ToolCall;

/// Choices that are to be made: all are admitted, or none.
pub(crate) struct Plan {
    /// What the engine is asked and how its answer is read, one for each choice.
    pub choices: Vec<(Request, Reading)>,
    /// How many choices each prompt has; the prompts' choices follow one another.
    pub per_prompt: usize,
    /// Name for aborting them.
    pub rid: String,
}

/// What choices have cost so far, all of them together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Each prompt once.
    pub prompt_tokens: usize,
    /// Those among them that were in the cache.
    pub cached_tokens: usize,
    /// Reasoning, markup and stop tokens included.
    pub completion_tokens: usize,
    /// Those among them whose text is reasoning.
    pub reasoning_tokens: usize,
    /// Drafts that were verified of the choices that are over, and those among them that stand.
    pub drafted_tokens: usize,
    /// See [`Usage::drafted_tokens`].
    pub accepted_tokens: usize,
}

/// Choices on their way. Dropping them aborts what still runs.
pub(crate) struct Answers {
    generation: Generation,
    readers: Vec<Reader>,
    ready: VecDeque<Step>,
    /// Memory for what is taken.
    events: Vec<(usize, Event)>,
    steps: Vec<Step>,
    failed: Option<ApiError>,
    per_prompt: usize,
    prompt_tokens: usize,
    /// Tokens of each choice's prompt that were in the cache.
    cached_tokens: Vec<usize>,
    /// Drafts of the choices that are over: verified, and those among them that stand.
    drafts: (usize, usize),
}

/// A choice as a whole.
#[derive(Clone, Debug, Default)]
pub(crate) struct Collected {
    pub reasoning: String,
    pub content: String,
    /// Pieces of both in the order in which they were written: whether it is reasoning, and how many bytes.
    pieces: Vec<(bool, usize)>,
    /// Its calls in order. The last may be cut off, and one that the next call interrupts: it has its arguments as far as they go.
    pub calls: Vec<ToolCall>,
    /// Its end.
    pub finish: Option<Finish>,
    pub tokens: Vec<SampledToken>,
    pub scored: Vec<SampledToken>,
    pub completion_tokens: usize,
}

impl Collected {
    /// Why it ended.
    pub fn word(&self) -> FinishWord {
        self.finish.as_ref().map_or(FinishWord::Abort, |finish| finish.word)
    }

    /// Reasoning and content in the order in which they were written.
    pub fn in_order(&self) -> String {
        let (mut reasoning, mut content) = (self.reasoning.as_str(), self.content.as_str());
        let mut all = String::with_capacity(reasoning.len() + content.len());
        for (is_reasoning, bytes) in &self.pieces {
            let from = if *is_reasoning { &mut reasoning } else { &mut content };
            let (piece, rest) = from.split_at_checked(*bytes).unwrap_or((*from, ""));
            all.push_str(piece);
            *from = rest;
        }
        all
    }

    fn text(&mut self, is_reasoning: bool, more: &str) {
        if is_reasoning {
            self.reasoning.push_str(more)
        } else {
            self.content.push_str(more)
        }
        match self.pieces.last_mut().filter(|(kind, _)| *kind == is_reasoning) {
            Some((_, bytes)) => *bytes += more.len(),
            None => self.pieces.push((is_reasoning, more.len())),
        }
    }

    fn add(&mut self, step: Step) {
        for event in step.events {
            match event {
                TurnEvent::Reasoning(text) => self.text(true, &text),
                TurnEvent::Content(text) => self.text(false, &text),
                TurnEvent::Finished(finish) => self.finish = Some(finish),
                TurnEvent::CallOpened { name, .. } => self.calls.push(ToolCall { name, arguments: String::new() }),
                TurnEvent::CallArguments { index, json } => {
                    if let Some(call) = self.calls.get_mut(index) {
                        call.arguments.push_str(&json);
                    }
                }
                TurnEvent::CallClosed { index, arguments } => {
                    if let Some(call) = self.calls.get_mut(index) {
                        call.arguments = arguments;
                    }
                }
            }
        }
        self.tokens.extend(step.tokens);
        self.scored.extend(step.scored);
    }
}

impl Answers {
    /// Queues them; `prompt` and `max_tokens` are the fields that a refusal is put down to.
    pub async fn start(app: &App, plan: Plan, prompt: &str, max_tokens: &str) -> Result<Answers, ApiError> {
        let per_prompt = plan.per_prompt.max(1);
        let (requests, readings): (Vec<Request>, Vec<Reading>) = plan.choices.into_iter().unzip();
        let prompt_tokens = requests.iter().step_by(per_prompt).map(|request| request.prompt.len()).sum();
        let mut readers: Vec<Reader> =
            readings.into_iter().map(|reading| Reader::new(app.text.clone(), reading)).collect();
        let mut ready = VecDeque::new();
        for (choice, reader) in readers.iter_mut().enumerate() {
            let events = reader.begin()?;
            if !events.is_empty() {
                ready.push_back(Step { choice, events, ..Step::default() });
            }
        }
        let generation = app.submit(requests, plan.rid, prompt, max_tokens).await?;
        let cached_tokens = vec![0; readers.len()];
        let (failed, events, steps) = Default::default();
        let drafts = (0, 0);
        Ok(Answers {
            generation,
            readers,
            ready,
            events,
            steps,
            failed,
            per_prompt,
            prompt_tokens,
            cached_tokens,
            drafts,
        })
    }

    /// Their names in the engine, by which they can be given up.
    pub fn ids(&self) -> &[RequestId] {
        self.generation.ids()
    }

    /// How many choices there are.
    pub fn len(&self) -> usize {
        self.readers.len()
    }

    /// The cost so far.
    pub fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens.iter().step_by(self.per_prompt).sum(),
            completion_tokens: self.readers.iter().map(Reader::completion_tokens).sum(),
            reasoning_tokens: self.readers.iter().map(Reader::reasoning_tokens).sum(),
            drafted_tokens: self.drafts.0,
            accepted_tokens: self.drafts.1,
        }
    }

    /// What comes next of any choice; `None` when all are over. An error ends them all.
    pub async fn next(&mut self) -> Result<Option<Step>, ApiError> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// The same; the task is woken when there is more.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Step>, ApiError>> {
        loop {
            if let Some(known) = self.known() {
                return Poll::Ready(known);
            }
            let Some(mut events) = ready!(self.generation.poll_next(context)) else {
                return Poll::Ready(Err(stopped()));
            };
            self.take(&mut events);
        }
    }

    /// The same as far as it is there, and nobody is woken for more.
    pub fn next_now(&mut self) -> Option<Result<Option<Step>, ApiError>> {
        loop {
            if let Some(known) = self.known() {
                return Some(known);
            }
            let mut events = std::mem::take(&mut self.events);
            let is_there = self.generation.next_now(&mut events);
            let any = !events.is_empty();
            self.take(&mut events);
            self.events = events;
            match is_there {
                Err(Gone) => return Some(Err(stopped())),
                Ok(()) if !any => return None,
                Ok(()) => {}
            }
        }
    }

    /// What comes next without the engine's doing.
    fn known(&mut self) -> Option<Result<Option<Step>, ApiError>> {
        if let Some(step) = self.ready.pop_front() {
            return Some(Ok(Some(step)));
        }
        if let Some(error) = self.failed.take() {
            return Some(Err(error));
        }
        self.readers.iter().all(Reader::is_over).then_some(Ok(None))
    }

    /// Whoever says them wants to be called when there is more.
    pub fn tell(&self, outlet: Weak<dyn Outlet>) {
        self.generation.tell(outlet);
    }

    /// All that is left of all choices.
    pub async fn collect(&mut self) -> Result<Vec<Collected>, ApiError> {
        let mut all = vec![Collected::default(); self.len()];
        while let Some(step) = self.next().await? {
            if let Some(one) = all.get_mut(step.choice) {
                one.add(step);
            }
        }
        for (one, reader) in all.iter_mut().zip(&self.readers) {
            one.completion_tokens = reader.completion_tokens();
        }
        Ok(all)
    }

    /// Takes engine events: one step for each choice that they touch.
    fn take(&mut self, events: &mut Vec<(usize, Event)>) {
        let mut steps = std::mem::take(&mut self.steps);
        for (choice, event) in events.drain(..) {
            let place = steps.iter().position(|step| step.choice == choice).unwrap_or_else(|| {
                steps.push(Step { choice, ..Step::default() });
                steps.len() - 1
            });
            let Some(step) = steps.get_mut(place) else { continue };
            if let Err(error) = self.take_one(choice, event, step) {
                self.failed = Some(error);
                break;
            }
        }
        for step in &mut steps {
            step.cached_tokens = self.cached_tokens.get(step.choice).copied().unwrap_or(0);
        }
        self.ready.extend(steps.drain(..).filter(|step| !step.is_empty()));
        self.steps = steps;
    }

    fn take_one(&mut self, choice: usize, event: Event, step: &mut Step) -> Result<(), ApiError> {
        let Some(reader) = self.readers.get_mut(choice) else { return Ok(()) };
        match event {
            Event::Started { cached_tokens, .. } => {
                if let Some(place) = self.cached_tokens.get_mut(choice) {
                    *place = cached_tokens;
                }
            }
            Event::Scored { tokens, .. } => step.scored.extend(tokens),
            Event::Token { token, stops, .. } => {
                if reader.token(token, stops, step)? {
                    self.generation.stop(choice);
                }
            }
            Event::Finished { reason, usage, .. } => {
                self.drafts.0 += usage.drafted_tokens;
                self.drafts.1 += usage.accepted_tokens;
                reader.finished(reason, step)?;
            }
        }
        Ok(())
    }
}

fn stopped() -> ApiError {
    ApiError::internal("the engine has stopped; restart the server")
}
