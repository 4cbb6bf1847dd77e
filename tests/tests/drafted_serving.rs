//! Drafts over HTTP: what a served model says does not depend on its drafter, in company, behind cached prefixes, where clients
//! go away and where requests give their pages back; usage and metrics say what became of drafts.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use suites::server::Served;
use suites::{Programs, nano, root};

/// Answers are as long, so that those who come later find others at work.
const TOKENS: usize = 100;
const CONTEXT: &str = "192";
const MOST_PROMPT: usize = 80;

fn drafter() -> PathBuf {
    root().join("examples/beam-nano-dflash2")
}

fn text(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

fn compiled(work: &Path) -> PathBuf {
    let out = work.join("artifact");
    let args = ["compile", &text(&nano()), "--draft", &text(&drafter()), "--draft-tokens", "2,8"];
    let done = Programs::built().beamc(&[&args[..], &["--target", "cpu-f32", "-o", &text(&out)]].concat());
    assert_eq!(done.code, 0, "{}", done.err);
    out
}

/// Recorded prompts, and beginnings of the longest, which share what is cached.
fn prompts() -> Vec<Value> {
    let file = std::fs::read_to_string(drafter().join("eval/golden.json")).expect("golden");
    let golden: Value = serde_json::from_str(&file).expect("JSON");
    let recorded = golden["prompts"].as_array().expect("prompts").iter().filter(|p| p["block"] == 8);
    let ids = |p: &Value| p["prompt_ids"].as_array().expect("ids").clone();
    let (long, short): (Vec<Vec<Value>>, _) = recorded.map(ids).partition(|ids| ids.len() > MOST_PROMPT);
    let beginnings = long.iter().flat_map(|ids| (1..=8).map(|n| ids[..n * MOST_PROMPT / 8].to_vec()));
    beginnings.chain(short).map(Value::from).collect()
}

/// A request for the best tokens, which does not end early, though it might as far as the engine knows.
fn body(prompt: &Value) -> Value {
    json!({
        "prompt": prompt, "temperature": 0, "max_tokens": TOKENS, "min_tokens": TOKENS, "logprobs": 1,
        "return_prediction_tokens": true,
    })
}

/// What is said, with log-probabilities; what it cost.
fn ask(server: &Served, prompt: &Value, priority: usize) -> (Value, Value) {
    let mut body = body(prompt);
    body["priority"] = priority.into();
    let (status, answer) = server.post("/v1/completions", &body);
    assert_eq!(status, 200, "{answer}");
    (answer["choices"].clone(), answer["usage"].clone())
}

/// A number of the metrics, all labels together.
fn metric(page: &str, name: &str) -> u64 {
    let lines = page.lines().filter(|line| !line.starts_with('#') && line.contains(name));
    let numbers: Vec<f64> = lines.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
    assert!(!numbers.is_empty(), "no {name} in\n{page}");
    numbers.iter().sum::<f64>() as u64
}

/// The metrics once they say that nobody runs: they are written down behind the step whose tokens are told.
fn quiet(server: &Served) -> String {
    let mut pages = (0..1000).map(|_| server.get("/metrics"));
    pages.find(|page| metric(page, "num_running_reqs") == 0).expect("a server that comes to rest")
}

#[test]
fn served_answers_do_not_depend_on_drafts() {
    let work = tempfile::tempdir().expect("folder");
    let artifact = compiled(work.path());
    let prompts = prompts();
    let plain = Served::start(&artifact, &nano(), &["--context", CONTEXT]);
    let health: Value = serde_json::from_str(&plain.get("/health")).expect("JSON");
    assert_eq!((&health["status"], &health["drafts"]["runs"]), (&json!("ok"), &json!(false)));
    let alone: Vec<Value> = prompts.iter().map(|prompt| ask(&plain, prompt, 0).0).collect();
    drop(plain);

    for rows in ["2", "8"] {
        let (model, draft) = (nano(), text(&drafter()));
        let flags = ["--context", CONTEXT, "--draft", &draft, "--draft-tokens", rows, "--draft-policy", "fixed"];
        let flags = [&flags[..], &["--schedule-policy", "priority"]].concat();
        let server = Served::start(&artifact, &model, &flags);
        let health: Value = serde_json::from_str(&server.get("/health")).expect("JSON");
        assert_eq!(health["drafts"]["runs"], true, "{health}");
        let usage = together(&server, &prompts, &alone);
        let sum = |path: &str| usage.iter().map(|u| u.pointer(path).and_then(Value::as_u64).expect(path)).sum::<u64>();
        let accepted = sum("/completion_tokens_details/accepted_prediction_tokens");
        let rejected = sum("/completion_tokens_details/rejected_prediction_tokens");
        let page = quiet(&server);
        let value = |name: &str| metric(&page, name);
        assert!(sum("/prompt_tokens_details/cached_tokens") > 0, "nobody shares a prefix");
        assert!(value("num_retracted_reqs") > 0, "nobody gave pages back");
        assert_eq!(accepted, value("spec_accepted_tokens_total"));
        assert_eq!(accepted + rejected, value("spec_draft_tokens_total"));
        assert_eq!(accepted, value("spec_accepted_drafts_total"));
        assert!(accepted > 0 && value("spec_reached_drafts_total") <= accepted + rejected);
        let blocks = value("spec_verify_calls_total");
        assert_eq!(value("spec_committed_tokens_total"), accepted + blocks);
        // Who goes away leaves the others their words.
        std::thread::scope(|scope| {
            for prompt in &prompts {
                let mut body = body(prompt);
                body["stream"] = true.into();
                let server = &server;
                scope.spawn(move || server.leave("/v1/completions", &body));
            }
            together(&server, &prompts, &alone);
        });
    }
}

/// All prompts twice, as many at once as there are; what each says is compared, what it cost is given.
fn together(server: &Served, prompts: &[Value], alone: &[Value]) -> Vec<Value> {
    let costs = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        // Who comes later goes first, and takes the place of another.
        for (at, (prompt, expected)) in prompts.iter().zip(alone).chain(prompts.iter().zip(alone)).enumerate() {
            let costs = &costs;
            scope.spawn(move || {
                let (said, usage) = ask(server, prompt, at);
                assert_eq!(said, *expected);
                costs.lock().expect("nobody panics with it").push(usage);
            });
        }
    });
    costs.into_inner().expect("nobody panicked with it")
}
