//! `beam-run parse` on recorded outputs: the recorded message, and no text later than recorded. `beam-run grammar` on
//! recorded turns: admitted or refused as recorded.

use serde_json::Value;
use suites::{Programs, fixture, nano};

fn parsed(template: &str, cases: &str) -> usize {
    let folder = fixture("response-parse");
    let path = |name: &str| folder.join(name).display().to_string();
    let done = Programs::built().beam_run(&["parse", "--template", &path(template), "--cases", &path(cases)]);
    assert_eq!(done.code, 0, "{}", done.err);
    let recorded = std::fs::read_to_string(path(cases)).expect("cases");
    assert_eq!(done.out.lines().count(), recorded.lines().count());
    for (line, case) in done.out.lines().zip(recorded.lines()) {
        let (found, case): (Value, Value) =
            (serde_json::from_str(line).expect("JSON"), serde_json::from_str(case).expect("JSON"));
        let mut expected = serde_json::Map::from_iter([("id".to_owned(), case["id"].clone())]);
        expected.extend(case["expect"].as_object().expect("expect").clone());
        for key in ["released", "released_at_end"] {
            expected.insert(key.to_owned(), case[key].clone());
        }
        assert_eq!(found.to_string(), Value::Object(expected).to_string());
    }
    recorded.lines().count()
}

#[test]
fn recorded_outputs_are_parsed_as_recorded() {
    assert_eq!(parsed("beam-template.json", "cases.jsonl"), 55);
    assert_eq!(parsed("variant-template.json", "variant-cases.jsonl"), 7);
}

#[test]
fn turns_are_admitted_or_refused_as_recorded() {
    let folder = fixture("response-parse");
    let path = |name: &str| folder.join(name).display().to_string();
    let model = nano().display().to_string();
    let of =
        ["grammar", "--template", &path("beam-template.json"), "--model", &model, "--cases", &path("grammar.jsonl")];
    let done = Programs::built().beam_run(&of);
    assert_eq!(done.code, 0, "{}", done.err);
    let recorded = std::fs::read_to_string(path("grammar.jsonl")).expect("cases");
    assert_eq!((recorded.lines().count(), done.out.lines().count()), (50, 50));
    for (line, case) in done.out.lines().zip(recorded.lines()) {
        let case: Value = serde_json::from_str(case).expect("JSON");
        let expected = serde_json::json!({"id": case["id"], "accept": case["accept"]});
        assert_eq!(serde_json::from_str::<Value>(line).expect("JSON"), expected, "{}", case["text"]);
    }
}

#[test]
fn a_template_that_cannot_be_run_is_told() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("template.json");
    std::fs::write(&file, r#"{"fields": {"thinking": {"open": "a", "content": "float"}}}"#).expect("file");
    let shown = file.display().to_string();
    let done = Programs::built().beam_run(&["parse", "--template", &shown, "--cases", &shown]);
    assert_eq!(done.code, 1);
    assert!(done.err.starts_with("error[X0203]") && done.err.contains("`fields.thinking.content`"), "{}", done.err);
    assert!(done.err.contains(&shown), "{}", done.err);
}
