//! Where a connection came in, which determines how its requests are decided.

use crate::balance::{self, Port, Steer};
use crate::config::retry;
use crate::filter::Filters;
use crate::filter::ext_authz::Asker;
use crate::serve::egress::EgressScope;
use crate::serve::gateway::GatewayScope;
use crate::serve::inbound::InboundScope;
use crate::serve::outbound::OutboundScope;
use crate::telemetry::metrics::Series;
use crate::telemetry::reason::Failure;
use crate::upstream::{Speaks, Upstream};
use crate::worker::{Config, Worker};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;
use tulle_http1::RequestHead;
use tulle_model::resource::Affinity;

/// The side of the proxy a connection belongs to.
#[derive(Clone)]
pub enum Scope {
    /// A connection from the application to a service.
    Outbound(OutboundScope),
    /// A connection from a client outside the mesh to a gateway.
    Gateway(GatewayScope),
    /// A connection from the application to an address outside the mesh.
    Egress(EgressScope),
    /// A connection from a peer to the application.
    Inbound(Rc<InboundScope>),
}

/// A request to be decided about.
pub struct Asks<'a> {
    /// Its head, as offsets into `bytes`.
    pub head: &'a RequestHead,
    /// The head as it came.
    pub bytes: &'a [u8],
    /// The head as it will be forwarded: header conditions apply to it.
    pub forwarded: &'a [u8],
}

/// The target of a request, and how it is treated and counted.
pub struct Decision {
    /// The target.
    pub target: Target,
    /// Its counters.
    pub series: Rc<Series>,
    /// Timeout from the request's end to the response's head in milliseconds; 0: none.
    pub timeout_ms: u32,
    /// Filters that run first.
    pub filters: Option<Arc<Filters>>,
    /// Retry policy.
    pub retry: Option<Arc<retry::Policy>>,
    /// Timeout of each try in milliseconds; 0: none.
    pub try_timeout_ms: u32,
    /// Length of the path's prefix that the route has matched.
    pub matched: usize,
    /// The endpoint it prefers.
    pub steer: Steer,
    /// Session affinity, by which the response names the endpoint to the client.
    pub affinity: Option<Arc<Affinity>>,
}

/// Target of a request.
pub enum Target {
    /// One of a service's endpoints.
    Service(Rc<Port>),
    /// The application behind this proxy.
    App(Rc<Upstream>),
    /// No backend: the route's rule names none, or none has a weight. A filter may answer.
    Nobody {
        /// Backends that the rule names.
        backends: usize,
    },
    /// An address outside the mesh.
    Outside(Rc<Upstream>),
}

impl Decision {
    /// Sets the endpoint that the request prefers, if configured. `head` is the forwarded one.
    pub fn aim(&mut self, head: &[u8], scope: &Scope) {
        if let Target::Service(port) = &self.target
            && (port.is_hashed() || self.affinity.is_some())
        {
            self.steer = port.steer(self.affinity.as_deref(), head, scope.source());
        }
    }

    /// Returns the endpoint if there can be only one.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.target {
            Target::App(upstream) | Target::Outside(upstream) => Some(upstream.key.address),
            Target::Service(_) | Target::Nobody { .. } => None,
        }
    }
}

impl Scope {
    /// Decides about a request on the very bytes that will be forwarded.
    ///
    /// # Errors
    /// The request is refused.
    pub fn decide(
        &self,
        worker: &Worker,
        config: &Config,
        asks: &Asks<'_>,
    ) -> Result<Decision, Failure> {
        match self {
            Self::Outbound(scope) => scope.decide(worker, config, asks),
            Self::Gateway(scope) => scope.decide(worker, config, asks),
            Self::Egress(scope) => scope.decide(worker, config, asks),
            Self::Inbound(scope) => scope.decide(worker, config, asks),
        }
    }

    /// Returns the names of audit rules that match this request, for the access log.
    pub fn audited(&self, worker: &Worker, config: &Config, asks: &Asks<'_>) -> String {
        match self {
            Self::Inbound(scope) => scope.audited(worker, config, asks),
            Self::Gateway(scope) => scope.audited(config, asks),
            Self::Outbound(_) | Self::Egress(_) => String::new(),
        }
    }

    /// Whether its clients are outside the mesh.
    pub fn is_gateway(&self) -> bool {
        matches!(self, Self::Gateway(_))
    }

