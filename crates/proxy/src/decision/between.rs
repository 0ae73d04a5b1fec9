//! Caller and destination of a request, as expressions ask for them.

use super::ConnectionContext;
use super::egress::EgressContext;
use super::gateway::GatewayContext;
use super::inbound::InboundContext;
use super::outbound::OutboundContext;
use crate::codec::request_values::Parties;
use crate::worker::WorkerConfig;
use std::net::IpAddr;
use tulle_model::identity::SpiffeId;

/// A connection and the configuration that its requests are judged by. Nothing is looked up before an expression asks.
pub struct Between<'a> {
    by: By<'a>,
    config: &'a WorkerConfig,
}

enum By<'a> {
    Outbound(&'a OutboundContext),
    Gateway(&'a GatewayContext),
    Egress(&'a EgressContext),
    Inbound(&'a InboundContext),
}

impl<'a> Between<'a> {
    /// The parties of a connection.
    pub fn new(context: &'a ConnectionContext, config: &'a WorkerConfig) -> Self {
        let by = match context {
            ConnectionContext::Outbound(scope) => By::Outbound(scope),
            ConnectionContext::Gateway(scope) => By::Gateway(scope),
            ConnectionContext::Egress(scope) => By::Egress(scope),
            ConnectionContext::Inbound(scope) => By::Inbound(scope),
        };
        Self { by, config }
    }

    /// The parties of a connection from a peer.
    pub fn inbound(context: &'a InboundContext, config: &'a WorkerConfig) -> Self {
        let by = By::Inbound(context);
        Self { by, config }
    }
}

impl Parties for Between<'_> {
    fn source(&self) -> Option<&SpiffeId> {
        match self.by {
            By::Outbound(_) | By::Egress(_) => Some(&self.config.snapshot.identity),
            By::Inbound(scope) => scope.peer(),
            // No client of a gateway has an identity of the mesh.
            By::Gateway(_) => None,
        }
    }

    fn address(&self) -> Option<IpAddr> {
        match self.by {
            By::Gateway(scope) => scope.client_address(),
            By::Inbound(scope) => scope.client_address(),
            By::Outbound(_) | By::Egress(_) => None,
        }
    }

    fn destination(&self) -> Option<&SpiffeId> {
        match self.by {
            By::Outbound(_) | By::Egress(_) => None,
            By::Inbound(_) | By::Gateway(_) => Some(&self.config.snapshot.identity),
        }
    }

    fn service(&self) -> &str {
        match self.by {
            By::Outbound(scope) => scope.service(),
            By::Inbound(_) => {
                let inbound = self.config.snapshot.inbound.as_ref();
                inbound.map_or("", |i| &i.service)
            }
            By::Gateway(scope) => scope.gateway(),
            By::Egress(_) => "",
        }
    }

    fn port(&self) -> u16 {
        match self.by {
            By::Outbound(scope) => scope.number(),
            By::Inbound(scope) => scope.policy_port(self.config),
            By::Gateway(scope) => scope.port(),
            By::Egress(scope) => scope.number(),
        }
    }
}
