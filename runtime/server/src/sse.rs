//! Answers as server-sent events: whatever protocol spells them, one choice's step after another, with comments or
//! events of the protocol's own while nothing happens.
//!
//! What is there goes out together: a write to a socket costs more than all else that a token needs.

use crate::error::ApiError;
use crate::turn::{Answers, Step, Usage};
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::stream::{Stream, StreamExt, unfold};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, Sleep, sleep};

/// How often is looked whether a sign of life must keep an idle connection open, as during a long prompt: one comes at the
/// latest after twice this time.
const KEEP_ALIVE: Duration = Duration::from_millis(7500);
/// The sign of protocols that have none of their own.
const PING: &str = ": ping\n\n";
/// Events that are there already go out together up to so many bytes.
const TOGETHER_BYTES: usize = 16 << 10;

/// One event of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Frame {
    /// Its name, where the protocol has names.
    pub event: Option<&'static str>,
    /// Its data, one line: JSON without line breaks, or a word.
    pub data: String,
}

impl Frame {
    /// An event without a name.
    pub fn data(data: impl ToString) -> Frame {
        Frame { event: None, data: data.to_string() }
    }

    /// Its text in a stream. Readers that go line by line want the name first.
    fn write(&self, out: &mut String) {
        debug_assert!(!self.data.contains(['\r', '\n']), "data of several lines");
        if let Some(name) = self.event {
            out.extend(["event: ", name, "\n"]);
        }
        out.extend(["data: ", &self.data, "\n\n"]);
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
    is_begun: bool,
    is_over: bool,
}

/// The response. Dropping it, as a closed connection does, drops the answers.
pub(crate) fn events(answers: Answers, spell: impl Spell) -> Response {
    let mut alive = String::new();
    match spell.idle() {
        Some(frame) => frame.write(&mut alive),
        None => alive.push_str(PING),
    }
    let stream = Answering { answers, spell, is_begun: false, is_over: false };
    respond(unfold(stream, |mut stream| async { Some((stream.next().await?, stream)) }), alive)
}

/// Events that are made elsewhere, as they come.
pub(crate) fn frames(frames: UnboundedReceiver<Frame>) -> Response {
    let texts = unfold(frames, |mut frames| async {
        let mut text = String::new();
        frames.recv().await?.write(&mut text);
        while let Some(frame) = (text.len() < TOGETHER_BYTES).then(|| frames.try_recv().ok()).flatten() {
            frame.write(&mut text);
        }
        Some((text, frames))
    });
    respond(texts, PING.to_owned())
}

fn respond(texts: impl Stream<Item = String> + Send + 'static, alive: String) -> Response {
    let body = Lively { texts: Box::pin(texts), pause: Box::pin(sleep(KEEP_ALIVE)), spoke: false, alive: alive.into() };
    let heads = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        // Proxies that collect what they pass on would undo the stream.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (heads, Body::from_stream(body)).into_response()
}

/// Texts as they come, and signs of life between them. The clock is looked at only now and then, not for each text.
struct Lively<T> {
    texts: Pin<Box<T>>,
    pause: Pin<Box<Sleep>>,
    /// Whether a text has come since the pause began.
    spoke: bool,
    alive: Bytes,
}

impl<T: Stream<Item = String>> Stream for Lively<T> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Poll::Ready(text) = self.texts.poll_next_unpin(context) {
            self.spoke = true;
            return Poll::Ready(text.map(|text| Ok(text.into())));
        }
        while self.pause.as_mut().poll(context).is_ready() {
            self.pause.as_mut().reset(Instant::now() + KEEP_ALIVE);
            if !std::mem::take(&mut self.spoke) {
                return Poll::Ready(Some(Ok(self.alive.clone())));
            }
        }
        Poll::Pending
    }
}

impl<S: Spell> Answering<S> {
    /// The text of the events that are there, at least one; `None` after the last.
    async fn next(&mut self) -> Option<String> {
        let mut text = String::new();
        if !std::mem::replace(&mut self.is_begun, true) {
            self.spell.begin(self.answers.usage()).iter().for_each(|frame| frame.write(&mut text));
        }
        while text.is_empty() && !self.is_over {
            let next = self.answers.next().await;
            self.take(next, &mut text);
        }
        while !self.is_over && text.len() < TOGETHER_BYTES {
            let Some(next) = self.answers.next().now_or_never() else { break };
            self.take(next, &mut text);
        }
        (!text.is_empty()).then_some(text)
    }

    fn take(&mut self, next: Result<Option<Step>, ApiError>, text: &mut String) {
        let frames = match next {
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
        frames.iter().for_each(|frame| frame.write(text));
    }
}
