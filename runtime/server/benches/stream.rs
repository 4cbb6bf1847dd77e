//! What a streamed answer costs beside the model: tokens become text, text becomes fields, fields become server-sent events.
//!
//! `cargo bench -p server --bench stream`. The executor chooses recorded tokens and computes nothing; all else is what a
//! client's request meets: router, prompt, scheduler, masks where a grammar holds the turn, detokenising, parsing, JSON,
//! events. A core's rate is tokens by processor time of the whole process, as Linux tells it.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use engine::toy::facts;
use engine::{
    Engine, Executor, ExecutorFacts, Limits, PhysicalPage, SampledToken, Step, StepError, StepOutput, Ticket,
};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use server::{App, Options, Service, router};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use text::Text;
use tower::ServiceExt;

const CONTEXT_TOKENS: usize = 4096;
const PAGE_TOKENS: usize = 16;
/// Requests at once, and one after another.
const AT_ONCE: usize = 4;
const ROUNDS: usize = 20;

/// Says the script after every prompt, then an ending token.
struct Script {
    facts: ExecutorFacts,
    tokens: Vec<u32>,
    end: u32,
    /// Position of the last token of the prompt, which is the same for all.
    begin: Option<i32>,
    done: Option<StepOutput>,
    tickets: u64,
}

impl Executor for Script {
    fn facts(&self) -> &ExecutorFacts {
        &self.facts
    }

    fn submit(&mut self, step: Step) -> Result<Ticket, StepError> {
        let mut output = StepOutput::default();
        for sequence in &step.sequences {
            let last = sequence.start + sequence.len - 1;
            if step.wanted.iter().any(|wanted| wanted.row == last) {
                let begin = *self.begin.get_or_insert(step.positions[last]);
                let id = self.tokens.get((step.positions[last] - begin) as usize).copied().unwrap_or(self.end);
                output.tokens.push(Some(SampledToken { id, ..SampledToken::default() }));
                output.logits.push(None);
            }
        }
        self.done = Some(output);
        self.tickets += 1;
        Ok(Ticket(self.tickets))
    }

    fn poll(&mut self, _: Ticket) -> Result<Option<StepOutput>, StepError> {
        Ok(self.done.take())
    }

    fn copy_pages(&mut self, _: usize, _: &[(PhysicalPage, PhysicalPage)]) -> Result<(), StepError> {
        Ok(())
    }
}

/// Some text, the same in every run.
fn prose(words: usize) -> String {
    let all =
        ["the", "house", "of", "cards", "stands", "on", "one", "table", "and", "nobody", "moves", "it", "é", "東京"];
    let word = |i: usize| format!("{}{}", all[(i * i + 3 * i / 2) % all.len()], if i % 11 == 10 { ".\n" } else { " " });
    (0..words).map(word).collect()
}

/// Seconds of processor time that this process has taken.
fn processor_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    // User and system time in hundredths of a second.
    Some((ticks(11)? + ticks(12)?) / 100.0)
}

fn app(text: &Arc<Text>, script: &str, turn_grammar: bool) -> Arc<App> {
    let vocab = text.tokenizer.vocab();
    let mut facts = facts(vocab, PAGE_TOKENS, AT_ONCE * CONTEXT_TOKENS / PAGE_TOKENS, 512);
    (facts.max_sequences, facts.max_wanted) = (AT_ONCE, AT_ONCE);
    let tokens = text.tokenizer.encode(script, false).expect("ids");
    let end = text.stop.first().copied().expect("an ending token");
    let script = Script { facts, tokens, end, begin: None, done: None, tickets: 0 };
    let limits = Limits { context_tokens: Some(CONTEXT_TOKENS), running: AT_ONCE, ..Limits::default() };
    let service = Service::start(Engine::new(script, limits).expect("engine")).expect("thread");
    let options = Options { turn_grammar, ..Options::default() };
    Arc::new(App::with_options(service, text.clone(), "script".into(), options))
}

/// Streams one answer; its completion tokens, events and bytes.
async fn streamed(app: Arc<App>, body: String) -> (usize, usize, usize) {
    let request = Request::post("/v1/chat/completions").header("content-type", "application/json");
    let response = router(app).oneshot(request.body(Body::from(body)).expect("request")).await.expect("response");
    assert_eq!(response.status(), StatusCode::OK);
    let bytes = response.into_body().collect().await.expect("body").to_bytes();
    let text = std::str::from_utf8(&bytes).expect("UTF-8");
    let events: Vec<&str> = text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    let usage = events.iter().rev().find_map(|event| {
        let chunk: Value = serde_json::from_str(event).ok()?;
        chunk["usage"]["completion_tokens"].as_u64()
    });
    (usage.expect("usage") as usize, events.len(), bytes.len())
}

fn main() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/beam-nano");
    let text = Arc::new(Text::load(&dir, &[]).expect("text"));
    let thought = format!("<|channel|>analysis<|message|>{}<|end|><|start|>assistant", prose(400));
    let answer = format!("{thought}<|channel|>final<|message|>{}", prose(500));
    let call = format!(
        "{thought} to=edit<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name=\"path\">\nsrc/lib.rs\n</rfl:parameter>\n<rfl:parameter name=\"new\">\n{}\n</rfl:parameter>",
        prose(500)
    );
    let tools = json!([{"type": "function", "function": {"name": "edit", "parameters": {"type": "object",
        "properties": {"path": {"type": "string"}, "new": {"type": "string"}}, "required": ["path", "new"]}}}]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("runtime");
    for (name, script, tools) in [("reasoning and answer", &answer, json!([])), ("reasoning and call", &call, tools)] {
        for turn_grammar in [false, true] {
            let app = app(&text, script, turn_grammar);
            let body = json!({"model": "script", "messages": [{"role": "user", "content": "Hi"}], "tools": tools,
                "stream": true, "stream_options": {"include_usage": true}, "temperature": 0})
            .to_string();
            // The first request compiles the grammar.
            runtime.block_on(streamed(app.clone(), body.clone()));
            let (begun, processor) = (Instant::now(), processor_seconds());
            let (mut tokens, mut events, mut bytes) = (0, 0, 0);
            for _ in 0..ROUNDS {
                let all: Vec<_> = (0..AT_ONCE).map(|_| runtime.spawn(streamed(app.clone(), body.clone()))).collect();
                for one in all {
                    let (t, e, b) = runtime.block_on(one).expect("answer");
                    (tokens, events, bytes) = (tokens + t, events + e, bytes + b);
                }
            }
            let wall = begun.elapsed().as_secs_f64();
            let core = processor.zip(processor_seconds()).map(|(before, after)| tokens as f64 / (after - before));
            println!(
                "stream, {name}, {}: {:.0} tokens/s of a core, {:.0} tokens/s ({tokens} tokens, {events} events, {bytes} bytes)",
                if turn_grammar { "held to a grammar" } else { "free" },
                core.unwrap_or(f64::NAN),
                tokens as f64 / wall
            );
        }
    }
}
