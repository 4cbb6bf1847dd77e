//! `/generate` and the tokenizer's routes.

use super::*;
use crate::door::Turned;
use crate::generate::token_health;
use crate::service::Whom;

#[tokio::test]
async fn generate_answers_in_its_own_form() {
    let app = app_with(Box::new(|history| Ok(engine::toy::hashed(VOCAB, history))));
    let ids = [5, 6, 7, 8, 9, 10];
    let body = json!({
        "input_ids": ids, "rid": "r1", "return_logprob": true, "logprob_start_len": 2, "top_logprobs_num": 2,
        "token_ids_logprob": [3, 4], "return_text_in_logprobs": true,
        "sampling_params": {"max_new_tokens": 3, "temperature": 0, "sampling_seed": 1},
    });
    let reply = post(&app, "/generate", body.clone()).await.json();
    let info = &reply["meta_info"];
    assert_eq!((&info["id"], &info["prompt_tokens"], &info["completion_tokens"]), (&json!("r1"), &json!(6), &json!(3)));
    assert_eq!(info["finish_reason"], json!({"type": "length", "length": 3}));
    let input = info["input_token_logprobs"].as_array().unwrap();
    assert_eq!(input.iter().map(|t| t[1].as_u64().unwrap()).collect::<Vec<_>>(), [7, 8, 9, 10]);
    assert!(input[0][0].is_null() && input[1][0].as_f64().unwrap() < 0.0 && input[1][2].is_string());
    let output = info["output_token_logprobs"].as_array().unwrap();
    let output_ids: Vec<u64> = output.iter().map(|t| t[1].as_u64().unwrap()).collect();
    assert_eq!(json!(output_ids), reply["output_ids"]);
    assert_eq!(info["output_top_logprobs"][0].as_array().unwrap().len(), 2);
    assert_eq!(info["output_token_ids_logprobs"][2][1][1], 4);
    assert_eq!(info["input_token_ids_logprobs"].as_array().unwrap().len(), 4);
    // A stream repeats the text so far, or tells pieces.
    let text = reply["text"].as_str().unwrap();
    let stream = |more: Value| with(with(body.clone(), json!({"stream": true})), more);
    let own = json!({"top_logprobs_num": 0, "token_ids_logprob": null});
    let events = post(&app, "/generate", stream(own)).await.events();
    let last: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert_eq!((&last["text"], &last["output_ids"]), (&json!(text), &reply["output_ids"]));
    let events = post(&app, "/generate", stream(json!({"stream_output": true}))).await.events();
    let pieces: String = events[..events.len() - 1]
        .iter()
        .map(|e| serde_json::from_str::<Value>(e).unwrap()["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(pieces, text);
}

#[tokio::test]
async fn generate_takes_lists_and_stops() {
    let app = app("one two three");
    let body = json!({"text": ["A", "B"], "sampling_params": {"temperature": 0, "stop": "three"}});
    let reply = post(&app, "/generate", body).await.json();
    for i in 0..2 {
        assert_eq!(reply[i]["text"], "one two ");
        assert_eq!(reply[i]["meta_info"]["finish_reason"], json!({"type": "stop", "matched": "three"}));
    }
    let both = post(&app, "/generate", json!({"text": "A", "sampling_params": {"n": 2, "max_new_tokens": 1}})).await;
    assert_eq!(both.json().as_array().map(Vec::len), Some(2));
    for (body, param) in [
        (json!({}), "text"),
        (json!({"text": "A", "input_ids": [1]}), "input_ids"),
        (json!({"text": "A", "sampling_params": {"top_p": 2}}), "sampling_params.top_p"),
        (json!({"text": "A", "lora_path": "x"}), "lora_path"),
        (json!({"input_ids": [9999]}), "input_ids"),
    ] {
        let reply = post(&app, "/generate", body).await;
        assert_eq!((reply.status.as_u16(), &reply.json()["error"]["param"]), (400, &json!(param)));
    }
    assert_eq!(get(&app, "/health_generate").await.status, StatusCode::OK);
}

#[tokio::test]
async fn each_choice_says_what_was_cached_of_its_prompt() {
    let toy = Toy::new(facts(VOCAB, 16, 64, 64), Box::new(|_| Ok(certain(VOCAB, RETURN))));
    let limits = Limits { context_tokens: Some(512), running: 4, ..Limits::default() };
    let service = Service::start(Engine::new(toy, limits).unwrap()).unwrap();
    let app = Arc::new(App::with_options(service, TEXT.clone(), "toy".into(), free()));
    let (known, other) = ((0..100).collect::<Vec<u32>>(), (100..200).collect::<Vec<u32>>());
    let ask = |ids: Value| json!({"input_ids": ids, "sampling_params": {"max_new_tokens": 2}});
    let cached = |reply: &Value| reply["meta_info"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(cached(&post(&app, "/generate", ask(json!(known))).await.json()), 0);
    let both = post(&app, "/generate", ask(json!([other, known]))).await.json();
    assert_eq!(cached(&both[0]), 0);
    assert!(cached(&both[1]) >= 64, "{both}");
}

#[tokio::test]
async fn texts_and_ids_turn_into_each_other() {
    let app = app("");
    let text = "Größe <|end|> 東京";
    for path in ["/tokenize", "/v1/tokenize"] {
        let reply = post(&app, path, json!({"prompt": text})).await.json();
        assert_eq!(reply["tokens"], json!(TEXT.tokenizer.encode(text, true).unwrap()));
        assert_eq!(
            (&reply["count"], &reply["max_model_len"]),
            (&json!(reply["tokens"].as_array().unwrap().len()), &json!(512))
        );
        let many = post(&app, path, json!({"prompt": ["a", text]})).await.json();
        assert_eq!(many["tokens"][1], reply["tokens"]);
        let kept = json!({"tokens": reply["tokens"], "skip_special_tokens": false});
        assert_eq!(post(&app, "/detokenize", kept).await.json()["text"], text);
        let skipped = json!({"tokens": reply["tokens"]});
        assert_eq!(post(&app, "/v1/detokenize", skipped).await.json()["text"], text.replace("<|end|>", ""));
    }
    assert_eq!(post(&app, "/detokenize", json!({"tokens": [2048]})).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(post(&app, "/tokenize", json!({})).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn each_prompt_may_have_parameters_of_its_own_and_each_answer_its_id() {
    let app = app("one two three");
    let ask = async |body: Value| post(&app, "/generate", body).await;
    let each = json!([
        {"temperature": 0, "stop": "three"},
        {"temperature": 0, "max_new_tokens": 1},
        {"temperature": 0, "regex": "one( two)?", "max_new_tokens": 9},
    ]);
    let reply = ask(json!({"text": ["A", "B", "C"], "sampling_params": each, "rid": "mine"})).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", String::from_utf8_lossy(&reply.body));
    let all = reply.json();
    let texts: Vec<&str> = all.as_array().unwrap().iter().map(|one| one["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["one two ", "one", "one two"]);
    for (i, one) in all.as_array().unwrap().iter().enumerate() {
        assert_eq!((&one["meta_info"]["id"], &one["index"]), (&json!(format!("mine_{i}")), &json!(i)));
    }
    assert_eq!(all[1]["meta_info"]["finish_reason"], json!({"type": "length", "length": 1}));
    let body =
        json!({"text": ["A", "B"], "sampling_params": [{"n": 2, "max_new_tokens": 1}, {"n": 2, "max_new_tokens": 2}]});
    let several = ask(body).await.json();
    let tokens: Vec<u64> =
        several.as_array().unwrap().iter().map(|one| one["meta_info"]["completion_tokens"].as_u64().unwrap()).collect();
    assert_eq!(tokens, [1, 1, 2, 2]);
    for (body, param) in [
        (json!({"text": ["A", "B"], "sampling_params": [{}]}), "sampling_params"),
        (json!({"text": ["A"], "sampling_params": []}), "sampling_params"),
        (json!({"text": "A", "sampling_params": [{}]}), "sampling_params"),
        (json!({"text": ["A", "B"], "sampling_params": [{}, 5]}), "sampling_params[1]"),
        (json!({"text": ["A", "B"], "sampling_params": [{}, {"top_p": 2}]}), "sampling_params[1].top_p"),
        (json!({"text": ["A", "B"], "sampling_params": [{"n": 1}, {"n": 2}]}), "sampling_params[1].n"),
        (json!({"text": "A", "sampling_params": 5}), "sampling_params"),
    ] {
        let reply = ask(body).await;
        assert_eq!((reply.status.as_u16(), &reply.json()["error"]["param"]), (400, &json!(param)));
    }
}

#[tokio::test]
async fn formats_of_a_list_are_few_and_errors_name_theirs() {
    let app = app("one two three");
    let ask = async |each: Vec<Value>| {
        let reply = post(&app, "/generate", json!({"text": vec!["A"; each.len()], "sampling_params": each})).await;
        let error = reply.json()["error"].clone();
        (reply.status.as_u16(), error["param"].clone(), error["code"].clone())
    };
    let one = |regex: &str| json!({"regex": regex, "max_new_tokens": 2});
    let is = |param: &str, code: &str| (400, json!(param), json!(code));
    let late = json!({"guided_grammar": grammars::LATE, "max_new_tokens": 400, "temperature": 1, "sampling_seed": 2});
    assert_eq!(ask(vec![one("a"), one("(")]).await, is("sampling_params[1].regex", "invalid_grammar"));
    assert_eq!(ask(vec![one("a"), late]).await, is("sampling_params[1].guided_grammar", "invalid_grammar"));
    let many: Vec<Value> = (0..17).map(|i| one(&"a".repeat(i + 1))).collect();
    assert_eq!(ask(many).await, is("sampling_params[16].regex", "request_too_large"));
    // The same one again costs nothing.
    let reply = ask((0..40).map(|i| one(["one", "two"][i % 2])).collect()).await;
    assert_eq!(reply, (200, Value::Null, Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_busy_only_while_others_get_tokens() {
    let (model, permit, mut steps) = limits::waiting();
    let app = limits::behind(model, 1, Door::default());
    let request = engine::Request { prompt: vec![1], max_tokens: Some(400), ..engine::Request::default() };
    let running = app.service.submit(vec![request], "a".into()).await.unwrap();
    steps.recv().await.unwrap();
    let slow = token_health(&app, std::future::ready(())).await.unwrap_err();
    assert_eq!((slow.status, slow.code), (StatusCode::SERVICE_UNAVAILABLE, "engine_slow"));
    let others_speak = async {
        let before = app.service.metrics().generated();
        permit.send(()).unwrap();
        while app.service.metrics().generated() == before {
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(token_health(&app, others_speak).await.ok(), Some("busy"));
    drop((permit, running));
    assert_eq!(token_health(&app, std::future::pending()).await.ok(), Some("ok"));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_answers_is_given_up_by_its_id() {
    let (model, permit, mut steps) = limits::waiting();
    let app = limits::behind(model, 4, Door::default());
    let sampling = json!({"max_new_tokens": 400, "ignore_eos": true});
    let body = json!({"text": ["A", "B"], "rid": "mine", "sampling_params": sampling});
    let asked = {
        let app = app.clone();
        tokio::spawn(async move { post(&app, "/generate", body).await.json() })
    };
    steps.recv().await.unwrap();
    let mut none = std::pin::pin!(app.service.abort(Whom::Named("mine_2".into())));
    let mut one = std::pin::pin!(app.service.abort(Whom::Named("mine_1".into())));
    // Both are sent with the first look at them, and the engine hears them between two steps.
    tokio::select! {
        biased;
        _ = &mut none => unreachable!("the engine is inside a step"),
        _ = &mut one => unreachable!("the engine is inside a step"),
        () = std::future::ready(()) => {}
    }
    // Nobody else may be called like one of them, nor have answers that are.
    let request = || engine::Request { prompt: vec![1], max_tokens: Some(2), ..engine::Request::default() };
    let mut same = std::pin::pin!(app.service.submit(vec![request()], "mine_0".into()));
    let mut free = std::pin::pin!(app.service.submit(vec![request()], "mine_2".into()));
    tokio::select! {
        biased;
        _ = &mut same => unreachable!("the engine is inside a step"),
        _ = &mut free => unreachable!("the engine is inside a step"),
        () = std::future::ready(()) => {}
    }
    drop(permit);
    assert!(matches!(same.await, Err(Turned::Named(name)) if name == "mine_0"));
    drop(free.await.unwrap_or_else(|turned| panic!("{turned:?}")));
    assert_eq!((none.await, one.await), (Some(0), Some(1)));
    let all = asked.await.unwrap();
    let ends = [0, 1].map(|i: usize| all[i]["meta_info"]["finish_reason"]["type"].clone());
    assert_eq!(ends, ["length", "abort"]);
}
