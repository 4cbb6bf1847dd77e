//! Answers as server-sent events: chunks with one head, usage where asked for, errors in the stream, `[DONE]`.

use crate::answer::{Answer, Part, usage_json};
use crate::app::now_seconds;
use crate::error::ApiError;
use crate::params::{Common, random_word};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use engine::Usage;
use futures_util::stream::unfold;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

/// Comment lines keep an idle connection open during a long prompt.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What all chunks of an answer, or its only object, begin with.
#[derive(Clone)]
pub(crate) struct Head {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
}

impl Head {
    pub fn new(prefix: &str, object: &'static str, model: &str) -> Self {
        let id = format!("{prefix}-{:016x}{:016x}", random_word(), random_word());
        Head { id, object, created: now_seconds(), model: model.to_owned() }
    }

    /// The object with these choices.
    pub fn with(&self, choices: Vec<Value>) -> Map<String, Value> {
        let Head { id, object, created, model } = self;
        let whole = json!({"id": id, "object": object, "created": created, "model": model, "choices": choices});
        if let Value::Object(map) = whole { map } else { Map::new() }
    }
}

/// How a route writes its choices.
pub(crate) trait Chunks: Send + 'static {
    /// The chunk before all others of a choice, if there is one.
    fn first(&self, index: usize) -> Option<Value>;
    /// A choice with a piece of its text, or with its end.
    fn part(&self, index: usize, part: Part) -> Value;
}

struct Stream<C> {
    head: Head,
    chunks: C,
    answers: Vec<Answer>,
    /// The answer that is being written; the engine works on them in their order.
    index: usize,
    is_begun: bool,
    usage_at_end: bool,
    usage_always: bool,
    ready: VecDeque<String>,
    is_over: bool,
}

/// The response. Dropping it, as a closed connection does, drops the answers.
pub(crate) fn events(head: Head, chunks: impl Chunks, answers: Vec<Answer>, common: &Common) -> Response {
    let stream = Stream {
        head,
        chunks,
        answers,
        index: 0,
        is_begun: false,
        usage_at_end: common.usage_at_end,
        usage_always: common.usage_always,
        ready: VecDeque::new(),
        is_over: false,
    };
    let events = unfold(stream, |mut stream| async {
        let data = stream.next().await?;
        Some((Ok::<_, Infallible>(Event::default().data(data)), stream))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE).text("ping")).into_response()
}

impl<C: Chunks> Stream<C> {
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(data) = self.ready.pop_front() {
                return Some(data);
            }
            if self.is_over {
                return None;
            }
            if let Err(error) = self.advance().await {
                self.ready.push_back(error.body().to_string());
                self.end();
            }
        }
    }

    async fn advance(&mut self) -> Result<(), ApiError> {
        let index = self.index;
        let Some(answer) = self.answers.get_mut(index) else {
            if self.usage_at_end {
                let mut chunk = self.head.with(Vec::new());
                chunk.insert("usage".into(), usage_json(total(&self.answers)));
                self.ready.push_back(Value::Object(chunk).to_string());
            }
            self.end();
            return Ok(());
        };
        if !self.is_begun {
            self.is_begun = true;
            if let Some(choice) = self.chunks.first(index) {
                self.push(choice);
            }
            return Ok(());
        }
        match answer.next().await? {
            Some(part) => {
                let choice = self.chunks.part(index, part);
                self.push(choice);
            }
            None => (self.index, self.is_begun) = (index + 1, false),
        }
        Ok(())
    }

    fn push(&mut self, choice: Value) {
        let mut chunk = self.head.with(vec![choice]);
        if self.usage_always {
            chunk.insert("usage".into(), usage_json(total(&self.answers)));
        } else if self.usage_at_end {
            chunk.insert("usage".into(), Value::Null);
        }
        self.ready.push_back(Value::Object(chunk).to_string());
    }

    fn end(&mut self) {
        self.ready.push_back("[DONE]".into());
        self.is_over = true;
    }
}

/// The sum over several answers.
pub(crate) fn total(answers: &[Answer]) -> Usage {
    answers.iter().map(Answer::usage).fold(Usage::default(), |sum, one| Usage {
        prompt_tokens: sum.prompt_tokens + one.prompt_tokens,
        completion_tokens: sum.completion_tokens + one.completion_tokens,
    })
}
