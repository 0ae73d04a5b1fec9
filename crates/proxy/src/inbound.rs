//! Connections to the application: who is it, may it, and then on to the local port.

use crate::authz::{Caller, Refusal, Verdicts};
use crate::balance::Steer;
use crate::ext_authz::Asker;
use crate::first_bytes::{self, Plain};
use crate::forward_tcp::Opaque;
use crate::inbound_rules::InboundRules;
use crate::link::Link;
use crate::metrics::{Labels, Reporter, Series};
use crate::mux::MuxConnection;
use crate::outside_peers::Peer;
use crate::reason::{Failure, Reason};
use crate::scope::{Asks, Decision, Scope, Target};
use crate::snapshot::Inbound;
use crate::spread::Counted;
use crate::tls_stream::{self, Failed};
use crate::upstream::{Speaks, Upstream, UpstreamKey};
use crate::worker::{self, Config, Worker};
use crate::{authz, connect, forward_http, forward_tcp, listen, proxied, reply};
use std::cell::RefCell;
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};
use tokio::net::TcpStream;
use tulle_http1::Method;
use tulle_model::identity::SpiffeId;
use tulle_model::resource::Protocol;
use tulle_net::{Buf, clock, socket};
use tulle_tls::{Alpn, Handshake, PeerCertificate, Session};
use tulle_transport::StreamKind;

/// A connection to one port of the application.
pub struct InboundScope {
    port: u16,
    /// The peer's verified identity; `None`: plaintext from outside the mesh.
    peer: Option<SpiffeId>,
    /// It says so.
    certificate: Option<PeerCertificate>,
    /// Where its connection comes from.
    client: Client,
    /// Its address as text, if a load balancer has named it.
    forwarded_for: Option<Box<[u8]>>,
    /// Of the certificates the connection was made with, and when the peer's runs out.
    made_with: Option<(u64, SystemTime)>,
    forwarded_client_cert: Option<Box<[u8]>>,
    /// The port is an egress gateway's.
    egress: bool,
    cached: RefCell<Option<Cached>>,
}

/// Where a connection comes from.
#[derive(Clone, Copy)]
struct Client {
    /// The address; a load balancer's word counts for more than the connection.
    address: Option<IpAddr>,
    /// A load balancer has named it.
    named: bool,
}

/// What stays the same as long as the configuration does.
struct Cached {
    generation: u64,
    http: Rc<Series>,
    tcp: Rc<Series>,
    app: Option<Rc<Upstream>>,
    rules: Option<Arc<InboundRules>>,
    /// What the policy says to this peer; `None`: before the first configuration.
    verdicts: Option<Rc<Verdicts>>,
    /// The peer's certificate was revoked: its connection is cut, and what came before that is not
    /// answered either.
    revoked: bool,
}

/// A redirected connection: the original destination's port says which of the application's.
pub async fn serve_redirected(worker: Rc<Worker>, tcp: TcpStream, counted: Counted) {
    match socket::original_destination(&tcp) {
        Ok(address)
            if tcp
                .local_addr()
                .is_ok_and(|local| local.port() == address.port()) => {}
        Ok(address) => serve(worker, tcp, address.port(), counted).await,
        Err(error) => {
            tracing::warn!(%error, "a connection to the inbound listener was not redirected");
        }
    }
}

/// A connection to a port of the application.
pub async fn serve(worker: Rc<Worker>, tcp: TcpStream, port: u16, counted: Counted) {
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
        &worker, tcp, received, port, client, protocol, counted,
    ));
    if let Err(failure) = tls.await {
        let from = peer_address.map_or_else(|e| e.to_string(), |a| a.to_string());
        worker.failed(Some(&from), "-", b"", 0, &failure);
    }
}

/// A client without a certificate; or one that has been `silent` and may still begin with TLS. Then the
/// connection is given back.
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
    let scope = Rc::new(InboundScope::new(&config, port, client, None));
    let own = client.address.map(|ip| Peer::caller(ip, port));
    if !is_plaintext_admitted(&config, port, client) {
        own.inspect(|own| worker.outside.refused(*own));
        refuse_plaintext(worker, &config, link, received, &scope).await;
        return None;
    }
    // Whom an address rule lets in, strictness lets in, too.
    let own = own.filter(|_| !is_admitted_by_address(&config, port, client));
    own.inspect(|own| worker.outside.let_through(*own));
    // Who has been silent so long is not waited for once more.
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
fn patience(config: &Config) -> Duration {
    Duration::from_millis(config.snapshot.mesh.detect_timeout_ms.into())
}

