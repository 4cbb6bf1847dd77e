//! Nothing that a request says stalls the server or makes it swell: what is too much is refused, and others go on meanwhile.

use super::*;
use crate::door::Turned;
use crate::service::Whom;
use std::sync::mpsc::channel;
use std::time::Duration;
use text::grammar::{GrammarSpec, Lane};

pub(super) async fn refusal(app: &Arc<App>, path: &str, body: Value) -> (u16, String, String) {
    let reply = post(app, path, body.clone()).await;
    let said = reply.json();
    let word = |key: &str| said["error"][key].as_str().unwrap_or_default().to_owned();
    (reply.status.as_u16(), word("param"), word("code"))
}

#[tokio::test]
async fn lists_that_cost_something_for_every_token_have_an_end() {
    let app = app("one");
    let ids = |n: usize| (0..n).map(|i| i % VOCAB).collect::<Vec<_>>();
    let bias =
        |n: usize| -> Value { (0..n).map(|i| (i.to_string(), json!(1))).collect::<serde_json::Map<_, _>>().into() };
    for (body, param) in [
        (json!({"logit_bias": bias(1025)}), "logit_bias"),
        (json!({"logit_bias": {"5": 1, "05": 2}}), "logit_bias"),
        (json!({"logit_bias": {"+5": 1}}), "logit_bias"),
        (json!({"stop_token_ids": ids(257)}), "stop_token_ids"),
        (json!({"stop": vec!["a"; 33]}), "stop"),
        (json!({"stop": "a".repeat(1025)}), "stop"),
        (json!({"rid": "a".repeat(257)}), "rid"),
        (json!({"rid": ""}), "rid"),
        (json!({"n": 128, "prompt": vec!["A"; 9]}), "prompt"),
    ] {
        let shown = body.to_string();
        let (status, at, _) = refusal(&app, TEXTS, with(json!({"prompt": "A", "max_tokens": 1}), body)).await;
        assert_eq!((status, at.as_str()), (400, param), "{}", &shown[..shown.len().min(80)]);
    }
    for (body, param) in [
        (json!({"top_logprobs_num": 129}), "top_logprobs_num"),
        (json!({"token_ids_logprob": ids(129)}), "token_ids_logprob"),
        (json!({"top_logprobs_num": 1, "stream": true}), "top_logprobs_num"),
        (json!({"token_ids_logprob": [1], "stream": true}), "token_ids_logprob"),
        (json!({"text": vec!["A"; 128], "sampling_params": {"n": 9, "max_new_tokens": 1}}), "text"),
    ] {
        let body = with(json!({"text": "A", "return_logprob": true, "sampling_params": {"max_new_tokens": 1}}), body);
        let (status, at, _) = refusal(&app, "/generate", body).await;
        assert_eq!((status, at.as_str()), (400, param));
    }
    // At the limits all of it works.
    let most =
        json!({"logit_bias": bias(1024), "stop_token_ids": ids(256), "stop": vec!["q"; 32], "rid": "a".repeat(256)});
    let reply = post(&app, TEXTS, with(json!({"prompt": "A", "max_tokens": 1}), most)).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", String::from_utf8_lossy(&reply.body));
    let body = json!({"text": "A", "return_logprob": true, "top_logprobs_num": 128, "token_ids_logprob": ids(128), "sampling_params": {"max_new_tokens": 1}});
    let info = post(&app, "/generate", body).await.json()["meta_info"].clone();
    assert_eq!(info["output_top_logprobs"][0].as_array().unwrap().len(), 128);
    assert_eq!(info["output_token_ids_logprobs"][0].as_array().unwrap().len(), 128);
}

