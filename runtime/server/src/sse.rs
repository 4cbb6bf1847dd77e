//! Answers as server-sent events: whatever protocol spells them, one choice's step after another, with comments or
//! events of the protocol's own while nothing happens.

use crate::error::ApiError;
use crate::turn::{Answers, Step, Usage};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{Stream, StreamExt, unfold};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

/// Signs of life keep an idle connection open during a long prompt.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// One event of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Frame {
    /// Its name, where the protocol has names.
    pub event: Option<&'static str>,
    /// Its data, one line.
    pub data: String,
}

impl Frame {
    /// An event without a name.
    pub fn data(data: impl ToString) -> Frame {
        Frame { event: None, data: data.to_string() }
    }

    fn event(self) -> Event {
        // Readers that go line by line want the name first.
        let event = self.event.map_or_else(Event::default, |name| Event::default().event(name));
        event.data(self.data)
    }
}

/// How OpenAI's streams end: what is left to tell, and the word for the end.
pub(crate) fn done(last: Option<Frame>) -> Vec<Frame> {
    last.into_iter().chain([Frame::data("[DONE]")]).collect()
}

/// How OpenAI's streams end after a failure.
pub(crate) fn failed(error: &ApiError) -> Vec<Frame> {
    done(Some(Frame::data(error.body())))
}

/// How a protocol spells an answer.
pub(crate) trait Spell: Send + 'static {
    /// What comes before all steps.
    fn begin(&mut self, usage: Usage) -> Vec<Frame>;
    /// One step. `usage` is the cost so far.
    fn step(&mut self, step: Step, usage: Usage) -> Vec<Frame>;
    /// What comes after all steps.
    fn end(&mut self, usage: Usage) -> Vec<Frame>;
    /// What comes instead of the rest after a failure: open parts are closed, the error is told, the stream ends.
    fn failed(&mut self, error: &ApiError, _usage: Usage) -> Vec<Frame> {
        failed(error)
    }
    /// What is sent while nothing happens; absent: a comment.
    fn idle(&self) -> Option<Frame> {
        None
    }
}

struct Answering<S> {
    answers: Answers,
    spell: S,
    ready: VecDeque<Frame>,
    is_begun: bool,
    is_over: bool,
}

/// The response. Dropping it, as a closed connection does, drops the answers.
pub(crate) fn events(answers: Answers, spell: impl Spell) -> Response {
    let alive = KeepAlive::new().interval(KEEP_ALIVE);
    let alive = match spell.idle() {
        Some(frame) => alive.event(frame.event()),
        None => alive.text("ping"),
    };
    let stream = Answering { answers, spell, ready: VecDeque::new(), is_begun: false, is_over: false };
    respond(unfold(stream, |mut stream| async { Some((stream.next().await?, stream)) }), alive)
}

/// Events that are made elsewhere, as they come.
pub(crate) fn frames(frames: UnboundedReceiver<Frame>) -> Response {
    let frames = unfold(frames, |mut frames| async { Some((frames.recv().await?, frames)) });
    respond(frames, KeepAlive::new().interval(KEEP_ALIVE).text("ping"))
}

fn respond(frames: impl Stream<Item = Frame> + Send + 'static, alive: KeepAlive) -> Response {
    let events = frames.map(|frame| Ok::<_, Infallible>(frame.event()));
    let sse = Sse::new(events).keep_alive(alive);
    // Proxies that collect what they pass on would undo the stream.
    ([("x-accel-buffering", "no")], sse).into_response()
}

impl<S: Spell> Answering<S> {
    async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(frame);
            }
            if self.is_over {
                return None;
            }
            if !self.is_begun {
                self.is_begun = true;
                self.ready.extend(self.spell.begin(self.answers.usage()));
                continue;
            }
            let frames = match self.answers.next().await {
                Ok(Some(step)) => self.spell.step(step, self.answers.usage()),
                Ok(None) => {
                    self.is_over = true;
                    self.spell.end(self.answers.usage())
                }
                Err(error) => {
                    self.is_over = true;
                    self.spell.failed(&error, self.answers.usage())
                }
            };
            self.ready.extend(frames);
        }
    }
}
