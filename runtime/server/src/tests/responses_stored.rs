//! Stored responses: fetched, looked into, cancelled, deleted, made in the background, and the store's limits.

use super::weave::*;
use super::*;
use engine::{Executor, ExecutorFacts, PhysicalPage, Step, StepOutput, Ticket};
use std::sync::atomic::{AtomicBool, Ordering};

async fn delete(app: &Arc<App>, id: &str) -> Reply {
    send(app, Request::delete(format!("{RESPONSES}/{id}")).body(Body::empty()).unwrap()).await
}

fn id(response: &Value) -> &str {
    response["id"].as_str().unwrap()
}

/// What is stored under a name.
async fn stored(app: &Arc<App>, id: &str) -> Value {
    get(app, &format!("{RESPONSES}/{id}")).await.json()
}

#[tokio::test]
async fn a_response_can_be_fetched_and_deleted() {
    let app = app(ANSWER);
    let whole = response(&app, ask(json!({"metadata": {"k": "v"}}))).await;
    assert_eq!(stored(&app, id(&whole)).await, whole);
    let stream = folded(&app, ask(json!({}))).await;
    assert_eq!(stored(&app, id(&stream)).await, stream);
    // Events are not told again; whoever asks for that hears so by the name of what asks for it.
    for (query, param) in
        [("stream=true", "stream"), ("stream=true&starting_after=2", "stream"), ("starting_after=2", "starting_after")]
    {
        let path = format!("{RESPONSES}/{}?{query}", id(&whole));
        let error = get(&app, &path).await.json()["error"].clone();
        assert_eq!((&error["param"], &error["code"]), (&json!(param), &json!("unsupported_parameter")));
    }
    assert_eq!(get(&app, &format!("{RESPONSES}/{}?stream=false", id(&whole))).await.json(), whole);
    let gone = delete(&app, id(&whole)).await.json();
    assert_eq!(gone, json!({"id": whole["id"], "object": "response", "deleted": true}));
    for reply in [
        get(&app, &format!("{RESPONSES}/{}", id(&whole))).await,
        get(&app, &format!("{RESPONSES}/{}/input_items", id(&whole))).await,
        post(&app, &format!("{RESPONSES}/{}/cancel", id(&whole)), json!({})).await,
        delete(&app, id(&whole)).await,
    ] {
        let body = reply.json();
        assert_eq!((reply.status, &body["error"]["code"]), (StatusCode::NOT_FOUND, &json!("response_not_found")));
        assert_eq!(body["error"]["type"], "not_found_error");
    }
    // What is not to be stored is not.
    let whole = response(&app, ask(json!({"store": false}))).await;
    assert_eq!(get(&app, &format!("{RESPONSES}/{}", id(&whole))).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn input_items_come_page_by_page() {
    let app = app(ANSWER);
    let first =
        response(&app, ask(json!({"input": [{"role": "user", "content": "1"}, {"role": "user", "content": "2"}]})))
            .await;
    let second = response(&app, ask(json!({"input": "3", "previous_response_id": first["id"]}))).await;
    let page = async |query: &str| get(&app, &format!("{RESPONSES}/{}/input_items{query}", id(&second))).await.json();
    let texts = |page: &Value| -> Vec<String> {
        let items = page["data"].as_array().unwrap().iter();
        items.map(|item| item["content"][0]["text"].as_str().unwrap().to_owned()).collect()
    };
    let all = page("?order=asc").await;
    assert_eq!(texts(&all), ["1", "2", "Think of 東京.", "Größe 👩‍👩‍👧, done.", "3"]);
    assert_eq!((&all["object"], &all["has_more"]), (&json!("list"), &json!(false)));
    assert_eq!(all["first_id"], all["data"][0]["id"]);
    assert_eq!(texts(&page("?limit=2").await), ["3", "Größe 👩‍👩‍👧, done."]);
    let next = page(&format!("?order=asc&limit=2&after={}", all["data"][1]["id"].as_str().unwrap())).await;
    assert_eq!(
        (texts(&next), &next["has_more"]),
        (vec!["Think of 東京.".into(), "Größe 👩‍👩‍👧, done.".into()], &json!(true))
    );
    for (query, param) in [("?limit=0", "limit"), ("?order=up", "order"), ("?after=x", "after")] {
        assert_eq!(page(query).await["error"]["param"], param);
    }
}

#[tokio::test]
async fn the_oldest_make_room() {
    let options = Options { stored_responses: 2, ..free() };
    let app = app_with_options(scripted(ANSWER), options);
    let mut made = Vec::new();
    for _ in 0..3 {
        made.push(response(&app, ask(json!({}))).await);
    }
    assert_eq!(get(&app, &format!("{RESPONSES}/{}", id(&made[0]))).await.status, StatusCode::NOT_FOUND);
    assert_eq!(stored(&app, id(&made[2])).await, made[2]);
    let reply = post(&app, RESPONSES, ask(json!({"previous_response_id": made[0]["id"]}))).await;
    let body = reply.json();
    assert_eq!((reply.status, &body["error"]["code"]), (StatusCode::NOT_FOUND, &json!("previous_response_not_found")));
    assert_eq!(body["error"]["param"], "previous_response_id");
    let options = Options { stored_bytes: 20_000, ..free() };
    let app = app_with_options(scripted(ANSWER), options);
    for _ in 0..20 {
        response(&app, ask(json!({"metadata": {"k": "x".repeat(500)}}))).await;
        assert!(app.responses.load().1 <= 20_000);
    }
    assert!((1..20).contains(&app.responses.load().0));
}

#[tokio::test]
async fn a_server_that_stores_nothing_says_so() {
    let app = app_with_options(scripted(ANSWER), Options { stored_responses: 0, ..free() });
    let whole = both(&app, ask(json!({"store": true}))).await;
    assert_eq!(whole["store"], false);
    for (more, param) in [
        (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"background": true}), "background"),
    ] {
        let reply = post(&app, RESPONSES, ask(more)).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(param)));
    }
}