/// Whether clients without a certificate get as far as the policy: all of them where mutual TLS is
/// not strict, else those whose address a rule lets in.
fn is_plaintext_admitted(config: &Config, port: u16, client: Client) -> bool {
    !config.snapshot.mesh.strict_mtls || is_admitted_by_address(config, port, client)
}

/// Whether a rule lets clients of this address in without a certificate.
fn is_admitted_by_address(config: &Config, port: u16, client: Client) -> bool {
    let inbound = config.snapshot.inbound.as_ref();
    inbound.is_some_and(|i| i.policy.admits_plaintext(port, client.address))
}

/// Reads the header of a load balancer in front of this port. Another sidecar's connection has none:
/// it begins with TLS, and its certificate says more.
async fn name_client(
    worker: &Rc<Worker>,
    link: &mut Link,
    received: &mut Buf,
    client: &mut Client,
) -> Result<(), Failure> {
    // Whoever connects speaks first.
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

/// Whether a TLS handshake begins. `None`: the connection ended or nothing came. A server that
/// speaks first is waited for only as long as detection lasts, and only where plaintext is allowed.
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
                deadline.arm(limit.min(worker::LAST_CHANCE));
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
    counted: Counted,
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
    let scope = Rc::new(InboundScope::new(
        &config,
        port,
        client,
        Some(tls.session()),
    ));
    drop(config);
    match tls.session().alpn() {
        Alpn::Tulle1 => {
            let handlers = worker.clone();
            let place = counted.place();
            let exchanges = Rc::new(Scope::Inbound(scope.clone()));
            let connection = MuxConnection::start(worker, tls, false, move |stream, kind| {
                // As long as the connection takes streams, it counts.
                let _ = &counted;
                match kind {
                    StreamKind::Http | StreamKind::Http2 if !scope.egress => {
                        handlers.handle(Link::Mux(stream), exchanges.clone());
                    }
                    _ => {
                        let entered = scope
                            .client
                            .address
                            .map(|source| listen::enter_stream(&handlers, source, stream.cutter()));
                        let mut link = Link::Mux(stream);
                        let counted = match entered.transpose() {
                            Ok(counted) => counted,
                            Err(failure) => return scope.refuse(&handlers, &mut link, &failure),
                        };
                        let (worker, scope) = (handlers.clone(), scope.clone());
                        tokio::task::spawn_local(async move {
                            let _counted = counted;
                            serve_stream(worker, link, scope).await;
                        });
                    }
                }
            });
            place.remember(&connection);
        }
        // Which of the two is spoken shows in the first bytes.
        Alpn::Http2 | Alpn::Http11 => {
            let mut link = Link::Tls(Box::new(tls));
            if let Err(failure) = scope.admit(&worker.config()) {
                scope.refuse(worker, &mut link, &failure);
                return Ok(());
            }
            if scope.egress {
                let gateway = connect::serve_gateway(worker, link, Buf::new(), &scope);
                Box::pin(gateway).await;
                return Ok(());
            }
            forward_http::serve(worker, link, Buf::new(), &Scope::Inbound(scope)).await;
        }
        Alpn::None => {
            let link = Link::Tls(Box::new(tls));
            let patience = patience(&worker.config());
            serve_opened(worker, link, Buf::new(), scope, protocol, patience, false).await;
        }
    }
    Ok(())
}

/// Serves a stream of bytes of a multiplexed connection, or any to a gateway that leaves the mesh.
async fn serve_stream(worker: Rc<Worker>, link: Link, scope: Rc<InboundScope>) {
    match scope.egress {
        true => connect::serve_gateway(&worker, link, Buf::new(), &scope).await,
        false => serve_tcp_stream(&worker, link, scope).await,
    }
}

/// A stream that the client's sidecar has taken for opaque bytes. That does not bind us: see `spoken`.
/// The client has been waited for already; the server may have to speak first.
async fn serve_tcp_stream(worker: &Rc<Worker>, mut link: Link, scope: Rc<InboundScope>) {
    let config = worker.config();
    let inbound = config.snapshot.inbound.as_ref();
    let protocol = inbound.and_then(|i| i.port(scope.port)).map(|p| p.protocol);
    // Where bytes that nobody reads are refused, only a request can help.
    let patience = match scope.takes_opaque(worker, &config) {
        true => Duration::ZERO,
        false => patience(&config),
    };
    drop(config);
    let mut received = Buf::new();
    let spoken = spoken(worker, &mut link, &mut received, protocol, patience).await;
    serve_spoken(worker, link, received, scope, spoken, false).await;
}

