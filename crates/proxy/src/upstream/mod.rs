//! One endpoint and the connections to it: shared multiplexed ones to sidecars, pooled keep-alive
//! ones to everybody else.

pub(crate) mod http2;
pub(crate) mod latency;
pub(crate) mod link;
pub(crate) mod mux;
pub(crate) mod outside;
pub(crate) mod outside_tls;
pub(crate) mod permit;
pub(crate) mod pools;
pub(crate) mod tls_stream;
pub(crate) mod tunnel;

use crate::context::WorkerContext;
use crate::context::is_exhaustion;
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::http2::Http2Connection;
use crate::upstream::latency::Latency;
use crate::upstream::link::Link;
use crate::upstream::mux::MuxConnection;
use crate::upstream::outside::ExternalTarget;
use crate::upstream::permit::Permit;
use crate::upstream::tls_stream::{Failed, TlsStream};
use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tulle_model::identity::SpiffeId;
use tulle_model::resource::{Protocol, Traffic, Workload};
use tulle_net::{Buf, socket};
use tulle_tls::{Alpn, Handshake};
use tulle_transport::StreamKind;

/// Idle connections kept per endpoint.
const MAX_IDLE: usize = 512;
/// An idle connection is closed after this time.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// Multiplexed connections per endpoint and worker; each carries up to 256 streams.
const MAX_MUX: usize = 16;
/// An endpoint that was unreachable is passed over for this time, if there is another.
const DOWN_TIME: Duration = Duration::from_secs(1);
/// A connection to another host whose peer acknowledges nothing for this long is dead (the kernel's own default is
/// about 15 minutes). So is one whose peer has no room for what waits, however alive it is: a sidecar always reads.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// Properties by which endpoints count as the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UpstreamKey {
    /// Where to connect.
    pub address: SocketAddr,
    /// Identities that may answer; `None`: plaintext.
    pub identities: Option<Arc<[SpiffeId]>>,
    /// The version of HTTP that it speaks.
    pub http_version: HttpVersion,
    /// Outside the mesh: how it is reached, if not by a plain connection.
    pub external: Option<Box<ExternalTarget>>,
    /// Whether it is the application behind this proxy.
    pub own: bool,
}

/// The version of HTTP of an endpoint that is no sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HttpVersion {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, without TLS by prior knowledge.
    Http2,
    /// The version in which the request came.
    AsCame,
}

impl From<Protocol> for HttpVersion {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Http => Self::Http1,
            Protocol::Http2 | Protocol::Grpc => Self::Http2,
            Protocol::Detect | Protocol::Tcp | Protocol::Tls => Self::AsCame,
        }
    }
}

/// An endpoint and its connections.
pub struct Upstream {
    /// Address and identities.
    pub key: UpstreamKey,
    active: Cell<u32>,
    idle: RefCell<Vec<Idle>>,
    mux: RefCell<Vec<Rc<MuxConnection>>>,
    http2: RefCell<Vec<Rc<Http2Connection>>>,
    /// The peer agreed on another protocol than ours: each exchange takes a connection.
    single: Cell<bool>,
    /// A server outside the mesh that was offered HTTP/2 chose HTTP/1.1, and its connections are kept as such.
    http1_chosen: Cell<bool>,
    dialling: Cell<bool>,
    dialled: Notify,
    down_until: Cell<Option<Instant>>,
    latency: Latency,
    /// The port's connect timeout and request limit; 0: the mesh's, and no limit.
    connect_timeout_ms: Cell<u32>,
    requests_per_connection: Cell<u32>,
    /// The workload there; `None`: unknown.
    workload: RefCell<Option<Arc<Workload>>>,
}

struct Idle {
    link: Link,
    /// Exchanges it has carried.
    used: u32,
    since: Instant,
    epoch: u64,
}

/// A connection or stream for one exchange, counted as active until dropped.
pub struct Lease {
    /// The connection or stream.
    pub link: Link,
    /// Whether it has carried an exchange before, so that it may have died unnoticed.
    pub reused: bool,
    upstream: Rc<Upstream>,
    epoch: u64,
    /// Exchanges this connection has carried, if they are counted.
    used: u32,
    permit: Option<Box<Permit>>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.upstream
            .active
            .set(self.upstream.active.get().saturating_sub(1));
    }
}

impl Lease {
    /// Whether the upstream is a proxy of the mesh: it has shown a certificate, and does not lead
    /// out of the mesh.
    pub fn is_mesh(&self) -> bool {
        let key = &self.upstream.key;
        key.identities.is_some() && key.external.is_none()
    }

