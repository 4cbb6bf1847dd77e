//! Places: how many answers may wait, what no place will ever hold, and what a prompt may cost before it has one.

use super::limits::{behind, refusal, waiting};
use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_counts_answers_whoever_asks_for_them() {
    let (model, permit, mut steps) = waiting();
    let app = behind(model, 1, Door { queued: 2, ..Door::default() });
    // One runs and two wait: more never find places together, also on an idle server.
    let texts = |n: usize, prompts: usize| json!({"prompt": vec!["A"; prompts], "n": n, "max_tokens": 2});
    for (path, body, param) in [
        (TEXTS, texts(4, 1), "prompt"),
        (TEXTS, texts(2, 2), "prompt"),
        (CHAT, chat_body(json!({"n": 100, "max_tokens": 2})), "n"),
        ("/generate", json!({"text": ["A", "A", "A", "A"], "sampling_params": {"max_new_tokens": 2}}), "text"),
    ] {
        let reply = post(&app, path, body).await;
        let error = reply.json()["error"].clone();
        assert_eq!((reply.status.as_u16(), &error["param"]), (400, &json!(param)), "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("places for 3, 1 that run and 2 that wait"), "{message}");
    }
    let request = || engine::Request { prompt: vec![1], max_tokens: Some(400), ..engine::Request::default() };
    let running = app.service.submit(vec![request()], "a".into()).await.unwrap();
    steps.recv().await.unwrap();
    let mut three = std::pin::pin!(app.service.submit(vec![request(), request(), request()], "b".into()));
    // It is sent with the first look at it, and the engine hears it between two steps.
    tokio::select! {
        biased;
        _ = &mut three => unreachable!("the engine is inside a step"),
        () = std::future::ready(()) => {}
    }
    permit.send(()).unwrap();
    let Err(turned) = three.await else { panic!("four answers find three places") };
    let error = app.turned(turned, "prompt", "max_tokens");
    assert_eq!((error.status.as_u16(), error.code), (429, "queue_full"), "{error:?}");
    assert!(error.message.contains("0 wait where 2 may, and the 3 of this request find no place"), "{error:?}");
    let two = {
        let app = app.clone();
        let body = texts(1, 2);
        tokio::spawn(async move { post(&app, TEXTS, body).await.status })
    };
    drop(permit);
    assert_eq!(two.await.unwrap(), StatusCode::OK);
    drop(running);
    while app.service.metrics().running() + app.service.metrics().queued() > 0 {
        tokio::task::yield_now().await;
    }
    // On an idle server all places can be had at once.
    assert_eq!(post(&app, TEXTS, texts(3, 1)).await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_none_turns_away_who_cannot_start() {
    let (model, permit, mut steps) = waiting();
    let app = behind(model, 2, Door { queued: 0, ..Door::default() });
    let request = |token| engine::Request { prompt: vec![token], max_tokens: Some(2), ..engine::Request::default() };
    let running = app.service.submit(vec![request(1), request(2)], "a".into()).await.unwrap();
    steps.recv().await.unwrap();
    // Both say something in a step; the next begins when what the first began is known.
    for _ in 0..2 {
        permit.send(()).unwrap();
        steps.recv().await.unwrap();
    }
    assert_eq!(refusal(&app, TEXTS, json!({"prompt": "A"})).await.0, 429);
    drop((permit, running));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_is_judged_by_its_size_before_its_template_runs() {
    let app = app("one");
    let many = |n: usize, message: Value| chat_body(json!({"messages": vec![message; n]}));
    // More messages than tokens, and more text than tokens can have: no template is asked.
    let reply = post(&app, CHAT, many(513, json!({"role": "user", "content": ""}))).await.json();
    assert_eq!(reply["error"]["code"], "context_length_exceeded");
    assert!(reply["error"]["message"].as_str().unwrap().contains("513 messages, at most 512 tokens"), "{reply}");
    // The template looks through all messages for each result.
    let toy = Toy::new(facts(VOCAB, 16, 1 << 12, 64), Box::new(|_| Ok(certain(VOCAB, RETURN))));
    let limits = Limits { context_tokens: Some(1 << 16), ..Limits::default() };
    let service = Service::start(Engine::new(toy, limits).unwrap()).unwrap();
    let app = Arc::new(App::with_options(service, TEXT.clone(), "toy".into(), free()));
    let result = json!({"role": "tool", "tool_call_id": "c", "content": "x"});
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let many = |n: usize| {
        let mut messages = vec![result.clone(); n];
        messages[0] = json!({"role": "assistant", "tool_calls": [call]});
        chat_body(json!({"messages": messages}))
    };
    let reply = post(&app, CHAT, many(1500)).await;
    let error = reply.json()["error"].clone();
    assert_eq!(
        (reply.status.as_u16(), &error["code"], &error["param"]),
        (400, &json!("request_too_large"), &json!("messages"))
    );
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("1500 messages") && !message.contains("line"), "{message}");
    // As many as a long session has are no trouble.
    let reply = post(&app, CHAT, with(many(300), json!({"max_tokens": 2}))).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", String::from_utf8_lossy(&reply.body));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_nobody_waits_for_is_written_no_further() {
    let app = app("one");
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let (ended, mut ends) = tokio::sync::mpsc::unbounded_channel();
    let waiting = {
        let app = app.clone();
        tokio::spawn(async move {
            app.encoding(move |gone| {
                let _ = begun.send(());
                while !gone.is_so() {
                    std::thread::yield_now();
                }
                let _ = ended.send(());
                Ok(())
            })
            .await
        })
    };
    begins.recv().await.unwrap();
    waiting.abort();
    ends.recv().await.unwrap();
}

/// The load is published between steps; whoever comes during one is counted all the same, before anything is made for him.
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_during_a_step_is_counted_by_the_next_who_comes() {
    let (model, permit, mut steps) = waiting();
    let app = behind(model, 1, Door { queued: 1, ..Door::default() });
    let request = || engine::Request { prompt: vec![1], max_tokens: Some(2), ..engine::Request::default() };
    let running = app.service.submit(vec![request()], "a".into()).await.unwrap();
    steps.recv().await.unwrap();
    let mut second = std::pin::pin!(app.service.submit(vec![request()], "b".into()));
    tokio::select! {
        biased;
        _ = &mut second => unreachable!("the engine is inside a step"),
        () = std::future::ready(()) => {}
    }
    // One runs and one waits, of which the engine has not heard: this one is turned away while the step goes on.
    let (status, _, code) = refusal(&app, TEXTS, json!({"prompt": "A"})).await;
    assert_eq!((status, code.as_str()), (429, "queue_full"));
    drop(permit);
    for generation in [Ok(running), second.await] {
        let mut generation = generation.unwrap_or_else(|turned| panic!("{turned:?}"));
        while generation.next().await.is_some() {}
    }
    // Nobody is counted any more.
    while app.service.metrics().running() + app.service.metrics().queued() > 0 {
        tokio::task::yield_now().await;
    }
    for _ in 0..3 {
        assert_eq!(post(&app, TEXTS, json!({"prompt": "A", "max_tokens": 1})).await.status, StatusCode::OK);
    }
}