/// Plaintext, or TLS without a protocol name: what `appProtocol` says, else the first bytes. Gives the
/// connection back if it begins with TLS late, where it may.
async fn serve_opened(
    worker: &Rc<Worker>,
    mut link: Link,
    mut received: Buf,
    scope: Rc<InboundScope>,
    protocol: Option<Protocol>,
    patience: Duration,
    tls_may_begin: bool,
) -> Option<(Link, Buf)> {
    if scope.egress {
        Box::pin(connect::serve_gateway(worker, link, received, &scope)).await;
        return None;
    }
    let spoken = spoken(worker, &mut link, &mut received, protocol, patience).await;
    if matches!(spoken, Plain::Http)
        && let Err(failure) = scope.admit(&worker.config())
    {
        scope.refuse(worker, &mut link, &failure);
        return None;
    }
    serve_spoken(worker, link, received, scope, spoken, tls_may_begin).await
}

/// What `appProtocol` says, else the first bytes. Whatever a client's sidecar has taken a stream for:
/// what could be read as a request here is judged as one.
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
    scope: Rc<InboundScope>,
    spoken: Plain,
    tls_may_begin: bool,
) -> Option<(Link, Buf)> {
    if let Plain::Opaque(watch) = spoken {
        let opaque = Opaque {
            received,
            watch,
            tls_may_begin,
            client: scope.named(),
            until: scope.peer_not_after(),
        };
        (link, received) = Box::pin(serve_tcp(worker, link, opaque, &scope)).await?;
        if tls_may_begin && tulle_tls::is_client_hello(received.as_slice()) == Some(true) {
            return Some((link, received));
        }
    }
    forward_http::serve(worker, link, received, &Scope::Inbound(scope)).await;
    None
}

/// Carries opaque bytes to the application. Gives the connection back if it turns out to be HTTP, or TLS.
async fn serve_tcp(
    worker: &Rc<Worker>,
    mut link: Link,
    opaque: Opaque,
    scope: &InboundScope,
) -> Option<(Link, Buf)> {
    let config = worker.config();
    let series = scope.series(worker, &config, true);
    let allowed = scope.allow(worker, &config, None);
    match allowed.and_then(|app| scope.admit(&config).map(|()| app)) {
        Ok(app) => {
            drop(config);
            let allowed = || scope.allow(worker, &worker.config(), None).map(drop);
            forward_tcp::to_endpoint(worker, link, opaque, &app, &series, allowed).await
        }
        Err(failure) => {
            forward_tcp::refuse(worker, &mut link, &failure, &series, scope.named());
            None
        }
    }
}

async fn refuse_plaintext(
    worker: &Rc<Worker>,
    config: &Config,
    mut link: Link,
    mut received: Buf,
    scope: &InboundScope,
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
        return forward_tcp::refuse(worker, &mut link, &failure, &series, scope.named());
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
    // One try: a client that does not read has no claim on us.
    let _ = poll_fn(|cx| match link.poll_write(cx, out.as_slice(), true) {
        Poll::Pending => Poll::Ready(Ok(0)),
        ready => ready,
    })
    .await;
    let _ = poll_fn(|cx| link.poll_shutdown(cx)).await;
    // Read what is already there, so that closing does not reset the answer away.
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

/// What the policy is asked about.
pub fn judged<'a>(asks: &Asks<'a>) -> authz::Request<'a> {
    authz::Request::new(
        asks.head.method_text.of(asks.bytes),
        asks.head.path.of(asks.bytes),
        asks.head.authority.of(asks.bytes),
        asks.forwarded,
    )
}

/// There has been no configuration yet.
#[cold]
fn unready() -> Failure {
    let text = "the controller has not said yet what this sidecar serves";
    Failure::new(Reason::NotReady, text)
}