#[tokio::test]
async fn a_response_is_made_in_the_background() {
    let (app, permit) = stepwise();
    let begun = response(&app, ask(json!({"background": true}))).await;
    assert_eq!((&begun["status"], &begun["background"]), (&json!("in_progress"), &json!(true)));
    assert_eq!(stored(&app, id(&begun)).await["status"], "in_progress");
    // It cannot be continued before it is over.
    let reply = post(&app, RESPONSES, ask(json!({"previous_response_id": begun["id"]}))).await;
    assert_eq!(reply.json()["error"]["code"], "previous_response_unfinished");
    drop(permit);
    let whole = over(&app, id(&begun)).await;
    assert_eq!((&whole["status"], types(&whole)), (&json!("completed"), vec!["reasoning", "message"]));
    // The same in a stream.
    let stream = folded(&app, ask(json!({"background": true}))).await;
    assert_eq!(stored(&app, id(&stream)).await, stream);
    let reply = post(&app, &format!("{RESPONSES}/{}/cancel", id(&stream)), json!({})).await;
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (StatusCode::BAD_REQUEST, &json!("response_finished")));
}

#[tokio::test]
async fn a_response_can_be_cancelled() {
    let (app, permit) = stepwise();
    let begun = response(&app, ask(json!({"background": true}))).await;
    let cancel = format!("{RESPONSES}/{}/cancel", id(&begun));
    let cancelling = tokio::spawn({
        let app = app.clone();
        async move { post(&app, &cancel, json!({})).await }
    });
    while !cancelling.is_finished() {
        // The engine sees it between two steps.
        let _ = permit.send(());
        tokio::task::yield_now().await;
    }
    let reply = cancelling.await.unwrap();
    assert_eq!((reply.status, &reply.json()["status"]), (StatusCode::OK, &json!("cancelled")));
    drop(permit);
    let whole = over(&app, id(&begun)).await;
    assert_eq!((&whole["status"], &whole["error"]), (&json!("cancelled"), &Value::Null));
    assert!(whole["output"].as_array().unwrap().iter().rev().take(1).all(|item| item["status"] == "incomplete"));
    // Again is no error.
    let again = post(&app, &format!("{RESPONSES}/{}/cancel", id(&begun)), json!({})).await;
    assert_eq!(again.json()["status"], "cancelled");
}

