//! The example model with its drafter, as a whole: the same tokens as without, in as many blocks as another implementation
//! needed, alone and in company.

use artifact::Artifact;
use device::checkpoint::{Checkpoint, LoadOptions};
use device::{ExecutorKind, Weights, load_drafting, pool_pages_of};
use engine::{DraftLimits, Engine, Event, Executor, FinishReason, Limits, Progress, Request, RequestId};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use suites::{Programs, nano, root};

fn drafter() -> PathBuf {
    root().join("examples/beam-nano-dflash2")
}

fn path(p: &Path) -> String {
    p.to_str().expect("UTF-8").to_owned()
}

/// With programs for these lengths of block.
fn compiled(work: &Path, lengths: &[usize]) -> PathBuf {
    let out = work.join("artifact");
    let lengths: Vec<String> = lengths.iter().map(usize::to_string).collect();
    let args = ["compile", &path(&nano()), "--draft", &path(&drafter()), "--draft-tokens", &lengths.join(",")];
    let done = Programs::built().beamc(&[&args[..], &["--target", "cpu-f32", "-o", &path(&out)]].concat());
    assert_eq!(done.code, 0, "{}", done.err);
    out
}

fn golden() -> Vec<Value> {
    let text = std::fs::read_to_string(drafter().join("eval/golden.json")).expect("golden");
    let golden: Value = serde_json::from_str(&text).expect("JSON");
    golden["prompts"].as_array().expect("prompts").clone()
}

fn write_tokens(work: &Path, prompts: &[&Value]) -> PathBuf {
    let file = work.join("tokens.json");
    let tokens: Vec<&Value> = prompts.iter().map(|p| &p["prompt_ids"]).collect();
    std::fs::write(&file, json!({ "tokens": tokens }).to_string()).expect("write");
    file
}

/// Blocks and tokens of the recorded prompts, block by block length, and the same tokens as without drafts.
#[test]
fn recorded_prompts_take_as_many_blocks_as_recorded() {
    let work = tempfile::tempdir().expect("folder");
    let artifact = compiled(work.path(), &[4, 8]);
    let golden = golden();
    for rows in [4, 8] {
        let prompts: Vec<&Value> = golden.iter().filter(|p| p["block"] == rows).collect();
        let tokens = write_tokens(work.path(), &prompts);
        let args = ["bench", "model", &path(&artifact), "--model", &path(&nano()), "--draft", &path(&drafter())];
        let rows = rows.to_string();
        let more = ["--tokens", &path(&tokens), "--draft-tokens", &rows, "--draft-policy", "fixed", "--runs", "1"];
        let sizes = ["--prefill", "8", "--decode", "96", "--json"];
        let done = Programs::built().beam_run(&[&args[..], &more, &sizes].concat());
        assert_eq!(done.code, 0, "{}", done.err);
        let report: Value = serde_json::from_str(&done.out).expect("JSON");
        let with = &report["decode_with_drafts"];
        assert_eq!(with["same_tokens"], true);
        let steps: usize = prompts.iter().map(|p| p["steps"].as_array().expect("steps").len()).sum();
        // One run is not counted in times, but its blocks are.
        let blocks = with["drafts"]["blocks"].as_u64().expect("a count");
        // Raw texts were recorded up to 96 tokens, of which here the first is not decoded.
        let spare = 2 * prompts.iter().filter(|p| p["task"] == "plain").count() as u64;
        assert!(blocks.abs_diff(2 * steps as u64) <= spare, "{blocks} blocks, {steps} recorded in blocks of {rows}");
    }
}

