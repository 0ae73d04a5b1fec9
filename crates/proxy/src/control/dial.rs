//! Connections on which this proxy itself speaks gRPC: to its controller, a collector of spans, or an application
//! that is asked about its health. Commands use them to reach the controller.
//!
//! One type for all of them: the code of libraries behind it is compiled anew for each type. One instead of three
//! makes the program 0.13 MB smaller.

use hyper_util::rt::TokioIo;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::codegen::http::Uri;
use tower::util::BoxService;

/// A connection, with TLS or without.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

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
