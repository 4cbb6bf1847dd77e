//! The example model's held-out questions, asked of a served model as a client asks them.

use crate::nano;
use crate::server::Served;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What came back.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// Right answers and questions, by task.
    pub tasks: BTreeMap<String, (usize, usize)>,
    /// Wrong ones, with what was said.
    pub wrong: Vec<String>,
}

impl Answers {
    /// Right answers and questions of all tasks.
    pub fn total(&self) -> (usize, usize) {
        self.tasks.values().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1))
    }
}

/// Files of questions, in order.
fn files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(nano().join("eval")).unwrap_or_else(|e| panic!("eval: {e}"));
    let mut files: Vec<_> = entries.flatten().map(|e| e.path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "jsonl"));
    files.sort();
    files
}

/// Asks all questions.
///
/// # Panics
/// If the server does not answer, or the questions cannot be read: tests have no other use for it.
pub fn ask(artifact: &Path, model: &Path) -> Answers {
    let served = Served::start(artifact, model, &[]);
    let mut answers = Answers::default();
    for file in files() {
        let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        for line in text.lines() {
            let case: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            let mut body = json!({ "messages": case["messages"], "temperature": 0, "max_tokens": 400 });
            if case["tools"].as_array().is_some_and(|t| !t.is_empty()) {
                body["tools"] = case["tools"].clone();
            }
            let (status, answer) = served.post("/v1/chat/completions", &body);
            assert_eq!(status, 200, "{answer}");
            let choice = &answer["choices"][0];
            let of = answers.tasks.entry(case["task"].as_str().unwrap_or_default().to_owned()).or_default();
            of.1 += 1;
            if correct(&case, choice) {
                of.0 += 1;
            } else {
                answers.wrong.push(format!("{}: {choice}", case["id"]));
            }
        }
    }
    answers
}

/// Whether an answer is the expected one, by the rule that the example's page gives.
fn correct(case: &Value, choice: &Value) -> bool {
    let expected = &case["expected"];
    let message = &choice["message"];
    if case["check"] == "tool_calls" {
        let found = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        let wanted = expected["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        return choice["finish_reason"] == "tool_calls"
            && found.len() == wanted.len()
            && found.iter().zip(wanted).all(|(found, call)| {
                // Recorded calls are flat or have the form of an API's message.
                let call = call.get("function").unwrap_or(call);
                let arguments = found["function"]["arguments"].as_str().unwrap_or_default();
                let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
                call["name"] == found["function"]["name"] && arguments == call["arguments"]
            });
    }
    let (answer, wanted) =
        (message["content"].as_str().unwrap_or(""), expected["content"].as_str().unwrap_or("nothing is expected"));
    let equal = match case["check"].as_str() {
        Some("json") => {
            let parse = |s: &str| serde_json::from_str::<Value>(s).ok();
            parse(answer).is_some() && parse(answer) == parse(wanted)
        }
        _ => answer == wanted,
    };
    choice["finish_reason"] == "stop" && equal
}
