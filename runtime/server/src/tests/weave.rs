//! A client of the Responses API that trusts nothing: it puts a stream together and checks its rules on the way.

use super::*;
use std::collections::HashMap;

pub(super) const RESPONSES: &str = "/v1/responses";

/// A request with these fields added or replaced.
pub(super) fn ask(more: Value) -> Value {
    with(json!({"model": "toy", "input": "Hi", "temperature": 0}), more)
}

/// The whole response.
pub(super) async fn response(app: &Arc<App>, body: Value) -> Value {
    let reply = post(app, RESPONSES, body).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", String::from_utf8_lossy(&reply.body));
    reply.json()
}

/// The events of a stream, their names checked against their data and their numbers against gaps.
pub(super) async fn events(app: &Arc<App>, body: Value) -> Vec<Value> {
    let reply = post(app, RESPONSES, with(body, json!({"stream": true}))).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", String::from_utf8_lossy(&reply.body));
    let text = String::from_utf8(reply.body).unwrap();
    let event = |(i, event): (usize, &str)| {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(i)));
        data
    };
    text.split_terminator("\n\n").enumerate().map(event).collect()
}

/// The response that a client puts together from the events.
pub(super) async fn folded(app: &Arc<App>, body: Value) -> Value {
    fold(&events(app, body).await)
}

/// The same, from events that are there.
pub(super) fn fold(events: &[Value]) -> Value {
    let [created, in_progress, middle @ .., last] = events else { panic!("{events:?}") };
    for (event, name) in [(created, "response.created"), (in_progress, "response.in_progress")] {
        assert_eq!((&event["type"], &event["response"]["status"]), (&json!(name), &json!("in_progress")));
        assert_eq!((&event["response"]["output"], &event["response"]["usage"]), (&json!([]), &Value::Null));
        assert_eq!(event["response"]["id"], last["response"]["id"]);
    }
    let mut client = Client::default();
    middle.iter().for_each(|event| client.take(event));
    assert!(client.open.is_none(), "an item stays open: {events:?}");
    let status = last["response"]["status"].as_str().unwrap();
    let name = match status {
        "completed" | "incomplete" | "failed" => format!("response.{status}"),
        "cancelled" => "response.failed".into(),
        other => panic!("the end of a stream is {other}"),
    };
    assert_eq!(last["type"], name);
    assert_eq!(last["response"]["output"], json!(client.done), "items of the events and of the end differ");
    with(last["response"].clone(), json!({"output": client.done}))
}

#[derive(Default)]
struct Client {
    /// The item that has begun, as far as the deltas go.
    open: Option<Value>,
    /// Whether its part has begun and ended.
    part: (bool, bool),
    /// What its deltas come to.
    text: String,
    logprobs: Vec<Value>,
    done: Vec<Value>,
}

