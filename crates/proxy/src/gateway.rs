//! Clients outside the mesh: plain HTTP in, mutual TLS on.

use crate::forward_http;
use crate::link::Link;
use crate::metrics::Series;
use crate::outbound;
use crate::proxied;
use crate::reason::{Failure, Reason};
use crate::scope::{Asks, Decision, Scope};
use crate::worker::{Config, Worker};
use std::rc::Rc;
use std::sync::Arc;
use tokio::net::TcpStream;
use tulle_net::{Buf, socket};

/// A connection to a listener of a gateway.
pub struct GatewayScope {
    gateway: Arc<str>,
    port: u16,
    client: Box<[u8]>,
}

/// Serves a client's connection.
pub async fn serve(worker: Rc<Worker>, tcp: TcpStream, gateway: Arc<str>, port: u16) {
    let client = tcp.peer_addr().map(|a| socket::canonical(a).ip());
    let known = worker.config().snapshot.gateways.get(&*gateway).cloned();
    if known.is_some_and(|g| g.is_proxied(port)) {
        return Box::pin(serve_proxied(worker, tcp, gateway, port)).await;
    }
    // A client that is gone already will not be served either.
    let client = client.map(|ip| ip.to_string()).unwrap_or_default();
    let scope = GatewayScope::scope(gateway, port, client);
    forward_http::serve(&worker, Link::Tcp(tcp), Buf::new(), &scope).await;
}

/// A connection that a load balancer has made for its client.
async fn serve_proxied(worker: Rc<Worker>, tcp: TcpStream, gateway: Arc<str>, port: u16) {
    let peer = tcp.peer_addr().map(socket::canonical);
    let (mut link, mut received) = (Link::Tcp(tcp), Buf::new());
    let named = match proxied::receive(&worker, &mut link, &mut received).await {
        Ok(named) => named,
        Err(failure) => {
            let from = peer.map(|p| p.to_string()).ok();
            worker.failed(from.as_deref(), &gateway, b"", 0, &failure);
            return link.abort();
        }
    };
    // A load balancer that looks whether we are there is its own client.
    let client = named.or(peer.ok()).map(|c| c.ip().to_string());
    let scope = GatewayScope::scope(gateway, port, client.unwrap_or_default());
    forward_http::serve(&worker, link, received, &scope).await;
}

impl GatewayScope {
    fn scope(gateway: Arc<str>, port: u16, client: String) -> Scope {
        Scope::Gateway(Self {
            gateway,
            port,
            client: client.into_bytes().into_boxed_slice(),
        })
    }

    /// See [`Scope::decide`].
    ///
    /// # Errors
    /// The gateway is gone, or none of its routes matches.
    pub fn decide(
        &self,
        worker: &Worker,
        config: &Config,
        asks: &Asks<'_>,
    ) -> Result<Decision, Failure> {
        let gateway = config
            .snapshot
            .gateways
            .get(&*self.gateway)
            .ok_or_else(|| {
                let text = format!("gateway {} is not configured", self.gateway);
                Failure::new(Reason::NotReady, text)
            })?;
        let authority = asks.head.authority.of(asks.bytes);
        if !gateway.listens_to(self.port, authority) {
            let host = String::from_utf8_lossy(authority);
            let text = format!(
                "no listener of Gateway/{} takes host {host:?}",
                self.gateway
            );
            return Err(Failure::new(Reason::NoRoute, text));
        }
        outbound::follow(worker, config, &gateway.routes, self.port, asks)
    }

    /// The client's address.
    pub fn client(&self) -> &[u8] {
        &self.client
    }

    /// See [`Scope::series`].
    pub fn series(&self, worker: &Worker, config: &Config) -> Rc<Series> {
        outbound::unrouted(worker, config, &"unknown".into())
    }
}
