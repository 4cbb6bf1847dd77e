//! Every form of every protocol says the same, whatever a turn says and whatever is asked for.

use super::reports::{as_messages, same, same_stream, tools};
use super::weave::{ask, both, folded};
use super::*;
use proptest::prelude::*;
use std::sync::Mutex;

/// Pieces of turns, right and wrong, in any order.
fn turn() -> impl Strategy<Value = String> {
    const PIECES: [&str; 24] = [
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
        "<|end|><|start|>assistant",
        "<|end|>",
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        OPENER,
        " to=g<|channel|>analysis <|constrain|>xml<|message|>",
        "<rfl:parameter name=\"s\">\n",
        "<rfl:parameter name=\"n\">\n",
        "\n</rfl:parameter>",
        "\n",
        "12",
        "words ",
        "END",
        "EN",
        "D",
        " to=f",
        "{\"a\"}",
        "東京",
        "👩‍👩‍👧",
        "\"",
        "<|",
    ];
    let piece = || (0..PIECES.len()).prop_map(|i| PIECES[i].to_owned());
    let text = || proptest::collection::vec((12..PIECES.len()).prop_map(|i| PIECES[i]), 0..4).prop_map(|t| t.concat());
    let call = (text(), "[0-9]{1,3}").prop_map(|(s, n)| {
        let both = format!(
            "<rfl:parameter name=\"s\">\n{s}\n</rfl:parameter>\n<rfl:parameter name=\"n\">\n{n}\n</rfl:parameter>"
        );
        format!("{OPENER}{both}<|end|><|start|>assistant")
    });
    let proper =
        (text(), proptest::collection::vec(call, 0..3), proptest::option::of(text())).prop_map(|(a, calls, b)| {
            let answer = b.map_or(String::new(), |b| format!("<|channel|>final<|message|>{b}"));
            format!("<|channel|>analysis<|message|>{a}<|end|><|start|>assistant{}{answer}", calls.concat())
        });
    prop_oneof![2 => proper, 1 => proptest::collection::vec(piece(), 1..10).prop_map(|pieces| pieces.concat())]
}

/// What a request asks for besides.
#[derive(Clone, Debug)]
struct Wishes {
    stop: Option<&'static str>,
    with_tools: bool,
    separate_reasoning: bool,
    stream_reasoning: bool,
    /// How Messages shows reasoning; the empty word leaves it to the server, which hides it.
    display: &'static str,
    /// Whether Responses tells reasoning as a summary, and brings it sealed.
    summary: bool,
    sealed: bool,
    logprobs: bool,
    limit: usize,
}

fn wishes() -> impl Strategy<Value = Wishes> {
    let stop = prop_oneof![Just("END"), Just("D"), Just("\n</rfl"), Just("s 1"), Just("京")];
    let limit = prop_oneof![2 => Just(300), 1 => 1..80_usize];
    let display = prop_oneof![Just("summarized"), Just("omitted"), Just("")];
    let flags = any::<[bool; 6]>();
    (proptest::option::of(stop), display, limit, flags).prop_map(|(stop, display, limit, flags)| {
        let [with_tools, separate_reasoning, stream_reasoning, summary, sealed, logprobs] = flags;
        Wishes { stop, with_tools, separate_reasoning, stream_reasoning, display, summary, sealed, logprobs, limit }
    })
}

/// What is held back of reasoning, or told in the content, comes in a stream as in the whole answer.
async fn chats_agree(app: &Arc<App>, body: &Value, wishes: &Wishes) {
    let (usual, _) = whole(app, body.clone()).await;
    let body = with(
        body.clone(),
        json!({
            "separate_reasoning": wishes.separate_reasoning,
            "stream_reasoning": wishes.stream_reasoning,
            "logprobs": wishes.logprobs,
        }),
    );
    let (choices, usage) = whole(app, body.clone()).await;
    let (mut pieces, said) = streamed(app, body.clone()).await;
    assert_eq!(said, usage, "{body}");
    let (usual, choice) = (&usual[0], &choices[0]);
    if wishes.separate_reasoning {
        assert_eq!((&choice.reasoning, &choice.content), (&usual.reasoning, &usual.content), "{body}");
    } else {
        assert_eq!(choice.content.len(), usual.reasoning.len() + usual.content.len(), "{body}");
        assert!(choice.reasoning.is_empty() && is_woven(&choice.content, &usual.reasoning, &usual.content), "{body}");
    }
    let tokens = usage["completion_tokens"].as_u64().unwrap() as usize;
    assert_eq!(choice.logprobs.len(), if wishes.logprobs { tokens } else { 0 }, "{body}");
    same_stream(choice, pieces.remove(0), &body);
}