    fn new(upstream: &Rc<Upstream>, link: Link, reused: bool, epoch: u64) -> Self {
        upstream.active.set(upstream.active.get() + 1);
        Self {
            link,
            reused,
            upstream: upstream.clone(),
            epoch,
            used: 0,
            permit: None,
        }
    }

    /// Attaches a permit, which is given back with the lease.
    #[must_use]
    pub fn with(mut self, permit: Option<Box<Permit>>) -> Self {
        self.permit = permit;
        self
    }

    /// Returns the permit.
    pub fn permit(&mut self) -> Option<&mut Permit> {
        self.permit.as_deref_mut()
    }

    /// Takes the permit out, for another lease of the same exchange.
    pub fn take_permit(&mut self) -> Option<Box<Permit>> {
        self.permit.take()
    }

    /// The endpoint.
    pub fn upstream(&self) -> &Rc<Upstream> {
        &self.upstream
    }

    /// Gives the connection back after an exchange that ended cleanly, so that it may carry
    /// another.
    pub fn put_back(mut self, now: Instant) {
        // Only the link moves out; the lease still ends here.
        let link = std::mem::replace(&mut self.link, Link::Closed);
        let (used, most) = (self.used + 1, self.upstream.requests_per_connection.get());
        if !link.is_stream() && (most == 0 || used < most) {
            let mut idle = self.upstream.idle.borrow_mut();
            if idle.len() < MAX_IDLE {
                idle.push(Idle {
                    link,
                    used,
                    since: now,
                    epoch: self.epoch,
                });
            }
        }
    }
}

impl Upstream {
    /// An endpoint without connections.
    pub fn new(key: UpstreamKey) -> Self {
        Self {
            key,
            active: Cell::new(0),
            idle: RefCell::default(),
            mux: RefCell::default(),
            http2: RefCell::default(),
            single: Cell::new(false),
            http1_chosen: Cell::new(false),
            dialling: Cell::new(false),
            dialled: Notify::new(),
            down_until: Cell::new(None),
            latency: Latency::default(),
            connect_timeout_ms: Cell::new(0),
            requests_per_connection: Cell::new(0),
            workload: RefCell::default(),
        }
    }

    /// Notes the workload there, which metrics name.
    pub fn set_workload(&self, workload: Option<&Arc<Workload>>) {
        self.workload.replace(workload.cloned());
    }

    /// Whether this is the workload there.
    pub fn is_of(&self, workload: &Arc<Workload>) -> bool {
        self.workload.borrow().as_ref() == Some(workload)
    }

    /// Applies a traffic policy from now on.
    pub fn apply_traffic_policy(&self, traffic: Option<&Traffic>) {
        let of = |value: fn(&Traffic) -> u32| traffic.map_or(0, value);
        self.connect_timeout_ms.set(of(|t| t.connect_timeout_ms));
        let most = of(|t| t.limits.requests_per_connection);
        self.requests_per_connection.set(most);
    }

    /// Returns its latency; measured only for balancers that use it.
    pub fn latency(&self) -> &Latency {
        &self.latency
    }

    /// Exchanges under way.
    pub fn active(&self) -> u32 {
        self.active.get()
    }

    /// Whether it has exchanges or a connection attempt under way.
    pub fn is_busy(&self) -> bool {
        self.active.get() > 0 || self.dialling.get()
    }

    /// Whether it was unreachable a moment ago.
    pub fn is_down(&self) -> bool {
        match self.down_until.get() {
            Some(until) if Instant::now() < until => true,
            Some(_) => {
                self.down_until.set(None);
                false
            }
            None => false,
        }
    }

