//! A turn becomes a response: steps in, events out, items kept. The whole response and the stream come from the same run
//! through here, so they cannot say different things.
//!
//! ```text
//!  Reasoning ─► reasoning item ──┐  one item is open at a time; what comes next closes it
//!  Content ───► message item ────┼─► output_item.added … deltas … output_item.done ─► output
//!  Call ──────► call item ───────┘
//!  end, error, hang-up: the open item closes, then response.completed | incomplete | failed
//! ```

use super::open::{Body, Call, Open, Status, text_part};
use super::request::Shape;
use super::store::Making;
use super::tools::{INPUT, Kind, Origin};
use crate::app::{App, now_seconds};
use crate::error::ApiError;
use crate::logprobs;
use crate::sse::{Frame, Spell};
use crate::turn::{FinishWord, Step, TurnEvent, Usage};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A response in the making.
pub(super) struct Weave {
    app: Arc<App>,
    /// The response object without what is only known at the end.
    head: Map<String, Value>,
    shape: Shape,
    /// Items that are over.
    output: Vec<Value>,
    open: Option<Open>,
    /// Why the model stopped.
    word: Option<FinishWord>,
    /// What went wrong.
    failure: Option<Failure>,
    usage: Usage,
    events: Events,
    /// Whether it goes on; a client may give it up meanwhile.
    making: Making,
    is_over: bool,
    is_stored: bool,
}

/// What went wrong, in the protocol's words.
struct Failure {
    code: &'static str,
    message: String,
}

/// Events, numbered without gaps.
#[derive(Default)]
struct Events {
    number: u64,
    frames: Vec<Frame>,
    /// Nobody listens.
    is_muted: bool,
}

impl Events {
    fn tell(&mut self, name: &'static str, more: Value) {
        if self.is_muted {
            return;
        }
        let mut data = json!({"type": name, "sequence_number": self.number});
        if let (Value::Object(data), Value::Object(more)) = (&mut data, more) {
            data.extend(more);
        }
        self.number += 1;
        self.frames.push(Frame { event: Some(name), data: data.to_string() });
    }
}

impl Weave {
    /// A response with this head; with `tells` it makes events.
    pub fn new(app: Arc<App>, head: Map<String, Value>, shape: Shape, tells: bool, is_stored: bool) -> Weave {
        Weave {
            app,
            head,
            shape,
            output: Vec::new(),
            open: None,
            word: None,
            failure: None,
            usage: Usage::default(),
            events: Events { is_muted: !tells, ..Events::default() },
            making: Making::default(),
            is_over: false,
            is_stored,
        }
    }

    /// The response's name.
    pub fn id(&self) -> &str {
        self.head.get("id").and_then(Value::as_str).unwrap_or_default()
    }

    /// By which it can be given up.
    pub fn making(&self) -> Making {
        self.making.clone()
    }

    /// The response object as it stands.
    pub fn response(&self) -> Map<String, Value> {
        let mut whole = self.head.clone();
        whole.insert("output".into(), Value::Array(self.output.clone()));
        whole
    }

    fn told(&self) -> Value {
        json!({"response": self.response()})
    }

    /// Place of the open item among all.
    fn index(&self) -> usize {
        self.output.len()
    }

    fn take(&mut self, step: Step) {
        let mut spoken = step.spoken.into_iter().peekable();
        for (i, event) in step.events.into_iter().enumerate() {
            match event {
                TurnEvent::Reasoning(text) => self.reasoning(&text),
                TurnEvent::Content(text) => {
                    let tokens = std::iter::from_fn(|| spoken.next_if(|(event, _)| *event <= i));
                    let new: Vec<Value> = tokens.map(|(_, token)| logprobs::chat(&self.app, &token)).collect();
                    self.content(&text, new);
                }
                TurnEvent::CallOpened { index, name } => self.call(index, &name),
                TurnEvent::CallArguments { index, json } => self.arguments(index, &json),
                TurnEvent::CallClosed { index, arguments } => {
                    if let Some((_, call)) = self.open_call(index) {
                        call.arguments.finish(arguments);
                        self.close(Status::Completed);
                    }
                }
                TurnEvent::Finished(finish) => self.word = Some(finish.word),
            }
        }
    }

    /// Opens an item behind the one that is open.
    fn begin(&mut self, open: Open) {
        // A call that is over closed itself; one that is open here never ended.
        let status = match self.open.as_ref().map(|open| &open.body) {
            Some(Body::Call(_)) => Status::Incomplete,
            _ => Status::Completed,
        };
        if let Some(Open { body: Body::Message { is_commentary, .. }, .. }) = &mut self.open {
            *is_commentary = true;
        }
        self.close(status);
        let index = self.index();
        self.events.tell("response.output_item.added", json!({"output_index": index, "item": open.begun(&self.shape)}));
        self.open = Some(open);
    }

