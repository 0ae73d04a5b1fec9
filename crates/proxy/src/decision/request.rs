//! A request as a decision sees it, and the decision itself.

use crate::balance::{EndpointHint, Port};
use crate::codec::request_values::{Parties, RequestValues};
use crate::config::authz;
use crate::config::route::Rule;
use crate::config::traffic::retry;
use crate::filter::Filters;
use crate::telemetry::metrics::RequestSeries;
use crate::upstream::Upstream;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use tulle_http1::RequestHead;
use tulle_model::resource::Affinity;

/// A request to be decided about.
pub struct RequestView<'a> {
    /// Its head, as offsets into `bytes`.
    pub head: &'a RequestHead,
    /// The head as it came.
    pub bytes: &'a [u8],
    /// The head as it will be forwarded: header conditions apply to it.
    pub forwarded: &'a [u8],
    /// Caller and destination.
    pub parties: &'a dyn Parties,
}

impl<'a> RequestView<'a> {
    /// The request as expressions read it.
    pub fn values(&self) -> RequestValues<'a> {
        RequestValues {
            method: self.head.method_text.slice(self.bytes),
            path: self.head.path.slice(self.bytes),
            authority: self.head.authority.slice(self.bytes),
            head: self.forwarded,
            parties: Some(self.parties),
            claims: None,
        }
    }
}

/// The target of a request, and how it is treated and counted.
pub struct Decision {
    /// The target.
    pub target: Target,
    /// Its counters.
    pub series: Rc<RequestSeries>,
    /// Timeout from the request's end to the response's head in milliseconds; 0: none.
    pub timeout_ms: u32,
    /// Filters that run first.
    pub filters: Option<Arc<Filters>>,
    /// Retry policy.
    pub retry: Option<Arc<retry::Policy>>,
    /// Timeout of each try in milliseconds; 0: none.
    pub try_timeout_ms: u32,
    /// Length of the path's prefix that the route has matched.
    pub matched: usize,
    /// The endpoint it prefers.
    pub hint: EndpointHint,
    /// Session affinity, by which the response names the endpoint to the client.
    pub affinity: Option<Arc<Affinity>>,
    /// The rule of the route, where a plugin may choose among its backends.
    pub rule: Option<Arc<Rule>>,
}

/// Target of a request.
pub enum Target {
    /// One of a service's endpoints.
    Service(Rc<Port>),
    /// Whether it is the application behind this proxy.
    App(Rc<Upstream>),
    /// No backend: the route's rule names none, or none has a weight. A filter may answer.
    Nobody,
    /// An address outside the mesh.
    Outside(Rc<Upstream>),
}

impl Decision {
    /// Which endpoint the request wants, if that is configured. `head` is what is forwarded, `source` the hash of who asks.
    pub fn aim(&mut self, head: &[u8], source: impl FnOnce() -> u64) {
        if let Target::Service(port) = &self.target
            && (port.is_hashed() || self.affinity.is_some())
        {
            self.hint = port.hint(self.affinity.as_deref(), head, source());
        }
    }

    /// Returns the endpoint if there can be only one.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.target {
            Target::App(upstream) | Target::Outside(upstream) => Some(upstream.key.address),
            Target::Service(_) | Target::Nobody => None,
        }
    }
}

/// Returns the request as the policy judges it.
pub fn judged<'a>(view: &RequestView<'a>) -> authz::Request<'a> {
    authz::Request::new(
        view.head.method_text.slice(view.bytes),
        view.head.path.slice(view.bytes),
        view.head.authority.slice(view.bytes),
        view.forwarded,
    )
    .between(view.parties)
}
