//! The log: one line for each request that is over, with the numbers that its client was told.

use super::*;
use crate::{Log, LogFormat};
use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

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

/// Reading the prompt is no waiting: an executor that computes at once is done when its step is known to have begun.
#[tokio::test]
async fn the_time_of_the_first_step_is_not_the_queues() {
    let takes = Duration::from_millis(20);
    let model: engine::toy::Model = Box::new(move |_| {
        let begun = Instant::now();
        while begun.elapsed() < takes {
            std::thread::yield_now();
        }
        Ok(certain(VOCAB, 300))
    });
    let (app, lines) = logged(model, Door::default());
    let begun = Instant::now();
    post(&app, TEXTS, json!({"prompt": [1, 2, 3], "max_tokens": 1})).await;
    let line = line(&lines);
    let time = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name}: {line}"));
    let (queue, first) = (time("queue_time_seconds"), time("time_to_first_token_seconds"));
    // Both are rounded to the microsecond.
    assert!(first - queue >= takes.as_secs_f64() - 1e-5, "{line}");
    assert!(first <= begun.elapsed().as_secs_f64(), "{line}");
    let page = String::from_utf8(get(&app, "/metrics").await.body).unwrap();
    let prefill = page.lines().find(|l| l.contains("latency_seconds_sum") && l.contains("stage=\"prefill\"")).unwrap();
    assert!(prefill.rsplit(' ').next().unwrap().parse::<f64>().unwrap() >= takes.as_secs_f64() - 1e-5, "{prefill}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_turned_away_leaves_a_line_and_looks_leave_none() {
    let (model, permit, mut steps) = limits::waiting();
    let (app, lines) = logged(model, Door { queued: 0, ..Door::default() });
    let request = || engine::Request { prompt: vec![1], max_tokens: Some(400), ..engine::Request::default() };
    let running = app.service.submit(vec![request(), request(), request(), request()], "a".into()).await.unwrap();
    steps.recv().await.unwrap();
    let rejected = |line: Value| (line["event"].clone(), line["rid"].clone(), line["reason"].clone());
    let is = |rid: Value| (json!("rejected"), rid, json!("full"));
    // At the door, where nobody has read its name, and on the engine's thread, which hears of it between two steps.
    let mut late = std::pin::pin!(app.service.submit(vec![request()], "b".into()));
    let mut look = std::pin::pin!(app.service.probe(request(), "look".into()));
    tokio::select! {
        biased;
        _ = &mut late => unreachable!("the engine is inside a step"),
        _ = &mut look => unreachable!("the engine is inside a step"),
        () = std::future::ready(()) => {}
    }
    // The first step looks at the model four times at most: then the second has begun.
    for _ in 0..4 {
        permit.send(()).unwrap();
        steps.recv().await.unwrap();
    }
    assert!(app.service.admits(None).is_err());
    drop(permit);
    assert!(late.await.is_err());
    let mut look = look.await.unwrap_or_else(|turned| panic!("{turned:?}"));
    while look.next().await.is_some() {}
    drop(running);
    let mut found = [line(&lines), line(&lines)].map(rejected);
    found.sort_by_key(|(_, rid, _)| rid.is_null());
    assert_eq!(found, [is(json!("b")), is(Value::Null)]);
    let ended: Vec<Value> = (0..4).map(|_| line(&lines)).collect();
    assert!(ended.iter().all(|line| line["rid"] == "a" && line["event"] == "request"), "{ended:?}");
    let page = String::from_utf8(get(&app, "/metrics").await.body).unwrap();
    assert!(page.contains("num_requests_total{model_name=\"toy\"} 4\n"), "{page}");
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