#[tokio::test]
async fn cancelling_and_deleting_end_nobody_elses_request() {
    let gate = Arc::new(AtomicBool::new(false));
    let toy = Gated(Toy::new(facts(VOCAB, 16, 64, 64), scripted(ANSWER)), gate.clone());
    let limits = Limits { context_tokens: Some(512), ..Limits::default() };
    let service = Service::start(Engine::new(toy, limits).unwrap()).unwrap();
    let app = Arc::new(App::with_options(service, TEXT.clone(), "toy".into(), free()));
    let mut begun = Vec::new();
    for _ in 0..3 {
        begun.push(response(&app, ask(json!({"background": true}))).await);
    }
    let [cancelled, deleted, other] = &begun[..] else { unreachable!() };
    let reply = post(&app, &format!("{RESPONSES}/{}/cancel", id(cancelled)), json!({})).await;
    assert_eq!(reply.json()["status"], "cancelled");
    assert_eq!(delete(&app, id(deleted)).await.json()["deleted"], true);
    gate.store(true, Ordering::SeqCst);
    assert_eq!(over(&app, id(other)).await["status"], "completed");
    // What was given up first stays so, however it went on.
    assert_eq!(over(&app, id(cancelled)).await["status"], "cancelled");
}

/// An executor whose steps are not done until a gate opens; the engine goes round meanwhile.
struct Gated(Toy, Arc<AtomicBool>);

impl Executor for Gated {
    fn facts(&self) -> &ExecutorFacts {
        self.0.facts()
    }

    fn submit(&mut self, step: Step) -> Result<Ticket, StepError> {
        self.0.submit(step)
    }

    fn poll(&mut self, ticket: Ticket) -> Result<Option<StepOutput>, StepError> {
        if self.1.load(Ordering::SeqCst) { self.0.poll(ticket) } else { Ok(None) }
    }

    fn copy_pages(&mut self, kind: usize, pages: &[(PhysicalPage, PhysicalPage)]) -> Result<(), StepError> {
        self.0.copy_pages(kind, pages)
    }
}

#[tokio::test]
async fn references_bring_no_more_than_a_request_could() {
    let app = app_with_options(scripted(ANSWER), Options { body_limit_bytes: 20_000, ..free() });
    let text = "x ".repeat(100);
    let first = response(&app, ask(json!({"input": [{"role": "user", "content": text, "id": "msg_mine"}]}))).await;
    let reference = json!({"type": "item_reference", "id": "msg_mine"});
    // By an id alone a reference needs no type, and it is stored as what it stands for.
    let again = response(&app, ask(json!({"input": [reference, {"id": "msg_mine"}], "max_output_tokens": 1}))).await;
    let items = get(&app, &format!("{RESPONSES}/{}/input_items", id(&again))).await.json();
    assert!(items["data"].as_array().unwrap().iter().all(|item| item["content"][0]["text"] == text));
    let many = post(&app, RESPONSES, ask(json!({"input": vec![reference; 300]}))).await;
    let error = many.json()["error"].clone();
    assert_eq!((many.status, &error["code"]), (StatusCode::BAD_REQUEST, &json!("context_length_exceeded")));
    assert!(error["param"].as_str().unwrap().ends_with("].id"), "{error}");
    // Neither do they by their number of rounds.
    let mut last = id(&first).to_owned();
    let refused = loop {
        let body = ask(
            json!({"input": "y ".repeat(50), "previous_response_id": last, "truncation": "auto", "max_output_tokens": 1}),
        );
        let reply = post(&app, RESPONSES, body).await;
        if reply.status != StatusCode::OK {
            break reply.json()["error"].clone();
        }
        last = id(&reply.json()).to_owned();
    };
    let said = (&refused["param"], &refused["code"]);
    assert_eq!(said, (&json!("previous_response_id"), &json!("context_length_exceeded")), "{refused}");
}

/// A model that makes one step for each permit, and runs free when there is nobody left to give one.
fn stepwise() -> (Arc<App>, std::sync::mpsc::Sender<()>) {
    let (permit, permits) = std::sync::mpsc::channel::<()>();
    let mut inner = scripted(ANSWER);
    let app = app_with(Box::new(move |history| {
        let _ = permits.recv();
        inner(history)
    }));
    (app, permit)
}

/// A response when it is over: until then the server has work.
async fn over(app: &Arc<App>, id: &str) -> Value {
    loop {
        let response = stored(app, id).await;
        if !response["usage"].is_null() {
            return response;
        }
        tokio::task::yield_now().await;
    }
}