#[tokio::test]
async fn a_stream_of_pieces_tells_everything_once_and_the_prompt_at_its_ends() {
    // More tokens than are handed over at once.
    let toy = Toy::new(facts(VOCAB, 16, 1 << 10, 64), Box::new(|_| Ok(certain(VOCAB, 300))));
    let service = Service::start(Engine::new(toy, Limits::default()).unwrap()).unwrap();
    let app = Arc::new(App::with_options(service, TEXT.clone(), "toy".into(), free()));
    let body = json!({"text": "A B C", "return_logprob": true, "top_logprobs_num": 2, "logprob_start_len": 0,
        "stream": true, "stream_output": true, "sampling_params": {"temperature": 0, "max_new_tokens": 1000}});
    let events = post(&app, "/generate", body).await.events();
    let infos: Vec<Value> = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str::<Value>(event).unwrap()["meta_info"].clone())
        .collect();
    let len = |info: &Value, key: &str| info[key].as_array().map_or(0, Vec::len);
    let input: Vec<usize> = infos.iter().map(|info| len(info, "input_token_logprobs")).collect();
    let told: usize = infos.iter().map(|info| len(info, "output_top_logprobs")).sum();
    assert_eq!(told as u64, infos.last().unwrap()["completion_tokens"].as_u64().unwrap());
    let (first, last) = (input[0], input[input.len() - 1]);
    assert!(input.len() > 3 && first > 1 && first == last, "{input:?}");
    assert!(input[1..input.len() - 1].iter().all(|n| *n == 0), "{input:?}");
}

#[tokio::test]
async fn texts_to_be_encoded_are_no_longer_and_no_more_than_prompts() {
    let app = app("");
    for prompt in [json!("x".repeat(1_000_000)), json!(vec!["a"; 1025])] {
        let (status, at, _) = refusal(&app, "/tokenize", json!({"prompt": prompt})).await;
        assert_eq!((status, at.as_str()), (400, "prompt"));
    }
    assert_eq!(post(&app, "/tokenize", json!({"prompt": vec!["a"; 1024]})).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_text_with_control_tokens_is_refused_as_a_whole() {
    let app = app_with_options(scripted("one"), Options { sanitize_control_tokens: true, ..free() });
    let longest = TEXT.tokenizer.longest_token_bytes().unwrap();
    // Each piece would fit.
    let text = format!("<|end|>{}", "x".repeat(200)).repeat(512 * longest / 200 + 1);
    let reply = post(&app, CHAT, json!({"messages": [{"role": "user", "content": text}]})).await.json();
    assert_eq!(reply["error"]["code"], "context_length_exceeded");
    assert!(reply["error"]["message"].as_str().unwrap().contains(" bytes, 512 tokens of at most"), "{reply}");
}

#[tokio::test]
async fn a_grammar_that_was_slow_once_may_be_asked_for_again() {
    let app = app("one");
    app.grammars.as_ref().unwrap().give_up(&GrammarSpec::Regex("one".into()));
    let body = json!({"prompt": "A", "regex": "one", "max_tokens": 4});
    let request = Request::post(TEXTS).header("content-type", "application/json").body(Body::from(body.to_string()));
    let response = router(app).oneshot(request.unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()["retry-after"], "10");
    let said = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&said).unwrap()["error"]["code"], "grammar_too_slow");
}

#[test]
fn prompts_are_counted_once_for_each_answer() {
    let app = app("");
    assert!(app.affords(16 << 20, 512, "prompt").is_ok());
    for (tokens, answers) in [((16 << 20) + 1, 1), (1, 513), (usize::MAX, usize::MAX)] {
        let error = app.affords(tokens, answers, "prompt").unwrap_err();
        assert_eq!((error.status, error.code), (StatusCode::BAD_REQUEST, "request_too_large"));
    }
}