/// The answers of an engine in which all prompts, some of them twice and one cut short, meet in memory for two of the longest.
fn answers(artifact: &Artifact, weights: [&Weights; 2], drafts: DraftLimits, prompts: &[&Value]) -> Vec<Vec<u32>> {
    let ids = |p: &Value| -> Vec<u32> {
        p["prompt_ids"].as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
    };
    let longest = prompts.iter().map(|p| ids(p).len()).max().unwrap_or(0) + 64;
    let pages = pool_pages_of(artifact, longest, 2);
    let executor = load_drafting(artifact, weights[0], weights[1], ExecutorKind::Cpu, &pages).expect("an executor");
    let limits = Limits { context_tokens: Some(longest), running: 5, draft: drafts, ..Limits::default() };
    let mut engine = Engine::new(executor, limits).expect("an engine");
    let request = |prompt: &Value, most: usize| Request {
        prompt: ids(prompt),
        max_tokens: Some(most),
        stop: artifact.kernels.facts.runtime.stop.clone(),
        ..Request::default()
    };
    let mut asked = Vec::new();
    let mut said: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
    let mut listen = |engine: &mut Engine<Box<dyn Executor>>| {
        let progress = engine.step();
        for event in engine.take_events() {
            match event {
                Event::Token { request, token, .. } => said.entry(request).or_default().push(token.id),
                Event::Finished { reason: FinishReason::Error(text), .. } => panic!("{text}"),
                _ => {}
            }
        }
        progress
    };
    for (i, prompt) in prompts.iter().enumerate() {
        let twins = (0..1 + i % 2).map(|_| request(prompt, 40)).collect();
        asked.extend(engine.submit_all(twins).expect("requests"));
        // They come one after the other, while others answer; one is given up.
        for _ in 0..2 {
            listen(&mut engine);
        }
    }
    let given_up = engine.submit(request(prompts[0], 40)).expect("a request");
    for _ in 0..3 {
        listen(&mut engine);
    }
    engine.abort(given_up);
    while listen(&mut engine) != Progress::Idle {
        assert_eq!(engine.check_books(), Ok(()));
    }
    asked.iter().map(|id| said.remove(id).unwrap_or_default()).collect()
}

/// Joins, leaves, forks, shared prefixes and pages that are given back change no token, with drafts of any length as without.
#[test]
fn company_changes_no_token() {
    let work = tempfile::tempdir().expect("folder");
    let lengths: Vec<usize> = (2..=16).collect();
    let artifact = Artifact::load(&compiled(work.path(), &lengths)).expect("an artifact");
    let own = &artifact.drafter.as_ref().expect("a drafter").recipes;
    let read = |recipes, folder: &Path| {
        let checkpoint = Checkpoint::open(folder).expect("a checkpoint");
        Weights::load(recipes, &checkpoint, &LoadOptions::default(), &mut |_| {}).expect("weights")
    };
    let weights = [read(&artifact.recipes[..], &nano()), read(&own[..], &drafter())];
    let golden = golden();
    let prompts: Vec<&Value> = golden.iter().filter(|p| p["block"] == 8).collect();
    let told = |drafts| answers(&artifact, [&weights[0], &weights[1]], drafts, &prompts);
    let alone = told(DraftLimits { rows: Some(0), ..DraftLimits::default() });
    assert!(alone.iter().all(|answer| answer.len() > 5));
    for rows in lengths {
        assert_eq!(told(DraftLimits { rows: Some(rows), ..DraftLimits::default() }), alone, "blocks of {rows}");
    }
    assert_eq!(told(DraftLimits { selects: false, ..DraftLimits::default() }), alone);
}

/// Flags that nobody would obey are refused, each with its reason.
#[test]
fn wishes_for_drafts_that_nobody_obeys_are_refused() {
    let work = tempfile::tempdir().expect("folder");
    let artifact = path(&compiled(work.path(), &[4, 8]));
    let (model, draft) = (path(&nano()), path(&drafter()));
    let refused = |more: &[&str], words: &[&str]| {
        let args = ["generate", &artifact, "--model", &model, "--prompt", "a", "--max-tokens", "1"];
        let done = Programs::built().beam_run(&[&args[..], more].concat());
        let tells = words.iter().all(|word| done.err.contains(word));
        assert!(done.code == 2 && tells, "{more:?}: {} {}", done.code, done.err);
    };
    for flags in [
        &["--draft-tokens", "8"][..],
        &["--draft-rule", "token"],
        &["--draft-rule", "block"],
        &["--draft-policy", "adaptive"],
        &["--draft-policy", "fixed"],
        &["--no-draft-selector"],
        &["--simulate-acceptance", "2"],
    ] {
        refused(flags, &["R0110", flags[0], "no drafter runs"]);
    }
    for rows in ["2", "3", "5", "16", "17", "64", "65"] {
        refused(&["--draft", &draft, "--draft-tokens", rows], &["R0113", rows, "blocks of 4, 8"]);
    }
    for off in ["0", "1"] {
        refused(&["--draft", &draft, "--draft-tokens", off, "--draft-rule", "block"], &["R0110", "--draft-rule", off]);
    }
    for rows in ["1", "17"] {
        let args = ["compile", &model, "--draft", &draft, "--draft-tokens", rows, "--target", "cpu-f32", "-o", "no"];
        let done = Programs::built().beamc(&args);
        assert!(done.code == 2 && done.err.contains("C0011") && done.err.contains("2 to 16"), "{}", done.err);
    }
}
