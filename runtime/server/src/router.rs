//! All routes, and what holds for every one of them: keys, origins, counting, answers in JSON whatever happens.

use crate::app::App;
use crate::error::ApiError;
use crate::{chat, completions, control, errors, generate, guard, messages, models, responses, tokens};
use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use std::any::Any;
use std::sync::Arc;
use tower_http::catch_panic::CatchPanicLayer;

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    let open = Router::new()
        .route("/health", get(models::health))
        .route("/ping", get(models::health))
        .route("/ready", get(models::ready))
        .route("/metrics", get(models::metrics));
    let makers = Router::new()
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/messages", post(messages::messages))
        .route("/v1/responses", post(responses::create))
        .route("/generate", post(generate::generate))
        .route_layer(from_fn_with_state(app.clone(), guard::admitted));
    let users = makers
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/responses/input_tokens", post(responses::input_tokens))
        .route("/v1/responses/{id}", get(responses::retrieve).delete(responses::delete))
        .route("/v1/responses/{id}/cancel", post(responses::cancel))
        .route("/v1/responses/{id}/input_items", get(responses::input_items))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/health_generate", get(generate::health_generate))
        .route("/tokenize", post(tokens::tokenize))
        .route("/v1/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/v1/detokenize", post(tokens::detokenize))
        .route("/get_model_info", get(models::model_info))
        .route("/model_info", get(models::model_info))
        .route("/get_server_info", get(models::server_info))
        .route("/server_info", get(models::server_info))
        .route("/openapi.json", get(models::openapi))
        .route_layer(from_fn_with_state(app.clone(), guard::user));
    let admins = Router::new()
        .route("/abort_request", post(control::abort_request))
        .route("/flush_cache", post(control::flush_cache).get(control::flush_cache))
        .route_layer(from_fn_with_state(app.clone(), guard::admin));
    let routes = guarded(open.merge(users).merge(admins).with_state(app.clone()));
    routes.layer(from_fn_with_state(app.clone(), guard::counted)).layer(guard::origins(&app.options))
}

/// What holds for every route: unknown ones answer in JSON, a panic is an answer too, and errors have their route's form.
pub(crate) fn guarded(routes: Router) -> Router {
    routes
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn(guard::well_formed))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(errors::in_the_routes_form))
}

async fn no_route(uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "unknown_route", format!("there is no route `{}`", uri.path()))
}

async fn no_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("`{}` does not answer {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

fn panicked(_: Box<dyn Any + Send + 'static>) -> Response {
    ApiError::internal("this request hit a defect of the server; report it with the request").into_response()
}
