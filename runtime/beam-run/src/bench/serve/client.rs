//! One request over HTTP, streamed, with the times at which its parts came.

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::time::Instant;
use tokio::net::TcpStream;

/// Where requests go.
#[derive(Clone, Debug)]
pub struct Server {
    /// `host:port`.
    address: String,
    /// Path before that of a route.
    base: String,
    key: Option<String>,
}

/// What came of a request.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// Status, 0 where there was no answer.
    pub status: u16,
    /// Whether a refusal said when to come again.
    pub retry_after: bool,
    /// Seconds from asking to the first and the last piece of text.
    pub first: Option<f64>,
    pub last: f64,
    /// Seconds between pieces.
    pub gaps: Vec<f64>,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub completion_tokens: u64,
    /// Why it is no answer.
    pub error: Option<String>,
}

impl Server {
    /// The server behind `http://host[:port][/path]`.
    pub fn new(url: &str, key: Option<String>) -> Result<Server, String> {
        let uri: Uri = url.parse().map_err(|e| format!("{e}"))?;
        if uri.scheme_str() != Some("http") {
            return Err("only `http://` is spoken here; ask a server that is near without TLS".to_owned());
        }
        let host = uri.host().ok_or("it names no host")?;
        let address = format!("{host}:{}", uri.port_u16().unwrap_or(80));
        let base = uri.path().trim_end_matches('/').trim_end_matches("/v1").to_owned();
        Ok(Server { address, base, key })
    }

    /// The id of the first model that the server lists.
    pub async fn first_model(&self) -> Result<String, String> {
        let (_, body) = self.send(Method::GET, "/v1/models", Bytes::new()).await?;
        let whole = body.collect().await.map_err(|e| e.to_string())?.to_bytes();
        let models: Value = serde_json::from_slice(&whole).map_err(|e| format!("/v1/models: {e}"))?;
        let id = models.pointer("/data/0/id").and_then(Value::as_str);
        id.map(str::to_owned).ok_or_else(|| "/v1/models lists none".to_owned())
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(hyper::http::response::Parts, hyper::body::Incoming), String> {
        let stream = TcpStream::connect(&self.address).await.map_err(|e| format!("{}: {e}", self.address))?;
        // Pieces are small and each is worth its own packet.
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        request = request.header(HOST, &self.address).header(CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = request.body(Full::new(body)).map_err(|e| e.to_string())?;
        let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
        Ok(response.into_parts())
    }

    /// Posts a streaming request and reads it to its end.
    pub async fn stream(&self, path: &str, body: &Value) -> Reply {
        let mut reply = Reply::default();
        if let Err(error) = self.read(path, body, &mut reply).await {
            reply.error = Some(error);
        }
        reply
    }

    async fn read(&self, path: &str, body: &Value, reply: &mut Reply) -> Result<(), String> {
        let asked = Instant::now();
        let (head, mut frames) = self.send(Method::POST, path, body.to_string().into()).await?;
        reply.status = head.status.as_u16();
        reply.retry_after = head.headers.contains_key(RETRY_AFTER);
        let mut lines = Lines::default();
        let mut before = None;
        let mut refusal = Vec::new();
        while let Some(frame) = frames.frame().await {
            let frame = frame.map_err(|e| e.to_string())?;
            let Some(bytes) = frame.data_ref() else { continue };
            if !head.status.is_success() {
                refusal.extend_from_slice(bytes);
                continue;
            }
            let now = asked.elapsed().as_secs_f64();
            for event in lines.push(bytes) {
                let has_text = note(&event, reply)?;
                if has_text {
                    reply.first.get_or_insert(now);
                    reply.gaps.extend(before.map(|before| now - before));
                    (before, reply.last) = (Some(now), now);
                }
            }
        }
        match head.status.is_success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&refusal).chars().take(300).collect()),
        }
    }
}

/// Takes an event of a stream; says whether it brings text.
fn note(event: &Value, reply: &mut Reply) -> Result<bool, String> {
    if let Some(error) = event.get("error").filter(|e| !e.is_null()) {
        return Err(error.to_string());
    }
    if let Some(usage) = event.get("usage").filter(|u| u.is_object()) {
        let count = |path: &str| usage.pointer(path).and_then(Value::as_u64).unwrap_or(0);
        reply.prompt_tokens = count("/prompt_tokens");
        reply.completion_tokens = count("/completion_tokens");
        reply.cached_tokens = count("/prompt_tokens_details/cached_tokens");
    }
    let choice = event.pointer("/choices/0");
    let says = |path: &str| choice.and_then(|c| c.pointer(path)).and_then(Value::as_str).is_some_and(|t| !t.is_empty());
    Ok(["/text", "/delta/content", "/delta/reasoning_content", "/delta/reasoning"].into_iter().any(says))
}

/// Server-sent events out of the pieces in which they come.
#[derive(Default)]
struct Lines {
    open: Vec<u8>,
}

impl Lines {
    /// The events that are whole now.
    fn push(&mut self, bytes: &[u8]) -> Vec<Value> {
        self.open.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.open.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.open.drain(..=end).collect();
            let data = std::str::from_utf8(&line).ok().and_then(|l| l.strip_prefix("data:"));
            // `[DONE]` and comments are no events.
            events.extend(data.and_then(|d| serde_json::from_str(d.trim()).ok()));
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_are_whole_wherever_they_are_cut() {
        let text = "data: {\"a\":1}\n\n: ping\n\ndata:{\"b\":\"é\"}\r\n\r\ndata: [DONE]\n\n";
        for cut in 0..=text.len() {
            let mut lines = Lines::default();
            let mut events = lines.push(&text.as_bytes()[..cut]);
            events.extend(lines.push(&text.as_bytes()[cut..]));
            assert_eq!(events, [json!({"a": 1}), json!({"b": "é"})]);
        }
    }

    #[test]
    fn text_and_usage_are_told_apart() {
        let mut reply = Reply::default();
        assert_eq!(note(&json!({"choices": [{"delta": {"content": "x"}}], "usage": null}), &mut reply), Ok(true));
        assert_eq!(note(&json!({"choices": [{"delta": {"role": "assistant"}}]}), &mut reply), Ok(false));
        assert_eq!(note(&json!({"choices": [{"text": "y"}]}), &mut reply), Ok(true));
        let usage = json!({"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}});
        assert_eq!(note(&json!({"choices": [], "usage": usage}), &mut reply), Ok(false));
        assert_eq!((reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens), (7, 3, 4));
        assert!(note(&json!({"error": {"message": "no"}}), &mut reply).is_err());
    }

    #[test]
    fn addresses_are_read() {
        let server = |url: &str| Server::new(url, None).map(|s| (s.address, s.base));
        assert_eq!(server("http://a:80/"), Ok(("a:80".into(), String::new())));
        assert_eq!(server("http://a/x/v1"), Ok(("a:80".into(), "/x".into())));
        assert!(server("https://a").is_err() && server("a:8000").is_err());
    }
}