    /// Leases a connection or stream that exists already.
    pub fn checkout(self: &Rc<Self>, context: &WorkerContext, kind: StreamKind) -> Option<Lease> {
        let epoch = self.epoch(context)?;
        if self.key.identities.is_some() {
            let mux = self.mux.borrow();
            let current = mux.iter().filter(|c| c.epoch == epoch);
            if let Some(stream) = current.into_iter().find_map(|c| c.open(kind)) {
                self.used(stream.connection());
                return Some(Lease::new(self, Link::Mux(stream), true, epoch));
            }
            // The connections of a peer that does not speak `tulle/1`.
            let http2 = self.http2.borrow();
            let mut current = http2.iter().filter(|c| c.epoch == epoch);
            if kind != StreamKind::Tcp
                && let Some(stream) = current.find_map(|c| c.open())
            {
                return Some(Lease::new(self, Link::Http2(stream), true, epoch));
            }
        }
        if kind == StreamKind::Tcp {
            return None;
        }
        if self.wants_http2(kind) {
            let http2 = self.http2.borrow();
            let stream = http2.iter().find_map(|c| c.open())?;
            return Some(Lease::new(self, Link::Http2(stream), true, epoch));
        }
        let mut idle = self.idle.borrow_mut();
        while let Some(mut entry) = idle.pop() {
            if entry.epoch == epoch && entry.link.is_quiet() {
                let mut lease = Lease::new(self, entry.link, true, epoch);
                lease.used = entry.used;
                return Some(lease);
            }
        }
        None
    }

    /// Counts an exchange on a shared connection, which may have reached its limit.
    fn used(&self, connection: &MuxConnection) {
        let most = self.requests_per_connection.get();
        if most > 0 {
            let used = connection.used.get() + 1;
            connection.used.set(used);
            if used >= most {
                connection.retire();
            }
        }
    }

    /// Leases a new connection or stream.
    ///
    /// # Errors
    /// It is not reachable, or its identity is wrong.
    pub async fn connect(
        self: &Rc<Self>,
        context: &Rc<WorkerContext>,
        kind: StreamKind,
    ) -> Result<Lease, Failure> {
        let limit = self.connect_timeout(context);
        let result = tokio::time::timeout(limit, self.connect_unbounded(context, kind)).await;
        let result = result.unwrap_or_else(|_| {
            let text = format!("{} did not answer within {limit:?}", self.key.address);
            Err(Failure::new(Reason::ConnectTimeout, text))
        });
        match &result {
            Ok(_) => self.down_until.set(None),
            // A lack of this proxy's own resources is not the endpoint's fault.
            Err(failure) if failure.reason == Reason::Overload => {}
            Err(_) => self.down_until.set(Some(Instant::now() + DOWN_TIME)),
        }
        result
    }

    fn connect_timeout(&self, context: &WorkerContext) -> Duration {
        let ms = match self.connect_timeout_ms.get() {
            0 => context.snapshot().mesh.connect_timeout_ms,
            own => own,
        };
        Duration::from_millis(ms.into())
    }

    /// Connects, verifies the identity, and closes the connection.
    ///
    /// # Errors
    /// It is not reachable, or its certificate is wrong.
    pub async fn probe(&self, context: &WorkerContext) -> Result<(), Failure> {
        match self.key.identities.clone() {
            None => self.dial(context).await.map(drop),
            Some(identities) => {
                let tls = self.dial_tls(context, identities, StreamKind::Http).await?;
                Link::Tls(Box::new(tls)).abort();
                Ok(())
            }
        }
    }

    async fn connect_unbounded(
        self: &Rc<Self>,
        context: &Rc<WorkerContext>,
        kind: StreamKind,
    ) -> Result<Lease, Failure> {
        if let Some(external) = &self.key.external {
            let (link, http2) = Box::pin(outside::connect(context, self, external, kind)).await?;
            if kind == StreamKind::Http2 {
                self.http1_chosen.set(!http2);
            }
            if http2 {
                return self.start_http2(context, link, 0);
            }
            return Ok(Lease::new(self, link, false, 0));
        }
        let Some(identities) = self.key.identities.clone() else {
            if self.wants_http2(kind) {
                return self.connect_http2(context, kind).await;
            }
            let tcp = self.dial(context).await?;
            return Ok(Lease::new(self, Link::Tcp(tcp), false, 0));
        };
        loop {
            if self.single.get() && !self.mux.borrow().iter().any(|c| c.is_usable()) {
                break;
            }
            if self.dialling.get() {
                match self.share(context, kind).await? {
                    Some(lease) => return Ok(lease),
                    None => continue,
                }
            }
            let shared = self.mux.borrow().iter().filter(|c| c.is_usable()).count()
                + self.http2.borrow().iter().filter(|c| c.is_usable()).count();
            if shared >= MAX_MUX {
                context.metrics.internal(|i| i.overloads += 1);
                let text = format!("all connections to {} are full", self.key.address);
                return Err(Failure::new(Reason::Overload, text));
            }
            break;
        }
        let _dialling = Dialling::start(self);
        let tls = self.dial_tls(context, identities, kind).await?;
        let epoch = tls.session().epoch();
        match tls.session().alpn() {
            Alpn::Tulle1 => {
                self.single.set(false);
                let connection = MuxConnection::start(context, tls, true, |_, _| {});
                let mut mux = self.mux.borrow_mut();
                mux.retain(|c| c.is_usable() || c.active() > 0);
                mux.push(connection.clone());
                let stream = connection.open(kind).ok_or_else(|| {
                    Failure::new(Reason::ConnectFailed, "the new connection takes no stream")
                })?;
                self.used(&connection);
                Ok(Lease::new(self, Link::Mux(stream), false, epoch))
            }
            Alpn::Http2 => {
                self.single.set(false);
                self.start_http2(context, Link::Tls(Box::new(tls)), epoch)
            }
            Alpn::Http11 | Alpn::None => {
                self.single.set(true);
                Ok(Lease::new(self, Link::Tls(Box::new(tls)), false, epoch))
            }
        }
    }

