//! Answers of the Messages API, whole or put together from their events, whose form is checked on the way.

use super::*;

pub(super) const MESSAGES: &str = "/v1/messages";

/// A request of one user message, with these fields added or replaced.
pub(super) fn body(more: Value) -> Value {
    with(json!({"model": "toy", "max_tokens": 250, "messages": [{"role": "user", "content": "Hi"}]}), more)
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Told {
    /// Content blocks, calls without their names, which nobody can foresee.
    pub blocks: Vec<Value>,
    pub stop_reason: String,
    pub stop_sequence: Value,
    pub usage: Value,
}

impl Told {
    /// The joined text of one kind of block.
    pub fn text(&self, kind: &str) -> String {
        self.blocks.iter().filter(|block| block["type"] == kind).filter_map(|block| block[kind].as_str()).collect()
    }

    /// Name and arguments of every call.
    pub fn calls(&self) -> Vec<(String, Value)> {
        let calls = self.blocks.iter().filter(|block| block["type"] == "tool_use");
        calls.map(|call| (call["name"].as_str().unwrap().to_owned(), call["input"].clone())).collect()
    }

    /// How long the prompt was.
    pub fn prompt_tokens(&self) -> u64 {
        ["input_tokens", "cache_read_input_tokens"].iter().map(|key| self.usage[key].as_u64().unwrap()).sum()
    }
}

/// A block without what is random in it.
fn plain(block: &Value) -> Value {
    let mut block = block.clone();
    match block["type"].as_str().unwrap() {
        "text" => assert!(!block["text"].as_str().unwrap().is_empty()),
        "thinking" => assert!(!block["signature"].as_str().unwrap().is_empty()),
        "tool_use" => {
            let id = block.as_object_mut().unwrap().remove("id").unwrap();
            assert!(id.as_str().unwrap().starts_with("toolu_"));
            assert!(block["input"].is_object());
        }
        other => panic!("a block of type `{other}`"),
    }
    block
}

/// The whole answer.
pub(super) async fn told(app: &Arc<App>, body: Value) -> Told {
    let reply = post(app, MESSAGES, body).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", String::from_utf8_lossy(&reply.body));
    let message = reply.json();
    assert_eq!(
        (&message["type"], &message["role"], &message["model"]),
        (&json!("message"), &json!("assistant"), &json!("toy"))
    );
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    Told {
        blocks: message["content"].as_array().unwrap().iter().map(plain).collect(),
        stop_reason: message["stop_reason"].as_str().unwrap().to_owned(),
        stop_sequence: message["stop_sequence"].clone(),
        usage: message["usage"].clone(),
    }
}

/// The events of a stream; each says its name twice.
pub(super) fn events(reply: &Reply) -> Vec<Value> {
    let text = std::str::from_utf8(&reply.body).unwrap();
    let event = |event: &str| {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name);
        data
    };
    text.split_terminator("\n\n").map(event).collect()
}

/// The answer that a stream tells.
pub(super) async fn streamed(app: &Arc<App>, body: Value) -> Told {
    let reply = post(app, MESSAGES, with(body, json!({"stream": true}))).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", String::from_utf8_lossy(&reply.body));
    let all = events(&reply);
    folded(&all)
}

/// The same from its events.
pub(super) fn folded(all: &[Value]) -> Told {
    let [start, blocks @ .., delta, stop] = all else { panic!("{all:?}") };
    let message = &start["message"];
    assert_eq!((&start["type"], &message["content"]), (&json!("message_start"), &json!([])));
    assert_eq!((&message["stop_reason"], &message["usage"]["output_tokens"]), (&Value::Null, &json!(0)));
    assert_eq!((&delta["type"], stop), (&json!("message_delta"), &json!({"type": "message_stop"})));
    let mut told = Told {
        stop_reason: delta["delta"]["stop_reason"].as_str().unwrap().to_owned(),
        stop_sequence: delta["delta"]["stop_sequence"].clone(),
        usage: delta["usage"].clone(),
        ..Told::default()
    };
    let (mut blocks, open) = fold_blocks(blocks);
    assert!(!open, "a block stays open");
    let calls = blocks.iter().rposition(|block| block["type"] == "tool_use");
    for (at, block) in blocks.iter_mut().enumerate() {
        // Only the last call can be cut off, and none where tools are to be called.
        if let Some(text) = block["input"].as_str() {
            assert!(told.stop_reason != "tool_use" && Some(at) == calls, "broken arguments: {block}");
            block["input"] = reports::arguments(text);
        }
    }
    told.blocks = blocks.iter().map(plain).collect();
    told
}

/// Blocks from their events, and whether the last is open. The input of a call that was cut off is its text.
pub(super) fn fold_blocks(events: &[Value]) -> (Vec<Value>, bool) {
    let (mut blocks, mut open, mut deltas, mut written) = (Vec::<Value>::new(), false, 0, String::new());
    for event in events {
        let kind = event["type"].as_str().unwrap();
        if kind == "ping" {
            continue;
        }
        assert_eq!(event["index"], blocks.len() - usize::from(open), "{event}");
        if kind == "content_block_start" {
            assert!(!std::mem::replace(&mut open, true), "two blocks are open: {event}");
            (deltas, written) = (0, String::new());
            blocks.push(event["content_block"].clone());
            let begun = match event["content_block"]["type"].as_str().unwrap() {
                "thinking" => json!({"type": "thinking", "thinking": "", "signature": ""}),
                "text" => json!({"type": "text", "text": ""}),
                _ => with(event["content_block"].clone(), json!({"type": "tool_use", "input": {}})),
            };
            assert_eq!(event["content_block"], begun);
            continue;
        }
        assert!(open, "no block is open: {event}");
        let block = blocks.last_mut().unwrap();
        if kind == "content_block_stop" {
            open = false;
            // Of a call that is cut off at its name there is nothing to tell.
            assert!(deltas > 0 || block["type"] == "tool_use", "an empty block");
            assert!(block["type"] != "thinking" || block["signature"] != "", "a block without signature");
            if block["type"] == "tool_use" {
                block["input"] = match written.as_str() {
                    "" => json!({}),
                    text => reports::so_far(text).unwrap_or_else(|text| json!(text)),
                };
            }
            continue;
        }
        assert_eq!(kind, "content_block_delta");
        assert!(block["type"] != "thinking" || block["signature"] == "", "the signature is the last: {event}");
        deltas += 1;
        let delta = &event["delta"];
        let (key, of) = match delta["type"].as_str().unwrap() {
            "thinking_delta" => ("thinking", "thinking"),
            "signature_delta" => ("signature", "thinking"),
            "text_delta" => ("text", "text"),
            "input_json_delta" => ("partial_json", "tool_use"),
            other => panic!("a delta of type `{other}`"),
        };
        assert_eq!(block["type"], of);
        let more = piece(&delta[key]);
        if key == "partial_json" {
            written.push_str(more);
        } else {
            block[key] = json!(block[key].as_str().unwrap().to_owned() + more);
        }
    }
    (blocks, open)
}

/// Both forms say the same. Returns the whole answer.
pub(super) async fn agree(app: &Arc<App>, body: Value) -> Told {
    let whole = told(app, body.clone()).await;
    let stream = streamed(app, body.clone()).await;
    let cost = |told: &Told| (told.prompt_tokens(), told.usage["output_tokens"].clone());
    assert_eq!(cost(&stream), cost(&whole), "{body}");
    assert_eq!(Told { usage: whole.usage.clone(), ..stream }, whole, "{body}");
    assert_eq!(whole.usage["cache_creation_input_tokens"], 0);
    whole
}
