//! Serves the page of all metrics to a scraper: one target for the whole mesh.

use super::ProxySource;
use super::page::render;
use crate::args::cluster::Within;
use crate::failure::{OrFail, Result};
use crate::output;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;

/// Connections at a time.
const CONNECTIONS: usize = 16;
/// A connection is cut at this age: a scraper makes a new one.
const LIFETIME: Duration = Duration::from_secs(300);

/// Serves until Ctrl-C.
pub(crate) async fn serve_page<S: ProxySource>(
    source: &S,
    within: &Within,
    address: SocketAddr,
) -> Result<()> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.or_fail(|| format!("cannot listen on {address}"))?;
    let address = listener.local_addr();
    let address = address.or_fail(|| "the port is not known".to_owned())?;
    output::line(&format!(
        "http://{address}/metrics has the metrics of {} until Ctrl-C",
        source.mesh()
    ));
    let served = Arc::new(Served {
        source: source.clone(),
        within: within.clone(),
        turn: Mutex::default(),
    });
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut end = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            accepted = accepted => accepted,
            told = &mut end => return told.or_fail(|| "cannot wait for Ctrl-C".to_owned()),
        };
        let Ok((stream, _)) = accepted else {
            // No descriptor is free: one will be.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let served = served.clone();
        tokio::spawn(async move {
            let _place = place;
            // A scraper's mistakes are its own affair.
            let _ = timeout(LIFETIME, served.connection(stream)).await;
        });
    }
}

/// The page of one mesh.
struct Served<S> {
    source: S,
    within: Within,
    /// One page is made at a time: each asks every proxy.
    turn: Mutex<()>,
}

impl<S: ProxySource> Served<S> {
    async fn connection(self: Arc<Self>, stream: TcpStream) -> hyper::Result<()> {
        let service = service_fn(move |request| {
            let served = self.clone();
            async move { Ok::<_, Infallible>(served.answer(request).await) }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(Duration::from_secs(10));
        builder.max_buf_size(16 * 1024);
        builder
            .serve_connection(TokioIo::new(stream), service)
            .await
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        if request.uri().path() != "/metrics" {
            return respond(StatusCode::NOT_FOUND, "GET /metrics\n".to_owned());
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = respond(StatusCode::METHOD_NOT_ALLOWED, String::new());
            let allowed = HeaderValue::from_static("GET, HEAD");
            answer.headers_mut().insert(ALLOW, allowed);
            return answer;
        }
        let _turn = self.turn.lock().await;
        match render(&self.source, &self.within).await {
            Ok((text, _)) => respond(StatusCode::OK, text),
            Err(failure) => respond(StatusCode::SERVICE_UNAVAILABLE, format!("{failure}\n")),
        }
    }
}

fn respond(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let kind = match status {
        StatusCode::OK => "text/plain; version=0.0.4",
        _ => "text/plain; charset=utf-8",
    };
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
