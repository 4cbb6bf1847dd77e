//! An answer on its way to a client: the body of its response, and the stream that a writer says at once what it can.
//!
//! ```text
//!  engine's thread ─ events ─► channel of the answer ──────┐
//!         └─ once a step ─► writer's thread ─► Speech::speak ┴─► chunks on the socket, while nothing else is on its way there
//!                                                └─ else wakes the connection's task ─► Voice, the body ─► HTTP
//! ```
//!
//! Whoever has the lock says everything that is there, so nothing is said twice or out of order. Where no line is known, as
//! with HTTP/2, the body waits for the channel itself.

use crate::error::ApiError;
use crate::line::{Line, Sent};
use crate::sse::{Frame, Spell, TOGETHER_BYTES};
use crate::turn::{Answers, Step};
use crate::writer::{Memory, Outlet};
use axum::body::Bytes;
use axum::response::Response;
use futures_util::stream::Stream;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// How often is looked whether a sign of life must keep an idle connection open, as during a long prompt: one comes at the
/// latest after twice this time.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_millis(7500);

/// An answer, and how it is spelt.
struct Answering<S> {
    answers: Answers,
    spell: S,
    is_begun: bool,
    is_over: bool,
}

impl<S: Spell> Answering<S> {
    fn begin(&mut self, text: &mut String) {
        if !std::mem::replace(&mut self.is_begun, true) {
            self.spell.begin(self.answers.usage()).iter().for_each(|frame| frame.write(text));
        }
    }

    /// Appends what is there. `context` is woken for more; without it, nobody is.
    fn say(&mut self, mut context: Option<&mut Context<'_>>, text: &mut String) {
        self.begin(text);
        while !self.is_over && text.len() < TOGETHER_BYTES {
            let next = match &mut context {
                Some(context) => self.answers.poll_next(context),
                None => self.answers.next_now().map_or(Poll::Pending, Poll::Ready),
            };
            let Poll::Ready(next) = next else { return };
            self.take(next).iter().for_each(|frame| frame.write(text));
        }
    }

    fn take(&mut self, next: Result<Option<Step>, ApiError>) -> Vec<Frame> {
        match next {
            Ok(Some(step)) => {
                let usage = self.answers.usage();
                self.spell.step(step, usage)
            }
            Ok(None) => {
                self.is_over = true;
                self.spell.end(self.answers.usage())
            }
            Err(error) => {
                self.is_over = true;
                self.spell.failed(&error, self.answers.usage())
            }
        }
    }
}

/// What the body and the writer share.
struct Speech<S> {
    line: OnceLock<Arc<Line>>,
    is_due: AtomicBool,
    state: Mutex<State<S>>,
}

struct State<S> {
    /// Absent when the body is gone, or a defect was hit.
    answering: Option<Answering<S>>,
    is_broken: bool,
    /// Text that the body says.
    last: String,
    /// The connection's task, once it has asked.
    task: Option<Waker>,
    /// Whether something was said since the body last looked.
    spoke: bool,
}

impl<S> Speech<S> {
    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> State<S> {
    fn wake(&mut self) {
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }
}

impl<S: Spell> Outlet for Speech<S> {
    fn is_first_call(&self) -> bool {
        !self.is_due.swap(true, Ordering::AcqRel)
    }

    fn speak(&self, memory: &mut Memory) {
        // What was sent before the call that this answers is seen.
        self.is_due.swap(false, Ordering::AcqRel);
        let Some(line) = self.line.get() else { return };
        let mut state = self.state();
        // A task that was woken, or has not asked yet, says what there is.
        if state.task.is_none() {
            return;
        }
        if !line.is_free() {
            return state.wake();
        }
        let Some(answering) = &mut state.answering else { return };
        memory.text.clear();
        answering.say(None, &mut memory.text);
        if answering.is_over {
            // The end of the text and the end of the response leave together.
            state.last.push_str(&memory.text);
            return state.wake();
        }
        if !memory.text.is_empty() {
            state.spoke = true;
            if line.send(&memory.text, &mut memory.frame) == Sent::Part {
                state.wake();
            }
        }
    }

    fn break_off(&self) {
        let mut state = self.state();
        (state.answering, state.is_broken) = (None, true);
        state.wake();
    }
}

/// A response whose connection can be told to its stream.
trait Attach: Send + Sync {
    fn attach(self: Arc<Self>, line: Arc<Line>);
}

impl<S: Spell> Attach for Speech<S> {
    fn attach(self: Arc<Self>, line: Arc<Line>) {
        line.holds();
        let outlet: Arc<dyn Outlet> = self.clone();
        if self.line.set(line).is_ok()
            && let Some(answering) = &self.state().answering
        {
            answering.answers.tell(Arc::downgrade(&outlet));
        }
    }
}

#[derive(Clone)]
struct Attachable(Arc<dyn Attach>);

/// Lets the stream of a response be written to its connection directly; whether it is a stream. The response must be HTTP/1.1's
/// and its head not be written yet.
pub(crate) fn attach(response: &mut Response, line: Arc<Line>) -> bool {
    let stream = response.extensions_mut().remove();
    stream.map(|Attachable(stream)| stream.attach(line)).is_some()
}

/// The body of the response. Dropping it, as a closed connection does, drops the answers.
struct Voice<S: Spell> {
    speech: Arc<Speech<S>>,
    pause: Pin<Box<Sleep>>,
    alive: Bytes,
}

impl<S: Spell> Drop for Voice<S> {
    fn drop(&mut self) {
        self.speech.state().answering = None;
    }
}

impl<S: Spell> Stream for Voice<S> {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let speech = self.speech.clone();
        let line = speech.line.get();
        let mut state = speech.state();
        if state.is_broken {
            return Poll::Ready(Some(Err(io::Error::other("the answer hit a defect"))));
        }
        let mut text = std::mem::take(&mut state.last);
        let Some(answering) = &mut state.answering else { return Poll::Ready(None) };
        let waits = line.is_none().then_some(&mut *context);
        answering.say(waits, &mut text);
        let is_over = answering.is_over;
        if !text.is_empty() {
            state.spoke = true;
            // It asks again before it sleeps.
            state.task = None;
            line.inspect(|line| line.holds());
            return Poll::Ready(Some(Ok(text.into())));
        }
        if is_over {
            return Poll::Ready(None);
        }
        let mut is_asked = line.is_some_and(|line| line.is_sign_due());
        while is_asked || self.pause.as_mut().poll(context).is_ready() {
            self.pause.as_mut().reset(Instant::now() + KEEP_ALIVE);
            if !std::mem::take(&mut state.spoke) || std::mem::take(&mut is_asked) {
                state.task = None;
                line.inspect(|line| line.holds());
                return Poll::Ready(Some(Ok(self.alive.clone())));
            }
        }
        state.task = Some(context.waker().clone());
        Poll::Pending
    }
}

/// The body of an answer as it comes, with signs of life between; and what its response has to bring along.
pub(crate) fn speech(
    answers: Answers,
    spell: impl Spell,
    alive: Bytes,
) -> (impl Stream<Item = io::Result<Bytes>> + Send + 'static, impl Clone + Send + Sync + 'static) {
    let answering = Some(Answering { answers, spell, is_begun: false, is_over: false });
    let state = State { answering, is_broken: false, last: String::new(), task: None, spoke: false };
    let speech = Arc::new(Speech { line: OnceLock::new(), is_due: AtomicBool::new(false), state: Mutex::new(state) });
    let attachable = Attachable(speech.clone());
    (Voice { speech, pause: Box::pin(sleep(KEEP_ALIVE)), alive }, attachable)
}
