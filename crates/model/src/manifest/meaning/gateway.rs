//! Properties of a gateway and of its listeners.

use super::super::{GatewaySpec, ListenerSpec};

/// Annotation of `spec.infrastructure`: `region` or `region/zone`.
pub(in crate::manifest) const LOCALITY: &str = "tulle.dev/locality";
/// Annotation of `spec.infrastructure`: names of listeners, separated by commas.
pub(in crate::manifest) const PROXY_PROTOCOL: &str = "tulle.dev/proxy-protocol";

impl GatewaySpec {
    /// Where it runs, `region` or `region/zone`; empty: unknown.
    pub fn locality(&self) -> &str {
        self.annotation(LOCALITY).unwrap_or_default()
    }

    /// Names of the listeners whose connections begin with a PROXY protocol header.
    pub fn proxied(&self) -> impl Iterator<Item = &str> {
        let names = self.annotation(PROXY_PROTOCOL).unwrap_or_default();
        names.split(',').map(str::trim).filter(|n| !n.is_empty())
    }

    /// Returns an annotation of its infrastructure.
    pub(in crate::manifest) fn annotation(&self, key: &str) -> Option<&str> {
        let annotations = &self.infrastructure.as_ref()?.annotations;
        annotations.get(key).map(String::as_str)
    }
}

impl ListenerSpec {
    /// Whether TLS goes on to the service as it is.
    pub fn passes_through(&self) -> bool {
        let mode = self.tls.as_ref().and_then(|tls| tls.mode.as_deref());
        mode == Some("Passthrough")
    }

    /// Whether HTTPRoutes and GRPCRoutes may attach.
    pub fn takes_http(&self) -> bool {
        matches!(self.protocol.as_str(), "HTTP" | "HTTPS")
    }

    /// Whether TLSRoutes may attach: the server name is known whether TLS ends here or not.
    pub fn takes_tls(&self) -> bool {
        self.protocol == "TLS"
    }

    /// Whether TCPRoutes may attach.
    pub fn takes_tcp(&self) -> bool {
        self.protocol == "TCP" || (self.protocol == "TLS" && !self.passes_through())
    }
}
