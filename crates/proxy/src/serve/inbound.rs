//! Connections to the application: identifies the client, judges it, and forwards to the local
//! port.

use crate::context;
use crate::decision::ConnectionContext;
use crate::decision::inbound::{Client, InboundContext};
use crate::http::exchange;
use crate::http::reply;
use crate::http::stream_handlers;
use crate::serve::connect;
use crate::serve::first_judged;
use crate::serve::proxied;
use crate::serve::room;
use crate::serve::spread::ConnectionGuard;
use crate::tcp::first_bytes::{self, Plain};
use crate::tcp::forward;
use crate::tcp::forward::Opaque;
use crate::telemetry::outside_peers::OutsidePeer;
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::link::Link;
use crate::upstream::mux::MuxConnection;
use crate::upstream::tls_stream::{self, Failed};
use crate::worker::{Worker, WorkerConfig};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tokio::net::TcpStream;
use tulle_http1::Method;
use tulle_model::resource::Protocol;
use tulle_net::{Buf, socket};
use tulle_tls::{Alpn, Handshake};
use tulle_transport::StreamKind;

/// Serves a redirected connection: the original destination's port is the application's.
pub async fn serve_redirected(worker: Rc<Worker>, tcp: TcpStream, guard: ConnectionGuard) {
    match socket::original_destination(&tcp) {
        Ok(address)
            if tcp
                .local_addr()
                .is_ok_and(|local| local.port() == address.port()) => {}
        Ok(address) => serve(worker, tcp, address.port(), guard).await,
        Err(error) => {
            tracing::warn!(%error, "a connection to the inbound listener was not redirected");
        }
    }
}

/// Serves a connection to a port of the application.
pub async fn serve(worker: Rc<Worker>, tcp: TcpStream, port: u16, guard: ConnectionGuard) {
    let peer_address = tcp.peer_addr();
    let address = peer_address.as_ref().ok();
    let mut client = Client {
        address: address.map(|a| socket::canonical(*a).ip()),
        named: false,
    };
    let mut link = Link::Tcp(tcp);
    let mut received = Buf::new();
    let (protocol, proxied) = {
        let config = worker.config();
        let inbound = config.snapshot.inbound.as_ref();
        let port = inbound.and_then(|i| i.port(port));
        (port.map(|p| p.protocol), port.is_some_and(|p| p.proxied))
    };
    if proxied {
        let named = name_client(&worker, &mut link, &mut received, &mut client);
        if let Err(failure) = Box::pin(named).await {
            let from = peer_address.map_or_else(|e| e.to_string(), |a| a.to_string());
            worker.failed(Some(&from), "-", b"", 0, &failure);
            return link.abort();
        }
    }
    let plaintext = is_plaintext_admitted(&worker.config(), port, client);
    let tls = is_tls(&worker, &mut link, &mut received, protocol, plaintext).await;
    if tls != Some(true) {
        let silent = tls.is_none();
        let plain = serve_plaintext(&worker, link, received, port, client, protocol, silent);
        match Box::pin(plain).await {
            Some(late) => (link, received) = late,
            None => return,
        }
    }
    let Link::Tcp(tcp) = link else { return };
    // Boxed, or every connection of the proxy would have room for it.
    let tls = Box::pin(serve_tls(
        &worker, tcp, received, port, client, protocol, guard,
    ));
    if let Err(failure) = tls.await {
        let from = peer_address.map_or_else(|e| e.to_string(), |a| a.to_string());
        worker.failed(Some(&from), "-", b"", 0, &failure);
    }
}

/// Serves a client without a certificate. A client that has been `silent` may still begin with TLS;
/// then the connection is given back.
async fn serve_plaintext(
    worker: &Rc<Worker>,
    link: Link,
    received: Buf,
    port: u16,
    client: Client,
    protocol: Option<Protocol>,
    silent: bool,
) -> Option<(Link, Buf)> {
    let config = worker.config();
    let scope = Rc::new(InboundContext::new(&config, port, client, None));
    let own = client.address.map(|ip| OutsidePeer::caller(ip, port));
    if !is_plaintext_admitted(&config, port, client) {
        own.inspect(|own| worker.outside.refused(*own));
        refuse_plaintext(worker, &config, link, received, &scope).await;
        return None;
    }
    // A client that an address rule admits counts as admitted in strict mode, too.
    let own = own.filter(|_| !is_admitted_by_address(&config, port, client));
    own.inspect(|own| worker.outside.let_through(*own));
    // A client that has been silent this long is not waited for again.
    let patience = match silent {
        true => Duration::ZERO,
        false => patience(&config),
    };
    drop(config);
    let late = serve_opened(worker, link, received, scope, protocol, patience, silent).await;
    if late.is_some() {
        own.inspect(|own| worker.outside.take_back(*own));
    }
    late
}

