//! The log: one line for each request that is over, with the numbers that its client was told.

use super::*;
use crate::{Log, LogFormat};
use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Hands on what is written.
struct Lines(Sender<Vec<u8>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // The test may be over.
        let _ = self.0.send(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn logged(model: engine::toy::Model, door: Door) -> (Arc<App>, Receiver<Vec<u8>>) {
    let toy = Toy::new(facts(VOCAB, 16, 64, 64), model);
    let limits = Limits { context_tokens: Some(512), running: 4, ..Limits::default() };
    let (sender, lines) = channel();
    let log = Log::to(LogFormat::Json, Lines(sender)).unwrap();
    let service = Service::logged(Engine::new(toy, limits).unwrap(), door, Some(log)).unwrap();
    (Arc::new(App::with_options(service, TEXT.clone(), "toy".into(), free())), lines)
}

fn line(lines: &Receiver<Vec<u8>>) -> Value {
    serde_json::from_slice(&lines.recv().unwrap()).unwrap()
}

#[tokio::test]
async fn a_request_leaves_a_line_with_what_its_client_was_told() {
    let (app, lines) = logged(Box::new(|_| Ok(certain(VOCAB, 300))), Door::default());
    let prompt: Vec<usize> = (0..40).collect();
    for cached in [0, 32] {
        let body = json!({"prompt": prompt, "max_tokens": 3, "rid": format!("r{cached}")});
        let usage = post(&app, TEXTS, body).await.json()["usage"].clone();
        let line = line(&lines);
        assert_eq!(line["event"], "request");
        assert_eq!((&line["rid"], &line["finish_reason"]), (&json!(format!("r{cached}")), &json!("length")));
        assert_eq!(line["prompt_tokens"], usage["prompt_tokens"]);
        assert_eq!(line["cached_tokens"], json!(cached));
        assert_eq!(line["completion_tokens"], usage["completion_tokens"]);
        let time = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name}: {line}"));
        assert!(time("queue_time_seconds") <= time("time_to_first_token_seconds"), "{line}");
        assert!(time("time_to_first_token_seconds") <= time("e2e_request_latency_seconds"), "{line}");
    }
    let page = String::from_utf8(get(&app, "/metrics").await.body).unwrap();
    for stage in ["queue", "prefill", "decode"] {
        let name = "per_stage_req_latency_seconds_count";
        let sample = format!("beam_run_{name}{{model_name=\"toy\",stage=\"{stage}\"}} 2");
        assert!(page.lines().any(|l| l == sample), "{sample}\n{page}");
    }
}

#[tokio::test]
async fn failures_say_why() {
    let (app, lines) = logged(failing_at(6, || StepError::Device("region 3".into())), Door::default());
    let reply = post(&app, TEXTS, json!({"prompt": [1, 2, 3], "max_tokens": 9, "rid": "x"})).await;
    assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR);
    let line = line(&lines);
    assert_eq!((&line["finish_reason"], &line["completion_tokens"]), (&json!("error"), &json!(3)));
    assert!(line["error"].as_str().is_some_and(|text| text.contains("region 3")), "{line}");
}