    /// Whether an exchange of that kind is carried as HTTP/2.
    fn wants_http2(&self, kind: StreamKind) -> bool {
        self.key.identities.is_none()
            && match self.key.http_version {
                HttpVersion::Http1 => false,
                HttpVersion::Http2 => kind != StreamKind::Tcp,
                HttpVersion::AsCame => kind == StreamKind::Http2 && !self.http1_chosen.get(),
            }
    }

    /// Dials once; the others wait for the connection they will share. `None`: dialling failed.
    async fn share(
        self: &Rc<Self>,
        context: &Rc<WorkerContext>,
        kind: StreamKind,
    ) -> Result<Option<Lease>, Failure> {
        let dialled = self.dialled.notified();
        dialled.await;
        let lease = self.checkout(context, kind);
        if lease.is_none() && self.is_down() {
            let text = format!("{} could not be reached a moment ago", self.key.address);
            return Err(Failure::new(Reason::ConnectFailed, text));
        }
        Ok(lease)
    }

    async fn connect_http2(
        self: &Rc<Self>,
        context: &Rc<WorkerContext>,
        kind: StreamKind,
    ) -> Result<Lease, Failure> {
        while self.dialling.get() {
            if let Some(lease) = self.share(context, kind).await? {
                return Ok(lease);
            }
        }
        let usable = self.http2.borrow().iter().filter(|c| c.is_usable()).count();
        if usable >= MAX_MUX {
            context.metrics.internal(|i| i.overloads += 1);
            let text = format!("all HTTP/2 connections to {} are full", self.key.address);
            return Err(Failure::new(Reason::Overload, text));
        }
        let _dialling = Dialling::start(self);
        let tcp = self.dial(context).await?;
        self.start_http2(context, Link::Tcp(tcp), 0)
    }

    fn start_http2(
        self: &Rc<Self>,
        context: &Rc<WorkerContext>,
        link: Link,
        epoch: u64,
    ) -> Result<Lease, Failure> {
        let connection = http2::start(context, link, epoch);
        let mut http2 = self.http2.borrow_mut();
        http2.retain(|c| c.is_usable());
        http2.push(connection.clone());
        let stream = connection.open().ok_or_else(|| {
            Failure::new(Reason::ConnectFailed, "the new connection takes no stream")
        })?;
        Ok(Lease::new(self, Link::Http2(stream), false, epoch))
    }

    /// Makes a plain connection.
    ///
    /// # Errors
    /// It cannot be created.
    pub async fn dial(&self, context: &WorkerContext) -> Result<TcpStream, Failure> {
        let address = self.key.address;
        let failed = |e: std::io::Error| {
            let reason = match is_exhaustion(&e) {
                true => Reason::Overload,
                false => Reason::ConnectFailed,
            };
            Failure::new(reason, format!("connect to {address}: {e}"))
        };
        let tcp = match self.key.own && !address.ip().is_loopback() {
            // Otherwise it would look like a call of the workload to itself, and come back here.
            true => Box::pin(socket::connect_from_loopback(address)).await,
            false => TcpStream::connect(address).await,
        };
        let tcp = match tcp {
            // An application that listens on `localhost` may have got either address.
            Err(error) if is_local_refusal(address, &error) => {
                let other = SocketAddr::from((Ipv6Addr::LOCALHOST, address.port()));
                let tcp = Box::pin(TcpStream::connect(other)).await;
                tcp.map_err(|_| failed(error))?
            }
            tcp => tcp.map_err(failed)?,
        };
        socket::prepare(&tcp).map_err(failed)?;
        // On this host the kernel says itself who is gone; an application may read nothing for as long as it likes.
        if !self.key.own && !address.ip().is_loopback() {
            // An error is not fatal: a dead peer is noticed later.
            let _ = socket2::SockRef::from(&tcp).set_tcp_user_timeout(Some(USER_TIMEOUT));
        }
        context.metrics.internal(|i| i.dialled += 1);
        Ok(tcp)
    }