impl InboundScope {
    fn new(config: &Config, port: u16, client: Client, session: Option<&Session>) -> Self {
        let peer = session.map(|s| s.peer().clone());
        let made_with = session.map(|s| (s.epoch(), s.peer_not_after()));
        let forwarded = peer.as_ref().map(|peer| {
            let by = &config.snapshot.identity;
            format!("By={by};URI={peer}")
                .into_bytes()
                .into_boxed_slice()
        });
        let named = client.address.filter(|_| client.named);
        let cached = RefCell::default();
        let inbound = config.snapshot.inbound.as_ref();
        let egress = inbound.and_then(|i| i.port(port)).is_some_and(|p| p.egress);
        Self {
            port,
            egress,
            peer,
            certificate: session.map(Session::peer_certificate),
            client,
            forwarded_for: named.map(|a| a.to_string().into_bytes().into_boxed_slice()),
            made_with,
            forwarded_client_cert: forwarded,
            cached,
        }
    }

    /// The peer has shown a certificate.
    pub fn is_mutual(&self) -> bool {
        self.peer.is_some()
    }

    /// See [`Scope::speaks`].
    pub fn speaks(&self, config: &Config) -> Speaks {
        let inbound = config.snapshot.inbound.as_ref();
        let port = inbound.and_then(|i| i.port(self.port));
        port.map_or(Speaks::AsCame, |port| port.protocol.into())
    }

    /// See [`Scope::is_outdated`].
    pub fn is_outdated(&self, config: &Config) -> bool {
        let epoch = config.snapshot.tls.as_ref().map(tulle_tls::Context::epoch);
        self.made_with
            .is_some_and(|(made, until)| Some(made) != epoch || until < clock::time_of_day())
    }

    /// When the peer's certificate runs out.
    pub fn peer_not_after(&self) -> Option<SystemTime> {
        self.made_with.map(|(_, until)| until)
    }