impl Client {
    fn take(&mut self, event: &Value) {
        let kind = event["type"].as_str().unwrap().strip_prefix("response.").unwrap();
        assert_eq!(event["output_index"], self.done.len(), "{event}");
        match kind {
            "output_item.added" => {
                assert!(self.open.is_none(), "two items are open: {event}");
                let item = &event["item"];
                assert_eq!(item["status"], "in_progress");
                assert!(item["content"].as_array().is_none_or(Vec::is_empty), "{event}");
                (self.part, self.text, self.logprobs) = Default::default();
                self.open = Some(item.clone());
                return;
            }
            "output_item.done" => return self.close(event),
            _ => {}
        }
        let open = self.open.as_ref().expect("an event of no item");
        assert_eq!(event["item_id"], open["id"], "{event}");
        for place in ["content_index", "summary_index"] {
            assert!(event.get(place).is_none_or(|index| index == 0), "{event}");
        }
        let (name, end) = kind.rsplit_once('.').unwrap();
        match end {
            "added" => {
                assert!(!std::mem::replace(&mut self.part.0, true) && event["part"]["text"] == "", "{event}");
            }
            "delta" => {
                let delta = event["delta"].as_str().unwrap();
                assert!(!delta.is_empty(), "an empty piece: {event}");
                self.text += delta;
                self.logprobs.extend(event["logprobs"].as_array().cloned().unwrap_or_default());
                assert!(self.part.0 || name.contains("call"), "a delta before its part: {event}");
            }
            _ if name.ends_with("_part") => {
                assert!(self.part.0 && !std::mem::replace(&mut self.part.1, true), "{event}");
                assert_eq!(event["part"]["text"], self.text);
            }
            _ => {
                let key = match name {
                    "function_call_arguments" => "arguments",
                    "custom_tool_call_input" => "input",
                    _ => "text",
                };
                let told = event[key].as_str().unwrap();
                // What is written twice is told twice, and counts once.
                match (name, serde_json::from_str::<Value>(&self.text)) {
                    ("function_call_arguments", Ok(twice)) => {
                        assert_eq!(twice, serde_json::from_str::<Value>(told).unwrap(), "{event}");
                    }
                    ("custom_tool_call_input", _) => {
                        assert!(self.text == told || !self.text.ends_with(told), "{event} after {}", self.text);
                    }
                    _ => assert_eq!(self.text, told, "{event}"),
                }
                self.text = told.to_owned();
            }
        }
    }

    fn close(&mut self, event: &Value) {
        let (open, item) = (self.open.take().unwrap(), &event["item"]);
        for key in ["id", "type", "role", "call_id", "name", "namespace"] {
            assert_eq!(item.get(key), open.get(key), "{event}");
        }
        assert_eq!(self.part.0, self.part.1, "a part stays open: {event}");
        match item["type"].as_str().unwrap() {
            "message" => {
                let part =
                    json!({"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs});
                assert_eq!(item["content"], json!([part]));
            }
            "reasoning" => {
                let key = if item.get("content").is_some() { "content" } else { "summary" };
                assert_eq!(item[key][0]["text"], self.text);
            }
            "function_call" => assert_eq!(item["arguments"], self.text),
            "custom_tool_call" => assert_eq!(item["input"], self.text),
            "shell_call" => assert_eq!(self.text, ""),
            other => panic!("an item of type {other}"),
        }
        self.done.push(item.clone());
    }
}

/// Without what differs between any two responses; every id becomes the place where it first occurs.
pub(super) fn plain(mut response: Value) -> Value {
    fn walk(value: &mut Value, seen: &mut HashMap<String, usize>) {
        match value {
            Value::Array(list) => list.iter_mut().for_each(|value| walk(value, seen)),
            Value::Object(map) => {
                for (key, value) in map {
                    match value {
                        Value::String(id) if key == "id" || key == "call_id" => {
                            let place = seen.len();
                            let place = *seen.entry(id.clone()).or_insert(place);
                            *value = json!(format!("{} {place}", id.split('_').next().unwrap()));
                        }
                        Value::Number(n) if key.ends_with("_at") => *n = 0.into(),
                        other => walk(other, seen),
                    }
                }
            }
            _ => {}
        }
    }
    walk(&mut response, &mut HashMap::new());
    response
}

/// The whole response, after it was found that the stream says the same.
pub(super) async fn both(app: &Arc<App>, body: Value) -> Value {
    let whole = response(app, body.clone()).await;
    let mut stream = plain(folded(app, body.clone()).await);
    // The second time the prompt is in the cache.
    stream["usage"]["input_tokens_details"] = whole["usage"]["input_tokens_details"].clone();
    assert_eq!(stream, plain(whole.clone()), "{body}");
    whole
}

/// The items of a response by type.
pub(super) fn types(response: &Value) -> Vec<&str> {
    response["output"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect()
}

/// A function as this protocol declares it.
pub(super) fn function(name: &str, properties: Value) -> Value {
    json!({"type": "function", "name": name, "parameters": {"type": "object", "properties": properties}})
}
