//! Clients outside the mesh: HTTP, TLS or TCP in, mutual TLS on.

use crate::gateway_listener::Gateway;
use crate::link::Link;
use crate::metrics::Series;
use crate::proxied;
use crate::reason::{Failure, Reason};
use crate::scope::{Asks, Decision, Scope};
use crate::worker::{Config, Worker};
use crate::{connection_route, forward_http, gateway_tls, outbound, route};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use tokio::net::TcpStream;
use tulle_model::resource::ListenerProtocol;
use tulle_net::{Buf, socket};

/// A connection to a listener of a gateway.
#[derive(Clone)]
pub struct GatewayScope {
    gateway: Arc<str>,
    port: u16,
    client: Box<[u8]>,
    /// Its TLS has ended here.
    terminated: Option<Box<Terminated>>,
}

/// What is known from a client's TLS.
#[derive(Clone)]
pub struct Terminated {
    /// The listener that its server name has chosen.
    pub listener: Arc<str>,
    /// What the application is told of its certificate, if that is a good one.
    pub certificate: Option<Box<[u8]>>,
}

/// Serves a client's connection.
pub fn serve(
    worker: Rc<Worker>,
    tcp: TcpStream,
    gateway: Arc<str>,
    port: u16,
) -> impl Future<Output = ()> {
    let known = worker.config().snapshot.gateways.get(&*gateway).cloned();
    // A gateway that is not known says so to each request.
    let plain = known.is_none_or(|g| g.is_plain(port));
    let client = tcp.peer_addr().map(|a| socket::canonical(a).ip());
    // A client that is gone already will not be served either.
    let client = client.map(|ip| ip.to_string()).unwrap_or_default();
    let scope = Scope::Gateway(GatewayScope::new(gateway, port, client));
    let link = Link::Tcp(tcp);
    // A block: see `outbound::serve`.
    async move {
        if plain {
            return forward_http::serve(&worker, link, Buf::new(), &scope).await;
        }
        if let Scope::Gateway(scope) = scope {
            // Boxed, or every plain connection would have room for it.
            Box::pin(serve_listener(worker, link, scope)).await;
        }
    }
}

/// A connection to a listener that takes something else than plain HTTP, or has a load balancer
/// before it.
async fn serve_listener(worker: Rc<Worker>, mut link: Link, mut scope: GatewayScope) {
    let mut received = Buf::new();
    let known = worker
        .config()
        .snapshot
        .gateways
        .get(&*scope.gateway)
        .cloned();
    if known.is_some_and(|g| g.is_proxied(scope.port)) {
        match proxied::receive(&worker, &mut link, &mut received).await {
            // A load balancer that looks whether we are there is its own client.
            Ok(None) => {}
            Ok(Some(client)) => scope.client = client.ip().to_string().into_bytes().into(),
            Err(failure) => {
                let from = String::from_utf8_lossy(&scope.client);
                worker.failed(Some(&from), &scope.gateway, b"", 0, &failure);
                return link.abort();
            }
        }
    }
    serve_opened(worker, link, received, scope).await;
}

/// What a listener takes decides how a connection goes on.
async fn serve_opened(worker: Rc<Worker>, link: Link, received: Buf, scope: GatewayScope) {
    let config = worker.config();
    let port = scope.port;
    let known = config.snapshot.gateways.get(&*scope.gateway).cloned();
    let protocol = known.as_ref().and_then(|g| g.protocol(port));
    match (protocol, known) {
        (Some(ListenerProtocol::Https | ListenerProtocol::Tls), Some(gateway)) => {
            gateway_tls::serve(&worker, link, received, config, gateway, scope).await;
        }
        (Some(ListenerProtocol::Tcp), Some(gateway)) => {
            let chosen = match gateway.connections.by_port(port) {
                Some(targets) => targets.pick(&worker, &config, port),
                None => Err(gateway_tls::no_tcp_route(&gateway, port)),
            };
            drop((config, gateway));
            let client = scope.client_address();
            connection_route::forward(&worker, link, received, chosen, client).await;
        }
        (_, known) => {
            drop((config, known));
            let scope = Scope::Gateway(scope);
            forward_http::serve(&worker, link, received, &scope).await;
        }
    }
}

impl GatewayScope {
    fn new(gateway: Arc<str>, port: u16, client: String) -> Self {
        Self {
            gateway,
            port,
            client: client.into_bytes().into_boxed_slice(),
            terminated: None,
        }
    }

    /// See [`Scope::decide`].
    ///
    /// # Errors
    /// The gateway is gone, the request is not for this listener, or no route matches.
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
        let listener = self.check_host(gateway, authority)?;
        let entrance = route::Entrance {
            port: self.port,
            listener,
        };
        match outbound::find(&gateway.routes, entrance, asks)? {
            Some(found) => outbound::follow(worker, config, &found, ""),
            None => Err(outbound::unmatched(asks)),
        }
    }

    /// See [`Scope::entry`].
    pub fn entry(&self) -> (&'static str, u16) {
        let scheme = if self.terminated.is_some() {
            "https"
        } else {
            "http"
        };
        (scheme, self.port)
    }

    /// A request must be for a host of the listener it came in by: what that listener asks of
    /// clients, such as a certificate, must not be passed by asking another one for the host. The
    /// listener's name.
    fn check_host<'a>(&self, gateway: &'a Gateway, authority: &[u8]) -> Result<&'a str, Failure> {
        let listener = gateway.listener(self.port, authority);
        let refused = |reason, what: String| {
            let host = String::from_utf8_lossy(authority);
            Err(Failure::new(
                reason,
                format!("{what} Gateway/{} takes host {host:?}", self.gateway),
            ))
        };
        match (&self.terminated, listener) {
            (None, Some(listener)) => Ok(&*listener.name),
            (Some(tls), Some(listener)) if listener.name == tls.listener => Ok(&*listener.name),
            (Some(tls), Some(listener)) => refused(
                Reason::Misdirected,
                format!(
                    "the TLS connection is to listener {}, but listener {} of",
                    tls.listener, listener.name
                ),
            ),
            (Some(_), None) => refused(Reason::Misdirected, "no listener of".into()),
            (None, None) => refused(Reason::NoRoute, "no listener of".into()),
        }
    }

    /// Its TLS has ended here.
    pub fn terminated(&mut self, tls: Terminated) {
        self.terminated = Some(Box::new(tls));
    }

    /// The port it came to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The client's address.
    pub fn client(&self) -> &[u8] {
        &self.client
    }

    /// The same as an address.
    pub fn client_address(&self) -> Option<IpAddr> {
        std::str::from_utf8(&self.client).ok()?.parse().ok()
    }

    /// The client's address for people.
    pub fn client_text(&self) -> String {
        String::from_utf8_lossy(&self.client).into_owned()
    }

    /// How the client came.
    pub fn scheme(&self) -> &'static [u8] {
        if self.terminated.is_some() {
            b"https"
        } else {
            b"http"
        }
    }

    /// See [`Scope::forwarded_client_cert`].
    pub fn forwarded_client_cert(&self) -> Option<&[u8]> {
        self.terminated.as_ref()?.certificate.as_deref()
    }

    /// See [`Scope::series`].
    pub fn series(&self, worker: &Worker, config: &Config) -> Rc<Series> {
        outbound::unrouted(worker, config, &"unknown".into())
    }
}
