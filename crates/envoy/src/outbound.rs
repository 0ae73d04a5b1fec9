//! The application's connections: to one declared service, or to their original destination.

use crate::cluster::{self, EGRESS, REFUSED, Speech, millis};
use crate::http::Arrival;
use crate::whole::{Translator, http_inspector, original_destination};
use crate::{Untranslatable, cluster::address};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use tulle_model::resource::{Protocol, Service, ServicePort};

/// HTTP/1's names in Envoy's HTTP inspector. HTTP/2 stays opaque, as with Tulle's own proxy.
pub(crate) const HTTP1: [&str; 2] = ["http/1.0", "http/1.1"];

impl Translator<'_> {
    /// Returns a listener for one service port.
    pub(crate) fn upstream_listener(
        &self,
        at: SocketAddr,
        service: &str,
        port: u16,
    ) -> Result<Value, Untranslatable> {
        let found = self.bootstrap.services.iter().find(|s| s.name == service);
        let found = found.and_then(|s| Some((s, s.ports.iter().find(|p| p.port == port)?)));
        let Some((service, port)) = found else {
            return Err(Untranslatable::Missing {
                listener: at,
                what: format!("there is no service {service} with port {port}"),
            });
        };
        let mut listener = json!({
            "name": format!("upstream {at}"),
            "address": address(at),
            "filter_chains": self.service_chains(service, port, &json!({}))?,
        });
        if port.protocol == Protocol::Detect {
            listener["listener_filters"] = json!([http_inspector(&[])]);
            self.detect_for(&mut listener);
        }
        Ok(listener)
    }

    /// Returns the listener that the application's connections are redirected to.
    pub(crate) fn outbound_listener(&self, at: SocketAddr) -> Result<Value, Untranslatable> {
        let mut chains = Vec::new();
        let mut owners: BTreeMap<(u16, IpAddr), &str> = BTreeMap::new();
        let mut detected = Vec::new();
        for service in &self.bootstrap.services {
            for port in &service.ports {
                for ip in &service.addresses {
                    if let Some(other) = owners.insert((port.port, *ip), &service.name) {
                        return Err(Untranslatable::SharedAddress {
                            address: *ip,
                            port: port.port,
                            services: [other.to_owned(), service.name.clone()],
                        });
                    }
                }
                if service.addresses.is_empty() {
                    continue; // Nobody can connect to it.
                }
                let wanted = destination(Some(port.port), &service.addresses);
                chains.extend(self.service_chains(service, port, &wanted)?);
                if port.protocol == Protocol::Detect {
                    detected.push(port.port);
                }
            }
        }
        let mut listener = json!({ "name": format!("outbound {at}"), "address": address(at) });
        let mut filters = vec![original_destination()];
        if !detected.is_empty() {
            filters.push(http_inspector(&detected));
            self.detect_for(&mut listener);
        }
        listener["listener_filters"] = filters.into();
        // Connections without a chain are refused. If egress is allowed they may leave, but neither
        // to a port that a service does not have, nor back to this listener.
        if self.mesh().allow_egress {
            chains.extend(self.refusals(at, &owners));
            listener["default_filter_chain"] =
                json!({ "filters": self.tcp_filters("egress", EGRESS) });
        }
        listener["filter_chains"] = chains.into();
        Ok(listener)
    }

    /// Returns chains that refuse. Envoy matches the port first, and then only the addresses given
    /// with it.
    fn refusals(&self, at: SocketAddr, owners: &BTreeMap<(u16, IpAddr), &str>) -> Vec<Value> {
        let services = &self.bootstrap.services;
        let all: BTreeSet<IpAddr> = services.iter().flat_map(|s| s.addresses.clone()).collect();
        let ports: BTreeSet<u16> = owners.keys().map(|(port, _)| *port).collect();
        let filters = self.tcp_filters("refused", REFUSED);
        let mut chains = Vec::new();
        let mut refuse = |wanted: Value| {
            chains.push(json!({ "filter_chain_match": wanted, "filters": filters }));
        };
        for port in &ports {
            let others: Vec<IpAddr> = all
                .iter()
                .filter(|ip| !owners.contains_key(&(*port, **ip)))
                .copied()
                .collect();
            if !others.is_empty() {
                refuse(destination(Some(*port), &others));
            }
        }
        if !all.is_empty() {
            refuse(destination(None, &all.into_iter().collect::<Vec<_>>()));
        }
        refuse(destination(Some(at.port()), &[]));
        chains
    }

    /// Returns the filter chains of a service port, HTTP before bytes.
    fn service_chains(
        &self,
        service: &Service,
        port: &ServicePort,
        wanted: &Value,
    ) -> Result<Vec<Value>, Untranslatable> {
        let prefix = format!("outbound_{}_{}", service.name, port.port);
        let mut chains = Vec::new();
        if matches!(port.protocol, Protocol::Detect | Protocol::Http) {
            let routes = self.service_routes(service, port.port)?;
            let mut wanted = wanted.clone();
            if port.protocol == Protocol::Detect {
                wanted["application_protocols"] = json!(HTTP1);
            }
            let filters = self.http_filters(&prefix, Arrival::Plain, routes, None);
            chains.push(chain(&wanted, filters));
        }
        if port.protocol != Protocol::Http {
            let name = cluster::outbound(&service.name, port.port, Speech::Tcp);
            chains.push(chain(wanted, self.tcp_filters(&prefix, &name)));
        }
        Ok(chains)
    }

    /// Sets the wait for the first bytes; after silence the server may speak first.
    pub(crate) fn detect_for(&self, listener: &mut Value) {
        listener["listener_filters_timeout"] = millis(self.mesh().detect_timeout_ms.max(1)).into();
        listener["continue_on_listener_filters_timeout"] = true.into();
    }
}

/// Returns a filter chain; without conditions it matches everything.
pub(crate) fn chain(wanted: &Value, filters: Value) -> Value {
    match wanted.as_object() {
        Some(map) if !map.is_empty() => {
            json!({ "filter_chain_match": wanted, "filters": filters })
        }
        _ => json!({ "filters": filters }),
    }
}

fn destination(port: Option<u16>, addresses: &[IpAddr]) -> Value {
    let mut wanted = json!({});
    if let Some(port) = port {
        wanted["destination_port"] = port.into();
    }
    if !addresses.is_empty() {
        let ranges: Vec<Value> = addresses
            .iter()
            .map(|ip| {
                let length = if ip.is_ipv4() { 32 } else { 128 };
                json!({ "address_prefix": ip.to_string(), "prefix_len": length })
            })
            .collect();
        wanted["prefix_ranges"] = ranges.into();
    }
    wanted
}