/// How long a client's first bytes are waited for.
fn patience(config: &WorkerConfig) -> Duration {
    Duration::from_millis(config.snapshot.mesh.detect_timeout_ms.into())
}

/// Whether clients without a certificate are judged by the policy: all of them in permissive mode,
/// in strict mode only those whose address a rule admits.
fn is_plaintext_admitted(config: &WorkerConfig, port: u16, client: Client) -> bool {
    !config.snapshot.mesh.strict_mtls || is_admitted_by_address(config, port, client)
}

/// Whether a rule admits clients of this address without a certificate.
fn is_admitted_by_address(config: &WorkerConfig, port: u16, client: Client) -> bool {
    let inbound = config.snapshot.inbound.as_ref();
    inbound.is_some_and(|i| i.policy.admits_plaintext(i.number(port), client.address))
}

/// Reads the header of a load balancer in front of this port. Another sidecar's connection has
/// none: it begins with TLS, and its certificate says more.
async fn name_client(
    worker: &Rc<Worker>,
    link: &mut Link,
    received: &mut Buf,
    client: &mut Client,
) -> Result<(), Failure> {
    // The client speaks first on such a port.
    if is_tls(worker, link, received, None, false).await == Some(true) {
        return Ok(());
    }
    if let Some(named) = proxied::receive(worker, link, received).await? {
        *client = Client {
            address: Some(named.ip()),
            named: true,
        };
    }
    Ok(())
}

/// Whether a TLS handshake begins. `None`: the connection ended or nothing came. The wait lasts
/// only as long as detection, and only where plaintext is allowed, because the server may have to
/// speak first.
async fn is_tls(
    worker: &Rc<Worker>,
    link: &mut Link,
    received: &mut Buf,
    protocol: Option<Protocol>,
    plaintext: bool,
) -> Option<bool> {
    let deadline = worker.deadlines.register();
    let silent = plaintext && protocol.is_none_or(|p| !p.is_http());
    let limit = {
        let mesh = &worker.config().snapshot.mesh;
        match silent {
            true => mesh.detect_timeout_ms,
            false => mesh.header_timeout_ms,
        }
    };
    let limit = Duration::from_millis(limit.into());
    deadline.arm(limit);
    let mut last_chance = false;
    poll_fn(|cx| {
        loop {
            if worker.is_draining() && !std::mem::replace(&mut last_chance, true) {
                deadline.arm(limit.min(context::LAST_CHANCE));
            }
            if let Some(answer) = tulle_tls::is_client_hello(received.as_slice()) {
                return Poll::Ready(Some(answer));
            }
            if deadline.poll_expired(cx) {
                worker.metrics.internal(|i| i.detect_timeouts += 1);
                return Poll::Ready(None);
            }
            match link.poll_read(cx, received) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(count)) if count > 0 => {}
                Poll::Ready(_) => return Poll::Ready(None),
            }
        }
    })
    .await
}

