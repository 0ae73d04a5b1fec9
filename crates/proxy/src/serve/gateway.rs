//! Gateways: clients outside the mesh come in by HTTP, TLS or TCP; mutual TLS leads on.

use crate::balance::Port;
use crate::decision::ConnectionContext;
use crate::decision::gateway::GatewayContext;
use crate::decision::outbound;
use crate::http::exchange;
use crate::serve::gateway_tls;
use crate::serve::proxied;
use crate::tcp::forward::{self, Opaque};
use crate::tcp::routed;
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::link::Link;
use crate::worker::Worker;
use std::rc::Rc;
use std::sync::Arc;
use tokio::net::TcpStream;
use tulle_model::resource::ListenerProtocol;
use tulle_net::{Buf, socket};

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
    let scope = ConnectionContext::Gateway(GatewayContext::new(gateway, port, client));
    let link = Link::Tcp(tcp);
    // A block: see `outbound::serve`.
    async move {
        if plain {
            return exchange::serve(&worker, link, Buf::new(), &scope).await;
        }
        if let ConnectionContext::Gateway(scope) = scope {
            // Boxed, or every plain connection would have room for it.
            Box::pin(serve_listener(worker, link, scope)).await;
        }
    }
}

/// Serves a connection to a listener that is not plain HTTP, or has a load balancer in front.
async fn serve_listener(worker: Rc<Worker>, mut link: Link, mut scope: GatewayContext) {
    let mut received = Buf::new();
    let known = worker
        .config()
        .snapshot
        .gateways
        .get(scope.gateway())
        .cloned();
    if known.is_some_and(|g| g.is_proxied(scope.port())) {
        match proxied::receive(&worker, &mut link, &mut received).await {
            // A load balancer that checks our health is its own client.
            Ok(None) => {}
            Ok(Some(client)) => scope.name_client(client.ip()),
            Err(failure) => {
                let from = String::from_utf8_lossy(scope.client());
                worker.failed(Some(&from), scope.gateway(), b"", 0, &failure);
                return link.abort();
            }
        }
    }
    serve_opened(worker, link, received, scope).await;
}

/// Serves a connection as the protocol of its listener demands.
async fn serve_opened(worker: Rc<Worker>, mut link: Link, received: Buf, scope: GatewayContext) {
    let config = worker.config();
    let port = scope.port();
    let known = config.snapshot.gateways.get(scope.gateway()).cloned();
    let protocol = known.as_ref().and_then(|g| g.protocol(port));
    match (protocol, known) {
        (Some(ListenerProtocol::Https | ListenerProtocol::Tls), Some(gateway)) => {
            gateway_tls::serve(&worker, link, received, config, gateway, scope).await;
        }
        (Some(ListenerProtocol::Tcp), Some(gateway)) => {
            let listener = gateway.listener(port, b"");
            let name = listener.map_or("", |l| &*l.name);
            let chosen = match gateway.connections.by_port(port, name) {
                Some(targets) => outbound::pick(targets, &worker, &config, port),
                None => Err(gateway_tls::no_tcp_route(&gateway, port)),
            };
            let name: Arc<str> = name.into();
            drop((config, gateway));
            carry(&scope, &worker, link, received, &name, chosen).await;
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
            let scope = ConnectionContext::Gateway(scope);
            exchange::serve(&worker, link, received, &scope).await;
        }
    }
}

/// Carries a connection of opaque bytes where its route says, as long as the listener admits
/// it.
pub async fn carry(
    scope: &GatewayContext,
    worker: &Rc<Worker>,
    link: Link,
    received: Buf,
    listener: &str,
    chosen: Result<Rc<Port>, Failure>,
) {
    let allowed = || scope.admit_opaque(worker, listener);
    let chosen = allowed().and(chosen);
    let opaque = Opaque {
        received,
        client: scope.client_address(),
        server_name: scope.server_name().map(Into::into),
        ..Opaque::default()
    };
    routed::forward(worker, link, opaque, chosen, allowed).await;
}