/// Whether a text is two others, each in its order, put together.
fn is_woven(whole: &str, a: &str, b: &str) -> bool {
    let (whole, a, b): (Vec<char>, Vec<char>, Vec<char>) =
        (whole.chars().collect(), a.chars().collect(), b.chars().collect());
    // Which of the beginnings of `b` can stand together with so many characters of `a`.
    let mut reached: Vec<bool> = vec![false; b.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            let from_a = i > 0 && reached[j] && whole[i + j - 1] == a[i - 1];
            let from_b = j > 0 && reached[j - 1] && whole[i + j - 1] == b[j - 1];
            reached[j] = i + j == 0 || from_a || from_b;
        }
    }
    reached[b.len()]
}

/// Blocks say what a chat says, as far as they show it.
async fn messages_agree(app: &Arc<App>, body: &Value, wishes: &Wishes) {
    let (choices, _) = whole(app, body.clone()).await;
    let mut body = as_messages(body);
    if !wishes.display.is_empty() {
        body = with(body, json!({"thinking": {"type": "adaptive", "display": wishes.display}}));
    }
    let told = blocks::agree(app, body.clone()).await;
    let shown = if wishes.display == "summarized" { choices[0].reasoning.as_str() } else { "" };
    assert_eq!((told.text("thinking").as_str(), &told.text("text")), (shown, &choices[0].content), "{body}");
    let kinds: Vec<&str> = told.blocks.iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(kinds.contains(&"thinking"), !wishes.display.is_empty() && !choices[0].reasoning.is_empty(), "{body}");
    // Two texts in a row would be one, also where reasoning between them is not shown.
    assert!(kinds.windows(2).all(|pair| pair[0] != pair[1] || pair[0] == "tool_use"), "{kinds:?}: {body}");
}

/// Items say what a chat says, and every entry belongs to their text.
async fn responses_agree(app: &Arc<App>, chat: &Value, wishes: &Wishes) {
    let (choices, _) = whole(app, chat.clone()).await;
    let functions: Vec<Value> =
        chat["tools"].as_array().into_iter().flatten().map(|tool| tool["function"].clone()).collect();
    let functions: Vec<Value> = functions.into_iter().map(|f| with(f, json!({"type": "function"}))).collect();
    let included: &[&str] = if wishes.sealed { &["reasoning.encrypted_content"] } else { &[] };
    let body = ask(json!({
        "stop": chat["stop"],
        "max_output_tokens": chat["max_tokens"],
        "tools": functions,
        "include": included,
        "reasoning": if wishes.summary { json!({"summary": "auto"}) } else { Value::Null },
        "top_logprobs": u8::from(wishes.logprobs),
    }));
    let response = both(app, body.clone()).await;
    let (mut reasoning, mut content, mut calls) = (String::new(), String::new(), 0);
    for item in response["output"].as_array().unwrap() {
        match item["type"].as_str().unwrap() {
            "reasoning" => {
                let key = if wishes.summary { "summary" } else { "content" };
                reasoning += item[key][0]["text"].as_str().unwrap();
                assert_eq!(item.get("encrypted_content").is_some(), wishes.sealed);
            }
            "message" => {
                let part = &item["content"][0];
                content += part["text"].as_str().unwrap();
                spells(part, wishes.logprobs);
            }
            _ => calls += 1,
        }
    }
    assert_eq!((&reasoning, &content), (&choices[0].reasoning, &choices[0].content), "{body}");
    assert_eq!(calls, choices[0].calls.len(), "{body}");
}

