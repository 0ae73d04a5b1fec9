//! Connections to the application: mutual TLS, the policy, then the local port.

use crate::cluster::{self, address, millis};
use crate::http::Arrival;
use crate::outbound::{HTTP1, chain};
use crate::whole::{Translator, http_inspector, original_destination, tls_inspector};
use crate::{Untranslatable, policy, tls};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tulle_model::identity::SpiffeId;
use tulle_model::resource::{Inbound, InboundPort, Protocol};

/// ALPN names by which peers announce HTTP.
const HTTP_ALPN: [&str; 1] = ["http/1.1"];
const HTTP_ALPN_H2: [&str; 2] = ["h2", "http/1.1"];

impl Translator<'_> {
    /// Returns a listener for one of the application's ports.
    pub(crate) fn port_listener(&self, at: SocketAddr, port: u16) -> Result<Value, Untranslatable> {
        let inbound = self.inbound(at)?;
        let Some(found) = inbound.ports.iter().find(|p| p.port == port) else {
            return Err(Untranslatable::Missing {
                listener: at,
                what: format!("service {} has no port {port} here", inbound.service),
            });
        };
        let mut listener = json!({
            "name": format!("inbound {at}"),
            "address": address(at),
            "filter_chains": self.port_chains(inbound, found, &json!({}))?,
        });
        self.inspect(&mut listener, Vec::new(), &[found]);
        Ok(listener)
    }

    /// Returns the listener that connections to the application are redirected to. Connections to a
    /// port that is not served match no chain and are closed.
    pub(crate) fn inbound_listener(&self, at: SocketAddr) -> Result<Value, Untranslatable> {
        let inbound = self.inbound(at)?;
        let mut chains = Vec::new();
        for port in &inbound.ports {
            let wanted = json!({ "destination_port": port.port });
            chains.extend(self.port_chains(inbound, port, &wanted)?);
        }
        let mut listener = json!({
            "name": format!("inbound {at}"),
            "address": address(at),
            "filter_chains": chains,
        });
        let ports: Vec<&InboundPort> = inbound.ports.iter().collect();
        self.inspect(&mut listener, vec![original_destination()], &ports);
        Ok(listener)
    }

    fn inbound(&self, at: SocketAddr) -> Result<&Inbound, Untranslatable> {
        let inbound = self.bootstrap.inbound.as_ref();
        inbound.ok_or_else(|| Untranslatable::Missing {
            listener: at,
            what: "this sidecar's services are not known".into(),
        })
    }

    /// Adds the inspectors that the filter chains of these ports need.
    fn inspect(&self, listener: &mut Value, mut filters: Vec<Value>, ports: &[&InboundPort]) {
        let redirected = !filters.is_empty();
        let strict = self.mesh().strict_mtls;
        let detected: Vec<u16> = ports
            .iter()
            .filter(|p| p.protocol == Protocol::Detect)
            .map(|p| p.port)
            .collect();
        if !strict || !detected.is_empty() {
            filters.push(tls_inspector());
        }
        if strict {
            let limit = millis(self.mesh().header_timeout_ms.max(1));
            listener["listener_filters_timeout"] = limit.into();
        } else {
            if !detected.is_empty() {
                let ports: &[u16] = if redirected { &detected } else { &[] };
                filters.push(http_inspector(ports));
            }
            // A server in plaintext may have to speak first.
            self.detect_for(listener);
        }
        if !filters.is_empty() {
            listener["listener_filters"] = filters.into();
        }
    }

    /// Adds the filter chains of a port: for TLS, and for plaintext where it is allowed.
    fn port_chains(
        &self,
        inbound: &Inbound,
        port: &InboundPort,
        wanted: &Value,
    ) -> Result<Vec<Value>, Untranslatable> {
        let mesh = self.mesh();
        let prefix = format!("inbound_{}", port.port);
        let detect = port.protocol == Protocol::Detect;
        let alpn: &[&str] = if self.options.upstream_h2 {
            &HTTP_ALPN_H2
        } else {
            &HTTP_ALPN
        };
        let mut chains = Vec::new();
        let kinds: &[bool] = if mesh.strict_mtls {
            &[true]
        } else {
            &[true, false]
        };
        for secure in kinds.iter().copied() {
            let mut wanted = wanted.clone();
            if !mesh.strict_mtls {
                let transport = if secure { "tls" } else { "raw_buffer" };
                wanted["transport_protocol"] = transport.into();
            }
            let mut add = |wanted: &Value, filters: Value, allowed: Option<&[&SpiffeId]>, alpn| {
                let mut made = chain(wanted, filters);
                if secure {
                    made["transport_socket"] =
                        tls::from_client(&self.certificates, mesh, allowed, alpn);
                    made["transport_socket_connect_timeout"] =
                        millis(mesh.connect_timeout_ms).into();
                }
                chains.push(made);
            };
            if matches!(port.protocol, Protocol::Detect | Protocol::Http) {
                let mut wanted = wanted.clone();
                if detect {
                    wanted["application_protocols"] =
                        if secure { json!(alpn) } else { json!(HTTP1) };
                }
                let arrival = if secure {
                    Arrival::Verified
                } else {
                    Arrival::Plain
                };
                let rules = policy::http(&inbound.policy, port.port)?;
                let routes = self.app_routes(port.port);
                let filters = self.http_filters(&prefix, arrival, routes, rules);
                add(&wanted, filters, None, alpn);
            }
            let allowed = policy::tcp(&inbound.policy, port.port);
            // A client in plaintext has no identity that could be allowed.
            if port.protocol != Protocol::Http && (secure || allowed.is_none()) {
                let filters = self.tcp_filters(&prefix, &cluster::inbound(port.port));
                add(&wanted, filters, allowed.as_deref(), &[]);
            }
        }
        Ok(chains)
    }
}
