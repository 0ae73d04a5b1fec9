//! What is asked about a request, and what is answered.

use crate::balance::{Port, Steer};
use crate::config::authz;
use crate::config::traffic::retry;
use crate::filter::Filters;
use crate::telemetry::metrics::Series;
use crate::upstream::Upstream;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use tulle_http1::RequestHead;
use tulle_model::resource::Affinity;

/// A request that is to be decided about.
pub struct Asks<'a> {
    /// Its head, as offsets into `bytes`.
    pub head: &'a RequestHead,
    /// The head as it came.
    pub bytes: &'a [u8],
    /// The head as it will be forwarded: header conditions hold for this one.
    pub forwarded: &'a [u8],
}

/// Where a request goes and how it is counted.
pub struct Decision {
    /// Where to.
    pub target: Target,
    /// How it is counted.
    pub series: Rc<Series>,
    /// From the request's end to the response's head; 0: none.
    pub timeout_ms: u32,
    /// What is done to it first.
    pub filters: Option<Arc<Filters>>,
    /// Sending again.
    pub retry: Option<Arc<retry::Policy>>,
    /// Of each try; 0: none.
    pub try_timeout_ms: u32,
    /// Length of the path's prefix that the route has matched.
    pub matched: usize,
    /// Which endpoint it should go to.
    pub steer: Steer,
    /// The response tells the client who has served it.
    pub affinity: Option<Arc<Affinity>>,
}

/// Where a request goes.
pub enum Target {
    /// One of a service's endpoints.
    Service(Rc<Port>),
    /// The application behind this proxy.
    App(Rc<Upstream>),
    /// Nobody: the rule of the route names no backend, or none has a weight. A filter may answer.
    Nobody {
        /// Backends that the rule names.
        backends: usize,
    },
    /// An address outside the mesh.
    Outside(Rc<Upstream>),
}

impl Decision {
    /// Which endpoint the request wants, if that is configured. `head` is what is forwarded, `source` the hash of who asks.
    pub fn aim(&mut self, head: &[u8], source: impl FnOnce() -> u64) {
        if let Target::Service(port) = &self.target
            && (port.is_hashed() || self.affinity.is_some())
        {
            self.steer = port.steer(self.affinity.as_deref(), head, source());
        }
    }

    /// The endpoint, when there is only one it can be.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.target {
            Target::App(upstream) | Target::Outside(upstream) => Some(upstream.key.address),
            Target::Service(_) | Target::Nobody { .. } => None,
        }
    }
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