    async fn dial_tls(
        &self,
        context: &WorkerContext,
        identities: Arc<[SpiffeId]>,
        kind: StreamKind,
    ) -> Result<TlsStream, Failure> {
        let snapshot = context.snapshot();
        let Some(tls) = &snapshot.tls else {
            return Err(Failure::new(
                Reason::NotReady,
                "this proxy has no certificate yet",
            ));
        };
        // A peer that does not know `tulle/1` must not take opaque bytes for HTTP.
        let offer: &[Alpn] = match kind {
            StreamKind::Http | StreamKind::Http2 => &[Alpn::Tulle1, Alpn::Http2, Alpn::Http11],
            StreamKind::Tcp => &[Alpn::Tulle1],
        };
        let address = self.key.address;
        let refused = |e: tulle_tls::HandshakeError| {
            context
                .metrics
                .internal(|i| i.handshakes_failed.add(e.code(), 1));
            Failure::new(Reason::TlsFailed, format!("{address}: {}: {e}", e.code()))
        };
        let handshake = Handshake::client(tls, identities, offer).map_err(refused)?;
        let tcp = self.dial(context).await?;
        match tls_stream::handshake(&context.peers, tcp, handshake, Buf::new()).await {
            Ok(tls) => {
                context.metrics.internal(|i| {
                    i.handshakes += 1;
                    i.resumed += u64::from(tls.session().resumed());
                });
                Ok(tls)
            }
            Err(Failed::Tls(error)) => Err(refused(error)),
            Err(Failed::Io(error)) => {
                context
                    .metrics
                    .internal(|i| i.handshakes_failed.add("cut", 1));
                let text = format!(
                    "{address}: cut: the server ended the connection during the TLS handshake: {error}"
                );
                Err(Failure::new(Reason::TlsFailed, text))
            }
        }
    }

    /// Returns the epoch of the certificates in use; `None`: there are none yet. Plaintext needs
    /// none.
    fn epoch(&self, context: &WorkerContext) -> Option<u64> {
        match self.key.identities {
            None => Some(0),
            Some(_) => context
                .snapshot()
                .tls
                .as_ref()
                .map(tulle_tls::Context::epoch),
        }
    }

    /// Closes connections that are idle for too long, dead, or made with old certificates.
    pub fn sweep(&self, epoch: Option<u64>) {
        let plaintext = self.key.identities.is_none();
        let now = Instant::now();
        self.idle.borrow_mut().retain_mut(|entry| {
            now.duration_since(entry.since) < IDLE_TIME
                && (plaintext || Some(entry.epoch) == epoch)
                && entry.link.is_quiet()
        });
        self.http2.borrow_mut().retain(|connection| {
            if !plaintext && Some(connection.epoch) != epoch {
                connection.retire();
            }
            connection.is_usable()
        });
        self.mux.borrow_mut().retain(|connection| {
            if Some(connection.epoch) != epoch {
                connection.retire();
            }
            connection.is_usable()
        });
    }

    /// Takes no more exchanges on existing connections; open ones finish.
    pub fn retire(&self) {
        self.idle.borrow_mut().clear();
        for connection in self.http2.borrow_mut().drain(..) {
            connection.retire();
        }
        for connection in self.mux.borrow_mut().drain(..) {
            connection.retire();
        }
    }
}

fn is_local_refusal(address: SocketAddr, error: &std::io::Error) -> bool {
    address.ip() == Ipv4Addr::LOCALHOST && error.kind() == std::io::ErrorKind::ConnectionRefused
}

/// Marks an endpoint as being dialled; wakes the waiters, however it ends.
struct Dialling<'a>(&'a Upstream);

impl<'a> Dialling<'a> {
    fn start(upstream: &'a Upstream) -> Self {
        upstream.dialling.set(true);
        Self(upstream)
    }
}

impl Drop for Dialling<'_> {
    fn drop(&mut self) {
        self.0.dialling.set(false);
        self.0.dialled.notify_waiters();
    }
}
