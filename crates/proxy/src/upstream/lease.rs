//! A connection or stream that is lent for one exchange.

use super::{Idle, Upstream};
use crate::upstream::link::Link;
use crate::upstream::permit::Permit;
use std::rc::Rc;
use std::time::Instant;

/// Idle connections kept per endpoint.
const MAX_IDLE: usize = 512;

/// A connection or stream for one exchange, counted as active until dropped.
pub struct Lease {
    /// The connection or stream.
    pub link: Link,
    /// Whether it has carried an exchange before, so that it may have died unnoticed.
    pub reused: bool,
    upstream: Rc<Upstream>,
    epoch: u64,
    /// Exchanges this connection has carried, if they are counted.
    pub(super) used: u32,
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

    pub(super) fn new(upstream: &Rc<Upstream>, link: Link, reused: bool, epoch: u64) -> Self {
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