async fn serve_tls(
    worker: &Rc<Worker>,
    tcp: TcpStream,
    received: Buf,
    port: u16,
    client: Client,
    protocol: Option<Protocol>,
    guard: ConnectionGuard,
) -> Result<(), Failure> {
    let config = worker.config();
    let Some(context) = &config.snapshot.tls else {
        return Err(Failure::new(
            Reason::NotReady,
            "this proxy has no certificate yet",
        ));
    };
    let refused = |code: &'static str, text: &dyn std::fmt::Display| {
        worker
            .metrics
            .internal(|i| i.handshakes_failed.add(code, 1));
        Failure::new(Reason::TlsFailed, format!("{code}: {text}"))
    };
    let handshake = Handshake::server(context).map_err(|e| refused(e.code(), &e))?;
    let limit = Duration::from_millis(config.snapshot.mesh.connect_timeout_ms.into());
    let result = Box::pin(tokio::time::timeout(
        limit,
        tls_stream::handshake(&worker.peers, tcp, handshake, received),
    ))
    .await;
    let tls = match result {
        Ok(Ok(tls)) => tls,
        Ok(Err(Failed::Tls(error))) => return Err(refused(error.code(), &error)),
        Ok(Err(Failed::Io(error))) => {
            let text = format!("the client ended the TLS handshake: {error}");
            return Err(refused("cut", &text));
        }
        Err(_) => {
            let text = format!("no complete TLS handshake within {limit:?}");
            return Err(refused("timeout", &text));
        }
    };
    worker.metrics.internal(|i| {
        i.handshakes += 1;
        i.resumed += u64::from(tls.session().resumed());
    });
    let scope = Rc::new(InboundContext::new(
        &config,
        port,
        client,
        Some(tls.session()),
    ));
    drop(config);
    match tls.session().alpn() {
        Alpn::Tulle1 => {
            let handlers = worker.clone();
            let slot = guard.slot();
            let exchanges = Rc::new(ConnectionContext::Inbound(scope.clone()));
            let connection = MuxConnection::start(worker, tls, false, move |stream, kind| {
                // The connection counts as long as it takes streams.
                let _ = &guard;
                if let Some(description) = stream.connection().take_description() {
                    scope.describe_peer(&description);
                }
                match kind {
                    StreamKind::Http | StreamKind::Http2 if !scope.is_egress() => {
                        stream_handlers::handle(&handlers, Link::Mux(stream), exchanges.clone());
                    }
                    _ => {
                        let entered = scope
                            .client_address()
                            .map(|source| room::enter_stream(&handlers, source, stream.cutter()));
                        let mut link = Link::Mux(stream);
                        let guard = match entered.transpose() {
                            Ok(guard) => guard,
                            Err(failure) => return refuse(&scope, &handlers, &mut link, &failure),
                        };
                        let (worker, scope) = (handlers.clone(), scope.clone());
                        tokio::task::spawn_local(async move {
                            let _counted = guard;
                            serve_stream(worker, link, scope).await;
                        });
                    }
                }
            });
            slot.remember(&connection);
        }
        // The first bytes show which of the two is spoken.
        Alpn::Http2 | Alpn::Http11 => {
            let mut link = Link::Tls(Box::new(tls));
            if let Err(failure) = scope.admit(&worker.config()) {
                refuse(&scope, worker, &mut link, &failure);
                return Ok(());
            }
            if scope.is_egress() {
                let gateway = connect::serve_gateway(worker, link, Buf::new(), &scope);
                Box::pin(gateway).await;
                return Ok(());
            }
            exchange::serve(worker, link, Buf::new(), &ConnectionContext::Inbound(scope)).await;
        }
        Alpn::None => {
            let link = Link::Tls(Box::new(tls));
            let patience = patience(&worker.config());
            serve_opened(worker, link, Buf::new(), scope, protocol, patience, false).await;
        }
    }
    Ok(())
}

/// Serves a stream of bytes of a multiplexed connection, or any stream to an egress gateway.
async fn serve_stream(worker: Rc<Worker>, link: Link, scope: Rc<InboundContext>) {
    match scope.is_egress() {
        true => connect::serve_gateway(&worker, link, Buf::new(), &scope).await,
        false => serve_tcp_stream(&worker, link, scope).await,
    }
}

/// Serves a stream that the client's sidecar has taken for opaque bytes. We detect again: see
/// `spoken`. The client has been waited for already; the server may have to speak first.
async fn serve_tcp_stream(worker: &Rc<Worker>, mut link: Link, scope: Rc<InboundContext>) {
    let config = worker.config();
    let inbound = config.snapshot.inbound.as_ref();
    let protocol = inbound
        .and_then(|i| i.port(scope.number()))
        .map(|p| p.protocol);
    // Where opaque bytes are refused, the client may still send a request.
    let patience = match scope.takes_opaque(worker, &config) {
        true => Duration::ZERO,
        false => patience(&config),
    };
    drop(config);
    let mut received = Buf::new();
    let spoken = spoken(worker, &mut link, &mut received, protocol, patience).await;
    serve_spoken(worker, link, received, scope, spoken, false).await;
}

/// Serves plaintext, or TLS without a protocol name, by `appProtocol` or by the first bytes. Gives
/// the connection back if TLS begins late, where it may.
async fn serve_opened(
    worker: &Rc<Worker>,
    mut link: Link,
    mut received: Buf,
    scope: Rc<InboundContext>,
    protocol: Option<Protocol>,
    patience: Duration,
    tls_may_begin: bool,
) -> Option<(Link, Buf)> {
    if scope.is_egress() {
        Box::pin(connect::serve_gateway(worker, link, received, &scope)).await;
        return None;
    }
    let spoken = spoken(worker, &mut link, &mut received, protocol, patience).await;
    if matches!(spoken, Plain::Http)
        && let Err(failure) = scope.admit(&worker.config())
    {
        refuse(&scope, worker, &mut link, &failure);
        return None;
    }
    serve_spoken(worker, link, received, scope, spoken, tls_may_begin).await
}

