//! Gateways: clients outside the mesh come in by HTTP, TLS or TCP; mutual TLS leads on.

use crate::balance::Port;
use crate::config::connection_route;
use crate::config::gateway_guard;
use crate::config::gateway_listener::{Gateway, Listener};
use crate::config::route;
use crate::decision::{Asks, Decision, Scope};
use crate::http::exchange;
use crate::serve::gateway_tls;
use crate::serve::inbound;
use crate::serve::outbound;
use crate::serve::proxied;
use crate::tcp::forward::{self, Opaque};
use crate::telemetry::metrics::Series;
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::link::Link;
use crate::worker::{Config, Worker};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use tokio::net::TcpStream;
use tulle_http1::Method;
use tulle_model::resource::ListenerProtocol;
use tulle_net::{Buf, socket};

/// A connection to a listener of a gateway.
#[derive(Clone)]
pub struct GatewayScope {
    gateway: Arc<str>,
    port: u16,
    client: Box<[u8]>,
    /// Set if this gateway terminated the client's TLS.
    terminated: Option<Box<Terminated>>,
}

/// Facts from a client's TLS.
#[derive(Clone)]
pub struct Terminated {
    /// The listener that its server name has chosen.
    pub listener: Arc<str>,
    /// The client's certificate as the application is told it, if it is valid.
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
    // A gateway that is not known yet answers each request with that reason.
    let plain = known.is_none_or(|g| g.is_plain(port));
    let client = tcp.peer_addr().map(|a| socket::canonical(a).ip());
    // A client that has already gone will not be served either.
    let client = client.map(|ip| ip.to_string()).unwrap_or_default();
    let scope = Scope::Gateway(GatewayScope::new(gateway, port, client));
    let link = Link::Tcp(tcp);
    // A block: see `outbound::serve`.
    async move {
        if plain {
            return exchange::serve(&worker, link, Buf::new(), &scope).await;
        }
        if let Scope::Gateway(scope) = scope {
            // Boxed, or every plain connection would have room for it.
            Box::pin(serve_listener(worker, link, scope)).await;
        }
    }
}

/// Serves a connection to a listener that is not plain HTTP, or has a load balancer in front.
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
            // A load balancer that checks our health is its own client.
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

