//! How an address outside the mesh is reached, where that takes more than a connection: through an egress gateway,
//! by TLS that begins here, or both.

use super::link::Link;
use super::outside_tls::OutsideTls;
use super::tunnel;
use super::{Lease, Upstream};
use crate::config::egress_rule::Way;
use crate::context::WorkerContext;
use crate::telemetry::reason::{Failure, Reason};
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::rc::Weak;
use std::sync::Arc;
use tulle_model::resource::Target;
use tulle_tls::outside::{self, Inside, OutsideClient};
use tulle_transport::StreamKind;

/// Lends ways to egress gateways. They are services of the mesh, whose endpoints are balanced: that is above this.
pub trait Gateways {
    /// Lends a way to one of a gateway's endpoints.
    fn lease<'a>(&'a self, gateway: &'a Target) -> Lent<'a>;
}

/// A lease to come.
pub type Lent<'a> = Pin<Box<dyn Future<Output = Result<Lease, Failure>> + 'a>>;

/// How an address outside the mesh is reached, if not by a plain connection.
#[derive(Clone)]
pub struct ExternalTarget {
    /// The rule's way.
    pub(crate) way: Arc<Way>,
    /// The server's name, if it is known.
    pub(crate) host: Box<str>,
    /// `Some` if TLS begins here; whether HTTP is inside.
    pub(crate) tls: Option<bool>,
    /// Lends ways to egress gateways.
    pub(crate) gateways: Weak<dyn Gateways>,
}

impl std::fmt::Debug for ExternalTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {}", self.way.rule, self.host)
    }
}

impl PartialEq for ExternalTarget {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.way, &other.way) && self.host == other.host && self.tls == other.tls
    }
}

impl Eq for ExternalTarget {}

impl Hash for ExternalTarget {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.way).hash(state);
        self.host.hash(state);
        self.tls.hash(state);
    }
}

/// Dials an address outside the mesh: through the rule's gateway or directly, then with TLS if the
/// rule says so. Also returns whether the server speaks HTTP/2, for a request that came as HTTP/2.
///
/// # Errors
/// It is not reachable, or its certificate is wrong.
pub async fn connect(
    context: &WorkerContext,
    upstream: &Upstream,
    external: &ExternalTarget,
    kind: StreamKind,
) -> Result<(Link, bool), Failure> {
    let address = upstream.key.address;
    let link = match &external.way.gateway {
        Some(gateway) => {
            let port = address.port();
            let authority = match (&*external.host, external.host.contains(':')) {
                ("", _) => address.to_string(),
                (host, true) if !host.starts_with('[') => format!("[{host}]:{port}"),
                (host, _) => format!("{host}:{port}"),
            };
            let gateways = external
                .gateways
                .upgrade()
                .ok_or_else(|| Failure::new(Reason::ConnectFailed, "this context has ended"))?;
            let lease = gateways.lease(gateway).await?;
            tunnel::open(context, lease, gateway, &authority).await?
        }
        None => Link::Tcp(upstream.dial(context).await?),
    };
    let (Some(origination), Some(http)) = (&external.way.tls, external.tls) else {
        return Ok((link, kind == StreamKind::Http2));
    };
    let refused = |code: &'static str, text: String| {
        context
            .metrics
            .internal(|i| i.handshakes_failed.add(code, 1));
        let rule = &external.way.rule;
        Failure::new(
            Reason::TlsFailed,
            format!("{rule}: {:?} at {address}: {code}: {text}", external.host),
        )
    };
    let name = OutsideClient::server_name(&external.host)
        .map_err(|e| refused("bad_name", e.to_string()))?;
    let inside = match (http, kind) {
        (false, _) => Inside::Opaque,
        (true, StreamKind::Http2) => Inside::Http2,
        (true, _) => Inside::Http1,
    };
    let config = origination.client.config(inside);
    let config = config.map_err(|e| refused("no_roots", e.to_string()))?;
    let tls = OutsideTls::connect(link, config, name).await;
    let tls = tls.map_err(|e| {
        let (code, text) = outside::failure(&e);
        refused(code, text)
    })?;
    context.metrics.internal(|i| {
        i.handshakes += 1;
        i.resumed += u64::from(tls.is_resumed());
    });
    let http2 = tls.speaks_http2();
    Ok((Link::Outside(Box::new(tls)), http2))
}
