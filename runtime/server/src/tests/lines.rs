//! Streams over real sockets: written from the writer's thread while the connection's task sleeps, and by the task.

use super::life::{connect, endless, open, rest, start, until};
use super::*;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Takes one chunk of a body from its beginning, if it is whole.
fn chunk(bytes: &mut Vec<u8>) -> Option<String> {
    let line = bytes.windows(2).position(|w| w == b"\r\n")?;
    let length = usize::from_str_radix(std::str::from_utf8(&bytes[..line]).unwrap(), 16).unwrap();
    let end = line + 2 + length;
    if bytes.len() < end + 2 {
        return None;
    }
    assert_eq!(&bytes[end..end + 2], b"\r\n");
    let chunk = String::from_utf8(bytes[line + 2..end].to_vec()).unwrap();
    bytes.drain(..end + 2);
    Some(chunk)
}

/// A connection and what has come on it.
struct Reading {
    socket: TcpStream,
    bytes: Vec<u8>,
}

impl Reading {
    async fn more(&mut self) {
        assert!(self.socket.read_buf(&mut self.bytes).await.unwrap() > 0, "the connection is closed");
    }

    async fn head(&mut self) -> String {
        loop {
            if let Some(end) = self.bytes.windows(4).position(|w| w == b"\r\n\r\n") {
                return String::from_utf8(self.bytes.drain(..end + 4).collect()).unwrap();
            }
            self.more().await;
        }
    }

    async fn chunk(&mut self) -> String {
        loop {
            if let Some(chunk) = chunk(&mut self.bytes) {
                return chunk;
            }
            self.more().await;
        }
    }

    /// The rest of a body.
    async fn body(&mut self) -> String {
        let mut body = String::new();
        loop {
            let chunk = self.chunk().await;
            if chunk.is_empty() {
                return body;
            }
            body += &chunk;
        }
    }
}

/// A token that is made is read before the next is, each in a chunk of its own; the end of the text and of the body come, and the
/// connection goes on.
#[tokio::test(flavor = "multi_thread")]
async fn each_token_comes_when_it_is_made_and_the_connection_goes_on() {
    const TOKENS: usize = 40;
    let (model, permit, steps) = endless();
    let server = start(app_with(model)).await;
    let body = json!({"prompt": "A", "max_tokens": TOKENS, "stream": true}).to_string();
    let head =
        format!("POST {TEXTS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}", body.len());
    let request = format!("{head}\r\n\r\n{body}");
    let mut reading = Reading { socket: connect(&server, &request).await, bytes: Vec::new() };
    for _ in 0..2 {
        let mut end = String::new();
        for token in 0..TOKENS {
            permit.send(()).unwrap();
            if token == 0 {
                let head = reading.head().await;
                assert!(head.starts_with("HTTP/1.1 200") && head.contains("transfer-encoding: chunked"), "{head}");
            }
            let chunk = reading.chunk().await;
            assert_eq!(chunk.matches("data: {").count(), 1, "{token}: {chunk}");
            assert!(token + 1 == TOKENS || !chunk.contains("[DONE]"), "{token}: {chunk}");
            end = chunk;
        }
        // The end may come with the last token or behind it.
        end += &reading.body().await;
        assert!(end.ends_with("data: [DONE]\n\n") && end.contains("\"finish_reason\":\"length\""), "{end}");
        reading.socket.write_all(request.as_bytes()).await.unwrap();
    }
    drop(permit);
    until(|| steps.load(Ordering::SeqCst) >= 3 * TOKENS).await;
}

/// What a socket says is what the body alone does: several choices, each protocol, stop strings and errors in the middle.
#[tokio::test(flavor = "multi_thread")]
async fn sockets_say_what_bodies_do() {
    let chat = chat_body(json!({"stream": true, "n": 2, "temperature": 0, "rid": "same"}));
    let texts = json!({"prompt": ["A", "B"], "n": 2, "stream": true, "temperature": 0, "stop": "four", "rid": "same"});
    let generate =
        json!({"text": "A", "stream": true, "sampling_params": {"temperature": 0, "max_new_tokens": 9}, "rid": "same"});
    let broken = json!({"prompt": "A", "stream": true, "temperature": 0, "max_tokens": 30, "rid": "same"});
    for (path, body, says) in
        [(CHAT, chat, ANSWER), (TEXTS, texts, COUNTED), ("/generate", generate, COUNTED), (TEXTS, broken, "")]
    {
        let made = || {
            if says.is_empty() { app_with(failing_at(9, || StepError::Device("region 3".into()))) } else { app(says) }
        };
        let alone = post(&made(), path, body.clone()).await;
        let (server, text) = (start(made()).await, body.to_string());
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}",
            text.len()
        );
        let mut reading =
            Reading { socket: connect(&server, &format!("{head}\r\n\r\n{text}")).await, bytes: Vec::new() };
        reading.head().await;
        let spoken = reading.body().await;
        let said = |text: &str| -> Vec<(u64, String)> {
            let mut said: Vec<(u64, String)> = Vec::new();
            for value in text.lines().filter_map(|l| serde_json::from_str::<Value>(l.strip_prefix("data: ")?).ok()) {
                let choice = &value["choices"][0];
                let index = choice["index"].as_u64().or(value["index"].as_u64()).unwrap_or(9);
                let pieces = [&choice["text"], &choice["delta"]["content"], &choice["delta"]["reasoning_content"]];
                let ends = [&choice["finish_reason"], &value["error"]["code"], &value["text"]];
                let texts = pieces.iter().chain(&ends).filter_map(|v| v.as_str());
                let text: String = texts.collect();
                match said.iter_mut().find(|(i, _)| *i == index) {
                    Some((_, all)) if value["text"].is_null() => all.push_str(&text),
                    Some((_, all)) => *all = text,
                    None => said.push((index, text)),
                }
            }
            said.sort();
            said
        };
        let expected = said(std::str::from_utf8(&alone.body).unwrap());
        assert!(!expected.is_empty());
        assert_eq!(said(&spoken), expected, "{path}: {spoken}");
        assert_eq!(spoken.contains("[DONE]"), String::from_utf8_lossy(&alone.body).contains("[DONE]"));
    }
}

/// An older client reads to the end of the connection, without chunks.
#[tokio::test(flavor = "multi_thread")]
async fn old_connections_have_no_chunks() {
    let server = start(app(COUNTED)).await;
    let body = json!({"prompt": "A", "stream": true, "temperature": 0}).to_string();
    let head =
        format!("POST {TEXTS} HTTP/1.0\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}", body.len());
    let reply = rest(connect(&server, &format!("{head}\r\n\r\n{body}")).await).await;
    let (head, said) = reply.split_once("\r\n\r\n").unwrap();
    assert!(!head.contains("chunked") && said.starts_with("data: {") && said.ends_with("data: [DONE]\n\n"), "{reply}");
    drop(open(&server, json!({"prompt": "A"})).await);
}