/// Returns the protocol by `appProtocol` or by the first bytes. The opinion of the client's sidecar
/// does not matter: bytes that could be read as a request here are judged as one.
async fn spoken(
    worker: &Rc<Worker>,
    link: &mut Link,
    received: &mut Buf,
    protocol: Option<Protocol>,
    patience: Duration,
) -> Plain {
    match protocol {
        Some(Protocol::Http | Protocol::Http2 | Protocol::Grpc) => Plain::Http,
        Some(Protocol::Detect) => first_bytes::plain(worker, link, received, patience).await,
        Some(Protocol::Tcp | Protocol::Tls) | None => Plain::Opaque(None),
    }
}

async fn serve_spoken(
    worker: &Rc<Worker>,
    mut link: Link,
    mut received: Buf,
    scope: Rc<InboundContext>,
    spoken: Plain,
    tls_may_begin: bool,
) -> Option<(Link, Buf)> {
    if let Plain::Opaque(watch) = spoken {
        let opaque = Opaque {
            received,
            watch,
            tls_may_begin,
            client: scope.named(),
            server_name: None,
            until: scope.peer_not_after(),
        };
        (link, received) = Box::pin(serve_tcp(worker, link, opaque, &scope)).await?;
        if tls_may_begin && tulle_tls::is_client_hello(received.as_slice()) == Some(true) {
            return Some((link, received));
        }
    }
    exchange::serve(worker, link, received, &ConnectionContext::Inbound(scope)).await;
    None
}

/// Carries opaque bytes to the application. Gives the connection back if it turns out to be HTTP or
/// TLS.
async fn serve_tcp(
    worker: &Rc<Worker>,
    mut link: Link,
    mut opaque: Opaque,
    scope: &InboundContext,
) -> Option<(Link, Buf)> {
    let config = worker.config();
    let series = scope.series(worker, &config, true);
    let allowed = scope.allow(worker, &config, None);
    match allowed.and_then(|app| scope.admit(&config).map(|()| app)) {
        Ok(app) => {
            let inbound = config.snapshot.inbound.as_ref();
            let port = inbound.and_then(|i| i.port(scope.number()));
            let plugins = port.map(|p| p.plugins.clone()).unwrap_or_default();
            drop(config);
            if !plugins.is_empty() {
                let judged = first_judged::judge(worker, &mut link, &mut opaque, scope, &plugins);
                match Box::pin(judged).await {
                    Ok(true) => {}
                    Ok(false) => return Some((link, opaque.received)),
                    Err(failure) => {
                        forward::refuse(worker, &mut link, &failure, &series, scope.named());
                        return None;
                    }
                }
            }
            let allowed = || scope.allow(worker, &worker.config(), None).map(drop);
            forward::to_endpoint(worker, link, opaque, &app, &series, allowed).await
        }
        Err(failure) => {
            forward::refuse(worker, &mut link, &failure, &series, scope.named());
            None
        }
    }
}

async fn refuse_plaintext(
    worker: &Rc<Worker>,
    config: &WorkerConfig,
    mut link: Link,
    mut received: Buf,
    scope: &InboundContext,
) {
    worker.metrics.internal(|i| i.plaintext_refused += 1);
    let why = config.snapshot.strict_by("spec.mtls.mode is strict");
    let text =
        format!("this port requires mutual TLS ({why}); call it through a sidecar or a gateway");
    let failure = Failure::new(Reason::PlaintextRefused, text);
    let first = first_bytes::plain(worker, &mut link, &mut received, patience(config)).await;
    let http = matches!(first, Plain::Http);
    let series = scope.series(worker, config, !http);
    if !http {
        return forward::refuse(worker, &mut link, &failure, &series, scope.named());
    }
    reply::refused_unread(worker, &series, failure.reason.status(), &failure);
    let mut out = Buf::new();
    reply::write(
        failure.reason.status(),
        &failure,
        true,
        Method::Get,
        out.storage(),
    );
    // Tries to write once: a client that does not read is not waited for.
    let _ = poll_fn(|cx| match link.poll_write(cx, out.as_slice(), true) {
        Poll::Pending => Poll::Ready(Ok(0)),
        ready => ready,
    })
    .await;
    let _ = poll_fn(|cx| link.poll_shutdown(cx)).await;
    // Reads pending bytes, so that closing does not reset the connection and lose the answer.
    let deadline = worker.deadlines.register();
    deadline.arm(Duration::from_millis(500));
    poll_fn(|cx| {
        loop {
            received.release();
            if deadline.poll_expired(cx) {
                return Poll::Ready(());
            }
            match link.poll_read(cx, &mut received) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(count)) if count > 0 => {}
                Poll::Ready(_) => return Poll::Ready(()),
            }
        }
    })
    .await;
}

fn refuse(scope: &InboundContext, worker: &Rc<Worker>, link: &mut Link, failure: &Failure) {
    let series = scope.series(worker, &worker.config(), true);
    forward::refuse(worker, link, failure, &series, scope.named());
}