/// The entries of a text are the tokens that it is made of: only the first and the last may have more than their part.
pub(super) fn spells(part: &Value, is_wanted: bool) {
    let (text, entries) = (part["text"].as_str().unwrap(), part["logprobs"].as_array().unwrap());
    assert_eq!(entries.is_empty(), !is_wanted || text.is_empty(), "{part}");
    if entries.is_empty() {
        return;
    }
    let bytes = |entry: &Value| -> Vec<u8> {
        entry["bytes"].as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap() as u8).collect()
    };
    let all: Vec<u8> = entries.iter().flat_map(bytes).collect();
    let (first, last) = (bytes(&entries[0]).len(), bytes(&entries[entries.len() - 1]).len());
    let text = text.as_bytes();
    let fits = |at: usize| {
        let behind = all.len().checked_sub(at + text.len());
        all[at..].starts_with(text) && behind.is_some_and(|rest| rest < last || entries.len() == 1 || text.len() < 4)
    };
    assert!((0..first).any(fits), "{part}");
}

#[test]
fn whatever_a_turn_says_every_form_says_the_same() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let script = Arc::new(Mutex::new(String::new()));
    let app = |options: Options| {
        let read = script.clone();
        app_with_options(Box::new(move |history| scripted(&read.lock().unwrap().clone())(history)), options)
    };
    let (shows, hides) = (app(free()), app(Options { show_thinking: false, ..free() }));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(11),
        ..ProptestConfig::with_cases(96)
    });
    runner
        .run(&(turn(), wishes()), |(text, wishes)| {
            *script.lock().unwrap() = text.clone();
            let tools = if wishes.with_tools { tools() } else { json!([]) };
            let body = json!({"temperature": 0, "tools": tools, "stop": wishes.stop, "max_tokens": wishes.limit});
            let body = chat_body(body);
            runtime.block_on(async {
                same(&shows, body.clone()).await;
                chats_agree(&shows, &body, &wishes).await;
                messages_agree(&hides, &body, &wishes).await;
                responses_agree(&shows, &body, &wishes).await;
            });
            Ok(())
        })
        .unwrap();
}

#[tokio::test]
async fn what_is_kept_back_of_reasoning_is_told_before_a_failure() {
    let app = app_with(failing_behind("of"));
    let kept = async |more: Value| {
        let body = with(chat_body(json!({"temperature": 0, "stream": true})), more);
        let events = post(&app, CHAT, body).await.events();
        let error: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
        assert!(error["error"]["message"].as_str().unwrap().contains("region 3"), "{error}");
        let (mut reasoning, mut content, mut pieces) = (String::new(), String::new(), 0);
        for event in &events[..events.len() - 2] {
            let delta = serde_json::from_str::<Value>(event).unwrap()["choices"][0]["delta"].clone();
            reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
            content += delta["content"].as_str().unwrap_or_default();
            pieces += usize::from(delta.get("role").is_none());
        }
        (reasoning, content, pieces)
    };
    let (reasoning, content, _) = kept(json!({})).await;
    assert_eq!((reasoning.as_str(), content.as_str()), ("Think of", ""));
    let one = |reasoning: &str, content: &str| (reasoning.to_owned(), content.to_owned(), 1);
    assert_eq!(kept(json!({"stream_reasoning": false})).await, one("Think of", ""));
    let both = json!({"stream_reasoning": false, "separate_reasoning": false});
    assert_eq!(kept(both).await, one("", "Think of"));
    // Responses closes the item with what there is of it.
    let response = folded(&app, ask(json!({}))).await;
    assert_eq!(response["output"][0]["content"][0]["text"], "Think of");
}

#[tokio::test]
async fn entries_belong_to_their_text_though_markup_says_the_same() {
    // The text stands in the markup before and behind it too.
    for said in ["a", "assistant", "final", "l", "call f", "analysis analysis"] {
        let opener = "<|channel|>final<|message|>";
        let behind = "<|end|><|start|>assistant to=f<|channel|>analysis <|constrain|>xml<|message|><|call|>";
        for script in [format!("{opener}{said}"), format!("{opener}{said}{behind}")] {
            let tools = json!([weave::function("f", json!({}))]);
            let whole = both(&app(&script), ask(json!({"top_logprobs": 1, "tools": tools}))).await;
            let part = &whole["output"][0]["content"][0];
            assert_eq!(part["text"], said);
            spells(part, true);
            let ids = TEXT.tokenizer.encode(&script, false).unwrap();
            let first = TEXT.tokenizer.encode(opener, false).unwrap().len();
            let count = part["logprobs"].as_array().unwrap().len();
            assert_eq!(TEXT.tokenizer.decode(&ids[first..first + count], false).unwrap(), said);
        }
    }
}
