//! Listening, and the way down: no new requests, running ones finish within a time limit, a second signal ends it now.

use crate::app::App;
use crate::router::router;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpListener;

/// Serves until `stop` completes, then lets running requests finish for at most `grace`, or until `stop_now` completes.
pub async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    stop: impl Future<Output = ()> + Send + 'static,
    grace: Duration,
    stop_now: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let (begin, begun) = tokio::sync::oneshot::channel::<()>();
    let draining = app.clone();
    let drain = async move {
        stop.await;
        draining.is_draining.store(true, Ordering::Release);
        // The receiver is gone only if serving has ended already.
        let _ = begin.send(());
    };
    let serving = axum::serve(listener, router(app)).with_graceful_shutdown(drain);
    let patience = async {
        // An error means that the sender was dropped, which only the end of serving does.
        if begun.await.is_err() {
            std::future::pending::<()>().await;
        }
        tokio::select! {
            () = tokio::time::sleep(grace) => {}
            () = stop_now => {}
        }
    };
    tokio::select! {
        result = async { serving.await } => result,
        () = patience => Ok(()),
    }
}
