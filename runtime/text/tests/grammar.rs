//! Grammars over the example's vocabulary: recorded turns are admitted or refused as recorded, and whatever is drawn from
//! the masks follows its schema.

use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use text::Tokenizer;
use text::grammar::*;
use text::response::*;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn fixture(name: &str) -> String {
    std::fs::read_to_string(root().join("tests/fixtures/response-parse").join(name)).expect("fixture")
}

fn template(name: &str) -> Arc<ResponseTemplate> {
    Arc::new(ResponseTemplate::from_json(&fixture(name)).expect("template"))
}

/// One compiler serves all tests, as it serves all requests.
static COMPILER: LazyLock<Compiler> = LazyLock::new(|| {
    let dir = root().join("examples/beam-nano");
    let tokenizer = Arc::new(Tokenizer::load(&dir.join("tokenizer.json")).expect("tokenizer"));
    let stop = text::stop_tokens(&dir, &[]).expect("stop tokens");
    Compiler::new(tokenizer, &stop, Some(&template("beam-template.json")), Limits::default()).expect("compiler")
});

/// The turn that a recorded case is about.
fn turn(template: &Arc<ResponseTemplate>, case: &Value) -> GrammarSpec {
    let answer = Some(&case["answer_schema"]).filter(|schema| !schema.is_null());
    GrammarSpec::Turn(Box::new(TurnSpec {
        template: Arc::clone(template),
        tools: ToolSpec::from_json(&case["tools"]).expect("tools"),
        choice: Choice::from_json(&case["tool_choice"]).expect("choice"),
        parallel: case["parallel_tool_calls"].as_bool().unwrap_or(true),
        answer: answer.map(|schema| GrammarSpec::JsonSchema { schema: schema.clone(), strict: false }),
        place: if case["starts_message"] == json!(false) { TurnPlace::AfterReasoning } else { TurnPlace::MessageStart },
        begun: String::new(),
    }))
}

#[test]
fn recorded_turns_are_admitted_or_refused_as_recorded() {
    let template = template("beam-template.json");
    let cases = fixture("grammar.jsonl");
    assert_eq!(cases.lines().count(), 50);
    for line in cases.lines() {
        let case: Value = serde_json::from_str(line).expect("JSON");
        let grammar = COMPILER.compile(&turn(&template, &case)).unwrap_or_else(|e| panic!("{}: {e}", case["id"]));
        let admitted = COMPILER.admits(&grammar, case["text"].as_str().expect("text")).expect("matcher");
        assert_eq!(json!(admitted), case["accept"], "{}: {}", case["id"], case["text"]);
    }
}
