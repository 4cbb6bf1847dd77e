//! Over real sockets: clients that say all and listen on, clients that send more than is wanted, and what HTTP asks of both.

use super::life::{connect, endless, open, rest, start, until};
use super::*;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const INTERIM: &str = "HTTP/1.1 100 Continue\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn who_says_all_and_listens_on_gets_the_answer() {
    for stream in [false, true] {
        let (model, permit, steps) = endless();
        let server = start(app_with(model)).await;
        let body = json!({"prompt": "A", "max_tokens": 3, "stream": stream, "stream_options": {"include_usage": true}});
        let mut socket = open(&server, body).await;
        until(|| steps.load(Ordering::SeqCst) > 0).await;
        socket.shutdown().await.unwrap();
        // The server looks whether anybody is there, before it has anything else to say.
        let mut said = vec![0; 4096];
        let mut told = String::new();
        while !(told.ends_with(INTERIM) || told.contains(": ping\n\n")) {
            let read = socket.read(&mut said).await.unwrap();
            assert!(read > 0, "{told}");
            told.push_str(std::str::from_utf8(&said[..read]).unwrap());
        }
        drop(permit);
        let reply = told.clone() + &rest(socket).await;
        let answer = reply.strip_prefix(INTERIM).unwrap_or(&reply);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"completion_tokens\":3"), "{reply}");
        assert_eq!(reply.starts_with(INTERIM), !stream, "a stream's head is there already: {reply}");
        assert_eq!(answer.contains("data: [DONE]"), stream, "{reply}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_answer_to_half_a_connection_comes_plain() {
    let server = start(app("")).await;
    for (version, host) in [("1.1", "host: x\r\n"), ("1.0", "")] {
        let mut socket = connect(&server, &format!("GET /health HTTP/{version}\r\n{host}\r\n")).await;
        socket.shutdown().await.unwrap();
        let reply = rest(socket).await;
        assert!(reply.starts_with(&format!("HTTP/{version} 200")) && reply.ends_with("{\"status\":\"ok\"}"), "{reply}");
    }
    // Several requests that came together are all answered.
    let twice = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n".repeat(3);
    let mut socket = connect(&server, &twice).await;
    socket.shutdown().await.unwrap();
    let reply = rest(socket).await;
    assert_eq!(reply.matches("HTTP/1.1 200").count(), 3, "{reply}");
    // Half a body is none.
    let mut half = connect(&server, &format!("POST {TEXTS} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{{")).await;
    half.shutdown().await.unwrap();
    let reply = rest(half).await;
    assert!(reply.is_empty() || reply.contains("incomplete_body"), "{reply}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_sends_more_than_is_wanted_still_hears_so() {
    let mut app = app("");
    Arc::get_mut(&mut app).unwrap().options.body_limit_bytes = 1000;
    let server = start(app).await;
    // More than any socket holds, from a client that reads only when all is sent.
    let bytes = 64 << 20;
    let head = format!("POST {TEXTS} HTTP/1.1\r\nhost: x\r\ncontent-length: {bytes}\r\n\r\n");
    let mut socket = connect(&server, &head).await;
    socket.write_all(&vec![b' '; bytes]).await.unwrap();
    let reply = rest(socket).await;
    assert!(reply.starts_with("HTTP/1.1 413") && reply.contains("body_too_large"), "{reply}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_and_expectations_are_what_http_asks_for() {
    let server = start(app("")).await;
    for (version, headers, status, code) in [
        ("1.1", "", "400", "invalid_host"),
        ("1.1", "host: x\r\nhost: y\r\n", "400", "invalid_host"),
        ("1.0", "", "200", ""),
        ("1.1", "host: x\r\nexpect: foo\r\n", "417", "unknown_expectation"),
        ("1.1", "host: x\r\nexpect: 100-continue, foo\r\n", "417", "unknown_expectation"),
        ("1.1", "host: x\r\nexpect: 100-Continue\r\n", "200", ""),
    ] {
        let request = format!("GET /health HTTP/{version}\r\nconnection: close\r\n{headers}\r\n");
        let reply = rest(connect(&server, &request).await).await;
        assert!(reply.starts_with(&format!("HTTP/{version} {status}")), "{headers}: {reply}");
        assert!(reply.contains("x-request-id: req_") && reply.contains(code), "{headers}: {reply}");
    }
    // With the words of its route.
    let request =
        "POST /v1/messages HTTP/1.1\r\nhost: x\r\nconnection: close\r\nexpect: foo\r\ncontent-length: 0\r\n\r\n";
    let reply = rest(connect(&server, request).await).await;
    assert!(reply.contains("\"type\":\"error\"") && reply.contains("request-id: req_"), "{reply}");
}

#[tokio::test]
async fn a_key_that_stands_twice_is_refused_by_its_place() {
    let app = app("");
    let user = "{\"role\": \"user\", \"content\": \"Hi\"}";
    let twice = "{\"role\": \"user\", \"role\": \"assistant\", \"content\": \"Hi\"}";
    for (path, body, place) in [
        (CHAT, format!("{{\"messages\": [{user}], \"max_tokens\": 1, \"max_tokens\": 2}}"), "max_tokens"),
        (CHAT, format!("{{\"messages\": [{user}, {twice}]}}"), "messages[1].role"),
        (blocks::MESSAGES, format!("{{\"max_tokens\": 1, \"messages\": [{twice}]}}"), "messages[0].role"),
        (weave::RESPONSES, format!("{{\"input\": [{twice}]}}"), "input[0].role"),
        (TEXTS, "{\"prompt\": \"A\", \"prompt\": \"B\"}".into(), "prompt"),
        (
            "/generate",
            "{\"text\": \"A\", \"sampling_params\": {\"top_k\": 1, \"top_k\": 2}}".into(),
            "sampling_params.top_k",
        ),
        ("/tokenize", "{\"prompt\": \"A\", \"prompt\": \"B\"}".into(), "prompt"),
        ("/abort_request", "{\"rid\": \"a\", \"rid\": \"b\"}".into(), "rid"),
    ] {
        for long in ["", &" ".repeat(40 << 10)] {
            let reply = post_bytes(&app, path, body.clone() + long).await;
            let said = reply.json()["error"].clone();
            assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{path}: {said}");
            assert!(said["message"].as_str().unwrap().contains(place), "{path}: {said}");
            assert!(path == blocks::MESSAGES || said["param"] == place && said["code"] == "repeated_key", "{said}");
        }
    }
}
