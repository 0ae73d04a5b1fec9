//! One endpoint and the connections to it: shared multiplexed ones to sidecars, pooled keep-alive
//! ones to everybody else.

mod connect;
mod dial;
pub(crate) mod http2;
pub(crate) mod latency;
mod lease;
pub(crate) mod link;
pub(crate) mod mux;
pub(crate) mod outside;
pub(crate) mod outside_tls;
pub(crate) mod permit;
pub(crate) mod pools;
pub(crate) mod tls_stream;
pub(crate) mod tunnel;

pub use lease::Lease;

use crate::context::WorkerContext;
use crate::upstream::http2::Http2Connection;
use crate::upstream::latency::Latency;
use crate::upstream::link::Link;
use crate::upstream::mux::MuxConnection;
use crate::upstream::outside::ExternalTarget;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tulle_model::identity::SpiffeId;
use tulle_model::resource::{Protocol, Traffic, Workload};
use tulle_transport::StreamKind;

/// An idle connection is closed after this time.
const IDLE_TIME: Duration = Duration::from_secs(60);

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

    /// Whether an exchange of that kind is carried as HTTP/2.
    fn wants_http2(&self, kind: StreamKind) -> bool {
        self.key.identities.is_none()
            && match self.key.http_version {
                HttpVersion::Http1 => false,
                HttpVersion::Http2 => kind != StreamKind::Tcp,
                HttpVersion::AsCame => kind == StreamKind::Http2 && !self.http1_chosen.get(),
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
