//! Makes a new connection to an endpoint, or waits for one that is being made and will be shared.

use super::{Lease, Upstream, http2, outside};
use crate::context::WorkerContext;
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::link::Link;
use crate::upstream::mux::MuxConnection;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tulle_tls::Alpn;
use tulle_transport::StreamKind;

/// Multiplexed connections per endpoint and worker; each carries up to 256 streams.
const MAX_MUX: usize = 16;
/// An endpoint that was unreachable is passed over for this time, if there is another.
const DOWN_TIME: Duration = Duration::from_secs(1);

impl Upstream {
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
