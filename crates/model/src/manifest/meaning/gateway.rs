//! What listeners of a gateway take.

use super::super::ListenerSpec;

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

    /// Whether TLSRoutes may attach.
    pub fn takes_tls(&self) -> bool {
        self.protocol == "TLS" && self.passes_through()
    }

    /// Whether TCPRoutes may attach.
    pub fn takes_tcp(&self) -> bool {
        self.protocol == "TCP" || (self.protocol == "TLS" && !self.passes_through())
    }
}