#[tokio::test]
async fn log_probabilities_of_a_request_have_an_end() {
    let toy = Toy::new(facts(VOCAB, 16, 1 << 16, 64), Box::new(|_| Ok(certain(VOCAB, RETURN))));
    let service = Service::start(Engine::new(toy, Limits::default()).unwrap()).unwrap();
    let app = Arc::new(App::with_options(service, TEXT.clone(), "toy".into(), free()));
    // Up to 21 for each of as many tokens as are asked for; an answer without a limit gets one.
    let body = chat_body(json!({"logprobs": true, "top_logprobs": 20, "max_tokens": 60_000}));
    let (status, at, code) = refusal(&app, CHAT, body.clone()).await;
    assert_eq!((status, at.as_str(), code.as_str()), (400, "max_tokens", "request_too_large"));
    let open = post(&app, CHAT, with(body.clone(), json!({"max_tokens": null, "n": 4}))).await;
    assert_eq!(open.status, StatusCode::OK, "{}", String::from_utf8_lossy(&open.body));
    let fewer = post(&app, CHAT, with(body, json!({"max_tokens": 1000}))).await;
    assert_eq!(fewer.status, StatusCode::OK, "{}", String::from_utf8_lossy(&fewer.body));
    // A response tells each of them several times.
    let (most, path) = ((1 << 20) / 4 / 21, super::weave::RESPONSES);
    for (tokens, status) in [(most, 200), (most + 1, 400)] {
        let body = json!({"input": "Hi", "top_logprobs": 20, "max_output_tokens": tokens, "temperature": 0});
        assert_eq!(refusal(&app, path, body).await.0, status, "{tokens}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_that_wait_to_be_encoded_take_no_threads_from_others() {
    let app = app("one");
    let places = u32::try_from(app.encoders.available_permits()).unwrap();
    let taken = app.encoders.clone().acquire_many_owned(places).await.unwrap();
    let bodies = [
        (CHAT, chat_body(json!({"max_tokens": 4}))),
        (TEXTS, json!({"prompt": "A"})),
        ("/generate", json!({"text": "A"})),
        ("/tokenize", json!({"prompt": "A"})),
    ];
    let waiting = bodies.map(|(path, body)| {
        let app = app.clone();
        tokio::spawn(async move { post(&app, path, body).await.status })
    });
    // What is read apart, but encodes nothing, goes on.
    let long = json!({"tokens": vec![5; 20_000]});
    assert_eq!(post(&app, "/detokenize", long).await.status, StatusCode::OK);
    assert!(waiting.iter().all(|one| !one.is_finished()));
    drop(taken);
    for one in waiting {
        assert_eq!(one.await.unwrap(), StatusCode::OK);
    }
    assert_eq!(app.encoders.available_permits(), places as usize);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_send_to_be_compiled_does_not_hold_plain_requests_up() {
    let app = app_with_options(scripted("{\"a\": 1}"), Options::default());
    let schema = |name: &str| json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "properties": {name: {"type": "integer"}}}}}});
    let known = post(&app, CHAT, chat_body(with(schema("a"), json!({"max_tokens": 40})))).await;
    assert_eq!(known.status, StatusCode::OK, "{}", String::from_utf8_lossy(&known.body));
    // All places are taken by grammars that take long.
    let places = app.places(Lane::Short).clone().acquire_many_owned(4).await.unwrap();
    let plain = post(&app, CHAT, chat_body(json!({"max_tokens": 4}))).await;
    assert_eq!(plain.status, StatusCode::OK, "{}", String::from_utf8_lossy(&plain.body));
    let kept = post(&app, CHAT, chat_body(with(schema("a"), json!({"max_tokens": 40})))).await;
    assert_eq!(kept.status, StatusCode::OK, "what is kept needs no place");
    let (status, _, code) = refusal(&app, CHAT, chat_body(schema("b"))).await;
    assert_eq!((status, code.as_str()), (503, "grammars_busy"));
    drop(places);
    let other = post(&app, CHAT, chat_body(with(schema("b"), json!({"max_tokens": 40})))).await;
    assert_eq!(other.status, StatusCode::OK, "{}", String::from_utf8_lossy(&other.body));
}

/// A model that waits for a permit before each token, and tells when it does.
pub(super) fn waiting() -> (engine::toy::Model, std::sync::mpsc::Sender<()>, tokio::sync::mpsc::UnboundedReceiver<()>) {
    let (permit, permits) = channel::<()>();
    let (entered, steps) = tokio::sync::mpsc::unbounded_channel();
    let model: engine::toy::Model = Box::new(move |_| {
        let _ = entered.send(());
        // An error means that nobody holds the model back any more.
        let _ = permits.recv();
        Ok(certain(VOCAB, 300))
    });
    (model, permit, steps)
}

pub(super) fn behind(model: engine::toy::Model, running: usize, door: Door) -> Arc<App> {
    let toy = Toy::new(facts(VOCAB, 16, 64, 64), model);
    let limits = Limits { keeps_prefixes: false, context_tokens: Some(512), running, ..Limits::default() };
    let service = Service::behind(Engine::new(toy, limits).unwrap(), door).unwrap();
    Arc::new(App::with_options(service, TEXT.clone(), "toy".into(), free()))
}

