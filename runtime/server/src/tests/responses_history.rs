//! What the model reads of a Responses request: items folded into messages, earlier responses, what is left out.

use super::weave::*;
use super::*;
use std::sync::Mutex;

/// Answers at once, and keeps the texts of its prompts.
fn listening() -> (Arc<App>, Arc<Mutex<Vec<String>>>) {
    let prompts: Arc<Mutex<Vec<String>>> = Arc::default();
    let (kept, mut inner) = (prompts.clone(), scripted("<|channel|>final<|message|>Yes."));
    let app = app_with(Box::new(move |history| {
        let text = TEXT.tokenizer.decode(history, false).unwrap();
        if text.ends_with("<|start|>assistant") {
            kept.lock().unwrap().push(text);
        }
        inner(history)
    }));
    (app, prompts)
}

/// The prompt of a request.
async fn prompt(more: Value) -> String {
    let (app, prompts) = listening();
    response(&app, ask(more)).await;
    let prompts = prompts.lock().unwrap();
    prompts.last().unwrap().clone()
}

#[tokio::test]
async fn items_of_a_turn_are_one_message() {
    let items = json!([
        {"role": "system", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "We"}, {"type": "input_text", "text": "ather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Look."}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"n\": 1}"},
        {"type": "function_call", "call_id": "c2", "name": "find", "namespace": "crm", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        {"type": "shell_call", "call_id": "c3", "action": {"commands": ["ls"]}, "status": "completed"},
        {"type": "shell_call_output", "call_id": "c3", "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
        {"type": "custom_tool_call", "call_id": "c4", "name": "sql", "input": "SELECT 1"},
        {"type": "custom_tool_call_output", "call_id": "c4", "output": "1"},
    ]);
    let text = prompt(json!({"input": items})).await;
    assert_eq!(
        text,
        "<|start|>system<|message|>Be brief.<|end|><|start|>user<|message|>Weather?<|end|>\
         <|start|>assistant<|channel|>analysis<|message|>Look.<|end|>\
         <|start|>assistant to=f<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name=\"n\">\n1\n</rfl:parameter><|end|>\
         <|start|>assistant to=crm__find<|channel|>analysis <|constrain|>xml<|message|><|call|>\
         <|start|>tool f<|message|>one<|end|><|start|>tool crm__find<|message|>two<|end|>\
         <|start|>assistant to=bash<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name=\"command\">\nls\n</rfl:parameter><|call|>\
         <|start|>tool bash<|message|>[{\"stdout\":\"a\",\"stderr\":\"\",\"outcome\":{\"type\":\"exit\",\"exit_code\":0}}]<|end|>\
         <|start|>assistant to=sql<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name=\"input\">\nSELECT 1\n</rfl:parameter><|call|>\
         <|start|>tool sql<|message|>1<|end|><|start|>assistant"
    );
}

#[tokio::test]
async fn every_form_of_input_says_the_same() {
    let text = prompt(json!({})).await;
    for input in [
        json!([{"role": "user", "content": "Hi"}]),
        json!([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]),
    ] {
        assert_eq!(prompt(json!({"input": input})).await, text);
    }
    let instructed = prompt(json!({"instructions": "Be brief."})).await;
    let system = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]);
    assert_eq!(prompt(json!({"input": system})).await, instructed);
    let developer = json!([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]);
    assert!(prompt(json!({"input": developer})).await.contains("<|start|>developer<|message|>Be brief.<|end|>"));
    let refusal = json!([{"role": "user", "content": "A"}, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, {"role": "user", "content": "B"}]);
    assert!(prompt(json!({"input": refusal})).await.contains("<|message|>No.<|end|>"));
}

#[tokio::test]
async fn reasoning_comes_back_wherever_it_stands() {
    let with_reasoning = async |item: Value| {
        let call = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"});
        let output = json!({"type": "function_call_output", "call_id": "c", "output": "x"});
        prompt(json!({"input": [{"role": "user", "content": "Hi"}, item, call, output]})).await
    };
    let text = "<|channel|>analysis<|message|>Look.<|end|>";
    let (app, _) = listening();
    let sealed = {
        let told =
            super::app("<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>final<|message|>x");
        let whole = response(&told, ask(json!({"include": ["reasoning.encrypted_content"]}))).await;
        whole["output"][0]["encrypted_content"].clone()
    };
    for item in [
        json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Look."}]}),
        json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "Look."}]}),
        json!({"type": "reasoning", "summary": [], "encrypted_content": sealed}),
        json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "Look."}], "encrypted_content": "gAAA", "content": null}),
    ] {
        assert!(with_reasoning(item.clone()).await.contains(text), "{item}");
    }
    let item = json!({"type": "reasoning", "summary": [], "encrypted_content": "gAAA"});
    let reply = post(&app, RESPONSES, ask(json!({"input": [item, {"role": "user", "content": "Hi"}]}))).await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (StatusCode::BAD_REQUEST, &json!("invalid_encrypted_content"))
    );
    assert_eq!(reply.json()["error"]["param"], "input[0].encrypted_content");
}

