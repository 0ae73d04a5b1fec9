//! Echo over gRPC, as `proto/echo.proto` says, and the way of a gRPC service into [`crate::server`].

use crate::http::Body;
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::{Request, Response};
use std::convert::Infallible;
use std::pin::Pin;
use tokio_stream::{Stream, StreamExt};
use tonic::{Status, Streaming};
use tower::Service;

#[allow(missing_docs, unreachable_pub, clippy::all)] // generated
pub(crate) mod proto {
    tonic::include_proto!("bookinfo");
}

use proto::Words;
use proto::echo_server::{Echo, EchoServer};

/// The service as tonic calls it.
#[derive(Clone)]
pub(crate) struct Speaker {
    /// How it calls itself in its answers.
    name: String,
}

/// A speaker to be called with [`call`].
pub(crate) fn speaker(name: &str) -> EchoServer<Speaker> {
    EchoServer::new(Speaker { name: name.into() })
}

#[tonic::async_trait]
impl Echo for Speaker {
    async fn say(&self, said: tonic::Request<Words>) -> Result<tonic::Response<Words>, Status> {
        let (name, text) = (self.name.clone(), said.into_inner().text);
        Ok(tonic::Response::new(Words { text, name }))
    }

    type RepeatStream = Pin<Box<dyn Stream<Item = Result<Words, Status>> + Send>>;

    async fn repeat(
        &self,
        said: tonic::Request<Streaming<Words>>,
    ) -> Result<tonic::Response<Self::RepeatStream>, Status> {
        let name = self.name.clone();
        let again = said.into_inner().map(move |words| {
            let (name, text) = (name.clone(), words?.text);
            Ok(Words { text, name })
        });
        Ok(tonic::Response::new(Box::pin(again)))
    }
}

/// Whether a request is a call.
pub(crate) fn is_call(request: &Request<Incoming>) -> bool {
    let kind = request.headers().get(hyper::header::CONTENT_TYPE);
    kind.is_some_and(|k| k.as_bytes().starts_with(b"application/grpc"))
}

/// Has a service that tonic made answer a call.
pub(crate) async fn call<S>(service: &S, request: Request<Incoming>) -> Response<Body>
where
    S: Clone
        + Service<Request<Incoming>, Response = Response<tonic::body::Body>, Error = Infallible>,
{
    let Ok(response) = service.clone().call(request).await;
    response.map(|body| Either::Right(Either::Right(body)))
}