async fn health(app: &Arc<App>, status: StatusCode) {
    while get(app, "/health").await.status != status {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_does_not_come_back_shows() {
    let (model, permit, mut steps) = waiting();
    let app = behind(model, 4, Door { stuck: Duration::from_millis(20), ..Door::default() });
    health(&app, StatusCode::OK).await;
    // The first step of an engine that was idle.
    let asked = {
        let app = app.clone();
        tokio::spawn(async move { post(&app, TEXTS, json!({"prompt": "A", "max_tokens": 2})).await.status })
    };
    steps.recv().await.unwrap();
    health(&app, StatusCode::SERVICE_UNAVAILABLE).await;
    assert_eq!(get(&app, "/ready").await.status, StatusCode::SERVICE_UNAVAILABLE);
    for (path, body) in [
        (TEXTS, json!({"prompt": "A"})),
        (CHAT, chat_body(json!({}))),
        ("/abort_request", json!({"abort_all": true})),
        ("/flush_cache", json!({})),
    ] {
        let (status, _, code) = refusal(&app, path, body).await;
        assert_eq!((status, code.as_str()), (503, "engine_stuck"), "{path}");
    }
    drop(permit);
    assert_eq!(asked.await.unwrap(), StatusCode::OK);
    health(&app, StatusCode::OK).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_during_a_stuck_step_hears_so_when_it_is_found() {
    let (model, permit, mut steps) = waiting();
    let stuck = Duration::from_millis(300);
    let app = behind(model, 4, Door { stuck, ..Door::default() });
    let request = || engine::Request { prompt: vec![1], max_tokens: Some(2), ..engine::Request::default() };
    let running = app.service.submit(vec![request()], "a".into()).await.unwrap();
    steps.recv().await.unwrap();
    health(&app, StatusCode::SERVICE_UNAVAILABLE).await;
    // The step has taken that long already: nobody waits as long again.
    tokio::select! {
        biased;
        outcome = app.service.submit(vec![request()], "b".into()) => assert!(matches!(outcome, Err(Turned::Stuck))),
        () = tokio::time::sleep(stuck) => panic!("the waiting begins anew for each"),
    }
    drop((permit, running));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_no_sign_of_bad_health() {
    let (model, permit, mut steps) = waiting();
    let app = behind(model, 1, Door { queued: 1, ..Door::default() });
    let request = || engine::Request { prompt: vec![1], max_tokens: Some(20), ..engine::Request::default() };
    let running = app.service.submit(vec![request(), request()], "a".into()).await.unwrap();
    steps.recv().await.unwrap();
    permit.send(()).unwrap();
    steps.recv().await.unwrap();
    assert_eq!(refusal(&app, TEXTS, json!({"prompt": "A"})).await.0, 429);
    // Whoever looks whether a token can be made waits behind the others, whatever the limit of the queue.
    let mut probe = std::pin::pin!(app.service.probe(request(), "probe".into()));
    tokio::select! {
        biased;
        _ = &mut probe => unreachable!("the engine is inside a step"),
        () = std::future::ready(()) => {}
    }
    drop(permit);
    let mut probe = probe.await.unwrap_or_else(|turned| panic!("{turned:?}"));
    while probe.next().await.is_some() {}
    drop(running);
    let health = get(&app, "/health_generate").await;
    assert_eq!((health.status, health.json()), (StatusCode::OK, json!({"status": "ok"})));
    app.is_draining.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(get(&app, "/health_generate").await.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_belong_to_one_request_at_a_time() {
    let (model, permit, mut steps) = waiting();
    let app = behind(model, 1, Door::default());
    let long = |rid: &str| {
        let (app, body) = (app.clone(), json!({"prompt": "A", "max_tokens": 3, "n": 2, "rid": rid}));
        tokio::spawn(async move { post(&app, TEXTS, body).await })
    };
    let first = long("mine");
    steps.recv().await.unwrap();
    permit.send(()).unwrap();
    steps.recv().await.unwrap();
    let (second, other) = (long("mine"), long("min"));
    drop(permit);
    let second = second.await.unwrap();
    if second.status != StatusCode::OK {
        // It came while the first was running.
        assert_eq!((second.status, &second.json()["error"]["code"]), (StatusCode::BAD_REQUEST, &json!("rid_in_use")));
    }
    assert_eq!((first.await.unwrap().status, other.await.unwrap().status), (StatusCode::OK, StatusCode::OK));
    // The name is free again.
    assert_eq!(long("mine").await.unwrap().status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_in_use_is_refused_and_only_whole_names_are_given_up() {
    let (model, permit, mut steps) = waiting();
    let app = behind(model, 4, Door::default());
    let request = || engine::Request { prompt: vec![1], max_tokens: Some(400), ..engine::Request::default() };
    let mine = app.service.submit(vec![request()], "mine".into()).await.unwrap();
    steps.recv().await.unwrap();
    let mut again = std::pin::pin!(app.service.submit(vec![request()], "mine".into()));
    let mut part = std::pin::pin!(app.service.abort(Whom::Named("min".into())));
    // Both are sent with the first look at them, and the engine hears them between two steps.
    tokio::select! {
        biased;
        _ = &mut again => unreachable!("the engine is inside a step"),
        _ = &mut part => unreachable!("the engine is inside a step"),
        () = std::future::ready(()) => {}
    }
    permit.send(()).unwrap();
    assert!(matches!(again.await, Err(Turned::Named(name)) if name == "mine"));
    assert_eq!(part.await, Some(0));
    drop((permit, mine));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_too_long_is_turned_away_before_a_stream_begins() {
    // One runs for a long time and the next finds no place.
    let toy = Toy::new(facts(VOCAB, 16, 1 << 16, 64), Box::new(|_| Ok(certain(VOCAB, 300))));
    let limits = Limits { running: 1, ..Limits::default() };
    let door = Door { wait: Some(Duration::from_millis(5)), ..Door::default() };
    let service = Service::behind(Engine::new(toy, limits).unwrap(), door).unwrap();
    let app = Arc::new(App::with_options(service, TEXT.clone(), "toy".into(), free()));
    // Where the machine is busy, even the first may come too late once.
    let running = loop {
        let long = engine::Request { prompt: vec![1], max_tokens: Some(1 << 19), ..engine::Request::default() };
        match app.submit(vec![long], "a".into(), "prompt", "max_tokens").await {
            Ok(running) => break running,
            Err(error) => assert_eq!(error.code, "waited_too_long"),
        }
    };
    for stream in [false, true] {
        for (path, body) in [(TEXTS, json!({"prompt": "A", "n": 2})), (CHAT, chat_body(json!({})))] {
            let request = Request::post(path).header("content-type", "application/json");
            let body = with(body, json!({"stream": stream})).to_string();
            let response = router(app.clone()).oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "{path}");
            assert!(response.headers().contains_key("retry-after"));
            let said = to_bytes(response.into_body(), usize::MAX).await.unwrap();
            let error = serde_json::from_slice::<Value>(&said).unwrap()["error"].clone();
            assert_eq!(error["code"], "waited_too_long", "{error}");
        }
    }
    drop(running);
    // Who finds a place in time is answered, however long the answer takes.
    let door = Door { wait: Some(Duration::from_secs(600)), ..Door::default() };
    let app = behind(Box::new(|_| Ok(certain(VOCAB, 300))), 1, door);
    let reply = post(&app, TEXTS, json!({"prompt": "A", "max_tokens": 300})).await;
    assert_eq!(reply.json()["usage"]["completion_tokens"], 300, "{}", String::from_utf8_lossy(&reply.body));
}

#[tokio::test]
async fn a_stop_string_is_no_request_given_up() {
    let app = app("one two three");
    for _ in 0..3 {
        // Its name is free when its answer is there.
        let body = json!({"prompt": "A", "temperature": 0, "stop": "two", "rid": "a"});
        let stopped = post(&app, TEXTS, body).await.json();
        assert_eq!(stopped["choices"][0]["text"], "one ");
    }
    let text = || app.service.metrics().text("", "");
    while !text().contains("num_requests_total{model_name=\"\"} 3\n") {
        tokio::task::yield_now().await;
    }
    assert!(text().contains("num_aborted_requests_total{model_name=\"\"} 0\n"), "{}", text());
}

#[tokio::test]
async fn long_bodies_are_read_like_short_ones() {
    let app = app("one");
    let long = "x".repeat(100_000);
    let reply = post(&app, TEXTS, json!({"prompt": "A", "temperature": 0, "user": long})).await;
    assert_eq!(reply.json()["choices"][0]["text"], "one");
    let broken = format!("{{\"prompt\": \"A\", \"user\": \"{long}\"");
    let reply = post_bytes(&app, TEXTS, broken).await;
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_json")));
}