#[tokio::test]
async fn an_earlier_response_is_what_its_items_are() {
    let (app, prompts) = listening();
    let first = response(&app, ask(json!({"instructions": "First."}))).await;
    let items = json!([
        {"role": "user", "content": "Hi"}, first["output"][0], {"role": "user", "content": "And?"}
    ]);
    let by_items = response(&app, ask(json!({"input": items, "instructions": "Second."}))).await;
    let more = json!({"input": "And?", "previous_response_id": first["id"], "instructions": "Second."});
    let by_name = both(&app, ask(more)).await;
    assert_eq!(by_items["usage"]["input_tokens"], by_name["usage"]["input_tokens"]);
    {
        let prompts = prompts.lock().unwrap();
        assert_eq!(prompts[1], prompts[2], "the same prompt both ways");
        assert!(!prompts[2].contains("First."), "instructions do not carry over");
    }
    assert_eq!(by_name["previous_response_id"], first["id"]);
    // A conversation goes on from any of its responses, and by a reference to an item.
    let third = json!({"input": "More?", "previous_response_id": by_name["id"]});
    response(&app, ask(third)).await;
    let text = prompts.lock().unwrap().last().unwrap().clone();
    let order: Vec<usize> = ["Hi", "Yes.", "And?", "More?"].iter().map(|word| text.find(word).unwrap()).collect();
    assert!(order.is_sorted(), "{text}");
    let reference = json!([{"role": "user", "content": "Hi"}, {"type": "item_reference", "id": first["output"][0]["id"]}, {"role": "user", "content": "?"}]);
    response(&app, ask(json!({"input": reference}))).await;
    assert!(prompts.lock().unwrap().last().unwrap().contains("Yes.<|end|>"));
}

#[tokio::test]
async fn a_call_is_answered_in_both_ways() {
    let tools = json!([function("f", json!({"n": {"type": "integer"}}))]);
    let app = app(&call(&[("n", "7")]));
    let first = response(&app, ask(json!({"tools": tools}))).await;
    let made = first["output"][1].clone();
    let output = json!({"type": "function_call_output", "call_id": made["call_id"], "output": "fine"});
    let (app, prompts) = listening();
    let items = json!([{"role": "user", "content": "Hi"}, first["output"][0], made, output]);
    response(&app, ask(json!({"input": items, "tools": tools}))).await;
    let text = prompts.lock().unwrap().last().unwrap().clone();
    assert!(
        text.contains("Hm.")
            && text.contains("\n7\n")
            && text.ends_with("<|start|>tool f<|message|>fine<|end|><|start|>assistant")
    );
}

#[tokio::test]
async fn a_call_that_was_cut_off_was_never_made() {
    let (app, prompts) = listening();
    let cut =
        json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"n\": ", "status": "incomplete"});
    let items = json!([{"role": "user", "content": "Hi"}, cut, {"role": "user", "content": "And?"}]);
    response(&app, ask(json!({"input": items}))).await;
    assert!(!prompts.lock().unwrap().last().unwrap().contains("to=f"));
    let output = json!({"type": "function_call_output", "call_id": "c", "output": "x"});
    let reply = post(&app, RESPONSES, ask(json!({"input": [cut, output]}))).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("input[1].call_id")));
}

#[tokio::test]
async fn the_oldest_turns_make_room_where_they_may() {
    let (app, prompts) = listening();
    let mut items = vec![json!({"role": "system", "content": "Keep."})];
    for i in 0..30 {
        items.push(json!({"role": "user", "content": format!("question {i} with several words in it")}));
        items.push(json!({"role": "assistant", "content": format!("answer {i}")}));
    }
    items.push(json!({"role": "user", "content": "last"}));
    let body = ask(json!({"input": items, "max_output_tokens": 20}));
    let reply = post(&app, RESPONSES, body.clone()).await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (StatusCode::BAD_REQUEST, &json!("context_length_exceeded"))
    );
    let whole = response(&app, with(body, json!({"truncation": "auto"}))).await;
    let text = prompts.lock().unwrap().last().unwrap().clone();
    assert!(text.contains("Keep.") && text.contains("last") && text.contains("answer 29"), "{text}");
    assert!(!text.contains("question 0 ") && text.contains("<|end|><|start|>user<|message|>question"), "{text}");
    let tokens = whole["usage"]["input_tokens"].as_u64().unwrap();
    // One turn more would not have fitted.
    assert!((512 - 20 - 40..=512 - 20).contains(&tokens), "{tokens}");
    // What fits stays as it is, and a last turn that does not is an error.
    assert!(post(&app, RESPONSES, ask(json!({"truncation": "auto"}))).await.status == StatusCode::OK);
    let long = "word ".repeat(600);
    let reply = post(&app, RESPONSES, ask(json!({"truncation": "auto", "input": long}))).await;
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
}
