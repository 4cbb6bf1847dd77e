//! Over real sockets: clients that come and go in thousands, and clients that do not read.

use super::life::{open, rest, start, until};
use super::*;

/// A sample of the metrics page.
async fn metric(app: &Arc<App>, name: &str) -> f64 {
    let page = get(app, "/metrics").await;
    let text = String::from_utf8(page.body).unwrap();
    let line = text.lines().find(|l| l.contains(&format!("{name}{{"))).unwrap_or_else(|| panic!("{name}\n{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// An engine that keeps prefixes, where a leak would show.
fn keeping(model: engine::toy::Model) -> Arc<App> {
    let toy = Toy::new(facts(VOCAB, 16, 64, 64), model);
    let limits = Limits { context_tokens: Some(512), running: 4, ..Limits::default() };
    let service = Service::start(Engine::new(toy, limits).unwrap()).unwrap();
    Arc::new(App::with_options(service, TEXT.clone(), "toy".into(), free()))
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_dropped_connections_leave_the_pools_as_they_were() {
    let app = keeping(Box::new(|history| Ok(certain(VOCAB, 300 + history.len() as u32 % 7))));
    let server = start(app.clone()).await;
    let names = ["kv_used_tokens", "swa_used_tokens", "num_running_reqs", "num_queue_reqs", "http_requests_active"];
    assert!(rest(open(&server, json!({"prompt": "A", "max_tokens": 2})).await).await.contains("200 OK"));
    let mut draw = 1u64;
    let mut below = |end: u64| {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (draw >> 33) % end
    };
    for round in 0..40 {
        let mut sockets = Vec::new();
        for i in 0..50 {
            let prompt: String = (0..1 + below(40)).map(|_| ["a ", "b ", "c "][below(3) as usize]).collect();
            let body = json!({"prompt": prompt, "max_tokens": 1 + below(200), "stream": i % 2 == 0, "ignore_eos": true,
                "n": 1 + below(2)});
            sockets.push(open(&server, body).await);
            if below(3) == 0 {
                let which = below(sockets.len() as u64) as usize;
                drop(sockets.swap_remove(which));
            }
        }
        // Some are answered, the others go in the middle.
        let stays = below(4) as usize;
        for socket in sockets.drain(..stays) {
            assert!(rest(socket).await.contains("HTTP/1.1"), "round {round}");
        }
        drop(sockets);
    }
    // The server sees a closed connection when it next writes or reads; nobody is left then.
    for name in names {
        while metric(&app, name).await > f64::from(u8::from(name == "http_requests_active")) {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(post(&app, "/flush_cache", json!({})).await.status, StatusCode::OK);
    until(|| app.service.is_alive()).await;
    for name in ["kv_used_tokens", "swa_used_tokens", "kv_evictable_tokens", "swa_evictable_tokens"] {
        assert_eq!(metric(&app, name).await, 0.0, "{name}");
    }
    let (all, free) = (metric(&app, "max_total_num_tokens").await, metric(&app, "kv_available_tokens").await);
    assert_eq!(all, free);
}

/// An answer that nobody reads fills its channel and the socket; the batch goes on without waiting for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_holds_nobody_up() {
    let app = keeping(Box::new(|_| Ok(certain(VOCAB, 300))));
    let server = start(app.clone()).await;
    let slow: Vec<_> = {
        let mut all = Vec::new();
        for _ in 0..3 {
            let long = json!({"prompt": "A", "max_tokens": 400, "stream": true, "ignore_eos": true, "logprobs": 5});
            all.push(open(&server, long).await);
        }
        all
    };
    for _ in 0..20 {
        let reply = rest(open(&server, json!({"prompt": "B", "max_tokens": 5, "ignore_eos": true})).await).await;
        assert!(reply.contains("\"completion_tokens\":5"), "{reply}");
    }
    // The engine has long ended them; what they were told is still there to be read.
    while metric(&app, "num_running_reqs").await > 0.0 {
        tokio::task::yield_now().await;
    }
    for socket in slow {
        let said = rest(socket).await;
        assert!(said.contains("\"finish_reason\":\"length\"") && said.contains("data: [DONE]"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn salts_keep_prefixes_apart_and_priorities_are_numbers() {
    let app = keeping(Box::new(|_| Ok(certain(VOCAB, 300))));
    let prompt: Vec<u32> = (0..60).collect();
    let ask = async |more: Value| {
        let reply = post(&app, TEXTS, with(json!({"prompt": prompt, "max_tokens": 1}), more)).await;
        (reply.status, reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"].clone())
    };
    assert_eq!(ask(json!({})).await, (StatusCode::OK, json!(0)));
    assert_eq!(ask(json!({"cache_salt": "a"})).await, (StatusCode::OK, json!(0)));
    for more in [json!({}), json!({"cache_salt": "a", "priority": -3}), json!({"priority": 7})] {
        assert_eq!(ask(more).await, (StatusCode::OK, json!(48)));
    }
    for more in [
        json!({"cache_salt": ""}),
        json!({"cache_salt": 1}),
        json!({"priority": "high"}),
        json!({"priority": 1u64 << 40}),
    ] {
        assert_eq!(ask(more.clone()).await.0, StatusCode::BAD_REQUEST, "{more}");
    }
}
