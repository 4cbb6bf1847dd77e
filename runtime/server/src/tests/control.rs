//! Keys, origins, control routes, metrics and the description of the routes.

use super::*;
use axum::http::{Method, header};

fn locked() -> Arc<App> {
    let options = Options { api_key: Some("user-key".into()), admin_key: Some("admin-key".into()), ..free() };
    app_with_options(scripted("one"), options)
}

async fn with_key(app: &Arc<App>, path: &str, header: &str, value: &str) -> (u16, Value) {
    let request = Request::post(path).header("content-type", "application/json").header(header, value);
    let reply = send(app, request.body(Body::from("{\"abort_all\": true, \"prompt\": \"A\"}")).unwrap()).await;
    (reply.status.as_u16(), reply.json()["error"]["type"].clone())
}

#[tokio::test]
async fn keys_open_what_they_are_for() {
    let app = locked();
    let none = post(&app, TEXTS, json!({"prompt": "A"})).await;
    assert_eq!((none.status.as_u16(), &none.json()["error"]["code"]), (401, &json!("missing_api_key")));
    for (path, header, key, want) in [
        (TEXTS, "authorization", "Bearer user-key", 200),
        (TEXTS, "authorization", "bearer  user-key", 200),
        (TEXTS, "x-api-key", "user-key", 200),
        (TEXTS, "x-api-key", "admin-key", 200),
        (TEXTS, "authorization", "Bearer user-kez", 401),
        (TEXTS, "authorization", "Bearer user-key2", 401),
        (TEXTS, "authorization", "Bearer ", 401),
        (TEXTS, "authorization", "Basic user-key", 401),
        ("/abort_request", "authorization", "Bearer user-key", 403),
        ("/abort_request", "authorization", "Bearer admin-key", 200),
        ("/abort_request", "authorization", "Bearer nobody", 401),
        ("/flush_cache", "authorization", "Bearer admin-key", 200),
    ] {
        let (status, kind) = with_key(&app, path, header, key).await;
        let expected = match status {
            401 => json!("authentication_error"),
            403 => json!("permission_error"),
            _ => Value::Null,
        };
        assert_eq!((status, kind), (want, expected), "{path} {key}");
    }
    for path in ["/health", "/ready", "/ping", "/metrics"] {
        assert_eq!(get(&app, path).await.status, StatusCode::OK, "{path}");
    }
    assert_eq!(get(&app, "/v1/models").await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn browsers_are_told_who_may_call() {
    let preflight = async |options: Options| {
        let request = Request::builder()
            .method(Method::OPTIONS)
            .uri(CHAT)
            .header(header::ORIGIN, "http://page.example")
            .header(header::ACCESS_CONTROL_REQUEST_METHOD, "POST")
            .header(header::ACCESS_CONTROL_REQUEST_HEADERS, "authorization,content-type");
        let app = app_with_options(scripted("one"), Options { api_key: Some("k".into()), ..options });
        let response = router(app).oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let allowed = response.headers().get(header::ACCESS_CONTROL_ALLOW_ORIGIN).cloned();
        (response.status(), allowed.map(|value| value.to_str().unwrap().to_owned()))
    };
    assert_eq!(preflight(free()).await, (StatusCode::OK, Some("*".into())));
    let named = Options { origins: vec!["http://page.example".into()], ..free() };
    assert_eq!(preflight(named).await.1, Some("http://page.example".into()));
    assert_eq!(preflight(Options { origins: vec!["http://other.example".into()], ..free() }).await.1, None);
    assert_eq!(preflight(Options { origins: Vec::new(), ..free() }).await.1, None);
}

#[tokio::test]
async fn operators_can_end_requests_by_name() {
    let (entered, mut steps) = tokio::sync::mpsc::unbounded_channel();
    let app = app_with(Box::new(move |_| {
        let _ = entered.send(());
        Ok(certain(VOCAB, 300))
    }));
    for stream in [false, true] {
        let body = json!({"prompt": "A", "max_tokens": 500, "rid": "mine", "ignore_eos": true, "stream": stream});
        let asked = {
            let (app, body) = (app.clone(), body.clone());
            tokio::spawn(async move { post(&app, TEXTS, body).await })
        };
        steps.recv().await.unwrap();
        // Whoever asks too late finds a finished request; then its own limit ended it.
        let ended = post(&app, "/abort_request", json!({"rid": "mine"})).await.json()["aborted"].as_u64().unwrap();
        let reply = asked.await.unwrap();
        let said = String::from_utf8(reply.body.clone()).unwrap();
        let word = if ended == 1 { "\"finish_reason\":\"abort\"" } else { "\"finish_reason\":\"length\"" };
        assert!(reply.status == StatusCode::OK && said.contains(word), "{said}");
        while steps.try_recv().is_ok() {}
    }
    assert_eq!(post(&app, "/abort_request", json!({"rid": "other"})).await.json()["aborted"], 0);
    assert_eq!(post(&app, "/abort_request", json!({})).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(post(&app, "/flush_cache", json!({})).await.json()["success"], true);
}

#[tokio::test]
async fn metrics_count_what_happened() {
    let app = app("one");
    let before = post(&app, TEXTS, json!({"prompt": "A", "temperature": 0})).await.json();
    post(&app, TEXTS, json!({"prompt": ""})).await;
    let text = String::from_utf8(get(&app, "/metrics").await.body).unwrap();
    let value = |name: &str, more: &str| {
        let start = format!("beam_run_{name}{{model_name=\"toy\"{more}}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("{start}\n{text}")).parse::<f64>().unwrap()
    };
    let tokens = before["usage"]["completion_tokens"].as_f64().unwrap();
    assert_eq!(value("generation_tokens_total", ""), tokens);
    assert_eq!((value("num_requests_total", ""), value("prompt_tokens_total", "")), (1.0, 1.0));
    assert_eq!(value("time_to_first_token_seconds_count", ""), 1.0);
    assert_eq!(value("inter_token_latency_seconds_count", ""), tokens - 1.0);
    assert_eq!(value("e2e_request_latency_seconds_bucket", ",le=\"+Inf\""), 1.0);
    assert_eq!(value("http_responses_total", ",status=\"4xx\""), 1.0);
    assert_eq!(value("http_requests_active", ""), 1.0);
    // Every family is declared once, before its samples.
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split('{').next().unwrap();
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s)).unwrap_or(name);
        assert_eq!(text.matches(&format!("# TYPE {family} ")).count(), 1, "{line}");
    }
}

#[tokio::test]
async fn the_description_names_every_route_and_no_other() {
    let app = app("");
    let described = get(&app, "/openapi.json").await.json();
    assert!(described["openapi"].as_str().unwrap().starts_with("3."));
    let source = include_str!("../router.rs");
    let mut routes: Vec<&str> = source.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let mut paths: Vec<&String> = described["paths"].as_object().unwrap().keys().collect();
    routes.sort_unstable();
    paths.sort_unstable();
    let routes: Vec<String> = routes.iter().map(|route| route.replace("{*id}", "{id}")).collect();
    assert_eq!(paths, routes.iter().collect::<Vec<_>>());
}

#[tokio::test]
async fn information_about_model_and_server() {
    let app = app("");
    for path in ["/model_info", "/get_model_info"] {
        assert_eq!(get(&app, path).await.json()["max_model_len"], 512);
    }
    for path in ["/server_info", "/get_server_info"] {
        assert_eq!(get(&app, path).await.json()["has_response_template"], true);
    }
}
