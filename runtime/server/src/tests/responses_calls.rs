//! Calls in Responses: functions, namespaces, free text, the shell.

use super::weave::*;
use super::*;

fn only_call(response: &Value) -> &Value {
    let calls: Vec<&Value> = response["output"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|i| i["type"].as_str().unwrap().ends_with("_call"))
        .collect();
    assert_eq!(calls.len(), 1, "{response}");
    calls[0]
}

/// A turn that calls a tool of this name.
fn call_of(name: &str, arguments: &[(&str, &str)]) -> String {
    call(arguments).replace(" to=f<", &format!(" to={name}<"))
}

#[tokio::test]
async fn functions_are_called() {
    let properties = json!({"s": {"type": "string"}, "n": {"type": "integer"}, "list": {"type": "array"}});
    let tools = json!([function("f", properties)]);
    let app = app(&call(&[("s", "a \"quoted\" line\nand 東京"), ("n", "12"), ("list", "[1, 2]")]));
    let whole = both(&app, ask(json!({"tools": tools}))).await;
    let made = only_call(&whole);
    assert_eq!((&made["name"], &made["status"], made.get("namespace")), (&json!("f"), &json!("completed"), None));
    assert!(made["id"].as_str().unwrap().starts_with("fc_") && made["call_id"].as_str().unwrap().starts_with("call_"));
    let arguments: Value = serde_json::from_str(made["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"s": "a \"quoted\" line\nand 東京", "n": 12, "list": [1, 2]}));
    assert_eq!((&whole["status"], &whole["tools"]), (&json!("completed"), &tools));
}

#[tokio::test]
async fn arguments_are_those_of_chat_also_when_repeated() {
    let tools = json!([function("f", json!({"s": {"type": "string"}, "n": {"type": "integer"}}))]);
    let chat = json!([tool("f", json!({"s": {"type": "string"}, "n": {"type": "integer"}}))]);
    for arguments in [
        &[][..],
        &[("n", "7")],
        &[("s", "one"), ("n", "1"), ("s", "two")],
        &[("n", "1"), ("n", "123456789012345678901234567890")],
        &[("s", "{\"s\":1,\"s\":2}")],
    ] {
        let app = app(&call(arguments));
        let whole = both(&app, ask(json!({"tools": tools}))).await;
        let (choices, _) = super::whole(&app, chat_body(json!({"temperature": 0, "tools": chat}))).await;
        assert_eq!(only_call(&whole)["arguments"], choices[0].calls[0].1, "{arguments:?}");
    }
    // A tool that declares no parameters at all is one too.
    let app = app(&call(&[]));
    let whole = both(&app, ask(json!({"tools": [{"type": "function", "name": "f"}]}))).await;
    assert_eq!(only_call(&whole)["arguments"], "{}");
}

#[tokio::test]
async fn several_calls_are_several_items() {
    let two = call(&[("n", "7")]).replace("<|call|>", &format!("<|end|><|start|>assistant{OPENER}<|call|>"));
    let tools = json!([function("f", json!({"n": {"type": "integer"}}))]);
    let whole = both(&app(&two), ask(json!({"tools": tools}))).await;
    assert_eq!(types(&whole), ["reasoning", "function_call", "function_call"]);
    assert_ne!(whole["output"][1]["call_id"], whole["output"][2]["call_id"]);
}

