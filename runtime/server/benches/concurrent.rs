//! Processor time of the server by streamed token, with many streams at once.
//!
//! `cargo bench -p server --bench concurrent [-- STREAMS [TOKENS [MILLISECONDS [PAUSE]]]]`. The executor computes nothing; the clients
//! are a process of their own that reads whole sockets, so that its time is not the server's. The bound for 1,000 streams is
//! 10 µs a token. A step takes no time, so that tokens meet on their way and go out together; with MILLISECONDS it takes
//! so long; the pieces of a stream are then PAUSE milliseconds apart, or as much as they usually are, and with 0 every token is
//! written to its socket alone.

use engine::sim::Blank;
use engine::toy::facts;
use engine::{Engine, Executor, ExecutorFacts, Limits, PhysicalPage, Step, StepError, StepOutput, Ticket};
use serde_json::json;
use server::{App, Door, Options, Service, serve};
use std::future::pending;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use text::Text;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PAGE_TOKENS: usize = 64;
/// What the process that is the clients is told where the server is.
const ADDRESS: &str = "STREAMS_ADDRESS";

/// Seconds of processor time that this process has taken.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("fields").1.split(' ').collect();
    // User and system time in hundredths of a second.
    [11, 12].iter().map(|at| fields[*at].parse::<f64>().expect("ticks")).sum::<f64>() / 100.0
}

fn numbers() -> (usize, usize, u64, Duration) {
    let args: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let at = |i: usize, usual| args.get(i).copied().unwrap_or(usual);
    let pause = args.get(3).map_or(Door::default().pause, |ms| Duration::from_millis(*ms as u64));
    (at(0, 1000), at(1, 200), at(2, 0) as u64, pause)
}

/// Steps that take their time and no processor.
struct Paced {
    content: Blank,
    step: Duration,
    done: Instant,
}

impl Executor for Paced {
    fn facts(&self) -> &ExecutorFacts {
        self.content.facts()
    }

    fn submit(&mut self, step: Step) -> Result<Ticket, StepError> {
        self.done = Instant::now() + self.step;
        self.content.submit(step)
    }

    fn poll(&mut self, ticket: Ticket) -> Result<Option<StepOutput>, StepError> {
        if Instant::now() < self.done { Ok(None) } else { self.content.poll(ticket) }
    }

    fn wait_for_step(&mut self, most: Duration) {
        std::thread::sleep(most.min(self.done.saturating_duration_since(Instant::now())));
    }

    fn copy_pages(&mut self, _: usize, _: &[(PhysicalPage, PhysicalPage)]) -> Result<(), StepError> {
        Ok(())
    }

    fn spare(&mut self) -> Option<Step> {
        self.content.spare()
    }

    fn take_back(&mut self, output: StepOutput) {
        self.content.take_back(output);
    }
}

/// All clients: each asks once and reads to the end. Prints how many events came.
async fn clients(address: String, streams: usize, tokens: usize) {
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..streams {
        let address = address.clone();
        let body = json!({"prompt": format!("{i}"), "max_tokens": tokens, "stream": true, "ignore_eos": true,
            "stream_options": {"include_usage": true}, "temperature": 0, "seed": i})
        .to_string();
        tasks.spawn(async move {
            let mut socket = TcpStream::connect(address).await.expect("connection");
            let head =
                "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json";
            let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            socket.write_all(request.as_bytes()).await.expect("request");
            let mut text = String::new();
            socket.read_to_string(&mut text).await.expect("answer");
            assert!(text.contains(&format!("\"completion_tokens\":{tokens}")), "{text}");
            text.matches("data: {").count()
        });
    }
    println!("{}", tasks.join_all().await.iter().sum::<usize>());
}

fn main() {
    let (streams, tokens, step_ms, pause) = numbers();
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime");
    if let Ok(address) = std::env::var(ADDRESS) {
        return runtime().block_on(clients(address, streams, tokens));
    }
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/beam-nano");
    let text = Arc::new(Text::load(&dir, &[]).expect("text"));
    let pages = streams * (tokens + 128).div_ceil(PAGE_TOKENS);
    let mut facts = facts(text.tokenizer.vocab(), PAGE_TOKENS, pages, 8192);
    (facts.max_sequences, facts.max_wanted) = (streams, streams);
    let limits = Limits { context_tokens: Some(tokens + 64), running: streams, ..Limits::default() };
    let executor = Paced { content: Blank::new(facts), step: Duration::from_millis(step_ms), done: Instant::now() };
    let engine = Engine::new(executor, limits).expect("engine");
    let service = Service::behind(engine, Door { pause, ..Door::default() }).expect("thread");
    let options = Options { turn_grammar: false, ..Options::default() };
    let app = Arc::new(App::with_options(service, text, "blank".into(), options));
    let runtime = runtime();
    let address = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
        let address = listener.local_addr().expect("address").to_string();
        tokio::spawn(serve(listener, app, pending(), Duration::ZERO, pending()));
        address
    });
    let whole = round(&address, streams, tokens);
    // Requests of one token cost what requests cost, and a token.
    let begun = round(&address, streams, 1);
    let (micros, request) = (whole.micros / (streams * tokens) as f64, begun.micros / streams as f64);
    let further = (whole.micros - begun.micros) / (streams * (tokens - 1).max(1)) as f64;
    println!(
        "{streams} streams of {tokens} tokens, steps of {step_ms} ms, pieces {} ms apart: {micros:.2} us of processor time a token, {} events; {request:.0} us a request of one token, {further:.2} us each further one",
        pause.as_millis(),
        whole.events
    );
}

/// What a round of streams took of this process, and how many events came.
struct Round {
    micros: f64,
    events: String,
}

fn round(address: &str, streams: usize, tokens: usize) -> Round {
    let before = processor_seconds();
    let program = std::env::current_exe().expect("own path");
    let mut command = Command::new(program);
    let output = command.args([streams.to_string(), tokens.to_string()]).env(ADDRESS, address).output();
    let output = output.expect("clients");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let events = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Round { micros: (processor_seconds() - before) * 1e6, events }
}
