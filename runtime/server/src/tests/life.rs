//! Over real sockets: clients that hang up, requests that queue, and the way down.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

pub(super) struct Server {
    address: std::net::SocketAddr,
    stop: oneshot::Sender<()>,
    stop_now: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<std::io::Result<()>>,
}

pub(super) async fn start(app: Arc<App>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let (stop_now, stopped_now) = oneshot::channel::<()>();
    let wait = |r: oneshot::Receiver<()>| async move {
        if r.await.is_err() {
            std::future::pending::<()>().await
        }
    };
    let serving = crate::serve(listener, app, wait(stopped), Duration::from_secs(600), wait(stopped_now));
    Server { address, stop, stop_now, task: tokio::spawn(serving) }
}

/// Sends a completion request and leaves the connection open.
pub(super) async fn open(server: &Server, body: Value) -> TcpStream {
    let body = body.to_string();
    let head = format!(
        "POST {TEXTS} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    connect(server, &(head + &body)).await
}

pub(super) async fn connect(server: &Server, request: &str) -> TcpStream {
    connect_to(server.address, request).await
}

async fn connect_to(address: std::net::SocketAddr, request: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    socket
}

pub(super) async fn rest(mut socket: TcpStream) -> String {
    let mut text = String::new();
    socket.read_to_string(&mut text).await.unwrap();
    text
}

/// A model that never ends and makes one step for each permit; without the sender it runs free. Counts its steps.
pub(super) fn endless() -> (engine::toy::Model, Sender<()>, Arc<AtomicUsize>) {
    let (permit, permits) = channel::<()>();
    let steps = Arc::new(AtomicUsize::new(0));
    let counter = steps.clone();
    let model: engine::toy::Model = Box::new(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        // An error means that nobody holds the model back any more.
        let _ = permits.recv();
        Ok(certain(VOCAB, 300))
    });
    (model, permit, steps)
}