    fn reasoning(&mut self, more: &str) {
        if more.is_empty() {
            return;
        }
        if !matches!(&self.open, Some(Open { body: Body::Reasoning { .. }, .. })) {
            self.begin(Open::reasoning());
            self.part(if self.shape.summary { "summary" } else { "reasoning" }, "");
        }
        let index = self.index();
        let Some(Open { id, body: Body::Reasoning { text } }) = &mut self.open else { return };
        text.push_str(more);
        let place = if self.shape.summary { "summary_index" } else { "content_index" };
        let name =
            if self.shape.summary { "response.reasoning_summary_text.delta" } else { "response.reasoning_text.delta" };
        self.events.tell(name, json!({"item_id": id, "output_index": index, place: 0, "delta": more}));
    }

    /// More of the answer, with the log-probabilities of its tokens.
    fn content(&mut self, more: &str, new: Vec<Value>) {
        if more.is_empty() {
            return;
        }
        if !matches!(&self.open, Some(Open { body: Body::Message { .. }, .. })) {
            self.begin(Open::message());
            self.part("text", "");
        }
        let index = self.index();
        let Some(Open { id, body: Body::Message { text, logprobs, .. } }) = &mut self.open else { return };
        text.push_str(more);
        let event = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": more, "logprobs": new});
        logprobs.extend(new);
        self.events.tell("response.output_text.delta", event);
    }

    /// Tells of the open item's only part, which begins.
    fn part(&mut self, kind: &str, text: &str) {
        let index = self.index();
        let Some(Open { id, .. }) = &self.open else { return };
        let (name, place, part) = match kind {
            "summary" => (
                "response.reasoning_summary_part.added",
                "summary_index",
                json!({"type": "summary_text", "text": text}),
            ),
            "reasoning" => {
                ("response.content_part.added", "content_index", json!({"type": "reasoning_text", "text": text}))
            }
            _ => ("response.content_part.added", "content_index", text_part(text, &[])),
        };
        self.events.tell(name, json!({"item_id": id, "output_index": index, place: 0, "part": part}));
    }

    fn call(&mut self, index: usize, name: &str) {
        let origin = self.shape.origins.get(name).cloned();
        // Only declared tools are called, so all of them are known.
        let origin = origin.unwrap_or_else(|| Origin::function(name));
        self.begin(Open::call(index, origin));
    }

    fn open_call(&mut self, index: usize) -> Option<(&str, &mut Call)> {
        match &mut self.open {
            Some(Open { id, body: Body::Call(call) }) if call.index == index => Some((id, call)),
            _ => None,
        }
    }

    fn arguments(&mut self, call: usize, more: &str) {
        let index = self.index();
        let Some((id, call)) = self.open_call(call) else { return };
        call.arguments.push(more);
        let (name, delta) = match call.origin.kind {
            Kind::Function => ("response.function_call_arguments.delta", more.to_owned()),
            Kind::Custom => ("response.custom_tool_call_input.delta", call.arguments.new_text(INPUT)),
            Kind::Shell => return,
        };
        if !delta.is_empty() {
            let event = json!({"item_id": id, "output_index": index, "delta": delta});
            self.events.tell(name, event);
        }
    }

    /// Ends the open item, if there is one.
    fn close(&mut self, status: Status) {
        let Some(open) = self.open.take() else { return };
        let (index, id, mut status) = (self.index(), &open.id, status);
        let at = |place: &str| json!({"item_id": id, "output_index": index, place: 0});
        match &open.body {
            Body::Reasoning { text } if self.shape.summary => {
                let part = json!({"type": "summary_text", "text": text});
                let place = at("summary_index");
                self.events.tell("response.reasoning_summary_text.done", with(&place, "text", json!(text)));
                self.events.tell("response.reasoning_summary_part.done", with(&place, "part", part));
            }
            Body::Reasoning { text } => {
                let part = json!({"type": "reasoning_text", "text": text});
                let place = at("content_index");
                self.events.tell("response.reasoning_text.done", with(&place, "text", json!(text)));
                self.events.tell("response.content_part.done", with(&place, "part", part));
            }
            Body::Message { text, logprobs, .. } => {
                let place = at("content_index");
                let event = with(&with(&place, "text", json!(text)), "logprobs", json!(logprobs));
                self.events.tell("response.output_text.done", event);
                self.events.tell("response.content_part.done", with(&place, "part", text_part(text, logprobs)));
            }
            Body::Call(call) => {
                if let Some(message) = call.misfit().filter(|_| status == Status::Completed) {
                    status = Status::Incomplete;
                    self.failure.get_or_insert(Failure { code: "server_error", message });
                }
                let place = json!({"item_id": id, "output_index": index});
                match call.origin.kind {
                    Kind::Function => {
                        let event = with(&place, "name", json!(call.origin.name));
                        let event = with(&event, "arguments", json!(call.final_json(status)));
                        self.events.tell("response.function_call_arguments.done", event);
                    }
                    Kind::Custom => {
                        let event = with(&place, "input", json!(call.final_text(status)));
                        self.events.tell("response.custom_tool_call_input.done", event);
                    }
                    Kind::Shell => {}
                }
            }
        }
        let item = open.item(status, &self.shape);
        self.events.tell("response.output_item.done", json!({"output_index": index, "item": item}));
        self.output.push(item);
    }

