//! TLS of clients outside the mesh: the server name chooses the listener, which terminates TLS or
//! passes it through.

use crate::config::gateway_listener::{Gateway, ListenerTls};
use crate::decision::ConnectionContext;
use crate::decision::gateway::{GatewayContext, Terminated};
use crate::decision::outbound;
use crate::http::exchange;
use crate::serve::gateway::carry;
use crate::tcp::first_bytes::{self, First};
use crate::tcp::forward;
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::link::Link;
use crate::upstream::outside_tls::OutsideTls;
use crate::worker::{Worker, WorkerConfig};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tulle_model::resource::ListenerProtocol;
use tulle_net::Buf;
use tulle_tls::outside::{self, ClientCertificate};

/// Fatal alerts, as plain as the hello they answer: `unrecognized_name` (RFC 6066 3) and
/// `internal_error` (RFC 8446 6.2).
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];
const INTERNAL_ERROR: [u8; 7] = [21, 3, 3, 0, 2, 2, 80];

/// Serves a connection to a port where clients begin with TLS.
pub async fn serve(
    worker: &Rc<Worker>,
    mut link: Link,
    mut received: Buf,
    config: Rc<WorkerConfig>,
    gateway: Arc<Gateway>,
    mut scope: GatewayContext,
) {
    let (port, client) = (scope.port(), scope.client_address());
    let patience = Duration::from_millis(config.snapshot.mesh.header_timeout_ms.into());
    let name = match first_bytes::look(worker, &mut link, &mut received, patience).await {
        First::Tls(name) => name,
        other => {
            let what = match other {
                First::Http => "the client speaks plain HTTP; it must use https",
                First::Malformed(why) => why,
                _ => "the client sent no TLS hello",
            };
            return refuse(worker, &mut link, &scope, "not_tls", what);
        }
    };
    scope.names_server(name.as_deref());
    let host = name.as_deref().unwrap_or_default();
    let Some(listener) = gateway.listener(port, host.as_bytes()) else {
        let what = format!("no listener on port {port} takes the server name {host:?}");
        if !gateway.ends_tls(port) {
            // A port that never terminates TLS does not begin with an alert.
            return refuse(worker, &mut link, &scope, "unrecognized_name", &what);
        }
        alert(&mut link, &UNRECOGNIZED_NAME).await;
        return failed(worker, &scope, "unrecognized_name", &what);
    };
    if let (None, Some(fault)) = (&listener.tls, &listener.fault) {
        let what = format!("listener {}: {fault}", listener.name);
        alert(&mut link, &INTERNAL_ERROR).await;
        return failed(worker, &scope, "certificate", &what);
    }
    if listener.protocol == ListenerProtocol::Tls
        && let Err(failure) = scope.admit_opaque(worker, &listener.name)
    {
        let series = outbound::unrouted_tcp(worker, &config);
        return forward::refuse(worker, &mut link, &failure, &series, client);
    }
    let Some(tls) = &listener.tls else {
        let routes = &gateway.connections;
        let chosen = match routes.by_name(port, &listener.name, name.as_deref()) {
            Some(targets) => outbound::pick(targets, worker, &config, port),
            None => Err(Failure::new(
                Reason::NoRoute,
                format!("no TLSRoute of Gateway/{} is for {host:?}", gateway.name),
            )),
        };
        return carry(&scope, worker, link, received, &listener.name, chosen).await;
    };
    tls.warn(&listener.name);
    let limit = Duration::from_millis(config.snapshot.mesh.connect_timeout_ms.into());
    let handshake = Box::pin(tokio::time::timeout(limit, accept(link, received, tls)));
    let (tls, certificate) = match handshake.await {
        Ok(Ok(done)) => done,
        Ok(Err((code, text))) => return failed(worker, &scope, code, &text),
        Err(_) => {
            let text = format!("no complete TLS handshake within {limit:?}");
            return failed(worker, &scope, "timeout", &text);
        }
    };
    worker.metrics.internal(|i| {
        i.handshakes += 1;
        i.resumed += u64::from(tls.is_resumed());
    });
    let link = Link::Outside(Box::new(tls));
    if listener.protocol == ListenerProtocol::Tls {
        let routes = &gateway.connections;
        let by_name = routes.by_name(port, &listener.name, name.as_deref());
        let chosen = match by_name.or_else(|| routes.by_port(port, &listener.name)) {
            Some(targets) => outbound::pick(targets, worker, &config, port),
            None => Err(Failure::new(
                Reason::NoRoute,
                format!(
                    "no TLSRoute of Gateway/{} is for {host:?}, and no TCPRoute for port {port}",
                    gateway.name
                ),
            )),
        };
        return carry(&scope, worker, link, Buf::new(), &listener.name, chosen).await;
    }
    scope.terminated(Terminated {
        listener: listener.name.clone(),
        certificate: certificate.map(|c| c.forwarded.into_bytes().into_boxed_slice()),
    });
    let scope = ConnectionContext::Gateway(scope);
    drop((config, gateway));
    exchange::serve(worker, link, Buf::new(), &scope).await;
}

/// Tries to write once: a client that does not read is not waited for.
async fn alert(link: &mut Link, alert: &[u8]) {
    let _ = poll_fn(|cx| link.poll_write(cx, alert, true)).await;
    let _ = poll_fn(|cx| link.poll_shutdown(cx)).await;
}

/// The failure of a port without a TCPRoute.
pub fn no_tcp_route(gateway: &Gateway, port: u16) -> Failure {
    let text = format!("no TCPRoute of Gateway/{} is for port {port}", gateway.name);
    Failure::new(Reason::NoRoute, text)
}

type Accepted = (OutsideTls, Option<ClientCertificate>);

async fn accept(
    link: Link,
    received: Buf,
    tls: &ListenerTls,
) -> Result<Accepted, (&'static str, String)> {
    let accepted = OutsideTls::accept(link, received, tls.server.config()).await;
    let stream = accepted.map_err(|e| outside::failure(&e))?;
    let certificate = match stream.server() {
        Some(connection) => tls
            .server
            .client(connection)
            .map_err(|e| (e.code(), e.to_string()))?,
        None => None,
    };
    Ok((stream, certificate))
}

fn failed(worker: &Worker, scope: &GatewayContext, code: &'static str, text: &str) {
    worker
        .metrics
        .internal(|i| i.handshakes_failed.add(code, 1));
    let failure = Failure::new(Reason::TlsFailed, format!("{code}: {text}"));
    worker.failed(Some(&scope.client_text()), "-", b"", 0, &failure);
}

fn refuse(
    worker: &Rc<Worker>,
    link: &mut Link,
    scope: &GatewayContext,
    code: &'static str,
    text: &str,
) {
    failed(worker, scope, code, text);
    let series = outbound::unrouted_tcp(worker, &worker.config());
    let failure = Failure::new(Reason::TlsFailed, format!("{code}: {text}"));
    forward::refuse(worker, link, &failure, &series, scope.client_address());
}