/// Serves a connection as the protocol of its listener demands.
async fn serve_opened(worker: Rc<Worker>, mut link: Link, received: Buf, scope: GatewayScope) {
    let config = worker.config();
    let port = scope.port;
    let known = config.snapshot.gateways.get(&*scope.gateway).cloned();
    let protocol = known.as_ref().and_then(|g| g.protocol(port));
    match (protocol, known) {
        (Some(ListenerProtocol::Https | ListenerProtocol::Tls), Some(gateway)) => {
            gateway_tls::serve(&worker, link, received, config, gateway, scope).await;
        }
        (Some(ListenerProtocol::Tcp), Some(gateway)) => {
            let listener = gateway.listener(port, b"");
            let name = listener.map_or("", |l| &*l.name);
            let chosen = match gateway.connections.by_port(port, name) {
                Some(targets) => targets.pick(&worker, &config, port),
                None => Err(gateway_tls::no_tcp_route(&gateway, port)),
            };
            let name: Arc<str> = name.into();
            drop((config, gateway));
            scope.carry(&worker, link, received, &name, chosen).await;
        }
        (None, Some(gateway)) => {
            let text = format!(
                "Gateway/{} has no listener in force on port {port}; see `tulle check`",
                gateway.name
            );
            let failure = Failure::new(Reason::NoPort, text);
            let series = outbound::unrouted_tcp(&worker, &config);
            forward::refuse(
                &worker,
                &mut link,
                &failure,
                &series,
                scope.client_address(),
            );
        }
        (_, known) => {
            drop((config, known));
            let scope = Scope::Gateway(scope);
            exchange::serve(&worker, link, received, &scope).await;
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
        if asks.head.method == Method::Connect {
            let host = String::from_utf8_lossy(authority);
            let text = format!(
                "CONNECT to {host:?}: a gateway opens no tunnels into the mesh, which its routes \
                 could not look into"
            );
            return Err(Failure::new(Reason::NoRoute, text));
        }
        let listener = self.check_host(gateway, authority)?;
        if let Some(guard) = &listener.guard {
            guard.admit(worker, self, &inbound::judged(asks))?;
        }
        let entrance = route::Entrance {
            port: self.port,
            listener: &listener.name,
        };
        let Some(found) = outbound::find(&gateway.routes, entrance, asks)? else {
            return Err(outbound::unmatched(asks));
        };
        if let Some(policy) = &found.rule.policy {
            gateway_guard::judge(policy, worker, self, Some(&inbound::judged(asks)))?;
        }
        let mut decision = outbound::follow(worker, config, &found, None)?;
        if let Some(guard) = &listener.guard {
            let of_route = decision.filters.take();
            decision.filters = guard.filters(&inbound::judged(asks), of_route)?;
        }
        Ok(decision)
    }

    /// See [`Scope::audited`].
    pub fn audited(&self, config: &Config, asks: &Asks<'_>) -> String {
        let mut names = String::new();
        let Some(gateway) = config.snapshot.gateways.get(&*self.gateway) else {
            return names;
        };
        let authority = asks.head.authority.of(asks.bytes);
        let Some(listener) = gateway.listener(self.port, authority) else {
            return names;
        };
        let entrance = route::Entrance {
            port: self.port,
            listener: &listener.name,
        };
        let found = outbound::find(&gateway.routes, entrance, asks)
            .ok()
            .flatten();
        let of_route = found.and_then(|f| f.rule.policy.as_deref());
        let of_listener = listener.guard.as_ref().and_then(|g| g.policy());
        for policy in of_listener.into_iter().chain(of_route) {
            gateway_guard::audited(policy, self, &inbound::judged(asks), &mut names);
        }
        names
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

    /// Returns the listener of the request's host, which must be the one it came in by. Otherwise a
    /// client could avoid a listener's demands, such as a certificate, by asking another one for
    /// the host.
    fn check_host<'a>(
        &self,
        gateway: &'a Gateway,
        authority: &[u8],
    ) -> Result<&'a Listener, Failure> {
        let listener = gateway.listener(self.port, authority);
        let refused = |reason, what: String| {
            let host = String::from_utf8_lossy(authority);
            Err(Failure::new(
                reason,
                format!("{what} Gateway/{} takes host {host:?}", self.gateway),
            ))
        };
        match (&self.terminated, listener) {
            (None, Some(listener)) => Ok(listener),
            (Some(tls), Some(listener)) if listener.name == tls.listener => Ok(listener),
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

    /// Notes that this gateway terminated the client's TLS.
    pub fn terminated(&mut self, tls: Terminated) {
        self.terminated = Some(Box::new(tls));
    }

    /// Checks whether a listener admits a connection of opaque bytes.
    ///
    /// # Errors
    /// It does not admit it.
    pub fn admit_opaque(&self, worker: &Worker, listener: &str) -> Result<(), Failure> {
        let config = worker.config();
        let gateway = config.snapshot.gateways.get(&*self.gateway);
        match gateway.and_then(|g| g.named(listener)?.guard.as_ref()) {
            Some(guard) => guard.admit_opaque(worker, self),
            None => Ok(()),
        }
    }

    /// Carries a connection of opaque bytes where its route says, as long as the listener admits
    /// it.
    pub async fn carry(
        &self,
        worker: &Rc<Worker>,
        link: Link,
        received: Buf,
        listener: &str,
        chosen: Result<Rc<Port>, Failure>,
    ) {
        let allowed = || self.admit_opaque(worker, listener);
        let chosen = allowed().and(chosen);
        let opaque = Opaque {
            received,
            client: self.client_address(),
            ..Opaque::default()
        };
        connection_route::forward(worker, link, opaque, chosen, allowed).await;
    }

    /// Judges an open tunnel by the policies in force now.
    ///
    /// # Errors
    /// The policies do not allow it.
    pub fn judge_again(
        &self,
        worker: &Worker,
        config: &Config,
        asks: &Asks<'_>,
    ) -> Result<(), Failure> {
        let Some(gateway) = config.snapshot.gateways.get(&*self.gateway) else {
            return Ok(());
        };
        let authority = asks.head.authority.of(asks.bytes);
        let Some(listener) = gateway.listener(self.port, authority) else {
            return Ok(());
        };
        if let Some(guard) = &listener.guard {
            guard.admit(worker, self, &inbound::judged(asks))?;
        }
        let entrance = route::Entrance {
            port: self.port,
            listener: &listener.name,
        };
        match outbound::find(&gateway.routes, entrance, asks)?.map(|f| &f.rule.policy) {
            Some(Some(policy)) => {
                gateway_guard::judge(policy, worker, self, Some(&inbound::judged(asks)))
            }
            _ => Ok(()),
        }
    }

    /// The gateway's name.
    pub fn gateway(&self) -> &str {
        &self.gateway
    }

    /// The port it came to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The client's address.
    pub fn client(&self) -> &[u8] {
        &self.client
    }

    /// Returns the client's address, parsed.
    pub fn client_address(&self) -> Option<IpAddr> {
        std::str::from_utf8(&self.client).ok()?.parse().ok()
    }

    /// Returns the client's address as text.
    pub fn client_text(&self) -> String {
        String::from_utf8_lossy(&self.client).into_owned()
    }

    /// Returns the scheme of the client's connection.
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

    /// See [`Scope::claim_headers`].
    pub fn claim_headers<'c>(&self, config: &'c Config) -> &'c [String] {
        let gateway = config.snapshot.gateways.get(&*self.gateway);
        gateway.map_or(&[], |g| g.claim_headers.as_slice())
    }

    /// See [`Scope::series`].
    pub fn series(&self, worker: &Worker, config: &Config) -> Rc<Series> {
        outbound::unrouted(worker, config, &"unknown".into())
    }
}
