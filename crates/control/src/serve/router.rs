//! Finds the service of a request by its path. A peer that may not use a service at all is turned
//! away before any of the request's body is read.

use super::certificates::CertificateService;
use super::config::ConfigService;
use super::objects::{self, ObjectsService};
use super::peer::Peer;
use super::telemetry::TelemetryService;
use crate::state::MeshState;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;
use tulle_api::v1::certificates_server::CertificatesServer;
use tulle_api::v1::config_server::ConfigServer;
use tulle_api::v1::objects_server::ObjectsServer;
use tulle_api::v1::telemetry_server::TelemetryServer;

/// A signing request and a token.
const MAX_SIGN_BYTES: usize = 32 * 1024;
/// The longest subscription: 20,000 names, each twice (known versions).
const MAX_SUBSCRIBE_BYTES: usize = 4 * 1024 * 1024;
/// A report of a proxy, or a part of an answer.
const MAX_REPORT_BYTES: usize = 64 * 1024;
/// A whole mesh applied at once.
const MAX_LOCAL_BYTES: usize = 128 * 1024 * 1024;
/// A host's workloads applied at once.
const MAX_REMOTE_BYTES: usize = 4 * 1024 * 1024;

#[derive(Clone)]
pub(crate) struct Router {
    state: Arc<MeshState>,
    certificates: CertificatesServer<CertificateService>,
    config: ConfigServer<ConfigService>,
    telemetry: TelemetryServer<TelemetryService>,
    local: ObjectsServer<ObjectsService>,
    remote: ObjectsServer<ObjectsService>,
}

impl Router {
    pub(crate) fn new(state: &Arc<MeshState>, shutdown: &watch::Receiver<bool>) -> Self {
        let certificates = CertificatesServer::new(CertificateService::new(state.clone()));
        let config = ConfigServer::new(ConfigService::new(state, shutdown));
        let telemetry = TelemetryServer::new(TelemetryService::new(state, shutdown));
        let objects = ObjectsServer::new(ObjectsService::new(state.clone(), shutdown.clone()));
        Self {
            state: state.clone(),
            certificates: certificates.max_decoding_message_size(MAX_SIGN_BYTES),
            config: config.max_decoding_message_size(MAX_SUBSCRIBE_BYTES),
            telemetry: telemetry.max_decoding_message_size(MAX_REPORT_BYTES),
            local: objects
                .clone()
                .max_decoding_message_size(MAX_LOCAL_BYTES)
                .max_encoding_message_size(MAX_LOCAL_BYTES),
            remote: objects.max_decoding_message_size(MAX_REMOTE_BYTES),
        }
    }
}

impl Service<http::Request<Body>> for Router {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = request.uri().path().split('/').nth(1).unwrap_or_default();
        if service == CertificatesServer::<CertificateService>::NAME {
            return self.certificates.call(request);
        }
        if service == ConfigServer::<ConfigService>::NAME {
            return self.config.call(request);
        }
        if service == TelemetryServer::<TelemetryService>::NAME && self.state.reports.are_wanted() {
            return self.telemetry.call(request);
        }
        if service != ObjectsServer::<ObjectsService>::NAME {
            return refuse(Status::unimplemented("no such service"));
        }
        match request.extensions().get::<Arc<Peer>>().map(|p| &**p) {
            Some(Peer::Operator) => self.local.call(request),
            Some(peer) => match objects::actor(peer, &self.state) {
                Ok(_) => self.remote.call(request),
                Err(status) => refuse(status),
            },
            None => refuse(Status::internal("the connection has no peer")),
        }
    }
}

fn refuse(status: Status) -> BoxFuture<http::Response<Body>, Infallible> {
    Box::pin(async move { Ok(status.into_http()) })
}
