//! Clients outside the mesh: plain HTTP in, mutual TLS on.

use crate::link::Link;
use crate::metrics::Series;
use crate::outbound;
use crate::reason::{Failure, Reason};
use crate::scope::{Decision, Scope};
use crate::worker::{Config, Worker};
use crate::forward_http;
use std::rc::Rc;
use std::sync::Arc;
use tokio::net::TcpStream;
use tulle_http1::RequestHead;
use tulle_net::Buf;

/// A connection to a listener of a gateway.
pub struct GatewayScope {
    gateway: Arc<str>,
    port: u16,
}

/// Serves a client's connection.
pub async fn serve(worker: Rc<Worker>, tcp: TcpStream, gateway: Arc<str>, port: u16) {
    let scope = Scope::Gateway(GatewayScope { gateway, port });
    forward_http::serve(&worker, Link::Tcp(tcp), Buf::new(), &scope).await;
}

impl GatewayScope {
    /// See [`Scope::decide`].
    ///
    /// # Errors
    /// The gateway is gone, or none of its routes matches.
    pub fn decide(
        &self,
        worker: &Worker,
        config: &Config,
        head: &RequestHead,
        bytes: &[u8],
    ) -> Result<Decision, Failure> {
        let gateway = config.snapshot.gateways.get(&*self.gateway).ok_or_else(|| {
            let text = format!("gateway {} is not configured", self.gateway);
            Failure::new(Reason::NotReady, text)
        })?;
        if !gateway.listens_to(self.port, head.authority.of(bytes)) {
            let host = String::from_utf8_lossy(head.authority.of(bytes)).into_owned();
            let text = format!("no listener of Gateway/{} takes host {host:?}", self.gateway);
            return Err(Failure::new(Reason::NoRoute, text));
        }
        outbound::follow(worker, config, &gateway.routes, self.port, head, bytes)
    }

    /// See [`Scope::series`].
    pub fn series(&self, worker: &Worker, config: &Config) -> Rc<Series> {
        outbound::unrouted(worker, config, &"unknown".into())
    }
}