    /// See [`Scope::claim_headers`].
    pub fn claim_headers<'c>(&self, config: &'c Config) -> &'c [String] {
        let inbound = config.snapshot.inbound.as_ref();
        let rules = inbound.and_then(|i| i.port(self.port)?.rules.as_ref());
        rules.map_or(&[], |rules| rules.claim_headers())
    }

    /// See [`Scope::forwarded_for`].
    pub fn forwarded_for(&self) -> Option<&[u8]> {
        self.forwarded_for.as_deref()
    }

    /// Where the connection comes from, or whom a load balancer has named.
    pub fn client_address(&self) -> Option<IpAddr> {
        self.client.address
    }

    /// The client, if a load balancer has named it.
    fn named(&self) -> Option<IpAddr> {
        self.client.address.filter(|_| self.client.named)
    }

    /// See [`Scope::forwarded_client_cert`].
    pub fn forwarded_client_cert(&self) -> Option<&[u8]> {
        self.forwarded_client_cert.as_deref()
    }

    /// The port of the application that is asked.
    pub fn number(&self) -> u16 {
        self.port
    }

    fn peer_name(&self) -> Option<&str> {
        self.peer.as_ref().map(SpiffeId::as_str)
    }

    /// See [`Scope::decide`].
    ///
    /// # Errors
    /// The policy does not allow it, or the port is not served.
    pub fn decide(
        &self,
        worker: &Worker,
        config: &Config,
        asks: &Asks<'_>,
    ) -> Result<Decision, Failure> {
        let request = judged(asks);
        let app = self.allow(worker, config, Some(&request))?;
        let (series, rules) = self.cached(worker, config, |c| (c.http.clone(), c.rules.clone()));
        if asks.head.method == Method::Connect {
            self.allow_tunnel(config, &request, rules.as_deref())?;
        }
        let filters = match rules {
            None => None,
            Some(rules) => rules
                .find(&request)
                .map_err(|why| Failure::new(Reason::Denied, why))?,
        };
        Ok(Decision {
            target: Target::App(app),
            series,
            timeout_ms: config.snapshot.mesh.request_timeout_ms,
            filters,
            retry: None,
            try_timeout_ms: 0,
            matched: 0,
            steer: Steer::default(),
            affinity: None,
        })
    }

    fn allow(
        &self,
        worker: &Worker,
        config: &Config,
        request: Option<&authz::Request<'_>>,
    ) -> Result<Rc<Upstream>, Failure> {
        let Some(inbound) = &config.snapshot.inbound else {
            return Err(unready());
        };
        self.judge(worker, config, inbound, request)?;
        if request.is_none() {
            self.check_opaque(inbound)?;
        }
        self.cached(worker, config, |cached| cached.app.clone())
            .ok_or_else(|| {
                let text = format!("service {} has no port {}", inbound.service, self.port);
                Failure::new(Reason::NoPort, text)
            })
    }

    /// Whether the policy lets this peer send bytes that nobody reads.
    fn takes_opaque(&self, worker: &Worker, config: &Config) -> bool {
        let verdicts = self.cached(worker, config, |c| c.verdicts.clone());
        let judged = verdicts.is_some_and(|v| v.judge(None).is_ok());
        let inbound = config.snapshot.inbound.as_ref();
        judged && inbound.is_some_and(|i| self.check_opaque(i).is_ok())
    }

    /// What is said in a tunnel nobody judges.
    #[cold]
    fn allow_tunnel(
        &self,
        config: &Config,
        request: &authz::Request<'_>,
        rules: Option<&InboundRules>,
    ) -> Result<(), Failure> {
        let Some(inbound) = &config.snapshot.inbound else {
            return Ok(());
        };
        let judged = match rules.and_then(InboundRules::hidden_by_tunnel) {
            Some(name) => Err(Refusal::Tunnel(name.into())),
            None => {
                let verdicts = inbound.policy.verdicts(&self.caller(config));
                verdicts.judge_tunnel(request)
            }
        };
        judged.map_err(|refusal| self.denied(inbound, &refusal))
    }

    /// What is demanded of requests must not be passed by sending them where nobody reads them.
    fn check_opaque(&self, inbound: &Inbound) -> Result<(), Failure> {
        let port = inbound.port(self.port);
        if port.is_some_and(|p| p.protocol.is_http()) {
            let text = format!(
                "port {} of service {} speaks HTTP, which is not carried unread",
                self.port, inbound.service
            );
            return Err(Failure::new(Reason::Denied, text));
        }
        match port.and_then(|p| p.rules.as_ref()) {
            Some(rules) if rules.authenticate() => {
                let text = format!(
                    "port {} of service {} has rules for requests ({}), which a connection of \
                     opaque bytes cannot meet",
                    self.port,
                    inbound.service,
                    rules.names()
                );
                Err(Failure::new(Reason::Denied, text))
            }
            _ => Ok(()),
        }
    }

    fn judge(
        &self,
        worker: &Worker,
        config: &Config,
        inbound: &Inbound,
        request: Option<&authz::Request<'_>>,
    ) -> Result<(), Failure> {
        let (verdicts, revoked) = self.cached(worker, config, |c| (c.verdicts.clone(), c.revoked));
        let Some(verdicts) = verdicts else {
            return Err(unready());
        };
        if revoked {
            return Err(self.revoked());
        }
        for rule in verdicts.audited(request) {
            worker.metrics.audited(rule);
        }
        let judged = verdicts.judge(request);
        judged.map_err(|refusal| self.denied(inbound, &refusal))
    }

    /// Whether the policy lets this peer ask the egress gateway for something, and who it is: who
    /// may go where depends on identities, so one without may not go anywhere.
    ///
    /// # Errors
    /// It does not, or this port is no egress gateway any more.
    pub fn admits_connect(
        &self,
        worker: &Worker,
        config: &Config,
        authority: &[u8],
        head: &[u8],
    ) -> Result<&SpiffeId, Failure> {
        let inbound = config.snapshot.inbound.as_ref();
        let gateway = inbound.filter(|i| i.port(self.port).is_some_and(|p| p.egress));
        let Some(inbound) = gateway else {
            let text = format!("port {} is no egress gateway", self.port);
            return Err(Failure::new(Reason::NoPort, text));
        };
        let request = authz::Request::new(b"CONNECT", b"", authority, head);
        self.judge(worker, config, inbound, Some(&request))?;
        self.peer.as_ref().ok_or_else(|| {
            let text = "an egress gateway takes callers with a certificate of the mesh only";
            Failure::new(Reason::PlaintextRefused, text)
        })
    }

    /// Whether there may be another connection. Those that sidecars share are not counted, only what
    /// they carry: a request is no connection.
    fn admit(&self, config: &Config) -> Result<(), Failure> {
        let inbound = config.snapshot.inbound.as_ref();
        let port = inbound.and_then(|i| i.port(self.port));
        let Some(limit) = port.and_then(|p| p.connections.as_ref()) else {
            return Ok(());
        };
        limit.take(Instant::now()).map_err(|wait| {
            let text = format!("too many new connections; the next one may come in {wait:?}");
            Failure::new(Reason::RateLimited, text)
        })
    }

    fn refuse(&self, worker: &Rc<Worker>, link: &mut Link, failure: &Failure) {
        let series = self.series(worker, &worker.config(), true);
        forward_tcp::refuse(worker, link, failure, &series, self.named());
    }

    #[cold]
    fn revoked(&self) -> Failure {
        let who = self.peer_name().unwrap_or_default();
        let text = format!("the identity or certificate of {who} was revoked");
        Failure::new(Reason::Denied, text)
    }

    #[cold]
    fn denied(&self, inbound: &Inbound, refusal: &Refusal) -> Failure {
        if *refusal == Refusal::Plaintext {
            let text = "this port requires mutual TLS since the connection was made";
            return Failure::new(Reason::PlaintextRefused, text);
        }
        let who = match (self.peer_name(), self.client.address) {
            (Some(name), _) => name.to_owned(),
            (None, Some(address)) => format!("a client without a certificate at {address}"),
            (None, None) => "a client without a certificate".to_owned(),
        };
        let text = format!(
            "{who} may not call service {} on port {}: {}",
            inbound.service,
            self.port,
            refusal.explain(&inbound.policy),
        );
        Failure::new(Reason::Denied, text)
    }

    /// See [`Scope::asker`].
    pub fn asker(&self, own: String) -> Asker {
        Asker {
            identity: self.peer_name().map(str::to_owned),
            address: self.client.address,
            destination: own,
        }
    }

    fn caller(&self, config: &Config) -> Caller<'_> {
        Caller {
            identity: self.peer.as_ref(),
            address: self.client.address,
            port: self.port,
            strict: config.snapshot.mesh.strict_mtls,
            by_identity: true,
        }
    }

    /// See [`Scope::audited`].
    pub fn audited(&self, worker: &Worker, config: &Config, asks: &Asks<'_>) -> String {
        let Some(verdicts) = self.cached(worker, config, |c| c.verdicts.clone()) else {
            return String::new();
        };
        let request = judged(asks);
        let rules = verdicts.audited(Some(&request));
        rules.map(|n| &**n).collect::<Vec<_>>().join(", ")
    }

    /// See [`Scope::series`].
    pub fn series(&self, worker: &Worker, config: &Config, tcp: bool) -> Rc<Series> {
        self.cached(worker, config, |c| {
            if tcp { c.tcp.clone() } else { c.http.clone() }
        })
    }

    fn cached<T>(&self, worker: &Worker, config: &Config, take: impl FnOnce(&Cached) -> T) -> T {
        let mut cached = self.cached.borrow_mut();
        let fresh = cached
            .as_ref()
            .is_some_and(|c| c.generation == config.snapshot.generation);
        if !fresh {
            *cached = None;
        }
        take(cached.get_or_insert_with(|| self.look_up(worker, config)))
    }

    fn look_up(&self, worker: &Worker, config: &Config) -> Cached {
        let snapshot = &config.snapshot;
        let inbound = snapshot.inbound.as_ref();
        // Before the first configuration, by the identity: a request must not count for nobody.
        let service: Arc<str> =
            inbound.map_or_else(|| snapshot.identity.name().into(), |i| i.service.clone());
        let labels = |tcp| Labels {
            reporter: Reporter::Destination,
            source: self.peer.clone(),
            destination_service: service.clone(),
            destination: Some(snapshot.identity.clone()),
            mutual_tls: self.peer.is_some(),
            tcp,
        };
        let port = inbound.and_then(|i| i.port(self.port));
        Cached {
            generation: snapshot.generation,
            rules: port.and_then(|p| p.rules.clone()),
            revoked: self
                .certificate
                .as_ref()
                .is_some_and(|c| c.is_revoked(&snapshot.revoked)),
            verdicts: inbound.map(|i| Rc::new(i.policy.verdicts(&self.caller(config)))),
            http: worker.metrics.series(labels(false)),
            tcp: worker.metrics.series(labels(true)),
            app: port.filter(|p| !p.egress).map(|p| {
                worker.upstream(UpstreamKey {
                    address: p.target,
                    identities: None,
                    speaks: p.protocol.into(),
                    beyond: None,
                    own: true,
                })
            }),
        }
    }
}
