//! Connections on which this proxy itself speaks gRPC or HTTP: to its controller, a collector of telemetry, or an
//! application that is asked about its health or metrics. Commands use them to reach the controller.
//!
//! One type for all of them: the code of libraries behind it is compiled anew for each type.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::codegen::http::Uri;
use tower::util::BoxService;
use tulle_net::task;

/// Longest wait for an address to answer. At that of a pod that is gone nobody refuses a connection, and a cluster
/// leads there for a moment. What is sent again after a second is led to the same pod, a new connection is not.
const ANSWER: Duration = Duration::from_secs(1);

/// A connection, with TLS or without.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection whose end answers what it is told. If it is `sparing`, an answer carries the acknowledgement of what it
/// answers: the kernel acknowledges by itself what comes after a pause, which is a sixth of what a change costs.
pub struct Answering {
    tcp: TcpStream,
    sparing: bool,
}

impl Answering {
    /// Answers on this connection.
    pub fn new(tcp: TcpStream, sparing: bool) -> Self {
        Self { tcp, sparing }
    }
}

impl AsyncRead for Answering {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(cx, buf)
    }
}

impl AsyncWrite for Answering {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.tcp).poll_write(cx, buf));
        if self.sparing {
            // The kernel forgets it where an answer took longer than its patience (tcp(7), TCP_QUICKACK). It is not needed to work.
            let _ = SockRef::from(&self.tcp).set_tcp_quickack(false);
        }
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

/// Opens connections; it ignores the requested address.
pub type Connector = BoxService<Uri, TokioIo<Box<dyn Stream>>, io::Error>;

/// A connector that opens connections with `connect`.
pub fn connector<F>(mut connect: impl FnMut() -> F + Send + 'static) -> Connector
where
    F: Future<Output = io::Result<Box<dyn Stream>>> + Send + 'static,
{
    BoxService::new(tower::service_fn(move |_: Uri| {
        let connecting = connect();
        async move { connecting.await.map(TokioIo::new) }
    }))
}

/// Sends one request by HTTP/1.1. The connection ends when the answer has been read or dropped.
///
/// # Errors
/// There is no answer.
pub async fn ask(
    stream: Box<dyn Stream>,
    request: Request<Full<Bytes>>,
) -> hyper::Result<Response<Incoming>> {
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await?;
    task::start(async move { drop(connection.await) });
    sender.send_request(request).await
}

/// Connects to the first address of this name that answers. A name is resolved anew for each connection.
///
/// # Errors
/// None answers; the last error.
pub async fn tcp(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in tokio::net::lookup_host(address).await? {
        last = match timeout(ANSWER, TcpStream::connect(address)).await {
            Ok(Ok(tcp)) => return Ok(tcp),
            Ok(Err(error)) => error,
            Err(_) => io::Error::new(
                io::ErrorKind::HostUnreachable,
                format!("{address} does not answer"),
            ),
        };
    }
    Err(last)
}

/// Whether a connection could not be made because nobody listens there, or nobody answers.
pub fn is_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable};
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return matches!(error.kind(), ConnectionRefused | HostUnreachable);
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::transport::Endpoint;

    /// Whether a failure counts as a refusal below all that gRPC's library says about it.
    async fn is_refused_with<F>(connect: impl FnMut() -> F + Send + 'static) -> bool
    where
        F: Future<Output = io::Result<Box<dyn Stream>>> + Send + 'static,
    {
        let endpoint = Endpoint::from_static("http://controller");
        let connected = endpoint.connect_with_connector(connector(connect)).await;
        is_refused(&connected.unwrap_err())
    }

    #[tokio::test]
    async fn a_controller_that_nobody_is_differs_from_one_that_does_not_serve() {
        // The first port has no listener.
        let nobody = || async { Ok(Box::new(tcp("127.0.0.1:1").await?) as Box<dyn Stream>) };
        assert!(is_refused_with(nobody).await);
        let busy = || async { Err(io::ErrorKind::ConnectionReset.into()) };
        assert!(!is_refused_with(busy).await);
    }
}