#[tokio::test]
async fn a_message_before_calls_is_commentary() {
    let script = format!("<|channel|>final<|message|>Let me see.<|end|><|start|>assistant{OPENER}<|call|>");
    let whole = both(&app(&script), ask(json!({"tools": [function("f", json!({}))]}))).await;
    let phases: Vec<&Value> = whole["output"].as_array().unwrap().iter().filter_map(|item| item.get("phase")).collect();
    match types(&whole)[..] {
        ["message", "function_call"] => assert_eq!(phases, [&json!("commentary")]),
        // A template may say that nothing follows an answer.
        ["message"] => assert_eq!(phases, [&json!("final_answer")]),
        ref other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn namespaces_have_short_names_outside() {
    let tools = json!([{
        "type": "namespace", "name": "crm", "description": "Customers.",
        "tools": [function("find", json!({"n": {"type": "integer"}})), {"type": "custom", "name": "note"}],
    }]);
    let whole = both(&app(&call_of("crm__find", &[("n", "1")])), ask(json!({"tools": tools}))).await;
    let made = only_call(&whole);
    assert_eq!((&made["name"], &made["namespace"]), (&json!("find"), &json!("crm")));
    let whole = both(&app(&call_of("crm__note", &[("input", "x")])), ask(json!({"tools": tools}))).await;
    let made = only_call(&whole);
    assert_eq!((&made["name"], &made["namespace"], &made["input"]), (&json!("note"), &json!("crm"), &json!("x")));
    // The short name is no tool.
    let whole = both(&app(&call_of("find", &[("n", "1")])), ask(json!({"tools": tools}))).await;
    assert_eq!(types(&whole), ["reasoning"]);
}

#[tokio::test]
async fn custom_tools_take_text() {
    let text = "SELECT \"a\"\nFROM t -- 東京 \\ end";
    let app = app(&call_of("sql", &[("input", text)]));
    let tools = json!([{"type": "custom", "name": "sql", "description": "Ask."}]);
    let whole = both(&app, ask(json!({"tools": tools}))).await;
    let made = only_call(&whole);
    assert_eq!(
        (&made["type"], &made["input"], &made["name"]),
        (&json!("custom_tool_call"), &json!(text), &json!("sql"))
    );
    assert!(made["id"].as_str().unwrap().starts_with("ctc_"));
}

#[tokio::test]
async fn the_shell_is_called_with_one_command() {
    let tools = json!([{"type": "shell", "environment": {"type": "local"}}]);
    let app_ = app(&call_of("bash", &[("command", "ls -l")]));
    let whole = both(&app_, ask(json!({"tools": tools}))).await;
    let made = only_call(&whole);
    assert_eq!(made["type"], "shell_call");
    assert_eq!(made["action"], json!({"commands": ["ls -l"], "timeout_ms": 600000, "max_output_length": null}));
    assert!(made["id"].as_str().unwrap().starts_with("sh_") && made["call_id"].is_string());
    let told = events(&app_, ask(json!({"tools": tools}))).await;
    assert!(told.iter().all(|e| !e["type"].as_str().unwrap().contains("arguments")));
    // Arguments that are not the shell's are not run.
    for arguments in [&[][..], &[("command", "ls"), ("more", "x")], &[("cmd", "ls")]] {
        let whole = both(&app(&call_of("bash", arguments)), ask(json!({"tools": tools}))).await;
        let made = only_call(&whole);
        assert_eq!((&made["status"], &made["action"]["commands"]), (&json!("incomplete"), &json!([])));
        assert_eq!((&whole["status"], &whole["error"]["code"]), (&json!("failed"), &json!("server_error")));
        assert!(whole["error"]["message"].as_str().unwrap().contains("`bash`"));
    }
}

#[tokio::test]
async fn every_limit_around_a_call_cuts_cleanly() {
    for (name, arguments) in [
        ("f", vec![("s", "a value"), ("n", "-3")]),
        ("c", vec![("input", "a \"b\" c")]),
        ("bash", vec![("command", "ls -l")]),
    ] {
        let script = call_of(name, &arguments);
        let app = app(&script);
        let tools = json!([
            function("f", json!({"s": {"type": "string"}, "n": {"type": "integer"}})),
            {"type": "custom", "name": "c"},
            {"type": "shell"},
        ]);
        let tokens = TEXT.tokenizer.encode(&script, false).unwrap().len();
        for limit in 1..=tokens {
            let whole = both(&app, ask(json!({"tools": tools, "max_output_tokens": limit}))).await;
            assert_eq!(whole["usage"]["output_tokens"], limit);
            let status = if limit == tokens { "completed" } else { "incomplete" };
            let details = if limit == tokens { Value::Null } else { json!({"reason": "max_output_tokens"}) };
            assert_eq!((&whole["status"], &whole["incomplete_details"]), (&json!(status), &details));
            for (i, item) in whole["output"].as_array().unwrap().iter().enumerate() {
                let is_last = i + 1 == types(&whole).len();
                let is_call = item["type"].as_str().unwrap().ends_with("_call");
                let cut = is_last && limit < tokens && (is_call || item["status"] == "incomplete");
                assert_eq!(item["status"], if cut { "incomplete" } else { "completed" }, "{limit}: {item}");
                if cut && item["type"] == "shell_call" {
                    assert_eq!(item["action"]["commands"], json!([]), "half a command is none");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_choice_is_held_to() {
    let app = app_with_options(super::held::rambling(), Options::default());
    let tools = json!([
        function("f", json!({})),
        {"type": "custom", "name": "code", "format": {"type": "grammar", "syntax": "regex", "definition": "[ab]{3}-[0-9]"}},
        {"type": "shell"},
    ]);
    let mut complete = 0;
    for seed in 0..12 {
        let choice = [
            json!({"type": "custom", "name": "code"}),
            json!({"type": "shell"}),
            json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "code"}]}),
        ][seed % 3]
            .clone();
        let more = json!({
            "tools": tools, "tool_choice": choice, "temperature": 1, "seed": seed, "max_output_tokens": 370,
        });
        let whole = both(&app, ask(more)).await;
        for item in whole["output"].as_array().unwrap().iter().filter(|item| item["type"] != "reasoning") {
            let kind = if seed % 3 == 1 { "shell_call" } else { "custom_tool_call" };
            assert_eq!(item["type"], kind);
            if item["status"] == "completed" {
                complete += 1;
                let text = item["input"].as_str().unwrap_or("aaa-1");
                assert!(kind == "shell_call" || (text.len() == 5 && text.as_bytes()[3] == b'-'), "{text}");
            }
        }
    }
    assert!(complete > 0, "no seed led to a call");
}