pub(super) async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_frees_the_engine() {
    for stream in [true, false] {
        let (model, permit, steps) = endless();
        let server = start(app_with(model)).await;
        let long = json!({"prompt": "A", "max_tokens": 500, "stream": stream});
        let gone = open(&server, long.clone()).await;
        until(|| steps.load(Ordering::SeqCst) > 0).await;
        let waiting = open(&server, long.clone()).await;
        drop((gone, waiting));
        let reply = tokio::spawn(rest(open(&server, json!({"prompt": "A", "max_tokens": 3})).await));
        while !reply.is_finished() {
            let made = steps.load(Ordering::SeqCst);
            assert!(made < 500, "the abandoned requests run on");
            permit.send(()).unwrap();
            // A round trip gives the server the time to notice who is gone.
            rest(connect(&server, "GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await).await;
        }
        let reply = reply.await.unwrap();
        assert!(reply.contains("\"completion_tokens\":3"), "{reply}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_queue_and_all_are_answered() {
    let server = start(app("one two")).await;
    let mut sockets = Vec::new();
    for i in 0..20 {
        sockets.push(open(&server, json!({"prompt": "A", "temperature": 0, "stream": i % 2 == 0})).await);
    }
    for socket in sockets {
        let reply = rest(socket).await;
        assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("one") && reply.contains("2046"), "{reply}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_down_lets_running_requests_finish() {
    let (model, permit, steps) = endless();
    let app = app_with(model);
    let server = start(app.clone()).await;
    let running = open(&server, json!({"prompt": "A", "max_tokens": 100})).await;
    until(|| steps.load(Ordering::SeqCst) > 0).await;
    server.stop.send(()).unwrap();
    until(|| app.is_draining.load(Ordering::SeqCst)).await;
    let late = post(&app, TEXTS, json!({"prompt": "A"})).await;
    assert_eq!(
        (late.status, &late.json()["error"]["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("shutting_down"))
    );
    assert_eq!(get(&app, "/health").await.status, StatusCode::SERVICE_UNAVAILABLE);
    drop(permit);
    assert!(rest(running).await.contains("\"completion_tokens\":100"));
    server.task.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_down_waits_for_responses_in_the_background() {
    let (model, permit, steps) = endless();
    let app = app_with(model);
    let mut server = start(app.clone()).await;
    let body = json!({"input": "Hi", "background": true, "max_output_tokens": 100});
    let begun = post(&app, weave::RESPONSES, body).await.json();
    until(|| steps.load(Ordering::SeqCst) > 0).await;
    server.stop.send(()).unwrap();
    until(|| app.is_draining.load(Ordering::SeqCst)).await;
    // No connection is left, and still the server stands: it answers others meanwhile.
    for _ in 0..20 {
        let health = connect_to(server.address, "GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(rest(health).await.starts_with("HTTP/1.1 503"));
    }
    assert!(!server.task.is_finished());
    drop(permit);
    (&mut server.task).await.unwrap().unwrap();
    let path = format!("{}/{}", weave::RESPONSES, begun["id"].as_str().unwrap());
    assert_ne!(get(&app, &path).await.json()["status"], "in_progress");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_at_once() {
    let (model, _permit, steps) = endless();
    let server = start(app_with(model)).await;
    let _running = open(&server, json!({"prompt": "A", "max_tokens": 500})).await;
    until(|| steps.load(Ordering::SeqCst) > 0).await;
    server.stop.send(()).unwrap();
    server.stop_now.send(()).unwrap();
    server.task.await.unwrap().unwrap();
    assert_eq!(steps.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_headers_are_refused_before_a_route_sees_them() {
    let server = start(app("")).await;
    let ask = async |headers: String| {
        let request = format!("GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
        rest(connect(&server, &request).await).await
    };
    let many: String = (0..120).map(|i| format!("x-{i}: a\r\n")).collect();
    assert!(ask(many).await.starts_with("HTTP/1.1 431"));
    assert!(ask("x-1: a\r\n".into()).await.starts_with("HTTP/1.1 200"));
}

/// Head and JSON body of an answer.
fn parted(reply: &str) -> (&str, Value) {
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (head, serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {reply}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_request_is_answered_in_json_and_by_name() {
    let server = start(app("")).await;
    let many: String = (0..150).map(|i| format!("x-{i}: a\r\n")).collect();
    let long = format!("GET /health HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "a".repeat(70_000));
    for (request, status, code) in [
        (format!("GET /health HTTP/1.1\r\nhost: x\r\n{many}\r\n"), "431", "headers_too_large"),
        (long, "431", "headers_too_large"),
        (format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(66_000)), "431", "headers_too_large"),
        ("garbage\r\n\r\n".to_owned(), "400", "malformed_request"),
        ("GET /health HTTP/1.1\r\nhost: x\r\nno colon\r\n\r\n".to_owned(), "400", "malformed_request"),
        (format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: many\r\n\r\n"), "400", "malformed_request"),
    ] {
        let reply = rest(connect(&server, &request).await).await;
        let (head, body) = parted(&reply);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
        assert!(head.contains("x-request-id: req_") && head.contains("application/json"), "{head}");
        assert!(body["error"]["message"].as_str().unwrap().len() > 10, "{body}");
        assert_eq!(body["error"]["code"], code, "{body}");
    }
    // Behind an answer of a route on the same connection; that one stays as it is.
    let both = "GET /health HTTP/1.1\r\nhost: x\r\n\r\ngarbage\r\n\r\n";
    let reply = rest(connect(&server, both).await).await;
    let at = reply.find("HTTP/1.1 400").unwrap_or_else(|| panic!("{reply}"));
    let (first, second) = reply.split_at(at);
    assert_eq!(parted(first).1, json!({"status": "ok"}));
    assert_eq!(parted(second).1["error"]["code"], "malformed_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_still_runs_when_time_is_up_gets_a_proper_end() {
    let (model, permit, steps) = endless();
    let app = app_with(model);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let stopping = async move { stopped.await.unwrap_or_default() };
    let task = tokio::spawn(crate::serve(listener, app.clone(), stopping, Duration::ZERO, std::future::pending()));
    let (stop_now, _kept) = oneshot::channel::<()>();
    let (unused, _unused) = oneshot::channel::<()>();
    let server = Server { address, stop: unused, stop_now, task };
    let running = open(&server, json!({"prompt": "A", "max_tokens": 500, "stream": true, "ignore_eos": true})).await;
    until(|| steps.load(Ordering::SeqCst) > 0).await;
    stop.send(()).unwrap();
    until(|| app.is_draining.load(Ordering::SeqCst)).await;
    drop(permit);
    let said = rest(running).await;
    assert!(said.contains("\"finish_reason\":\"abort\"") || said.contains("\"finish_reason\":\"length\""), "{said}");
    assert!(said.contains("data: [DONE]"));
    server.task.await.unwrap().unwrap();
}

/// A host tier that says when it goes.
#[derive(Debug)]
struct Leaving(Arc<AtomicUsize>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl engine::HostTier for Leaving {
    fn bytes(&self) -> u64 {
        0
    }

    fn write(&mut self, _: engine::HostPage, _: usize, _: &[u8]) -> Result<engine::Transfer, engine::TierError> {
        Ok(engine::Transfer::Done)
    }

    fn read(&mut self, _: engine::HostPage, _: usize, _: &mut Vec<u8>) -> Result<engine::Transfer, engine::TierError> {
        Err(engine::TierError("it keeps nothing".to_owned()))
    }

    fn forget(&mut self, _: engine::HostPage) {}
}

/// Whoever ends the engine's thread has what it keeps outside of memory gone, though others still hold the service.
#[test]
fn the_engine_ends_with_its_host_tier() {
    let gone = Arc::new(AtomicUsize::new(0));
    let toy = Toy::new(facts(50, 4, 16, 8), Box::new(|_| Ok(vec![0.0; 50])));
    let engine = Engine::new(toy, Limits::default()).unwrap().with_host_tier(Box::new(Leaving(gone.clone())));
    let service = Service::start(engine).unwrap();
    let other = service.clone();
    assert!(other.is_alive());
    service.end(Duration::from_secs(60));
    assert!(!other.is_alive());
    assert_eq!(gone.load(Ordering::SeqCst), 1);
}
