//! Listening, and the way down: no new requests, running ones finish within a time limit, then they are given up with a
//! proper end; a second signal ends it now.

use crate::app::App;
use crate::refusals::Spoken;
use crate::router::router;
use crate::service::Whom;
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// Most headers of a request; more are answered with 431.
pub(crate) const MOST_HEADERS: usize = 100;
/// Most bytes of a request's line and headers.
pub(crate) const HEADER_BYTES: usize = 64 << 10;
/// How long a client may take to send its headers.
const HEADER_TIME: Duration = Duration::from_secs(30);
/// How long the ends of requests that were given up may take to reach their clients.
const FAREWELL: Duration = Duration::from_secs(2);
/// Pause after a connection could not be taken, which a lack of file handles causes and time mends.
const BREATH: Duration = Duration::from_millis(100);

/// Serves until `stop` completes, then lets running requests finish for at most `grace`, or until `stop_now` completes.
pub async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    stop: impl Future<Output = ()> + Send + 'static,
    grace: Duration,
    stop_now: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let (routes, builder) = (router(app.clone()), builder());
    let connections = GracefulShutdown::new();
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            taken = listener.accept() => match taken {
                Ok((socket, _)) => {
                    let watched = Some(&connections);
                    attend(&builder, routes.clone(), socket, watched);
                }
                Err(_) => tokio::time::sleep(BREATH).await,
            },
            () = &mut stop => break,
        }
    }
    app.is_draining.store(true, Ordering::Release);
    // Whoever comes now is told so, instead of being left outside.
    let turning_away = async {
        loop {
            match listener.accept().await {
                Ok((socket, _)) => attend(&builder, routes.clone(), socket, None),
                Err(_) => tokio::time::sleep(BREATH).await,
            }
        }
    };
    let going_down = async {
        let mut finishing = pin!(async {
            connections.shutdown().await;
            // Nobody begins another by now.
            app.background.closed().await;
        });
        tokio::select! {
            () = &mut finishing => return,
            () = tokio::time::sleep(grace) => {}
        }
        // An engine that is stuck hears nothing.
        let _ = tokio::time::timeout(FAREWELL, app.service.abort(Whom::All)).await;
        // A client that does not read its end has had its time.
        let _ = tokio::time::timeout(FAREWELL, finishing).await;
    };
    tokio::select! {
        () = going_down => {}
        () = turning_away => {}
        () = stop_now => {}
    }
    Ok(())
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_headers(MOST_HEADERS)
        .max_buf_size(HEADER_BYTES);
    builder.http2().timer(TokioTimer::new()).max_header_list_size(HEADER_BYTES as u32);
    builder
}

/// Serves one connection; `watched` are those that are waited for on the way down.
fn attend(builder: &Builder<TokioExecutor>, routes: Router, socket: TcpStream, watched: Option<&GracefulShutdown>) {
    // Small events must not wait for large ones. A socket that refuses that still works.
    let _ = socket.set_nodelay(true);
    let service = TowerToHyperService::new(routes);
    let connection = builder.serve_connection(TokioIo::new(Spoken::new(socket)), service).into_owned();
    // An error here is the client's: it has gone, or does not speak HTTP.
    match watched {
        Some(watched) => {
            let connection = watched.watch(connection);
            tokio::spawn(async move {
                let _ = connection.await;
            });
        }
        None => {
            tokio::spawn(async move {
                let _ = connection.await;
            });
        }
    }
}