    /// Returns scheme and port as the client sees them.
    pub fn entry(&self) -> (&'static str, u16) {
        match self {
            Self::Outbound(scope) => ("http", scope.number()),
            Self::Gateway(scope) => scope.entry(),
            Self::Egress(scope) => ("http", scope.number()),
            Self::Inbound(scope) => ("http", scope.number()),
        }
    }

    /// Returns the protocol of the application that clients of this connection expect.
    pub fn speaks(&self, worker: &Worker) -> Speaks {
        let config = worker.config();
        match self {
            Self::Outbound(scope) => scope.speaks(worker, &config),
            Self::Inbound(scope) => scope.speaks(&config),
            Self::Gateway(_) | Self::Egress(_) => Speaks::AsCame,
        }
    }

    /// Describes the client to an external authorization service.
    pub fn asker(&self, config: &Config) -> Asker {
        let own = || config.snapshot.identity.to_string();
        match self {
            Self::Outbound(_) | Self::Egress(_) => Asker {
                identity: Some(own()),
                address: None,
                destination: String::new(),
            },
            Self::Gateway(scope) => Asker {
                identity: None,
                address: scope.client_address(),
                destination: own(),
            },
            Self::Inbound(scope) => scope.asker(own()),
        }
    }

    /// Returns the counters for failures before there is a decision.
    pub fn series(&self, worker: &Worker, config: &Config) -> Rc<Series> {
        match self {
            Self::Outbound(scope) => scope.series(worker, config),
            Self::Gateway(scope) => scope.series(worker, config),
            Self::Egress(scope) => scope.series(worker, config),
            Self::Inbound(scope) => scope.series(worker, config, false),
        }
    }

    /// Returns the certificate header for the application.
    pub fn forwarded_client_cert(&self) -> Option<&[u8]> {
        match self {
            Self::Inbound(scope) => scope.forwarded_client_cert(),
            Self::Gateway(scope) => scope.forwarded_client_cert(),
            Self::Outbound(_) | Self::Egress(_) => None,
        }
    }

    /// Fields that only filters set here, from the claims of tokens: a client's own are forged.
    pub fn claim_headers<'c>(&self, config: &'c Config) -> &'c [String] {
        match self {
            Self::Inbound(scope) => scope.claim_headers(config),
            Self::Gateway(scope) => scope.claim_headers(config),
            Self::Outbound(_) | Self::Egress(_) => &[],
        }
    }

    /// Returns the scheme of a client outside the mesh, `http` or `https`. It is set anew with the
    /// host, since the client's own fields about it are not trusted.
    pub fn forwarded_scheme(&self) -> Option<&'static [u8]> {
        match self {
            Self::Gateway(scope) => Some(scope.scheme()),
            Self::Outbound(_) | Self::Egress(_) | Self::Inbound(_) => None,
        }
    }

    /// Returns the client's address, to be appended to the addresses in the request.
    pub fn forwarded_for(&self) -> Option<&[u8]> {
        match self {
            Self::Gateway(scope) => Some(scope.client()),
            Self::Inbound(scope) => scope.forwarded_for(),
            Self::Outbound(_) | Self::Egress(_) => None,
        }
    }

    /// Returns the client's address, as far as it is known; for a sidecar's connection the
    /// sidecar's.
    pub fn client(&self) -> Option<IpAddr> {
        match self {
            Self::Gateway(scope) => scope.client_address(),
            Self::Inbound(scope) => scope.client_address(),
            Self::Outbound(_) | Self::Egress(_) => None,
        }
    }

    /// Returns the hash of the caller: a client by its address, a workload by its own identity.
    fn source(&self) -> u64 {
        match self {
            Self::Gateway(scope) => balance::hash_of_client(scope.client_address()),
            Self::Outbound(_) | Self::Inbound(_) | Self::Egress(_) => balance::hash_of_client(None),
        }
    }

    /// Returns when the certificate of the client, a peer of the mesh, expires.
    pub fn peer_not_after(&self) -> Option<SystemTime> {
        match self {
            Self::Inbound(scope) => scope.peer_not_after(),
            Self::Outbound(_) | Self::Egress(_) | Self::Gateway(_) => None,
        }
    }

    /// Whether the peer should come back on a new connection, because certificates have changed.
    pub fn is_outdated(&self, config: &Config) -> bool {
        match self {
            Self::Inbound(scope) => scope.is_outdated(config),
            Self::Outbound(_) | Self::Egress(_) | Self::Gateway(_) => false,
        }
    }
}
