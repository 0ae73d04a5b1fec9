//! Where a connection came in, which says who decides about its requests.

use crate::balance::Port;
use crate::gateway::GatewayScope;
use crate::inbound::InboundScope;
use crate::metrics::Series;
use crate::outbound::OutboundScope;
use crate::reason::Failure;
use crate::upstream::Upstream;
use crate::worker::{Config, Worker};
use std::net::SocketAddr;
use std::rc::Rc;
use tulle_http1::RequestHead;

/// The side of the proxy a connection belongs to.
pub enum Scope {
    /// From the application to a service.
    Outbound(OutboundScope),
    /// From a client outside the mesh to a gateway.
    Gateway(GatewayScope),
    /// From a peer to the application.
    Inbound(Rc<InboundScope>),
}

/// Where a request goes and how it is counted.
pub struct Decision {
    /// Where to.
    pub target: Target,
    /// How it is counted.
    pub series: Rc<Series>,
    /// From the request's end to the response's head; 0: none.
    pub timeout_ms: u32,
}

/// Where a request goes.
pub enum Target {
    /// One of a service's endpoints.
    Service(Rc<Port>),
    /// The application behind this proxy.
    App(Rc<Upstream>),
}

impl Decision {
    /// The endpoint, when there is only one it can be.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.target {
            Target::App(upstream) => Some(upstream.key.address),
            Target::Service(_) => None,
        }
    }
}

impl Scope {
    /// Decides about a request by its head, on the very bytes that will be forwarded.
    ///
    /// # Errors
    /// The request is not to be forwarded.
    pub fn decide(
        &self,
        worker: &Worker,
        config: &Config,
        head: &RequestHead,
        bytes: &[u8],
    ) -> Result<Decision, Failure> {
        match self {
            Self::Outbound(scope) => scope.decide(worker, config, head, bytes),
            Self::Gateway(scope) => scope.decide(worker, config, head, bytes),
            Self::Inbound(scope) => scope.decide(worker, config, head, bytes),
        }
    }

    /// Counts what goes wrong before there is a decision.
    pub fn series(&self, worker: &Worker, config: &Config) -> Rc<Series> {
        match self {
            Self::Outbound(scope) => scope.series(worker, config),
            Self::Gateway(scope) => scope.series(worker, config),
            Self::Inbound(scope) => scope.series(worker, config, false),
        }
    }

    /// What the application is told about the caller.
    pub fn forwarded_client_cert(&self) -> Option<&[u8]> {
        match self {
            Self::Inbound(scope) => scope.forwarded_client_cert(),
            Self::Outbound(_) | Self::Gateway(_) => None,
        }
    }
}
