//! Serving: accept, answer `/health`, hand the rest to the service, stop gently on SIGTERM.

use crate::http::{Body, CALLED_BY, caller, json};
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

/// Most connections at a time; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 4096;
/// Longest wait for the next head, which is also how long an idle connection is kept. Longer than
/// the idle timeout a sidecar has by default (5 min), so that the sidecar closes first.
const HEAD_TIMEOUT: Duration = Duration::from_secs(330);
/// Longest wait for requests in flight after SIGTERM.
const DRAIN: Duration = Duration::from_secs(10);

/// Answers requests. `/health` never reaches it.
pub(crate) trait Answer: Send + Sync + 'static {
    /// HTTP/2, too, for those who begin so (prior knowledge), and upgrades.
    const HTTP2: bool = false;

    /// Answers one request.
    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = Response<Body>> + Send;
}

/// Serves until SIGTERM or SIGINT.
pub(crate) async fn serve<S: Answer>(
    name: &'static str,
    address: SocketAddr,
    service: S,
) -> Result<(), String> {
    let cannot = |e| format!("{name} cannot listen on {address}: {e}");
    let listener = TcpListener::bind(address).await.map_err(cannot)?;
    let actual = listener.local_addr().map_err(cannot)?;
    let signals = |e| format!("{name} cannot wait for signals: {e}");
    let mut terminate = signal(SignalKind::terminate()).map_err(signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(signals)?;
    println!("{name} listens on {actual}");

    let service = Arc::new(service);
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let open = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &slots) => accepted,
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        };
        let (stream, slot) = match accepted {
            Ok(accepted) => accepted,
            Err(e) => {
                // Out of files, mostly: wait for some to be closed rather than spin.
                eprintln!("{name} cannot accept a connection: {e}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let service = Arc::clone(&service);
        let stream = TokioIo::new(stream);
        let answer = service_fn(move |request| {
            let service = Arc::clone(&service);
            async move { Ok::<_, Infallible>(respond(name, &*service, request).await) }
        });
        // A client that goes away mid-message is its own business.
        if S::HTTP2 {
            let mut builder = auto::Builder::new(TokioExecutor::new());
            builder
                .http1()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT);
            builder.http2().timer(TokioTimer::new());
            let connection = builder.serve_connection_with_upgrades(stream, answer);
            let connection = open.watch(connection.into_owned());
            tokio::spawn(async move {
                let _ = connection.await;
                drop(slot);
            });
        } else {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(stream, answer);
            let connection = open.watch(connection);
            tokio::spawn(async move {
                let _ = connection.await;
                drop(slot);
            });
        }
    }
    drop(listener);
    if tokio::time::timeout(DRAIN, open.shutdown()).await.is_err() {
        eprintln!("{name} stops with requests still in flight after {DRAIN:?}");
    }
    println!("{name} has stopped");
    Ok(())
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots)
        .acquire_owned()
        .await
        .map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, slot))
}

async fn respond(
    name: &'static str,
    service: &impl Answer,
    request: Request<Incoming>,
) -> Response<Body> {
    if request.uri().path() == "/health" {
        let health = serde_json::json!({ "service": name, "status": "up" });
        return json(StatusCode::OK, &health);
    }
    let called_by = caller(request.headers()).and_then(|id| HeaderValue::from_str(id).ok());
    let mut response = service.answer(request).await;
    if let Some(id) = called_by {
        response.headers_mut().insert(CALLED_BY, id);
    }
    response
}