    /// Ends the response: closes what is open, says how it went.
    fn finish(&mut self, usage: Usage) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        self.usage = usage;
        // From here on it cannot be given up any more.
        let is_cancelled = self.making.end();
        let natural = matches!(self.word, Some(FinishWord::Stop | FinishWord::ToolCalls));
        let is_natural = natural && self.failure.is_none() && !is_cancelled;
        let is_call = matches!(&self.open, Some(Open { body: Body::Call(_), .. }));
        // A call that its closer did not end is cut off, whatever ended the turn.
        self.close(if is_natural && !is_call { Status::Completed } else { Status::Incomplete });
        let (status, event) = match (&self.failure, self.word) {
            _ if is_cancelled => ("cancelled", "response.failed"),
            (None, Some(FinishWord::Stop | FinishWord::ToolCalls)) => ("completed", "response.completed"),
            (None, Some(FinishWord::Length)) => ("incomplete", "response.incomplete"),
            _ => ("failed", "response.failed"),
        };
        if status == "failed" && self.failure.is_none() {
            let message = "the response was aborted at the server; ask again".to_owned();
            self.failure = Some(Failure { code: "server_error", message });
        }
        let error = self.failure.as_ref().map(|failure| json!({"code": failure.code, "message": failure.message}));
        let more = [
            ("status", json!(status)),
            ("completed_at", if status == "completed" { json!(now_seconds()) } else { Value::Null }),
            ("error", error.filter(|_| status == "failed").unwrap_or(Value::Null)),
            (
                "incomplete_details",
                match status {
                    "incomplete" => json!({"reason": "max_output_tokens"}),
                    _ => Value::Null,
                },
            ),
            ("usage", usage_json(self.usage)),
        ];
        self.head.extend(more.map(|(key, value)| (key.to_owned(), value)));
        self.events.tell(event, self.told());
        if self.is_stored {
            self.app.responses.finish(self.id(), self.response());
        }
    }

    fn frames(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.events.frames)
    }
}

impl Spell for Weave {
    fn begin(&mut self, _: Usage) -> Vec<Frame> {
        for name in ["response.created", "response.in_progress"] {
            self.events.tell(name, self.told());
        }
        self.frames()
    }

    fn step(&mut self, step: Step, usage: Usage) -> Vec<Frame> {
        self.usage = usage;
        self.take(step);
        self.frames()
    }

    fn end(&mut self, usage: Usage) -> Vec<Frame> {
        self.finish(usage);
        self.frames()
    }

    fn failed(&mut self, error: &ApiError, usage: Usage) -> Vec<Frame> {
        // The words of this protocol for who is at fault.
        let code = if error.status.is_client_error() { "invalid_prompt" } else { "server_error" };
        self.failure = Some(Failure { code, message: error.message.clone() });
        self.finish(usage);
        self.frames()
    }
}

impl Drop for Weave {
    /// Whoever hangs up gives the response up; what there is of it stays.
    fn drop(&mut self) {
        if !self.is_over {
            self.making.cancel();
            self.word = Some(FinishWord::Abort);
            self.finish(self.usage);
        }
    }
}

fn with(map: &Value, key: &str, value: Value) -> Value {
    let mut map = map.clone();
    if let Value::Object(map) = &mut map {
        map.insert(key.into(), value);
    }
    map
}

/// Usage as this protocol has it.
fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::app;
    use crate::turn::Finish;

    /// The status of a response and of its item that ends by itself, given up before its end or behind it.
    #[test]
    fn what_was_given_up_does_not_complete_and_what_is_complete_is_not_given_up() {
        for (is_early, expected) in [(true, ["cancelled", "incomplete"]), (false, ["completed", "completed"])] {
            let head = Map::from_iter([("id".to_owned(), json!("resp_1"))]);
            let mut weave = Weave::new(app(""), head, Shape::default(), true, false);
            Spell::begin(&mut weave, Usage::default());
            assert!(!is_early || weave.making().cancel());
            let finish = Finish { word: FinishWord::Stop, matched: None };
            let events = vec![TurnEvent::Content("a".into()), TurnEvent::Finished(finish)];
            weave.step(Step { events, ..Step::default() }, Usage::default());
            weave.end(Usage::default());
            assert_eq!(weave.making().cancel(), is_early);
            let response = weave.response();
            assert_eq!([&response["status"], &response["output"][0]["status"]], expected);
        }
    }
}
