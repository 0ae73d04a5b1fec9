//! Decides where requests go. The entrance by which their connection came determines how.

pub(crate) mod between;
pub(crate) mod egress;
pub(crate) mod gateway;
pub(crate) mod inbound;
pub(crate) mod outbound;
pub(crate) mod request;

use crate::balance;
use crate::filter::ext_authz::Asker;
use crate::telemetry::metrics::RequestSeries;
use crate::telemetry::reason::Failure;
use crate::upstream::HttpVersion;
use crate::worker::{Worker, WorkerConfig};
use egress::EgressContext;
use gateway::GatewayContext;
use inbound::InboundContext;
use outbound::OutboundContext;
use request::{Decision, RequestView};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::SystemTime;

/// The side of the proxy a connection belongs to.
#[derive(Clone)]
pub enum ConnectionContext {
    /// A connection from the application to a service.
    Outbound(OutboundContext),
    /// A connection from a client outside the mesh to a gateway.
    Gateway(GatewayContext),
    /// A connection from the application to an address outside the mesh.
    Egress(EgressContext),
    /// A connection from a peer to the application.
    Inbound(Rc<InboundContext>),
}

impl ConnectionContext {
    /// Decides about a request on the very bytes that will be forwarded.
    ///
    /// # Errors
    /// The request is refused.
    pub fn decide(
        &self,
        worker: &Worker,
        config: &WorkerConfig,
        view: &RequestView<'_>,
    ) -> Result<Decision, Failure> {
        let mut decision = match self {
            Self::Outbound(scope) => scope.decide(worker, config, view),
            Self::Gateway(scope) => scope.decide(worker, config, view),
            Self::Egress(scope) => scope.decide(worker, config, view),
            Self::Inbound(scope) => scope.decide(worker, config, view),
        }?;
        if decision
            .retry
            .as_ref()
            .is_some_and(|retry| !retry.is_for(&view.values()))
        {
            decision.retry = None;
        }
        Ok(decision)
    }

    /// Decides anew for the backend that a plugin has chosen.
    ///
    /// # Errors
    /// The backend does not exist.
    #[cfg(feature = "plugins")]
    pub fn choose(
        &self,
        worker: &Worker,
        config: &WorkerConfig,
        decision: &Decision,
        place: usize,
    ) -> Result<Option<Decision>, Failure> {
        let attached = match self {
            Self::Outbound(scope) => scope.destination(worker, config),
            Self::Gateway(_) | Self::Egress(_) | Self::Inbound(_) => None,
        };
        outbound::choose(worker, config, decision, place, attached.as_ref())
    }

    /// Returns the names of audit rules that match this request, for the access log.
    pub fn audited(
        &self,
        worker: &Worker,
        config: &WorkerConfig,
        view: &RequestView<'_>,
    ) -> String {
        match self {
            Self::Inbound(scope) => scope.audited(worker, config, view),
            Self::Gateway(scope) => scope.audited(config, view),
            Self::Outbound(_) | Self::Egress(_) => String::new(),
        }
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
    pub fn http_version(&self, worker: &Worker) -> HttpVersion {
        let config = worker.config();
        match self {
            Self::Outbound(scope) => scope.http_version(worker, &config),
            Self::Inbound(scope) => scope.http_version(&config),
            Self::Gateway(_) | Self::Egress(_) => HttpVersion::AsCame,
        }
    }

    /// Describes the client to an external authorization service.
    pub fn asker(&self, config: &WorkerConfig) -> Asker {
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
    pub fn series(&self, worker: &Worker, config: &WorkerConfig) -> Rc<RequestSeries> {
        match self {
            Self::Outbound(scope) => scope.series(worker, config),
            Self::Gateway(scope) => scope.series(worker, config),
            Self::Egress(scope) => scope.series(worker, config),
            Self::Inbound(scope) => scope.series(worker, config, false),
        }
    }

    /// Returns the server name in the client's TLS, for the access log.
    pub fn server_name(&self) -> Option<&str> {
        match self {
            Self::Gateway(scope) => scope.server_name(),
            Self::Outbound(_) | Self::Egress(_) | Self::Inbound(_) => None,
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
    pub fn claim_headers<'c>(&self, config: &'c WorkerConfig) -> &'c [String] {
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
    pub fn source(&self) -> u64 {
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
    pub fn is_outdated(&self, config: &WorkerConfig) -> bool {
        match self {
            Self::Inbound(scope) => scope.is_outdated(config),
            Self::Outbound(_) | Self::Egress(_) | Self::Gateway(_) => false,
        }
    }
}
