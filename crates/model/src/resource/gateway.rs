//! An entry into the mesh for clients outside it.

use super::{InboundRule, Policy, Route, TcpRoute, TlsRoute, Workload, is_default};
use serde::{Deserialize, Serialize};
use std::fmt;

/// An entry into the mesh for clients outside it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Gateway {
    /// Unique in the mesh.
    pub name: String,
    /// Where it listens.
    pub listeners: Vec<GatewayListener>,
    /// HTTP routes attached to it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub routes: Vec<Route>,
    /// TLS routes (by server name, not terminated).
    #[serde(default, skip_serializing_if = "is_default")]
    pub tls_routes: Vec<TlsRoute>,
    /// TCP routes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tcp_routes: Vec<TcpRoute>,
    /// Where it runs, widest first: `region/zone`; empty: unknown.
    #[serde(default, skip_serializing_if = "is_default")]
    pub locality: String,
    /// The workload of its proxies, for metrics.
    #[serde(default, skip_serializing_if = "is_default")]
    pub workload: Option<Box<Workload>>,
}

/// One listening port of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewayListener {
    /// Unique in its gateway.
    pub name: String,
    /// Port number.
    pub port: u16,
    /// Exact host or `*.suffix`; empty: any. For TLS listeners also the server name.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hostname: String,
    /// The protocol of its connections.
    #[serde(default, skip_serializing_if = "is_default")]
    pub protocol: ListenerProtocol,
    /// How TLS is terminated; required for `Https`, and for `Tls` that is not passed through.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tls: Option<Box<ListenerTls>>,
    /// Every connection begins with a PROXY protocol header (v1 or v2).
    #[serde(default, skip_serializing_if = "is_default")]
    pub proxy_protocol: bool,
    /// Clients that may come in, by address: they have no identity of the mesh. `None`: everybody.
    #[serde(default, skip_serializing_if = "is_default")]
    pub policy: Option<Box<Policy>>,
    /// Rules for each HTTP request that the policy allows, applied before its route. Only the first
    /// rule that matches is applied.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rules: Vec<InboundRule>,
}

/// The protocol of a listener's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ListenerProtocol {
    /// HTTP/1.1, and HTTP/2 with prior knowledge.
    #[default]
    Http,
    /// The same inside TLS, which ends here.
    Https,
    /// TLS: by server name to TLS routes, passed through unless `tls` is given; then what is
    /// inside goes to TCP routes.
    Tls,
    /// Opaque bytes to TCP routes.
    Tcp,
}

/// How TLS ends at a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListenerTls {
    /// The first that is good for the server name is presented; else the first.
    pub certificates: Vec<Certificate>,
    /// Roots (PEM) a client's certificate must lead to; empty: clients need none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub client_roots: String,
    /// A client without a valid certificate is let in, too.
    #[serde(default, skip_serializing_if = "is_default")]
    pub client_optional: bool,
}

/// A certificate for clients outside the mesh, with its key.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Certificate {
    /// PEM, leaf first.
    pub chain: String,
    /// PEM (PKCS #8, SEC1 or PKCS #1). Only the listener's own gateway receives it.
    pub key: String,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate")
            .field("chain", &self.chain)
            .finish_non_exhaustive() // the key is nobody's business
    }
}
